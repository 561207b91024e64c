"""A log in another order: parts of it, shuffled, dealt to ranks."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heapreplace
from itertools import accumulate, chain, pairwise

import numpy as np
import torch

from sparsegroup.data.batches import Batch, complete, concatenated, read_ahead, rebatched
from sparsegroup.data.keys import Int64s
from sparsegroup.data.log import Log, LogView, Run, joined, rows_in, taken

Segment = tuple[Log, int, int]
"""Rows of a log: the first, and the one after the last."""


class RowSegments(LogView):
    """The rows of some segments, in their order. All of them are training rows.

    Args:
        log: What it is like, and what the segments are rows of, directly or not.
        segments: The segments.

    Examples:
        >>> from sparsegroup.data import SyntheticConfig, synthetic_log
        >>> from sparsegroup.data.order import RowSegments
        >>> log = synthetic_log(SyntheticConfig(rows=200), seed=0)
        >>> some = RowSegments(log, [(log, 5, 7), (log, 100, 103)])
        >>> len(some), [batch.times.tolist() for batch in some.batches(1, 5, 3)]
        (5, [[6, 100, 101], [102]])
    """

    def __init__(self, log: Log, segments: Sequence[Segment]) -> None:
        super().__init__(log)
        self.segments = [segment for segment in segments if segment[1] < segment[2]]
        self.train_rows = sum(stop - start for _, start, stop in self.segments)

    def __len__(self) -> int:
        return self.train_rows

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """See `Log.batches`."""
        yield from rebatched(self._parts(start, stop, size), size)

    def _parts(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        held: tuple[Log, list[Run]] | None = None
        for log, first, end in self.cut(start, stop):
            if held is not None and held[0] is log and held[1][-1][1] <= first:
                held[1].append((first, end))
                continue
            if held is not None:
                yield from held[0].run_batches(held[1], size)
            held = log, [(first, end)]
        if held is not None:
            yield from held[0].run_batches(held[1], size)

    def cut(self, start: int, stop: int) -> list[Segment]:
        """The segments of rows `start` to `stop` of this log."""
        found, position = [], 0
        for log, first, end in self.segments:
            begin, last = max(start - position, 0), min(stop - position, end - first)
            if begin < last:
                found.append((log, first + begin, first + last))
            position += end - first
        return found

    def cuts(self, longest: int) -> Int64s:
        """See `Log.cuts`: where segments begin, and those of their logs within them."""
        cuts = {id(log): log.cuts(longest) for log in {id(log): log for log, _, _ in self.segments}.values()}
        found, position = [np.empty(0, np.int64)], 0
        for log, first, end in self.segments:
            inside = cuts[id(log)]
            found += [np.array([position]), inside[(inside > first) & (inside < end)] - first + position]
            position += end - first
        return np.concatenate(found)


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
        >>> from sparsegroup.data.order import dealt
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


_READ = 16_384
"""Rows that are read at a time."""


class ShuffledLog(LogView):
    """A log with its first rows in another order: blocks of `buffer` rows, each shuffled.

    The order follows from (seed, epoch, block): any place in it is found by reading the block that it is in, so that a
    training resumes there. In each epoch the blocks begin elsewhere, so that rows at the end of one meet those at the
    beginning of the next. Up to three blocks are in memory: one in use, and those that a thread has read ahead.

    Args:
        log: The log.
        buffer: Rows of a block, ≥ 1; the first and the last may be smaller. One that holds all rows shuffles them all.
        rows: The first so many rows are shuffled, the others come after them as they are; None: the training rows.
        seed: In [0, 2⁶⁴).
        epoch: Number of the pass, ≥ 0.
        part: Where the log is a part of another one, its number among the parts, so that they are shuffled differently.

    Attributes:
        edges: The rows that blocks begin with, and the one after the last block.

    Raises:
        ValueError: A number out of range.

    Examples:
        >>> from sparsegroup.data import ShuffledLog, SyntheticConfig, synthetic_log
        >>> log = synthetic_log(SyntheticConfig(rows=200), seed=0)
        >>> first = next(ShuffledLog(log, buffer=50).batches(0, 200, 10))
        >>> bool((first.times < 50).all()), first.times.tolist() == list(range(10))
        (True, False)
    """

    def __init__(
        self, log: Log, buffer: int, *, rows: int | None = None, seed: int = 0, epoch: int = 0, part: int = 0
    ) -> None:
        super().__init__(log)
        self.rows = log.train_rows if rows is None else rows
        if buffer < 1:
            raise ValueError(f"buffer must be >= 1, got {buffer}")
        if not 0 <= self.rows <= len(log):
            raise ValueError(f"rows must be in [0, {len(log)}], got {rows}")
        if seed < 0 or epoch < 0:
            raise ValueError(f"seed and epoch must be >= 0, got {seed} and {epoch}")
        self.buffer = buffer
        self._seed, self._part = [seed, epoch], [part] if part else []
        offset = 0 if buffer >= self.rows else int(np.random.default_rng([*self._seed, *self._part]).integers(buffer))
        self.edges = [0, *range(offset or buffer, self.rows, buffer), self.rows]

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """Rows `start` to `stop` of the new order, `size` at a time, the last ones fewer; a thread reads ahead.

        Raises:
            ClickLogError: They cannot be read.
        """
        inside = self._shuffled(start, min(stop, self.rows), size)
        yield from rebatched(chain(inside, self.log.batches(max(start, self.rows), stop, size)), size)

    def cuts(self, longest: int) -> Int64s:
        """See `Log.cuts`: the rows that blocks begin with, and what the log says of those that stay as they are."""
        after = self.log.cuts(longest)
        return np.concatenate([np.array(self.edges[:-1], np.int64), after[after >= self.rows]])

    def _shuffled(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        if start >= stop:
            return
        for number, block in read_ahead(self._blocks(start, stop), depth=1):
            begin = self.edges[number]
            draw = np.random.default_rng([*self._seed, number, *self._part])
            order = torch.from_numpy(draw.permutation(len(block)))[max(start - begin, 0) : stop - begin]
            for first in range(0, len(order), size):
                yield block.take(order[first : first + size])

    def _blocks(self, start: int, stop: int) -> Iterator[tuple[int, Batch]]:
        """Number and rows of each block that rows `start` to `stop` are in, in the log's order."""
        first = bisect_right(self.edges, start) - 1
        end = self.edges[bisect_left(self.edges, stop)]
        begin, rest, held = self.edges[first], list[Batch](), 0
        parts = complete(self.log.batches(begin, end, _READ), end - begin, self.log.name)
        for number in range(first, len(self.edges) - 1):
            begin, end = self.edges[number : number + 2]
            if begin >= stop:
                return
            while held < end - begin:
                if (part := next(parts, None)) is None:
                    return
                rest.append(part)
                held += len(part)
            joined = concatenated(rest)
            yield number, joined[: end - begin]
            rest = [joined[end - begin :]]
            held -= end - begin


@dataclass(frozen=True)
class Stand:
    """How far some ranks have come in an epoch.

    Attributes:
        taken: `[ranks]`, how many rows of its share each has trained on.
    """

    taken: Sequence[int]


@dataclass(frozen=True)
class RankShares:
    """The rows of an epoch, dealt to ranks: runs of consecutive rows in turn, so that all are at the same time of it.

    Runs begin where reading does, see `Log.cuts`: a rank reads its own part of the log, and little more. Where the
    number of ranks has changed within the epoch, what was left then is dealt anew.

    Attributes:
        log: The log.
        rows: The first so many rows are dealt.
        ranks: How many ranks there are.
        buffer: Each rank's share is shuffled in blocks of so many rows, see `ShuffledLog`; 0 for the log's order.
        seed, epoch: See `ShuffledLog`.
        before: How far other numbers of ranks have come in the epoch, the first ones first.

    Examples:
        >>> from sparsegroup.data import SyntheticConfig, synthetic_log
        >>> from sparsegroup.data.order import RankShares, Stand
        >>> log = synthetic_log(SyntheticConfig(rows=200), seed=0)
        >>> [len(share) for share in RankShares(log, 100, ranks=3).shares]
        [33, 33, 34]
        >>> [len(share) for share in RankShares(log, 100, ranks=2, before=(Stand((30, 30, 30)),)).shares]
        [5, 5]
    """

    log: Log
    rows: int
    ranks: int
    buffer: int = 0
    seed: int = 0
    epoch: int = 0
    before: Sequence[Stand] = ()

    @property
    def shares(self) -> list[Log]:
        """The share of each rank: all its rows are training rows."""
        counts = [len(stand.taken) for stand in self.before] + [self.ranks]
        shares = self._dealt([], [(0, self.rows)], counts[0])
        for stand, count in zip(self.before, counts[1:], strict=True):
            left = [share.left(taken) for share, taken in zip(shares, stand.taken, strict=True)]
            begun = [segment for blocks, _ in left for segment in blocks]
            shares = self._dealt(begun, joined(sorted(run for _, runs in left for run in runs)), count)
        return [share.log for share in shares]

    def _dealt(self, begun: Sequence[Segment], rows: Sequence[Run], ranks: int) -> list["_Share"]:
        blocks = RowSegments(self.log, begun)
        edges = [rank * len(blocks) // ranks for rank in range(ranks + 1)]
        hands = dealt(rows, self.log.cuts(rows_in(rows) // COARSEST), ranks)
        parts = enumerate(zip(pairwise(edges), hands, strict=True))
        return [self._share(blocks.cut(*part), hand, rank) for rank, (part, hand) in parts]

    def _share(self, begun: Sequence[Segment], runs: Sequence[Run], rank: int) -> "_Share":
        rows = RowSegments(self.log, [(self.log, *run) for run in runs])
        if not self.buffer:
            return _Share(begun, runs, rows, ())
        shuffled = ShuffledLog(rows, self.buffer, seed=self.seed, epoch=self.epoch, part=rank)
        return _Share(begun, runs, shuffled, shuffled.edges)


@dataclass(frozen=True)
class _Share:
    """The share of a rank.

    Attributes:
        begun: Rows of shuffled blocks that other numbers of ranks had begun, which come first.
        runs: The other rows.
        order: These, in the order in which they come.
        edges: Where blocks of them that are shuffled begin, and the end; empty where none are.
    """

    begun: Sequence[Segment]
    runs: Sequence[Run]
    order: Log
    edges: Sequence[int]

    @property
    def log(self) -> Log:
        """All of it."""
        if not self.begun:
            return self.order
        return RowSegments(self.order, [*self.begun, (self.order, 0, len(self.order))])

    def left(self, position: int) -> tuple[Sequence[Segment], Sequence[Run]]:
        """What is left after so many rows: of blocks that are begun, and whole runs."""
        begun = RowSegments(self.order, self.begun)
        place = position - len(begun)
        if place <= 0:
            return begun.cut(position, len(begun)), self.runs
        edge = next((edge for edge in self.edges if edge >= place), place)
        return [(self.order, place, edge)], taken(self.runs, edge, len(self.order))
