"""Which rows lose their place: by themselves or when `shrink` is called, and for want of room."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from sparsegroup.table.row_block import RowBlock
from sparsegroup.table.row_uses import LATEST

Int64s = npt.NDArray[np.int64]

Unit = Literal["steps", "seconds"]
"""In what a table counts time: the optimizer's steps, or the seconds of `set_time`."""


class EvictionPolicy(ABC):
    """Decides which rows are dropped: derive from it, and give it as `HashEmbedding(eviction=policy)`.

    It is asked when `shrink` is called, and now and then if it says so. An evicted key loses its vector and the
    optimizer's state, its dual residual among it. It stays counted as seen; if it returns and is admitted, it is a new
    row. Deltas and incremental checkpoints name it as gone. The policy is copied and pickled with its table.

    Attributes:
        every: It is also asked when so many steps, or seconds if that is its `unit`, have passed, at the next lookup in
            training that no gradient is due to. None: only by `shrink`.
        unit: "steps" or "seconds": when rows were used is kept, in 8 bytes a row, and can be asked. None: it is not.
    """

    every: int | None = None
    unit: Unit | None = None

    @abstractmethod
    def evicts(self, rows: RowBlock) -> npt.NDArray[np.bool_]:
        """Which of some rows are dropped, `[len(rows)]` bool; all rows of the table come by in several calls."""


class ZeroRows(EvictionPolicy):
    """Rows that are exactly zero are dropped."""

    def evicts(self, rows: RowBlock) -> npt.NDArray[np.bool_]:
        """See `EvictionPolicy`."""
        return ~rows.live()


@dataclass(frozen=True)
class UnusedFor(EvictionPolicy):
    """Dead rows that training has not looked up for long are dropped, by themselves, now and then.

    Args:
        steps: For so many of the optimizer's steps, ≥ 1.
        seconds: Or for so many seconds, ≥ 1, as `set_time` counts them.
        live: Drop live rows, too.
        every: So many steps, or seconds, are between two checks, ≥ 1; None: a quarter of the age.

    Raises:
        ValueError: Both or neither of `steps` and `seconds`, or a number out of range.

    Examples:
        >>> import torch
        >>> from sparsegroup import GroupAdam, HashEmbedding, UnusedFor
        >>> table = HashEmbedding(4, eviction=UnusedFor(steps=10, every=1))
        >>> optimizer = GroupAdam(table.parameters(), l21=1e3)  # so that all rows die
        >>> for step in range(12):
        ...     optimizer.zero_grad()
        ...     table(torch.tensor([7 if step else 1])).sum().backward()
        ...     optimizer.step()
        >>> 1 in table, 7 in table, table.num_seen, table.num_evicted
        (False, True, 2, 1)
    """

    steps: int | None = None
    seconds: int | None = None
    live: bool = False
    every: int | None = None
    unit: Unit | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "unit", "seconds" if self.steps is None else "steps")
        if (self.steps is None) == (self.seconds is None):
            raise ValueError(f"one of steps and seconds is expected, got steps={self.steps}, seconds={self.seconds}")
        if not 1 <= self._limit <= LATEST:
            raise ValueError(f"{self.unit} must be in [1, {LATEST:,}], got {self._limit}")
        if self.every is None:
            object.__setattr__(self, "every", max(1, self._limit // 4))
        elif self.every < 1:
            raise ValueError(f"every must be >= 1, got {self.every}")

    @property
    def _limit(self) -> int:
        limit = self.seconds if self.steps is None else self.steps
        assert limit is not None
        return limit

    def evicts(self, rows: RowBlock) -> npt.NDArray[np.bool_]:
        """See `EvictionPolicy`."""
        old: npt.NDArray[np.bool_] = rows.unused_for() >= self._limit
        return old if self.live or not old.any() else old & ~rows.live()


class RankingPolicy(ABC):
    """Says which rows go first near `max_bytes`: derive from it, and give it as `HashEmbedding(ranking=policy)`.

    What is lost with a row is what an eviction loses, see `EvictionPolicy`. When rows were used is kept for it.
    """

    @abstractmethod
    def ranks(self, rows: RowBlock) -> Int64s:
        """The ranks of some rows, `[len(rows)]` int64: those with the lowest go first, of equal ones the older ones."""


class LRU(RankingPolicy):
    """Dead rows go first, then live ones; among either, those that training has not looked up for the longest time."""

    def ranks(self, rows: RowBlock) -> Int64s:
        """See `RankingPolicy`."""
        return np.where(rows.live(), LATEST + 1, 0) + LATEST - rows.unused_for()


class LFU(RankingPolicy):
    """Dead rows go first, then live ones; among either, those looked up least often, and of these the longest ago."""

    def ranks(self, rows: RowBlock) -> Int64s:
        """See `RankingPolicy`."""
        times = np.minimum(rows.times_used(), (1 << 30) - 1)
        return (np.where(rows.live(), 1 << 30, 0) + times) * (LATEST + 1) + LATEST - rows.unused_for()
