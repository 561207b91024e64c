"""Triton kernels: the step over tensors of groups. See `sparsegroup.kernels.gpu.tile` for how this source is bound.

`dense` takes pointers, as a CUDA graph needs them; `dense_many` reads them from the device's memory.
"""

from typing import Any

import triton.language as tl

from sparsegroup.kernels.gpu.tile import CARRIES_U, STATES, groups_and_lanes, read_hessian, step_tile


def step_groups(
    x: Any, u: Any, state: Any, g: Any, hessian: Any, group: Any, groups: Any, lane: Any,
    scalars: Any, start: Any, initial: Any, lambdas: Any, penalty: Any, tau: Any, seed: Any,
    WIDTH: Any, ON_DEVICE: Any,
) -> None:  # fmt: skip
    """Some of the `groups` groups of `WIDTH` elements of a contiguous tensor."""
    at = group * WIDTH + lane
    inside = (group < groups) & (lane < WIDTH)
    value = tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
    curvature = read_hessian(hessian + at, inside, value)
    step_tile(
        x + at, u + at, [pointer + at for pointer in state], value, curvature, inside, at,
        scalars, start, initial, lambdas, penalty, tau, seed, ON_DEVICE,
    )  # fmt: skip


def dense(
    x: Any, u: Any, state: Any, g: Any, hessian: Any, groups: Any,
    scalars: Any, start: Any, initial: Any, lambdas: Any, penalty: Any, tau: Any, seed: Any,
    WIDTH: Any, PADDED: Any, GROUPS: Any, ON_DEVICE: Any,
) -> None:  # fmt: skip
    """One contiguous tensor of `groups` groups."""
    group, lane = groups_and_lanes(GROUPS, PADDED)
    step_groups(
        x, u, state, g, hessian, group, groups, lane,
        scalars, start, initial, lambdas, penalty, tau, seed, WIDTH, ON_DEVICE,
    )  # fmt: skip


def at_line(line: Any, TYPE: Any, ALIGNED: Any) -> Any:
    """The pointer that lies at `line`."""
    pointer = tl.load(line).to(tl.pointer_type(TYPE))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, 16)
    return pointer


def dense_many(
    table: Any, firsts: Any,
    scalars: Any, start: Any, initial: Any, lambdas: Any, penalty: Any, tau: Any, seed: Any,
    X: Any, STATE: Any, GRADIENT: Any, ALIGNED: Any, TENSORS: Any,
    WIDTH: Any, PADDED: Any, GROUPS: Any, ON_DEVICE: Any,
) -> None:  # fmt: skip
    """Many contiguous tensors.

    `table` `[tensors, 3 + parts]` int64 has the number of groups, the addresses of g, of the Hessian's diagonal and of
    the parts: x, u where it is carried, the states. `firsts` `[TENSORS]` int64 is the first program of each tensor;
    beyond the last tensor, more than there are.
    """
    begins = tl.load(firsts + tl.arange(0, TENSORS)) <= tl.program_id(0)
    tensor = tl.sum(begins.to(tl.int32), 0) - 1
    line = table + tensor * (4 + CARRIES_U + STATES)
    group, lane = groups_and_lanes(GROUPS, PADDED)
    state: Any = ()
    for k in tl.static_range(STATES):
        state = state + (at_line(line + (4 + CARRIES_U + k), STATE, ALIGNED),)
    step_groups(
        at_line(line + 3, X, ALIGNED), at_line(line + (3 + CARRIES_U), STATE, ALIGNED), state,
        at_line(line + 1, GRADIENT, ALIGNED), at_line(line + 2, GRADIENT, ALIGNED),
        group - tl.load(firsts + tensor) * GROUPS, tl.load(line), lane,
        scalars, start, initial, lambdas, penalty, tau, seed, WIDTH, ON_DEVICE,
    )  # fmt: skip
