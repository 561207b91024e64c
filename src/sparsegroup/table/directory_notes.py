"""What a directory knows beside keys and rows, as state dicts and files hold it, and whether a table can know it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.optim.stored import KEYS
from sparsegroup.table.row_storage import WEIGHT
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

DROPPED = "dropped"
"""Keys that had a row and lost it, int64 `[k]`; some may have one again."""

ENTRIES = (KEYS, WEIGHT, DROPPED, *NOTES)
"""What a state dict holds of a table."""

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
    if config.unit is not None and any(len(notes[name]) != num_rows for name in OF_ROWS & notes.keys()):
        raise ValueError(f"{', '.join(sorted(OF_ROWS))}: int64 [{num_rows}] is expected, one for each row")
    new_directory(config).set_notes(notes)


def joined_notes(notes: Sequence[Mapping[str, npt.NDArray[Any]]]) -> Mapping[str, npt.NDArray[Any]]:
    """What several directories of different keys know, as one: without what is known of rows, if there are several."""
    if len(notes) == 1:
        return notes[0]
    joined: dict[str, npt.NDArray[Any]] = {}
    for name in NOTES:
        arrays = [one[name] for one in notes if name in one]
        if arrays and name not in OF_ROWS:
            joined[name] = _JOINS[name](arrays)
    return joined


def left_to_another(notes: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """What a rank takes over of a part some of whose rows it has, when another rank has the part's first bucket.

    What is counted without keys is left to that one, so that the ranks together have counted it once.
    """
    kept = {name: array for name, array in notes.items() if name != "seen_registers"}
    if "turnover" in kept:
        steps, _, _, asked, lookups = kept["turnover"].tolist()
        kept["turnover"] = np.array([steps, 0, 0, asked, lookups], np.int64)
    return kept


def _largest(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    largest: npt.NDArray[Any] = np.max(arrays, axis=0)
    return largest


def _sum(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.minimum(np.sum(arrays, axis=0, dtype=np.int64), np.iinfo(arrays[0].dtype).max).astype(arrays[0].dtype)


def _turnover(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    largest, sums = _largest(arrays), np.sum(arrays, axis=0)
    return np.array([largest[0], sums[1], sums[2], largest[3], largest[4]], np.int64)


_JOINS: Mapping[str, Callable[[Sequence[npt.NDArray[Any]]], npt.NDArray[Any]]] = {
    "waiting": np.concatenate,
    "sights": np.concatenate,
    "sketch": _sum,
    "sketch_age": _largest,
    "seen_registers": _largest,
    "clock": _largest,
    "turnover": _turnover,
}
"""How several are made one: each has seen keys that the others have not."""
