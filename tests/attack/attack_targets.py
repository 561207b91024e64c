"""What is attacked: valid folders, and what is done with each of their files when it is forged."""

import csv
import json
import os
import random
import re
import shutil
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from checkpoint_cases import MANIFEST, STATE, TABLE, bits, clicks, write_chain
from forgery import forged_documents, forged_tensors, seal_file, write_sealed
from sparsegroup.cli import main
from sparsegroup.data import PreparedLog
from sparsegroup.serving import load_export, open_trained
from sparsegroup.serving.inspection import inspect
from sparsegroup.serving.opening import read_export
from sparsegroup.training import Config, load_run
from sparsegroup.training.network_step import check_weights
from sparsegroup.training.session import Session

PREPARED, RUN, EXPORT, DELTA, CUT, CHAIN = "prepared-log", "run", "export", "delta", "cut-off", "chain"


_NAMES = re.compile(r"\.(json|jsonl|yaml|safetensors|parquet)\b|step-\d{12}|export|delta|/(run|cut-off): ")


class Target:
    """A file that is forged, and what reads it.

    Args:
        folder: The folder of all folders.
        kind: A key of `TARGETS`.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        facts = TARGETS[kind]
        pattern, self._use, manifest, self._sealed = (*facts, *(None, True)[len(facts) - 2 :])
        self._folder = folder
        self._path = sorted(folder.glob(pattern))[0 if kind in FIRST else -1]
        self._manifest = None if manifest is None else self._path.with_name(manifest)
        self._whole = {path: path.read_bytes() for path in (self._path, self._manifest) if path is not None}

    @cached_property
    def forgeries(self) -> list[tuple[str, Callable[[], Any]]]:
        """What is forged, and what makes it."""
        if self._path.suffix == ".safetensors":
            return list(forged_tensors(self._path))
        return list(forged_documents(json.loads(self._path.read_text())))

    def damage(self, number: int) -> str:
        what, make = self.forgeries[number]
        content = make()
        if isinstance(content, bytes):
            self._path.write_bytes(content)
        elif self._sealed:
            write_sealed(self._path, content)
        else:
            self._path.write_text(json.dumps(content))
        if self._manifest is not None:
            seal_file(self._manifest, self._path.name)
        return what

    def use(self) -> object:
        return self._use(self._folder)

    def restore(self) -> None:
        for path, content in self._whole.items():
            path.write_bytes(content)

    def is_named(self, error: str) -> bool:
        return _NAMES.search(error) is not None


def write_log(path: Path, seed: int) -> None:
    """A CSV of 120 rows, with two categorical fields and a number."""
    draw = random.Random(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "site", "user", "age"])
        for _ in range(120):
            site, user = draw.randrange(6), draw.randrange(20)
            writer.writerow([int(draw.random() < 0.2 + 0.1 * site), f"s{site}", f"u{user}", draw.randrange(80)])


def command(*arguments: object) -> None:
    """`sparsegroup` with these arguments."""
    sys.argv = ["sparsegroup", *map(str, arguments)]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise


def write_folders(folder: Path) -> None:
    """Write a folder of every kind."""
    folder.mkdir(parents=True)
    os.chdir(folder)
    for day in (1, 2):
        write_log(Path(f"day{day}.csv"), day)
    Path("schema.yaml").write_text("label: label\nnumeric: [age]\ncategorical: [site, user]\n")
    schema = ("--schema", "schema.yaml")
    command("prepare", "day1.csv", PREPARED, "--vocabulary", *schema)
    settings = ("--model", "mlp", "--dim", "2", "--set", "model.hidden=[4]", "--set", "training.batch_size=16")
    penalty = ("--set", "optimizer.penalty=mcp", "--set", "optimizer.l21=0.004", "--lr", "0.05")
    command("train", PREPARED, "--out", RUN, *settings, *penalty)
    command("export", RUN, EXPORT, "--no-onnx")
    command("train", "day2.csv", "--continue", RUN, "--out", "next", *schema)
    command("export", "next", DELTA, "--since", EXPORT, "--no-onnx")
    shutil.rmtree("next")
    often = {"batch_size": 16, "windows": 4, "checkpoint_steps": 3, "keep_checkpoints": 3}
    config = Config.of(model="mlp", dim=2, hidden=[4], l21=1e-3, log=PREPARED, **often)
    Session.begin(folder / CUT, config, PreparedLog(folder / PREPARED)).train()
    (folder / CUT / "summary.json").unlink()
    shutil.rmtree(sorted((folder / CUT / "checkpoints").iterdir())[-1])
    write_chain(folder / CHAIN)


def _load(path: Path) -> None:
    """Load a checkpoint and train on; what is refused has changed nothing."""
    training = clicks()
    training.step()
    before = bits(training.facts())
    try:
        training.load(path)
    except ValueError:
        assert bits(training.facts()) == before
        raise
    training.step()
    training.tables[0].shrink()
    training.optimizers[0].sweep()  # type: ignore[attr-defined]


def load_base(folder: Path) -> None:
    _load(sorted((folder / CHAIN).iterdir())[0])


def load_last(folder: Path) -> None:
    _load(sorted((folder / CHAIN).iterdir())[-1])


def open_run(folder: Path) -> None:
    inspect(open_trained(folder / RUN), 3)


def resume(folder: Path) -> None:
    log = PreparedLog(folder / PREPARED)
    session = Session.resume(folder / CUT, log)
    try:
        arguments = session.plan.arguments(log)
        arguments["stream"] = lambda epoch: session.plan.batches(log, epoch, session.trainer.progress.position)
        session.trainer.fit(**arguments)
        check_weights(session.model, session.trainer.samples)
        session.trainer.predictions(log.batches(0, 16, 16)).metrics()
    finally:
        assert session._lock is not None
        session._lock.close()


def continue_run(folder: Path) -> None:
    run = load_run(folder / RUN)
    assert all(point.samples >= 0 for point in run.history)
    repr(run.summary)


def read_log(folder: Path) -> None:
    log = PreparedLog(folder / PREPARED)
    assert sum(len(batch) for batch in log.batches(0, len(log), 50)) == len(log)
    assert log.features >= 0


def serve(folder: Path) -> None:
    trained = open_trained(folder / EXPORT)
    inspect(trained, 3)
    load_export(folder / EXPORT)(torch.zeros(2, 2, dtype=torch.int64), torch.zeros(2, 1))


def serve_delta(folder: Path) -> None:
    read_export(folder / DELTA).model()


TARGETS: dict[str, Any] = {
    "checkpoint": (f"{CHAIN}/*/{MANIFEST}", load_base),
    "changes": (f"{CHAIN}/*/{MANIFEST}", load_last),
    "table": (f"{CHAIN}/*/{TABLE}", load_base, MANIFEST),
    "changed table": (f"{CHAIN}/*/{TABLE}", load_last, MANIFEST),
    "state": (f"{CHAIN}/*/{STATE}", load_last, MANIFEST),
    "run's checkpoint": (f"{RUN}/checkpoints/*/{MANIFEST}", open_run),
    "run's table": (f"{RUN}/checkpoints/*/table*", open_run, MANIFEST),
    "cut-off run's checkpoint": (f"{CUT}/checkpoints/*/{MANIFEST}", resume),
    "cut-off run's state": (f"{CUT}/checkpoints/*/{STATE}", resume, MANIFEST),
    "provenance.json": (f"{CUT}/provenance.json", resume, None, False),
    "summary.json": (f"{RUN}/summary.json", continue_run),
    "columns.json": (f"{RUN}/columns.json", continue_run, "summary.json", False),
    "log.json": (f"{PREPARED}/log.json", read_log),
    "manifest.json": (f"{EXPORT}/manifest.json", serve),
    "embeddings": (f"{EXPORT}/embeddings.safetensors", serve, "manifest.json"),
    "network": (f"{EXPORT}/network.safetensors", serve, "manifest.json"),
    "delta": (f"{DELTA}/manifest.json", serve_delta),
    "upserts": (f"{DELTA}/upserts.safetensors", serve_delta, "manifest.json"),
    "tombstones": (f"{DELTA}/tombstones.safetensors", serve_delta, "manifest.json"),
}
"""Kind → the file, what reads it, the manifest next to it that has its facts, whether it has a checksum itself."""

FIRST = ("checkpoint", "table")
"""Kinds of which the first file is taken, not the last."""
