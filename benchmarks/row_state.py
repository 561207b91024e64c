"""What smaller rows of a table cost: state in bfloat16, or one number a row, beside Adam and Adagrad in float32.

For each log, optimizer and seed `sparsegroup train` goes through the log once, a tenth of the features asked for, all
else by default but for what `TRAINED` says: test AUC, log loss, calibration (mean prediction over mean label) and
feature rate, mean and standard deviation over seeds. Without a log, a table's step is timed with each, taking turns.

    python benchmarks/row_state.py train.txt clicks.csv --json benchmarks/results/row_state.json
    python benchmarks/row_state.py --json benchmarks/results/row_state.json
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from sparsegroup import HashEmbedding
from sparsegroup.training.optimizer_config import OPTIMIZERS

TRAINED: Mapping[str, tuple[str, ...]] = {
    "adam": ("--optimizer", "adam", "--lr", "1e-3"),
    "adam, bfloat16": ("--optimizer", "adam", "--lr", "1e-3", "--state-dtype", "bfloat16"),
    "adagrad": ("--optimizer", "adagrad", "--lr", ".1", "--network-lr", ".03"),
    "adagrad, bfloat16": ("--optimizer", "adagrad", "--lr", ".1", "--network-lr", ".03", "--state-dtype", "bfloat16"),
    "rowwise_adagrad": ("--optimizer", "rowwise_adagrad", "--lr", ".1", "--network-lr", ".03"),
}
DIM, ROWS, BATCH = 8, 2_000_000, 512 * 39
BATCHES, ROUNDS = 40, 6


def measured(log: str, options: tuple[str, ...], seed: int, threads: int) -> dict[str, float]:
    """One run's figures on the test set."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-m", "sparsegroup", "train", log, *options, "--seed", str(seed), "--out", str(run)]
        common = ["--model", "dcn", "--dim", str(DIM), "--target-rate", ".1", "--no-baseline"]
        subprocess.run([*command, *common, "--threads", str(threads), "--quiet"], check=True)
        summary = json.loads((run / "summary.json").read_text())
    test = summary["test"]
    return {
        "auc": test["auc"],
        "log_loss": test["log_loss"],
        "calibration": test["calibration"],
        "feature_rate": summary["feature_rate"],
    }


def stepper(options: tuple[str, ...]) -> tuple[HashEmbedding, Callable[[torch.Tensor, torch.Tensor], float]]:
    """A table of `ROWS` rows, and what steps some of its keys and says how long the step took."""
    given = dict(zip(options[::2], options[1::2], strict=True))
    dtype = torch.bfloat16 if "--state-dtype" in given else None
    table = HashEmbedding(DIM, std=0.01)
    optimizer = OPTIMIZERS[given["--optimizer"]](table.parameters(), lr=1e-3, l21=1e-4, state_dtype=dtype)  # type: ignore[index]

    def step(keys: torch.Tensor, gradient: torch.Tensor) -> float:
        optimizer.zero_grad()
        table(keys).backward(gradient)
        begin = perf_counter()
        optimizer.step()
        return perf_counter() - begin

    step(torch.arange(BATCH), torch.zeros(BATCH, DIM))
    with torch.no_grad():
        for first in range(0, ROWS, 1 << 18):
            table(torch.arange(first, min(first + (1 << 18), ROWS)))
    return table, step


def timed() -> dict[str, dict[str, float]]:
    """Milliseconds of a step and bytes of a row."""
    draw = torch.Generator().manual_seed(0)
    keys = [(torch.rand(BATCH, generator=draw) ** 3 * ROWS).long() for _ in range(BATCHES)]
    gradient = torch.randn(BATCH, DIM, generator=draw)
    made = {name: stepper(options) for name, options in TRAINED.items()}
    times: dict[str, list[float]] = {name: [] for name in made}
    for turn in range(ROUNDS):
        for name, (_, step) in made.items():
            found = [step(some, gradient) for some in keys]
            times[name] += found if turn else []
    return {
        name: {
            "step_ms": 1e3 * float(np.median(times[name])),
            "row_bytes": table.table.rows.row_bytes,
            "total_bytes_per_row": table.memory().total / table.num_rows,
        }
        for name, (table, _) in made.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="*")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", nargs="*", default=list(TRAINED))
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    figures: dict[str, Any] = (
        json.loads(arguments.json.read_text()) if arguments.json and arguments.json.exists() else {}
    )

    def note(name: str, found: Any) -> None:
        figures[name] = found
        print(name, json.dumps(found), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(figures, indent=1) + "\n")

    for log in arguments.logs:
        for name in arguments.only:
            runs = [measured(log, TRAINED[name], seed, arguments.threads) for seed in range(arguments.seeds)]
            values = {key: [run[key] for run in runs] for key in runs[0]}
            note(f"{Path(log).name.split('.')[0]}: {name}", {key: [np.mean(v), np.std(v)] for key, v in values.items()})
    if not arguments.logs:
        torch.set_num_threads(arguments.threads)
        note("step", timed())


if __name__ == "__main__":
    main()
