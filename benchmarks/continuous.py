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
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import numpy as np
import torch

import timing
from sparsegroup.data import open_log
from sparsegroup.data.batches import Batch
from sparsegroup.data.raw.encode import EncodedRows
from sparsegroup.data.synthetic import keys_of_values, write_clicks
from sparsegroup.publishing import Publisher
from sparsegroup.streaming.follow import Follower
from sparsegroup.streaming.publication import Publication
from sparsegroup.streaming.sources import Block, EndOfStream, FilesSource, Source
from sparsegroup.training import Config, Session
from sparsegroup.training.trainer import Callback, Trainer

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
            self.found.append(timing.memory()[0] / 1e6)


def main() -> None:
    parser = timing.parser(__doc__, "20,000 and 100,000 rows, one run")
    given = parser.parse_args()
    print(timing.machine(), flush=True)
    torch.set_num_threads(1)
    rows, long, repeats = (20_000, 100_000, 1) if given.quick else (500_000, 8_000_000, 3)
    figures: dict[str, float | str] = {}
    with TemporaryDirectory() as scratch:
        log = Path(scratch) / "clicks.csv"
        write_clicks(log, rows)
        times: dict[str, list[float]] = {"train": [], "follow": [], "follow, publishing": []}
        for repeat in range(-1, repeats):  # the first time, kernels and networks are compiled
            found = {"train": train_seconds(log, Path(scratch) / "run")}
            shutil.rmtree(Path(scratch) / "run")
            for name, publishes in (("follow", False), ("follow, publishing", True)):
                found[name], publication = follow_seconds(log, Path(scratch) / "run", rows, publishes=publishes)
                shutil.rmtree(Path(scratch) / "run")
            for name, seconds in found.items() if repeat >= 0 else ():
                times[name].append(seconds)
        assert publication is not None
        speed = {name: rows / median(seconds) for name, seconds in times.items()}
        for name, one in speed.items():
            key = name.replace(", ", "_")
            figures |= {f"{key}_samples_per_s": one, f"{key}_ratio": one / speed["train"]}
        figures |= {"releases": publication.releases, "release_bytes": publication.bytes}
        lines = [[name, f"{one:,.0f}", f"{one / speed['train']:.2f}"] for name, one in speed.items()]
        timing.show(f"{rows:,} rows of a CSV", ("", "samples/s", "of train's"), lines)

        source, resident = MadeUp(long), Resident(long)
        config = Config.of(model="dcn", batch_size=BATCH, label="label", max_table_bytes="64MB", checkpoint_minutes=0.5)
        follower = Follower.begin(Path(scratch) / "long", config, source, first_rows=5_000)
        follower.trainer.callbacks.append(resident)
        began = perf_counter()
        follower.follow(threads=1)
        table = follower.trainer.history[-1]
        figures |= {f"resident_mb_{10 * (tenth + 1)}": one for tenth, one in enumerate(resident.found)}
        figures |= {
            "long_rows": long,
            "long_features_seen": table.features_seen,
            "long_seconds": perf_counter() - began,
        }
        shown = [[f"{10 * (tenth + 1)} %", f"{one:,.0f}"] for tenth, one in enumerate(resident.found)]
        timing.show(f"{long:,} rows, {table.features_seen:,} features, table at most 64 MB", ("", "resident MB"), shown)
    timing.write_json(given.json, figures)


if __name__ == "__main__":
    main()
