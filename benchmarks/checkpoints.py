"""Writing and reading the state of a training: part of `serving.py`.

A checkpoint is written and synced, its table's file copied by `shutil.copyfile` and synced, and the checkpoint read
into a new model, in turns. Before each, more memory than it takes is written to once and freed (`touch`): a virtual
machine may have taken back what was not used, and who comes first would pay for all.
Then some rows are trained on, and what has changed is written. At last a process of its own resumes a run with that
table: from its start to the moment when it would train the next batch.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import torch

import timing
from sparsegroup.artifact import folder as disk
from sparsegroup.checkpoint import load_checkpoint, save_checkpoint
from sparsegroup.data import SyntheticConfig, synthetic_log
from sparsegroup.optim import GroupOptimizer
from sparsegroup.training import ClickModel, Config, Session

CHANGED = {"1_in_1000": 0.001, "1_in_100": 0.01, "1_in_10": 0.1}
ROUNDS = 5
RESUME = """
import sys
from pathlib import Path
from sparsegroup.data import SyntheticConfig, synthetic_log
from sparsegroup.training import Session
session = Session.resume(Path(sys.argv[1]), synthetic_log(SyntheticConfig(rows=int(sys.argv[2])), 0))
assert session.position > 0
"""


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    disk.sync(target)


def touched(size: int) -> float:
    """Seconds for writing to so many bytes of new memory once."""
    return timing.seconds(np.ones, size // 8)


def throughput(
    model: ClickModel, optimizer: GroupOptimizer, fresh: Callable[[], tuple[ClickModel, GroupOptimizer]], place: Path
) -> dict[str, float]:
    """GB/s of writing, reading and copying, medians; a byte that is copied counts once."""
    times: dict[str, list[float]] = {"write": [], "copy": [], "read": [], "touch": []}
    size = model.embedding.memory().total
    for turn in range(ROUNDS + 1):
        with scratch(place / "round") as folder:
            touch = touched(2 * size)
            write = timing.seconds(save_checkpoint, folder / "checkpoint", model, optimizer)
            (table,) = (folder / "checkpoint").glob("table*.safetensors")
            touched(2 * size)
            copied = timing.seconds(copy, table, folder / "copy")
            touched(2 * size)
            read = timing.seconds(load_checkpoint, folder / "checkpoint", *fresh())
            written = table.stat().st_size
        if turn:  # the first one compiles
            for name, taken in (("write", write), ("copy", copied), ("read", read)):
                times[name].append(written / taken / 1e9)
            times["touch"].append(2 * size / touch / 1e9)
    figures = {f"checkpoint_{name}_gb_per_s": float(np.median(speeds)) for name, speeds in times.items()}
    for name in ("write", "read"):
        ratios = np.array(times[name]) / np.array(times["copy"])
        figures[f"checkpoint_{name}_over_copy"] = float(np.median(ratios))
    return {"checkpoint_gb": written / 1e9, **figures}


def changes(model: ClickModel, optimizer: GroupOptimizer, place: Path) -> dict[str, float]:
    """What writing changed rows costs, relative to writing all."""
    table = model.embedding
    keys = torch.from_numpy(table.table.directory.keys())
    figures: dict[str, float] = {}
    with scratch(place / "changes") as folder:
        start = timing.perf_counter()
        whole_bytes = save_checkpoint(folder / "whole", model, optimizer, track=True).bytes
        whole, parent = timing.perf_counter() - start, folder / "whole"
        for number, (name, share) in enumerate(CHANGED.items()):
            optimizer.zero_grad()
            some = keys[torch.randperm(len(keys))[: round(share * len(keys))]]
            table(some).sum().backward()
            optimizer.step()
            start = timing.perf_counter()
            written = save_checkpoint(folder / str(number), model, optimizer, parent=parent, track=True)
            figures[f"changes_{name}_seconds_over_whole"] = (timing.perf_counter() - start) / whole
            figures[f"changes_{name}_bytes_over_whole"] = written.bytes / whole_bytes
            parent = folder / str(number)
    optimizer.zero_grad()
    return figures


def resume(fill: Callable[[ClickModel], None], place: Path) -> dict[str, float]:
    """Seconds from a process's start until a run with a filled table can train on."""
    rows = 5_000
    log = synthetic_log(SyntheticConfig(rows=rows), 0)
    run = place / "run"
    session = Session.begin(run, Config.of(dim=8, rows=rows), log)
    batch = next(log.batches(0, 512, 512))
    session.model(batch.keys).sum().backward()
    session.optimizer.step()
    session.optimizer.zero_grad()
    fill(session.model)
    session.position = session.trainer.samples = 512
    session.checkpoint(whole=True)
    del session
    command = [sys.executable, "-c", RESUME, str(run), str(rows)]
    taken = [timing.seconds(partial(subprocess.run, command, check=True)) for _ in range(3)]
    shutil.rmtree(run)
    return {"resume_seconds": float(np.median(taken)), "resume_seconds_most": max(taken)}
