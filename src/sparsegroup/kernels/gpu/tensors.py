"""Triton kernels: the step over tensors of groups. See `sparsegroup.kernels.gpu.tile` for how this source is bound."""

from collections.abc import Callable
from typing import Any

tl: Any = None  # bound: triton.language
STATES: int = 0  # bound
_unbound: Callable[..., Any] = lambda *arguments: None  # noqa: E731
read_hessian = step_whole = _unbound


def dense(
    x: Any, u: Any, state: Any, g: Any, hessian: Any, groups: Any,
    scalars: Any, start: Any, initial: Any, lambdas: Any, penalty: Any, tau: Any, seed: Any,
    WIDTH: Any, PADDED: Any, GROUPS: Any, ON_DEVICE: Any,
) -> None:  # fmt: skip
    """One contiguous tensor of `groups` groups of `WIDTH` elements."""
    group = tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)[:, None]
    lane = tl.arange(0, PADDED)[None, :]
    at = group * WIDTH + lane
    inside = (group < groups) & (lane < WIDTH)
    value = tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
    curvature = read_hessian(hessian + at, inside, value)
    step_whole(
        x + at, u + at, [pointer + at for pointer in state], value, curvature, inside, at,
        scalars, start, initial, lambdas, penalty, tau, seed, ON_DEVICE,
    )  # fmt: skip


def dense_many(
    table: Any, firsts: Any, scalars: Any, start: Any, initial: Any, lambdas: Any, penalty: Any, tau: Any, seed: Any,
    X: Any, STATE: Any, GRADIENT: Any, ALIGNED: Any, TENSORS: Any, WIDTH: Any, PADDED: Any, GROUPS: Any,
) -> None:  # fmt: skip
    """Many contiguous tensors of groups of `WIDTH` elements.

    Args:
        table: `[tensors, 5 + states]` int64: groups, then the addresses of x, u, g, the Hessian's diagonal, the states.
        firsts: `[TENSORS]` int64, the first program of each tensor; beyond the last tensor, more than there are.
        scalars: See `tile.step_whole`, as for the arguments that follow.
    """
    program = tl.program_id(0).to(tl.int64)
    begun = tl.load(firsts + tl.arange(0, TENSORS)) <= program
    tensor = tl.sum(begun.to(tl.int32), 0) - 1
    first = tl.load(firsts + tensor)
    line = table + tensor * (5 + STATES)
    group = (program - first) * GROUPS + tl.arange(0, GROUPS)[:, None]
    lane = tl.arange(0, PADDED)[None, :]
    at = group * WIDTH + lane
    inside = (group < tl.load(line)) & (lane < WIDTH)
    x = tl.load(line + 1).to(tl.pointer_type(X))
    u = tl.load(line + 2).to(tl.pointer_type(STATE))
    g = tl.load(line + 3).to(tl.pointer_type(GRADIENT))
    hessian = tl.load(line + 4).to(tl.pointer_type(GRADIENT))
    if ALIGNED:
        x, u, g = tl.multiple_of(x, 16), tl.multiple_of(u, 16), tl.multiple_of(g, 16)
        hessian = tl.multiple_of(hessian, 16)
    state: Any = ()
    for k in tl.static_range(STATES):
        part = tl.load(line + 5 + k).to(tl.pointer_type(STATE))
        if ALIGNED:
            part = tl.multiple_of(part, 16)
        state = state + (part + at,)
    value = tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
    curvature = read_hessian(hessian + at, inside, value)
    step_whole(
        x + at, u + at, state, value, curvature, inside, at, scalars, start, initial, lambdas, penalty, tau, seed, False
    )  # fmt: skip
