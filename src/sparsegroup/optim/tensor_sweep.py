"""The closed form without a gradient for parameters that are tensors, by PyTorch's operations, some rows at a time."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsegroup.groups import Grouping, contiguous_groups, grouping
from sparsegroup.kernels import eager
from sparsegroup.kernels.eager import Block
from sparsegroup.kernels.step import StepScalars, compute_dtype
from sparsegroup.optim.group_census import GroupCensus
from sparsegroup.optim.group_step import GroupStep

_ELEMENTS = 1 << 20
"""That are computed with at a time, where the groups lie one after the other."""


def census(
    parameter: Tensor, step: GroupStep, entry: dict[str, Any], sample: int, draw: np.random.Generator
) -> GroupCensus:
    """See `ParameterAdapter.census`."""
    parts = _parts(parameter, step, entry)
    shape = contiguous_groups(step.groups, parameter.shape)
    weight, pieces = 1.0, _pieces(parameter, step, parts)
    if shape is not None and 0 < sample < shape[1]:
        chosen = torch.from_numpy(draw.integers(0, shape[1], sample)).to(parameter.device)
        parts = [None if part is None else part.reshape(shape[1], shape[0])[chosen] for part in parts]
        x = parts[0]
        assert x is not None
        weight, pieces = shape[1] / sample, iter([(parts, grouping("rows", x.shape, x.device))])
    critical, live = [], 0
    for some, groups in pieces:
        block = _block(some, compute_dtype(parameter.dtype))
        found = eager.survival_l21(
            step.rule, block, _numbers(step, entry).scalars, _initial(step, some), step.regularizer, groups
        )
        values = groups.of_each(found)
        touched = torch.isfinite(values)
        critical.append(values[touched].double().cpu().numpy())
        live += int((groups.of_each(groups.any(block.x != 0)) & touched).sum())
    touched_ones = np.concatenate([np.empty(0), *critical])
    width = parameter.numel() // max(1, grouping(step.groups, parameter.shape, parameter.device).count)
    return GroupCensus(
        touched_ones, weight, live * weight, len(touched_ones) * weight, width * parameter.dtype.itemsize
    )


def sweep(parameter: Tensor, step: GroupStep, entry: dict[str, Any]) -> None:
    """See `ParameterAdapter.sweep`."""
    step.prepare(parameter, entry)
    for some, groups in _pieces(parameter, step, _parts(parameter, step, entry)):
        x, u = some[:2]
        assert x is not None
        assert u is not None
        block = _block(some, compute_dtype(parameter.dtype))
        after, u_after, _ = eager.swept(
            step.rule,
            block,
            _numbers(step, entry).scalars,
            _initial(step, some),
            step.regularizer,
            groups,
            parameter.dtype,
        )
        x.copy_(after)
        u.copy_(u_after)


def _numbers(step: GroupStep, entry: dict[str, Any]) -> StepScalars:
    return step.scalars(float(entry["step"]))


def _parts(parameter: Tensor, step: GroupStep, entry: dict[str, Any]) -> list[Tensor | None]:
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


def _block(parts: list[Tensor | None], dtype: torch.dtype) -> Block:
    x, u, *state = (None if part is None else part.to(dtype) for part in parts)
    assert x is not None
    return Block(x, u, [part for part in state if part is not None])


def _initial(step: GroupStep, parts: list[Tensor | None]) -> tuple[float, ...]:
    return step.constants.stored_as(tuple(part.dtype for part in parts[2:] if part is not None)).initial
