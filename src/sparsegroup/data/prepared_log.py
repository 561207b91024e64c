"""A log that `prepare` has written, and `log.json`, which says what it holds."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import torch
import xxhash
from pyarrow import parquet
from torch import Tensor

from sparsegroup.artifact.manifest import FileName, FolderFormat, Manifest, check_size
from sparsegroup.artifact.validation import Count, Flag
from sparsegroup.data.batches import LABEL, TIME, WEIGHT, Bags, Batch, read_ahead, rebatched
from sparsegroup.data.keys import Int64s
from sparsegroup.data.local_files import open_local, parquet_metadata, scan_parquet
from sparsegroup.data.log import Log
from sparsegroup.data.raw.files import identity_of
from sparsegroup.data.schema import LogSchema
from sparsegroup.errors import ClickLogError

MANIFEST = "log.json"


@dataclass(frozen=True)
class FileSpan:
    """Consecutive bytes of a file, up to byte `end`, and their XXH3_64 as 16 hexadecimal digits."""

    end: Count
    xxh3_64: str


@dataclass(frozen=True, kw_only=True)
class PartsManifest(Manifest):
    """Parts of a prepared log.

    Attributes:
        parts: Name of each file of rows, in order → its rows.
        spans: Name of each file of rows → the digests of its row groups and footer, which every read compares.
        source: Source and options of the log. `prepare` resumes only with the same source and options.
    """

    parts: Mapping[FileName, Count]
    spans: Mapping[FileName, tuple[FileSpan, ...]]
    source: Mapping[str, Any]

    def check(self) -> None:
        """See `Manifest.check`."""
        if missing := self.parts.keys() - self.files.keys():
            raise ValueError(f"parts.{min(missing)}: is not among the files")
        if self.spans.keys() != self.parts.keys():
            raise ValueError("spans: do not match the parts")
        for name, spans in self.spans.items():
            ends = [0, *(span.end for span in spans)]
            if sorted(set(ends)) != ends or ends[-1] != self.files[name].bytes:
                raise ValueError(f"spans.{name}: do not cover its {self.files[name].bytes:,} bytes")
        files = self.source.get("files", [])
        if not isinstance(files, list) or not all(isinstance(one, list) and len(one) >= 2 for one in files):
            raise ValueError("source.files: names and sizes are expected")


@dataclass(frozen=True, kw_only=True)
class UnfinishedManifest(PartsManifest):
    """Parts that an unfinished `prepare` has written.

    Attributes:
        state: Progress of reading at the end of the last part.
    """

    state: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class LogManifest(PartsManifest):
    """What a prepared folder holds.

    Attributes:
        dataset: Name of the format.
        fields: Categorical fields, in the order of their numbers in the keys.
        numbers: Numeric columns.
        lists: Fields of several values.
        rows: Number of rows.
        train_rows: Number of training rows, which come first; the others are the test set.
        positives: Number of rows with label 1.
        features: Field → distinct values, in all rows and in the training rows; the values of fields that share its
            vocabulary included.
        hash: Name of the hash that keys are made with.
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
    features: Mapping[str, tuple[Count, Count]]
    hash: str
    bad_rows: Mapping[str, Count] = field(default_factory=dict)
    weighted: Flag = False
    timed: Flag = False
    binary: Flag = True
    classes: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)

    @property
    def schema(self) -> LogSchema:
        """Return the columns that a model reads."""
        return LogSchema.of(self.fields, self.lists, self.numbers, self.columns, self.hash)

    @property
    def vocabularies(self) -> Mapping[str, tuple[int, int]]:
        """Return `features` of the fields that share no vocabulary of another field: each feature counts once."""
        return {name: counts for name, counts in self.features.items() if name not in self.schema.shares}

    def check(self) -> None:
        """See `Manifest.check`."""
        super().check()
        try:
            self.schema.check()
        except ClickLogError as error:
            raise ValueError(f"columns: {error}") from error
        if self.features.keys() != set(self.fields):
            raise ValueError("features: do not match the fields")
        for name, (in_all, in_training) in self.features.items():
            if in_training > in_all:
                raise ValueError(f"features.{name}: {in_training:,} of {in_all:,}")
        for name in ("train_rows", "positives"):
            if getattr(self, name) > self.rows:
                raise ValueError(f"{name}: {getattr(self, name):,} of {self.rows:,} rows")
        if sum(self.parts.values()) != self.rows:
            raise ValueError(f"parts: have {sum(self.parts.values()):,} rows, and not {self.rows:,}")


PREPARED_LOG = FolderFormat(
    name="prepared log",
    file=MANIFEST,
    version=1,
    manifest=LogManifest,
    error=ClickLogError,
    missing="no such log",
)
"""The format of prepared logs."""

UNFINISHED = FolderFormat(
    name="unfinished prepared log",
    file="unfinished.json",
    version=1,
    manifest=UnfinishedManifest,
    error=ClickLogError,
    missing="no unfinished log",
)
"""The format of folders that `prepare` has not completed."""

VOCABULARY = "vocabulary.parquet"

PART_METADATA = {b"sparsegroup": b"part of a prepared log"}
"""Parquet metadata of a part, which distinguishes it from a file of a raw log if the manifest is lost."""


class PreparedLog(Log):
    """A folder that `sparsegroup prepare` has written.

    Args:
        folder: The folder.

    Raises:
        ClickLogError: It holds no complete prepared log, or one of a newer version, or a part of another size.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        if not PREPARED_LOG.is_in(self.folder) and UNFINISHED.is_in(self.folder):
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
        self.vocabulary_facts = manifest.files.get(VOCABULARY)
        vocabulary = self.folder / VOCABULARY
        self.vocabulary = vocabulary if self.vocabulary_facts is not None and vocabulary.exists() else None

    def __len__(self) -> int:
        return self.manifest.rows

    @property
    def features(self) -> int:
        """Number of distinct features in the training rows."""
        return sum(training for _, training in self.manifest.vocabularies.values())

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
            with self._part(name) as part:
                starts += accumulate(part.groups[:-1], initial=position)
            position += count
        return np.array(starts, np.int64)

    @contextmanager
    def _part(self, name: str) -> Iterator["_Part"]:
        """Open a part. ClickLogError: the file has changed since it was written."""
        path, manifest = self.folder / name, self.manifest
        try:
            with open_local(path) as stream:
                yield _Part(stream, manifest.spans[name], manifest.parts[name], self._encoded)
        except (OSError, pa.ArrowException, UnicodeDecodeError, MemoryError) as error:
            raise ClickLogError(f"{path}: missing or damaged ({error})") from error
        except _DamagedError as error:
            raise ClickLogError(f"{path}: damaged ({error})") from error

    def _row_groups(self, start: int, stop: int) -> Iterator[Batch]:
        """Rows within the log, a row group at a time."""
        position = 0
        for name, count in self.manifest.parts.items():
            if not (position < stop and start < position + count):
                position += count
                continue
            with self._part(name) as part:
                for group, rows in enumerate(part.groups):
                    first, end = max(start - position, 0), min(stop - position, rows)
                    if first < end:
                        yield self._batch(part.read(group).slice(first, end - first))
                    position += rows

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


class _DamagedError(Exception):
    """Damage in a part, with its place in the message."""


class _Part:
    """Open part, whose bytes are compared with their digests before parsing.

    Attributes:
        groups: Number of rows of each row group.
    """

    def __init__(self, stream: pa.NativeFile, spans: Sequence[FileSpan], rows: int, schema: pa.Schema) -> None:
        self._stream, self._spans, self._schema = stream, spans, schema
        if stream.size() != spans[-1].end:
            raise _DamagedError(f"{stream.size():,} bytes, {spans[-1].end:,} were written")
        self._check(len(spans) - 1)
        self._file = parquet.ParquetFile(stream)
        metadata, found = self._file.metadata, self._file.schema_arrow
        self.groups = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        if (sum(self.groups), len(self.groups)) != (rows, len(spans) - 1):
            found_there = f"{sum(self.groups):,} rows in {len(self.groups)} row groups"
            raise _DamagedError(f"{found_there}, {MANIFEST} says {rows:,} in {len(spans) - 1}")
        for column in schema:
            if found.names.count(column.name) != 1 or found.field(column.name).type != column.type:
                raise _DamagedError(f"{MANIFEST} names a column {column.name!r} of {column.type}, not there")

    def read(self, group: int) -> pa.Table:
        """Return the columns of a row group that a batch needs."""
        self._check(group)
        table = self._file.read_row_group(group, use_threads=False).select(self._schema.names)
        table.validate(full=True)
        if incomplete := [name for name in table.schema.names if table.column(name).null_count]:
            raise _DamagedError(f"column {incomplete[0]!r} lacks values")
        return table

    def _check(self, number: int) -> None:
        begin, span = self._spans[number - 1].end if number else 0, self._spans[number]
        if (found := xxhash.xxh3_64_hexdigest(self._stream.read_at(span.end - begin, begin))) != span.xxh3_64:
            raise _DamagedError(
                f"the checksum of bytes {begin:,} to {span.end:,} is {found}, {span.xxh3_64} was written"
            )


def _bags(column: pa.ListArray) -> Bags:
    offsets = np.from_dlpack(column.offsets).astype(np.int64)
    keys = np.from_dlpack(column.values)[offsets[0] : offsets[-1]]  # a slice of an array keeps all its values
    return Bags(torch.from_numpy(keys.copy()), torch.from_numpy(offsets - offsets[0]))


def spans_of(path: Path, ends: Sequence[int]) -> tuple[FileSpan, ...]:
    """Return the consecutive spans of a file that end at the bytes `ends`. The first span begins at byte 0."""
    with path.open("rb") as file:
        return tuple(
            FileSpan(end, xxhash.xxh3_64_hexdigest(file.read(end - begin))) for begin, end in pairwise([0, *ends])
        )


def is_prepared_folder(folder: Path) -> bool:
    """Whether a folder holds a prepared log, or what `prepare` has written of one."""
    if PREPARED_LOG.is_in(folder) or UNFINISHED.is_in(folder):
        return True
    try:
        first = next(folder.glob("part-*.parquet"), None)
        return first is not None and PART_METADATA.keys() <= (parquet_metadata(first).metadata or {}).keys()
    except (OSError, pa.ArrowException):
        return False


def count_features(folder: Path, files: Mapping[str, int], schema: LogSchema, rows: int) -> dict[str, int]:
    """Return the number of distinct keys of each field and the fields that share its vocabulary, in the first rows.

    One vocabulary is in memory at a time.
    """
    log = scan_parquet(folder / name for name in files).head(rows)
    counts = {}
    for name in schema.fields:
        sharing = [other for other, owner in schema.shares.items() if owner == name]
        columns = (
            log.select((pl.col(one).explode() if one in schema.lists else pl.col(one)).drop_nulls().alias(name))
            for one in (name, *sharing)
        )
        counts[name] = int(pl.concat(columns).select(pl.col(name).n_unique()).collect(engine="streaming").item())
    return counts
