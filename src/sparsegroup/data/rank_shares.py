"""Which rows of an epoch each of several ranks trains on, also after their number has changed on the way."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sparsegroup.data.log import Log
from sparsegroup.data.row_runs import Run, joined, rows_in, taken
from sparsegroup.data.row_segments import RowSegments, Segment
from sparsegroup.data.run_dealing import COARSEST, dealt
from sparsegroup.data.shuffled_log import ShuffledLog


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
        >>> from sparsegroup.data.rank_shares import RankShares, Stand
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
