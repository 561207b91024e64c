"""Which rows `shrink` drops: the policy of a table, and the one it has unless another is given."""

from collections.abc import Callable
from functools import cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sparsegroup.table.directory import Directory
from sparsegroup.table.row_storage import RowMemory

Int64s = npt.NDArray[np.int64]

_ROWS_AT_A_TIME = 1 << 18


class RowBlock:
    """Some rows, as an eviction policy looks at them. What it does not ask for is not read.

    Args:
        memory: Where the rows are.
        keys_of_all: Gives the keys of all rows.
        first, last: The rows first, …, last - 1.
    """

    def __init__(self, memory: RowMemory, keys_of_all: Callable[[], Int64s], first: int, last: int) -> None:
        self._memory = memory
        self._keys_of_all = keys_of_all
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


class EvictionPolicy(Protocol):
    """Decides which rows `shrink` drops. Give it as `HashEmbedding(..., eviction=policy)`.

    An evicted key stays counted as seen; if it returns and is admitted, it is a new row. The policy is copied and
    pickled with its table.
    """

    def evicts(self, rows: RowBlock) -> npt.NDArray[np.bool_]:
        """Which of some rows are dropped, `[len(rows)]` bool; all rows of the table come by in several calls."""


class ZeroRows:
    """Rows that are exactly zero are dropped."""

    def evicts(self, rows: RowBlock) -> npt.NDArray[np.bool_]:
        """See `EvictionPolicy`."""
        return ~rows.live()


ZERO_ROWS = ZeroRows()


def kept_rows(policy: EvictionPolicy, memory: RowMemory, directory: Directory) -> npt.NDArray[np.bool_]:
    """Which rows of a table stay, `[num_rows]`: a policy's answers, put together.

    Raises:
        ValueError: An answer has another shape or dtype.
    """
    count = directory.num_rows
    kept = np.ones(count, np.bool_)
    keys = cache(directory.keys)
    for first in range(0, count, _ROWS_AT_A_TIME):
        block = RowBlock(memory, keys, first, min(first + _ROWS_AT_A_TIME, count))
        evicted = np.asarray(policy.evicts(block))
        if evicted.dtype != np.bool_ or evicted.shape != (len(block),):
            raise ValueError(
                f"{type(policy).__name__}.evicts must give bool {[len(block)]}, got {evicted.dtype} "
                f"{list(evicted.shape)}"
            )
        kept[first : first + len(block)] = ~evicted
    return kept
