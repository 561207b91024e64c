"""One pass of DCN over a prepared log, Parquet in, test AUC out: Group Adam on a growing table.

In the same run, on the first samples of the log, by batches of 512 and of 8,192: the same network with
`nn.Embedding(sparse=True)` and SparseAdam behind a torch DataLoader over the same Parquet (keys taken modulo the rows
of its table; with one thread and with all, the faster counts), and by 512 with dense Adam; the variant with 39 embedded
fields, the numbers x as ⌊x²⌋ (they are logarithms); the same samples as a raw log in text; every stage timed by
itself, in the order of the trainer; and what is read, evaluated, predicted into a Parquet file, and scored by what an
export serves. "busy" is the share of all cores' time in which they work.

    python benchmarks/epoch.py        # makes the log, 5 GB on disk
    python benchmarks/epoch.py LOG    # the log that `sparsegroup-paper synthesize criteo LOG` has made
"""

import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import polars as pl
import torch

import common
from plain_loop import PLAIN, Ids, PlainModel, train_plainly, trained
from sparsegroup.data import PreparedLog, open_log
from sparsegroup.data.batches import Batch
from sparsegroup.data.formats import criteo
from sparsegroup.data.keys import VALUE_BITS
from sparsegroup.data.log import Log
from sparsegroup.data.order import LogPart
from sparsegroup.kernels.cpu.threads import set_num_threads
from sparsegroup.serving.frozen import live_rows
from sparsegroup.serving.frozen_model import frozen_copy
from sparsegroup.table.field_tables import tables_in
from sparsegroup.training import Config, HistoryPoint, predict
from sparsegroup.training.network_step import NetworkStep
from sparsegroup.training.predictions import EVALUATED, PredictionWindow, predicted_rows, write_predictions
from sparsegroup.training.ranks import GlobalBatch

BATCH, LARGE, DIM = 512, 8192, 8
CONFIG = Config.of(**PLAIN | {"dim": DIM, "lr": 1e-3, "l21": 1e-4, "batch_size": BATCH})
WINDOW = 786_000
"""Samples of a window of the history, as of 50 over the whole log."""

MARKS = (1_000_000, 10_000_000, 39_000_000)
"""Samples up to which, and from the mark before on, the speed is given."""


class AllEmbedded(LogPart):
    """The first rows of a log with the numbers embedded, too."""

    def __init__(self, log: Log, rows: int) -> None:
        super().__init__(log, 0, rows, BATCH)
        self.fields, self.numbers = (*log.fields, *log.numbers), ()

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        field = torch.arange(len(self.log.fields), len(self.fields)) << VALUE_BITS
        for batch in super().batches(start, stop, size):
            buckets = batch.numbers.square().floor().long() + field
            yield replace(batch, keys=torch.cat([batch.keys, buckets], dim=1), numbers=batch.numbers[:, :0])


def write_as_text(log: PreparedLog, rows: int, path: Path) -> None:
    """The first rows in the format of Criteo's `train.txt`: 8 hexadecimal digits for a value."""
    with path.open("wb") as file:
        for batch in log.batches(0, rows, 65_536):
            low = (batch.keys & 0xFFFFFFFF).numpy().astype(np.uint32).byteswap()
            digits = np.frombuffer(low.tobytes().hex().encode(), "S8").reshape(low.shape)
            numbers = batch.numbers.expm1().round().long().numpy()
            frame = pl.DataFrame(
                [batch.labels.long().numpy(), *numbers.T, *(pl.Series(column.astype(str)) for column in digits.T)]
            )
            frame.write_csv(file, separator="\t", include_header=False)


def theirs(log: PreparedLog, samples: int, rows: int, *, sparse: bool, batch: int = BATCH) -> float:
    torch.manual_seed(0)
    model = PlainModel(log, rows, DIM, sparse=sparse)
    return train_plainly(model, Ids(log.folder, samples, rows, batch), CONFIG.optimizer.lr, sparse=sparse)


def ours(log: Log, batch: int = BATCH) -> tuple[float, dict[str, float]]:
    """Samples per second of the pass, evaluation left out, and what it came to."""
    begin, cpu = perf_counter(), process_time()
    done = trained(log, CONFIG.replace(batch_size=batch, windows=max(1, log.train_rows // WINDOW)))
    seconds, busy = perf_counter() - begin, process_time() - cpu
    table = done.model.embedding
    figures = {
        "seconds": seconds,
        "busy": busy / seconds / (os.cpu_count() or 1),
        "test_auc": done.score.test.auc,
        "features_seen": float(table.num_seen),
        "feature_rate": done.score.feature_rate,
        "table_bytes": float(table.memory().total),
    }
    last = HistoryPoint(0, *[0.0] * 4, 0.0, 0, 0, 0, 0.0, 0.0)
    for mark in MARKS:
        if reached := [one for one in done.history if last.samples < one.samples <= 1.01 * mark]:
            speed = (reached[-1].samples - last.samples) / (reached[-1].seconds - last.seconds)
            figures[f"samples_per_s_to_{mark // 1_000_000}m"] = speed
            last = reached[-1]
    return done.samples_per_s, figures


def stages(log: PreparedLog, samples: int) -> dict[str, float]:
    """ms per batch of each stage of ours, in the order of the trainer: the next batch is looked up meanwhile."""
    model, optimizer = CONFIG.build(log)
    taken = dict.fromkeys(("read", "lookup", "network", "update"), 0.0)
    network = NetworkStep(model.network)
    batches = iter(log.batches(0, samples, BATCH))
    batch = next(batches, None)
    count = 0
    while batch is not None:
        t0 = perf_counter()
        following = next(batches, None)
        t1 = perf_counter()
        optimizer.zero_grad()
        vectors = model.embedding(batch.keys)
        if following is not None:
            model.embedding.prefetch(following.keys)
        t2 = perf_counter()
        network.backward(vectors, batch.numbers, GlobalBatch(batch, len(batch)))
        t3 = perf_counter()
        optimizer.step()
        t4 = perf_counter()
        for name, seconds in zip(taken, (t1 - t0, t2 - t1, t3 - t2, t4 - t3), strict=True):
            taken[name] += seconds
        count += 1
        batch = following
    return {f"ms_{name}": 1e3 * seconds / count for name, seconds in taken.items()}


def raw(log: PreparedLog, samples: int, folder: Path) -> dict[str, float]:
    """The first samples from text: counted, and trained on as they are parsed and hashed."""
    path = folder / "train.txt"
    write_as_text(log, samples + BATCH, path)
    begin = perf_counter()
    text = open_log(
        path, format=replace(criteo(), split="last-fraction", test_fraction=BATCH / (samples + BATCH)), threads=2
    )
    counted = perf_counter() - begin
    begin = perf_counter()
    batches = sum(1 for _ in text.batches(0, text.train_rows, BATCH))
    hashed = perf_counter() - begin
    speed, _ = ours(text)
    return {
        "samples_per_s_raw": samples / (samples / speed + counted),
        "samples_per_s_raw_counted": speed,
        "ms_hash": 1e3 * hashed / batches,
    }


def scoring(log: Log, folder: Path) -> dict[str, float]:
    """Samples per second that are read, and scored by a model that has been trained on them."""
    model = trained(log, CONFIG.replace(windows=1)).model
    served = frozen_copy(model, {name: live_rows(table, "float32") for name, table in tables_in(model).items()})
    ways: dict[str, Callable[[], object]] = {
        "read": lambda: sum(len(batch) for batch in log.batches(0, len(log), EVALUATED)),
        "evaluated": lambda: predict(model, log.batches(0, len(log), EVALUATED)),
        "predicted": lambda: write_predictions(
            predicted_rows(model, log, PredictionWindow()), folder / "scores.parquet", ".parquet"
        ),
        "served": lambda: predict(served, log.batches(0, len(log), EVALUATED)),
    }
    return {f"{name}_per_s": len(log) / common.seconds(way) for name, way in ways.items()}


def measure(given: Namespace) -> Iterator[common.Figures]:
    set_num_threads(given.threads)  # of the table; the network of ours takes one
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = given.log or Path(folder, "log")
        if given.log is None:
            command = [sys.executable, "-m", "sparsegroup_paper", "synthesize", "criteo", path]
            subprocess.run([*command, *(["--rows", "200000"] if given.quick else [])], check=True)
        log = PreparedLog(path)
        samples = 100_000 if given.quick else 1_000_000
        samples -= samples % BATCH
        beginning, rows = LogPart(log, 0, samples, BATCH), max(log.features, 1)
        with common.undisturbed():
            speed, figures = ours(log)
        figures |= {"samples_per_s": speed, "peak_bytes": float(common.peak_memory())}
        yield figures
        with common.undisturbed():
            figures["samples_per_s_slice"], parts = ours(beginning)
            figures["samples_per_s_8192"], large = ours(beginning, LARGE)
            figures |= {"busy_slice": parts["busy"], "busy_8192": large["busy"]}
            figures["samples_per_s_39_fields"], _ = ours(AllEmbedded(log, samples))
            figures |= stages(log, samples)
            figures |= scoring(beginning, Path(folder))
            figures |= raw(log, samples, Path(folder))
            sparse, dense, sparse_large = [], [], []
            for number in sorted({1, given.threads}):
                torch.set_num_threads(number)
                sparse.append(theirs(log, samples, rows, sparse=True))
                sparse_large.append(theirs(log, samples - samples % LARGE, rows, sparse=True, batch=LARGE))
                dense.append(theirs(log, min(samples, 50 * BATCH), rows, sparse=False))
    theirs_best = {"sparse_adam": max(sparse), "dense_adam": max(dense), "sparse_adam_8192": max(sparse_large)}
    for name, best in theirs_best.items():
        of_ours = figures["samples_per_s_8192" if name.endswith("8192") else "samples_per_s_slice"]
        figures |= {f"samples_per_s_{name}": best, f"speedup_vs_{name}": of_ours / best}
    yield figures


if __name__ == "__main__":
    log = {"type": Path, "nargs": "?", "help": "a prepared log"}
    common.run(measure, __doc__, quick="a synthetic log of 200,000 rows", options={"log": log})
