"""What a directory knows beside keys and rows, as state dicts and files hold it, and whether a table can know it."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

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
        if dtype == np.int64 and name != "waiting" and len(array) and array.min() < 0:
            raise ValueError(f"{name}: a number is negative, {array.min()}")
    for name, others in (("sketch", ["sketch_age"]), ("last_used", ["times_used", "clock"])):
        if name in notes and (missing := [other for other in others if other not in notes]):
            raise ValueError(f"{name}: {' and '.join(missing)} would have to be there, too")
    if "turnover" in notes and len(notes["turnover"]) != 3:
        raise ValueError(f"turnover: 3 numbers are expected, got {len(notes['turnover'])}")
    trial = new_directory(config)
    trial.came(num_rows)
    trial.set_notes(notes)
    trial.set_uses(notes, np.arange(num_rows))
