"""`prepare`: a raw log of any size into a prepared folder, in bounded memory; it resumes where it was cut off."""

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from sparsegroup.artifact.disk import write_atomically
from sparsegroup.artifact.file_facts import facts_of
from sparsegroup.data.formats.log_format import LogFormat
from sparsegroup.data.keys import HASH
from sparsegroup.data.log_errors import BadRows, ClickLogError
from sparsegroup.data.log_manifest import PREPARED_LOG, LogManifest
from sparsegroup.data.log_opening import FormatOptions, format_of
from sparsegroup.data.prepared_log import (
    VOCABULARY,
    PreparedLog,
    count_features,
)
from sparsegroup.data.raw.encoding import EncodedRows, encoded_chunks
from sparsegroup.data.raw.raw_file import Chunk, raw_file, source_of
from sparsegroup.data.raw.raw_log import RowCount
from sparsegroup.data.raw.text_file import CHUNK_BYTES
from sparsegroup.names import OnBadRow

PART_CHUNKS = 8
"""Chunks of about 65,000 Criteo rows each that make a file: so much is done again after a cut."""

_META = b"sparsegroup"
_logger = logging.getLogger(__name__)


@dataclass
class _State(RowCount):
    """How far raw files have been read: written into each part, and read from the last one to resume.

    Attributes:
        source: Number of the file that is being read.
        offset: How many bytes of it (rows, of a columnar file) have been read.
        line: Line number of its next row.
        bad: Reason → rows left out.
    """

    source: int = 0
    offset: int = 0
    line: int = 1
    bad: dict[str, int] = field(default_factory=dict)

    def pass_chunk(self, chunk: Chunk, bad: Mapping[str, int]) -> None:
        """A chunk has been read; `bad` are all rows left out so far."""
        self.offset, self.line, self.bad = chunk.end_offset, chunk.end_line, dict(bad)

    def pass_file(self, files: int) -> None:
        """The end of a file, of so many, has been reached."""
        if self.source == 0 and files > 1:
            self.begin_test_file()
        self.source, self.offset, self.line = self.source + 1, 0, 1


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
    logs: list[Path],
    folder: Path,
    log: LogFormat | None = None,
    *,
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

    A folder that a killed run has left is completed. A whole one is checked, and left as it is.

    Args:
        logs: One log, or a training log and a test log.
        folder: To write into.
        log: Their format; by default as `options` say, or told from how the first log begins.
        on_bad_row: "error" raises at the first bad row, "skip" leaves bad rows out.
        max_bad: Share of the rows, in [0, 1), above which "skip" raises all the same.
        vocabulary: Write `vocabulary.parquet`, too: key → field and value.
        threads: Number of threads that parse and hash.
        on_format: Is told the format before anything is written.
        on_progress: Is told after each chunk.
        chunk_bytes: How many bytes of a text are parsed at a time.
        **options: What tells the format, see `FormatOptions`.

    Returns:
        The prepared log, and the bad rows of each log that this call has read.

    Raises:
        ClickLogError: A bad row (FILE:LINE: why), too many of them, a damaged file, or a folder that holds something
            else. What has been written stays, to be completed.
        LogOptionError: Options that do not go together, or not with the log.
        OSError: No such file.
    """
    raw = [raw_file(path) for path in logs]
    log = format_of(raw, log, **options)
    if on_format is not None:
        on_format(log)
    for file in raw:
        file.check(log)
    source = {**source_of(raw, log), "vocabulary": vocabulary}
    sizes = [file.size for file in raw]
    total = None if None in sizes else sum(size or 0 for size in sizes)
    folder.mkdir(parents=True, exist_ok=True)
    if PREPARED_LOG.is_in(folder):
        done = PreparedLog(folder)
        if dict(done.manifest.source) != source:
            raise ClickLogError(f"{folder}: holds another log, or one read in another way; give an empty folder")
        for part in folder.glob("vocabulary-*.parquet"):  # a run was cut off just before it was through with them
            part.unlink()
        done.verify()
        return done, []
    state, files = _resume(folder, source)
    if files:
        _logger.info("%s: resumed at row %s", folder, f"{state.rows:,}")
    bads = [BadRows(str(file.path)) for file in raw[state.source :]]
    for file, bad in zip(raw[state.source :], bads, strict=True):
        before = Counter(state.bad)
        chunks = encoded_chunks(
            file,
            log,
            bad,
            on_bad_row=on_bad_row,
            threads=threads,
            chunk_bytes=chunk_bytes,
            offset=state.offset,
            line=state.line,
            keep_raw=vocabulary,
        )
        held: list[EncodedRows] = []
        for chunk, encoded in chunks:
            state.note(encoded, log, file.path)
            state.pass_chunk(chunk, before + bad.reasons)
            held.append(encoded)
            if len(held) == PART_CHUNKS:
                _write_part(folder, log, held, state, files, source)
                held = []
            if on_progress:
                on_progress(PreparationProgress(state.rows, sum(state.bad.values()), state.offset, total))
        if any(encoded.batch.num_rows for encoded in held):
            _write_part(folder, log, held, state, files, source)
        state.pass_file(len(raw))
    train_rows = state.checked_train_rows(log, logs[0], sum(state.bad.values()), bads, max_bad)
    for bad in bads:
        if bad.count:
            _logger.warning(str(bad))
    _complete(folder, log, state, files, source, train_rows, vocabulary)
    return PreparedLog(folder), bads


def _complete(
    folder: Path,
    log: LogFormat,
    state: _State,
    files: dict[str, int],
    source: dict[str, Any],
    train_rows: int,
    vocabulary: bool,
) -> None:
    """Join the vocabularies of the parts, and write the manifest, which makes the folder whole."""
    in_all, in_training = (count_features(folder, files, log.fields, rows) for rows in (state.rows, train_rows))
    if vocabulary:
        joined = pl.scan_parquet(_vocabulary_parts(folder, files)).unique("key").sort("key")
        write_atomically(folder / VOCABULARY, joined.sink_parquet)
    manifest = LogManifest(
        dataset=log.name,
        fields=log.fields,
        numbers=log.numbers,
        lists=tuple(log.lists),
        rows=state.rows,
        train_rows=train_rows,
        positives=state.positives,
        parts=files,
        files={name: facts_of(folder / name) for name in (*files, *([VOCABULARY] if vocabulary else []))},
        features={name: (in_all[name], in_training[name]) for name in log.fields},
        hash=HASH,
        source=source,
        bad_rows=state.bad,
        weighted=log.weight is not None,
        timed=log.time is not None,
        columns=log.kinds,
    )
    PREPARED_LOG.write(folder, manifest)
    if vocabulary:
        for part in _vocabulary_parts(folder, files):
            part.unlink()


def _resume(folder: Path, source: dict[str, Any]) -> tuple[_State, dict[str, int]]:
    state, files = _State(), {}
    for path in sorted(folder.glob("part-*.parquet")):
        try:
            metadata = pq.read_metadata(path)
            content = json.loads(metadata.metadata[_META])
        except (OSError, pa.ArrowException, KeyError, TypeError, ValueError) as error:
            raise ClickLogError(f"{path}: not a part of a prepared log ({error}); give an empty folder") from error
        if content["source"] != source:
            raise ClickLogError(
                f"{folder}: holds parts of another log, or one read in another way; give an empty folder"
            )
        state, files[path.name] = _State(**content["state"]), metadata.num_rows
    if state.rows != sum(files.values()):
        raise ClickLogError(f"{folder}: parts of a prepared log are missing; give an empty folder")
    for left_behind in folder.glob(".*.tmp"):
        left_behind.unlink()
    return state, files


def _write_part(
    folder: Path,
    log: LogFormat,
    held: list[EncodedRows],
    state: _State,
    files: dict[str, int],
    source: dict[str, Any],
) -> None:
    name = f"part-{len(files):05}.parquet"
    content = json.dumps({"state": vars(state), "source": source})
    schema = log.schema.with_metadata({_META: content.encode()})

    def write(path: Path) -> None:
        with pq.ParquetWriter(path, schema, compression="lz4") as writer:
            for encoded in held:
                if encoded.batch.num_rows:
                    writer.write_batch(encoded.batch)

    if held[0].raw is not None:
        _write_vocabulary(folder / f"vocabulary-{len(files):05}.parquet", log, held)
    write_atomically(folder / name, write)
    files[name] = sum(encoded.batch.num_rows for encoded in held)


def _write_vocabulary(path: Path, log: LogFormat, held: list[EncodedRows]) -> None:
    pieces = []
    for encoded in held:
        assert encoded.raw is not None
        for name in log.fields:
            keys = encoded.batch.column(name)
            if name in log.lists:
                values = encoded.raw[name].fill_null("").str.split(log.lists[name]).explode()
                keys = keys.flatten()
            else:
                values = encoded.raw[name].fill_null("")
            pieces.append(pl.DataFrame({"key": keys, "field": name, "value": values}).unique("key"))
    write_atomically(path, pl.concat(pieces).unique("key").write_parquet)


def _vocabulary_parts(folder: Path, files: dict[str, int]) -> list[Path]:
    return [folder / name.replace("part", "vocabulary") for name in files]
