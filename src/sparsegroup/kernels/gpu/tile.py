"""The step on a tile of groups, `[groups, elements]`, as Triton compiles it for a rule, a norm and a penalty.

This is source for `sparsegroup.kernels.gpu.binding`, which replaces the globals marked below and takes parameters in
capitals for constants of the compiler. Lanes beyond a group's elements are not `inside`; they hold zeros.
"""

from collections.abc import Callable
from typing import Any

import triton.language as tl

SECOND_ORDER: bool = False  # bound
HAS_START: bool = False  # bound
CARRIES_U: bool = True  # bound
HAS_NORM: bool = True  # bound
STATES: int = 0  # bound
_unbound: Callable[..., Any] = lambda *arguments: None  # noqa: E731
update = weigh = shrinkage = soft_threshold = clip = closed_form = solution = next_residual = base_step = _unbound
random_bits = rounded_bits = nearest_bits = mark_updated = keep_mark = tile_was_updated = _unbound


def nan_maximum(a: Any, b: Any) -> Any:
    """The larger one, NaN if either is, as torch and NumPy have it: `xp.maximum`."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


def groups_and_lanes(GROUPS: Any, PADDED: Any) -> Any:
    """The numbers of this program's groups, `[GROUPS, 1]`, and of the elements of each, `[1, PADDED]`."""
    return tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)[:, None], tl.arange(0, PADDED)[None, :]


def at_address(address: Any, OFFSET: Any, lane: Any, TYPE: Any, ALIGNED: Any) -> Any:
    """Pointers to the lanes of a part `OFFSET` bytes into rows that begin at `address` `[groups, 1]`."""
    pointer = address.to(tl.pointer_type(TYPE))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, [16, 16])
    return pointer + (OFFSET // (TYPE.primitive_bitwidth // 8) + lane)


def row_address(pages: Any, row: Any, SHIFT: Any, ROW_BYTES: Any) -> Any:
    """Where rows begin, in pages of 2**SHIFT rows of ROW_BYTES; for a negative row, where row 0 does."""
    existing = tl.where(row >= 0, row, 0)
    return tl.load(pages + (existing >> SHIFT)) + (existing & ((1 << SHIFT) - 1)) * ROW_BYTES


def read_hessian(pointer: Any, inside: Any, otherwise: Any) -> Any:
    """The Hessian's diagonal, where the rule wants one."""
    if SECOND_ORDER:
        return tl.load(pointer, mask=inside, other=0.0).to(tl.float32)
    else:
        return otherwise


def any_in_group(mask: Any) -> Any:
    """`[groups, 1]`."""
    return tl.max(mask.to(tl.int32), 1, keep_dims=True) != 0


def was_touched(g: Any, u: Any, state: Any, initial: Any, inside: Any) -> Any:
    """Whether a group has ever had a non-zero gradient (`eager_step.ever_touched`), `[groups, 1]`."""
    touched = (g != 0.0) | tile_was_updated(u)
    for k in tl.static_range(STATES):
        touched = touched | (state[k] != initial[k])
    return any_in_group(touched & inside)


def as_stored(value: Any, X: Any) -> Any:
    """`value`, float32, rounded to what X can hold."""
    if tl.float32 == X:
        return value
    elif tl.bfloat16 == X:
        return nearest_bits(value.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
    else:
        return value.to(X).to(tl.float32)


def regularized(
    x: Any, u: Any, m: Any, sigma: Any, inside: Any, lambdas: Any, penalty: Any, tau: Any, X: Any
) -> Any:  # fmt: skip
    """x⁺ as stored, in float32, and u⁺: the closed form of `sparsegroup.prox` (`eager_step.regularized_step`)."""
    l1, two_l2, keep, minus_zero = lambdas[0], lambdas[1], lambdas[2], lambdas[3]
    z = u + m - sigma * x
    s = soft_threshold(z, l1, 0.0)
    r = clip(z, l1)
    c = sigma + two_l2
    q = 0.0
    if HAS_NORM:
        weighed = weigh(s, c, 0.0)
        squares = tl.sum(tl.where(inside, weighed * weighed, 0.0), 1, keep_dims=True)
        q = shrinkage(tl.sqrt_rn(squares), tau, 0.0, 1.0, *penalty)
    y = closed_form(x, s, q, c, keep, 0.0, 1.0)
    exact = solution(x, u, m, r, s, q, y, two_l2, c, 0.0)
    stored = as_stored(exact, X)
    after = next_residual(r, s, q, y, two_l2, sigma * (stored - exact) if tl.float32 != X else 0.0)
    return stored, mark_updated(after, minus_zero)


def store_state(pointer: Any, value: Any, inside: Any, element: Any, seed: Any, PART: Any) -> None:
    """Write a part of the state; bfloat16 is rounded stochastically."""
    if pointer.dtype.element_ty == tl.bfloat16:
        bits = value.to(tl.int32, bitcast=True)
        rounded = keep_mark(rounded_bits(bits, random_bits(element.to(tl.int32), seed, PART)), bits)
        tl.store(pointer, rounded.to(tl.float32, bitcast=True).to(tl.bfloat16), mask=inside)
    else:
        tl.store(pointer, value, mask=inside)


def step_tile(
    x_at: Any, u_at: Any, state_at: Any, g: Any, hessian: Any, inside: Any, element: Any,
    scalars: Any, start: Any, initial: Any, lambdas: Any, penalty: Any, tau: Any, seed: Any, ON_DEVICE: Any,
) -> Any:  # fmt: skip
    """One step of the groups in a tile, one per line. Gives x before and after.

    `x_at`, `u_at` (where u is carried) and the tuple `state_at` are pointers; `element` is the number of each element,
    for stochastic rounding. `start` is σ₀, and 0 where the learning rate is 0, else 1; `initial` are the states before
    the first gradient; `lambdas` are λ1, 2 λ2, keep, -0; `penalty` are its scalars; `tau` is √d λ21, scaled to the
    norm. ON_DEVICE: `scalars`, `start` and `seed` lie in the device's memory.
    """
    if ON_DEVICE:
        scalars = [tl.load(value) for value in scalars]
        start = [tl.load(value) for value in start]
        seed = tl.load(seed)
    X = x_at.dtype.element_ty
    x = tl.load(x_at, mask=inside, other=0.0).to(tl.float32)
    state = [tl.load(pointer, mask=inside, other=0.0).to(tl.float32) for pointer in state_at]
    if SECOND_ORDER:
        out = update(g, hessian, *state, *scalars)
    else:
        out = update(g, *state, *scalars)
    m, sigma = out[0], out[1]
    moves = tl.full([1, 1], start[1], tl.float32) != 0.0
    if CARRIES_U:
        u = tl.load(u_at, mask=inside, other=0.0).to(tl.float32)
        charged = u
        if HAS_START:
            charged = tl.where(any_in_group(tile_was_updated(u)), u, start[0] * x)
        stored, u_after = regularized(x, charged, m, sigma, inside, lambdas, penalty, tau, X)
        changes = was_touched(g, u, state, initial, inside) & moves
        stored = tl.where(changes, stored, x)
        store_state(u_at, tl.where(changes, u_after, u), inside, element, seed, 0)
    else:
        stored = tl.where(moves, as_stored(base_step(x, m, sigma, 0.0), X), x)
    tl.store(x_at, stored.to(X), mask=inside)
    for k in tl.static_range(STATES):
        store_state(state_at[k], out[2 + k], inside, element, seed, 1 + k)
    return x, stored
