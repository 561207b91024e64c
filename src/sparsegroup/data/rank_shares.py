"""Which rows of an epoch each of several ranks trains on, also after their number has changed on the way."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sparsegroup.data.log import Log
from sparsegroup.data.row_segments import RowSegments, Segment
from sparsegroup.data.shuffled_log import ShuffledLog

_RUNS = 16
"""Runs that each rank is dealt, at least, where there are rows enough."""

_LONGEST_RUN = 1 << 16
"""Rows: shorter than what a log changes in."""


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

    Where the number of ranks has changed within the epoch, what was left then is divided anew.

    Attributes:
        log: The log.
        rows: The first so many rows are dealt.
        ranks: How many ranks there are.
        buffer: Each rank's share is shuffled in blocks of so many rows, see `ShuffledLog`; 0 for the log's order.
        seed, epoch: See `ShuffledLog`.
        before: How far other numbers of ranks have come in the epoch, the first ones first.

    Examples:
        >>> from sparsegroup.data import SyntheticConfig, synthetic_log
        >>> from sparsegroup.data.rank_shares import RankShares, Stand
        >>> log = synthetic_log(SyntheticConfig(rows=200), seed=0)
        >>> [len(share) for share in RankShares(log, 100, ranks=3).shares]
        [34, 34, 32]
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
        shares = self._dealt(counts[0])
        for stand, count in zip(self.before, counts[1:], strict=True):
            left = [
                segment
                for share, taken in zip(shares, stand.taken, strict=True)
                for segment in RowSegments(self.log, [(share, 0, len(share))]).cut(taken, len(share))
            ]
            shares = self._divided(left, count)
        return shares

    def _dealt(self, ranks: int) -> list[Log]:
        run = min(max(1, self.rows // (_RUNS * ranks)), _LONGEST_RUN)
        runs = [(self.log, first, min(first + run, self.rows)) for first in range(0, self.rows, run)]
        return [self._shuffled(RowSegments(self.log, runs[rank::ranks]), rank) for rank in range(ranks)]

    def _shuffled(self, share: RowSegments, rank: int) -> Log:
        if not self.buffer:
            return share
        return ShuffledLog(share, self.buffer, seed=self.seed, epoch=self.epoch, part=rank)

    def _divided(self, left: Sequence[Segment], ranks: int) -> list[Log]:
        whole = RowSegments(self.log, left)
        edges = [rank * len(whole) // ranks for rank in range(ranks + 1)]
        return [RowSegments(self.log, whole.cut(first, stop)) for first, stop in pairwise(edges)]
