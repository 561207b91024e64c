"""A log whose training rows come in random order, block by block."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import chain

import numpy as np
import torch

from sparsegroup.data.batches import Batch, complete, concatenated, read_ahead, rebatched
from sparsegroup.data.keys import Int64s
from sparsegroup.data.log import Log, LogView

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
