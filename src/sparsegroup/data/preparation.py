"""`prepare`: a raw log of any size into a prepared folder, in bounded memory, gone on with where it was cut off."""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from sparsegroup.data.columnar import column_names, is_columnar
from sparsegroup.data.encode import LABEL, TIME, Encoded, schema_of
from sparsegroup.data.errors import BadRows, ClickLogError
from sparsegroup.data.formats import LogFormat, from_first_line, from_header
from sparsegroup.data.keys import HASH, MOST_FIELDS
from sparsegroup.data.lines import CHUNK_BYTES, first_line
from sparsegroup.data.prepared import MANIFEST, Manifest, PreparedLog, count_features, write_atomically, write_manifest
from sparsegroup.data.reader import OnBadRow, Reader

PART_CHUNKS = 8
"""Chunks of about 65,000 Criteo rows each that make a file: so much is done again after a cut."""

_META = b"sparsegroup"
_DAY = 24 * 3600


@dataclass
class _State:
    """How far a log has been read: written into each file, and read from the last one to go on.

    Attributes:
        source: Number of the log, of several.
        offset: Bytes of it that have been read.
        line: Of the next row.
        rows: Written so far.
        positives: Of them, label 1.
        last_time: Of the last row.
        boundary: First row of the last day, or of the test set where that is marked; -1 before there is one.
        bad: Rows left out.
    """

    source: int = 0
    offset: int = 0
    line: int = 1
    rows: int = 0
    positives: int = 0
    last_time: int = 0
    boundary: int = -1
    bad: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """How far `prepare` has come: rows written, rows left out, and bytes of the (uncompressed) log."""

    rows: int
    bad: int
    bytes: int


def prepare(
    logs: list[Path],
    folder: Path,
    log: LogFormat | None = None,
    *,
    on_bad_row: OnBadRow = "error",
    max_bad: float = 0.001,
    vocabulary: bool = False,
    threads: int = 2,
    on_progress: Callable[[Progress], None] | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> tuple[PreparedLog, list[BadRows]]:
    """Read raw logs, and write their keys, numbers, labels and times as Parquet.

    A folder that a killed run has left is gone on with. A whole one is left as it is.

    Args:
        logs: One log, or a training log and a test log.
        folder: To write into.
        log: Their format; by default told from the header.
        on_bad_row: "error" raises at the first bad row, "skip" leaves bad rows out.
        max_bad: Share of the rows, in [0, 1), above which "skip" raises all the same.
        vocabulary: Write `vocabulary.parquet`, too: key → field and value.
        threads: That parse and hash.
        on_progress: Is told after each chunk.
        chunk_bytes: Of the log, that are parsed at a time.

    Returns:
        The prepared log, and the bad rows of each log that this call has read.

    Raises:
        ClickLogError: A bad row (FILE:LINE: why), too many of them, a damaged file, or a folder that holds something
            else. What has been written stays, to go on with.
    """
    log, _ = _format_of(logs[0], log)
    if len(logs) > 1:
        log = replace(log, split="file", split_column=None)
    columns = [_format_of(path, log)[1] for path in logs]
    source = _source(logs, log, vocabulary)
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / MANIFEST).exists():
        done = PreparedLog(folder)
        if dict(done.manifest.source) != source:
            raise ClickLogError(f"{folder}: holds another log, or one read in another way; give an empty folder")
        for part in folder.glob("vocabulary-*.parquet"):  # a run was cut off just before it was through with them
            part.unlink()
        return done, []
    state, files = _resume(folder, source)
    bads = []
    for number in range(state.source, len(logs)):
        bad = BadRows(str(logs[number]))
        bads.append(bad)
        reader = Reader(logs[number], log, columns[number], bad, on_bad_row, vocabulary, threads, chunk_bytes)
        _write(folder, log, reader, state, files, source, on_progress)
        state.source, state.offset, state.line = number + 1, 0, 1
        if number == 0 and len(logs) > 1:
            state.boundary = state.rows
    left_out = sum(state.bad.values())
    if left_out > max_bad * (state.rows + left_out):
        examples = "\n".join(map(str, bads))
        raise ClickLogError(
            f"{left_out:,} of {state.rows + left_out:,} rows are bad, more than max_bad={max_bad:g}\n{examples}"
        )
    if not state.rows:
        raise ClickLogError(f"{logs[0]}: no rows")
    train_rows = _train_rows(log, state)
    if not train_rows:
        raise ClickLogError(f"{logs[0]}: no training rows; all {state.rows:,} are for testing")
    all_rows, training = (count_features(folder, files, log.fields, rows) for rows in (state.rows, train_rows))
    if vocabulary:
        joined = pl.scan_parquet(_vocabulary_parts(folder, files)).unique("key").sort("key")
        write_atomically(folder / "vocabulary.parquet", joined.sink_parquet)
    manifest = Manifest(
        dataset=log.name,
        fields=log.fields,
        numbers=log.numbers,
        lists=tuple(log.lists),
        rows=state.rows,
        train_rows=train_rows,
        positives=state.positives,
        files=files,
        features={name: (all_rows[name], training[name]) for name in log.fields},
        hash=HASH,
        source=source,
        bad_rows=state.bad,
        version=version("sparsegroup"),
    )
    write_manifest(folder, manifest)
    if vocabulary:
        for part in _vocabulary_parts(folder, files):
            part.unlink()
    return PreparedLog(folder), bads


def _format_of(path: Path, log: LogFormat | None) -> tuple[LogFormat, list[str]]:
    if is_columnar(path):
        header = column_names(path)
        log = log or from_header(header, str(path), "")
    else:
        line = first_line(path)
        log = log or from_first_line(line, str(path))
        header = list(log.columns) or [name.strip('"') for name in line.split(log.separator)]
    if missing := [name for name in log.raw if name not in header]:
        raise ClickLogError(f"{path}:1: no column {missing[0]!r}; the columns are {', '.join(header)}")
    if repeated := [name for name in log.raw if header.count(name) > 1]:
        raise ClickLogError(f"{path}:1: column {repeated[0]!r} appears {header.count(repeated[0])} times")
    if not 1 <= len(log.fields) <= MOST_FIELDS:
        raise ClickLogError(f"{path}:1: {len(log.fields)} fields; there must be 1 to {MOST_FIELDS}")
    if reserved := {LABEL, TIME} & {*log.fields, *log.numbers}:
        raise ClickLogError(f"{path}:1: a field cannot be named {min(reserved)!r}; rename it")
    return log, header


def _source(logs: list[Path], log: LogFormat, vocabulary: bool) -> dict[str, Any]:
    """What a prepared folder was made of: names, sizes and times of the logs, and the format."""
    files = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in logs]
    text = json.dumps({name: value for name, value in vars(log).items() if name != "derive"}, default=dict)
    return {"files": files, "format": hashlib.sha256(text.encode()).hexdigest()[:16], "vocabulary": vocabulary}


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


def _write(
    folder: Path,
    log: LogFormat,
    reader: Reader,
    state: _State,
    files: dict[str, int],
    source: dict[str, Any],
    on_progress: Callable[[Progress], None] | None,
) -> None:
    """Write the rest of one log as parts."""
    held: list[Encoded] = []
    known = Counter(state.bad)
    for chunk, encoded in reader(state.offset, state.line):
        _note(state, log, encoded, reader.path)
        state.offset, state.line = chunk.end_offset, chunk.end_line
        state.bad = dict(known + reader.bad.reasons)
        held.append(encoded)
        if len(held) == PART_CHUNKS:
            _write_part(folder, log, held, state, files, source)
            held = []
        if on_progress:
            on_progress(Progress(state.rows, sum(state.bad.values()), state.offset))
    if any(encoded.batch.num_rows for encoded in held):
        _write_part(folder, log, held, state, files, source)


def _note(state: _State, log: LogFormat, encoded: Encoded, path: Path) -> None:
    batch = encoded.batch
    if not batch.num_rows:
        return
    if log.split == "last-day":
        times = batch.column(TIME).to_numpy()
        if times[0] < state.last_time or (np.diff(times) < 0).any():
            raise ClickLogError(f"{path}: rows must be in the order of time, for the last day is the test set")
        days = times // _DAY
        if days[-1] > state.last_time // _DAY or state.boundary < 0:
            state.boundary = state.rows + int(np.searchsorted(days, days[-1]))
        state.last_time = int(times[-1])
    if encoded.is_test is not None:
        first = int(encoded.is_test.argmax()) if encoded.is_test.any() else -1
        began = 0 if state.boundary >= 0 else first
        if began >= 0 and not encoded.is_test[began:].all():
            raise ClickLogError(f"{path}: rows with {log.split_column}=2 (test) must come last")
        if first >= 0 and state.boundary < 0:
            state.boundary = state.rows + first
    state.rows += batch.num_rows
    state.positives += int(batch.column(0).to_numpy().sum())


def _write_part(
    folder: Path,
    log: LogFormat,
    held: list[Encoded],
    state: _State,
    files: dict[str, int],
    source: dict[str, Any],
) -> None:
    name = f"part-{len(files):05}.parquet"
    content = json.dumps({"state": vars(state), "source": source})
    schema = schema_of(log).with_metadata({_META: content.encode()})

    def write(path: Path) -> None:
        with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
            for encoded in held:
                if encoded.batch.num_rows:
                    writer.write_batch(encoded.batch)

    if held[0].raw is not None:
        _write_vocabulary(folder / f"vocabulary-{len(files):05}.parquet", log, held)
    write_atomically(folder / name, write)
    files[name] = sum(encoded.batch.num_rows for encoded in held)


def _write_vocabulary(path: Path, log: LogFormat, held: list[Encoded]) -> None:
    pieces = []
    for encoded in held:
        assert encoded.raw is not None
        for number, name in enumerate(log.fields):
            if name in log.lists:
                values = encoded.raw[name].fill_null("").str.split(log.lists[name]).explode()
                keys = encoded.batch.column(2 + number).flatten()
            else:
                values, keys = encoded.raw[name].fill_null(""), encoded.batch.column(2 + number)
            pieces.append(pl.DataFrame({"key": keys, "field": name, "value": values}).unique("key"))
    write_atomically(path, pl.concat(pieces).unique("key").write_parquet)


def _vocabulary_parts(folder: Path, files: dict[str, int]) -> list[Path]:
    return [folder / name.replace("part", "vocabulary") for name in files]


def _train_rows(log: LogFormat, state: _State) -> int:
    if log.split == "last-day":
        return state.boundary or state.rows  # of a single day there is no test set
    if log.split in ("column", "file"):
        return state.boundary if state.boundary >= 0 else state.rows
    if log.split == "last-of-7":
        return max(1, state.rows * 6 // 7)
    return state.rows - round(state.rows * 0.1) if log.split == "last-tenth" else state.rows
