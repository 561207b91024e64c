"""Score a CSV by an exported ONNX model: numpy, onnxruntime and xxhash, no torch, no sparsegroup.

    python examples/score_onnx.py EXPORT LOG [--rows N] [--out scores.csv]

EXPORT is a folder that `sparsegroup export` has written; LOG has a header that names the export's columns, may be
compressed (.gz, .xz), and may have a label column, for the log loss. What the columns were taken for in training, the
manifest says, and they are read so here. Of Criteo's and Avazu's logs training derives others (see "Preparing a log" in
docs/logs.md): their values must be as it hashed them.
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
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnxruntime
import xxhash

BATCH = 4096
MISSING = ("", "NA", "N/A", "n/a", "null", "NULL", "Null", "None", "none", "NaN", "nan", "\\N", "?", "-")
BOOLEANS = {"true": "1", "yes": "1", "t": "1", "y": "1", "false": "0", "no": "0", "f": "0", "n": "0"}
SEPARATORS = {"space": " ", "comma": ",", "tab": "\t"}
PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
OPENERS: Mapping[str, Any] = {".gz": gzip.open, ".xz": lzma.open}


def key_of(field: int, value: str) -> int:
    """The key of a value: field · 2⁵⁶ + (XXH3_64(value) mod 2⁵⁶), as a signed 64-bit number."""
    key = field << 56 | xxhash.xxh3_64_intdigest(value.encode()) & (1 << 56) - 1
    return key - (1 << 64) if key >> 63 else key


def numeral(text: str) -> str:
    """The one spelling of a number: 1 for 1.0 and 01."""
    if re.fullmatch(r"[+-]?\d+", text):
        return str(int(text))
    try:
        value = float(text)
    except ValueError:
        return text
    whole = value.is_integer() and abs(value) < 2**53
    return str(int(value)) if whole else re.sub(r"e([+-])0*", r"e\1", repr(value))


def number(text: str) -> float:
    return math.nan if text in MISSING or math.isinf(float(text)) else float(text)


def clock(text: str, unit: str) -> datetime.datetime:
    if unit in PER_SECOND:
        seconds = math.floor(float(text)) // PER_SECOND[unit] if "." in text else int(text) // PER_SECOND[unit]
        return datetime.datetime(1970, 1, 1) + datetime.timedelta(seconds=seconds)
    return datetime.datetime.fromisoformat(text)


def made_of(row: Mapping[str, str], kinds: Mapping[str, str]) -> dict[str, Any]:
    """What training made of a row: texts, numbers and lists of texts by the names of fields and numbers."""
    made: dict[str, Any] = {}
    for name, kind in kinds.items():
        role, _, detail = kind.partition(" ") if kind.startswith(("time", "list")) else (kind, "", "")
        if role in ("label", "split", "ignore") or name not in row or (role == "time" and not detail):
            continue
        own, raw, text = f"{name}.value" if name in ("label", "time") else name, row[name], row[name].strip()
        missing = text in MISSING
        if role in ("timestamp", "time"):
            at = None if missing else clock(text, detail)
            made[f"{name}.hour"] = "" if at is None else str(at.hour)
            made[f"{name}.weekday"] = "" if at is None else str(at.isoweekday())
        elif role == "list" and detail == "json":
            values = json.loads(text) if not missing else []
            made[own] = [value if isinstance(value, str) else numeral(json.dumps(value)) for value in values] or [""]
        elif role == "list":
            made[own] = [""] if missing else raw.split(SEPARATORS.get(detail, detail))
        elif role == "boolean":
            made[own] = "" if missing else BOOLEANS.get(text.lower(), text)
        elif role == "number":
            made[own] = number(text)
        elif role == "category":
            made[own] = raw
        else:  # a category of numbers, and perhaps the number, too
            made[own], made[f"{name}.number"] = "" if missing else numeral(text), number(text)
    return made


def inputs_of(rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Any], separator: str) -> dict[str, np.ndarray]:
    """What the model takes of some rows; an empty number is 0, an empty list one empty value."""
    numbers = {name: place for place, name in enumerate(columns["fields"])}
    single = [name for name in columns["fields"] if name not in columns["lists"]]
    keys = [[key_of(numbers[name], row[name]) for name in single] for row in rows]
    inputs = {"keys": np.array(keys, np.int64).reshape(len(rows), len(single))}
    if columns["numbers"]:
        inputs["numbers"] = np.array(
            [[float(row[name] or 0) for name in columns["numbers"]] for row in rows], np.float32
        )
    for name in columns["lists"]:
        bags = [[key_of(numbers[name], value) for value in parts(row[name], separator)] for row in rows]
        inputs[f"{name}.keys"] = np.array(list(itertools.chain(*bags)), np.int64)
        inputs[f"{name}.offsets"] = np.cumsum([0, *map(len, bags)], dtype=np.int64)
    return inputs


def parts(values: str | list[str], separator: str) -> list[str]:
    return values.split(separator) if isinstance(values, str) else values


def read(file: IO[str], wanted: Sequence[str]) -> Iterator[list[dict[str, str]]]:
    """The rows, some thousand at a time."""
    rows = csv.DictReader(file)
    missing = [name for name in wanted if name not in (rows.fieldnames or ())]
    if missing:
        sys.exit(f"error: the log has no column {missing[0]!r}; it has {', '.join(rows.fieldnames or ())}")
    while batch := list(itertools.islice(rows, BATCH)):
        yield batch


def main() -> None:
    parser = argparse.ArgumentParser(description="Score a CSV by an exported ONNX model.")
    parser.add_argument("export", type=Path, metavar="EXPORT")
    parser.add_argument("log", type=Path, metavar="LOG")
    parser.add_argument("--rows", type=int, help="only so many rows, from the start")
    parser.add_argument("--out", type=Path, help="write row and probability to this CSV")
    parser.add_argument("--separator", default="|", help="between the values of a list (default: |)")
    given = parser.parse_args()
    manifest = json.loads((given.export / "manifest.json").read_text(encoding="utf-8"))
    columns = manifest["columns"]
    if columns["hash"] != "xxh3_64":
        sys.exit(f"error: the export's keys are made with {columns['hash']}, this script knows xxh3_64")
    session = onnxruntime.InferenceSession(given.export / "model.onnx", providers=["CPUExecutionProvider"])
    data = manifest["config"]["data"]
    kinds = data.get("columns") if isinstance(data.get("columns"), dict) else {}
    wanted = [name for name, kind in kinds.items() if kind not in ("label", "split", "ignore", "time")]
    label = data.get("label") or next((name for name, kind in kinds.items() if kind == "label"), None)
    done, labelled, loss, shown = 0, 0, 0.0, []
    opener = OPENERS.get(given.log.suffix, open)
    with (
        opener(given.log, "rt", encoding="utf-8-sig", newline="") as file,
        given.out.open("w", newline="") if given.out else nullcontext() as out,
    ):
        if out:
            out.write("row,probability\n")
        for rows in read(file, wanted or (*columns["fields"], *columns["numbers"])):
            if given.rows is not None:
                rows = rows[: given.rows - done]
            if not rows:
                break
            inputs = [made_of(row, kinds) for row in rows] if kinds else rows
            (probabilities,) = session.run(["probability"], inputs_of(inputs, columns, given.separator))
            if label is None:
                label = next((name for name in ("label", "click") if name in rows[0]), "")
            if label in rows[0]:
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
