"""The order in which an epoch reads a log: shuffled in blocks, and shared by several ranks."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np
import torch

from sparsegroup.data.batches import Batch, complete, concatenated, read_ahead, rebatched
from sparsegroup.data.log import Log, LogPart, LogView

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


@dataclass(frozen=True, order=True)
class Piece:
    """Rows `first` to `stop` of a log in their order for an epoch, and the places `begin` to `end` of that order."""

    first: int
    stop: int
    begin: int
    end: int

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.end - self.begin


_LEAST_PIECES = 16
"""Pieces that each rank has at least, if the log has as many chunks."""

_SMALLEST_PIECE = 1 << 16
"""Rows: smaller chunks are joined, as long as each rank has enough pieces."""


def shares(log: Log, rows: int, ranks: int, taken: Sequence[Sequence[int]] = ()) -> list[list[Piece]]:
    """The pieces of each rank: every `ranks`-th chunk of the log's first `rows` rows.

    `taken` has, for each number of ranks that the epoch was trained with before, the rows of its share that each rank
    has trained on; the remaining rows are dealt anew.

    Examples:
        >>> from sparsegroup.data import SyntheticConfig, synthetic_log
        >>> log = synthetic_log(SyntheticConfig(rows=200), seed=0)
        >>> [sum(piece.rows for piece in share) for share in shares(log, 100, 3)]
        [33, 33, 34]
        >>> [sum(piece.rows for piece in share) for share in shares(log, 100, 2, [(30, 30, 30)])]
        [5, 5]
    """
    counts = [*map(len, taken), ranks]
    dealt = _deal(_pieces(log, rows, counts[0]), counts[0])
    for done, count in zip(taken, counts[1:], strict=True):
        rest = (piece for share, start in zip(dealt, done, strict=True) for piece in remaining(share, start))
        dealt = _deal(sorted(rest), count)
    return dealt


def _pieces(log: Log, rows: int, ranks: int) -> list[Piece]:
    edges = [0]
    if ranks > 1:
        least = max(1, min(_SMALLEST_PIECE, rows // (_LEAST_PIECES * ranks)))
        starts = log.chunk_starts()
        for start in starts[starts < rows].tolist():
            if start - edges[-1] >= least:
                edges.append(start)
    return [Piece(first, stop, 0, stop - first) for first, stop in pairwise([*edges, rows])]


def _deal(pieces: Sequence[Piece], ranks: int) -> list[list[Piece]]:
    """The pieces in turn; those of a last, incomplete round are cut into a part for each rank."""
    whole = len(pieces) // ranks * ranks
    dealt = [list(pieces[rank:whole:ranks]) for rank in range(ranks)]
    for piece in pieces[whole:]:
        for rank, share in enumerate(dealt):
            begin, end = (piece.begin + piece.rows * part // ranks for part in (rank, rank + 1))
            share.append(replace(piece, begin=begin, end=end))
    return dealt


def remaining(share: Sequence[Piece], start: int) -> Iterator[Piece]:
    """The pieces of a share from its row number `start` on."""
    for piece in share:
        if start < piece.rows:
            yield replace(piece, begin=piece.begin + start)
        start = max(start - piece.rows, 0)


def piece_batches(log: Log, pieces: Iterator[Piece], buffer: int = 0, seed: int = 0, epoch: int = 0) -> Iterator[Batch]:
    """The rows of some pieces, each shuffled as by `ShuffledLog` (`buffer` 0: in the log's order)."""
    for piece in pieces:
        rows: Log = LogPart(log, piece.first, piece.stop - piece.first)
        if buffer:
            rows = ShuffledLog(rows, buffer, seed=seed, epoch=epoch, part=piece.first)
        yield from complete(rows.batches(piece.begin, piece.end, _READ), piece.rows, log.name)
