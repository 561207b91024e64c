"""Rows on their way between where they lie and the arrays that `block` steps, part by part."""

from typing import Any

import numpy as np

from sparsegroup.kernels.cpu.jit import copy, jitted, prefetch

PARTS: int = 0  # bound: weights, u, and the rule's state


def gather(places: Any, groups: int, offsets: Any, to: Any, between: int, width: int) -> None:
    """Copy the parts of the rows at `places` to arrays that begin `between` bytes apart, the first at `to`.

    Args:
        places: `[≥ groups]` int64, addresses of rows.
        groups: How many rows.
        offsets: `[PARTS]` int64, from where a row begins to each of its parts.
        to: Where the first array begins.
        between: Bytes from one array to the next.
        width: Bytes of a part.
    """
    for i in range(groups):
        for p in range(PARTS):
            copy(places[i] + offsets[p], to + i * width + p * between, width)


def scatter(places: Any, groups: int, offsets: Any, source: Any, between: int, width: int) -> None:
    """Copy the parts back from the arrays at `source`; see `gather`."""
    for i in range(groups):
        for p in range(PARTS):
            copy(source + i * width + p * between, places[i] + offsets[p], width)


@jitted
def find_rows(
    rows: Any,
    first: int,
    groups: int,
    ahead: int,
    last: int,
    pages: Any,
    shift: int,
    stride: int,
    lines: Any,
    places: Any,
) -> None:
    """Where some rows are, while the memory of those that come `ahead` numbers later is asked for.

    Args:
        rows, pages, shift, stride, lines: See `block.step`.
        first, groups: The first of them, by its place in `rows`, and how many.
        ahead: How much later those come that are asked for.
        last: One past the last that may be.
        places: `[≥ groups]` int64, out: addresses.
    """
    mask = (np.int64(1) << np.int64(shift)) - 1
    for i in range(groups):
        coming = rows[min(first + i + ahead, last - 1)]
        place = pages[coming >> shift] + (coming & mask) * stride
        for line in range(len(lines)):
            prefetch(place + lines[line])
        places[i] = pages[rows[first + i] >> shift] + (rows[first + i] & mask) * stride


@jitted
def is_live(x: Any, start: int, d: int, zero: Any) -> bool:
    """Whether any of `d` elements is not zero."""
    for i in range(start, start + d):  # noqa: SIM110
        if x[i] != zero:
            return True
    return False


@jitted
def live_groups(x: Any, groups: int, d: int, zero: Any) -> int:
    """How many groups of `d` elements are non-zero; no branch within a group, for groups are small."""
    count = 0
    for j in range(groups):
        live = False
        for i in range(j * d, (j + 1) * d):
            live |= x[i] != zero
        count += int(live)
    return count
