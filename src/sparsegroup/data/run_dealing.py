"""The rows of a log dealt to several readers, in runs that begin where reading does."""

from collections.abc import Iterator, Sequence
from heapq import heapreplace
from itertools import accumulate, pairwise

import numpy as np

from sparsegroup.data.keys import Int64s
from sparsegroup.data.row_runs import Run, joined, rows_in, taken

_RUNS = 16
"""Runs that each reader has, at least, where rows can be read from anywhere."""

_LONGEST_RUN = 1 << 16
"""Rows of a run, at most, where rows can be read from anywhere: shorter than what a log changes in."""

COARSEST = 4
"""Runs that each reader has, at least: it goes through about so many pieces of the log in vain, at most."""

_UNEVEN = 80
"""The last run of a reader may begin and end 1/80 of all its rows away from where it should, to do so at a cut."""


def dealt(rows: Sequence[Run], cuts: Int64s, readers: int) -> list[list[Run]]:
    """The runs of each reader.

    They are dealt in turn, so that readers that have read as many rows are at about the same place. A run is what lies
    between two cuts, or several such pieces where these are small, or a part of one that is too large for each reader
    to have some. The last runs are cut so that all readers have as many rows.

    Args:
        rows: What is dealt.
        cuts: Where reading begins without going through rows before, see `Log.cuts`; none for any row.
        readers: How many there are.

    Examples:
        >>> from sparsegroup.data.run_dealing import dealt
        >>> one, other = dealt([(0, 600)], np.arange(0, 600, 70), 2)
        >>> one
        [(0, 70), (140, 210), (280, 350), (420, 490), (560, 580)]
        >>> other
        [(70, 140), (210, 280), (350, 420), (490, 560), (580, 600)]
    """
    total = rows_in(rows)
    pieces = list(_pieces(rows, cuts, readers))
    hands: list[list[Run]] = [[] for _ in range(readers)]
    held, number = [(0, reader) for reader in range(readers)], 0
    while number < len(pieces):
        (first, stop), (count, reader) = pieces[number], held[0]
        if (count + stop - first) * readers > total:
            break
        hands[reader].append((first, stop))
        heapreplace(held, (count + stop - first, reader))
        number += 1
    quotas = [(reader + 1) * total // readers - reader * total // readers for reader in range(readers)]
    rest, lacks = joined(pieces[number:]), [quota - rows_in(hand) for quota, hand in zip(quotas, hands, strict=True)]
    slack = total // (_UNEVEN * readers)
    edges = [0, *(_at_cut(rest, edge, cuts, slack) for edge in accumulate(lacks))]
    return [joined([*hand, *taken(rest, *part)]) for hand, part in zip(hands, pairwise(edges), strict=True)]


def _pieces(rows: Sequence[Run], cuts: Int64s, readers: int) -> Iterator[Run]:
    """What is dealt, in order."""
    total = rows_in(rows)
    usual = min(max(1, total // (_RUNS * readers)), _LONGEST_RUN)
    longest = max(usual, total // (COARSEST * readers))
    held: Run | None = None
    for first, stop in _between(rows, cuts):
        if held is not None and held[1] == first and stop - held[0] <= usual:
            held = held[0], stop
            continue
        if held is not None:
            yield held
        held = None
        if stop - first > longest:
            # What is so large that all readers have some of it is gone through by all of them, in parts of any size.
            yield from _cut(first, stop, usual if stop - first > total // COARSEST else longest)
        else:
            held = first, stop
    if held is not None:
        yield held


def _between(rows: Sequence[Run], cuts: Int64s) -> Iterator[Run]:
    """The rows, cut."""
    for first, stop in rows:
        inside = cuts[np.searchsorted(cuts, first, "right") : np.searchsorted(cuts, stop)].tolist()
        yield from pairwise([first, *inside, stop])


def _cut(first: int, stop: int, most: int) -> Iterator[Run]:
    """As few parts of the same size as there can be of at most `most` rows."""
    parts = -(-(stop - first) // most)
    return pairwise(first + part * (stop - first) // parts for part in range(parts + 1))


def _at_cut(rows: Sequence[Run], position: int, cuts: Int64s, slack: int) -> int:
    """A position in some rows, or that of the cut nearest to it, if it is no more than `slack` rows away."""
    before = 0
    for first, stop in rows:
        row = first + position - before
        if row < stop:
            near = cuts[np.searchsorted(cuts, first) : np.searchsorted(cuts, stop, "right")]
            best = int(near[np.abs(near - row).argmin()]) if len(near) else row
            return before + best - first if abs(best - row) <= slack else position
        before += stop - first
    return position
