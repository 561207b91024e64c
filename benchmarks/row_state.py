"""What smaller rows of a table cost: state in bfloat16, or one number a row, beside Adam and Adagrad in float32.

For each log, optimizer and seed `sparsegroup train` goes through the log once, a tenth of the features asked for, all
else by default but for what `TRAINED` says: test AUC, log loss, calibration (mean prediction over mean label) and
feature rate, mean and standard deviation over seeds. A table's step is timed with each, taking turns.

    python benchmarks/row_state.py train.txt clicks.csv --json benchmarks/results/row_state.json
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter

import numpy as np
import torch

import timing
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


def timed(rows: int, rounds: int) -> dict[str, float]:
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
    figures: dict[str, float] = {}
    for name, (table, _) in made.items():
        figures |= {
            f"{name}.step_ms": 1e3 * float(np.median(times[name])),
            f"{name}.row_bytes": table.table.rows.row_bytes,
            f"{name}.bytes_per_row": table.memory().total / table.num_rows,
        }
    return figures


def main() -> None:
    parser = timing.parser(__doc__, quick="small tables; no log")
    parser.add_argument("logs", nargs="*", help="to train on")
    parser.add_argument("--seeds", type=int, default=3, help="of a log; default: %(default)s")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with timing.undisturbed():
        figures = timed(*((20_000, 2) if arguments.quick else (2_000_000, 6)))
    step = ("step_ms", "row_bytes", "bytes_per_row")
    lines = ((name, *(f"{figures[f'{name}.{one}']:.3g}" for one in step)) for name in TRAINED)
    timing.show("A table's step", ("", "ms", "bytes of a row", "with index"), lines)
    for log in () if arguments.quick else arguments.logs:
        title = Path(log).name.split(".")[0]
        for name, options in TRAINED.items():
            runs = [measured(log, options, seed, arguments.threads) for seed in range(arguments.seeds)]
            for measure in runs[0]:
                values = [run[measure] for run in runs]
                at = f"{title}.{name}.{measure}"
                figures |= {at: float(np.mean(values)), f"{at}_deviation": float(np.std(values))}
        measures = ("auc", "log_loss", "calibration", "feature_rate")
        of_log = ((name, *(f"{figures[f'{title}.{name}.{one}']:.4f}" for one in measures)) for name in TRAINED)
        timing.show(title, ("", *measures), of_log)
    timing.write_json(arguments.json, figures)


if __name__ == "__main__":
    main()
