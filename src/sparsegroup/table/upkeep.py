"""What a table does by itself between two steps: it asks its eviction policy, and makes room where little is left."""

import logging

import numpy as np
import numpy.typing as npt

from sparsegroup.table.buckets import ABSENT
from sparsegroup.table.byte_budget import ByteBudget
from sparsegroup.table.directory import Directory
from sparsegroup.table.eviction import EvictionPolicy, RankingPolicy
from sparsegroup.table.policy_answer import checked_answer
from sparsegroup.table.row_block import RowBlock, blocks
from sparsegroup.table.row_storage import Rows
from sparsegroup.table.table_config import TableConfig

_logger = logging.getLogger(__name__)

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]

_FULL, _EVICTED = 0.02, 0.1
"""Of the rows that there is room for: what shall be free, and how many go when it is not."""

_SAMPLE = 1 << 16
"""Rows that are drawn, whose ranks tell which rank is low."""

_ENOUGH = 1 << 12
"""Of these that are left; else all are looked at."""


class Upkeep:
    """Decides which rows stay.

    Args:
        config: The table's.
        directory, memory: An empty table's.

    Raises:
        ValueError: `max_bytes` are too few.

    Attributes:
        budget: The table's bytes, where they are limited.
        is_due: Whether a step has been taken, or rows were read, since `kept` was asked.
    """

    def __init__(self, config: TableConfig, directory: Directory, memory: Rows) -> None:
        limit = config.max_bytes
        self.budget = None if limit is None else ByteBudget(limit, 2 * config.scratch_bytes, directory, memory)
        self._eviction, self._ranking = config.eviction, config.ranking
        self._every: int | None = getattr(config.eviction, "every", None)
        self.is_due = self._is_wanted

    @property
    def _is_wanted(self) -> bool:
        return self._every is not None or self.budget is not None

    def note_step(self, directory: Directory) -> None:
        """A step has been taken."""
        if self._is_wanted or directory.uses is not None:
            directory.tick()
            self.is_due = self._is_wanted

    def kept_within_limit(self, directory: Directory, memory: Rows) -> Bools | None:
        """Which rows stay of rows that have been read, `[num_rows]`; None for all, unless they are too many."""
        if self.budget is None or (too_many := directory.num_rows - self.budget.most_rows(memory, known=True)) <= 0:
            return None
        return _without_lowest(self._ranking, too_many, None, memory, directory)

    def kept(self, directory: Directory, memory: Rows) -> Bools | None:
        """Which rows stay, `[num_rows]`; None for all."""
        self.is_due = False
        kept: Bools | None = None
        uses = directory.uses
        moment = directory.steps if uses is None or uses.by_steps else uses.now
        if self._every is not None and moment - directory.asked >= self._every:
            directory.note_asked(moment)
            kept = kept_rows(self._eviction, memory, directory)
        if self.budget is not None:
            most, rows = self.budget.most_rows(memory), directory.num_rows
            staying = rows if kept is None else int(np.count_nonzero(kept))
            if most - staying < _FULL * most:
                number = staying - int((1 - _EVICTED) * most)
                kept = _without_lowest(self._ranking, number, kept, memory, directory)
        if kept is not None and _logger.isEnabledFor(logging.DEBUG):
            left = int(np.count_nonzero(kept))
            _logger.debug("%s of %s rows are evicted", f"{len(kept) - left:,}", f"{len(kept):,}")
        return kept

    def restart(self) -> None:
        """Rows have been read."""
        self.is_due = self._is_wanted

    def check_room(self, rows: int, memory: Rows) -> None:
        """Raise RuntimeError if there is no room for `rows` rows with the parts that they have."""
        if self.budget is not None:
            self.budget.check_room(rows, 0, memory, known=True)

    def make_ready(self, keys: Int64s, directory: Directory, memory: Rows, *, as_they_are: bool) -> None:
        """Have an index for `keys`, too, under a limit, where they are about to be set.

        Raises:
            RuntimeError: There is no room for them, with the parts that rows have, `as_they_are`, or may get.
        """
        if self.budget is not None:
            new = int(np.count_nonzero(directory.find(keys) == ABSENT))
            self.budget.check_room(new, directory.num_rows, memory, known=as_they_are)
            directory.set_buckets(self.budget.buckets(memory, known=as_they_are))

    def keep_limit(self, directory: Directory, memory: Rows) -> None:
        """Where bytes are limited, have an index that leaves enough to the rows."""
        if self.budget is not None:
            self.fit_index(directory, memory)

    def fit_index(self, directory: Directory, memory: Rows) -> None:
        """Have an index that suits the rows: as small as they allow, or as the budget says."""
        if self.budget is None:
            directory.give_back()
        elif directory.num_rows <= self.budget.most_rows(memory):
            directory.set_buckets(self.budget.buckets(memory))
        elif directory.num_rows <= self.budget.most_rows(memory, known=True):
            directory.set_buckets(self.budget.buckets(memory, known=True))


def kept_rows(policy: EvictionPolicy, memory: Rows, directory: Directory) -> Bools:
    """Which rows of a table stay, `[num_rows]`: a policy's answers, put together.

    Raises:
        ValueError: An answer has another shape or dtype.
    """
    kept = np.ones(directory.num_rows, np.bool_)
    for first, block in blocks(memory, directory):
        kept[first : first + len(block)] = ~checked_answer(policy, "evicts", policy.evicts(block), len(block), np.bool_)
    return kept


def _without_lowest(
    policy: RankingPolicy, number: int, kept: Bools | None, memory: Rows, directory: Directory
) -> Bools:
    """The mask without some `number` of its rows, those with the lowest ranks: at least so many, and few more."""
    kept = np.ones(directory.num_rows, np.bool_) if kept is None else kept
    limit = _low_rank(policy, number, kept, memory, directory)
    ties = number
    for first, block in blocks(memory, directory):
        ranks, span = _ranks(policy, block), kept[first : first + len(block)]
        ties -= int(np.count_nonzero(span & (ranks < limit)))
    for first, block in blocks(memory, directory):
        ranks, span = _ranks(policy, block), kept[first : first + len(block)]
        tied = np.flatnonzero(span & (ranks == limit))[: max(ties, 0)]
        ties -= len(tied)
        span[ranks < limit] = False
        span[tied] = False
    if ties > 0:  # the sample has taken the limit too low
        return _without_lowest(policy, ties, kept, memory, directory)
    return kept


def _low_rank(policy: RankingPolicy, number: int, kept: Bools, memory: Rows, directory: Directory) -> int:
    """The rank that about `number` of the rows of the mask are below, told by a sample, or by all if they are few."""
    wanted = kept.copy()
    if len(kept) > _SAMPLE:
        drawn = np.random.default_rng(directory.steps).integers(0, len(kept), _SAMPLE)
        wanted[:] = False
        wanted[drawn] = kept[drawn]
        if np.count_nonzero(wanted) < _ENOUGH:
            wanted = kept
    found = [np.zeros(0, np.int64)]
    for first, block in blocks(memory, directory):
        some = wanted[first : first + len(block)]
        if some.any():
            found.append(_ranks(policy, block)[some])
    ranks = np.concatenate(found)
    place = min(len(ranks) - 1, int(number / int(np.count_nonzero(kept)) * len(ranks)))
    return int(np.partition(ranks, place)[place])


def _ranks(policy: RankingPolicy, block: RowBlock) -> npt.NDArray[np.int64]:
    return checked_answer(policy, "ranks", policy.ranks(block), len(block), np.int64)
