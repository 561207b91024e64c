"""`prepare`: a raw log of any size into a prepared folder, in bounded memory, gone on with where it was cut off."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from sparsegroup.artifact.disk import write_atomically
from sparsegroup.data.encoded_columns import schema_of
from sparsegroup.data.formats.headed import formats_of
from sparsegroup.data.formats.log_format import LogFormat
from sparsegroup.data.keys import HASH
from sparsegroup.data.log_errors import BadRows, ClickLogError
from sparsegroup.data.prepared_log import MANIFEST, LogManifest, PreparedLog, count_features, write_manifest
from sparsegroup.data.raw.chunk_reader import Reader
from sparsegroup.data.raw.encoding import Encoded
from sparsegroup.data.raw.raw_source import source_of
from sparsegroup.data.raw.row_count import RowCount
from sparsegroup.data.raw.text_file import CHUNK_BYTES
from sparsegroup.names import OnBadRow

PART_CHUNKS = 8
"""Chunks of about 65,000 Criteo rows each that make a file: so much is done again after a cut."""

_META = b"sparsegroup"


@dataclass
class _State(RowCount):
    """How far a log has been read: written into each file, and read from the last one to go on.

    Attributes:
        source: Number of the log, of several.
        offset: Bytes of it that have been read.
        line: Of the next row.
        bad: Rows left out.
    """

    source: int = 0
    offset: int = 0
    line: int = 1
    bad: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class PreparationProgress:
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
    on_progress: Callable[[PreparationProgress], None] | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> tuple[PreparedLog, list[BadRows]]:
    """Read raw logs, and write their keys, numbers, labels, times and weights as Parquet.

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
    log, columns = formats_of(logs, log)
    source = {**source_of(logs, log), "vocabulary": vocabulary}
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
    train_rows = state.checked_train_rows(log, logs[0], sum(state.bad.values()), bads, max_bad)
    all_rows, training = (count_features(folder, files, log.fields, rows) for rows in (state.rows, train_rows))
    if vocabulary:
        joined = pl.scan_parquet(_vocabulary_parts(folder, files)).unique("key").sort("key")
        write_atomically(folder / "vocabulary.parquet", joined.sink_parquet)
    manifest = LogManifest(
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
        weighted=log.weight is not None,
        version=version("sparsegroup"),
    )
    write_manifest(folder, manifest)
    if vocabulary:
        for part in _vocabulary_parts(folder, files):
            part.unlink()
    return PreparedLog(folder), bads


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
    on_progress: Callable[[PreparationProgress], None] | None,
) -> None:
    """Write the rest of one log as parts."""
    held: list[Encoded] = []
    known = Counter(state.bad)
    for chunk, encoded in reader(state.offset, state.line):
        state.note(encoded, log, reader.path)
        state.offset, state.line = chunk.end_offset, chunk.end_line
        state.bad = dict(known + reader.bad.reasons)
        held.append(encoded)
        if len(held) == PART_CHUNKS:
            _write_part(folder, log, held, state, files, source)
            held = []
        if on_progress:
            on_progress(PreparationProgress(state.rows, sum(state.bad.values()), state.offset))
    if any(encoded.batch.num_rows for encoded in held):
        _write_part(folder, log, held, state, files, source)


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
        with pq.ParquetWriter(path, schema, compression="lz4") as writer:
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
