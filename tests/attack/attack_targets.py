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

from checkpoint_cases import clicks
from checkpoint_damage import write_chain
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


KINDS = (
    *("checkpoint", "changes", "table", "changed table", "state", "run's checkpoint", "run's table"),
    *("cut-off run's checkpoint", "cut-off run's state", "provenance.json", "summary.json", "columns.json", "log.json"),
    *("manifest.json", "embeddings", "network", "delta", "upserts", "tombstones"),
)
_NAMES = re.compile(r"\.(json|jsonl|yaml|safetensors|parquet)\b|step-\d{12}|export|delta|/run: ")


class Target:
    """A file that is forged, and what reads it.

    Args:
        folder: The folder of all folders.
        file: As seen from there.
        use: Reads the file, and uses what was read; given the folder of all folders.
        manifest: The manifest that has its facts; None where it is one itself, or nothing has them.
        sealed: Whether it has a checksum.
    """

    def __init__(
        self, folder: Path, file: str, use: Callable[[Path], object], manifest: str | None = None, sealed: bool = True
    ) -> None:
        self._folder, self._path, self._use = folder, folder / file, use
        self._manifest, self._sealed = None if manifest is None else folder / manifest, sealed
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


def last_checkpoint(folder: Path) -> Path:
    return sorted((folder / "checkpoints").iterdir())[-1]


def targets(folder: Path) -> dict[str, Target]:
    """All files that are attacked."""

    def name(path: Path) -> str:
        return str(path.relative_to(folder))

    base, last = (sorted((folder / CHAIN).iterdir())[at] for at in (0, -1))
    of_run, cut = last_checkpoint(folder / RUN), last_checkpoint(folder / CUT)
    manifest, state, table = "checkpoint.json", "state.safetensors", "table-users.safetensors"
    run_table = next(path for path in of_run.iterdir() if path.name.startswith("table"))
    found: dict[str, Any] = {
        "checkpoint": (name(base / manifest), load_base),
        "changes": (name(last / manifest), load_last),
        "table": (name(base / table), load_base, name(base / manifest)),
        "changed table": (name(last / table), load_last, name(last / manifest)),
        "state": (name(last / state), load_last, name(last / manifest)),
        "run's checkpoint": (name(of_run / manifest), open_run),
        "run's table": (name(run_table), open_run, name(of_run / manifest)),
        "cut-off run's checkpoint": (name(cut / manifest), resume),
        "cut-off run's state": (name(cut / state), resume, name(cut / manifest)),
        "provenance.json": (f"{CUT}/provenance.json", resume, None, False),
        "summary.json": (f"{RUN}/summary.json", continue_run),
        "columns.json": (f"{RUN}/columns.json", continue_run, f"{RUN}/summary.json", False),
        "log.json": (f"{PREPARED}/log.json", read_log),
        "manifest.json": (f"{EXPORT}/manifest.json", serve),
        "embeddings": (f"{EXPORT}/embeddings.safetensors", serve, f"{EXPORT}/manifest.json"),
        "network": (f"{EXPORT}/network.safetensors", serve, f"{EXPORT}/manifest.json"),
        "delta": (f"{DELTA}/manifest.json", serve_delta),
        "upserts": (f"{DELTA}/upserts.safetensors", serve_delta, f"{DELTA}/manifest.json"),
        "tombstones": (f"{DELTA}/tombstones.safetensors", serve_delta, f"{DELTA}/manifest.json"),
    }
    return {name: Target(folder, *facts) for name, facts in found.items()}


def _load(path: Path) -> None:
    training = clicks()
    training.load(path)
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
