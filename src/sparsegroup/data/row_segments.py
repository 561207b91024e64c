"""A log made of parts of others, one after the other."""

from collections.abc import Iterator, Sequence

import numpy as np

from sparsegroup.data.batches import Batch, rebatched
from sparsegroup.data.keys import Int64s
from sparsegroup.data.log import Log, LogView
from sparsegroup.data.row_runs import Run

Segment = tuple[Log, int, int]
"""Rows of a log: the first, and the one after the last."""


class RowSegments(LogView):
    """The rows of some segments, in their order. All of them are training rows.

    Args:
        log: What it is like, and what the segments are rows of, directly or not.
        segments: The segments.

    Examples:
        >>> from sparsegroup.data import SyntheticConfig, synthetic_log
        >>> from sparsegroup.data.row_segments import RowSegments
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
