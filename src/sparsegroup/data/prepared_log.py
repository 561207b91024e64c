"""A log that `prepare` has written, and `log.json`, which says what it holds."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import torch
from pyarrow import parquet
from torch import Tensor

from sparsegroup.artifact.manifest import FileName, FolderFormat, Manifest, check_size
from sparsegroup.artifact.validation import Count, Flag
from sparsegroup.data.batches import LABEL, TIME, WEIGHT, Bags, Batch, read_ahead, rebatched
from sparsegroup.data.keys import Int64s
from sparsegroup.data.local_files import parquet_file, parquet_metadata, scan_parquet
from sparsegroup.data.log import Log
from sparsegroup.data.raw.files import identity_of
from sparsegroup.data.schema import LogSchema
from sparsegroup.errors import ClickLogError

MANIFEST = "log.json"


@dataclass(frozen=True, kw_only=True)
class LogManifest(Manifest):
    """What a prepared folder holds.

    Attributes:
        dataset: Name of the format.
        fields: Categorical fields, in the order of their numbers in the keys.
        numbers: Numeric columns.
        lists: Fields of several values.
        rows: Number of rows.
        train_rows: Number of training rows, which come first; the others are the test set.
        positives: Number of rows with label 1.
        parts: Name of each file of rows, in order → its rows.
        features: Field → distinct values, in all rows and in the training rows.
        hash: Name of the hash that keys are made with.
        source: What it was made of and how; a folder made of something else cannot be completed.
        bad_rows: Reason → rows left out.
        weighted: Whether the rows have weights.
        timed: Whether the rows have times.
        binary: Whether all labels are 0 or 1; else they are any numbers.
        classes, tasks: See `Log`.
        columns: Raw column → what it was taken for, see `Log.columns`.
    """

    dataset: str
    fields: tuple[str, ...]
    numbers: tuple[str, ...]
    lists: tuple[str, ...]
    rows: Count
    train_rows: Count
    positives: Count
    parts: Mapping[FileName, Count]
    features: Mapping[str, tuple[Count, Count]]
    hash: str
    source: Mapping[str, Any]
    bad_rows: Mapping[str, Count] = field(default_factory=dict)
    weighted: Flag = False
    timed: Flag = False
    binary: Flag = True
    classes: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)

    def check(self) -> None:
        """See `Manifest.check`."""
        LogSchema(self.fields, self.lists, self.numbers, self.hash).check()
        if self.features.keys() != set(self.fields):
            raise ValueError("features: are not those of the fields")
        for name, (in_all, in_training) in self.features.items():
            if in_training > in_all:
                raise ValueError(f"features.{name}: {in_training:,} of {in_all:,}")
        for name in ("train_rows", "positives"):
            if getattr(self, name) > self.rows:
                raise ValueError(f"{name}: {getattr(self, name):,} of {self.rows:,} rows")
        if sum(self.parts.values()) != self.rows:
            raise ValueError(f"parts: have {sum(self.parts.values()):,} rows, and not {self.rows:,}")
        if missing := self.parts.keys() - self.files.keys():
            raise ValueError(f"parts.{min(missing)}: is not among the files")
        files = self.source.get("files", [])
        if not isinstance(files, list) or not all(isinstance(one, list) and len(one) >= 2 for one in files):
            raise ValueError("source.files: names and sizes are expected")


PREPARED_LOG = FolderFormat(
    name="prepared log",
    file=MANIFEST,
    version=1,
    manifest=LogManifest,
    error=ClickLogError,
    missing="no such log",
)
"""The format of prepared logs."""

VOCABULARY = "vocabulary.parquet"

PART_META = b"sparsegroup"
"""Key of a part's Parquet metadata: the log that it is of, and how far that had been read."""


class PreparedLog(Log):
    """A folder that `sparsegroup prepare` has written.

    Args:
        folder: The folder.

    Raises:
        ClickLogError: It holds no complete prepared log, or one of a newer version, or a part of another size.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not PREPARED_LOG.is_in(self.folder) and is_prepared_folder(self.folder):
            what = f"an unfinished prepared log; run the same `prepare` again ({PREPARED_LOG.file} is missing)"
            raise ClickLogError(f"{self.folder}: {what}", "prepare")
        manifest = self.manifest = PREPARED_LOG.read(self.folder)
        for name in manifest.parts.keys() & manifest.files.keys():
            check_size(self.folder / name, manifest.files[name], ClickLogError)
        self.name, self.train_rows = str(self.folder), manifest.train_rows
        self.fields, self.lists, self.numbers = manifest.fields, manifest.lists, manifest.numbers
        self.hash, self.weighted, self.timed = manifest.hash, manifest.weighted, manifest.timed
        self.binary, self.classes, self.tasks = manifest.binary, manifest.classes, manifest.tasks
        self.bad_rows, self.columns = manifest.bad_rows, manifest.columns
        self.identity = identity_of(manifest.source)
        self._encoded = self.schema.encoded(weighted=self.weighted, binary=manifest.binary, tasks=len(manifest.tasks))
        vocabulary = self.folder / VOCABULARY
        self.vocabulary = vocabulary if vocabulary.exists() else None

    def __len__(self) -> int:
        return self.manifest.rows

    @property
    def features(self) -> int:
        """Number of distinct features in the training rows."""
        return sum(training for _, training in self.manifest.features.values())

    def verify(self) -> None:
        """Compare all files with the digests that were written: reads them once; ClickLogError names a damaged one."""
        self.manifest.check_files(self.folder, ClickLogError)

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """See `Log.batches`; a thread reads ahead. ClickLogError: a file is missing or damaged."""
        yield from rebatched(read_ahead(self._row_groups(max(start, 0), min(stop, len(self)))), size)

    def chunk_starts(self) -> Int64s:
        """See `Log.chunk_starts`: the row groups; raises as `batches`."""
        starts, position = list[int](), 0
        for name, count in self.manifest.parts.items():
            with self._part(name, count) as file:
                groups = [file.metadata.row_group(group).num_rows for group in range(file.num_row_groups)]
            starts += accumulate(groups[:-1], initial=position)
            position += count
        return np.array(starts, np.int64)

    @contextmanager
    def _part(self, name: str, rows: int) -> Iterator[parquet.ParquetFile]:
        """A part, open; ClickLogError unless it has the rows and columns that the manifest says."""
        path = self.folder / name
        try:
            with parquet_file(path) as file:
                if file.metadata.num_rows != rows:
                    raise ClickLogError(f"{path}: damaged ({file.metadata.num_rows:,} rows, {MANIFEST} says {rows:,})")
                schema = file.schema_arrow
                for column in self._encoded:
                    if schema.names.count(column.name) != 1 or schema.field(column.name).type != column.type:
                        what = f"{MANIFEST} names a column {column.name!r} of {column.type}, not there"
                        raise ClickLogError(f"{path}: damaged ({what})")
                yield file
        except (OSError, pa.ArrowException, UnicodeDecodeError, MemoryError) as error:
            raise ClickLogError(f"{path}: missing or damaged ({error})") from error

    def _row_groups(self, start: int, stop: int) -> Iterator[Batch]:
        """Rows within the log, a row group at a time."""
        position = 0
        for name, count in self.manifest.parts.items():
            if not (position < stop and start < position + count):
                position += count
                continue
            with self._part(name, count) as file:
                for group in range(file.num_row_groups):
                    rows = file.metadata.row_group(group).num_rows
                    first, end = max(start - position, 0), min(stop - position, rows)
                    if first < end:
                        table = self._checked(file.read_row_group(group, use_threads=False), self.folder / name)
                        yield self._batch(table.slice(first, end - first))
                    position += rows

    def _checked(self, table: pa.Table, path: Path) -> pa.Table:
        """The columns that a batch is made of, without missing values."""
        table = table.select(self._encoded.names)
        table.validate(full=True)
        if gone := [name for name in table.schema.names if table.column(name).null_count]:
            raise ClickLogError(f"{path}: damaged (column {gone[0]!r} lacks values)")
        return table

    def _labels(self, table: pa.Table) -> Tensor:
        values = table.column(LABEL).combine_chunks()
        if self.tasks:
            return torch.from_numpy(np.from_dlpack(values.flatten()).reshape(len(table), len(self.tasks)).copy())
        return torch.from_numpy(np.from_dlpack(values).astype(np.float32))

    def _batch(self, table: pa.Table) -> Batch:
        # Without Polars, whose threads are not there in a process that was forked, such as a DataLoader's worker.
        def column(name: str) -> npt.NDArray[Any]:
            return np.from_dlpack(table.column(name).combine_chunks())

        def matrix(names: Sequence[str], dtype: Any) -> Tensor:
            values = np.empty((len(table), len(names)), dtype)
            for place, name in enumerate(names):
                values[:, place] = column(name)
            return torch.from_numpy(values)

        return Batch(
            matrix([name for name in self.fields if name not in self.lists], np.int64),
            matrix(self.numbers, np.float32),
            self._labels(table),
            torch.from_numpy(column(TIME).copy()),
            weights=torch.from_numpy(column(WEIGHT).copy()) if self.weighted else None,
            bags=tuple(_bags(table.column(name).combine_chunks()) for name in self.lists),
        )


def _bags(column: pa.ListArray) -> Bags:
    offsets = np.from_dlpack(column.offsets).astype(np.int64)
    keys = np.from_dlpack(column.values)[offsets[0] : offsets[-1]]  # a slice of an array keeps all its values
    return Bags(torch.from_numpy(keys.copy()), torch.from_numpy(offsets - offsets[0]))


def is_prepared_folder(folder: Path) -> bool:
    """Whether a folder holds a prepared log, or what `prepare` has written of one."""
    if PREPARED_LOG.is_in(folder):
        return True
    try:
        first = next(folder.glob("part-*.parquet"), None)
        return first is not None and PART_META in (parquet_metadata(first).metadata or {})
    except (OSError, pa.ArrowException):
        return False


def count_features(folder: Path, files: Mapping[str, int], fields: tuple[str, ...], rows: int) -> dict[str, int]:
    """Distinct keys of each field in the first `rows` rows, one field in memory at a time."""
    log = scan_parquet(folder / name for name in files).head(rows)
    counts = {}
    for name in fields:
        column = pl.col(name)
        if log.collect_schema()[name] == pl.List:
            column = column.explode()
        counts[name] = int(log.select(column.drop_nulls().n_unique()).collect(engine="streaming").item())
    return counts
