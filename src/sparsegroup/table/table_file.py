"""A table in files, written in pieces: all of its rows, or those that have changed since.

A file holds `keys` [n], `dropped` [k] (keys that had a row and lost it) and `rows` [n, parts, dim]: the vectors, u and
the optimizer's state, in the order of `parts`. What policies know of keys and rows lies behind them, by the names in
`directory_notes`. Reading it (`table_reading`) drops the rows of the one and sets those of the other, so that all rows
are nothing but the changes since the table was empty. Rows keep their order and with it their numbers. A table on
several ranks is one such file of each.
"""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Strict

from sparsegroup.artifact.file_facts import FileFacts
from sparsegroup.artifact.tensor_file import TensorWriter
from sparsegroup.artifact.validation import Count, Real
from sparsegroup.table.changes import Changes
from sparsegroup.table.row_storage import WEIGHT, Rows
from sparsegroup.table.table import Table
from sparsegroup.table.table_config import TableConfig

Int64s = npt.NDArray[np.int64]
Notes = dict[str, npt.NDArray[Any]]

_PIECE_BYTES = 8 << 20
"""Of rows, or of keys, that are in memory at a time beside the table; more where the table is large."""

_BYTES_TO_SORT = 40
"""Of a changed row, while the keys are brought into the order of the rows."""

_KEYS_PER_BUCKET = 4

_LARGEST = float(np.finfo(np.float32).max)

_SHARE = 0.05
"""Of the table's memory, that its keys may take for a moment: they lie in the order of their hashes."""


@dataclass(frozen=True)
class TableFacts:
    """What is written down of a table, beside its files.

    Attributes:
        dim, dtype, std, init, seed, field_bits: See `HashEmbedding`.
        parts: Each part of a row after its vector → value in a new row.
        rows: Rows.
        seen: Distinct keys ever seen in training.
        skipped_rows: See `HashEmbedding`.
        buckets: How many the index has: they say when it grows.
        written: Rows in this file.
        rank: Whose part of the table it is, where it lies on several; all of it is told of that part. None: the whole.
        state: In which u and the optimizer's state lie in memory; None for the dtype of the arithmetic. In the file all
            parts are of one dtype.
    """

    dim: Count
    dtype: str
    std: Real
    init: str
    seed: Annotated[int, Strict()]
    field_bits: Count
    parts: Mapping[str, Real]
    rows: Count
    seen: Count
    skipped_rows: Count
    buckets: Count
    written: Count
    rank: Count | None = None
    state: Literal["bfloat16"] | None = None

    @classmethod
    def of(cls, table: Table, written: int) -> "TableFacts":
        """Those of a table."""
        return cls(
            **_identity(table.config),
            parts=dict(table.rows.initial),
            rows=table.num_rows,
            seen=table.num_seen,
            skipped_rows=table.skipped_rows,
            buckets=table.directory.index.buckets,
            written=written,
            rank=None if table.ranks is None else table.ranks.rank,
            state="bfloat16" if table.rows.state_dtype == torch.bfloat16 else None,
        )

    @property
    def state_dtype(self) -> torch.dtype | None:
        """`state` as torch has it."""
        return None if self.state is None else torch.bfloat16

    def check(self) -> None:
        """Raise ValueError, whose message begins with the field, unless there can be a table of which this is said."""
        if self.rows > self.seen:
            raise ValueError(f"seen: {self.seen:,} keys cannot have {self.rows:,} rows")
        if not self.buckets or self.rows > _KEYS_PER_BUCKET * self.buckets:
            raise ValueError(f"buckets: {self.buckets:,} cannot hold {self.rows:,} keys")
        for name, value in self.parts.items():
            if name == WEIGHT or abs(value) > _LARGEST:
                raise ValueError(f"parts.{name}: cannot be a part of new rows, with the value {value:g}")

    @property
    def sensible_buckets(self) -> int:
        """So many that the index is not out of proportion, whatever is said: an index grows where it must."""
        return min(self.buckets, 2 * self.rows + (1 << 12))

    def mismatch(self, config: TableConfig) -> str | None:
        """What a table with these rows differs in from one of that config, or None."""
        theirs = _identity(config)
        differing = [
            f"{name} {value!r} (the model has {theirs[name]!r})"
            for name, value in asdict(self).items()
            if name in theirs and theirs[name] != value
        ]
        return ", ".join(differing) or None


def _identity(config: TableConfig) -> dict[str, Any]:
    names = ("dim", "std", "init", "seed", "field_bits")
    return {**{name: getattr(config, name) for name in names}, "dtype": config.dtype.name}


def write_table(table: Table, path: Path) -> tuple[FileFacts, TableFacts]:
    """Write all rows. Nothing may change the table meanwhile.

    Raises:
        OSError: The disk is full, say.
    """
    rows, directory, count = table.rows, table.directory, table.directory.num_rows
    notes = directory.notes()
    with _writer(rows, path, table.num_rows, directory.dropped, notes) as file:
        at_a_time = max(_PIECE_BYTES, int(_SHARE * table.memory().total)) // 8
        for first in range(0, count, at_a_time):
            file.write(directory.index.keys_of_rows(first, min(first + at_a_time, count)))
        file.write(directory.dropped)
        for block in rows.blocks(count):
            file.write(block)
        _write_notes(file, notes)
    return file.facts, TableFacts.of(table, table.num_rows)


def write_changes(table: Table, changes: Changes, path: Path) -> tuple[FileFacts, TableFacts]:
    """Write the rows that have changed and the keys that have been dropped. Nothing may change the table meanwhile.

    Raises:
        OSError: The disk is full, say.
    """
    mask, dropped = changes.mask(table.directory.num_rows), changes.removed
    count = int(np.count_nonzero(mask))
    spans = list(_spans(mask, max(_PIECE_BYTES, int(_SHARE * table.memory().total)) // _BYTES_TO_SORT))
    notes = table.directory.notes(np.flatnonzero(mask))
    with _writer(table.rows, path, count, dropped, notes) as file:
        for first, last in spans:
            file.write(_keys_within(table, mask, first, last))
        file.write(dropped)
        for first, last in spans:
            numbers = first + np.flatnonzero(mask[first:last])
            for piece in pieces(len(numbers), table.rows):
                file.write(table.rows.read_whole(numbers[piece]))
        _write_notes(file, notes)
    return file.facts, TableFacts.of(table, count)


def _keys_within(table: Table, mask: npt.NDArray[np.bool_], first: int, last: int) -> Int64s:
    """The keys of those rows first, …, last - 1 that are in the mask, in the order of the rows."""
    inside = np.zeros_like(mask)
    inside[first:last] = mask[first:last]
    keys, numbers = table.directory.index.entries_of(inside)
    return keys[np.argsort(numbers)]


def _spans(mask: npt.NDArray[np.bool_], at_most: int) -> Iterator[tuple[int, int]]:
    """Ranges that cover the mask, of `at_most` rows in it each, or of as few more as can be."""
    first = found = 0
    step = max(1, min(at_most, 1 << 16))
    for begin in range(0, len(mask), step):
        here = int(np.count_nonzero(mask[begin : begin + step]))
        if found and found + here > at_most:
            yield first, begin
            first, found = begin, 0
        found += here
    yield first, len(mask)


def _writer(rows: Rows, path: Path, count: int, dropped: npt.NDArray[Any], notes: Notes) -> TensorWriter:
    keys = np.dtype(np.int64)
    shapes = {
        "keys": (keys, (count,)),
        "dropped": (keys, (len(dropped),)),
        "rows": (rows.dtype, (count, len(rows.parts), rows.dim)),
        **{name: (array.dtype, array.shape) for name, array in notes.items()},
    }
    return TensorWriter(path, shapes, {"parts": ",".join(rows.parts)})


def _write_notes(file: TensorWriter, notes: Notes) -> None:
    for array in notes.values():
        file.write(array)


def pieces(count: int, rows: Rows) -> list[slice]:
    """So many rows, a few mebibytes at a time."""
    at_a_time = max(1, _PIECE_BYTES // rows.row_bytes)
    return [slice(first, min(first + at_a_time, count)) for first in range(0, count, at_a_time)]
