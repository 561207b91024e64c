"""Small sound files of every format that the package reads, how each is read wholly, and damages of them."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from data_cases import SCHEMA, compress
from forgery import seal_file
from sparsegroup.data import PreparedLog, open_log, prepare
from sparsegroup.data.log import Log
from sparsegroup.data.prepared_log import MANIFEST

ROWS = 40


@dataclass(frozen=True)
class Sound:
    """A file that can be read."""

    path: Path
    content: bytes  # of a compressed file, its text
    read: Callable[[Path, random.Random], None]  # wholly
    text: bool = True
    pack: Callable[[bytes], bytes] | None = None  # compresses it


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


def _csv(suffix: str, folder: Path) -> list[Sound]:
    rows = [
        f'{i % 2},u{i % 7},{i}.25,"tag {i % 3}, ""x""",2026-01-{i % 28 + 1:02}T10:00:00,a|b|c{i % 4},{1.7e9 + i:.0f}'
        for i in range(ROWS)
    ]
    text = "\n".join(["label,user,price,title,day,tags,ts", *rows, ""]).encode()
    return [Sound(folder / f"log.csv{suffix}", text, read_whole, pack=partial(compress, suffix) if suffix else None)]


def _svm(folder: Path) -> list[Sound]:
    texts = {
        name: "".join(f"{i % 2} {' '.join(cell(j, j * 10 + i % 7) for j in range(5))}\n" for i in range(ROWS))
        for name, cell in (("log.libsvm", lambda _, key: f"{key}:1"), ("log.libffm", lambda j, key: f"{j}:{key}:1"))
    }
    return [Sound(folder / name, text.encode(), read_whole) for name, text in texts.items()]


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


def _written(write: Callable[[Any], object]) -> bytes:
    sink = pa.BufferOutputStream()
    write(sink)
    return sink.getvalue().to_pybytes()


def _parquet(folder: Path) -> list[Sound]:
    writings: list[dict[str, Any]] = [
        {"compression": "snappy", "row_group_size": 15},
        {"compression": "zstd", "data_page_version": "2.0"},
        {"compression": "gzip", "data_page_size": 64, "write_page_checksum": True},
        {"compression": "none", "use_dictionary": False, "column_encoding": {"user": "DELTA_BYTE_ARRAY"}},
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
    views = typed_table(nested=False).select(["label", "price"])
    views = views.append_column("view", pa.array([f"a long view of {i}" for i in range(ROWS)], pa.string_view()))
    contents = [
        arrow_bytes(typed_table()),
        arrow_bytes(typed_table(nested=False), "zstd", 15),
        arrow_bytes(views, "lz4"),
    ]
    return [Sound(folder / f"log{suffix}", content, read_whole, text=False) for content in contents]


def _prepared(folder: Path) -> list[Sound]:
    source = folder / "source.arrow"
    source.write_bytes(arrow_bytes(typed_table()))
    prepare([source], folder / "log")
    part = folder / "log" / "part-00000.parquet"
    manifest = (part.parent / MANIFEST).read_bytes()

    def read(path: Path, draw: random.Random) -> None:
        if draw.random() < 0.8:  # the manifest says that it has to be so
            (path.parent / MANIFEST).write_bytes(manifest)
            seal_file(path.parent / MANIFEST, path.name)
        _pass_over(PreparedLog(path.parent))

    return [Sound(part, part.read_bytes(), read, text=False)]


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

    return [Sound(folder / "schema.yaml", SCHEMA.encode(), read)]


FORMATS: dict[str, Callable[[Path], list[Sound]]] = {
    **{suffix or "csv": partial(_csv, suffix) for suffix in ("", ".gz", ".bz2", ".xz", ".zst", ".lz4")},
    **{"svm": _svm, "parquet": _parquet, "prepared": _prepared, "schema": _schema},
    **{suffix[1:]: partial(_arrow, suffix) for suffix in (".arrow", ".feather")},
}
"""Format → writes what is needed into a folder, and gives its files."""

_PIECES = [b'"', b'""', b",", b"\t", b"|", b":", b" ", b"\0", b"\r", b"\n", b"\r\n", b"\xef\xbb\xbf", b"\xff", b"\xc3"]
_PIECES += [b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"1e999", b"nan", b"-", b"9" * 30, b"2", b"{", b"[", b"]", b"# "]
_PIECES += ["\u2028é\u0301日\U0001f600".encode(), b"x" * 70_000, b"x" * 1_100_000, b'"' * 999, b",\n" * 99]
_PIECES += [b"!!int ", b"&a", b"*a"]
_LENGTHS = [0, 1, 127, 255, 256, 1 << 40, *((1 << bits) - less for bits in (15, 31, 32, 63) for less in (0, 1))]


def mutated(content: bytes, draw: random.Random, *, text: bool) -> bytes:
    """Damaged content: one to four times."""
    for _ in range(draw.choice([1, 1, 1, 2, 4])):
        change = draw.choice([_bytes, _span, _piece, _piece, _lines] if text else [_bytes, _bytes, _span, _length])
        content = bytes(change(bytearray(content), draw))
    return content


def _bytes(content: bytearray, draw: random.Random) -> bytes:
    """Flipped bits, or other bytes in the place of some or between them."""
    if content and draw.random() < 0.5:
        for _ in range(draw.choice([1, 1, 2, 9])):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        return content
    start, length = draw.randint(0, len(content)), draw.choice([1, 4, 16])
    content[start : start + draw.choice([0, length])] = draw.choice([b"\0", b"\xff", draw.randbytes(1)]) * length
    return content


def _span(content: bytearray, draw: random.Random) -> bytes:
    """A part cut off at the end, left out, put elsewhere up to twenty times, or exchanged with another."""
    start, place = draw.randint(0, len(content)), draw.randint(0, len(content))
    stop = min(len(content), start + draw.randint(1, 300))
    match draw.randrange(4):
        case 0:
            return content[:place]
        case 1:
            return content[:start] + content[stop:]
        case 2:
            return content[:place] + content[start:stop] * draw.choice([1, 1, 2, 20]) + content[place:]
    end = place + stop - start
    content[start:stop], content[place:end] = content[place:end], content[start:stop]
    return content


def _length(content: bytearray, draw: random.Random) -> bytes:
    """Another number where one may stand that says how long something is; more often near the file's ends."""
    size = draw.choice([1, 2, 4, 4, 8, 8])
    last = max(len(content) - size, 0)
    place = draw.choice([draw.randint(0, last), draw.randint(0, min(64, last)), max(last - draw.randint(0, 400), 0)])
    place -= place % draw.choice([1, size])
    number = draw.choice([1, 1, -1]) * draw.choice([*_LENGTHS, draw.getrandbits(8 * size), len(content)])
    content[place : place + size] = (number % (1 << 8 * size)).to_bytes(size, draw.choice(["little", "little", "big"]))
    return content


def _piece(content: bytearray, draw: random.Random) -> bytes:
    place, length = draw.randint(0, len(content)), draw.choice([0, 0, 0, 1, 5])
    return content[:place] + draw.choice(_PIECES) + content[place + length :]


def _lines(content: bytearray, draw: random.Random) -> bytes:
    """Lines exchanged, twice, left out, or ending in another way."""
    lines = bytes(content).split(b"\n")
    place, other = draw.randrange(len(lines)), draw.randrange(len(lines))
    match draw.randrange(3):
        case 0:
            lines[place : place + 1] = draw.choice([[], [lines[other]], [lines[place], lines[other]]])
        case 1:
            lines[place] += draw.choice([b"\r", b",", b"\t", b" ", b"\0", b'"', b",,"])
        case 2:
            return draw.choice([b"\r\n", b"\r", b"\n\n"]).join(lines)
    return b"\n".join(lines)


class MutatedLogs:
    """Small sound files of a format, damaged in seeded ways."""

    def __init__(self, folder: Path, name: str) -> None:
        (folder / name).mkdir()
        self._name, self._sounds = name, FORMATS[name](folder / name)

    def damage(self, number: int) -> str:
        self._draw = draw = random.Random(f"{self._name}/{number}")
        self._damaged = sound = self._sounds[number % len(self._sounds)]
        if sound.pack is not None and draw.random() < 0.5:  # a sound compression of a damaged text
            content = sound.pack(mutated(sound.content, draw, text=True))
        else:
            whole = sound.content if sound.pack is None else sound.pack(sound.content)
            content = mutated(whole, draw, text=sound.text and sound.pack is None)
        sound.path.write_bytes(content)
        return sound.path.name

    def use(self) -> None:
        self._damaged.read(self._damaged.path, self._draw)

    def restore(self) -> None:
        """The next damage is written over this one."""

    def is_named(self, error: str) -> bool:
        return self._damaged.path.name in error
