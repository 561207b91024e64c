"""What an export weighs, how fast it answers, and what checkpoints cost.

The model is DCN, d = 8, over 26 fields and 13 numbers, its table that of `table_step.py` without the numbers, scaled to
10M rows; a row in 33, the most frequent of each field, is live, the others are zero. Against it, in onnxruntime on one
core:

    full       the same ONNX graph with all 10M rows
    dense_ids  nn.Embedding of all rows as ONNX, ready-made ids, no keys to look up

Requests are batches of 1 and of 512 drawn as clicks are. The contenders take turns; p50 and p99 are over all calls.
Sizes are relative to live rows × (bytes of a vector + 8 of its key).

A checkpoint is written and synced, its table's file copied by `shutil.copyfile` and synced, and the checkpoint read
into a new model, in turns. Before each, more memory than it takes is written to once and freed (`touch`): a virtual
machine may have taken back what was not used, and who comes first would pay for all. Then some rows are trained on, and
what has changed is written. At last a separate process resumes a run with that table: from its start to the moment when
it would train the next batch.

    python benchmarks/serving.py    # 6 GiB of memory, 8 GB of disk in the folder for temporary files
"""

import shutil
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import common
from plain_loop import PLAIN
from sparsegroup.artifact import folder as disk
from sparsegroup.checkpoint import load_checkpoint, save_checkpoint
from sparsegroup.data import SyntheticConfig, synthetic_log
from sparsegroup.data.schema import LogSchema
from sparsegroup.kernels.cpu import threads
from sparsegroup.objectives import LOGISTIC
from sparsegroup.optim import GroupOptimizer
from sparsegroup.serving import TrainedModel, export_trained
from sparsegroup.serving.onnx import OnnxModel
from sparsegroup.serving.tracing import quiet
from sparsegroup.training import ClickModel, Config, Session
from table_step import CARDINALITIES, Clicks, key

FIELDS, NUMBERS, DIM = 26, 13, 8
LIVE = 0.03
CHANGED = {"1_in_1000": 0.001, "1_in_100": 0.01, "1_in_10": 0.1}
ROUNDS = 5
"""Of checkpoints."""
RESUME = """
import sys
from pathlib import Path
from sparsegroup.data import SyntheticConfig, synthetic_log
from sparsegroup.training import Session
session = Session.resume(Path(sys.argv[1]), synthetic_log(SyntheticConfig(rows=int(sys.argv[2])), 0))
assert session.position > 0
"""
VECTOR_BYTES = {"float32": 4 * DIM, "float16": 2 * DIM, "bfloat16": 2 * DIM, "int8": DIM + 1}
COLUMNS = LogSchema(tuple(f"C{n}" for n in range(FIELDS)), (), tuple(f"I{n}" for n in range(NUMBERS)))
CONFIG = Config.of(**PLAIN, optimizer="adam", fallback=False, penalty="lasso", dim=DIM, l21=1e-4)


class DenseIds(nn.Module):
    """What one has without this: all rows, found by ready-made ids."""

    def __init__(self, rows: int, network: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.Embedding.from_pretrained(torch.rand(rows, DIM) / 100)
        self.network = network

    def forward(self, ids: Tensor, numbers: Tensor) -> Tensor:
        return self.network(self.embedding(ids), numbers).sigmoid()


def fill(model: ClickModel, clicks: Clicks) -> None:
    """Give every value a row."""
    for keys in clicks.all_keys(1 << 18):
        model.embedding.table.look_up(keys, insert=True)


def leave_live(model: ClickModel, clicks: Clicks) -> None:
    """Zero the rows of all but the most frequent values of each field."""
    for field, values in enumerate(clicks.values):
        rare = values[max(1, round(LIVE * len(values))) :]
        for first in range(0, len(rare), 1 << 20):
            keys = key(field, rare[first : first + (1 << 20)])
            model.embedding.assign(keys, torch.zeros(len(keys), DIM))


def save_dense(rows: int, network: nn.Module, path: Path) -> None:
    example = (torch.zeros(2, FIELDS, dtype=torch.int64), torch.zeros(2, NUMBERS))
    batch = torch.export.Dim("batch")
    with quiet():
        dense = DenseIds(rows, network).eval()
        program = torch.export.export(dense, example, dynamic_shapes=({0: batch}, {0: batch}), strict=True)
        torch.onnx.export(program, (), path, output_names=[LOGISTIC.prediction], dynamo=True, verbose=False)


def latencies(paths: dict[str, Path], requests: dict[str, list[tuple[Tensor, Tensor]]], size: int) -> dict[str, float]:
    models = {name: OnnxModel(path) for name, path in paths.items()}
    calls: dict[str, Callable[[int], object]] = {
        name: lambda index, model=model, name=name: model(requests[name][index % len(requests[name])])
        for name, model in models.items()
    }
    times = common.alternate(calls, 20, dict.fromkeys(calls, 100 if size == 1 else 20))
    figures = {}
    for name, taken in times.items():
        for quantile in (50, 99):
            figures[f"{name}_batch_{size}_p{quantile}_ms"] = 1e3 * float(np.percentile(taken, quantile))
        figures[f"{name}_batch_{size}_samples_per_s"] = size / common.median(taken)
    for name in ("full", "dense_ids", "int8"):
        figures[f"{name}_over_sparse_batch_{size}_p50"] = common.median(times[name]) / common.median(times["sparse"])
    return figures


def copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    disk.sync(target)


def touched(size: int) -> float:
    """Seconds for writing to so many bytes of new memory once."""
    return common.seconds(np.ones, size // 8)


def throughput(
    model: ClickModel, optimizer: GroupOptimizer, fresh: Callable[[], tuple[ClickModel, GroupOptimizer]], place: Path
) -> dict[str, float]:
    """GB/s of writing, reading and copying, medians; a byte that is copied counts once."""
    speeds: dict[str, list[float]] = {"write": [], "copy": [], "read": [], "touch": []}
    size = model.embedding.memory().total
    for turn in range(ROUNDS + 1):
        with tempfile.TemporaryDirectory(dir=place) as name:
            folder = Path(name)
            taken = {"touch": touched(2 * size)}
            taken["write"] = common.seconds(save_checkpoint, folder / "checkpoint", model, optimizer)
            (table,) = (folder / "checkpoint").glob("table*.safetensors")
            touched(2 * size)
            taken["copy"] = common.seconds(copy, table, folder / "copy")
            touched(2 * size)
            taken["read"] = common.seconds(load_checkpoint, folder / "checkpoint", *fresh())
            written = table.stat().st_size
        for name, seconds in taken.items() if turn else ():  # the first one compiles
            speeds[name].append((2 * size if name == "touch" else written) / seconds / 1e9)
    figures = {f"checkpoint_{name}_gb_per_s": common.median(found) for name, found in speeds.items()}
    for name in ("write", "read"):
        figures[f"checkpoint_{name}_over_copy"] = common.median(np.array(speeds[name]) / np.array(speeds["copy"]))
    return {"checkpoint_gb": written / 1e9, **figures}


def changes(model: ClickModel, optimizer: GroupOptimizer, place: Path) -> dict[str, float]:
    """What writing changed rows costs, relative to writing all."""
    table = model.embedding
    keys = torch.from_numpy(table.table.directory.keys())
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory(dir=place) as name:
        parent, written = Path(name, "whole"), []

        def save(path: Path, parent: Path | None = None) -> None:
            written.append(save_checkpoint(path, model, optimizer, parent=parent, track=True).bytes)

        whole = common.seconds(save, parent)
        for change, share in CHANGED.items():
            optimizer.zero_grad()
            some = keys[torch.randperm(len(keys))[: round(share * len(keys))]]
            table(some).sum().backward()
            optimizer.step()
            taken = common.seconds(save, Path(name, change), parent)
            figures[f"changes_{change}_seconds_over_whole"] = taken / whole
            figures[f"changes_{change}_bytes_over_whole"] = written[-1] / written[0]
            parent = Path(name, change)
    optimizer.zero_grad()
    return figures


def resume(clicks: Clicks, place: Path) -> dict[str, float]:
    """Seconds from a process's start until a run with a filled table can train on."""
    rows = 5_000
    log = synthetic_log(SyntheticConfig(rows=rows), 0)
    run = place / "run"
    session = Session.begin(run, Config.of(dim=8, rows=rows), log)
    batch = next(log.batches(0, 512, 512))
    session.model(batch.keys).sum().backward()
    session.optimizer.step()
    session.optimizer.zero_grad()
    fill(session.model, clicks)
    session.trainer.progress.position = session.trainer.samples = 512
    session.trainer.progress.steps = 1
    session.checkpoint(whole=True)
    del session
    command = [sys.executable, "-c", RESUME, str(run), str(rows)]
    taken = [common.seconds(lambda: subprocess.run(command, check=True)) for _ in range(3)]
    return {"resume_seconds": common.median(taken), "resume_seconds_most": max(taken)}


def measure(given: Namespace) -> Iterator[common.Figures]:
    torch.set_num_threads(1)
    threads.set_num_threads(given.threads)
    rng, batches = np.random.default_rng(0), 64
    scale = (10_000 if given.quick else 10_000_000) / sum(CARDINALITIES[:FIELDS])
    clicks = Clicks([rng.permutation(max(min(c, 3), round(c * scale))) for c in CARDINALITIES[:FIELDS]])
    rows = int(clicks.cardinalities.sum())
    values = clicks.of_ranks(clicks.ranks(batches, rng))
    keys, ids = key(np.arange(FIELDS), values), clicks.ids(values)
    numbers = torch.randn(512, NUMBERS)

    def build() -> tuple[ClickModel, GroupOptimizer]:
        return CONFIG.build_for(COLUMNS)

    model, optimizer = build()
    model(keys[0], torch.zeros(len(keys[0]), NUMBERS)).sum().backward()  # so that rows have the optimizer's state
    optimizer.step()
    optimizer.zero_grad()
    fill(model, clicks)
    figures: dict[str, float] = {"rows": rows}
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        opened = TrainedModel(place, "run", CONFIG, COLUMNS, model.eval(), None)
        export_trained(opened, place / "full", formats=["onnx"])
        leave_live(model, clicks)
        live = model.embedding.num_live
        figures |= {"live_rows": live, "feature_rate": model.embedding.feature_rate}
        for dtype, vector in VECTOR_BYTES.items():
            export_trained(opened, place / dtype, dtype, ["onnx"])  # type: ignore[arg-type]
            for name in ("embeddings.safetensors", "model.onnx"):
                size = (place / dtype / name).stat().st_size
                figures[f"{dtype}_{name.split('.')[0]}_bytes_over_expected"] = size / (live * (vector + 8))
                figures[f"{dtype}_{name.split('.')[0]}_bytes_over_dense"] = size / (rows * DIM * 4)
        save_dense(rows, model.network, place / "dense.onnx")
        folders = {"sparse": "float32", "int8": "int8", "full": "full"}
        paths = {name: place / folder / "model.onnx" for name, folder in folders.items()}
        paths["dense_ids"] = place / "dense.onnx"
        for size in (1, 512):
            requests = {
                name: [
                    ((ids if name == "dense_ids" else keys)[at, :size].contiguous(), numbers[:size])
                    for at in range(batches)
                ]
                for name in paths
            }
            figures |= latencies(paths, requests, size)
        loads: dict[str, Callable[[int], object]] = {
            name: lambda _, path=path: OnnxModel(path) for name, path in paths.items()
        }
        loaded = common.median_ms(common.alternate(loads, 5, dict.fromkeys(loads, 1)))
        figures |= {f"{name}_load_ms": ms for name, ms in loaded.items()}
        figures |= throughput(model, optimizer, build, place)
        figures |= changes(model, optimizer, place)
        del model, optimizer, opened
        figures |= resume(clicks, place)
    yield figures


if __name__ == "__main__":
    common.run(measure, __doc__, quick="10,000 rows")
