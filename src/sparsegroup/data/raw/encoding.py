"""Lines of a log to keys, numbers, labels, times and weights; rows that cannot be read are named by their line."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from sparsegroup.data.encoded_columns import schema_of
from sparsegroup.data.formats.log_format import LogFormat
from sparsegroup.data.keys import Int64s, keys_of
from sparsegroup.data.log_errors import BadRows
from sparsegroup.data.raw.text_file import LONGEST_LINE, Chunk

Bad = tuple[int, str, str]
"""A row that is left out: its line, the reason, and its text."""

_SAMPLE = 80
# Arrow takes a quote for one only where a value begins, and reads on over the line's end where none follows.
_CLOSED_QUOTES = re.compile(rb'(?:"(?:[^"]|"")*"(?!")[^,]*|[^",][^,]*|)(?:,(?:"(?:[^"]|"")*"(?!")[^,]*|[^",][^,]*|))*')


@dataclass(frozen=True)
class Encoded:
    """What a chunk holds.

    Attributes:
        batch: The rows, with the columns of `schema_of`.
        raw: The fields' values as they were hashed, or None if they were not asked for.
        is_test: Which rows are marked as test rows, of a format with a split column.
        bad: Rows left out.
    """

    batch: pa.RecordBatch
    raw: pl.DataFrame | None
    is_test: npt.NDArray[np.bool_] | None
    bad: BadRows


def encode_chunk(chunk: Chunk, log: LogFormat, columns: Sequence[str], source: str, keep_raw: bool = False) -> Encoded:
    """Parse and hash lines.

    Args:
        chunk: The lines, without a header.
        log: Their format.
        columns: All columns of a line.
        source: The file, for messages.
        keep_raw: Give the fields' values, too.
    """
    bad: list[Bad] = []
    if chunk.too_long is not None:
        bad.append((chunk.line, f"a line of more than {LONGEST_LINE:,} bytes", chunk.too_long))
    frame = chunk.frame if chunk.frame is not None else _parse(*_whole_lines(chunk, log, bad), log, columns, bad)
    batch, raw, is_test = _encode_frame(frame, log, bad, keep_raw)
    rows = BadRows(source)
    for row in sorted(bad):
        rows.add(*row)
    return Encoded(batch, raw, is_test, rows)


def _encode_frame(
    frame: pl.DataFrame, log: LogFormat, bad: list[Bad], keep_raw: bool
) -> tuple[pa.RecordBatch, pl.DataFrame | None, npt.NDArray[np.bool_] | None]:
    """Hash columns of strings.

    Args:
        frame: The format's raw columns, empty values as null, and the rows' line numbers in a column named "".
        log: Their format.
        bad: Is told of rows that are left out.
        keep_raw: Give the fields' values, too.
    """
    frame = _with_valid_labels(frame, log, bad)
    frame = _with_valid_weights(frame, log, bad)
    frame = _derived(frame, log, bad)
    columns: list[Any] = [
        frame[log.label].cast(pl.UInt8).to_numpy() if log.labelled else np.zeros(len(frame), np.uint8),
        frame[""].to_numpy() if log.time is None else _seconds(frame[log.time]),
    ]
    if log.weight is not None:
        columns.append(frame[log.weight].cast(pl.Float32).to_numpy())
    for number, name in enumerate(log.fields):
        if separator := log.lists.get(name):
            columns.append(_lists_of_keys(frame[name], separator, number))
        else:
            columns.append(keys_of(frame[name], number))
    columns += [frame[name].fill_null(0.0).cast(pl.Float32).to_numpy() for name in log.numbers]
    schema = schema_of(log)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    is_test = (frame[log.split_column] == "2").to_numpy() if log.split_column else None
    raw = frame.select(log.fields) if keep_raw else None
    return pa.record_batch(arrays, schema=schema), raw, is_test


def _whole_lines(chunk: Chunk, log: LogFormat, bad: list[Bad]) -> tuple[bytes, Int64s]:
    """The chunk without blank lines and those that would mix up their neighbours, and the numbers of the others."""
    data = chunk.data
    quoted = log.separator == "," and b'"' in data
    begins = _line_begins(data)
    blank = np.isin(np.frombuffer(data, np.uint8)[begins], list(b"\n\r ")).any()
    returns = b"\r" in data and data.count(b"\r") != data.count(b"\r\n")
    if not quoted and not blank and not returns and _is_utf8(data):
        return data, np.arange(chunk.line, chunk.line + len(begins))
    kept, numbers = [], []
    for number, line in enumerate(data.split(b"\n")[:-1], chunk.line):
        if not line.strip(b" \r"):
            continue
        if not _is_utf8(line):
            reason = "invalid UTF-8"
        elif b"\r" in line[:-1]:
            reason = "a carriage return within the line"
        elif quoted and b'"' in line and not _CLOSED_QUOTES.fullmatch(line):
            reason = "a quote that is not closed"
        else:
            kept.append(line + b"\n")
            numbers.append(number)
            continue
        bad.append((number, reason, line[:_SAMPLE].decode("utf-8", "replace").rstrip()))
    return b"".join(kept), np.array(numbers, np.int64)


def _line_begins(data: bytes) -> Int64s:
    """Where each line of `data`, which ends with a newline or is empty, begins."""
    # Searching for pairs of bytes would take ten times as long, and hold the interpreter's lock.
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    return np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _parse(data: bytes, numbers: Int64s, log: LogFormat, columns: Sequence[str], bad: list[Bad]) -> pl.DataFrame:
    """The raw columns, and the lines' numbers in a column named ""."""
    gone: list[int] = []

    def on_malformed(row: Any) -> str:
        gone.append(row.number - 1)
        reason = f"{row.actual_columns} columns where {row.expected_columns} are expected"
        bad.append((int(numbers[row.number - 1]), reason, row.text[:_SAMPLE]))
        return "skip"

    names = [name for name in columns if name in log.raw]
    if not data:
        return pl.DataFrame(schema={**dict.fromkeys(names, pl.String), "": pl.Int64})
    if log.separator == " ":  # lines of these formats often end with one
        data = data.replace(b" \n", b"\n").replace(b" \r\n", b"\n")
    table = pa_csv.read_csv(
        pa.BufferReader(data),
        # One thread, so that malformed rows come with their number; chunks are parsed side by side.
        read_options=pa_csv.ReadOptions(column_names=list(columns), use_threads=False, block_size=len(data) + 1),
        parse_options=pa_csv.ParseOptions(
            delimiter=log.separator,
            quote_char='"' if log.separator == "," else False,
            invalid_row_handler=on_malformed,
            ignore_empty_lines=False,
        ),
        convert_options=pa_csv.ConvertOptions(
            include_columns=names,
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
        ),
    )
    return pl.DataFrame(pl.from_arrow(table)).with_columns(pl.Series("", np.delete(numbers, gone)))


def _with_valid_labels(frame: pl.DataFrame, log: LogFormat, bad: list[Bad]) -> pl.DataFrame:
    if not log.labelled:
        return frame
    valid = frame[log.label].is_in(["0", "1"]).fill_null(False)
    if valid.all():
        return frame
    for row in frame.filter(~valid).iter_rows(named=True):
        text = f"{log.label}={row[log.label]}" if row[log.label] is not None else f"no {log.label}"
        bad.append((row[""], f"label {log.label!r} must be 0 or 1", text))
    return frame.filter(valid)


def _with_valid_weights(frame: pl.DataFrame, log: LogFormat, bad: list[Bad]) -> pl.DataFrame:
    if log.weight is None:
        return frame
    weight = frame[log.weight].cast(pl.Float32, strict=False)
    valid = ((weight >= 0) & weight.is_finite()).fill_null(False)
    if valid.all():
        return frame
    for row in frame.filter(~valid).iter_rows(named=True):
        text = f"{log.weight}={row[log.weight]}" if row[log.weight] is not None else f"no {log.weight}"
        bad.append((row[""], f"weight {log.weight!r} must be a number >= 0", text))
    return frame.filter(valid)


def _derived(frame: pl.DataFrame, log: LogFormat, bad: list[Bad]) -> pl.DataFrame:
    """The fields, numbers and time made of the raw columns, without rows of which they cannot be."""
    made = log.derive(frame) if log.derive else frame
    numbers = [pl.col(name).cast(pl.Float32, strict=False) for name in log.numbers]
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
                bad.append((row[""], f"{raw!r} cannot be read", f"{raw}={row[raw] or ''}"))
            works &= ~failed.to_numpy()
    return made if works.all() else made.filter(works)


def _seconds(times: pl.Series) -> npt.NDArray[np.int64]:
    if times.dtype == pl.Datetime:
        return times.dt.epoch("s").to_numpy()
    return times.cast(pl.Int64).fill_null(0).to_numpy()


def _lists_of_keys(values: pl.Series, separator: str, field: int) -> pa.Array:
    lists = pc.split_pattern(values.fill_null("").to_arrow(), separator)
    keys = pa.array(keys_of(lists.flatten(), field))
    return pa.LargeListArray.from_arrays(lists.offsets, keys).cast(pa.list_(pa.int64()))
