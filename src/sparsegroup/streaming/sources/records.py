"""Rows that arrive as JSON objects or as maps of texts, as the texts that a CSV of the same rows has."""

import json
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from sparsegroup.artifact.folder import write_atomically
from sparsegroup.data.kinds import ColumnKind
from sparsegroup.data.raw.files import LINE, SAMPLE, BadRow
from sparsegroup.data.raw.text import LONGEST_LINE
from sparsegroup.data.schema import LogFormat
from sparsegroup.data.values import is_object, opened, text_of_value

_logger = logging.getLogger(__name__)

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


class FieldWatch:
    """Warnings, once per field, about fields that the rows of a stream gain or lose.

    A field is new if a tenth of a block's rows have the field and no earlier row had it. A column is lost if at least
    1,000 consecutive rows lack the column, and at least 20 times the usual distance between two rows with the column.
    Any thread may parse a block.

    Args:
        name: The stream, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._rows, self._seen, self._last = 0, Counter[str](), dict[str, int]()
        self._reported: set[str] = set()
        self._lock = threading.Lock()

    def note(self, records: Sequence[Record], columns: Sequence[str]) -> None:
        """Note the fields of a block's records. `columns`: the columns that the model reads."""
        found = Counter(name for record in records for name in record)
        with self._lock:
            known = self._seen.keys() | set(columns) if self._rows else found.keys()
            gained = [name for name, count in found.items() if name not in known and count * 10 > len(records)]
            self._rows += len(records)
            self._seen += found
            self._last.update(dict.fromkeys(found, self._rows))
            lost = [name for name in columns if self._is_lost(name)]
            gained, lost = ([name for name in names if name not in self._reported] for names in (gained, lost))
            self._reported |= {*gained, *lost}
        if gained:
            names = ", ".join(map(repr, gained[:_SHOWN]))
            _logger.warning("%s: rows have new fields: %s; only another run can use them", self._name, names)
        if lost:
            names = ", ".join(map(repr, lost[:_SHOWN]))
            _logger.warning("%s: rows no longer have the fields %s; they count as missing", self._name, names)

    def _is_lost(self, name: str) -> bool:
        since = self._rows - self._last.get(name, 0)
        usual = self._rows / self._seen[name] if name in self._seen else 0.0
        return since >= max(_MISSED, _LONGER * usual)


_SHOWN = 5
"""Largest number of fields that a warning names."""
_MISSED, _LONGER = 1000, 20
"""Least rows without a lost column, and least multiple of the usual distance between two rows with the column."""


def frame_of(
    rows: Iterable[tuple[int, Record | str, bytes]],
    format: LogFormat,
    bad: list[BadRow],
    watch: FieldWatch | None = None,
) -> pl.DataFrame:
    """Return the format's raw columns of some rows, with null for empty and missing values, and the column `LINE`.

    Args:
        rows: Number of each row, its record or the reason why it has no record, and the original text.
        format: The format.
        bad: Receives the rows without a record, and rows with a list or object where the column takes none.
        watch: Receives the records.
    """
    numbers: list[int] = []
    records: list[Record] = []
    for number, record, text in rows:
        if isinstance(record, str):
            bad.append((number, record, text[:SAMPLE].decode("utf-8", "replace")))
        else:
            numbers.append(number)
            records.append(record)
    if watch is not None:
        watch.note(records, format.raw)
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
    """Return the values of a column: numbers if all values are numbers, else texts.

    Args:
        values: `[n]` values of JSON.
        kind: The kind of the column; None for formats without kinds.
        unread: Receives place → reason for the values that the column does not accept.
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
    rows = frame.select(pl.all().str.replace_all(r"[\r\n]", " "))
    write_atomically(path / "rows.csv", partial(rows.write_csv, quote_style="necessary"))
    return str(path / "rows.csv")


def _sample_text(value: Any) -> str | None:
    if isinstance(value, list | dict):
        return None if is_object(value) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text_of_value(value, ColumnKind("category")) or None
