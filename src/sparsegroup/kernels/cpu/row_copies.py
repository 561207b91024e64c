"""Rows on their way between where they lie and the arrays that `block` steps, part by part."""

from typing import Any

from sparsegroup.kernels.cpu.jit import copy, jitted

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
