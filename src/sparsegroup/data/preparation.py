"""`prepare`: a raw log of any size into a prepared folder, in bounded memory; it resumes where it was cut off."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import polars as pl
import pyarrow as pa

from sparsegroup.artifact.folder import write_atomically
from sparsegroup.artifact.manifest import FileFacts, facts_of
from sparsegroup.data.batches import LABEL, TIME, WEIGHT, Batch
from sparsegroup.data.keys import HASH
from sparsegroup.data.local_files import (
    arrow_of,
    check_name,
    parquet_ends,
    parquet_writer,
    scan_parquet,
    write_parquet,
)
from sparsegroup.data.open import FormatOptions, raw_log_files
from sparsegroup.data.prepared_log import (
    PART_METADATA,
    PREPARED_LOG,
    UNFINISHED,
    VOCABULARY,
    FileSpan,
    LogManifest,
    PreparedLog,
    UnfinishedManifest,
    count_features,
    spans_of,
)
from sparsegroup.data.raw.encode import EncodedRows, ReadRange, encoded_chunks, whole_files
from sparsegroup.data.raw.files import BadRows, Chunk, LogPaths, paths_of, shown, shown_bad_rows, source_of
from sparsegroup.data.raw.raw_log import RowCount
from sparsegroup.data.raw.text import CHUNK_BYTES
from sparsegroup.data.schema import LogFormat
from sparsegroup.errors import ClickLogError
from sparsegroup.settings.names import OnBadRow, SortFiles

PART_CHUNKS = 8
"""Chunks of about 65,000 Criteo rows each that make a file: the most that an interruption repeats."""

_logger = logging.getLogger(__name__)


@dataclass
class _State(RowCount):
    """How far raw files have been read: written into each part, and read from the last one to resume.

    Attributes:
        source, offset, line, places: See `ReadRange`: where reading continues.
        bad: Reason → rows left out.
    """

    source: int = 0
    offset: int = 0
    line: int = 1
    bad: dict[str, int] = field(default_factory=dict)
    places: int = 0

    def pass_chunk(self, part: ReadRange, chunk: Chunk, encoded: EncodedRows) -> None:
        """A chunk has been read."""
        self.source, self.places = part.number, part.places
        self.offset, self.line = chunk.end_offset, chunk.end_line
        self.bad = dict(Counter(self.bad) + Counter(reason for _, reason, _ in encoded.bad))


@dataclass(frozen=True)
class PreparationProgress:
    """How far `prepare` has come.

    Attributes:
        rows: Rows written.
        bad: Rows left out.
        bytes: Bytes of the (uncompressed) file that have been read.
        total: Bytes of all files, or None if only reading them tells.
    """

    rows: int
    bad: int
    bytes: int
    total: int | None


def prepare(
    logs: Sequence[LogPaths],
    folder: Path,
    log: LogFormat | None = None,
    *,
    sort_files: SortFiles = "name",
    on_bad_row: OnBadRow = "error",
    max_bad: float = 0.001,
    vocabulary: bool = False,
    threads: int = 2,
    on_format: Callable[[LogFormat], None] | None = None,
    on_progress: Callable[[PreparationProgress], None] | None = None,
    chunk_bytes: int = CHUNK_BYTES,
    **options: Unpack[FormatOptions],
) -> tuple[PreparedLog, list[BadRows]]:
    """Read raw logs, and write their keys, numbers, labels, times and weights as Parquet.

    A folder that an interrupted run has left is completed. A complete one is checked, and unchanged.

    Args:
        logs: One log, or a training log and a test log: each a file, a folder, a pattern or a URI, or several of them.
        folder: To write into.
        log: Their format; by default what `options` say, or what the first log's beginning shows.
        sort_files: See `open_log`.
        on_bad_row: "error" raises at the first bad row, "skip" leaves bad rows out.
        max_bad: Share of the rows, in [0, 1), above which "skip" also raises.
        vocabulary: Also write `vocabulary.parquet`: key → field and value.
        threads: Number of threads that parse and hash.
        on_format: Called with the format before anything is written.
        on_progress: Called after each chunk.
        chunk_bytes: How many bytes of a text are parsed at a time.
        **options: The format, see `FormatOptions`.

    Returns:
        The prepared log, and the bad rows that this call has read, of each file.

    Raises:
        ClickLogError: A bad row (FILE:LINE: why), too many of them, a damaged file, or a folder that holds something
            else. The parts that have been written remain, to be completed.
        LogOptionError: Options that do not go together, or not with the log.
        OSError: No such file.
    """
    check_name(folder)
    for path in (Path(path) for paths in logs for path in paths_of(paths)):
        if path.is_dir() and Path(os.path.realpath(folder)).is_relative_to(path.resolve()):
            raise ClickLogError(f"{folder}: lies in {path}, all of whose files are the log; give another folder")
    raw, log, tests = raw_log_files(logs[0], logs[1] if len(logs) > 1 else None, log, sort_files=sort_files, **options)
    if on_format is not None:
        on_format(log)
    first_test = len(raw) - tests
    for number in {0, first_test} & set(range(len(raw))):
        raw[number].check(log)
    source = {**source_of(raw, log, tests), "vocabulary": vocabulary}
    sizes = [file.size for file in raw]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    folder.mkdir(parents=True, exist_ok=True)
    if PREPARED_LOG.is_in(folder):
        done = PreparedLog(folder)
        if dict(done.manifest.source) != source:
            raise ClickLogError(f"{folder}: holds another log, or one read in another way; give an empty folder")
        _remove_leftovers(folder)  # an earlier run was interrupted before this removal
        done.verify()
        return done, []
    parts = _Parts(folder, log, source)
    state = parts.state
    if parts.rows:
        _logger.info("%s: resumed at row %s", folder, f"{state.rows:,}")
    bads = [BadRows(file.source) for file in raw]
    position = sum(size or 0 for size in sizes[: state.source]) + state.offset
    begin = ReadRange(state.source, raw[state.source], None, state.offset, state.line, places=state.places)
    held: list[EncodedRows] = []
    for part, chunk, encoded in encoded_chunks(
        whole_files(raw, log, first_test, bads, begin),
        log,
        on_bad_row=on_bad_row,
        threads=threads,
        chunk_bytes=chunk_bytes,
        keep_raw=vocabulary,
    ):
        position += chunk.end_offset - (state.offset if part.number == state.source else 0)
        state.note(encoded, log, part.file.source, of_test_log=part.number >= first_test)
        state.pass_chunk(part, chunk, encoded)
        held.append(encoded)
        if len(held) == PART_CHUNKS:
            parts.write(held)
            held = []
        if on_progress:
            on_progress(PreparationProgress(state.rows, sum(state.bad.values()), position, total))
    parts.write(held)
    left_out = sum(state.bad.values())
    train_rows = state.checked_train_rows(log, shown(logs[0]), left_out, bads, max_bad)
    for text in (*shown_bad_rows(bads), *state.notes(log)):
        _logger.warning(text)
    parts.complete(train_rows, vocabulary)
    return PreparedLog(folder), bads


class _Parts:
    """Writer of the files of a prepared log, which continues an interrupted run.

    `unfinished.json` is written before the first part and after each part, and so lists all files of the run.

    Attributes:
        state: How far reading has come, at the end of the last part.
        rows: Name of each part → its rows.
    """

    def __init__(self, folder: Path, log: LogFormat, source: dict[str, Any]) -> None:
        self.folder, self.log, self.source = folder, log, source
        self.state, self.rows, self._spans = _State(), dict[str, int](), dict[str, tuple[FileSpan, ...]]()
        self._files = dict[str, FileFacts]()
        before = UNFINISHED.read(folder) if UNFINISHED.is_in(folder) else None
        if before is not None and before.parts:
            if before.source != source:
                raise ClickLogError(
                    f"{folder}: holds parts of another log, or one read in another way; give an empty folder"
                )
            before.check_files(folder, ClickLogError)
            self.state, self.rows = _State(**before.state), dict(before.parts)
            self._spans, self._files = dict(before.spans), dict(before.files)
        else:
            others = sorted(path.name for path in folder.iterdir() if not path.name.startswith("."))
            if others and before is None:
                raise ClickLogError(f"{folder}: holds {others[0]}, of no unfinished prepared log; give an empty folder")
            self._note()
        for left_behind in (
            *folder.glob(".*.tmp"),
            *folder.glob("part-*.parquet"),
            *folder.glob("vocabulary-*.parquet"),
        ):
            if left_behind.name not in self._files:
                left_behind.unlink()

    def _note(self) -> None:
        """Write the progress to `unfinished.json`."""
        state, source = vars(self.state), self.source
        UNFINISHED.write(
            self.folder,
            UnfinishedManifest(parts=self.rows, spans=self._spans, files=self._files, source=source, state=state),
        )

    def write(self, held: list[EncodedRows]) -> None:
        """A part of these rows, with how far reading has come, and their vocabulary if they kept their values."""
        held = [encoded for encoded in held if len(encoded.batch)]
        if not held:
            return
        name, schema = f"part-{len(self.rows):05}.parquet", self.log.schema.with_metadata(PART_METADATA)
        path, vocabulary = self.folder / name, self._vocabulary(name)

        def write(temporary: Path) -> None:
            with parquet_writer(temporary, schema, compression="lz4") as writer:
                for encoded in held:
                    writer.write_batch(_record_batch(encoded.batch, self.log, schema))

        if held[0].raw is not None:
            words = pl.concat(encoded.named_keys(self.log, self.log.fields) for encoded in held).unique("key").lazy()
            write_atomically(vocabulary, partial(write_parquet, rows=words))
            self._files[vocabulary.name] = facts_of(vocabulary)
        write_atomically(path, write)
        self._files[name], self._spans[name] = facts_of(path), spans_of(path, parquet_ends(path))
        self.rows[name] = sum(len(encoded.batch) for encoded in held)
        self._note()

    def complete(self, train_rows: int, vocabulary: bool) -> None:
        """Join the vocabularies of the parts, and write the manifest, which makes the folder whole."""
        log, state = self.log, self.state
        in_all, in_training = (
            count_features(self.folder, self.rows, log.columns_of_model, rows) for rows in (state.rows, train_rows)
        )
        vocabularies = [self._vocabulary(name) for name in self.rows] if vocabulary else []
        if vocabulary:
            joined = scan_parquet(vocabularies).unique("key").sort("key")
            write_atomically(self.folder / VOCABULARY, partial(write_parquet, rows=joined))
        manifest = LogManifest(
            dataset=log.name,
            fields=log.fields,
            numbers=log.numbers,
            lists=tuple(log.lists),
            rows=state.rows,
            train_rows=train_rows,
            positives=state.positives,
            parts=self.rows,
            spans=self._spans,
            files={name: self._files[name] for name in self.rows}
            | ({VOCABULARY: facts_of(self.folder / VOCABULARY)} if vocabulary else {}),
            features={name: (in_all[name], in_training[name]) for name in log.fields},
            hash=HASH,
            source=self.source,
            bad_rows=state.bad,
            weighted=log.weighted,
            timed=log.time is not None,
            columns=log.kinds,
            binary=log.is_binary,
            classes=() if log.tasks else log.reader.classes,
            tasks=tuple(str(one) for one in log.readers) if log.tasks else (),
        )
        PREPARED_LOG.write(self.folder, manifest)
        _remove_leftovers(self.folder)

    def _vocabulary(self, part: str) -> Path:
        return self.folder / part.replace("part", "vocabulary")


def _remove_leftovers(folder: Path) -> None:
    """Remove the files that a complete prepared log does not need."""
    for left_over in (*folder.glob("vocabulary-*.parquet"), folder / UNFINISHED.file):
        left_over.unlink(missing_ok=True)


def _record_batch(batch: Batch, log: LogFormat, schema: pa.Schema) -> pa.RecordBatch:
    single = [name for name in log.fields if name not in log.lists]
    values = batch.labels.numpy()
    labels = arrow_of(values.flatten() if log.tasks else values.astype(np.uint8) if log.is_binary else values)
    columns = {
        LABEL: pa.FixedSizeListArray.from_arrays(labels, len(log.tasks)) if log.tasks else labels,
        TIME: arrow_of(batch.times.numpy()),
    }
    columns |= {} if batch.weights is None else {WEIGHT: arrow_of(batch.weights.numpy())}
    columns |= {name: arrow_of(batch.keys[:, place].numpy()) for place, name in enumerate(single)}
    columns |= {name: arrow_of(batch.numbers[:, place].numpy()) for place, name in enumerate(log.numbers)}
    for name, bags in zip(log.lists, batch.bags, strict=True):
        offsets = arrow_of(bags.offsets.numpy().astype(np.int32))
        columns[name] = pa.ListArray.from_arrays(offsets, arrow_of(bags.keys.numpy()))
    return pa.record_batch([columns[name] for name in schema.names], schema=schema)
