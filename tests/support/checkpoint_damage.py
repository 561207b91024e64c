"""Checkpoints to be damaged, and one that they could be loaded into."""

import json
import pickle
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from checkpoint_cases import Training, clicks
from forgery import write_sealed
from sparsegroup.artifact.manifest import facts_of
from sparsegroup.checkpoint import Checkpoints
from sparsegroup.checkpoint.manifest import CHECKPOINT

MANIFEST, STATE, TABLE = "checkpoint.json", "state.safetensors", "table-users.safetensors"


def refuse_pickles(patch: pytest.MonkeyPatch, chain: Path) -> None:
    """From now on, reading a pickle is a failure."""
    clicks().load(last(chain))  # numba caches compiled kernels as pickles: they are to be there
    clicks().tables[0].table.directory.index.with_buckets(2_000)

    def refuse(*arguments: object, **keywords: object) -> None:
        raise AssertionError("a pickle is read")

    for module, name in [(pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load"), (np, "load")]:
        patch.setattr(module, name, refuse)


def write_chain(folder: Path) -> Path:
    """A folder with a checkpoint of all rows and two of changes."""
    training = clicks()
    checkpoints = Checkpoints(folder, keep=3)
    training.step(torch.arange(40))
    for step in (1, 2, 3):
        checkpoints.save(step, training.model, training.optimizers, extra={"at": step})
        training.step()
        assert training.tables[0].shrink() + training.tables[1].shrink() or step > 1
    parents = [CHECKPOINT.read(path).parent for path in checkpoints.paths()]
    assert [parent is None for parent in parents] == [True, False, False]
    return checkpoints.folder


def trained_otherwise() -> Training:
    """One that the checkpoints could be loaded into."""
    training = clicks()
    training.draw.manual_seed(1)
    for _ in range(3):
        training.step()
    return training


def last(folder: Path) -> Path:
    return Checkpoints(folder).paths()[-1]


def forge(checkpoint: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what the manifest says, and its checksum with it."""
    path = checkpoint / MANIFEST
    content = json.loads(path.read_text())
    change(content)
    write_sealed(path, content)


def forge_tensors(checkpoint: Path, name: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the tensors of a file, and its checksum with them."""
    path = checkpoint / name
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    forge(checkpoint, lambda content: content["files"].update({name: asdict(facts_of(path))}))
