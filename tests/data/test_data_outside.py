"""What another package adds to `data`, a file each: a format, a kind of file, a kind of log."""

import json
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import torch

from data_cases import keys, rows_of, written
from pipe_log import PIPE, pipe_log
from sparsegroup.data import ClickLogError, Log, LogOptionError, open_log, prepare
from sparsegroup.data.batches import Batch
from sparsegroup.data.formats import FORMATS
from sparsegroup.data.raw.files import LINE, BadRow, Chunk, RawFile
from sparsegroup.data.schema import Head, LogFormat
from sparsegroup.training import Config, Session

ROWS = [(f"u{i % 7}", f"i{i % 3}", f"{i}.5", i % 2) for i in range(60)]
EXPECTED = [[user, item, str(int(float(price) // 10))] for user, item, price, _ in ROWS]


def pipe_file(path: Path, *more: str) -> Path:
    return written(path, "\n".join(["|".join(map(str, row)) for row in ROWS] + list(more)))


def test_a_format_of_another_package_is_given_to_those_who_read_or_told_from_a_logs_first_line(tmp_path: Path) -> None:
    path = pipe_file(tmp_path / "clicks.txt")
    prepared, _ = prepare([path], tmp_path / "out", pipe_log())
    log = open_log(path, format=pipe_log())
    assert rows_of(log).keys.tolist() == rows_of(prepared).keys.tolist() == keys(EXPECTED)
    assert rows_of(log).labels.tolist() == [row[3] for row in ROWS]
    with pytest.raises(LogOptionError, match=r"^`dataset` is one of auto, criteo, avazu, ipinyou, got 'pipe'"):
        open_log(path, dataset="pipe")  # type: ignore[arg-type]
    with pytest.raises(LogOptionError, match=r"^`format` is for raw logs; .*out is a folder, prepared already"):
        open_log(tmp_path / "out", format=pipe_log())
    FORMATS.append(PIPE)
    try:
        pipe_file(path, "u1|i1|cheap|0")
        log = open_log(path, on_bad_row="skip", max_bad=0.1)
        assert (log.fields, len(log), log.train_rows) == (("user", "item", "price"), 60, 54)
        assert log.bad_rows == {"'price' cannot be read": 1}
        with pytest.raises(ClickLogError, match=r"clicks.txt:61: 'price' cannot be read: 'price=cheap'"):
            list(open_log(path).batches(0, 61, 61))
        with pytest.raises(LogOptionError, match=r"^`label` is for logs whose columns come .*the format 'pipe'"):
            open_log(path, label="x")
        by_name = open_log(path, dataset="pipe", on_bad_row="skip", max_bad=0.1)  # type: ignore[arg-type]
        assert by_name.identity == log.identity
    finally:
        FORMATS.remove(PIPE)


class JsonLines(RawFile):
    """An object a line."""

    suffixes = (".jsonl",)
    size = None

    def _read_head(self) -> Head:
        with self.open_text() as file:
            return Head(self.source, tuple(json.loads(file.read().splitlines()[0])))

    def chunks(self, log: LogFormat, offset: int, line: int, chunk_bytes: int) -> Iterator[Chunk]:
        rows = pl.read_ndjson(self.source, infer_schema_length=None)[offset:]
        if len(rows):
            yield Chunk(line, offset + len(rows), line + len(rows), rows)

    def frame(self, chunk: Chunk, log: LogFormat, bad: list[BadRow]) -> pl.DataFrame:
        lines = pl.int_range(chunk.line, chunk.end_line, eager=True).alias(LINE)
        return chunk.data.select(pl.col(log.raw).cast(pl.String)).with_columns(lines)


def test_a_kind_of_file_of_another_package_is_read_as_any_other(tmp_path: Path) -> None:
    objects = [{"user": user, "price": price, "label": label} for user, _, price, label in ROWS]
    path = written(tmp_path / "clicks.jsonl", "\n".join(map(json.dumps, objects)))
    text = written(tmp_path / "clicks.csv", "user,price,label\n" + "\n".join(f"{a},{b},{c}" for a, _, b, c in ROWS))
    log = open_log(path)
    prepared, _ = prepare([path], tmp_path / "out")
    assert rows_of(log).keys.tolist() == rows_of(prepared).keys.tolist() == rows_of(open_log(text)).keys.tolist()


class Coins(Log):
    """The least that a log is."""

    name, fields, train_rows = "coins", ("side",), 900

    def __len__(self) -> int:
        return 1_000

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        for first in range(start, stop, size):
            sides = torch.arange(first, min(first + size, stop)) % 2
            yield Batch(sides[:, None], torch.empty(len(sides), 0), sides.float(), sides)


def test_a_kind_of_log_of_another_package_is_trained_on_and_resumed(tmp_path: Path) -> None:
    config = Config.of(model="mlp", dim=2, batch_size=100, seed=0)
    summary = Session.begin(tmp_path / "run", config, Coins()).train()
    assert (summary.log, summary.test_rows, summary.samples, summary.bad_rows) == ("coins", 100, 900, {})
    assert Session.resume(tmp_path / "run", Coins()).position == 900
