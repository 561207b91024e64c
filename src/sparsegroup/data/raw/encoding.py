"""Raw rows to keys, numbers, labels, times and weights, parsed ahead by threads; bad rows are named by their line."""

import math
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from sparsegroup.data.arrow_arrays import arrow_of, numpy_of
from sparsegroup.data.batches import TIME
from sparsegroup.data.keys import keys_of
from sparsegroup.data.kinds import SPELLED_LABELS
from sparsegroup.data.log_errors import SAMPLE, BadRows, ClickLogError
from sparsegroup.data.raw.raw_file import LINE, BadRow, Chunk, RawFile
from sparsegroup.data.schema import LogFormat
from sparsegroup.settings.names import OnBadRow


@dataclass(frozen=True)
class EncodedRows:
    """What a chunk holds.

    Attributes:
        batch: The rows, with the columns of `LogFormat.schema`.
        raw: The fields' values as they were hashed, or None if they were not asked for.
        is_test: Which rows are marked as test rows, of a format with a split column.
        bad: Rows left out, in order.
    """

    batch: pa.RecordBatch
    raw: pl.DataFrame | None
    is_test: npt.NDArray[np.bool_] | None
    bad: list[BadRow]


@dataclass(frozen=True)
class Stretch:
    """What is to be read of one of a log's files.

    Attributes:
        number: Number of the file in the log.
        file: The file.
        bad: Is told of rows that are left out.
        offset, line: Where to begin, as in `RawFile.chunks`.
        until: The `end_offset` after which nothing more is read; None for the whole file.
        joins: Whether reading goes on from the end of the stretch before, of the same file, over what lies between
            without parsing it: where beginning anew would read more.
    """

    number: int
    file: RawFile
    bad: BadRows
    offset: int = 0
    line: int = 1
    until: int | None = None
    joins: bool = False


AnyStretch = TypeVar("AnyStretch", bound=Stretch)


def encoded_chunks(
    stretches: Iterable[AnyStretch],
    log: LogFormat,
    *,
    on_bad_row: OnBadRow,
    threads: int,
    chunk_bytes: int,
    keep_raw: bool = False,
) -> Generator[tuple[AnyStretch, Chunk, EncodedRows]]:
    """The chunks of files in order, and what each holds.

    Args:
        stretches: What is to be read, asked for as reading comes to it.
        log: The files' format.
        on_bad_row: "error" raises at the first one.
        threads: Number of threads that parse and hash, several small files at once, too.
        chunk_bytes: About how many bytes of a text are parsed at a time.
        keep_raw: Give the fields' values, too.

    Raises:
        ClickLogError: A bad row, unless they are skipped; a damaged file.
    """
    with ThreadPoolExecutor(threads) as pool:
        pending: deque[tuple[AnyStretch, Chunk, Future[EncodedRows]]] = deque()

        def first() -> tuple[AnyStretch, Chunk, EncodedRows]:
            stretch, chunk, job = pending.popleft()
            encoded = job.result()
            for number, reason, text in encoded.bad:
                if on_bad_row == "error":
                    raise ClickLogError(f"{stretch.file.source}:{number}: {reason}: {text[:SAMPLE]!r}")
                stretch.bad.add(number, reason, text)
            return stretch, chunk, encoded

        try:
            for stretch, chunk in _read(stretches, log, chunk_bytes):
                columns = stretch.file.columns(log)
                job = pool.submit(encode_chunk, chunk, log, columns, keep_raw, stretch.file.partition)
                pending.append((stretch, chunk, job))
                if len(pending) > threads:
                    yield first()
            while pending:
                yield first()
        finally:
            for _, _, job in pending:
                job.cancel()


def _read(stretches: Iterable[AnyStretch], log: LogFormat, chunk_bytes: int) -> Iterator[tuple[AnyStretch, Chunk]]:
    chunks, offset = iter(list[Chunk]()), 0
    for stretch in stretches:
        if not stretch.joins:
            chunks, offset = stretch.file.chunks(log, stretch.offset, stretch.line, chunk_bytes), stretch.offset
        while offset < stretch.offset and (passed := next(chunks, None)) is not None:
            offset = passed.end_offset
        if offset != stretch.offset:  # the file has changed, and who reads it misses these chunks
            continue
        for chunk in chunks:
            offset = chunk.end_offset
            yield stretch, chunk
            if stretch.until is not None and offset >= stretch.until:
                break


def named_keys(encoded: EncodedRows, log: LogFormat, fields: Sequence[str]) -> pl.DataFrame:
    """Columns `key`, `field` and `value` of the features of some fields in a chunk that kept its values, once each."""
    assert encoded.raw is not None
    pieces = []
    for name in fields:
        keys, values = encoded.batch.column(name), encoded.raw[name].fill_null("")
        if name in log.lists:
            keys, values = keys.flatten(), values.str.split(log.lists[name]).explode()
        pieces.append(pl.DataFrame({"key": keys, "field": name, "value": values}).unique("key"))
    return pl.concat(pieces)


def encode_chunk(
    chunk: Chunk,
    log: LogFormat,
    columns: Sequence[str],
    keep_raw: bool = False,
    partition: Mapping[str, str | None] = MappingProxyType({}),
) -> EncodedRows:
    """Parse and hash rows.

    Args:
        chunk: The rows.
        log: Their format.
        columns: All columns of the file, in order.
        keep_raw: Give the fields' values, too.
        partition: Name → value of the columns that the file's folders add.
    """
    bad: list[BadRow] = []
    batch, raw, is_test = encode_frame(chunk.full_frame(log, columns, bad, partition), log, bad, keep_raw)
    return EncodedRows(batch, raw, is_test, sorted(bad))


def with_places(batch: pa.RecordBatch, log: LogFormat, before: int) -> pa.RecordBatch:
    """Rows whose times are their places in a file, with those in a log that has so many places before it."""
    if log.time is not None or not before:
        return batch
    return batch.set_column(1, TIME, arrow_of(numpy_of(batch.column(1)) + before))


def encode_frame(
    frame: pl.DataFrame, log: LogFormat, bad: list[BadRow], keep_raw: bool = False
) -> tuple[pa.RecordBatch, pl.DataFrame | None, npt.NDArray[np.bool_] | None]:
    """Hash columns of strings.

    Args:
        frame: The format's raw columns, empty values as null, and the rows' line numbers in the column `LINE`.
        log: Their format.
        bad: Is told of rows that are left out.
        keep_raw: Give the fields' values, too.
    """
    frame = _with_valid_labels(frame, log, bad)
    frame = _with_valid_weights(frame, log, bad)
    frame = _derived(frame, log, bad)
    columns: list[Any] = [
        frame[log.label].cast(pl.UInt8).to_numpy() if log.labelled else np.zeros(len(frame), np.uint8),
        frame[LINE].cast(pl.Int64).to_numpy() if log.time is None else _seconds(frame[log.time]),
    ]
    if log.weight is not None:
        columns.append(frame[log.weight].to_numpy())
    for number, name in enumerate(log.fields):
        if separator := log.lists.get(name):
            columns.append(_lists_of_keys(frame[name], separator, number))
        else:
            columns.append(keys_of(frame[name], number))
    missing = math.nan if log.kinds else 0.0
    columns += [frame[name].fill_null(missing).cast(pl.Float32).to_numpy() for name in log.numbers]
    arrays = [column if isinstance(column, pa.Array) else arrow_of(column) for column in columns]
    is_test = frame[log.split_column].eq_missing("2").to_numpy() if log.split_column else None
    raw = frame.select(log.fields) if keep_raw else None
    return pa.record_batch(arrays, schema=log.schema), raw, is_test


def _with_valid_labels(frame: pl.DataFrame, log: LogFormat, bad: list[BadRow]) -> pl.DataFrame:
    if not log.labelled:
        return frame
    valid = frame[log.label].is_in(["0", "1"]).fill_null(False)
    if valid.all():
        return frame
    spelled = frame[log.label].str.to_lowercase().replace_strict(SPELLED_LABELS, default=None, return_dtype=pl.String)
    frame, valid = frame.with_columns(pl.coalesce(spelled, log.label).alias(log.label)), spelled.is_not_null()
    if valid.all():
        return frame
    for row in frame.filter(~valid).iter_rows(named=True):
        text = f"{log.label}={row[log.label]}" if row[log.label] is not None else f"no {log.label}"
        bad.append((row[LINE], f"label {log.label!r} must be 0 or 1, true or false, yes or no", text))
    return frame.filter(valid)


def _with_valid_weights(frame: pl.DataFrame, log: LogFormat, bad: list[BadRow]) -> pl.DataFrame:
    if log.weight is None:
        return frame
    weight = frame[log.weight].str.strip_chars().cast(pl.Float32, strict=False)
    valid = ((weight >= 0) & weight.is_finite()).fill_null(False)
    if valid.all():
        return frame.with_columns(weight)
    for row in frame.filter(~valid).iter_rows(named=True):
        text = f"{log.weight}={row[log.weight]}" if row[log.weight] is not None else f"no {log.weight}"
        bad.append((row[LINE], f"weight {log.weight!r} must be a number >= 0", text))
    return frame.with_columns(weight).filter(valid)


def _derived(frame: pl.DataFrame, log: LogFormat, bad: list[BadRow]) -> pl.DataFrame:
    """The fields, numbers and time made of the raw columns, without rows of which they cannot be."""
    made = log.derive(frame) if log.derive else frame
    numbers = [pl.col(name).cast(pl.Float32, strict=False) for name in log.numbers]
    if not log.kinds:  # there NaN is a missing number
        made = made.with_columns(pl.when(number.is_finite()).then(number) for number in numbers)
    checked = {**{name: name for name in log.numbers}, **log.checked}
    if log.time is not None and log.time not in checked:
        made = made.with_columns(pl.col(log.time).cast(pl.Int64, strict=False))
        checked[log.time] = log.time
    works = np.ones(len(frame), np.bool_)
    for name, raw in checked.items():
        failed = made[name].is_null()
        if name != log.time or name == raw:  # a time that is made of a column cannot be missing
            failed &= frame[raw].is_not_null()
        if failed.any():
            for row in frame.filter(failed & pl.Series(works)).iter_rows(named=True):
                bad.append((row[LINE], f"{raw!r} cannot be read", f"{raw}={row[raw] or ''}"))
            works &= ~failed.to_numpy()
    return made if works.all() else made.filter(works)


def _seconds(times: pl.Series) -> npt.NDArray[np.int64]:
    if times.dtype == pl.Datetime:
        return times.dt.epoch("s").to_numpy()
    return times.cast(pl.Int64).fill_null(0).to_numpy()


def _lists_of_keys(values: pl.Series, separator: str, field: int) -> pa.Array:
    lists = values.fill_null("").str.split(separator)
    offsets = np.zeros(len(lists) + 1, np.int32)
    np.cumsum(lists.list.len().to_numpy(), out=offsets[1:])
    return pa.ListArray.from_arrays(arrow_of(offsets), arrow_of(keys_of(lists.explode(), field)))
