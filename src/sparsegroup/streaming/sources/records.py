"""Rows that arrive as JSON objects or as maps of texts, as the texts that a CSV of the same rows has."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from sparsegroup.data.kinds import ColumnKind
from sparsegroup.data.raw.files import LINE, SAMPLE, BadRow
from sparsegroup.data.raw.text import LONGEST_LINE
from sparsegroup.data.schema import LogFormat
from sparsegroup.data.values import is_object, opened, text_of_value

Record = Mapping[str, Any]
"""Column → value of one row; an inner object has also its parts as columns."""

_FLOATS = {float, int, type(None)}
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)


def record_of(text: bytes | None) -> Record | str:
    """The row of a JSON object, nested ones opened as `column.field`; or why it is none."""
    if text is None:
        return "no value where a JSON object is expected"
    if len(text) > LONGEST_LINE:
        return f"a row of more than {LONGEST_LINE:,} bytes"
    try:
        found = _DECODER.decode(text.decode("utf-8").strip())
    except UnicodeDecodeError:
        return "invalid UTF-8"
    except (ValueError, RecursionError):
        return "no JSON object"
    if not isinstance(found, dict):
        return "no JSON object"
    if b"\\ud" in text.lower() and not _is_text(found):
        return "half of a surrogate pair"
    return opened(found)


def _is_text(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def frame_of(rows: Iterable[tuple[int, Record | str, bytes]], format: LogFormat, bad: list[BadRow]) -> pl.DataFrame:
    """Return the format's raw columns of some rows, empty and missing values as null, and the column `LINE`.

    Args:
        rows: Number of each row, its record or why there is none, and its text as it arrived.
        format: The format.
        bad: Receives the rows without a record, and rows with a list or object where the column takes none.
    """
    numbers: list[int] = []
    records: list[Record] = []
    for number, record, text in rows:
        if isinstance(record, str):
            bad.append((number, record, text[:SAMPLE].decode("utf-8", "replace")))
        else:
            numbers.append(number)
            records.append(record)
    columns, unread = dict[str, pl.Series](), dict[int, BadRow]()
    for name in format.raw:
        kind = format.kind_of(name)
        reasons = dict[int, str]()
        values = [record.get(name) for record in records]
        columns[name] = _column(values, kind, reasons)
        for at, reason in reasons.items():
            unread.setdefault(at, (numbers[at], f"{name!r} {reason}", f"{name}={values[at]}"))
    frame = pl.DataFrame({**columns, LINE: pl.Series(numbers, dtype=pl.Int64)})
    if not unread:
        return frame
    bad.extend(unread.values())
    return frame.filter(~pl.int_range(len(frame), eager=True).is_in(list(unread)))


def _column(values: Sequence[Any], kind: ColumnKind | None, unread: dict[int, str]) -> pl.Series:
    """Return values of one column, as numbers if all are, else as texts.

    Args:
        values: `[n]` values of JSON.
        kind: The kind of the column; None for formats without kinds.
        unread: Receives place → reason of the values that the column does not take.
    """
    types = set(map(type, values))
    if types <= _FLOATS and float in types and all(abs(value) < 2**53 for value in values if type(value) is int):
        return pl.Series(values, dtype=pl.Float64)
    if not types <= {str, type(None)}:
        values = [text if type(text) is str else _text(text, kind, at, unread) for at, text in enumerate(values)]
    return pl.Series(values, dtype=pl.String).replace("", None)


def _text(value: Any, kind: ColumnKind | None, at: int, unread: dict[int, str]) -> str | None:
    try:
        return text_of_value(value, kind)
    except ValueError as error:
        unread[at] = str(error)
        return None


def write_csv(path: Path, records: Sequence[Record]) -> str:
    """Write records to a CSV `path`/rows.csv with all their columns, line breaks as blanks; its name."""
    names = dict.fromkeys(name for record in records for name, value in record.items() if not is_object(value))
    frame = pl.DataFrame(
        {name: pl.Series([_sample_text(record.get(name)) for record in records], dtype=pl.String) for name in names}
    )
    path.mkdir(parents=True, exist_ok=True)
    frame.select(pl.all().str.replace_all(r"[\r\n]", " ")).write_csv(path / "rows.csv", quote_style="necessary")
    return str(path / "rows.csv")


def _sample_text(value: Any) -> str | None:
    if isinstance(value, list | dict):
        return None if is_object(value) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text_of_value(value, ColumnKind("category")) or None
