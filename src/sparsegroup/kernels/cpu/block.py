"""The step and the sweep on CPU, as Numba compiles them for a rule: blocks of groups that fit the first-level cache.

Within a block the work is cut into loops over contiguous elements that the compiler turns into vector instructions;
only the reduction of a group to its norm and the search for untouched groups go group by group.

The globals marked below are replaced when the source is bound to a rule, see `step_kernel` in `kernels/cpu/step.py`.
Functions without `@jitted` depend on bound names, so they are bound, too. The norm and the penalty are compiled apart,
as `weigh_elements` and `shrink_groups`, and called by their addresses: so a rule is compiled once for all of them.

The functions take tuples, since each NamedTuple would cost .4 µs a launch:

    parts    x, u, and a tuple of the rule's states: arrays of the elements of a block
    inputs   the gradient and the second input, or the gradient twice: arrays of the same elements
    scratch  S, whose arrays begin at `AT_M`, …; T `[BLOCK]`, for sums; the indices of untouched groups, `[BLOCK]` int64
    lambdas  λ1, 2 λ2, keep, σ₀, 0 and 1, in the dtype of the arithmetic
    terms    the states before the first gradient, `[states]`; `lambdas`; the penalty's scalars; the address of
             `weigh_elements` for the norm, or `NO_NORM` if λ21 = 0; the address of `shrink_groups`; whether the
             learning rate is 0
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from sparsegroup import prox
from sparsegroup.kernels import rounding
from sparsegroup.kernels.cpu.intrinsics import allocate, on_stack, release
from sparsegroup.kernels.cpu.jit import array_at, call, fill_8, inline, jitted
from sparsegroup.kernels.cpu.rows import WHOLE, find_rows, live_groups, load_weights, store_weights, to_nearest
from sparsegroup.kernels.cpu.threads import enter, leave, take

BLOCK = 256
"""Elements of a block. Its nine arrays take 9 KB of float32."""

CARRIES_U: bool = True  # bound
HAS_START: bool = False  # bound
IS_WIDE: bool = True  # bound: whether a group may have more than `BLOCK` elements
PARTS: int = 0  # bound: weights, u, and the rule's state
WEIGHTS: int = WHOLE  # bound: the kind of the weights, see `rows.copiers`
ROUNDS_U: bool = False  # bound: whether a sweep rounds u to bfloat16
PENALTY_SCALARS: int = 0  # bound
_unbound: Callable[..., Any] = lambda *arguments: None  # noqa: E731
# All bound, the first seven to code that `step.adapters` makes for the rule's number of states and scalars:
update_at = _unbound  # (inputs, state, i, scalars) → m, σ of element i, by `rule.update`; writes i's new state
is_initial = _unbound  # (state, initial, i) → whether the states of element i are as before the first gradient
unpack = _unbound  # (scalars, t) → the tuple of the scalars of tensor t
parts_in = _unbound  # (at, count, zero) → parts of `count` elements at the addresses `at` `[PARTS]`
parts_of = _unbound  # (parts, start, count, zero) → `count` elements of the parts, from `start` on
inputs_at = _unbound  # (gradients, t, offset, count, zero) → inputs, `offset` bytes into the gradient of tensor t
r_memory = _unbound  # () → the address of `PARTS` arrays on the stack, `STRIDE` numbers apart, for copies of rows
weigh = _unbound  # the norm's `weigh`
shrink = _unbound  # (norm, tau, zero, one, scalars) → q, by the penalty's `shrinkage`
gather = scatter = _unbound  # by `rows.copiers`; a sweep scatters weights and u only

STRIDE = BLOCK + 16
"""Between the arrays of a scratch: not a power of two, whose multiples would share cache sets."""
AT_M, AT_SIGMA, AT_Z, AT_W, AT_Q, AT_X = 0, STRIDE, 2 * STRIDE, 3 * STRIDE, 4 * STRIDE, 5 * STRIDE
"""Where the arrays of the scratch S begin: m, σ, z, the group sums, q, and x of untouched groups."""

s_memory, block_memory = on_stack(6 * STRIDE * 8), on_stack(BLOCK * 8)
"""Memory of float64 at most."""

NO_NORM = 0
"""In place of the address of `weigh_elements`, where λ21 = 0."""

_soft_threshold, _clip = inline(prox.soft_threshold), inline(prox.clip)
_was_updated, _zero_as_updated = jitted(rounding.scalar_was_updated), inline(rounding.zero_as_updated)
_closed_form, _solution, _next_residual = inline(prox.closed_form), inline(prox.solution), inline(prox.next_residual)
_base_step = inline(prox.base_step)


@jitted
def part(a: Any, start: int, count: int, zero: Any) -> Any:
    """a[start : start + count]."""
    return array_at(np.int64(a.ctypes.data) + start * a.itemsize, count, zero)


def charge_start(parts: Any, start: int, d: int, lambdas: Any) -> None:
    """Set u₀ = σ₀ x₁ in a group that was never updated, as `eager.advance` does."""
    x, u, _ = parts
    _, _, _, sigma_0, zero, one = lambdas
    for i in range(start, start + d):
        if _was_updated(u[i], zero, one):
            return
    for i in range(start, start + d):
        u[i] = sigma_0 * x[i]


def is_untouched(parts: Any, g: Any, start: int, d: int, terms: Any) -> bool:
    """Return whether the group at `start` never had a non-zero gradient (the opposite of `eager.ever_touched`)."""
    _, u, state = parts
    initial, (_, _, _, _, zero, one), _, _, _, _ = terms
    for i in range(start, start + d):
        if g[i] != zero:
            return False
    for i in range(start, start + d):
        if _was_updated(u[i], zero, one) or not is_initial(state, initial, i):
            return False
    return True


def rule_only(parts: Any, inputs: Any, n: int, scalars: Any) -> None:
    """Advance the state; x and u stay (a learning rate of 0)."""
    for i in range(n):
        update_at(inputs, parts[2], i, scalars)


def base_only(parts: Any, inputs: Any, n: int, scalars: Any, zero: Any) -> None:
    """Take the base optimizer's step."""
    x, _, state = parts
    for i in range(n):
        m, sigma = update_at(inputs, state, i, scalars)
        x[i] = _base_step(x[i], m, sigma, zero)


def rule_and_z(parts: Any, inputs: Any, S: Any, n: int, scalars: Any) -> None:
    """Compute m, σ and z of `n` elements."""
    x, u, state = parts
    for i in range(n):
        m, sigma = update_at(inputs, state, i, scalars)
        S[AT_M + i] = m
        S[AT_SIGMA + i] = sigma
        S[AT_Z + i] = u[i] + m - sigma * x[i]


def weigh_elements(scratch: Any, n: Any, l1: Any, two_l2: Any, zero: Any) -> None:
    """The squares of what the norm sums up, of `n` elements; `scratch` is the address of S."""
    S = array_at(scratch, 6 * STRIDE, zero)
    for i in range(n):
        w = weigh(_soft_threshold(S[AT_Z + i], l1, zero), S[AT_SIGMA + i] + two_l2, zero)
        S[AT_W + i] = w * w


def shrink_groups(scratch: Any, groups: Any, tau: Any, parameters: Any, zero: Any, one: Any) -> None:
    """q of each group from its sum of squares, in place; `parameters` is the address of the penalty's scalars."""
    S = array_at(scratch, 6 * STRIDE, zero)
    scalars = array_at(parameters, PENALTY_SCALARS, zero)
    for j in range(groups):
        S[AT_W + j] = shrink(math.sqrt(S[AT_W + j]), tau, zero, one, scalars)


@jitted
def sum_groups(S: Any, T: Any, groups: int, d: int, zero: Any) -> None:
    """The sums of the groups, in place, by halves where `d` is even: short chains, and vector instructions."""
    width, count = d, groups * d
    while width % 4 == 0:
        width //= 4
        count //= 2
        for i in range(count):
            T[i] = S[AT_W + 2 * i] + S[AT_W + 2 * i + 1]
        count //= 2
        for i in range(count):
            S[AT_W + i] = T[2 * i] + T[2 * i + 1]
    if width > 1:
        for j in range(groups):
            total = zero
            for i in range(j * width, (j + 1) * width):
                total += S[AT_W + i]
            S[AT_W + j] = total


@jitted
def spread_groups(S: Any, groups: int, d: int, zero: Any) -> None:
    """q of each group to its elements, eight at a time."""
    at = np.int64(S.ctypes.data) + AT_Q * S.itemsize
    for j in range(groups):
        q = S[AT_W + j]
        for _ in range(d // 8):
            fill_8(at, q)
            at += 8 * S.itemsize
        for _ in range(d % 8):
            array_at(at, 1, zero)[0] = q
            at += S.itemsize


@jitted
def measure(S: Any, T: Any, groups: int, d: int, terms: Any) -> None:
    """Compute the squared norm of each group from z and σ."""
    _, (l1, two_l2, _, _, zero, _), _, weigh_at, _, _ = terms
    call(np.int64(weigh_at), (np.int64(S.ctypes.data), np.int64(groups * d), l1, two_l2, zero))
    sum_groups(S, T, groups, d, zero)


@jitted
def shrunk(S: Any, groups: int, tau: Any, terms: Any) -> None:
    """Replace the squared norm of each group by q."""
    _, (_, _, _, _, zero, one), penalty, _, shrink_at, _ = terms
    parameters = np.int64(penalty.ctypes.data)
    call(np.int64(shrink_at), (np.int64(S.ctypes.data), np.int64(groups), tau, parameters, zero, one))


@jitted
def solve(parts: Any, S: Any, n: int, lambdas: Any) -> None:
    """Compute x⁺ and u⁺ of `n` elements from m, σ, z and q. A zero in u⁺ is stored as -0: +0 means never updated."""
    x, u, _ = parts
    l1, two_l2, keep, _, zero, one = lambdas
    for i in range(n):
        before, residual, sigma, z, q = x[i], u[i], S[AT_SIGMA + i], S[AT_Z + i], S[AT_Q + i]
        s = _soft_threshold(z, l1, zero)
        r = _clip(z, l1)
        c = sigma + two_l2
        y = _closed_form(before, s, q, c, keep, zero, one)
        after = _solution(before, residual, S[AT_M + i], r, s, q, y, two_l2, c, zero)
        x[i] = after
        u[i] = _zero_as_updated(_next_residual(r, s, q, y, two_l2, zero), -zero)


def round_weights(parts: Any, S: Any, T: Any, n: int, zero: Any) -> None:
    """Round `n` weights as they will be stored, and add to u what that has changed, times σ, as `eager` does."""
    x, u, _ = parts
    if WEIGHTS != WHOLE:
        x_at, stored_at = np.int64(x.ctypes.data), np.int64(T.ctypes.data)
        for i in range(n):
            S[AT_M + i] = x[i]
        store_weights(x_at, stored_at, n, 0, WEIGHTS)
        load_weights(stored_at, x_at, n, 0, WEIGHTS)
        for i in range(n):
            u[i] = _zero_as_updated(u[i] + S[AT_SIGMA + i] * (x[i] - S[AT_M + i]), -zero)


def advance(parts: Any, inputs: Any, groups: int, d: int, scratch: Any, scalars: Any, tau: Any, terms: Any) -> None:
    """Step whole groups, at most `BLOCK` elements; all arrays contiguous, group after group."""
    x, u, _ = parts
    g, _ = inputs
    S, T, untouched_groups = scratch
    _, lambdas, _, weigh_at, _, _ = terms
    _, _, _, _, zero, _ = lambdas
    n = groups * d
    any_zero = False
    for i in range(n):
        any_zero |= g[i] == zero
    untouched_count = 0
    if any_zero or HAS_START:
        for j in range(groups):
            if g[j * d] == zero and is_untouched(parts, g, j * d, d, terms):
                for i in range(d):
                    S[AT_X + untouched_count * d + i] = x[j * d + i]
                untouched_groups[untouched_count] = j
                untouched_count += 1
            elif HAS_START:
                charge_start(parts, j * d, d, lambdas)
    rule_and_z(parts, inputs, S, n, scalars)
    if weigh_at == NO_NORM:
        for i in range(n):
            S[AT_Q + i] = zero
    else:
        measure(S, T, groups, d, terms)
        shrunk(S, groups, tau, terms)
        spread_groups(S, groups, d, zero)
    solve(parts, S, n, lambdas)
    round_weights(parts, S, T, n, zero)
    for k in range(untouched_count):
        for i in range(d):
            x[untouched_groups[k] * d + i] = S[AT_X + k * d + i]
            u[untouched_groups[k] * d + i] = zero


def advance_large(parts: Any, inputs: Any, d: int, scratch: Any, H: Any, scalars: Any, tau: Any, terms: Any) -> None:
    """Step one group of more than `BLOCK` elements; `H` (3 d) keeps m, σ and z between the two passes."""
    g, second_input = inputs
    S, T, _ = scratch
    _, lambdas, _, weigh_at, _, _ = terms
    _, _, _, _, zero, _ = lambdas
    untouched = is_untouched(parts, g, 0, d, terms)
    if HAS_START and not untouched:
        charge_start(parts, 0, d, lambdas)
    total = zero
    for start in range(0, d, BLOCK):
        n = min(BLOCK, d - start)
        some_inputs = part(g, start, n, zero), part(second_input, start, n, zero)
        rule_and_z(parts_of(parts, start, n, zero), some_inputs, S, n, scalars)
        for i in range(n):
            H[start + i] = S[AT_M + i]
        for i in range(n):
            H[d + start + i] = S[AT_SIGMA + i]
        for i in range(n):
            H[2 * d + start + i] = S[AT_Z + i]
        if weigh_at != NO_NORM:
            measure(S, T, 1, n, terms)
            total += S[AT_W]
    if untouched:
        return
    q = zero
    if weigh_at != NO_NORM:
        S[AT_W] = total
        shrunk(S, 1, tau, terms)
        q = S[AT_W]
    for start in range(0, d, BLOCK):
        n = min(BLOCK, d - start)
        for i in range(n):
            S[AT_M + i] = H[start + i]
        for i in range(n):
            S[AT_SIGMA + i] = H[d + start + i]
        for i in range(n):
            S[AT_Z + i] = H[2 * d + start + i]
        for i in range(n):
            S[AT_Q + i] = q
        some = parts_of(parts, start, n, zero)
        solve(some, S, n, lambdas)
        round_weights(some, S, T, n, zero)


def step(turns: Any, groups: Any, rows: Any, gradients: Any, scalars: Any, taus: Any, terms: Any) -> None:
    """Step all groups of tensors or of rows. The result of `threads.share` is how many more rows are non-zero.

    Rows are copied to arrays of this kernel, and back. The rounding of bfloat16 depends on the seed and on the rows'
    numbers, as on the GPU, not on how threads share the work.

    Args:
        turns: See `sparsegroup.kernels.cpu.threads`; a piece is a line of `work`.
        groups: `work` `[k, 3]` int64, tensor, first group, and one past the last, if there are this many; `counts`
            `[tensors]` int64, groups; `base` `[tensors, PARTS]` int64, address of x, u (where carried) and the states;
            `widths` `[tensors]` int64, elements of a group. Rows are the groups of one tensor.
        rows: The address of the distinct rows of the groups, `[counts[0]]` int64, or 0: then groups are contiguous;
            `pages`, `shift`, `stride`: part p of row r begins at
            `pages[r >> shift] + (r & (2**shift - 1)) * stride + base[0, p]`, `pages` is `[p]` int64;
            `cache_lines` `[l]` int64: with 0 for `base[0, p]`, the places that are in different cache lines;
            the seed of the rounding of bfloat16.
        gradients: `[tensors, 2]` int64, address of the gradient and of the second input (0 where there is none).
        scalars: `[tensors, s]`, from the rule.
        taus: `[tensors]`, √d λ21 scaled to the norm.
        terms: See the top of this file.
    """
    work, counts, base, widths = groups
    rows_at, pages, shift, stride, cache_lines, seed = rows
    where = pages, shift, stride, cache_lines
    _, (_, _, _, _, zero, _), _, _, _, frozen = terms
    size = taus.itemsize
    in_rows = rows_at != 0
    numbers = array_at(rows_at, counts[0] if in_rows else np.int64(0), np.int64(0))
    if IS_WIDE:
        widest = np.int64(1)
        for t in range(len(widths)):
            widest = max(widest, widths[t])
        H_address = allocate((3 + (PARTS if in_rows else 0)) * widest * size)
        if H_address == 0:
            raise MemoryError
        H = array_at(H_address, 3 * widest, zero)
    S = array_at(s_memory(), 6 * STRIDE, zero)
    scratch = S, array_at(block_memory(), BLOCK, zero), array_at(block_memory(), BLOCK, np.int64(0))
    places = array_at(block_memory(), BLOCK, np.int64(0))
    next_places = array_at(block_memory(), BLOCK, np.int64(0))
    at = array_at(block_memory(), PARTS, np.int64(0))
    R_address, between = r_memory(), STRIDE * size
    live_change = 0
    thread = enter(turns)
    k = take(turns, 0, thread, len(work))
    while k >= 0:
        t, first = work[k, 0], work[k, 1]
        last = min(work[k, 2], counts[t])
        d = widths[t]
        width = d * size
        row_scalars = unpack(scalars, t)
        per_block = max(BLOCK // d, np.int64(1))
        if IS_WIDE and d > BLOCK:
            R_address, between = H_address + 3 * width, width
        if in_rows:
            find_rows(numbers, first, min(first + per_block, last), where, next_places)
        for j in range(first, last, per_block):
            count = min(per_block, last - j)
            if in_rows:
                places, next_places = next_places, places  # find and prefetch the rows of the next block
                find_rows(numbers, j + count, min(j + 2 * per_block, last), where, next_places)
                gather(places, count, base[t], R_address, between, d, size, zero)
                for p in range(PARTS):
                    at[p] = R_address + p * between
            else:
                for p in range(PARTS):
                    at[p] = base[t, p] + j * width
            parts = parts_in(at, count * d, zero)
            if in_rows:
                live_change -= live_groups(parts[0], count, d, zero)
            inputs = inputs_at(gradients, t, j * width, count * d, zero)
            if frozen:
                rule_only(parts, inputs, count * d, row_scalars)
            elif not CARRIES_U:
                base_only(parts, inputs, count * d, row_scalars, zero)
            elif IS_WIDE and d > BLOCK:
                advance_large(parts, inputs, d, scratch, H, row_scalars, taus[t], terms)
            else:  # `advance` comes once for tensors and rows: each place is compiled separately
                advance(parts, inputs, count, d, scratch, row_scalars, taus[t], terms)
            if in_rows:
                scatter(places, numbers, j, count, base[t], R_address, between, d, size, seed)
                live_change += live_groups(parts[0], count, d, zero)
        k = take(turns, 0, thread, len(work))
    leave(turns, live_change)
    if IS_WIDE:
        release(H_address)


def sweep(
    turns: Any, groups: Any, rows: Any, scalars: Any, taus: Any, terms: Any, norms: Any, changed: Any,
    applies: bool, drops: bool,
) -> None:  # fmt: skip
    """`sparsegroup.kernels.eager.swept` over rows: the norms, and with `applies` the closed form.

    The result of `threads.share` is how many more rows are non-zero. u is rounded to the nearest bfloat16 if it is
    stored as such. See `step` for the other arguments. Rows have at most `BLOCK` elements. If `rows` begins with 0, the
    first `counts[0]` rows are swept.

    Args:
        norms: `[count]`: set to ‖weigh(s)‖ of each row; infinite if it never had a non-zero gradient.
        changed: `[count]` bool, or empty unless `applies`: set to whether weights or u of a row have changed.
        applies: Whether they may.
        drops: Whether weights of rows that never had a non-zero gradient become zero; else these rows stay.
    """
    work, counts, base, widths = groups
    rows_at, pages, shift, stride, cache_lines, _ = rows
    where = pages, shift, stride, cache_lines
    _, lambdas, _, _, _, _ = terms
    _, _, _, _, zero, one = lambdas
    size = taus.itemsize
    numbers = array_at(rows_at, counts[0] if rows_at != 0 else np.int64(0), np.int64(0))
    R_at, between = r_memory(), STRIDE * size
    S = array_at(s_memory(), 6 * STRIDE, zero)
    T = array_at(block_memory(), BLOCK, zero)
    G = array_at(block_memory(), BLOCK, zero)
    u_before = array_at(block_memory(), BLOCK, zero)
    untouched = array_at(block_memory(), BLOCK, np.int64(0))
    places = array_at(block_memory(), BLOCK, np.int64(0))
    next_places = array_at(block_memory(), BLOCK, np.int64(0))
    at = array_at(block_memory(), PARTS, np.int64(0))
    for i in range(BLOCK):
        G[i] = zero
    for p in range(PARTS):
        at[p] = R_at + p * between
    parts = parts_in(at, BLOCK, zero)
    x, u, state = parts
    d = widths[0]
    per_block = BLOCK // d
    row_scalars = unpack(scalars, 0)
    live_change = 0
    thread = enter(turns)
    k = take(turns, 0, thread, len(work))
    while k >= 0:
        last = min(work[k, 2], counts[0])
        begin = work[k, 1]
        find_rows(numbers, begin, min(begin + per_block, last), where, next_places)
        for first in range(begin, last, per_block):
            count = min(per_block, last - first)
            n = count * d
            places, next_places = next_places, places
            find_rows(numbers, first + count, min(first + 2 * per_block, last), where, next_places)
            gather(places, count, base[0], R_at, between, d, size, zero)
            if applies:
                live_change -= live_groups(x, count, d, zero)
            for i in range(count):
                untouched[i] = is_untouched(parts, G, i * d, d, terms)
            for i in range(n):
                S[AT_X + i] = x[i]
                u_before[i] = u[i]
            for i in range(n):
                _, sigma = update_at((G, G), state, i, row_scalars)
                S[AT_M + i] = zero
                S[AT_SIGMA + i] = sigma
                S[AT_Z + i] = u[i] - sigma * x[i]
            measure(S, T, count, d, terms)
            for i in range(count):
                norms[first + i] = np.inf if untouched[i] else math.sqrt(S[AT_W + i])
            if applies:
                shrunk(S, count, taus[0], terms)
                spread_groups(S, count, d, zero)
                solve(parts, S, n, lambdas)
                round_weights(parts, S, T, n, zero)
                if ROUNDS_U:
                    to_nearest(at[1], n)
                for i in range(count):
                    if untouched[i]:
                        for e in range(i * d, (i + 1) * d):
                            x[e] = zero if drops else S[AT_X + e]
                            u[e] = zero
                for i in range(n):
                    T[i] = one if (x[i] != S[AT_X + i]) | (u[i] != u_before[i]) else zero
                for i in range(count):
                    changed[first + i] = live_groups(part(T, i * d, d, zero), 1, d, zero) > 0
                scatter(places, places, 0, count, base[0], R_at, between, d, size, 0)  # rounds no more: u is rounded
                live_change += live_groups(x, count, d, zero)
        k = take(turns, 0, thread, len(work))
    leave(turns, live_change)
