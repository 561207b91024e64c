"""Triton kernels: the step over some rows, of one tensor or of a table, with the gradients of repeated rows summed up.

See `sparsegroup.kernels.gpu.tile` for how this source is bound. Gradients come one per key; `order` has the keys sorted
by row, and run i of them, from `starts[i]` up to `starts[i + 1]`, is one row's.
"""

from typing import Any

import triton.language as tl

from sparsegroup.kernels.gpu.tile import (
    CARRIES_U,
    STATES,
    any_in_group,
    as_stored,
    at_address,
    groups_and_lanes,
    read_hessian,
    row_address,
    step_tile,
)

UNROLL: int = 4  # bound


def sum_chunks(
    g: Any, rows: Any, order: Any, sums: Any, count: Any, WIDTH: Any, PADDED: Any, GROUPS: Any, CHUNK: Any
) -> None:
    """The sums of those chunks of `CHUNK` sorted keys that are all of one row; long runs are made of these."""
    chunk, lane = groups_and_lanes(GROUPS, PADDED)
    here = chunk < count
    first = tl.load(order + chunk * CHUNK, mask=here, other=0)
    last = tl.load(order + chunk * CHUNK + (CHUNK - 1), mask=here, other=0)
    here = here & (tl.load(rows + first, mask=here, other=0) == tl.load(rows + last, mask=here, other=1))
    if tl.max(here.to(tl.int32)) != 0:
        inside = here & (lane < WIDTH)
        total = tl.zeros([GROUPS, PADDED], tl.float32)
        for j in range(0, CHUNK, UNROLL):
            for i in tl.static_range(UNROLL):
                key = tl.load(order + chunk * CHUNK + (j + i), mask=here, other=0).to(tl.int64)
                total += tl.load(g + key * WIDTH + lane, mask=inside, other=0.0).to(tl.float32)
        tl.store(sums + chunk * WIDTH + lane, total, mask=inside)


def sum_of_run(
    g: Any, order: Any, sums: Any, first: Any, last: Any, lane: Any,
    WIDTH: Any, PADDED: Any, GROUPS: Any, CHUNK: Any,
) -> Any:  # fmt: skip
    """Σ g over the keys of each run, `[GROUPS, PADDED]`: what precedes whole chunks, those, and what follows."""
    from_chunk = (first + (CHUNK - 1)) // CHUNK
    to_chunk = last // CHUNK
    whole = tl.maximum(to_chunk - from_chunk, 0)
    head = tl.where(whole > 0, from_chunk * CHUNK, last) - first
    tail = tl.where(whole > 0, to_chunk * CHUNK, last)
    steps = head + whole + (last - tail)
    total = tl.zeros([GROUPS, PADDED], tl.float32)
    longest = tl.max(steps).to(tl.int32)
    for j in range(0, longest, UNROLL):
        for i in tl.static_range(UNROLL):
            k = j + i
            chunked = (k >= head) & (k < head + whole)
            single = (k < steps) & (k < head) | (k >= head + whole) & (k < steps)
            position = tl.where(k < head, first + k, tail + (k - head - whole))
            key = tl.load(order + position, mask=single, other=0).to(tl.int64)
            total += tl.load(g + key * WIDTH + lane, mask=single & (lane < WIDTH), other=0.0).to(tl.float32)
            chunk = from_chunk + (k - head)
            total += tl.load(sums + chunk * WIDTH + lane, mask=chunked & (lane < WIDTH), other=0.0)
    return total


def gradient_of(
    g: Any, hessian: Any, rows: Any, order: Any, starts: Any, sums: Any, run: Any, lane: Any, count: Any,
    WIDTH: Any, PADDED: Any, GROUPS: Any, CHUNK: Any, SUMMED: Any,
) -> Any:  # fmt: skip
    """Which runs there are, their rows, their gradient, and the Hessian's diagonal."""
    here = run < count
    if SUMMED:
        row = tl.load(rows + run, mask=here, other=-1)
        inside = here & (lane < WIDTH)
        value = tl.load(g + run * WIDTH + lane, mask=inside, other=0.0).to(tl.float32)
        return here, row, value, read_hessian(hessian + run * WIDTH + lane, inside, value)
    else:
        first = tl.load(starts + run, mask=here, other=0).to(tl.int64)
        last = tl.load(starts + run + 1, mask=here, other=0).to(tl.int64)
        here = first < last
        key = tl.load(order + first, mask=here, other=0).to(tl.int64)
        row = tl.load(rows + key, mask=here, other=-1)
        total = sum_of_run(g, order, sums, first, last, lane, WIDTH, PADDED, GROUPS, CHUNK)
        return here, row, total, total


def report(counters: Any, bad: Any, row: Any) -> None:
    """Count the `bad` rows, and keep one of them."""
    many = tl.sum(bad.to(tl.int64))
    tl.atomic_add(counters + 1, many, mask=many != 0)
    tl.store(counters + 2 + row * 0, row, mask=bad)


def tensor_rows(
    x: Any, u: Any, state: Any, g: Any, hessian: Any, rows: Any, order: Any, starts: Any, sums: Any,
    count: Any, height: Any, counters: Any,
    scalars: Any, start: Any, initial: Any, lambdas: Any, penalty: Any, tau: Any, seed: Any,
    WIDTH: Any, PADDED: Any, GROUPS: Any, CHUNK: Any, SUMMED: Any, ON_DEVICE: Any,
) -> None:  # fmt: skip
    """Rows of a contiguous tensor `[height, WIDTH]`; those beyond it are counted in `counters[1]`, the last one kept.

    There are `count` runs (or rows, where SUMMED: then line i of the gradient is that of `rows[i]`, each once).
    `counters` `[3]` int64: not used, rows left out, one of them.
    """
    run, lane = groups_and_lanes(GROUPS, PADDED)
    here, row, value, curvature = gradient_of(
        g, hessian, rows, order, starts, sums, run, lane, count, WIDTH, PADDED, GROUPS, CHUNK, SUMMED
    )
    report(counters, here & ((row < 0) | (row >= height)), row)
    here = here & (row >= 0) & (row < height)
    at = tl.where(here, row, 0) * WIDTH + lane
    step_tile(
        x + at, u + at, [pointer + at for pointer in state], value, curvature, here & (lane < WIDTH), at,
        scalars, start, initial, lambdas, penalty, tau, seed, ON_DEVICE,
    )  # fmt: skip


def table_rows(
    pages: Any, g: Any, hessian: Any, rows: Any, order: Any, starts: Any, sums: Any,
    count: Any, height: Any, counters: Any,
    scalars: Any, start: Any, initial: Any, lambdas: Any, penalty: Any, tau: Any, seed: Any,
    X: Any, STATE: Any, SHIFT: Any, ROW_BYTES: Any, FIRST_PART: Any, PART_BYTES: Any, ALIGNED: Any,
    WIDTH: Any, PADDED: Any, GROUPS: Any, CHUNK: Any, SUMMED: Any, ON_DEVICE: Any,
) -> None:  # fmt: skip
    """Rows of a table in pages of 2**SHIFT rows; a row is x, u and the states, side by side.

    Rows outside [0, height) are left out; one whose gradient is infinite or NaN is left as it is, and counted.

    `pages` `[p]` are the addresses of the pages; `counters` `[3]` int64: how many more rows are not zero than before,
    rows left out, one of them. In a row, u or the first state begins at byte FIRST_PART, the next PART_BYTES later.
    ALIGNED: these and ROW_BYTES are multiples of 16.
    """
    run, lane = groups_and_lanes(GROUPS, PADDED)
    _, row, value, curvature = gradient_of(
        g, hessian, rows, order, starts, sums, run, lane, count, WIDTH, PADDED, GROUPS, CHUNK, SUMMED
    )
    here = (row >= 0) & (row < height)
    not_finite = (value * 0.0 != 0.0) | (curvature * 0.0 != 0.0)
    bad = here & any_in_group(not_finite & (lane < WIDTH))
    report(counters, bad, row)
    here = here & (bad == 0)
    value = tl.where(here, value, 0.0)
    curvature = tl.where(here, curvature, 0.0)
    row = tl.where(here, row, 0)
    base = row_address(pages, row, SHIFT, ROW_BYTES)
    state: Any = ()
    for k in tl.static_range(STATES):
        state = state + (at_address(base, FIRST_PART + (CARRIES_U + k) * PART_BYTES, lane, STATE, ALIGNED),)
    inside = here & (lane < WIDTH)
    before, after = step_tile(
        at_address(base, 0, lane, X, ALIGNED), at_address(base, FIRST_PART, lane, STATE, ALIGNED), state,
        value, curvature, inside, row * WIDTH + lane,
        scalars, start, initial, lambdas, penalty, tau, seed, ON_DEVICE,
    )  # fmt: skip
    live_before = tl.sum(any_in_group((before != 0.0) & inside).to(tl.int64))
    live_change = tl.sum(any_in_group((after != 0.0) & inside).to(tl.int64)) - live_before
    tl.atomic_add(counters, live_change, mask=live_change != 0)


def gather(
    pages: Any, rows: Any, values: Any, count: Any,
    X: Any, SHIFT: Any, ROW_BYTES: Any, OFFSET: Any, ALIGNED: Any, WIDTH: Any, PADDED: Any, GROUPS: Any,
) -> None:  # fmt: skip
    """values[i] = a part of row rows[i], or zeros where that is negative."""
    line, lane = groups_and_lanes(GROUPS, PADDED)
    row = tl.load(rows + line, mask=line < count, other=-1)
    base = row_address(pages, row, SHIFT, ROW_BYTES)
    value = tl.load(at_address(base, OFFSET, lane, X, ALIGNED), mask=(row >= 0) & (lane < WIDTH), other=0.0)
    tl.store(values + line * WIDTH + lane, value, mask=(line < count) & (lane < WIDTH))


def scatter(
    pages: Any, rows: Any, values: Any, count: Any,
    X: Any, SHIFT: Any, ROW_BYTES: Any, OFFSET: Any, ALIGNED: Any, WIDTH: Any, PADDED: Any, GROUPS: Any,
) -> None:  # fmt: skip
    """A part of row rows[i] = values[i], for distinct rows."""
    line, lane = groups_and_lanes(GROUPS, PADDED)
    inside = (line < count) & (lane < WIDTH)
    base = row_address(pages, tl.load(rows + line, mask=line < count, other=0), SHIFT, ROW_BYTES)
    value = tl.load(values + line * WIDTH + lane, mask=inside, other=0.0)
    tl.store(at_address(base, OFFSET, lane, X, ALIGNED), as_stored(value.to(tl.float32), X).to(X), mask=inside)
