"""Which rows lose their place: by themselves or when `shrink` is called, and for want of room."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu.jit import kernel
from sparsegroup.table.rows.rows import Rows

Int64s = npt.NDArray[np.int64]


LATEST = (1 << 32) - 1
"""The last moment, in steps or in seconds, that can be stored."""

BYTES = 8
"""What a row's last use and number of uses take."""

ROWS_AT_A_TIME = 1 << 18
"""This many, where all rows are looked at."""


class RowUses:
    """The last use of each row, in steps or in seconds, and the number of its uses; 8 bytes a row.

    `now` are the steps that have been taken, where it goes by steps, or else the time that was set last.
    """

    def __init__(self, by_steps: bool) -> None:
        self.by_steps, self.now = by_steps, 0
        self._uses = np.zeros((0, 2), np.uint32)  # at least one line for each row

    @property
    def _moment(self) -> int:
        """At which a row is used now: in the step that is under way."""
        return self.now + 1 if self.by_steps else self.now

    def unused_for(self, first: int, last: int) -> Int64s:
        """Return the whole steps, or seconds, since the last use of each of the rows first, …, last - 1."""
        return np.maximum(self.now - self._uses[first:last, 0].astype(np.int64), 0)

    def count(self, first: int, last: int) -> Int64s:
        """Return the number of uses of each of the rows first, …, last - 1."""
        return self._uses[first:last, 1].astype(np.int64)

    def begin(self, first: int, last: int) -> None:
        """Initialize the new rows first, …, last - 1. Must be called before the rows get keys."""
        if last > len(self._uses):
            self._uses.resize((max(last, len(self._uses) * 5 // 4), 2), refcheck=False)  # in place, where it can
        self._uses[first:last] = self._moment, 0

    def mark(self, rows: Int64s) -> None:
        """Note a use of the distinct `rows`, `[n]`, now; negative numbers are no rows."""
        _mark_kernel(rows, np.uint32(self._moment), self._uses)

    def retain(self, surviving: npt.NDArray[np.bool_]) -> None:
        """Keep the rows of the mask `[rows]`, renumbered in their order."""
        self._uses.resize((_retain_kernel(surviving, self._uses), 2), refcheck=False)

    def content(self, rows: Int64s | slice) -> dict[str, npt.NDArray[Any]]:
        """Return the times and counts of use of some rows, for a checkpoint."""
        last, times = self._uses[rows].T.astype(np.int64, order="C")
        return {"last_used": last, "times_used": times, "clock": np.array([self.now], np.int64)}

    def load(self, content: Mapping[str, npt.NDArray[Any]], rows: Int64s) -> None:
        """Load the uses of `rows`, `[n]`, from saved content; without any, the rows are new."""
        if "clock" in content:
            self.now = int(content["clock"][0])
            self._uses[rows, 0], self._uses[rows, 1] = content["last_used"], content["times_used"]


def _mark_all(rows: Any, now: Any, uses: Any) -> None:
    for i in range(len(rows)):
        row = rows[i]
        if row >= 0:
            uses[row, 0] = now
            uses[row, 1] = min(np.int64(uses[row, 1]) + 1, np.int64(4294967295))


def _retain_some(surviving: Any, uses: Any) -> int:
    count = 0
    for row in range(len(surviving)):
        if surviving[row]:
            uses[count, 0], uses[count, 1] = uses[row, 0], uses[row, 1]
            count += 1
    return count


_mark_kernel = kernel(_mark_all, "the rows' uses")
_retain_kernel = kernel(_retain_some, "the rows' uses (removal)")


class RowBlock:
    """Some rows, as a policy looks at them. Parts that it does not use are not read."""

    def __init__(
        self, memory: Rows, keys_of_all: Callable[[], Int64s], uses: RowUses | None, first: int, last: int
    ) -> None:
        self._memory, self._keys_of_all, self._uses = memory, keys_of_all, uses
        self._first, self._last = first, last

    def __len__(self) -> int:
        return self._last - self._first

    @property
    def keys(self) -> Int64s:
        """`[n]`."""
        return self._keys_of_all()[self._first : self._last]

    @property
    def parts(self) -> tuple[str, ...]:
        """What the rows hold: "weight", and "u" and the optimizer's state where there is one."""
        return self._memory.parts

    def part(self, name: str) -> npt.NDArray[Any]:
        """`[n, dim]` of a part, a copy."""
        return self._memory.read(name, np.arange(self._first, self._last))

    def live(self) -> npt.NDArray[np.bool_]:
        """`[n]`, which rows have a non-zero vector."""
        return self._memory.live(self._first, self._last)

    def unused_for(self) -> Int64s:
        """`[n]`, for how many whole steps, or seconds, each row has not been looked up in training.

        Raises:
            RuntimeError: No policy of the table has a `unit`.
        """
        return self._known_uses().unused_for(self._first, self._last)

    def times_used(self) -> Int64s:
        """`[n]`, in how many lookups of training each row has come since it is there.

        Raises:
            RuntimeError: As `unused_for`.
        """
        return self._known_uses().count(self._first, self._last)

    def _known_uses(self) -> RowUses:
        if self._uses is None:
            raise RuntimeError('when rows were used is kept where the policy says in what: unit = "steps" or "seconds"')
        return self._uses


Unit = Literal["steps", "seconds"]
"""In what a table counts time: the optimizer's steps, or the seconds of `set_time`."""


class EvictionPolicy(ABC):
    """Decides which rows are dropped: derive from it, and give it as `HashEmbedding(eviction=policy)`.

    It is asked when `shrink` is called, and now and then if it says so. An evicted key loses its vector and the
    optimizer's state, its dual residual among it. It stays counted as seen; if it returns and is admitted, it is a new
    row. Deltas and incremental checkpoints name it as gone. The policy is copied and pickled with its table.

    Attributes:
        every: It is also asked when this many steps, or seconds if that is its `unit`, have passed: at the next
            lookup in training that no gradient is due to. None: only by `shrink`.
        unit: "steps" or "seconds": when rows were used is kept, in 8 bytes a row, and can be asked. None: it is not.
    """

    every: int | None = None
    unit: Unit | None = None

    @abstractmethod
    def evicts(self, rows: RowBlock) -> npt.NDArray[np.bool_]:
        """Return which of some rows are dropped, `[len(rows)]` bool. Several calls pass all rows of the table."""


class ZeroRows(EvictionPolicy):
    """Rows that are exactly zero are dropped."""

    def evicts(self, rows: RowBlock) -> npt.NDArray[np.bool_]:
        return ~rows.live()


@dataclass(frozen=True)
class UnusedFor(EvictionPolicy):
    """Dead rows that training has not looked up for long are dropped, by themselves, now and then.

    Args:
        steps: For this many of the optimizer's steps, ≥ 1.
        seconds: Or for this many seconds, ≥ 1, as `set_time` counts them.
        live: Also drop live rows.
        every: This many steps, or seconds, are between two checks, ≥ 1; None: a quarter of the age.

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
        if (self.steps is None) == (self.seconds is None):
            raise ValueError(f"one of steps and seconds is expected, got steps={self.steps}, seconds={self.seconds}")
        object.__setattr__(self, "unit", "seconds" if self.steps is None else "steps")
        age = self.steps or self.seconds or 0
        if not 1 <= age <= LATEST:
            raise ValueError(f"{self.unit} must be in [1, {LATEST:,}], got {age}")
        if self.every is None:
            object.__setattr__(self, "every", max(1, age // 4))
        elif self.every < 1:
            raise ValueError(f"every must be >= 1, got {self.every}")

    def evicts(self, rows: RowBlock) -> npt.NDArray[np.bool_]:
        old: npt.NDArray[np.bool_] = rows.unused_for() >= (self.steps or self.seconds or 0)
        return old if self.live or not old.any() else old & ~rows.live()


class RankingPolicy(ABC):
    """Says which rows go first near `max_bytes`: derive from it, and give it as `HashEmbedding(ranking=policy)`.

    What is lost with a row is what an eviction loses, see `EvictionPolicy`. When rows were used is kept for it.
    """

    @abstractmethod
    def ranks(self, rows: RowBlock) -> Int64s:
        """Return the ranks of some rows, `[len(rows)]` int64: the lowest go first, of equal ranks the older rows."""


class LRU(RankingPolicy):
    """Dead rows go first, then live ones; among each, the rows that training has not looked up for the longest time."""

    def ranks(self, rows: RowBlock) -> Int64s:
        return np.where(rows.live(), LATEST + 1, 0) + LATEST - rows.unused_for()


class LFU(RankingPolicy):
    """Dead rows go first, then live ones; among either, those looked up least often, and of these the longest ago."""

    def ranks(self, rows: RowBlock) -> Int64s:
        times = np.minimum(rows.times_used(), (1 << 30) - 1)
        return (np.where(rows.live(), 1 << 30, 0) + times) * (LATEST + 1) + LATEST - rows.unused_for()
