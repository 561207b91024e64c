"""Writes a small folder of every format, and the numbers in them, to be read by the versions that come after.

    python tests/format_files.py tests/data/formats/version-N

is run once, by the code that writes version N, before a format changes; its files are never written anew.
"""

import csv
import json
import os
import random
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from distributed_cases import Ranks, own_half
from sparsegroup import GroupAdam, HashEmbedding
from sparsegroup.checkpoint import Checkpoints
from sparsegroup.cli import main
from sparsegroup.distributed import data_parallel

ROWS = 120
FOR_PEOPLE = ("report.html", "progress.png")
"""Files of a run that nothing reads."""


class Network(nn.ModuleDict):
    """Parts, by name, one after the other."""

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = self["network"](self["table"](keys))
        return values


def checkpointed(group: Any = None) -> tuple[Network, GroupAdam, torch.optim.lr_scheduler.LRScheduler]:
    """What the checkpoints hold: a table, a network, an optimizer with a penalty that has a parameter, a schedule."""
    torch.manual_seed(0)
    model = Network({"table": HashEmbedding(2, seed=1, process_group=group), "network": nn.Linear(2, 1)})
    groups = [
        {"params": model["table"].parameters(), "l21": 1e-3, "penalty": "mcp"},
        {"params": model["network"].parameters()},
    ]
    optimizer = GroupAdam(groups, lr=0.05)
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)


def write_checkpoints(folder: Path, group: Any = None) -> dict[str, Any]:
    """One of all rows and one of changes, by one process or by the two ranks of a group."""
    model, optimizer, scheduler = checkpointed(group)
    trained = model if group is None else data_parallel(model, process_group=group)
    checkpoints = Checkpoints(folder)
    for step, keys in ((1, torch.arange(-3, 9)), (2, torch.arange(5, 11))):
        optimizer.zero_grad()
        (trained(own_half(keys)).sigmoid() - 0.5).square().sum().backward()
        optimizer.step()
        scheduler.step()
        checkpoints.save(step, model, optimizer, scheduler, extra={"at": step, "words": ("a", 0.5)})
    keys = torch.arange(-3, 11)
    state = optimizer.state[model["table"].weight]
    return {
        "keys": keys.tolist(),
        "rows": model["table"].lookup(keys).tolist(),
        "step": int(state["step"]),
        "weight": model["network"].weight.tolist(),
        "exp_avg_sq": optimizer.state[model["network"].weight]["exp_avg_sq"].tolist(),
        "lr": optimizer.param_groups[0]["lr"],
        "l21": [group["l21"] for group in optimizer.param_groups],
        "penalty": "mcp",
        "mcp_gamma": 3.0,
        "num_seen": model["table"].num_seen,
    }


def write_rank(folder: Path) -> dict[str, Any]:
    """What a rank does to write the checkpoints of all."""
    return write_checkpoints(folder, dist.group.WORLD)


def write_checkpoints_of_ranks(folder: Path) -> dict[str, Any]:
    """The same of a table that lies on two ranks."""
    ranks = Ranks()
    parts = ranks.call(write_rank, folder.absolute())
    ranks.end()
    return {**parts[0], "num_seen": sum(part["num_seen"] for part in parts)}


def write_log(path: Path, seed: int) -> None:
    """A CSV of two categorical fields and a number."""
    draw = random.Random(seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["label", "site", "user", "age"])
        for _ in range(ROWS):
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


def write_all(folder: Path) -> None:
    """Write the folders, the logs they are of, and `values.json`."""
    folder.mkdir(parents=True)
    os.chdir(folder)
    values: dict[str, Any] = {"checkpoint": write_checkpoints(Path("checkpoints"))}
    values["checkpoint of ranks"] = write_checkpoints_of_ranks(Path("checkpoints-of-ranks"))
    for day in (1, 2):
        write_log(Path(f"day{day}.csv"), day)
    Path("schema.yaml").write_text("label: label\nnumeric: [age]\ncategorical: [site, user]\n")
    schema = ("--schema", "schema.yaml")
    command("prepare", "day1.csv", "prepared-log", "--vocabulary", *schema)
    settings = ("--model", "mlp", "--dim", "2", "--set", "model.hidden=[4]", "--set", "training.batch_size=16")
    penalty = ("--set", "optimizer.penalty=mcp", "--set", "optimizer.l21=0.004", "--lr", "0.05")
    command("train", "prepared-log", "--out", "run", *settings, *penalty)
    command("export", "run", "export", "--no-onnx")
    command("train", "day2.csv", "--continue", "run", "--out", "next", *schema)
    command("export", "next", "delta", "--since", "export", "--no-onnx")
    for kind in ("run", "export", "delta"):
        command("predict", kind, "day2.csv", "--out", f"{kind}.csv", *schema)
        with Path(f"{kind}.csv").open(newline="") as file:
            values[kind] = list(csv.DictReader(file))[:10]
        Path(f"{kind}.csv").unlink()
    Path("values.json").write_text(json.dumps(values, indent=1) + "\n")
    for path in [*Path("next").rglob("*"), *(Path("run") / name for name in FOR_PEOPLE)]:
        if path.is_file():
            path.unlink()


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
