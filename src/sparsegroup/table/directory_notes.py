"""What a directory knows beside keys and rows, as state dicts and files hold it, and whether a table can know it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.optim.stored import KEYS
from sparsegroup.table.directory import Counters
from sparsegroup.table.distinct_count import HyperLogLog
from sparsegroup.table.row_storage import WEIGHT
from sparsegroup.table.row_uses import LATEST
from sparsegroup.table.sighting_sketch import OccurrenceSketch
from sparsegroup.table.table_config import TableConfig

_COUNTS, _REGISTERS = (np.dtype(np.int64), 1), (np.dtype(np.uint8), 2)

NOTES: Mapping[str, tuple[np.dtype[Any], int]] = {
    "candidates": _COUNTS,
    "candidate_counts": _COUNTS,
    "sketch": _REGISTERS,
    "sketch_age": _COUNTS,
    "seen_registers": _REGISTERS,
    "last_used": _COUNTS,
    "times_used": _COUNTS,
    "clock": _COUNTS,
    "counters": _COUNTS,
}
"""Names, dtypes and numbers of dimensions; see `Directory.notes`."""

DROPPED = "dropped"
"""Keys that had a row and lost it, int64 `[k]`; some may have one again."""

ENTRIES = (KEYS, WEIGHT, DROPPED, *NOTES)
"""What a state dict holds of a table."""

_LENGTHS = {"sketch_age": 2, "clock": 1, "counters": 4}

_TOGETHER = ({"sketch", "sketch_age"}, {"last_used", "times_used", "clock"}, {"candidates", "candidate_counts"})

OF_ROWS = frozenset({"last_used", "times_used"})
"""Those that have a number for each row."""


def check_notes(notes: Mapping[str, npt.NDArray[Any]], config: TableConfig, num_rows: int) -> None:
    """Raise ValueError unless a table of that config and of so many rows can load these; the name comes first."""
    for name, array in notes.items():
        dtype, dims = NOTES[name]
        if array.dtype != dtype or array.ndim != dims:
            raise ValueError(
                f"{name}: {dtype} of {dims} dimension{'s' * (dims > 1)} is expected, got {array.dtype} "
                f"{list(array.shape)}"
            )
        if dtype == np.int64 and name != "candidates" and len(array) and not 0 <= array.min() <= array.max() <= LATEST:
            raise ValueError(f"{name}: numbers from 0 to {LATEST:,} are expected, got {array.min()} to {array.max()}")
        if name in _LENGTHS and len(array) != _LENGTHS[name]:
            raise ValueError(f"{name}: {_LENGTHS[name]} number(s) are expected, got {len(array)}")
    for together in _TOGETHER:
        if missing := together - notes.keys() if together & notes.keys() else set():
            raise ValueError(
                f"{min(together & notes.keys())}: {', '.join(sorted(missing))} would have to be there, too"
            )
    if config.unit is not None and any(len(notes[name]) != num_rows for name in OF_ROWS & notes.keys()):
        raise ValueError(f"{', '.join(sorted(OF_ROWS))}: int64 [{num_rows}] is expected, one for each row")
    _check_seen(notes, config)


def _check_seen(notes: Mapping[str, npt.NDArray[Any]], config: TableConfig) -> None:
    """Raise ValueError unless these are counts of keys as a table of that config counts them."""
    if config.sketch_bytes is None:
        keys, counts = (notes.get(name, np.zeros(0, np.int64)) for name in ("candidates", "candidate_counts"))
        if keys.shape != counts.shape or len(np.unique(keys)) != len(keys) or (counts < 1).any():
            raise ValueError("candidates, candidate_counts: distinct keys [c] and positive counts [c] are expected")
        return
    shape = OccurrenceSketch.shape(config.sketch_bytes)
    if "sketch" in notes and config.sketch_bytes and notes["sketch"].shape != shape:
        raise ValueError(
            f"sketch: uint8 {list(shape)} is expected, got {list(notes['sketch'].shape)}; the sketch that counts "
            "occurrences must have the size it had"
        )
    registers, shape = notes.get("seen_registers"), HyperLogLog.shape(config.field_bits)
    if registers is None:
        return
    if registers.shape != shape:
        raise ValueError(f"seen_registers: uint8 {list(shape)} is expected, got {list(registers.shape)}")
    if (highest := int(registers.max(initial=0))) > (most := HyperLogLog.highest(config.field_bits)):
        raise ValueError(f"seen_registers: numbers from 0 to {most} are expected, got {highest}")


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
    if "counters" in kept:
        counters = Counters(*map(int, kept["counters"]))
        kept["counters"] = np.array(astuple(replace(counters, evicted=0, refused=0)), np.int64)
    return kept


def _largest(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    largest: npt.NDArray[Any] = np.max(arrays, axis=0)
    return largest


def _sum(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    return np.minimum(np.sum(arrays, axis=0, dtype=np.int64), np.iinfo(arrays[0].dtype).max).astype(arrays[0].dtype)


def _joined_counters(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
    largest, sums = (Counters(*map(int, reduced)) for reduced in (_largest(arrays), np.sum(arrays, axis=0)))
    return np.array(astuple(replace(largest, evicted=sums.evicted, refused=sums.refused)), np.int64)


_JOINS: Mapping[str, Callable[[Sequence[npt.NDArray[Any]]], npt.NDArray[Any]]] = {
    "candidates": np.concatenate,
    "candidate_counts": np.concatenate,
    "sketch": _sum,
    "sketch_age": _largest,
    "seen_registers": _largest,
    "clock": _largest,
    "counters": _joined_counters,
}
"""How several are made one: each has seen keys that the others have not."""
