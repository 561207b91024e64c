"""Rows that arrive as JSON objects or as maps of texts, as the texts that a CSV of the same rows has."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from sparsegroup.data.kinds import text_of
from sparsegroup.data.raw.files import LINE, SAMPLE, BadRow
from sparsegroup.data.raw.text import LONGEST_LINE
from sparsegroup.data.schema import LogFormat

Record = Mapping[str, Any]
"""Column → value of one row, without nested objects."""

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
    for value in found.values():
        if type(value) is dict or type(value) is list:
            return _opened(found)
    return found


def _is_text(value: Any) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _opened(row: Record, prefix: str = "") -> dict[str, Any]:
    """Nested objects as columns, and each field of a list of objects as a list, as structs of typed columns are."""
    found: dict[str, Any] = {}
    for key, value in row.items():
        name = prefix + key
        if isinstance(value, dict):
            found |= _opened(value, f"{name}.")
        elif isinstance(value, list) and any(isinstance(one, dict) for one in value):
            objects = [one if isinstance(one, dict) else {} for one in value]
            for inner in dict.fromkeys(key for one in objects for key in one):
                found[f"{name}.{inner}"] = [one.get(inner) for one in objects]
        else:
            found[name] = value
    return found


def frame_of(rows: Iterable[tuple[int, Record | str, bytes]], format: LogFormat, bad: list[BadRow]) -> pl.DataFrame:
    """The format's raw columns of some rows as texts, empty and missing values as null, and the column `LINE`.

    Args:
        rows: Number of each row, its record or why there is none, and its text as it arrived.
        format: The format.
        bad: Receives the rows without a record.
    """
    numbers: list[int] = []
    records: list[Record] = []
    for number, record, text in rows:
        if isinstance(record, str):
            bad.append((number, record, text[:SAMPLE].decode("utf-8", "replace")))
        else:
            numbers.append(number)
            records.append(record)
    is_plain = not format.kinds
    columns = {name: _texts([record.get(name) for record in records], is_plain) for name in format.raw}
    return pl.DataFrame({**columns, LINE: pl.Series(numbers, dtype=pl.Int64)})


def _texts(values: Sequence[Any], is_plain: bool) -> pl.Series:
    """Values of one column as texts, as a typed column of the same values is written."""
    types = set(map(type, values))
    if types <= {str, type(None)}:
        texts = pl.Series(values, dtype=pl.String)
    elif types <= {int, type(None)}:
        texts = pl.Series([value if value is None else str(value) for value in values], dtype=pl.String)
    elif types <= _FLOATS and float in types and all(abs(value) < 2**53 for value in values if type(value) is int):
        frame = pl.DataFrame({"": pl.Series(values, dtype=pl.Float64)})
        texts = frame.select(text_of("", frame.schema[""])).to_series()
    else:
        texts = pl.Series([_text(value, is_plain) for value in values], dtype=pl.String)
    return texts.replace("", None)


def _text(value: Any, is_plain: bool) -> str | None:
    match value:
        case None:
            return None
        case str():
            return value
        case bool():
            return str(int(value)) if is_plain else "true" if value else "false"
        case int():
            return str(value)
        case float():
            return str(_texts([value], is_plain)[0])
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def write_csv(path: Path, records: Sequence[Record]) -> str:
    """Write records to a CSV `path`/rows.csv with all their columns, line breaks as blanks; its name."""
    names = list(dict.fromkeys(name for record in records for name in record))
    frame = pl.DataFrame({name: _texts([record.get(name) for record in records], False) for name in names})
    path.mkdir(parents=True, exist_ok=True)
    frame.select(pl.all().str.replace_all(r"[\r\n]", " ")).write_csv(path / "rows.csv", quote_style="necessary")
    return str(path / "rows.csv")
