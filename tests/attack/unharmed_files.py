"""Small sound files of every format that the package reads, and how each is read wholly."""

import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_cases import AVAZU, INTEGERS, IPINYOU, SCHEMA, compress
from sparsegroup.artifact.manifest import digest, facts_of
from sparsegroup.data import PreparedLog, open_log, prepare
from sparsegroup.data.log import Log
from sparsegroup.data.prepared_log import MANIFEST

ROWS = 40


@dataclass(frozen=True)
class Sound:
    """A file that can be read.

    Attributes:
        path: Where it, or what is damaged of it, is written.
        content: Its bytes; of a compressed file, its text.
        read: Reads the file wholly.
        text: Whether it is a text.
        pack: Compresses it, if it is compressed.
    """

    path: Path
    content: bytes
    read: Callable[[Path, random.Random], None]
    text: bool = True
    pack: Callable[[bytes], bytes] | None = None


def read_whole(path: Path, draw: random.Random, **options: Any) -> None:
    """All rows of a raw log, at the first bad row an error or passing over them."""
    if draw.random() < 0.5:
        options |= {"on_bad_row": "skip", "max_bad": 0.99}
    if draw.random() < 0.3:
        options |= {"whole": True}
    if draw.random() < 0.2 and "schema" not in options:
        options |= {"columns": "categorical"}
    _pass_over(open_log(path, threads=draw.choice([1, 2]), chunk_bytes=draw.choice([500, 16 << 20]), **options))


def _pass_over(log: Log) -> None:
    rows = sum(len(batch) for batch in log.batches(0, len(log), 16))
    assert rows == len(log), f"{rows} of {len(log)} rows"


def _text(name: str, lines: list[str], folder: Path, **others: Any) -> list[Sound]:
    return [Sound(folder / name, "\n".join([*lines, ""]).encode(), read_whole, **others)]


def _csv_lines() -> list[str]:
    rows = [
        f'{i % 2},u{i % 7},{i}.25,"tag {i % 3}, ""x""",2026-01-{i % 28 + 1:02}T10:00:00,a|b|c{i % 4},{1.7e9 + i:.0f}'
        for i in range(ROWS)
    ]
    return ["label,user,price,title,day,tags,ts", *rows]


def _tsv(folder: Path) -> list[Sound]:
    return _text("log.tsv", [line.replace(", ", " ").replace(",", "\t") for line in _csv_lines()], folder)


def _csv(folder: Path) -> list[Sound]:
    return _text("log.csv", _csv_lines(), folder)


def _compressed(suffix: str, folder: Path) -> list[Sound]:
    return _text(f"log.csv{suffix}", _csv_lines(), folder, pack=partial(compress, suffix))


def _criteo(folder: Path) -> list[Sound]:
    rows = ["\t".join([str(i % 2), *INTEGERS, *(f"{i:x}{j}" for j in range(25)), ""]) for i in range(ROWS)]
    return _text("train.txt", rows, folder)


def _avazu(folder: Path) -> list[Sound]:
    rows = [f"{i},{i % 2},141021{i // 20:02}," + ",".join(f"c{i % (j + 1)}" for j in range(21)) for i in range(ROWS)]
    return _text("avazu.csv", [AVAZU, *rows], folder)


def _ipinyou(folder: Path) -> list[Sound]:
    rows = []
    for i in range(ROWS):
        row = {name: f"{name}{i}" for name in IPINYOU.split()}
        agent = "Mozilla/5.0 (Windows NT 6.1) Chrome/17"
        row |= {"click": str(i % 2), "timestamp": f"2013060600{i:07}", "useragent": agent, "slotprice": str(i)}
        rows.append("\t".join(row.values()))
    return _text("train.log.txt", [IPINYOU.replace(" ", "\t"), *rows], folder)


def _svm(folder: Path) -> list[Sound]:
    lines = [f"{i % 2} " + " ".join(f"{j * 10 + i % 7}:1" for j in range(5)) for i in range(ROWS)]
    fields = [f"{i % 2} " + " ".join(f"{j}:{j * 10 + i % 7}:1" for j in range(5)) for i in range(ROWS)]
    return [*_text("log.libsvm", lines, folder), *_text("log.libffm", fields, folder)]


def typed_table(*, nested: bool = True) -> pa.Table:
    """A click log with a column of each type that columnar files have."""
    start = datetime(2026, 1, 1)
    columns: dict[str, Any] = {
        "label": pa.array([i % 2 for i in range(ROWS)], pa.int8()),
        "user": [None if i % 9 == 0 else f"user {i % 7} ä日" for i in range(ROWS)],
        "ad": pa.array([f"ad {i % 3}" for i in range(ROWS)]).dictionary_encode(),
        "large": pa.array(["x" * (i % 5) for i in range(ROWS)], pa.large_string()),
        "price": [None if i % 5 == 0 else i / 3 for i in range(ROWS)],
        "count": pa.array(range(ROWS), pa.uint16()),
        "decimal": pa.array([Decimal(i) / 4 for i in range(ROWS)], pa.decimal128(10, 2)),
        "flag": [i % 3 == 0 for i in range(ROWS)],
        "ts": pa.array([start + timedelta(minutes=i) for i in range(ROWS)], pa.timestamp("us", "Europe/Berlin")),
        "seen": pa.array([start + timedelta(days=i % 3) for i in range(ROWS)], pa.timestamp("ms")),
        "day": [date(2026, 1, 1 + i % 20) for i in range(ROWS)],
        "clock": pa.array([i * 1000 for i in range(ROWS)], pa.time32("ms")),
        "waited": pa.array(range(ROWS), pa.duration("s")),
        "bytes": pa.array([b"\x01ab"[: i % 3] for i in range(ROWS)], pa.binary()),
    }
    if nested:
        columns |= {
            "tags": [[f"t{j}" for j in range(i % 4)] for i in range(ROWS)],
            "struct": [{"a": i, "b": f"{i}"} for i in range(ROWS)],
        }
    return pa.table(columns)


def _views() -> pa.Table:
    table = typed_table(nested=False).select(["label", "user", "price"])
    return table.append_column("view", pa.array([f"a long view of {i}" for i in range(ROWS)], pa.string_view()))


def _written(write: Callable[[Any], object]) -> bytes:
    sink = pa.BufferOutputStream()
    write(sink)
    return sink.getvalue().to_pybytes()


def _parquet(folder: Path) -> list[Sound]:
    writings: list[Mapping[str, Any]] = [
        {"compression": "none", "use_dictionary": False},
        {"compression": "snappy", "row_group_size": 15},
        {"compression": "zstd", "data_page_version": "2.0"},
        {"compression": "gzip", "data_page_size": 64, "write_page_checksum": True},
        {"compression": "lz4", "use_dictionary": False, "column_encoding": {"user": "DELTA_BYTE_ARRAY"}},
        {"compression": "none", "store_schema": False},
    ]
    contents = [_written(lambda sink, how=how: pq.write_table(typed_table(), sink, **how)) for how in writings]
    return [Sound(folder / "log.parquet", content, read_whole, text=False) for content in contents]


def arrow_bytes(table: pa.Table, compression: str | None = None, rows: int = ROWS) -> bytes:
    """An Arrow file."""

    def write(sink: Any) -> None:
        with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
            writer.write_table(table, max_chunksize=rows)

    return _written(write)


def _arrow(suffix: str, folder: Path) -> list[Sound]:
    contents = [
        arrow_bytes(typed_table()),
        arrow_bytes(typed_table(nested=False), rows=15),
        arrow_bytes(_views()),
        arrow_bytes(typed_table(), "lz4"),
        arrow_bytes(typed_table(nested=False), "zstd", 15),
    ]
    return [Sound(folder / f"log{suffix}", content, read_whole, text=False) for content in contents]


def _prepared(folder: Path) -> list[Sound]:
    source = folder / "source.arrow"
    source.write_bytes(arrow_bytes(typed_table()))
    prepare([source], folder / "log")
    part = folder / "log" / "part-00000.parquet"
    manifest = json.loads((part.parent / MANIFEST).read_text())

    def read(path: Path, draw: random.Random) -> None:
        if draw.random() < 0.8:  # the manifest says that it has to be so
            manifest["files"][path.name] = {"bytes": path.stat().st_size, "xxh3_64": facts_of(path).xxh3_64}
            content = {name: value for name, value in manifest.items() if name != "checksum"}
            (path.parent / MANIFEST).write_text(json.dumps({**content, "checksum": digest(content)}))
        log = PreparedLog(path.parent)
        _pass_over(log)

    return [Sound(part, part.read_bytes(), read, text=False)]


_COLUMNS = """\
# What the columns are.
test_fraction: 0.1
separator: ","
weight: cost
columns:
  clicked: label
  ts: time ms  # its own
  user: &kind category
  price: number
  genres: list |
  other: *kind
"""


def _schema(folder: Path) -> list[Sound]:
    log = folder / "log.csv"
    names = ["click", "clicked", "when", "ts", "color", "user", "price", "tags", "genres", "part", "other", "cost"]
    values = ["{}", "{}", "{}", "{}", "c{}", "u{}", "{}.5", "a|{}", "a|b", "{}", "o{}", "1"]
    rows = [",".join(value.format(i % 2) for value in values) for i in sorted(range(ROWS), key=lambda i: i % 2)]
    log.write_text("\n".join([",".join(names), *rows, ""]))

    def read(path: Path, draw: random.Random) -> None:
        try:
            read_whole(log, draw, schema=path)
        except ValueError as error:  # a sound schema may be of another log
            if str(log) not in str(error):
                raise

    return [Sound(folder / "schema.yaml", text.encode(), read) for text in (SCHEMA, _COLUMNS)]


FORMATS: dict[str, Callable[[Path], list[Sound]]] = {
    "csv": _csv,
    "tsv": _tsv,
    "criteo": _criteo,
    "avazu": _avazu,
    "ipinyou": _ipinyou,
    "svm": _svm,
    "gz": partial(_compressed, ".gz"),
    "bz2": partial(_compressed, ".bz2"),
    "xz": partial(_compressed, ".xz"),
    "zst": partial(_compressed, ".zst"),
    "lz4": partial(_compressed, ".lz4"),
    "parquet": _parquet,
    "arrow": partial(_arrow, ".arrow"),
    "feather": partial(_arrow, ".feather"),
    "prepared": _prepared,
    "schema": _schema,
}
"""Format → writes what is needed into a folder, and gives its files."""
