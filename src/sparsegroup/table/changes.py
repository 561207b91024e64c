"""Which rows have changed since a checkpoint."""

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu.jit import kernel

Int64s = npt.NDArray[np.int64]


class Changes:
    """Rows changed and keys removed since a table had `count` rows.

    Args:
        count: Rows that there were. Later ones are new.
        since: What was written then.

    Attributes:
        known: How many of those rows are left; they are still the first ones, in the same order.
    """

    def __init__(self, count: int, since: str) -> None:
        self.known = count
        self.since = since
        self._changed = np.zeros(count, np.bool_)
        self._removed: list[Int64s] = []

    def mark(self, rows: Int64s) -> None:
        """Some rows change."""
        _mark(rows, self._changed)

    def keep(self, kept: npt.NDArray[np.bool_], keys: Int64s) -> None:
        """The rows of the mask `kept` stay and are renumbered in their order.

        Args:
            kept: `[rows]`.
            keys: Those of rows that do not stay, the `known` ones among them.
        """
        before = kept[: self.known]
        self._changed = self._changed[before]
        self.known = len(self._changed)
        self._removed.append(keys)

    @property
    def removed(self) -> Int64s:
        """Keys that had a row at some time since, and lost it; some may have one again."""
        return np.unique(np.concatenate(self._removed)) if self._removed else np.zeros(0, np.int64)

    def mask(self, count: int) -> npt.NDArray[np.bool_]:
        """`[count]`, which of the rows are changed or new."""
        return np.concatenate([self._changed, np.ones(count - self.known, np.bool_)])


def _mark_rows(rows: Any, changed: Any) -> None:
    for i in range(len(rows)):
        if rows[i] < len(changed):
            changed[rows[i]] = True


_mark = kernel(_mark_rows, "the table's changes")
