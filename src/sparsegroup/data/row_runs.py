"""Runs of consecutive rows. Several of them ascend and don't overlap."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence

Run = tuple[int, int]
"""The first row, and the one after the last."""


def rows_in(runs: Iterable[Run]) -> int:
    """How many rows all runs have together."""
    return sum(stop - first for first, stop in runs)


def overlap(runs: Sequence[Run], start: int, stop: int) -> list[Run]:
    """The parts of runs that are among rows `start` to `stop`.

    Examples:
        >>> overlap([(0, 5), (10, 15), (20, 25)], 3, 12)
        [(3, 5), (10, 12)]
    """
    found = []
    for number in range(bisect_right(runs, start, key=lambda run: run[1]), len(runs)):
        first, end = runs[number]
        if first >= stop:
            break
        if max(first, start) < min(end, stop):
            found.append((max(first, start), min(end, stop)))
    return found


def taken(runs: Iterable[Run], start: int, stop: int) -> list[Run]:
    """Rows number `start` to `stop` of the runs, counted through from the first run's first row.

    Examples:
        >>> taken([(0, 5), (10, 15)], 3, 7)
        [(3, 5), (10, 12)]
    """
    found, position = [], 0
    for first, end in runs:
        begin, last = max(start - position, 0), min(stop - position, end - first)
        if begin < last:
            found.append((first + begin, first + last))
        position += end - first
    return found


def joined(runs: Iterable[Run]) -> list[Run]:
    """The same rows in as few runs as there can be.

    Examples:
        >>> joined([(0, 5), (5, 7), (10, 15)])
        [(0, 7), (10, 15)]
    """
    found: list[Run] = []
    for first, stop in runs:
        if found and found[-1][1] == first:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((first, stop))
    return found
