"""Whether the rows of a trained model are finite: training that has diverged may have left others."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sparsegroup.serving.inspection.row_scan import RowSource
from sparsegroup.table.row_storage import WEIGHT
from sparsegroup.training import RunError

_BATCH = 1 << 16


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
