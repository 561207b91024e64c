"""Rows as a policy looks at them, some at a time."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.table.row_storage import Rows
from sparsegroup.table.row_uses import RowUses

Int64s = npt.NDArray[np.int64]

ROWS_AT_A_TIME = 1 << 18
"""So many, where all rows are looked at."""


class RowBlock:
    """Some rows, as a policy looks at them. What it does not ask for is not read.

    Args:
        memory: Where the rows are.
        keys_of_all: Gives the keys of all rows.
        uses: When they were used; None where the table does not keep that.
        first, last: The rows first, …, last - 1.
    """

    def __init__(
        self, memory: Rows, keys_of_all: Callable[[], Int64s], uses: RowUses | None, first: int, last: int
    ) -> None:
        self._memory = memory
        self._keys_of_all = keys_of_all
        self._uses = uses
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


def blocks(
    memory: Rows, count: int, keys: Callable[[], Int64s], uses: RowUses | None
) -> Iterator[tuple[int, RowBlock]]:
    """The rows 0, …, count - 1, some at a time, each time with the number of the first one."""
    for first in range(0, count, ROWS_AT_A_TIME):
        yield first, RowBlock(memory, keys, uses, first, min(first + ROWS_AT_A_TIME, count))
