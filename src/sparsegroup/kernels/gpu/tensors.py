"""Triton kernels: the step over tensors of groups. See `sparsegroup.kernels.gpu.tile` for how this source is bound."""

from collections.abc import Callable
from typing import Any

tl: Any = None  # bound: triton.language
HAS_START: bool = False  # bound
CARRIES_U: bool = True  # bound
HAS_NORM: bool = True  # bound
STATES: int = 0  # bound
_unbound: Callable[..., Any] = lambda *arguments: None  # noqa: E731
numbers_of = one_number = read_hessian = read = advanced = any_in_group = is_touched = squares = shrunk = _unbound
solve = moves_at = store_state = step_whole = base_step = _unbound


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


def tile_of(groups: Any, inner: Any, width: Any, INNER_ONE: Any, GROUPS: Any, ELEMENTS: Any) -> Any:
    """A program's tile of a tensor `[outer, groups, inner]`: a chunk of the elements of some groups.

    Gives the chunk's number, the groups' `[GROUPS, 1]`, where elements lie, and which groups and elements there are.
    """
    blocks = tl.cdiv(groups, GROUPS)
    program = tl.program_id(0).to(tl.int64)
    chunk, block = program // blocks, program % blocks
    group = block * GROUPS + tl.arange(0, GROUPS)[:, None]
    element = chunk * ELEMENTS + tl.arange(0, ELEMENTS)[None, :]
    here = group < groups
    if INNER_ONE:
        at = element * groups + group
    else:
        at = (element // inner * groups + group) * inner + element % inner
    return chunk, group, at, here, here & (element < width)


def measure(
    x: Any, u: Any, state: Any, g: Any, hessian: Any, updated: Any, totals: Any, touched: Any,
    groups: Any, inner: Any, width: Any, scalars: Any, start: Any, initial: Any, lambdas: Any,
    INNER_ONE: Any, GROUPS: Any, ELEMENTS: Any, ON_DEVICE: Any,
) -> None:  # fmt: skip
    """The first pass over groups of any size, anywhere in a tensor `[outer, groups, inner]`: nothing is changed.

    Args:
        updated: `[groups]` int8, whether a group has ever been updated; for a rule with σ₀ only.
        totals: `[chunks, groups]` float32, out: sums of squares.
        touched: `[chunks, groups]` int8, out: whether a gradient has ever touched the group.
    """
    chunk, group, at, here, inside = tile_of(groups, inner, width, INNER_ONE, GROUPS, ELEMENTS)
    value = tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
    curvature = read_hessian(hessian + at, inside, value)
    weights = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    residual = tl.load(u + at, mask=inside, other=0.0).to(tl.float32)
    before = read([pointer + at for pointer in state], inside)
    flags = any_in_group(is_touched(value, residual, before, initial, inside))
    tl.store(touched + chunk * groups + group, flags.to(tl.int8), mask=here)
    if HAS_NORM:
        if HAS_START:
            known = tl.load(updated + group, mask=here, other=1) != 0
            residual = tl.where(known, residual, numbers_of(start, ON_DEVICE)[0] * weights)
        out = advanced(value, curvature, before, numbers_of(scalars, ON_DEVICE))
        z = residual + out[0] - out[1] * weights
        tl.store(totals + chunk * groups + group, squares(z, out[1], inside, lambdas), mask=here)


def apply(
    x: Any, u: Any, state: Any, g: Any, hessian: Any, updated: Any, totals: Any, touched: Any, taus: Any,
    groups: Any, inner: Any, width: Any, scalars: Any, start: Any, initial: Any, lambdas: Any, penalty: Any, seed: Any,
    INNER_ONE: Any, GROUPS: Any, ELEMENTS: Any, ON_DEVICE: Any, TAU_OF_EACH: Any,
) -> None:  # fmt: skip
    """The second pass, with `totals` and `touched` `[groups]` of whole groups. `taus` is one number, or `[groups]`."""
    _, group, at, here, inside = tile_of(groups, inner, width, INNER_ONE, GROUPS, ELEMENTS)
    value = tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
    curvature = read_hessian(hessian + at, inside, value)
    weights = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    residual = tl.load(u + at, mask=inside, other=0.0).to(tl.float32)
    state_at = [pointer + at for pointer in state]
    out = advanced(value, curvature, read(state_at, inside), numbers_of(scalars, ON_DEVICE))
    beginning = numbers_of(start, ON_DEVICE)
    charged = residual
    if HAS_START:
        known = tl.load(updated + group, mask=here, other=1) != 0
        charged = tl.where(known, residual, beginning[0] * weights)
    z = charged + out[0] - out[1] * weights
    q = 0.0
    if HAS_NORM:
        if TAU_OF_EACH:
            tau = tl.load(taus + group, mask=here, other=1.0)
        else:
            tau = taus
        q = shrunk(tl.load(totals + group, mask=here, other=0.0), tau, penalty)
    stored, after = solve(weights, charged, out[0], out[1], z, q, lambdas, x.dtype.element_ty)
    moves = (tl.load(touched + group, mask=here, other=0) != 0) & moves_at(beginning)
    rounding_seed = one_number(seed, ON_DEVICE)
    tl.store(x + at, tl.where(moves, stored, weights).to(x.dtype.element_ty), mask=inside)
    store_state(u + at, tl.where(moves, after, residual), inside, at, rounding_seed, 0)
    for k in tl.static_range(STATES):
        store_state(state_at[k], out[2 + k], inside, at, rounding_seed, 1 + k)
