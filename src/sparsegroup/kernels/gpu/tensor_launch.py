"""Which of Triton's kernels steps which tensors: many in one launch, rows of one."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from sparsegroup.kernels.gpu import launch, launch_rows
from sparsegroup.kernels.numbers import as_stored
from sparsegroup.kernels.regularizer import StepConstants
from sparsegroup.kernels.slot import Slot
from sparsegroup.kernels.step_request import TensorStep
from sparsegroup.rules import Rule


class LaunchMemory:
    """What the devices have been told of the tensors of a launch, kept from step to step."""

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], launch.Together] = {}

    def together(self, key: tuple[Any, ...], tensors: Sequence[launch.Parts], width: int) -> launch.Together:
        """What the device knows of `tensors`; told anew where they are not where they were."""
        lines = launch.lines_of(tensors, width)
        known = self._known.get(key)
        if known is None or known.lines != lines:
            known = self._known[key] = launch.together(lines, width, tensors[0].x.device)
        return known


def step_tensors(
    rule: Rule, group: int, tensors: Sequence[TensorStep], settings: StepConstants, memory: LaunchMemory
) -> None:
    """The step by dense gradients, which are contiguous.

    Args:
        rule: The base optimizer.
        group: The number of the param group, under which `memory` keeps what it tells the device.
        tensors: The parameters' parts of the step.
        settings: What all of them share.
        memory: See `LaunchMemory`.
    """
    together: dict[tuple[Any, ...], list[TensorStep]] = {}
    for tensor in tensors:
        slot = tensor.slot
        width = slot.width if slot.carries_u else 1
        # Step numbers that the device alone knows differ from tensor to tensor; in a graph, launches cost little.
        state_dtype = next(iter(slot.state_dtypes), None)
        same = id(tensor.numbers)
        kind = (slot.x.device, slot.dtype, state_dtype, tensor.gradient.dtype, slot.carries_u, width, same)
        together.setdefault(kind, []).append(tensor)
    for kind, alike in together.items():
        width, numbers, stored = kind[5], alike[0].numbers, _stored_settings(alike[0].slot, settings)
        if len(alike) == 1:
            launch.advance_tensor(rule, _parts(alike[0]), width, stored, numbers)
            continue
        for first in range(0, len(alike), launch.MOST_TENSORS):
            some = [_parts(tensor) for tensor in alike[first : first + launch.MOST_TENSORS]]
            known = memory.together((group, *kind[:-1], first), some, width)
            launch.advance_together(rule, some[0], known, width, stored, numbers)


def step_rows(rule: Rule, tensor: TensorStep, counters: Tensor, settings: StepConstants) -> None:
    """The step by a sparse gradient that is contiguous and has rows.

    Args:
        rule: The base optimizer.
        tensor: The parameter's part of the step.
        counters: See `rows.tensor_rows`.
        settings: λ and what else the step needs.
    """
    assert tensor.rows is not None
    rows = tensor.rows.contiguous()
    runs = launch_rows.runs_of(rows) if tensor.repeats else launch_rows.Runs(rows, None, None, len(rows))
    stored = _stored_settings(tensor.slot, settings)
    launch_rows.advance_rows(rule, _parts(tensor), runs, counters, stored, tensor.numbers)


def _parts(tensor: TensorStep) -> launch.Parts:
    slot = tensor.slot
    return launch.Parts(slot.x, slot.u, slot.state, tensor.gradient, tensor.hessian)


def _stored_settings(slot: Slot, settings: StepConstants) -> StepConstants:
    """`settings` with the initial state rounded as it is stored."""
    values = zip(settings.initial, slot.state, strict=True)
    return replace(settings, initial=tuple(as_stored(value, part.dtype) for value, part in values))
