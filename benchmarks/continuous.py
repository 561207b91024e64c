"""Training that follows a stream: its speed beside `train`, and its memory over a long stream.

Speed: the same CSV of 500,000 rows is learnt by `train`, whose rows are counted first, and by `follow`, from the first
row to the last, in turns; samples/s, the median of three. Network, optimizer and batches are the same. Publishing is
off, and then on, every second, into a folder: deltas, with the gate.

Memory: eight million made-up rows, of which a sixth have a user that no row before had, at `max_table_bytes` 64 MB:
resident memory after each tenth.

    python benchmarks/continuous.py --json continuous.json
"""

import shutil
import threading
from argparse import Namespace
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch

import common
from sparsegroup.data import open_log
from sparsegroup.data.batches import Batch
from sparsegroup.data.raw.encode import EncodedRows
from sparsegroup.data.synthetic import keys_of_values, write_clicks
from sparsegroup.publishing import Publisher
from sparsegroup.streaming.follow import Follower
from sparsegroup.streaming.publication import Publication
from sparsegroup.streaming.sources import Block, EndOfStream, FilesSource, Source
from sparsegroup.training import Callback, Config, Session, Trainer

COMMON: dict[str, Any] = {"model": "dcnv2", "batch_size": 512, "label": "clicked", "baseline": False}
BATCH = 512


class Until(Callback):
    """Sets an event when so many rows are learnt."""

    def __init__(self, rows: int, event: threading.Event) -> None:
        self.rows, self.event = rows, event

    def between_batches(self, trainer: Trainer) -> None:
        if trainer.samples >= self.rows:
            self.event.set()


def train_seconds(log: Path, folder: Path) -> float:
    """Seconds of a training on a log, from opening it to the last batch."""
    began = perf_counter()
    opened = open_log(log, label="clicked", test_fraction=0.0, threads=2)
    options: dict[str, Any] = {"epochs": 1, "shuffle_buffer": 0, "average": 0.0, "recalibrate": False}
    config = Config.of(**COMMON, **options, selection="never", after_first_epoch="train", test_fraction=0.0)
    Session.begin(folder, config, opened)._fit()
    return perf_counter() - began


def follow_seconds(log: Path, folder: Path, rows: int, *, publishes: bool) -> tuple[float, Publication | None]:
    """Seconds of a training that follows the log, from looking at its first rows to the last full batch."""
    began, stop = perf_counter(), threading.Event()
    follower = Follower.begin(folder, Config.of(**COMMON), FilesSource(log), patience=0.0)
    follower.trainer.callbacks.append(Until(rows // BATCH * BATCH, stop))
    publication = None
    if publishes:
        publisher = Publisher(folder / "models", formats=[])
        publication = Publication(publisher, follower.model.objective, every=1.0)
    follower.follow(publication, stop=stop, threads=2)
    return perf_counter() - began, publication


class MadeUp(Source):
    """Rows of four fields, made as they are read; user numbers rise with time, and old ones are seen less and less."""

    name, is_replayable = "made-up rows", True

    def __init__(self, rows: int, block: int = 10_000) -> None:
        self.rows, self.block = rows, block

    def first_rows(self, path: Path, rows: int, patience: float) -> Path:
        path.mkdir()
        lines = [f"u{row % 500},{row % 40},{row % 7},{row % 24},{int(row % 5 == 0)}" for row in range(rows)]
        (path / "rows.csv").write_text("user,site,device,hour,label\n" + "\n".join(lines) + "\n")
        return path

    def open(self, format: object, position: Any = None) -> None:
        self.position = position or 0

    def read(self, timeout: float) -> Block:
        if self.position >= self.rows:
            raise EndOfStream
        return self.again([self.position, min(self.position + self.block, self.rows)])

    def again(self, span: Any) -> Block:
        first, stop = span
        self.position = stop
        return Block(span, stop, 0.0, self.name, partial(made_up, first, stop))

    def lag(self) -> Mapping[str, float]:
        return {}

    def close(self) -> None:
        pass


def made_up(first: int, stop: int) -> EncodedRows:
    draw, count = np.random.default_rng(first), stop - first
    user = np.arange(first, stop) // 6 - draw.exponential(20_000, count).astype(int)
    columns = (
        np.maximum(user, 0),
        draw.integers(0, 40, count),
        draw.integers(0, 7, count),
        draw.integers(0, 24, count),
    )
    keys = np.stack([keys_of_values(values, field) for field, values in enumerate(columns)], 1)
    logit = np.sin(columns[0] * 7.0) + np.cos(columns[1] * 3.0) - 2
    labels = (draw.random(count) < 1 / (1 + np.exp(-logit))).astype(np.float32)
    rows = torch.arange(first, stop)
    return EncodedRows(
        Batch(torch.from_numpy(keys), torch.empty(count, 0), torch.from_numpy(labels), rows), None, None, []
    )


class Resident(Callback):
    """Resident memory, in MB, after each tenth of the rows."""

    def __init__(self, rows: int) -> None:
        self.rows, self.found = rows, list[float]()

    def between_batches(self, trainer: Trainer) -> None:
        if trainer.samples >= self.rows * (len(self.found) + 1) // 10 // BATCH * BATCH:
            self.found.append(common.memory() / 1e6)


def measure(given: Namespace) -> Iterator[common.Figures]:
    torch.set_num_threads(1)
    with TemporaryDirectory() as scratch:
        yield speed(Path(scratch), *((20_000, 1) if given.quick else (500_000, 3)))
        yield over_a_long_stream(Path(scratch), 100_000 if given.quick else 8_000_000)


def speed(scratch: Path, rows: int, repeats: int) -> dict[str, float]:
    """Samples per second of `train` and `follow`, in turns."""
    log, run = scratch / "clicks.csv", scratch / "run"
    write_clicks(log, rows)
    times: dict[str, list[float]] = {"train": [], "follow": [], "follow_publishing": []}
    for repeat in range(-1, repeats):  # the first time, kernels and networks are compiled
        for name, taken in times.items():
            if name == "train":
                seconds = train_seconds(log, run)
            else:
                seconds, publication = follow_seconds(log, run, rows, publishes=name == "follow_publishing")
            shutil.rmtree(run)
            if repeat >= 0:
                taken.append(seconds)
    assert publication is not None
    found = {name: rows / common.median(seconds) for name, seconds in times.items()}
    figures: dict[str, float] = {"releases": publication.releases, "release_bytes": publication.bytes}
    for name, one in found.items():
        figures |= {f"{name}_samples_per_s": one, f"{name}_ratio": one / found["train"]}
    return figures


def over_a_long_stream(scratch: Path, rows: int) -> dict[str, float]:
    """Resident memory under a limit of the table."""
    source, resident = MadeUp(rows), Resident(rows)
    config = Config.of(model="dcn", batch_size=BATCH, label="label", max_table_bytes="64MB", checkpoint_minutes=0.5)
    follower = Follower.begin(scratch / "long", config, source, first_rows=5_000)
    follower.trainer.callbacks.append(resident)
    taken = common.seconds(lambda: follower.follow(threads=1))
    figures: dict[str, float] = {f"resident_mb_{10 * tenth}": mb for tenth, mb in enumerate(resident.found, start=1)}
    seen = follower.trainer.history[-1].features_seen
    return figures | {"long_rows": rows, "long_features_seen": seen, "long_seconds": taken}


if __name__ == "__main__":
    common.run(measure, __doc__, quick="20,000 and 100,000 rows, one run")
