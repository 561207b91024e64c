"""When each row was last looked up in training, and how often: what evictions go by."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu.jit import kernel

Int64s = npt.NDArray[np.int64]

LATEST = (1 << 32) - 1
"""The last moment that there is."""

BYTES = 8
"""Of a row."""

_CLOCK = "clock"
_LAST, _COUNT = "last_used", "times_used"


class RowUses:
    """The last use of each row, in steps or in seconds, and the number of its uses; 8 bytes a row.

    Args:
        by_steps: Whether time goes by steps; else it is set.

    Attributes:
        now: Steps that have been taken, or the time that was set last.
    """

    def __init__(self, by_steps: bool) -> None:
        self.by_steps = by_steps
        self.now = 0
        self._uses = np.zeros((0, 2), np.uint32)
        self._count = 0

    @property
    def nbytes(self) -> int:
        """Memory of the rows that there are."""
        return self._count * BYTES

    @property
    def _moment(self) -> int:
        """At which a row is used now: in the step that is under way."""
        return self.now + 1 if self.by_steps else self.now

    def unused_for(self, first: int, last: int) -> Int64s:
        """For how many whole steps, or seconds, each of the rows first, …, last - 1 has not been used."""
        return np.maximum(self.now - self._uses[first:last, 0].astype(np.int64), 0)

    def add(self, count: int) -> None:
        """So many new rows are there, from now on."""
        first, last = self._count, self._count + count
        if last > len(self._uses):
            self._uses.resize((max(last, len(self._uses) * 5 // 4), 2), refcheck=False)  # in place, where it can
        self._uses[first:last] = self._moment, 0
        self._count = last

    def mark(self, rows: Int64s) -> None:
        """The distinct `rows`, `[n]`, are used now; negative ones are none."""
        _mark_kernel(rows, np.uint32(self._moment), self._uses)

    def count(self, first: int, last: int) -> Int64s:
        """How often each of the rows first, …, last - 1 has been used."""
        return self._uses[first:last, 1].astype(np.int64)

    def retain(self, kept: npt.NDArray[np.bool_]) -> None:
        """The rows of the mask `[rows]` stay, renumbered in their order."""
        self._count = int(_keep_kernel(kept, self._uses))
        self._uses.resize((self._count, 2), refcheck=False)

    def content(self, rows: Int64s | None = None) -> dict[str, npt.NDArray[Any]]:
        """What is known, to be kept: of some rows, or of all."""
        uses = self._uses[: self._count] if rows is None else self._uses[rows]
        return {
            _LAST: uses[:, 0].astype(np.int64),
            _COUNT: uses[:, 1].astype(np.int64),
            _CLOCK: np.array([self.now], np.int64),
        }

    def load(self, content: Mapping[str, npt.NDArray[Any]], rows: Int64s) -> None:
        """Know of `rows`, `[n]`, what some content says of as many rows; if it says nothing, they are new."""
        if _CLOCK in content:
            self.now = int(content[_CLOCK][0])
            self._uses[rows, 0], self._uses[rows, 1] = content[_LAST], content[_COUNT]


def _mark_all(rows: Any, now: Any, uses: Any) -> None:
    for i in range(len(rows)):
        row = rows[i]
        if row >= 0:
            uses[row, 0] = now
            uses[row, 1] = min(np.int64(uses[row, 1]) + 1, np.int64(4294967295))


def _keep_all(kept: Any, uses: Any) -> int:
    target = 0
    for row in range(len(kept)):
        if kept[row]:
            uses[target, 0], uses[target, 1] = uses[row, 0], uses[row, 1]
            target += 1
    return target


_mark_kernel = kernel(_mark_all, "the rows' uses (mark)")
_keep_kernel = kernel(_keep_all, "the rows' uses (keep)")
