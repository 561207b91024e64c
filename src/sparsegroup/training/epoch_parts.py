"""Which rows each of several ranks trains on in each step, and which of them it is evaluated on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

from sparsegroup.artifact.validation import STRICT, Count
from sparsegroup.data.batches import Batch, complete, resized
from sparsegroup.data.log import Log
from sparsegroup.data.rank_shares import RankShares, Stand
from sparsegroup.training.epoch_plan import EpochPlan


@dataclass(frozen=True)
class EarlierRanks:
    """Another number of ranks that an epoch was begun with.

    Attributes:
        epoch: Number of the epoch, from 0.
        steps: How many steps of it they, and those before them, have made.
        taken: How many rows of its share each of them has trained on.
    """

    __pydantic_config__: ClassVar = STRICT

    epoch: Count
    steps: Count
    taken: tuple[Count, ...]


@dataclass(frozen=True)
class EpochParts:
    """The part that one of several ranks has of each step of an epoch.

    A rank has its share of the rows, and takes an equal part of it in each step: so all have as many steps as one rank
    alone would have.

    Attributes:
        plan: The rows of an epoch, and how many a step takes of all ranks.
        rank, count: The number of the rank, and how many there are.
    """

    plan: EpochPlan
    rank: int = 0
    count: int = 1

    def batches(self, log: Log, epoch: int, step: int, before: Sequence[EarlierRanks] = ()) -> Iterator[Batch]:
        """The part of this rank, from a step of an epoch on; where it has no row, its batch is empty.

        Args:
            log: The log.
            epoch: Number of the epoch, from 0.
            step: Steps of it that have been made.
            before: Other numbers of ranks that it was begun with, the first ones first.
        """
        plan = self.plan
        if self.count == 1 and not before:
            return plan.batches(log, epoch, step * plan.batch_size)
        shares = RankShares(
            log,
            plan.rows,
            self.count,
            plan.shuffle_buffer,
            plan.seed,
            epoch,
            [Stand(one.taken) for one in before],
        )
        share, first = shares.shares[self.rank], before[-1].steps if before else 0
        steps = plan.epoch_steps - first
        edges = [len(share) * number // steps for number in range(step - first, steps + 1)] if steps else [0]
        sizes = [stop - start for start, stop in pairwise(edges)]
        if not len(share):
            return iter([_nothing(log)] * len(sizes))
        rows = share.batches(edges[0], len(share), plan.batch_size)
        return resized(complete(rows, len(share) - edges[0], log.name), sizes)

    def of_rows(self, log: Log, start: int, stop: int, size: int) -> Iterator[Batch]:
        """The rows that this rank evaluates of rows `start` to `stop`: those behind the part of the rank before it."""
        first, last = (start + (stop - start) * rank // self.count for rank in (self.rank, self.rank + 1))
        return complete(log.batches(first, last, size), last - first, log.name)


def _nothing(log: Log) -> Batch:
    """A batch of no rows."""
    return next(log.batches(0, 1, 1))[:0]
