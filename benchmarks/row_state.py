"""What smaller rows of a table cost: state in bfloat16, or one number a row, beside Adam and Adagrad in float32.

For each log, optimizer and seed `sparsegroup train` goes through the log once, a tenth of the features asked for, all
else by default but for what `TRAINED` says: test AUC, log loss, calibration (mean prediction over mean label) and
feature rate, mean and standard deviation over seeds. A table's step is timed with each, taking turns.

    python benchmarks/row_state.py --data FOLDER
"""

import json
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

import common
from panel.logs import shared_logs
from sparsegroup import HashEmbedding
from sparsegroup.training.build import OPTIMIZERS

TRAINED: Mapping[str, tuple[str, ...]] = {
    "adam": ("--optimizer", "adam", "--lr", "1e-3"),
    "adam_bfloat16": ("--optimizer", "adam", "--lr", "1e-3", "--state-dtype", "bfloat16"),
    "adagrad": ("--optimizer", "adagrad", "--lr", ".1", "--network-lr", ".03"),
    "adagrad_bfloat16": ("--optimizer", "adagrad", "--lr", ".1", "--network-lr", ".03", "--state-dtype", "bfloat16"),
    "rowwise_adagrad": ("--optimizer", "rowwise_adagrad", "--lr", ".1", "--network-lr", ".03"),
}
DIM, BATCH, BATCHES = 8, 512 * 39, 40
SEEDS = {"criteo_sample": 3, "avazu_sample": 3, "globo_clicks": 2}


def trained(log: Path, options: tuple[str, ...], seed: int, threads: int) -> dict[str, float]:
    """One run's figures on the test set."""
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        shared = ["--model", "dcn", "--dim", DIM, "--target-rate", ".1", "--no-baseline", "--threads", threads]
        common.sparsegroup("train", log, *options, *shared, "--seed", seed, "--out", run, "--quiet")
        summary = json.loads((run / "summary.json").read_text())
    figures = {name: summary["test"][name] for name in ("auc", "log_loss", "calibration")}
    return figures | {"feature_rate": summary["feature_rate"]}


def stepper(options: tuple[str, ...], rows: int) -> tuple[HashEmbedding, Callable[[torch.Tensor, torch.Tensor], float]]:
    """A table of so many rows, and what steps some of its keys and says how long the step took."""
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
        for first in range(0, rows, 1 << 18):
            table(torch.arange(first, min(first + (1 << 18), rows)))
    return table, step


def timed(rows: int, rounds: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a step and bytes of a row, of tables of so many rows."""
    draw = torch.Generator().manual_seed(0)
    keys = [(torch.rand(BATCH, generator=draw) ** 3 * rows).long() for _ in range(BATCHES)]
    gradient = torch.randn(BATCH, DIM, generator=draw)
    made = {name: stepper(options, rows) for name, options in TRAINED.items()}
    times: dict[str, list[float]] = {name: [] for name in made}
    for turn in range(rounds):
        for name, (_, step) in made.items():
            found = [step(some, gradient) for some in keys]
            times[name] += found if turn else []
    return {
        name: {
            "step_ms": 1e3 * common.median(times[name]),
            "row_bytes": table.table.rows.row_bytes,
            "bytes_per_row": table.memory().total / table.num_rows,
        }
        for name, (table, _) in made.items()
    }


def measure(given: Namespace) -> Iterator[common.Figures]:
    torch.set_num_threads(given.threads)
    with common.undisturbed():
        found = timed(*((20_000, 2) if given.quick else (2_000_000, 6)))
    yield found
    for log in (one for one in shared_logs(given.data) if one.name in SEEDS) if given.data else ():
        found = {}
        for name, options in TRAINED.items():
            runs = [trained(log.path, options, seed, given.threads) for seed in range(SEEDS[log.name])]
            each = {of: [run[of] for run in runs] for of in runs[0]}
            found[f"{log.name}.{name}"] = {of: float(np.mean(values)) for of, values in each.items()}
            found[f"{log.name}.{name}"] |= {f"{of}_deviation": float(np.std(values)) for of, values in each.items()}
        yield found


if __name__ == "__main__":
    common.run(measure, __doc__, quick="small tables; no log", options=common.DATA)
