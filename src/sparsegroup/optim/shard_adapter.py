"""A parameter that is a DTensor: each rank steps its part; u and the state are DTensors. See `ParameterAdapter`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from sparsegroup.optim.group_census import GroupCensus
from sparsegroup.optim.group_step import GroupStep
from sparsegroup.optim.loaded_state import Shielded
from sparsegroup.optim.local_shard import (
    as_spread,
    check_groups_are_whole,
    laid_out_as,
    local_entry,
    local_part,
    split_mesh_dims,
)
from sparsegroup.optim.plans import ParameterSite, ShardPlan
from sparsegroup.optim.tensor_adapter import TensorAdapter, planned
from sparsegroup.rules import Rule

_TENSOR = TensorAdapter()


class ShardAdapter:
    """See `ParameterAdapter`. The rows, or other groups, of a part are what they are in the whole."""

    def check(self, parameter: Tensor, group: Mapping[str, Any], where: str) -> None:
        """See `ParameterAdapter.check`."""
        _TENSOR.check(parameter, group, where)
        spread = as_spread(parameter)
        if any(placement.is_partial() for placement in spread.placements):
            placed = ", ".join(map(str, spread.placements))
            raise ValueError(f"a DTensor must be Shard or Replicate to be a parameter, got ({placed}) ({where})")
        if group["l1"] or group["l21"] or group["l2"]:
            check_groups_are_whole(spread, group["groups"], where)

    def plan(
        self, parameter: Tensor, step: GroupStep, states: Mapping[Tensor, dict[str, Any]], number: int
    ) -> ShardPlan:
        """See `ParameterAdapter.plan`. A gradient that lies otherwise than the parameter is laid out anew."""
        spread, gradient = as_spread(parameter), parameter.grad
        site = ParameterSite.of(step.group, (step.number, number))
        if step.rule.second_order:
            raise ValueError(f"{step.rule.name} needs second derivatives, which a DTensor has not ({site})")
        if step.wants_u or step.rule.mean_square:
            check_groups_are_whole(spread, step.group["groups"], site)
        if type(gradient) is not type(parameter):
            raise ValueError(
                f"the gradient of a DTensor must be one, too, got {type(gradient).__name__} ({site}): "
                "distribute_tensor(gradient, parameter.device_mesh, parameter.placements) makes one"
            )
        laid_out = laid_out_as(spread, gradient)
        return ShardPlan(parameter, planned(local_part(parameter), local_part(laid_out), step, number))

    def census(
        self,
        parameter: Tensor,
        step: GroupStep,
        entry: dict[str, Any],
        sample: int,
        draw: np.random.Generator,
    ) -> list[GroupCensus]:
        """See `ParameterAdapter.census`: one entry for each part, the same on all ranks, which all have to ask."""
        spread = as_spread(parameter)
        found = _TENSOR.census(local_part(parameter), step, local_entry(entry), sample, draw)
        for number in split_mesh_dims(spread):
            group = spread.device_mesh.get_group(number)
            parts: list[list[GroupCensus]] = [[]] * spread.device_mesh.size(number)
            dist.all_gather_object(parts, found, group=group)
            found = [census for part in parts for census in part]
        return found

    def sweep(self, parameter: Tensor, step: GroupStep, entry: dict[str, Any], *, zero_untrained: bool) -> None:
        """See `ParameterAdapter.sweep`."""
        step.prepare(parameter, entry)
        _TENSOR.sweep(local_part(parameter), step, local_entry(entry), zero_untrained=zero_untrained)

    def exported(self, parameter: Tensor, entry: dict[str, Any]) -> dict[str, Any]:
        """The entry itself: DTensors, as `torch.distributed.checkpoint` wants them."""
        return entry

    def adapted(self, parameter: Tensor, entry: dict[str, Any], rule: Rule, where: str) -> dict[str, Any]:
        """See `ParameterAdapter.adapted`: DTensors, or tensors that each rank has whole."""
        return _TENSOR.adapted(parameter, entry, rule, where)

    def restore(self, parameter: Tensor, entry: dict[str, Any], rule: Rule, group: Mapping[str, Any]) -> None:
        """See `ParameterAdapter.restore`."""
        with torch.no_grad():
            for name, value in entry.items():
                if isinstance(value, Shielded):
                    entry[name] = Shielded(laid_out_as(parameter, value.tensor))
        _TENSOR.restore(parameter, entry, rule, group)
