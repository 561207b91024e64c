"""The stepper of parameters that are DTensors, and which stepper a parameter has."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from sparsegroup.kernels.step import TensorPlan
from sparsegroup.optim.group_census import GroupCensus
from sparsegroup.optim.group_step import Entry, GroupStep, ParameterSite, Stepper
from sparsegroup.optim.loaded_state import UncastTensor
from sparsegroup.optim.local_shard import (
    as_sharded,
    check_groups_are_whole,
    is_sharded,
    laid_out_as,
    local_entry,
    local_part,
    split_mesh_dims,
)
from sparsegroup.optim.stored import StoredParameter
from sparsegroup.optim.tensor_adapter import TensorStepper
from sparsegroup.rules import Rule


class ShardStepper(TensorStepper):
    """Steps this rank's part of a DTensor as a tensor; u and the state are DTensors.

    The rows, or other groups, of a part are what they are in the whole.
    """

    def check(self, parameter: Tensor, group: Mapping[str, Any], where: str) -> None:
        super().check(parameter, group, where)
        sharded = as_sharded(parameter)
        if any(placement.is_partial() for placement in sharded.placements):
            placed = ", ".join(map(str, sharded.placements))
            raise ValueError(f"a DTensor must be Shard or Replicate to be a parameter, got ({placed}) ({where})")
        if group["l1"] or group["l21"] or group["l2"]:
            check_groups_are_whole(sharded, group["groups"], where)

    def plan(
        self, parameter: Tensor, gradient: Tensor, step: GroupStep, states: Mapping[Tensor, Entry], number: int
    ) -> TensorPlan:
        """See `Stepper.plan`. A gradient that is placed differently than the parameter is redistributed."""
        site = ParameterSite(step.number, number, step.group.get("param_names"))
        if step.rule.second_order:
            raise ValueError(f"{step.rule.name} needs second derivatives, which a DTensor has not ({site})")
        if step.wants_u or step.rule.mean_square:
            check_groups_are_whole(parameter, step.groups, site)
        if type(gradient) is not type(parameter):
            raise ValueError(
                f"the gradient of a DTensor must be one, too, got {type(gradient).__name__} ({site}): "
                "distribute_tensor(gradient, parameter.device_mesh, parameter.placements) makes one"
            )
        laid_out = laid_out_as(parameter, gradient)
        plan = super().plan(local_part(parameter), local_part(laid_out), step, states, number)
        plan.whole = parameter
        return plan

    def census(
        self, parameter: Tensor, step: GroupStep, entry: Entry, sample: int, draw: np.random.Generator
    ) -> list[GroupCensus]:
        """See `Stepper.census`: one entry for each part, the same on all ranks, which all have to ask."""
        sharded = as_sharded(parameter)
        found = super().census(local_part(parameter), step, local_entry(entry), sample, draw)
        for number in split_mesh_dims(sharded):
            group = sharded.device_mesh.get_group(number)
            parts: list[list[GroupCensus]] = [[]] * sharded.device_mesh.size(number)
            dist.all_gather_object(parts, found, group=group)
            found = [census for part in parts for census in part]
        return found

    def sweep(self, parameter: Tensor, step: GroupStep, entry: Entry, *, zero_untrained: bool) -> None:
        step.prepare(parameter, entry)
        super().sweep(local_part(parameter), step, local_entry(entry), zero_untrained=zero_untrained)

    def restore(self, parameter: Tensor, entry: Entry, rule: Rule, group: Mapping[str, Any]) -> None:
        with torch.no_grad():
            for name, value in entry.items():
                if isinstance(value, UncastTensor):
                    entry[name] = UncastTensor(laid_out_as(parameter, value.tensor))
        super().restore(parameter, entry, rule, group)


_TENSOR, _SHARD = TensorStepper(), ShardStepper()


def stepper_of(parameter: Tensor) -> Stepper:
    """The stepper of a parameter: a table's own, else that of tensors or of DTensors."""
    if isinstance(parameter, StoredParameter):
        stepper: Stepper = parameter.stepper
        return stepper
    return _SHARD if is_sharded(type(parameter)) else _TENSOR
