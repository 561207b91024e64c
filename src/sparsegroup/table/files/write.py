"""A table's file, written in pieces: all of its rows, or the rows that have changed since.

A file holds `keys` [n], `dropped` [k] (keys that had a row and lost it) and `rows` [n, parts, dim]: the vectors, u and
the optimizer's state, in the order of `parts`. The state of the directory follows, by the names in `DIRECTORY_STATE`.
Reading it (`files/read`) drops the rows of `dropped` and sets the rows of `keys`, so that a file of all rows is one of
changes to an empty table. Rows keep their order and with it their numbers. Each rank of a sharded table writes one.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Strict

from sparsegroup.artifact.manifest import FileFacts
from sparsegroup.artifact.tensor_file import TensorWriter
from sparsegroup.artifact.validation import Count, Real
from sparsegroup.table.config import TableConfig
from sparsegroup.table.rows.rows import WEIGHT, Rows, pieces_of
from sparsegroup.table.rows.step import Changes
from sparsegroup.table.table import Table

Int64s = npt.NDArray[np.int64]


_PIECE_BYTES = 8 << 20
"""Bytes of rows, or of keys, in memory at a time besides the table; more if the table is large."""

_LARGEST = float(np.finfo(np.float32).max)

_SHARE = 0.05
"""The share of the table's memory that its keys may take for a moment: they are stored in the order of their hashes."""


@dataclass(frozen=True)
class TableFacts:
    """A table in a checkpoint's manifest."""

    # dim, dtype, std, init, seed, field_bits: see `HashEmbedding`
    dim: Count
    dtype: str
    std: Real
    init: str
    seed: Annotated[int, Strict()]
    field_bits: Count
    parts: Mapping[str, Real]  # each part of a row after its vector → value in a new row
    # rows, seen, skipped_rows: rows, distinct keys ever seen in training, and row updates left out
    rows: Count
    seen: Count
    skipped_rows: Count
    written: Count  # rows in this file
    # the rank whose part of a sharded table this is, all of the facts with it; None: the whole
    rank: Count | None = None
    # the dtype of u and the optimizer's state in memory; None for that of the arithmetic, which all parts have in the
    # file
    state: Literal["bfloat16"] | None = None

    @classmethod
    def of(cls, table: Table, written: int) -> "TableFacts":
        """The facts of a table, of which this many rows are written."""
        return cls(
            **_identity(table.config),
            parts=dict(table.rows.initial),
            rows=table.num_rows,
            seen=table.num_seen,
            skipped_rows=table.skipped_rows,
            written=written,
            rank=None if table.ranks is None else table.ranks.rank,
            state="bfloat16" if table.rows.state_dtype == torch.bfloat16 else None,
        )

    @property
    def state_dtype(self) -> torch.dtype | None:
        """`state` as torch has it."""
        return None if self.state is None else torch.bfloat16

    def check(self) -> None:
        """Raise ValueError, whose message begins with the field, unless there can be such a table."""
        if self.rows > self.seen:
            raise ValueError(f"seen: {self.seen:,} keys cannot have {self.rows:,} rows")
        for name, value in self.parts.items():
            if name == WEIGHT or abs(value) > _LARGEST:
                raise ValueError(f"parts.{name}: cannot be a part of new rows, with the value {value:g}")

    def mismatch(self, config: TableConfig) -> str | None:
        """The settings in which a table of that config differs, in words, or None."""
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


def write_table(table: Table, path: Path, changes: Changes | None = None) -> tuple[FileFacts, TableFacts]:
    """Write all rows, or only `changes`: rows that have changed and keys that were dropped.

    Nothing may change the table until it has returned.
    """
    rows, directory = table.rows, table.directory
    at_once = max(_PIECE_BYTES, int(_SHARE * table.memory().total))
    spans = list(pieces_of(directory.num_rows, 8, 0, at_once))
    keys: Iterable[Int64s] = (directory.index.keys_of_rows(span.start, span.stop) for span in spans)
    if changes is None:
        count, dropped, state = directory.num_rows, directory.dropped.view(np.int64), directory.state()
        blocks = rows.blocks(count)
    else:
        mask, dropped = changes.mask(directory.num_rows), changes.removed
        count, state = int(np.count_nonzero(mask)), directory.state(np.flatnonzero(mask))
        keys = (some[mask[span]] for some, span in zip(keys, spans, strict=True))
        blocks = _blocks_within(rows, mask, spans)
    key = np.dtype(np.int64)
    shapes = {
        "keys": (key, (count,)),
        "dropped": (key, (len(dropped),)),
        "rows": (rows.dtype, (count, len(rows.parts), rows.dim)),
        **{name: (array.dtype, array.shape) for name, array in state.items()},
    }
    with TensorWriter(path, shapes, {"parts": ",".join(rows.parts)}) as file:
        for content in chain(keys, [dropped], blocks, state.values()):
            file.write(content)
    return file.facts, TableFacts.of(table, count)


def _blocks_within(rows: Rows, mask: npt.NDArray[np.bool_], spans: Iterable[slice]) -> Iterator[Any]:
    """The rows of the mask, `[rows, parts · dim]` at a time."""
    for span in spans:
        numbers = span.start + np.flatnonzero(mask[span])
        for piece in pieces(len(numbers), rows):
            yield rows.read_whole(numbers[piece])


def pieces(count: int, rows: Rows) -> Iterator[slice]:
    """Slices of `count` rows, a few mebibytes at a time."""
    return pieces_of(count, rows.row_bytes, 0, _PIECE_BYTES)
