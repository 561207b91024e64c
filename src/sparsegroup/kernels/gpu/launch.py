"""Launching the Triton kernels over tensors: tiles, grids, and what all launches of a step share."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsegroup.kernels.gpu import binding
from sparsegroup.kernels.numbers import StepScalars
from sparsegroup.kernels.regularizer import StepConstants
from sparsegroup.rules import Rule

TILE = 1024
"""Elements that a program takes."""

OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
"""Without fused multiply-add the numbers are those of the CPU; the kernels wait for memory in any case."""

MOST_TENSORS = 256
"""How many tensors one launch steps at most."""

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@dataclass(frozen=True)
class Parts:
    """A tensor on its way through a step: contiguous, shaped alike, on one device.

    Attributes:
        x: float32, bfloat16 or float16.
        u: float32 or bfloat16; None for one that carries none.
        state: As u, in the order of `rule.state`.
        g: The gradient, of any of these types.
        hessian: The Hessian's diagonal, of a second-order rule.
    """

    x: Tensor
    u: Tensor | None
    state: tuple[Tensor, ...]
    g: Tensor
    hessian: Tensor | None

    @property
    def pointers(self) -> tuple[Any, ...]:
        """As the kernels take them; what there is not is another tensor, never looked at."""
        x, g = self.x, self.g
        return x, x if self.u is None else self.u, self.state, g, g if self.hessian is None else self.hessian


@contextmanager
def on_device_of(tensor: Tensor) -> Iterator[None]:
    """Launches go to the device of `tensor`."""
    if tensor.device.type == "cuda":
        with torch.cuda.device(tensor.device):
            yield
    else:
        yield


def padded(width: int) -> int:
    """The lanes of a tile of groups of `width` elements."""
    return int(triton.next_power_of_2(width))


def shared_arguments(settings: StepConstants, numbers: StepScalars) -> dict[str, Any]:
    """What every step's kernel is told."""
    r = settings.regularizer
    scalars, start = numbers.scalars, numbers.start
    if not numbers.on_device:  # Triton makes another kernel for ints, and none for NumPy's numbers
        scalars, start = _floats(*scalars), _floats(*start)
    return {
        "scalars": scalars,
        "start": start,
        "initial": _floats(*settings.initial),
        "lambdas": _floats(r.l1, 2 * r.l2, r.keep, -0.0),
        "penalty": _floats(*r.penalty.scalars()),
        "seed": numbers.seed,
        **OPTIONS,
    }


def tau_of(width: int, settings: StepConstants) -> float:
    """√d λ21, scaled to the norm."""
    return math.sqrt(width) * float(settings.regularizer.tau)


def _floats(*numbers: Any) -> tuple[Any, ...]:
    return tuple(float(number) for number in numbers)


def kernels_of(rule: Rule, carries_u: bool, settings: StepConstants) -> binding.StepKernels:
    """The kernels for a rule and what regularizes it."""
    r = settings.regularizer
    return binding.step_kernels(rule, carries_u, r.norm.weigh if r.l21 > 0 else None, r.penalty.shrinkage)


def advance_tensor(rule: Rule, parts: Parts, width: int, settings: StepConstants, numbers: StepScalars) -> None:
    """The step over one tensor of groups of `width` ≤ `runtime.WIDEST_GROUP` elements, group after group."""
    groups = parts.x.numel() // width
    tile = max(1, TILE // padded(width))
    with on_device_of(parts.x):
        kernels_of(rule, parts.u is not None, settings).dense[(-(-groups // tile),)](
            *parts.pointers,
            groups,
            tau=tau_of(width, settings),
            WIDTH=width,
            PADDED=padded(width),
            GROUPS=tile,
            ON_DEVICE=numbers.on_device,
            **shared_arguments(settings, numbers),
        )


@dataclass(frozen=True, eq=False)
class Together:
    """Tensors that are stepped in one launch, as the kernel is told of them.

    Attributes:
        lines: The content of `table`.
        table: See `tensors.dense_many`.
        firsts: See `tensors.dense_many`.
        programs: The number of programs of the launch.
    """

    lines: list[list[int]]
    table: Tensor
    firsts: Tensor
    programs: int


def lines_of(tensors: Sequence[Parts], width: int) -> list[list[int]]:
    """What `together` is made of: where the tensors lie."""
    lines = []
    for parts in tensors:
        x, u, state, g, hessian = parts.pointers
        addresses = [t.data_ptr() for t in (x, u, g, hessian, *state)]
        lines.append([parts.x.numel() // width, *addresses])
    return lines


def together(lines: list[list[int]], width: int, device: torch.device) -> Together:
    """Tell the device where tensors of groups of `width` elements lie; at most `MOST_TENSORS`."""
    tile = max(1, TILE // padded(width))
    programs = [-(-line[0] // tile) for line in lines]
    firsts = [sum(programs[:i]) for i in range(len(lines))]
    beyond = [1 << 62] * (padded(len(lines)) - len(lines))
    flat = torch.tensor([*firsts, *beyond, *(number for line in lines for number in line)], dtype=torch.int64)
    if device.type == "cuda":
        flat = flat.pin_memory().to(device, non_blocking=True)
    begun = len(firsts) + len(beyond)
    return Together(lines, flat[begun:], flat[:begun], sum(programs))


def advance_together(
    rule: Rule, like: Parts, known: Together, width: int, settings: StepConstants, numbers: StepScalars
) -> None:
    """The step over tensors that have the types of `like`, in one launch."""
    addresses = (address for line in known.lines for address in line[1:])
    state = like.state[0] if like.state else like.x if like.u is None else like.u
    with on_device_of(like.x):
        kernels_of(rule, like.u is not None, settings).dense_many[(known.programs,)](
            known.table,
            known.firsts,
            tau=tau_of(width, settings),
            X=TYPES[like.x.dtype],
            STATE=TYPES[state.dtype],
            GRADIENT=TYPES[like.g.dtype],
            ALIGNED=all(address % 16 == 0 for address in addresses),
            TENSORS=len(known.firsts),
            WIDTH=width,
            PADDED=padded(width),
            GROUPS=max(1, TILE // padded(width)),
            **shared_arguments(settings, numbers),
        )
