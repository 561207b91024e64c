"""What is attacked: valid folders, and what is done with each of their files when it is forged."""

import csv
import json
import os
import random
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from sparsegroup.serving.reading import read_export
from sparsegroup.training import Config, load_run
from sparsegroup.training.network_step import check_weights
from sparsegroup.training.session import Session

PREPARED, RUN, EXPORT, DELTA, CUT, CHAIN = "prepared-log", "run", "export", "delta", "cut-off", "chain"


@dataclass(frozen=True)
class Target:
    """A file, and what reads it.

    Attributes:
        file: As seen from the folder of all folders.
        use: Reads the file, and uses what was read; given the folder of all folders.
        manifest: The manifest that has its facts; None where it is one itself, or nobody has them.
        sealed: Whether it has a checksum of its own.
    """

    file: str
    use: Callable[[Path], object]
    manifest: str | None = None
    sealed: bool = True

    def forgeries(self, folder: Path) -> Iterator[tuple[str, Callable[[], None]]]:
        """What is forged, and what writes it."""
        path = folder / self.file
        if path.suffix == ".safetensors":
            for what, tensors in forged_tensors(path):
                yield what, lambda make=tensors: self._write(folder, make())
        else:
            for what, make in forged_documents(json.loads(path.read_text())):
                yield what, lambda make=make: self._write(folder, make())

    def _write(self, folder: Path, content: Any) -> None:
        path = folder / self.file
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif self.sealed:
            write_sealed(path, content)
        else:
            path.write_text(json.dumps(content))
        if self.manifest is not None:
            seal_file(folder / self.manifest, path.name)


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
    config = Config.of(
        model="mlp",
        dim=2,
        hidden=[4],
        batch_size=16,
        l21=1e-3,
        windows=4,
        checkpoint_steps=3,
        keep_checkpoints=3,
        log=PREPARED,
    )
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
    found = {
        "checkpoint": Target(name(base / manifest), load_base),
        "changes": Target(name(last / manifest), load_last),
        "table": Target(name(base / table), load_base, name(base / manifest)),
        "changed table": Target(name(last / table), load_last, name(last / manifest)),
        "state": Target(name(last / state), load_last, name(last / manifest)),
        "run's checkpoint": Target(name(of_run / manifest), open_run),
        "run's table": Target(name(run_table), open_run, name(of_run / manifest)),
        "cut-off run's checkpoint": Target(name(cut / manifest), resume),
        "cut-off run's state": Target(name(cut / state), resume, name(cut / manifest)),
        "provenance.json": Target(f"{CUT}/provenance.json", resume, sealed=False),
        "summary.json": Target(f"{RUN}/summary.json", continue_run),
        "columns.json": Target(f"{RUN}/columns.json", continue_run, f"{RUN}/summary.json", sealed=False),
        "log.json": Target(f"{PREPARED}/log.json", read_log),
        "manifest.json": Target(f"{EXPORT}/manifest.json", serve),
        "embeddings": Target(f"{EXPORT}/embeddings.safetensors", serve, f"{EXPORT}/manifest.json"),
        "network": Target(f"{EXPORT}/network.safetensors", serve, f"{EXPORT}/manifest.json"),
        "delta": Target(f"{DELTA}/manifest.json", serve_delta),
        "upserts": Target(f"{DELTA}/upserts.safetensors", serve_delta, f"{DELTA}/manifest.json"),
        "tombstones": Target(f"{DELTA}/tombstones.safetensors", serve_delta, f"{DELTA}/manifest.json"),
    }
    return found


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
