"""A copy of a table's content in memory: what a state dict, an optimizer's state and a pickle are made of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.kernels.step import TORCH_DTYPES
from sparsegroup.optim.table_parameter import KEYS
from sparsegroup.table.config import TableConfig
from sparsegroup.table.directory.admission import OccurrenceSketch
from sparsegroup.table.directory.directory import Counters, Directory
from sparsegroup.table.directory.eviction import LATEST
from sparsegroup.table.directory.seen import HyperLogLog
from sparsegroup.table.rows.rows import WEIGHT, Rows
from sparsegroup.tensors import shape_of

Array = npt.NDArray[Any]
Int64s = npt.NDArray[np.int64]


State = dict[str, Array]

DROPPED = "dropped"
"""Keys that had a row and lost it, int64 `[k]`; some may have one again."""


def _largest(arrays: Sequence[Array]) -> Array:
    largest: Array = np.max(arrays, axis=0)
    return largest


def _sum(arrays: Sequence[Array]) -> Array:
    return np.minimum(np.sum(arrays, axis=0, dtype=np.int64), np.iinfo(arrays[0].dtype).max).astype(arrays[0].dtype)


def _joined_counters(arrays: Sequence[Array]) -> Array:
    largest, sums = (Counters(*map(int, reduced)) for reduced in (_largest(arrays), np.sum(arrays, axis=0)))
    return np.array(astuple(replace(largest, evicted=sums.evicted, refused=sums.refused)), np.int64)


@dataclass(frozen=True)
class _Entry:
    """An array of a directory's state."""

    # makes those of several ranks one; each has seen keys that the others have not. None: it is of rows
    join: Callable[[Sequence[Array]], Array] | None
    is_bytes: bool = False  # whether it is uint8 `[·, ·]`, and not int64 `[·]`
    length: int | None = None  # that of a vector, if it is always the same


DIRECTORY_STATE: Mapping[str, _Entry] = {
    "candidates": _Entry(np.concatenate),
    "candidate_counts": _Entry(np.concatenate),
    "sketch": _Entry(_sum, is_bytes=True),
    "sketch_age": _Entry(_largest, length=2),
    "seen_registers": _Entry(_largest, is_bytes=True),
    "last_used": _Entry(None),
    "times_used": _Entry(None),
    "clock": _Entry(_largest, length=1),
    "counters": _Entry(_joined_counters, length=4),
}
"""See `Directory.state`."""

_TOGETHER = ({"sketch", "sketch_age"}, {"last_used", "times_used", "clock"}, {"candidates", "candidate_counts"})

OF_ROWS = frozenset(name for name, entry in DIRECTORY_STATE.items() if entry.join is None)
"""Entries that have a number for each row."""

ENTRIES = (KEYS, WEIGHT, DROPPED, *DIRECTORY_STATE)
"""What a state dict holds of a table."""


def check_state(state: Mapping[str, Array], config: TableConfig, num_rows: int) -> None:
    """Raise ValueError unless a table of that config and of this many rows can load it; the name comes first."""
    for name, array in state.items():
        entry = DIRECTORY_STATE[name]
        dtype, dims = ("uint8", 2) if entry.is_bytes else ("int64", 1)
        if array.dtype != dtype or array.ndim != dims:
            raise ValueError(
                f"{name}: {dtype} of {dims} dimension{'s' * (dims > 1)} is expected, got {array.dtype} "
                f"{list(array.shape)}"
            )
        is_number = not entry.is_bytes and name != "candidates"
        if is_number and len(array) and not 0 <= array.min() <= array.max() <= LATEST:
            raise ValueError(f"{name}: numbers from 0 to {LATEST:,} are expected, got {array.min()} to {array.max()}")
        if entry.length not in (None, len(array)):
            raise ValueError(f"{name}: {entry.length} number(s) are expected, got {len(array)}")
    for together in _TOGETHER:
        if missing := together - state.keys() if together & state.keys() else set():
            raise ValueError(f"{min(together & state.keys())}: {', '.join(sorted(missing))} are also needed")
    if config.unit is not None and any(len(state[name]) != num_rows for name in OF_ROWS & state.keys()):
        raise ValueError(f"{', '.join(sorted(OF_ROWS))}: int64 [{num_rows}] is expected, one for each row")
    _check_seen(state, config)


def _check_seen(state: Mapping[str, Array], config: TableConfig) -> None:
    """Raise ValueError unless these are counts of keys as a table of that config counts them."""
    if config.sketch_bytes is None:
        keys, counts = (state.get(name, np.zeros(0, np.int64)) for name in ("candidates", "candidate_counts"))
        if keys.shape != counts.shape or len(np.unique(keys)) != len(keys) or (counts < 1).any():
            raise ValueError("candidates, candidate_counts: distinct keys [c] and positive counts [c] are expected")
        return
    shape = OccurrenceSketch.shape(config.sketch_bytes)
    if "sketch" in state and config.sketch_bytes and state["sketch"].shape != shape:
        raise ValueError(
            f"sketch: uint8 {list(shape)} is expected, got {list(state['sketch'].shape)}; the sketch that counts "
            "occurrences must have the size it had"
        )
    registers, shape = state.get("seen_registers"), HyperLogLog.shape(config.field_bits)
    if registers is None:
        return
    if registers.shape != shape:
        raise ValueError(f"seen_registers: uint8 {list(shape)} is expected, got {list(registers.shape)}")
    if (highest := int(registers.max(initial=0))) > (most := 66 - shape[1].bit_length()):
        raise ValueError(f"seen_registers: numbers from 0 to {most} are expected, got {highest}")


def joined_state(states: Sequence[State]) -> State:
    """The state of several directories of different keys as one; only that of a single one has entries of rows."""
    if len(states) == 1:
        return states[0]
    joined = {}
    for name, entry in DIRECTORY_STATE.items():
        arrays = [state[name] for state in states if name in state]
        if arrays and entry.join is not None:
            joined[name] = entry.join(arrays)
    return joined


def share_of_state(state: State, mask_of: Callable[[Array], Array], *, has_first: bool) -> State:
    """What a rank takes over of the state of a part of which it has some keys, the ones that `mask_of` names.

    What is counted without keys is left to the rank that has the part's first bucket, so that the ranks together have
    counted it once.
    """
    share = dict(state)
    if "candidates" in share:
        mask = mask_of(share["candidates"])
        share |= {name: share[name][mask] for name in ("candidates", "candidate_counts") if name in share}
    if not has_first:
        share.pop("seen_registers", None)
        if "counters" in share:
            counters = Counters(*map(int, share["counters"]))
            share["counters"] = np.array(astuple(replace(counters, evicted=0, refused=0)), np.int64)
    return share


@dataclass(frozen=True)
class TableSnapshot:
    """Content of a table, or some of it."""

    keys: Int64s  # `[n]`, in the order of the rows
    parts: Mapping[str, npt.NDArray[Any]]  # some of "weight", "u" and the optimizer's state → `[n, dim]`
    dropped: Int64s  # `[k]`, keys that had a row and lost it; some may have one again
    # other state of the directory by name, see `Directory.state`; of rows, in the order of `keys`
    directory: Mapping[str, npt.NDArray[Any]]
    num_seen: int | None = None  # distinct keys ever seen; None: to be counted
    skipped_rows: int | None = None  # row updates left out; None: not known
    weight_dtype: torch.dtype | None = None  # in which weights are stored

    @classmethod
    def taken(
        cls, directory: Directory, memory: Rows, parts: Sequence[str] | None, skipped_rows: int
    ) -> "TableSnapshot":
        """A copy of what a table holds, with some parts of its rows, or all."""
        rows = np.arange(directory.num_rows)
        values = {part: memory.read(part, rows) for part in (memory.parts if parts is None else parts)}
        return cls(
            keys=directory.keys(),
            parts=values,
            dropped=directory.dropped.view(np.int64).copy(),
            directory=directory.state(),
            num_seen=directory.num_seen,
            skipped_rows=skipped_rows,
            weight_dtype=memory.part_dtype(WEIGHT),
        )

    def tensors(self) -> dict[str, Tensor]:
        """The entries of a module's state dict."""
        content = {**self.arrays(), DROPPED: self.dropped, **self.directory}
        tensors = {name: torch.from_numpy(array) for name, array in content.items()}
        if WEIGHT in tensors:
            tensors[WEIGHT] = tensors[WEIGHT].to(self.weight_dtype)
        return tensors

    @classmethod
    def of_tensors(cls, tensors: Mapping[str, Tensor], config: TableConfig) -> "TableSnapshot":
        """What `tensors` gave, of weights only; ValueError if one does not fit, whose name begins the message."""
        for name in (KEYS, DROPPED):
            if tensors[name].dtype != torch.int64 or tensors[name].ndim != 1:
                raise ValueError(f"{name}: int64 [n] is expected, got {shape_of(tensors[name])}")
        content = {name: np.ascontiguousarray(tensor.numpy()) for name, tensor in tensors.items() if name != WEIGHT}
        keys, weight = content.pop(KEYS), tensors[WEIGHT]
        if weight.shape != (len(keys), config.dim):
            raise ValueError(f"{WEIGHT}: [{len(keys)}, {config.dim}] is expected, got {shape_of(weight)}")
        if len(np.unique(keys)) != len(keys):
            raise ValueError("keys: a key appears twice")
        if len(keys) > config.max_rows:
            raise ValueError(f"keys: {len(keys):,} rows are more than max_rows={config.max_rows:,}")
        weight = weight.to(TORCH_DTYPES[config.dtype])
        if len(broken := keys[(~weight.isfinite().all(dim=1)).numpy()]):
            raise ValueError(
                f"{WEIGHT}: {len(broken):,} of {len(keys):,} vectors have NaN or infinite elements, that of key "
                f"{broken[0]} for one; load a state from before the training diverged"
            )
        dropped = content.pop(DROPPED)
        check_state(content, config, len(keys))
        return cls(keys, {WEIGHT: weight.numpy()}, dropped, content)

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The keys and the parts by name."""
        return {KEYS: self.keys, **self.parts}
