"""The Triton kernels: the step over whole tensors and over rows of tensors and tables, and rows to and from tables.

This is source for `sparsegroup.kernels.gpu.bind`, which replaces the globals marked below and takes parameters in
capitals for constants of the compiler. A program takes a tile, `[GROUPS, PADDED]`: a group or row per line. Lanes
beyond a group's elements are not `inside`; they hold zeros.

Gradients of rows come one per key; `order` has the keys sorted by row, and run i of them, from `starts[i]` up to
`starts[i + 1]`, is one row's. `dense` takes pointers, as a CUDA graph needs them; `dense_many` reads them from memory.
"""

from collections.abc import Callable
from typing import Any

import triton.language as tl

HAS_SECOND_INPUT: bool = False  # bound
HAS_START: bool = False  # bound
CARRIES_U: bool = True  # bound
HAS_NORM: bool = True  # bound
STATES: int = 0  # bound
UNROLL: int = 4  # bound
_unbound: Callable[..., Any] = lambda *arguments: None  # noqa: E731
update = weigh = shrinkage = soft_threshold = clip = closed_form = solution = next_residual = base_step = _unbound
random_bits = rounded_bits = nearest_bits = zero_as_updated = not_to_plus_zero = tile_was_updated = _unbound


def nan_maximum(a: Any, b: Any) -> Any:
    """Return the larger number, NaN if either is NaN, as torch and NumPy do: `xp.maximum`."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


def groups_and_lanes(GROUPS: Any, PADDED: Any) -> Any:
    """Return the numbers of this program's groups, `[GROUPS, 1]`, and of the elements of a group, `[1, PADDED]`."""
    return tl.program_id(0).to(tl.int64) * GROUPS + tl.arange(0, GROUPS)[:, None], tl.arange(0, PADDED)[None, :]


def at_address(address: Any, OFFSET: Any, lane: Any, TYPE: Any, ALIGNED: Any) -> Any:
    """Return pointers to the lanes of a part `OFFSET` bytes into rows that begin at `address` `[groups, 1]`."""
    pointer = address.to(tl.pointer_type(TYPE))
    if ALIGNED:
        pointer = tl.multiple_of(pointer, [16, 16])
    return pointer + (OFFSET // (TYPE.primitive_bitwidth // 8) + lane)


def row_address(pages: Any, row: Any, SHIFT: Any, ROW_BYTES: Any) -> Any:
    """Return the addresses of rows in pages of 2**SHIFT rows of ROW_BYTES; of row 0 for a negative row."""
    existing = tl.where(row >= 0, row, 0)
    return tl.load(pages + (existing >> SHIFT)) + (existing & ((1 << SHIFT) - 1)) * ROW_BYTES


def read_second_input(pointer: Any, inside: Any, otherwise: Any) -> Any:
    """Return the second input of a rule that takes one, else `otherwise`."""
    if HAS_SECOND_INPUT:
        return tl.load(pointer, mask=inside, other=0.0).to(tl.float32)
    else:
        return otherwise


def any_in_group(mask: Any) -> Any:
    """Return whether `mask` is true for any element of each group, `[groups, 1]`."""
    return tl.max(mask.to(tl.int32), 1, keep_dims=True) != 0


def ever_touched(g: Any, u: Any, state: Any, initial: Any, inside: Any) -> Any:
    """Return whether each group has ever had a non-zero gradient, `[groups, 1]`: `eager.ever_touched`."""
    touched = (g != 0.0) | tile_was_updated(u)
    for k in tl.static_range(STATES):
        touched = touched | (state[k] != initial[k])
    return any_in_group(touched & inside)


def rounded_to(value: Any, X: Any) -> Any:
    """Return `value`, float32, rounded to a number of the dtype X."""
    if tl.float32 == X:
        return value
    elif tl.bfloat16 == X:
        return nearest_bits(value.to(tl.int32, bitcast=True)).to(tl.float32, bitcast=True)
    else:
        return value.to(X).to(tl.float32)


def regularized(
    x: Any, u: Any, m: Any, sigma: Any, inside: Any, lambdas: Any, penalty: Any, tau: Any, X: Any
) -> Any:  # fmt: skip
    """x⁺ as stored, in float32, and u⁺: the closed form of `sparsegroup.prox` (`eager.regularized_step`)."""
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
    stored = rounded_to(exact, X)
    after = next_residual(r, s, q, y, two_l2, sigma * (stored - exact) if tl.float32 != X else 0.0)
    return stored, zero_as_updated(after, minus_zero)


def store_state(pointer: Any, value: Any, inside: Any, element: Any, seed: Any, PART: Any) -> None:
    """Write a part of the state; bfloat16 is rounded stochastically."""
    if pointer.dtype.element_ty == tl.bfloat16:
        bits = value.to(tl.int32, bitcast=True)
        rounded = not_to_plus_zero(rounded_bits(bits, random_bits(element.to(tl.int32), seed, PART)), bits)
        tl.store(pointer, rounded.to(tl.float32, bitcast=True).to(tl.bfloat16), mask=inside)
    else:
        tl.store(pointer, value, mask=inside)


def step_tile(
    x_at: Any, u_at: Any, state_at: Any, g: Any, second_input: Any, inside: Any, element: Any,
    scalars: Any, start: Any, initial: Any, lambdas: Any, penalty: Any, tau: Any, seed: Any, ON_DEVICE: Any,
) -> Any:  # fmt: skip
    """One step of the groups in a tile, one per line. Gives x before and after.

    `x_at`, `u_at` (where u is carried) and the tuple `state_at` are pointers; `element` is the number of each element,
    for stochastic rounding. `start` is σ₀, and `moves`: 0 where the learning rate is 0, else 1; `initial` are the
    states before the first gradient; `lambdas` are λ1, 2 λ2, keep, -0; `penalty` are its scalars; `tau` is √d λ21,
    scaled to the norm. ON_DEVICE: `scalars`, `start` and `seed` are in the device's memory.
    """
    if ON_DEVICE:
        scalars = [tl.load(value) for value in scalars]
        start = [tl.load(value) for value in start]
        seed = tl.load(seed)
    X = x_at.dtype.element_ty
    x = tl.load(x_at, mask=inside, other=0.0).to(tl.float32)
    state = [tl.load(pointer, mask=inside, other=0.0).to(tl.float32) for pointer in state_at]
    if HAS_SECOND_INPUT:
        out = update(g, second_input, *state, *scalars)
    else:
        out = update(g, *state, *scalars)
    m, sigma = out[0], out[1]
    sigma_0, moves = start[0], tl.full([1, 1], start[1], tl.float32) != 0.0
    if CARRIES_U:
        u = tl.load(u_at, mask=inside, other=0.0).to(tl.float32)
        charged = u
        if HAS_START:
            charged = tl.where(any_in_group(tile_was_updated(u)), u, sigma_0 * x)
        stored, u_after = regularized(x, charged, m, sigma, inside, lambdas, penalty, tau, X)
        changes = ever_touched(g, u, state, initial, inside) & moves
        stored = tl.where(changes, stored, x)
        store_state(u_at, tl.where(changes, u_after, u), inside, element, seed, 0)
    else:
        stored = tl.where(moves, rounded_to(base_step(x, m, sigma, 0.0), X), x)
    tl.store(x_at, stored.to(X), mask=inside)
    for k in tl.static_range(STATES):
        store_state(state_at[k], out[2 + k], inside, element, seed, 1 + k)
    return x, stored


def step_groups(
    x: Any, u: Any, state: Any, g: Any, second_input: Any, group: Any, groups: Any, lane: Any,
    scalars: Any, start: Any, initial: Any, lambdas: Any, penalty: Any, tau: Any, seed: Any,
    WIDTH: Any, ON_DEVICE: Any,
) -> None:  # fmt: skip
    """Step the groups numbered `group` of a contiguous tensor, which has `groups` of `WIDTH` elements."""
    at = group * WIDTH + lane
    inside = (group < groups) & (lane < WIDTH)
    value = tl.load(g + at, mask=inside, other=0.0).to(tl.float32)
    second_value = read_second_input(second_input + at, inside, value)
    step_tile(
        x + at, u + at, [pointer + at for pointer in state], value, second_value, inside, at,
        scalars, start, initial, lambdas, penalty, tau, seed, ON_DEVICE,
    )  # fmt: skip


def dense(
    x: Any, u: Any, state: Any, g: Any, second_input: Any, groups: Any,
    scalars: Any, start: Any, initial: Any, lambdas: Any, penalty: Any, tau: Any, seed: Any,
    WIDTH: Any, PADDED: Any, GROUPS: Any, ON_DEVICE: Any,
) -> None:  # fmt: skip
    """Step one contiguous tensor of `groups` groups."""
    group, lane = groups_and_lanes(GROUPS, PADDED)
    step_groups(
        x, u, state, g, second_input, group, groups, lane,
        scalars, start, initial, lambdas, penalty, tau, seed, WIDTH, ON_DEVICE,
    )  # fmt: skip


def at_line(line: Any, TYPE: Any, ALIGNED: Any) -> Any:
    """Return the address stored at `line`, as a pointer."""
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
    """Step many contiguous tensors.

    `table` `[tensors, 3 + parts]` int64 has the number of groups, the addresses of g, of the second input and of
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


def sum_chunks(
    g: Any, rows: Any, order: Any, sums: Any, chunks: Any, count: Any,
    WIDTH: Any, PADDED: Any, GROUPS: Any, CHUNK: Any, LEVEL: Any,
) -> None:  # fmt: skip
    """Sum the gradients of each chunk of `CHUNK` sorted keys that are all of one row; `sum_of_run` adds the sums.

    At LEVEL 2, sum blocks of `CHUNK` chunks each. `sums` has `chunks` lines for them, then some for blocks.
    """
    chunk, lane = groups_and_lanes(GROUPS, PADDED)
    here = chunk < count
    span = CHUNK * (CHUNK if LEVEL == 2 else 1)
    first = tl.load(order + chunk * span, mask=here, other=0)
    last = tl.load(order + chunk * span + (span - 1), mask=here, other=0)
    here = here & (tl.load(rows + first, mask=here, other=0) == tl.load(rows + last, mask=here, other=1))
    if tl.max(here.to(tl.int32)) != 0:
        inside = here & (lane < WIDTH)
        total = tl.zeros([GROUPS, PADDED], tl.float32)
        for j in range(0, CHUNK, UNROLL):
            for i in tl.static_range(UNROLL):
                line = chunk * CHUNK + (j + i)
                if LEVEL == 2:
                    total += tl.load(sums + line * WIDTH + lane, mask=inside, other=0.0)
                else:
                    key = tl.load(order + line, mask=here, other=0).to(tl.int64)
                    total += tl.load(g + key * WIDTH + lane, mask=inside, other=0.0).to(tl.float32)
        tl.store(sums + (chunk + (chunks if LEVEL == 2 else 0)) * WIDTH + lane, total, mask=inside)


def term_of_run(run: Any, k: Any, lane: Any, WIDTH: Any, CHUNK: Any) -> Any:
    """Return the k-th term of `sum_of_run`: a key's gradient, or the sum of a chunk or block; zeros after the last."""
    g, order, sums, chunks, first, from_chunk, to_chunk, from_block, to_block = run[:9]
    head, chunks_before, whole_blocks, chunks_after, end = run[9:]
    single = (k < head) | ((k >= chunks_after) & (k < end))
    position = tl.where(k < head, first + k, to_chunk * CHUNK + (k - chunks_after))
    key = tl.load(order + position, mask=single, other=0).to(tl.int64)
    of_key = tl.load(g + key * WIDTH + lane, mask=single & (lane < WIDTH), other=0.0).to(tl.float32)
    summed = (k >= head) & (k < chunks_after)
    line = tl.where(k < chunks_before, from_chunk + (k - head), to_block * CHUNK + (k - whole_blocks))
    line = tl.where((k >= chunks_before) & (k < whole_blocks), chunks + from_block + (k - chunks_before), line)
    return of_key + tl.load(sums + line * WIDTH + lane, mask=summed & (lane < WIDTH), other=0.0)


def sum_of_run(
    g: Any, order: Any, sums: Any, chunks: Any, blocks: Any, first: Any, last: Any, lane: Any,
    WIDTH: Any, CHUNK: Any,
) -> Any:  # fmt: skip
    """Return Σ g over the keys of each run, `[groups, PADDED]`, from sums of whole blocks and chunks, and single keys.

    `chunks` and `blocks` are the numbers of chunks and blocks that `sum_chunks` has summed.
    """
    from_chunk = (first + (CHUNK - 1)) // CHUNK
    to_chunk = tl.maximum(tl.minimum(last // CHUNK, chunks), from_chunk)
    from_block = (from_chunk + (CHUNK - 1)) // CHUNK
    to_block = tl.maximum(tl.minimum(to_chunk // CHUNK, blocks), from_block)
    # Keys, chunks, blocks, chunks, keys: where in the loop each part ends.
    head = tl.where(to_chunk > from_chunk, from_chunk * CHUNK, last) - first
    chunks_before = head + tl.where(to_block > from_block, from_block * CHUNK, to_chunk) - from_chunk
    whole_blocks = chunks_before + (to_block - from_block)
    chunks_after = whole_blocks + tl.where(to_block > from_block, to_chunk - to_block * CHUNK, 0)
    end = chunks_after + tl.where(to_chunk > from_chunk, last - to_chunk * CHUNK, 0)
    places = (g, order, sums, chunks, first, from_chunk, to_chunk, from_block, to_block)
    run = places + (head, chunks_before, whole_blocks, chunks_after, end)
    total = term_of_run(run, 0, lane, WIDTH, CHUNK)
    for j in range(1, tl.max(end).to(tl.int32), UNROLL):  # most runs are of one key
        for i in tl.static_range(UNROLL):
            total += term_of_run(run, j + i, lane, WIDTH, CHUNK)
    return total


def gradient_of(
    g: Any, second_input: Any, rows: Any, order: Any, starts: Any, sums: Any, chunks: Any, blocks: Any,
    run: Any, lane: Any, count: Any, WIDTH: Any, CHUNK: Any, SUMMED: Any,
) -> Any:  # fmt: skip
    """Return which runs exist, the row of each, and the values of its gradient and second input."""
    here = run < count
    if SUMMED:
        row = tl.load(rows + run, mask=here, other=-1)
        inside = here & (lane < WIDTH)
        value = tl.load(g + run * WIDTH + lane, mask=inside, other=0.0).to(tl.float32)
        return here, row, value, read_second_input(second_input + run * WIDTH + lane, inside, value)
    else:
        first = tl.load(starts + run, mask=here, other=0).to(tl.int64)
        last = tl.load(starts + run + 1, mask=here, other=0).to(tl.int64)
        here = first < last
        key = tl.load(order + first, mask=here, other=0).to(tl.int64)
        row = tl.load(rows + key, mask=here, other=-1)
        total = sum_of_run(g, order, sums, chunks, blocks, first, last, lane, WIDTH, CHUNK)
        return here, row, total, total


def report(counters: Any, bad: Any, row: Any) -> None:
    """Count the `bad` rows in `counters[1]`, and write one of them to `counters[2]`."""
    many = tl.sum(bad.to(tl.int64))
    tl.atomic_add(counters + 1, many, mask=many != 0)
    tl.store(counters + 2 + row * 0, row, mask=bad)


def tensor_rows(
    x: Any, u: Any, state: Any, g: Any, second_input: Any, rows: Any, order: Any, starts: Any, sums: Any,
    chunks: Any, blocks: Any, count: Any, height: Any, counters: Any,
    scalars: Any, start: Any, initial: Any, lambdas: Any, penalty: Any, tau: Any, seed: Any,
    WIDTH: Any, PADDED: Any, GROUPS: Any, CHUNK: Any, SUMMED: Any, ON_DEVICE: Any,
) -> None:  # fmt: skip
    """Step rows of a contiguous tensor `[height, WIDTH]`; rows beyond the tensor are left out and reported.

    There are `count` runs, or where SUMMED `count` distinct rows: line i of the gradient is then that of `rows[i]`.
    `counters` `[3]` int64: not used, rows left out, one of them.
    """
    run, lane = groups_and_lanes(GROUPS, PADDED)
    here, row, value, second_value = gradient_of(
        g, second_input, rows, order, starts, sums, chunks, blocks, run, lane, count, WIDTH, CHUNK, SUMMED
    )
    report(counters, here & ((row < 0) | (row >= height)), row)
    here = here & (row >= 0) & (row < height)
    at = tl.where(here, row, 0) * WIDTH + lane
    step_tile(
        x + at, u + at, [pointer + at for pointer in state], value, second_value, here & (lane < WIDTH), at,
        scalars, start, initial, lambdas, penalty, tau, seed, ON_DEVICE,
    )  # fmt: skip


def table_rows(
    pages: Any, g: Any, second_input: Any, rows: Any, order: Any, starts: Any, sums: Any,
    chunks: Any, blocks: Any, count: Any, height: Any, counters: Any,
    scalars: Any, start: Any, initial: Any, lambdas: Any, penalty: Any, tau: Any, seed: Any,
    X: Any, STATE: Any, SHIFT: Any, ROW_BYTES: Any, FIRST_PART: Any, PART_BYTES: Any, ALIGNED: Any,
    WIDTH: Any, PADDED: Any, GROUPS: Any, CHUNK: Any, SUMMED: Any, ON_DEVICE: Any,
) -> None:  # fmt: skip
    """Step rows of a table in pages of 2**SHIFT rows; a row is x, u and the states, side by side.

    Rows outside [0, height), and rows whose gradient is infinite or NaN, are left out and, unless negative, reported.

    `pages` `[p]` are the addresses of the pages; `counters` `[3]` int64: how many more rows are not zero than before,
    rows left out, one of them. In a row, u or the first state begins at byte FIRST_PART, the next PART_BYTES later.
    ALIGNED: these and ROW_BYTES are multiples of 16.
    """
    run, lane = groups_and_lanes(GROUPS, PADDED)
    _, row, value, second_value = gradient_of(
        g, second_input, rows, order, starts, sums, chunks, blocks, run, lane, count, WIDTH, CHUNK, SUMMED
    )
    here = (row >= 0) & (row < height)
    not_finite = (value * 0.0 != 0.0) | (second_value * 0.0 != 0.0)
    bad = (here & any_in_group(not_finite & (lane < WIDTH))) | (row >= height)
    report(counters, bad, row)
    here = here & (bad == 0)
    value = tl.where(here, value, 0.0)
    second_value = tl.where(here, second_value, 0.0)
    row = tl.where(here, row, 0)
    base = row_address(pages, row, SHIFT, ROW_BYTES)
    state: Any = ()
    for k in tl.static_range(STATES):
        state = state + (at_address(base, FIRST_PART + (CARRIES_U + k) * PART_BYTES, lane, STATE, ALIGNED),)
    inside = here & (lane < WIDTH)
    before, after = step_tile(
        at_address(base, 0, lane, X, ALIGNED), at_address(base, FIRST_PART, lane, STATE, ALIGNED), state,
        value, second_value, inside, row * WIDTH + lane,
        scalars, start, initial, lambdas, penalty, tau, seed, ON_DEVICE,
    )  # fmt: skip
    live_before = tl.sum(any_in_group((before != 0.0) & inside).to(tl.int64))
    live_change = tl.sum(any_in_group((after != 0.0) & inside).to(tl.int64)) - live_before
    tl.atomic_add(counters, live_change, mask=live_change != 0)


def gather(
    pages: Any, rows: Any, values: Any, count: Any,
    X: Any, SHIFT: Any, ROW_BYTES: Any, OFFSET: Any, ALIGNED: Any, WIDTH: Any, PADDED: Any, GROUPS: Any,
) -> None:  # fmt: skip
    """Set values[i] to a part of row rows[i], or to zeros where rows[i] is negative."""
    line, lane = groups_and_lanes(GROUPS, PADDED)
    row = tl.load(rows + line, mask=line < count, other=-1)
    base = row_address(pages, row, SHIFT, ROW_BYTES)
    value = tl.load(at_address(base, OFFSET, lane, X, ALIGNED), mask=(row >= 0) & (lane < WIDTH), other=0.0)
    tl.store(values + line * WIDTH + lane, value, mask=(line < count) & (lane < WIDTH))


def scatter(
    pages: Any, rows: Any, values: Any, count: Any,
    X: Any, SHIFT: Any, ROW_BYTES: Any, OFFSET: Any, ALIGNED: Any, WIDTH: Any, PADDED: Any, GROUPS: Any,
) -> None:  # fmt: skip
    """Set a part of row rows[i] to values[i], for distinct rows."""
    line, lane = groups_and_lanes(GROUPS, PADDED)
    inside = (line < count) & (lane < WIDTH)
    base = row_address(pages, tl.load(rows + line, mask=line < count, other=0), SHIFT, ROW_BYTES)
    value = tl.load(values + line * WIDTH + lane, mask=inside, other=0.0)
    tl.store(at_address(base, OFFSET, lane, X, ALIGNED), rounded_to(value.to(tl.float32), X).to(X), mask=inside)
