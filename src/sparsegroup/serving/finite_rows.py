"""Whether the rows of a trained model are finite: training that has diverged may have left others."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from sparsegroup.table.rows.rows import WEIGHT
from sparsegroup.training import RunError

Int64s = npt.NDArray[np.int64]

_BATCH = 1 << 16


class RowSource(Protocol):
    """What rows can be read of: a table, or an export's."""

    @property
    def state_names(self) -> tuple[str, ...]:
        """The parts of a row beside its weights."""

    def scan_rows(self, parts: Sequence[str], batch_size: int) -> Iterator[tuple[Int64s, list[npt.NDArray[Any]]]]:
        """Keys `[n]` of all rows and some of their parts, `[n, dim]` each, at most `batch_size` at a time."""


def check_rows(path: Path, tables: Mapping[str, RowSource], *, state: bool = False) -> None:
    """Whether the vectors of all rows are finite.

    Args:
        path: Where the model lies.
        tables: Its tables by name.
        state: Whether the optimizer's state in the rows has to be, too.

    Raises:
        RunError: Some are not; it says how many, of which table.
    """
    for name, table in tables.items():
        parts = [WEIGHT, *(table.state_names if state else ())]
        rows = wrong = 0
        for keys, arrays in table.scan_rows(parts, _BATCH):
            rows += len(keys)
            finite = np.logical_and.reduce([np.isfinite(array).all(axis=1) for array in arrays])
            wrong += len(keys) - int(finite.sum())
        if wrong:
            raise RunError(
                f"{path}: {wrong:,} of {rows:,} rows of the table {name!r} are not finite: training has diverged; take "
                "an earlier checkpoint"
            )
