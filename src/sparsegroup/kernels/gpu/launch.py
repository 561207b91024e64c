"""Launching the Triton kernels: how memory, scalars and the grid are described, and the step over tensors of groups."""

import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsegroup.kernels.gpu import binding
from sparsegroup.kernels.numbers import StepScalars, as_stored
from sparsegroup.kernels.regularizer import StepConstants
from sparsegroup.kernels.slot import Slot
from sparsegroup.kernels.step_request import TensorStep
from sparsegroup.rules import Rule

TILE = 1024
"""Elements that a program takes."""

OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
"""Without fused multiply-add the numbers are those of the CPU; the kernels wait for memory in any case."""

MOST_TENSORS = 256
"""How many tensors one launch steps at most."""

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def padded(width: int) -> int:
    """The lanes of a tile of groups of `width` elements."""
    return int(triton.next_power_of_2(width))


def groups_of_program(width: int, tile: int = TILE) -> int:
    """How many groups of `width` elements a program takes."""
    return max(1, tile // padded(width))


def launch(kernel: Any, on: Tensor, groups: int, width: int, tile: int = TILE, /, **arguments: Any) -> None:
    """Run a kernel over `groups` groups (or rows) of `width` elements, on the device of `on`."""
    taken = groups_of_program(width, tile)
    with torch.cuda.device_of(on):  # type: ignore[no-untyped-call]
        kernel[(-(-groups // taken),)](WIDTH=width, PADDED=padded(width), GROUPS=taken, **arguments, **OPTIONS)


def kernels_of(rule: Rule, carries_u: bool, settings: StepConstants) -> SimpleNamespace:
    """The kernels for a rule and what regularizes it."""
    r = settings.regularizer
    return binding.step_kernels(rule, carries_u, r.norm.weigh if r.l21 > 0 else None, r.penalty.shrinkage)


def step_arguments(
    settings: StepConstants, numbers: StepScalars, width: int, state_dtype: torch.dtype | None
) -> dict[str, Any]:
    """What `tile.step_tile` takes that does not depend on the element; `state_dtype` is that of u and the state."""
    r, scalars, start = settings.regularizer, numbers.scalars, numbers.start
    if not numbers.on_device:  # Triton makes another kernel for ints, and none for NumPy's numbers
        scalars, start = _floats(*scalars), _floats(*start)
    return {
        "scalars": scalars,
        "start": start,
        "initial": tuple(as_stored(value, state_dtype or torch.float32) for value in settings.initial),
        "lambdas": _floats(r.l1, 2 * r.l2, r.keep, -0.0),
        "penalty": _floats(*r.penalty.scalars()),
        "tau": math.sqrt(width) * float(r.tau),
        "seed": numbers.seed,
        "ON_DEVICE": numbers.on_device,
    }


def _floats(*numbers: Any) -> tuple[Any, ...]:
    return tuple(float(number) for number in numbers)


def state_dtype_of(slot: Slot) -> torch.dtype | None:
    """The dtype of u and the states, which all have the same; None where there are none."""
    return next(iter(slot.state_dtypes), None)


def pointers_of(slot: Slot) -> dict[str, Any]:
    """x, u and the states as the kernels take them; a u that is not carried is x, never looked at."""
    return {"x": slot.x, "u": slot.x if slot.u is None else slot.u, "state": slot.state}


def step_tensors(
    rule: Rule,
    tensors: Sequence[TensorStep],
    settings: StepConstants,
    tables: dict[tuple[Any, ...], "TensorTable"],
) -> None:
    """The step by dense gradients, which are contiguous, of tensors of a param group, whose `tables` are kept."""
    alike: dict[tuple[Any, ...], list[TensorStep]] = {}
    for tensor in tensors:
        slot = tensor.slot
        width = slot.width if slot.carries_u else 1
        # Step numbers that the device alone knows differ from tensor to tensor; in a graph, launches cost little.
        dtypes = slot.dtype, state_dtype_of(slot), tensor.gradient.dtype
        alike.setdefault((id(tensor.numbers), slot.x.device, dtypes, slot.carries_u, width), []).append(tensor)
    for kind, several in alike.items():
        width = kind[-1]
        if len(several) == 1:
            step_tensor(rule, several[0], width, settings)
            continue
        for first in range(0, len(several), MOST_TENSORS):
            some, key = several[first : first + MOST_TENSORS], (*kind[1:], first)
            tables[key] = step_many(rule, some, width, settings, tables.get(key))


def step_tensor(rule: Rule, tensor: TensorStep, width: int, settings: StepConstants) -> None:
    """The step over one tensor of groups of `width` ≤ `runtime.WIDEST_GROUP` elements, group after group."""
    slot, g = tensor.slot, tensor.gradient
    groups = slot.x.numel() // width
    launch(
        kernels_of(rule, slot.carries_u, settings).dense,
        slot.x,
        groups,
        width,
        **pointers_of(slot),
        g=g,
        hessian=g if tensor.hessian is None else tensor.hessian,
        groups=groups,
        **step_arguments(settings, tensor.numbers, width, state_dtype_of(slot)),
    )


class TensorTable:
    """Where the tensors of a launch lie, as `tensors.dense_many` takes it: on the device.

    Args:
        lines: The number of groups of each tensor, then addresses; at most `MOST_TENSORS`.
        width: The elements of a group.
        device: The tensors'.

    Attributes:
        lines: See above.
        table, firsts: See `tensors.dense_many`.
        programs: The number of programs of the launch.
        is_aligned: Whether all addresses are multiples of 16.
    """

    def __init__(self, lines: list[list[int]], width: int, device: torch.device) -> None:
        self.lines = lines
        programs = [-(-line[0] // groups_of_program(width)) for line in lines]
        firsts = [sum(programs[:i]) for i in range(len(lines))]
        firsts += [1 << 62] * (padded(len(lines)) - len(lines))
        flat = torch.tensor([*firsts, *(number for line in lines for number in line)], dtype=torch.int64)
        if device.type == "cuda":
            flat = flat.pin_memory().to(device, non_blocking=True)
        self.firsts, self.table = flat[: len(firsts)], flat[len(firsts) :]
        self.programs = sum(programs)
        self.is_aligned = all(address % 16 == 0 for line in lines for address in line[1:])


def step_many(
    rule: Rule, tensors: Sequence[TensorStep], width: int, settings: StepConstants, table: TensorTable | None = None
) -> TensorTable:
    """The step over tensors of the same dtypes and numbers in one launch; gives the table for the next step.

    Args:
        rule: The base optimizer.
        tensors: At most `MOST_TENSORS`.
        width: The elements of a group.
        settings: What the tensors share.
        table: That of the step before, which is used if no tensor has moved.
    """
    slot, g = tensors[0].slot, tensors[0].gradient
    lines = [_line_of(tensor, width) for tensor in tensors]
    if table is None or table.lines != lines:
        table = TensorTable(lines, width, slot.x.device)
    dtype = state_dtype_of(slot)
    launch(
        kernels_of(rule, slot.carries_u, settings).dense_many,
        slot.x,
        table.programs * groups_of_program(width),
        width,
        table=table.table,
        firsts=table.firsts,
        X=TYPES[slot.dtype],
        STATE=TYPES[dtype or slot.dtype],
        GRADIENT=TYPES[g.dtype],
        ALIGNED=table.is_aligned,
        TENSORS=len(table.firsts),
        **step_arguments(settings, tensors[0].numbers, width, dtype),
    )
    return table


def _line_of(tensor: TensorStep, width: int) -> list[int]:
    slot, g = tensor.slot, tensor.gradient.data_ptr()
    hessian = g if tensor.hessian is None else tensor.hessian.data_ptr()
    return [slot.x.numel() // width, g, hessian, *slot.addresses]
