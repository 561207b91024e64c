"""What a directory knows beside keys and rows, as state dicts and files hold it, and whether a table can know it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.table.row_uses import LATEST
from sparsegroup.table.storage_kinds import new_directory
from sparsegroup.table.table_config import TableConfig

_COUNTS, _REGISTERS = (np.dtype(np.int64), 1), (np.dtype(np.uint8), 2)

NOTES: Mapping[str, tuple[np.dtype[Any], int]] = {
    "waiting": _COUNTS,
    "sights": _COUNTS,
    "sketch": _REGISTERS,
    "sketch_age": _COUNTS,
    "seen_registers": _REGISTERS,
    "last_used": _COUNTS,
    "times_used": _COUNTS,
    "clock": _COUNTS,
    "turnover": _COUNTS,
}
"""Names, dtypes and numbers of dimensions; see `Directory.notes`."""

_LENGTHS = {"sketch_age": 1, "clock": 1, "turnover": 5}

OF_ROWS = frozenset({"last_used", "times_used"})
"""Those that have a number for each row."""


def check_notes(notes: Mapping[str, npt.NDArray[Any]], config: TableConfig, num_rows: int) -> None:
    """Raise ValueError unless a table of that config and of so many rows can know this; the name comes first."""
    for name, array in notes.items():
        dtype, dims = NOTES[name]
        if array.dtype != dtype or array.ndim != dims:
            raise ValueError(
                f"{name}: {dtype} of {dims} dimension{'s' * (dims > 1)} is expected, got {array.dtype} "
                f"{list(array.shape)}"
            )
        if dtype == np.int64 and name != "waiting" and len(array) and not 0 <= array.min() <= array.max() <= LATEST:
            raise ValueError(f"{name}: numbers from 0 to {LATEST:,} are expected, got {array.min()} to {array.max()}")
        if name in _LENGTHS and len(array) != _LENGTHS[name]:
            raise ValueError(f"{name}: {_LENGTHS[name]} number(s) are expected, got {len(array)}")
    for together in ({"sketch", "sketch_age"}, {"last_used", "times_used", "clock"}, {"waiting", "sights"}):
        if missing := together - notes.keys() if together & notes.keys() else set():
            raise ValueError(
                f"{min(together & notes.keys())}: {', '.join(sorted(missing))} would have to be there, too"
            )
    trial = new_directory(config)
    trial.came(num_rows)
    trial.set_notes(notes)
    trial.set_uses(notes, np.arange(num_rows))
