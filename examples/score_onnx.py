"""Score a CSV by an exported ONNX model: numpy, onnxruntime and xxhash, no torch, no sparsegroup.

    python examples/score_onnx.py EXPORT LOG [--rows N] [--out scores.csv]

EXPORT is a folder that `sparsegroup export` has written; LOG has a header that names the export's columns, may be
compressed (.gz, .xz), and may have a label column, for the log loss. The values of the log must be those that training
hashed: of Criteo's and Avazu's logs it derives some (see "What becomes of which column" in docs/click-logs.md).
"""

import argparse
import csv
import gzip
import itertools
import json
import lzma
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnxruntime
import xxhash

BATCH = 4096
OPENERS: Mapping[str, Any] = {".gz": gzip.open, ".xz": lzma.open}


def key_of(field: int, value: str) -> int:
    """The key of a value: field · 2⁵⁶ + (XXH3_64(value) mod 2⁵⁶), as a signed 64-bit number."""
    key = field << 56 | xxhash.xxh3_64_intdigest(value.encode()) & (1 << 56) - 1
    return key - (1 << 64) if key >> 63 else key


def inputs_of(rows: Sequence[Mapping[str, str]], columns: Mapping[str, Any], separator: str) -> dict[str, np.ndarray]:
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
        bags = [[key_of(numbers[name], value) for value in row[name].split(separator)] for row in rows]
        inputs[f"{name}.keys"] = np.array(list(itertools.chain(*bags)), np.int64)
        inputs[f"{name}.offsets"] = np.cumsum([0, *map(len, bags)], dtype=np.int64)
    return inputs


def read(file: IO[str], columns: Mapping[str, Any]) -> Iterator[list[dict[str, str]]]:
    """The rows, some thousand at a time."""
    rows = csv.DictReader(file)
    missing = [name for name in (*columns["fields"], *columns["numbers"]) if name not in (rows.fieldnames or ())]
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
    label = manifest["config"]["data"].get("label")
    done, loss, shown = 0, 0.0, []
    opener = OPENERS.get(given.log.suffix, open)
    with (
        opener(given.log, "rt", encoding="utf-8-sig", newline="") as file,
        given.out.open("w", newline="") if given.out else nullcontext() as out,
    ):
        if out:
            out.write("row,probability\n")
        for rows in read(file, columns):
            if given.rows is not None:
                rows = rows[: given.rows - done]
            if not rows:
                break
            (probabilities,) = session.run(["probability"], inputs_of(rows, columns, given.separator))
            if label is None:
                label = next((name for name in ("label", "click") if name in rows[0]), "")
            if label in rows[0]:
                loss -= sum(
                    math.log(max(float(p if row[label] == "1" else 1 - p), 1e-15))
                    for row, p in zip(rows, probabilities, strict=True)
                )
            if out:
                out.writelines(f"{done + place},{float(p)!r}\n" for place, p in enumerate(probabilities))
            shown += probabilities[: 5 - len(shown)].tolist() if len(shown) < 5 else []
            done += len(rows)
    print("first scores:", ", ".join(f"{p:.6f}" for p in shown))
    print(f"{done:,} rows" + (f", log loss {loss / done:.6f}" if loss else ""))


if __name__ == "__main__":
    main()
