"""Parameters that are tensors, with state of the same shape, or DTensors, of which each rank steps its own part."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parameter import is_lazy

from sparsegroup.groups import Grouping, check_groups, contiguous_groups, grouping, is_rows, mean_square
from sparsegroup.kernels import eager
from sparsegroup.kernels.eager import Block
from sparsegroup.kernels.gpu import runtime
from sparsegroup.kernels.step import Regularizer, TensorPlan, check_rows, compute_dtype
from sparsegroup.optim.arguments import check_device
from sparsegroup.optim.census import GroupCensus
from sparsegroup.optim.dtensor import (
    as_sharded,
    check_groups_are_whole,
    check_is_not_flattened,
    is_sharded,
    laid_out_as,
    local_entry,
    local_part,
    split_mesh_dims,
    whole,
)
from sparsegroup.optim.state import UncastTensor, check_names
from sparsegroup.optim.step import Entry, GroupStep, ParameterSite, Stepper
from sparsegroup.optim.table_parameter import StoredParameter
from sparsegroup.rules import Rule

_ELEMENTS = 1 << 20
"""That are computed with at a time, where the groups are contiguous."""


def _parts(parameter: Tensor, step: GroupStep, entry: Entry) -> list[Tensor | None]:
    return [parameter.detach(), entry.get("u"), *(entry[name] for name in step.rule.state)]


def _pieces(
    parameter: Tensor, step: GroupStep, parts: list[Tensor | None]
) -> Iterator[tuple[list[Tensor | None], Grouping]]:
    """The parts of the parameter, views of them, with the groups of each."""
    spec = step.groups
    shape = contiguous_groups(spec, parameter.shape)
    given = [part for part in parts if part is not None]
    if shape is None or not shape[0] or not all(part.is_contiguous() for part in given):
        yield parts, grouping(spec, parameter.shape, parameter.device)
        return
    width, count = shape
    rows = max(1, _ELEMENTS // width)
    for first in range(0, count, rows):
        some = [None if part is None else part.view(count, width)[first : first + rows] for part in parts]
        size = torch.Size((min(rows, count - first), width))
        yield some, grouping("rows", size, parameter.device)


def _closed_form(
    parts: list[Tensor | None], dtype: torch.dtype, step: GroupStep, entry: Entry, groups: Grouping
) -> tuple[Rule, Block, Sequence[float], Sequence[float], Regularizer, Grouping]:
    """The arguments of `eager.survival_l21` and `eager.swept` for some parts, computed with in `dtype`."""
    state = [part for part in parts[2:] if part is not None]
    x, u = (None if part is None else part.to(dtype) for part in parts[:2])
    assert x is not None
    block = Block(x, u, [part.to(dtype) for part in state])
    initial = step.constants.initial_as(part.dtype for part in state)
    return step.rule, block, step.scalars(float(entry["step"])).of_rule, initial, step.regularizer, groups


_TAKEN = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class TensorStepper:
    """See `Stepper`. State of a tensor is tensors of the same shape."""

    def check(self, parameter: Tensor, group: Mapping[str, Any], where: str) -> None:
        if parameter.layout != torch.strided:
            raise ValueError(f"parameters must be dense, got layout {parameter.layout} ({where})")
        if parameter.dtype not in _TAKEN:
            raise ValueError(
                f"parameters must be float64, float32, bfloat16 or float16, got {parameter.dtype} ({where})"
            )
        if not is_lazy(parameter):  # the first step checks a lazy parameter, which has no shape yet
            check_groups(group["groups"], parameter.shape, where)
            check_is_not_flattened(parameter, group, where)
        check_device(parameter, group, where)

    def plan(
        self, parameter: Tensor, gradient: Tensor, step: GroupStep, states: Mapping[Tensor, Entry], number: int
    ) -> TensorPlan:
        return _read(parameter, gradient, step, number)

    def census(
        self, parameter: Tensor, step: GroupStep, entry: Entry, sample: int, draw: np.random.Generator
    ) -> list[GroupCensus]:
        """See `Stepper.census`. Groups that never had a gradient do not count."""
        parts = _parts(parameter, step, entry)
        shape = contiguous_groups(step.groups, parameter.shape)
        weight, pieces = 1.0, _pieces(parameter, step, parts)
        if shape is not None and 0 < sample < shape[1]:
            chosen = torch.from_numpy(draw.integers(0, shape[1], sample)).to(parameter.device)
            parts = [None if part is None else part.reshape(shape[1], shape[0])[chosen] for part in parts]
            weight = shape[1] / sample
            pieces = iter([(parts, grouping("rows", torch.Size((sample, shape[0])), parameter.device))])
        critical, live = [np.empty(0)], 0
        for some, groups in pieces:
            arguments = _closed_form(some, compute_dtype(parameter.dtype), step, entry, groups)
            values = groups.of_each(eager.survival_l21(*arguments))
            touched = torch.isfinite(values)
            critical.append(values[touched].double().cpu().numpy())
            live += int((groups.of_each(groups.any(arguments[1].x != 0)) & touched).sum())
        found = np.concatenate(critical)
        width = parameter.numel() // max(1, grouping(step.groups, parameter.shape, parameter.device).count)
        return [GroupCensus(found, weight, live * weight, len(found) * weight, width * parameter.dtype.itemsize)]

    def sweep(self, parameter: Tensor, step: GroupStep, entry: Entry, *, zero_untrained: bool) -> None:
        step.prepare(parameter, entry)
        for some, groups in _pieces(parameter, step, _parts(parameter, step, entry)):
            arguments = _closed_form(some, compute_dtype(parameter.dtype), step, entry, groups)
            for part, after in zip(some[:2], eager.swept(*arguments, parameter.dtype), strict=False):
                assert part is not None
                part.copy_(after)

    def exported(self, parameter: Tensor, entry: Entry) -> Entry:
        return entry

    def adapted(self, parameter: Tensor, entry: Entry, rule: Rule, where: str) -> Entry:
        check_names(entry, rule, (), where)
        for name, value in entry.items():
            if name != "step" and value.shape != parameter.shape:
                raise ValueError(
                    f"state {name!r} has shape {list(value.shape)}, the parameter {list(parameter.shape)} ({where})"
                )
        return entry

    def restore(self, parameter: Tensor, entry: Entry, rule: Rule, group: Mapping[str, Any]) -> None:
        """See `Stepper.restore`: u and the state keep their dtype, regardless of the parameter's."""
        for name, value in entry.items():
            if isinstance(value, UncastTensor):
                if not is_sharded(type(parameter)):
                    value = UncastTensor(whole(value.tensor))
                entry[name] = value.cast(parameter, group["state_dtype"] or compute_dtype(parameter.dtype))


def _read(parameter: Tensor, gradient: Tensor, step: GroupStep, number: int) -> TensorPlan:
    """The plan of a tensor whose gradient must be checked or changed."""
    group = step.group
    site = step.site(number)
    # Whether a kernel on a device may read the gradient unchanged, so that the host does not wait for the device.
    for_device = step.wants_kernels and parameter.dtype in runtime.WEIGHT_DTYPES and runtime.serves(parameter.device)
    if gradient.layout == torch.sparse_coo:
        plan = _read_sparse(parameter, gradient, step, for_device, site)
    elif gradient.layout == torch.strided:
        plan = TensorPlan(parameter, gradient.detach())
    else:
        raise ValueError(f"gradients must be dense or sparse COO, got layout {gradient.layout} ({site})")
    dtype = compute_dtype(parameter.dtype)
    if not for_device:
        plan.gradient = plan.gradient.to(dtype)
    if group["maximize"]:
        plan.gradient = -plan.gradient
    if group.get("weight_decay"):
        plan.gradient = plan.gradient.to(dtype).add(parameter.to(dtype), alpha=group["weight_decay"])
    if step.rule.mean_square:
        plan.gradient = plan.gradient.to(compute_dtype(plan.gradient.dtype))
        g = plan.gradient
        groups = grouping(step.groups if plan.rows is None else "rows", g.shape, g.device)
        plan.second_input = mean_square(g, groups)
    return plan


def _read_sparse(
    parameter: Tensor, gradient: Tensor, step: GroupStep, for_device: bool, site: ParameterSite
) -> TensorPlan:
    group = step.group
    if not is_rows(group["groups"]):
        raise ValueError(f"sparse gradients need groups='rows', got {group['groups']!r} ({site})")
    if gradient.sparse_dim() != 1:
        raise ValueError(f"sparse gradients must have sparse_dim 1, got {gradient.sparse_dim()} ({site})")
    if group.get("weight_decay"):
        raise ValueError(
            f"weight_decay={group['weight_decay']:g} cannot be applied to sparse gradients ({site}); use l2"
        )
    is_wanted_summed, gradient = gradient.requires_grad or step.rule.mean_square, gradient.detach()
    if for_device and not is_wanted_summed:  # the kernel adds up and checks: nothing is waited for
        rows, values = gradient._indices()[0], gradient._values()
        return TensorPlan(parameter, values, rows=rows, repeats=not gradient.is_coalesced(), unchecked=True)
    check_rows(gradient._indices()[0], parameter.shape[0], str(site))
    gradient = gradient.to(compute_dtype(parameter.dtype)).coalesce()
    return TensorPlan(parameter, gradient.values(), rows=gradient.indices()[0])


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
                f"the gradient of a DTensor must also be one, got {type(gradient).__name__} ({site}): "
                "distribute_tensor(gradient, parameter.device_mesh, parameter.placements) makes one"
            )
        laid_out = laid_out_as(parameter, gradient)
        plan = super().plan(local_part(parameter), local_part(laid_out), step, states, number)
        plan.whole = parameter
        return plan

    def census(
        self, parameter: Tensor, step: GroupStep, entry: Entry, sample: int, draw: np.random.Generator
    ) -> list[GroupCensus]:
        """See `Stepper.census`: one entry for each part, the same on all ranks, each of which must ask."""
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
