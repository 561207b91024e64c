"""Runs of several ranks on a log with everything that has state: numbers, lists, admission, fallback, a target."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from command import without_pictures
from following import CutOffError, cut_off_at
from kill_runs import outcome_of
from sparsegroup.checkpoint import save
from sparsegroup.data import Log, open_log
from sparsegroup.models import NumberEncoder
from sparsegroup.models.attention import Dice
from sparsegroup.training import Config, Session, Trainer
from sparsegroup.training.ranks import RankGroup

ROWS, EPOCHS = 800, 2
STEPS = 11
"""Of an epoch: the first nine tenths are trained on, but for a tenth of them."""

SETTINGS: dict[str, Any] = {
    "model": "mlp",
    "dim": 4,
    "hidden": [8],
    "dropout": 0.2,
    "fallback": True,
    "admit_after": 2,
    "evict_unseen": 5,
    "number_buckets": 8,
    "standardize": True,
    "attention": {"tags": "item"},
    "target_rate": 0.3,
    "lr": 0.1,
    "network_lr": 0.03,
    "batch_size": 61,
    "windows": 7,
    "epochs": EPOCHS,
    "validation": 0.1,
    "shuffle_buffer": 150,
    "checkpoint_steps": 5,
    "checkpoint_minutes": 0,
}
VARIANTS: dict[str, dict[str, Any]] = {
    "as above": {},
    "by the log's clock": {"evict_unseen": "40s", "dims": {"user": 2}},
    "a sketch and a byte limit": {"admit_sketch": 4096, "max_table_bytes": "6MB", "evict_unseen": 0},
    "reset": {"after_first_epoch": "reset"},
    "frozen, without an order of chance": {"after_first_epoch": "freeze", "shuffle_buffer": 0, "dropout": 0.0},
    "a lasso without a target": {"optimizer": "adam", "target_rate": None, "l21": 1e-3, "lr": 0.01},
    "all rows in each checkpoint": {"incremental_checkpoints": False, "admit_after": 1},
}


def write_log(folder: Path) -> Path:
    """A log whose numbers rise from row to row, and its schema; what is said of a row is in its numbers and lists."""
    draw = np.random.default_rng(4)
    item, user = draw.zipf(1.6, ROWS).clip(max=400), draw.zipf(1.4, ROWS).clip(max=900)
    price = draw.lognormal(2, 1.5, ROWS) * np.linspace(1, 3, ROWS)
    age = np.where(draw.random(ROWS) < 0.2, np.nan, draw.normal(30, 5, ROWS) + np.linspace(0, 40, ROWS))
    tags = [" ".join(f"t{one}" for one in draw.zipf(1.7, size).clip(max=60)) for size in draw.integers(0, 5, ROWS)]
    clicks = draw.random(ROWS) < np.where(np.log(price) + 0.3 * (item % 3) > 2.6, 0.6, 0.15)
    lines = [
        f"{int(y)},{i},i{a},u{b},{t},{p:.4f},{'' if np.isnan(n) else f'{n:.3f}'}"
        for i, (y, a, b, t, p, n) in enumerate(zip(clicks, item, user, tags, price, age, strict=True))
    ]
    (folder / "log.csv").write_text("\n".join(["click,ts,item,user,tags,price,age", *lines]) + "\n")
    schema = "{label: click, time: ts, categorical: [item, user], multi: {tags: ' '}, numeric: [price, age]}\n"
    (folder / "schema.yaml").write_text(schema)
    return folder / "log.csv"


def log_of(folder: Path) -> Log:
    return open_log(folder / "log.csv", schema=folder / "schema.yaml")


def outcome(run: Path) -> dict[str, Any]:
    """See `outcome_of`; without the traffic since the last resume, and the job that began it."""
    content = outcome_of(run)
    for rank in content["summary.json"]["ranks"]:
        for name in ("sent", "waited"):
            del rank[name]
    del content["provenance.json"]["job"]
    return content


FOLLOWING = (NumberEncoder, Dice)
"""Layers with running statistics."""


PLACES: dict[str, tuple[Any, str, bool]] = {
    "step": (RankGroup, "all_reduce_gradients", False),
    "batch": (Trainer, "_step", True),
    "save": (save, "_written_tables", True),
    "checkpoint": (Session, "checkpoint", True),
    "validation": (Trainer, "predictions", False),
}
"""Place → the function whose at-th call is the last thing that a process does, and whether it is at its end."""


def cut_off(folder: Path, name: str, settings: dict[str, Any], cuts: list[tuple[str, int]]) -> None:
    """Train in `folder / name` until each of `cuts` in turn."""
    for place, at in cuts:
        with pytest.MonkeyPatch.context() as patch:
            without_pictures(patch)
            owner, called, after = PLACES[place]
            cut_off_at(patch, owner, called, at, after=after)
            session = begun_or_resumed(folder, name, settings)
            with pytest.raises(CutOffError):
                session.train()


def trained(folder: Path, name: str, settings: dict[str, Any], cuts: list[tuple[str, int]]) -> dict[str, Any]:
    """Train to the end, cut off at `cuts` and resumed: the model's statistics and logits on this rank."""
    cut_off(folder, name, settings, cuts)
    with pytest.MonkeyPatch.context() as patch:
        without_pictures(patch)
        session = begun_or_resumed(folder, name, settings)
        session.train()
    layers = {type(one).__name__: one.state_dict() for one in session.model.modules() if isinstance(one, FOLLOWING)}
    return {"logits": logits_of(session.model, session.log), **layers}


def begun_or_resumed(folder: Path, name: str, settings: dict[str, Any]) -> Session:
    log, group = log_of(folder), dist.group.WORLD if dist.is_initialized() else None
    if RankGroup(group).broadcast((folder / name).exists(), "whether it has begun"):
        return Session.resume(folder / name, log, group)
    return Session.begin(folder / name, Config.of(**{**SETTINGS, **settings}), log, process_group=group)


def logits_of(model: torch.nn.Module, log: Log) -> torch.Tensor:
    """What a model predicts for the test rows."""
    batch = next(log.batches(log.train_rows, len(log), len(log)))
    with torch.no_grad():
        found: torch.Tensor = model.eval()(batch.keys, batch.numbers, batch.bags)
    return found
