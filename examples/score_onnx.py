"""Score a CSV by an exported ONNX model: numpy, onnxruntime and xxhash, no torch, no sparsegroup.

    python examples/score_onnx.py EXPORT LOG [--rows N] [--out scores.csv]

EXPORT is a folder that `sparsegroup export` has written; LOG has a header that names the export's columns, may be
compressed (.gz, .xz), and may have a label column, for the log loss. The manifest has the kind of each column of the
training log, and this script reads values as training does. It refuses a kind that it does not know. Training derives
the columns of Criteo's, Avazu's and iPinYou's logs from others (see "Preparing a log" in docs/logs.md): give --hashed
if the values of LOG are the derived ones.
"""

import argparse
import csv
import datetime
import gzip
import itertools
import json
import lzma
import math
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnxruntime
import xxhash

BATCH = 4096
MISSING = {
    *("", "NA", "N/A", "n/a", "na", "n.a.", "null", "NULL", "Null", "None", "none", "nil", "NaN", "nan", "-nan", "NaT"),
    *("<NA>", "<na>", "(null)", "<null>", "\\N", "?", "-", "--", ".", "#N/A", "#NA", "#N/A N/A", "#DIV/0!", "#VALUE!"),
    *("#REF!", "#NUM!", "#NAME?", "#NULL!", "1.#QNAN", "-1.#IND", "1.#IND"),
}
BOOLEANS = dict.fromkeys(("true", "yes", "t", "y", "1"), "1") | dict.fromkeys(("false", "no", "f", "n", "0"), "0")
SEPARATORS = {"space": " ", "comma": ",", "tab": "\t"}
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
AMOUNTS = {
    "": r"[+-]?(?:\d{1,3}(?:[,'’\s]\d{3})+|\d*)(?:\.\d+)?",
    "comma": r"[+-]?(?:\d{1,3}(?:[.'’\s]\d{3})+|\d*)(?:,\d+)?",
}
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?:inf|infinity)"
ISO = r"\s*(\d{4}-\d\d-\d\d)(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,]\d+)?)?\s*(?:Z|UTC|[+-]\d\d(?::?\d\d)?)?)?\s*"  # local
OPENERS: Mapping[str, Any] = {".gz": gzip.open, ".xz": lzma.open}
DETAILED = ("timestamp ", "time ", "list ", "category, amount ", "amount ")
"""Beginnings of kinds that have a detail, such as a unit or a separator."""

TEXTS, NUMERALS = ("category", "category, domain"), ("category of numbers", "category, number")
"""Kinds of the columns whose vocabularies lists can share, by the spelling of their values."""

UNREAD = ("label", "split", "weight", "ignore")
"""Kinds that are not read to score a row."""


class UnreadableError(ValueError):
    """A value that cannot be read."""


def key_of(field: int, value: str) -> int:
    """Return the key of a value: field · 2⁵⁶ + (XXH3_64(value in NFC) mod 2⁵⁶), as a signed 64-bit number."""
    text = unicodedata.normalize("NFC", value).encode()
    key = field << 56 | xxhash.xxh3_64_intdigest(text) & (1 << 56) - 1
    return key - (1 << 64) if key >> 63 else key


def spelled(value: float) -> str:
    """Return a number in the hashed spelling: 7 for 7.0; with an exponent below .00001."""
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    if value.is_integer() and abs(value) < 1e38:
        return str(int(value))
    if 1e-5 <= abs(value) < 1e15:
        return f"{Decimal(repr(value)):f}"
    return re.sub(r"e([+-])0", r"e\1", repr(value))


def numeral(text: str) -> str:
    """Return the hashed spelling of a number: 7 for 7.0, +7 and 007. Another text is unchanged."""
    if whole := re.fullmatch(r"([+-]?[0-9]+)(?:\.0*)?", text):
        return str(int(whole[1]))
    return spelled(float(text)) if re.fullmatch(NUMBER, text, re.IGNORECASE | re.ASCII) else text


def number(text: str) -> float:
    if text in MISSING:
        return math.nan
    if not re.fullmatch(NUMBER, text, re.IGNORECASE | re.ASCII):
        raise UnreadableError
    return finite(float(text))


def amount(text: str, detail: str) -> float:
    """Return the number of an amount, without its currency."""
    if text in MISSING:
        return math.nan
    text = re.sub(r"[^\W\d_]+\.?|[^\w\s.,'’+-]", "", text).strip()
    if not re.fullmatch(AMOUNTS[detail], text):
        raise UnreadableError
    digits = re.sub(r"[^\d,+-]" if detail else r"[^\d.+-]", "", text).replace(",", ".")
    if not re.search(r"\d", digits):
        raise UnreadableError
    return finite(float(digits))


def finite(value: float) -> float:
    return float(np.float32(value)) if abs(value) < 3.4028235677973366e38 else math.nan


def clock(text: str, detail: str) -> datetime.datetime:
    """Return the time in the written zone, else in UTC."""
    if detail in PER_SECOND:
        value = int(text) if re.fullmatch(r"[+-]?\d+", text) else math.floor(number(text))
        return datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=value // PER_SECOND[detail])
    if "%" not in detail:
        if not (parts := re.fullmatch(ISO, text, re.ASCII)):
            raise UnreadableError
        if int(parts[4] or 0) > 60:
            raise UnreadableError
        return datetime.datetime.fromisoformat(f"{parts[1]}T{parts[2] or '00'}:{parts[3] or '00'}:00")
    if "%.f" in detail:
        text, detail = re.sub(r"(:\d\d)\.\d+", r"\1", text), detail.replace("%.f", "")
    try:
        return datetime.datetime.strptime(text, detail)
    except ValueError:
        return datetime.datetime.strptime(text, detail.replace("%b", "%B"))


def json_values(text: str) -> list[str]:
    values = json.loads(text)
    if not isinstance(values, list):
        raise UnreadableError
    return [part_of(value) for value in values]


def part_of(value: object) -> str:
    """Return a value of a JSON array in the hashed spelling."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(value) if isinstance(value, int) else spelled(value)
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def domain(text: str) -> str:
    lower = text.lower()
    host = re.match(r"[a-z][a-z0-9+.-]*://(?:[^/@]*@)?([^/:?#]*)", lower) or re.search(r"@([^@]+)$", lower)
    return "" if text in MISSING else host[1] if host else lower


def words(raw: str) -> list[str]:
    found = re.findall(r"[^\W_]+", unicodedata.normalize("NFC", raw).lower())[:64]
    return [] if raw.strip() in MISSING else list(dict.fromkeys(found))


def values_of(name: str, kind: str, raw: str, made: str = "") -> dict[str, Any]:
    """Return the texts, numbers and lists of texts that training derives from a value, by name of field or number.

    `made` is the name of the column's main field or number, if it differs from the name of the column. After "shares"
    is the kind of the column whose vocabulary the column shares.
    """
    kind, _, others = kind.partition(" except ")
    kind, _, shared = kind.partition(" shares ")
    prefix = next((one for one in DETAILED if kind.startswith(one)), kind)
    role, detail, made = prefix.strip(), kind.removeprefix(prefix), made or name
    if others and raw.strip() in json.loads(others):
        raw = ""
    text = raw.strip()
    is_missing = text in MISSING
    match role:
        case "category":
            return {made: raw}
        case "category of numbers":
            return {made: "" if is_missing else numeral(text)}
        case "number":
            return {made: number(text)}
        case "category, number":
            return {made: "" if is_missing else numeral(text), f"{name}.number": number(text)}
        case "amount":
            return {made: amount(text, detail)}
        case "category, amount":
            value = amount(text, detail)
            return {made: "" if math.isnan(value) else spelled_float32(value), f"{name}.number": value}
        case "boolean":
            return {made: "" if is_missing else BOOLEANS.get(text.lower()) or numeral(text)}
        case "words":
            return {made: words(raw) or [""]}
        case "domain":
            return {made: domain(text)}
        case "category, domain":
            return {made: raw, f"{name}.domain": domain(text)}
        case "list":
            if detail == "json":
                values = [] if is_missing else json_values(text)
            else:
                is_absent = not raw if shared in TEXTS else is_missing
                values = [] if is_absent else raw.split(SEPARATORS.get(detail, detail))
            if shared in NUMERALS:
                values = ["" if value.strip() in MISSING else numeral(value.strip()) for value in values]
            return {made: values}
        case "time" | "timestamp":
            at = None if is_missing else clock(text, detail)
            has_hour = detail != "date" and ("%" not in detail or "%H" in detail or "%I" in detail)
            parts = {f"{name}.hour": "" if at is None else str(at.hour)} if has_hour else {}
            return parts | {f"{name}.weekday": "" if at is None else str(at.isoweekday())}
    raise KeyError(kind)


def spelled_float32(value: float) -> str:
    """Return a float32 in the hashed spelling."""
    if value.is_integer():
        return spelled(value)
    return spelled(float(str(np.float32(value))))


def made_of(row: Mapping[str, str], kinds: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    """Return the values that training derives from a row. Exit if a value cannot be read."""
    made: dict[str, Any] = {}
    for name, (kind, own) in kinds.items():
        try:
            made |= values_of(name, kind, row[name], own)
        except (ValueError, OverflowError):
            sys.exit(f"error: {name!r} cannot be read as {kind}: {row[name]!r}")
    return made


def kinds_to_read(manifest: Mapping[str, Any], hashed: bool) -> dict[str, tuple[str, str]]:
    """Return column → kind and name of the field, for all columns of the model. Exit if a kind is unknown."""
    data, columns = manifest["config"]["data"], manifest["columns"]
    kinds = data.get("columns")
    if not isinstance(kinds, dict):
        if data.get("schema") is not None or (kinds != "categorical" and not hashed):
            sys.exit("error: the manifest has no kinds of columns; give --hashed if the log has the derived values")
        return {}
    needed, read = {*columns["fields"], *columns["numbers"]}, {}
    for name, kind in kinds.items():
        if kind.partition(" ")[0].rstrip(",") in UNREAD or kind == "time":
            continue
        _, mark, shared = kind.partition(" except ")[0].partition(" shares ")
        if mark:  # the kind of the other column says how values are spelled
            kind = kind.replace(mark + shared, mark + kinds[shared].partition(" except ")[0], 1)
        own = name if name in needed or f"{name}.value" not in needed else f"{name}.value"
        try:
            made = {*values_of(name, kind, "", own)}
        except KeyError:
            sys.exit(f"error: column {name!r} is of the kind {kind!r}, which this script does not know")
        if made <= needed:
            read[name] = (kind, own)
            needed -= made
    if needed:
        sys.exit(f"error: the manifest does not say which column {min(needed)!r} is made of")
    return read


def inputs_of(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Any], separator: str) -> dict[str, np.ndarray]:
    """What the model takes of some rows; an empty number is 0, an empty list one empty value."""
    places = {name: place for place, name in enumerate(columns["fields"])}
    numbers = {name: places[columns.get("shares", {}).get(name, name)] for name in places}
    single = [name for name in columns["fields"] if name not in columns["lists"]]
    keys = [[key_of(numbers[name], row[name]) for name in single] for row in rows]
    inputs = {"keys": np.array(keys, np.int64).reshape(len(rows), len(single))}
    if columns["numbers"]:
        inputs["numbers"] = np.array(
            [[float(row[name] or 0) for name in columns["numbers"]] for row in rows], np.float32
        )
    for name in columns["lists"]:
        bags = [[key_of(numbers[name], value) for value in parts(row[name], separator) or [""]] for row in rows]
        inputs[f"{name}.keys"] = np.array(list(itertools.chain(*bags)), np.int64)
        inputs[f"{name}.offsets"] = np.cumsum([0, *map(len, bags)], dtype=np.int64)
    return inputs


def parts(values: str | list[str], separator: str) -> list[str]:
    return values.split(separator) if isinstance(values, str) else values


def read(file: IO[str], wanted: Sequence[str]) -> Iterator[list[dict[str, str]]]:
    """Yield some thousand rows at a time. If the header has a tab, tabs separate columns and quotes are literal."""
    header = file.readline()
    lines = itertools.chain([header], file)
    is_tsv = "\t" in header
    rows = csv.DictReader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if is_tsv else csv.DictReader(lines)
    missing = [name for name in wanted if name not in (rows.fieldnames or ())]
    if missing:
        sys.exit(f"error: the log has no column {missing[0]!r}; it has {', '.join(rows.fieldnames or ())}")
    while batch := list(itertools.islice(rows, BATCH)):
        if any(None in row or None in row.values() for row in batch):
            sys.exit("error: a row has more or fewer values than the header has columns")
        yield batch


def main() -> None:
    parser = argparse.ArgumentParser(description="Score a CSV by an exported ONNX model.")
    parser.add_argument("export", type=Path, metavar="EXPORT")
    parser.add_argument("log", type=Path, metavar="LOG")
    parser.add_argument("--rows", type=int, help="only so many rows, from the start")
    parser.add_argument("--out", type=Path, help="write row and probability to this CSV")
    parser.add_argument("--hashed", action="store_true", help="the log has the values that training hashed")
    parser.add_argument("--separator", default="|", help="with --hashed, between the values of a list (default: |)")
    given = parser.parse_args()
    manifest = json.loads((given.export / "manifest.json").read_text(encoding="utf-8"))
    columns = manifest["columns"]
    if columns["hash"] != "xxh3_64":
        sys.exit(f"error: the export's keys are made with {columns['hash']}, this script knows xxh3_64")
    kinds = kinds_to_read(manifest, given.hashed)
    session = onnxruntime.InferenceSession(given.export / "model.onnx", providers=["CPUExecutionProvider"])
    outputs = [one.name for one in session.get_outputs()]
    if outputs != ["probability"]:
        sys.exit(f"error: the model gives {', '.join(outputs)}; this script writes probabilities")
    data = manifest["config"]["data"]
    kind_of = data["columns"] if kinds else {}
    label = data.get("label") or next((name for name, kind in kind_of.items() if kind == "label"), None)
    done, labelled, loss, shown = 0, 0, 0.0, []
    opener = OPENERS.get(given.log.suffix, open)
    with (
        opener(given.log, "rt", encoding="utf-8-sig", newline="") as file,
        given.out.open("w", newline="") if given.out else nullcontext() as out,
    ):
        if out:
            out.write("row,probability\n")
        for rows in read(file, [*kinds] or (*columns["fields"], *columns["numbers"])):
            if given.rows is not None:
                rows = rows[: given.rows - done]
            if not rows:
                break
            inputs = [made_of(row, kinds) for row in rows] if kinds else rows
            (probabilities,) = session.run(["probability"], inputs_of(inputs, columns, given.separator))
            if not np.isfinite(probabilities).all():
                sys.exit("error: a number is missing that the model needs")
            if label is None:
                label = next((name for name in ("label", "click") if name in rows[0]), "")
            if isinstance(label, str) and label in rows[0]:
                labelled += len(rows)
                loss -= sum(
                    math.log(max(float(p if row[label].lower() in ("1", "1.0", "true", "yes") else 1 - p), 1e-15))
                    for row, p in zip(rows, probabilities, strict=True)
                )
            if out:
                out.writelines(f"{done + place},{float(p)!r}\n" for place, p in enumerate(probabilities))
            shown += probabilities[: 5 - len(shown)].tolist() if len(shown) < 5 else []
            done += len(rows)
    print("first scores:", ", ".join(f"{p:.6f}" for p in shown))
    print(f"{done:,} rows" + (f", log loss {loss / labelled:.6f}" if labelled else ""))


if __name__ == "__main__":
    main()
