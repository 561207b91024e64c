"""Group Adam against Adam pruned after training, at the same feature rate, on real click logs.

For each log: the learning rate, of five, is the one with the best mean AUC over all seeds of Adam (all λ = 0) on the
last tenth of the training rows. For each penalty and wanted feature rate, λ21 is searched on the training rows of
seed 0, by the rate alone. Then every method trains on all training rows with each seed, and Adam is pruned to as many
rows as Group Adam keeps with the same seed. The test rows are looked at once, at the end.

    python benchmarks/pruning.py --data FOLDER   # with avazu_sample.csv.xz and globo_clicks.csv.xz
    python benchmarks/pruning.py --quick         # a small synthetic log
"""

import argparse
import json
import math
import os
import tempfile
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from rich.progress import track
from scipy import stats

from sparsegroup.data import ClickLog, PreparedLog, SyntheticConfig, prepare, synthetic_log
from sparsegroup.prox import Penalty
from sparsegroup.training import Config, prune_rows, score, train

LEARNING_RATES = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
PENALTIES: tuple[Penalty, ...] = ("lasso", "mcp", "hard")
RATES = (0.3, 0.1, 0.03)
RATE_TOLERANCE = 0.05
SEEDS = 5
# The paper's models for data of the kind: news sessions are taken as Criteo, Avazu as itself.
MODELS = {"globo_clicks": Config.of(model="dcn", l21=0.0), "avazu_sample": Config.of(model="mlp", l21=0.0)}


@dataclass(frozen=True)
class Row:
    """One line of the table: means over seeds, and the paired difference with its 95 % t-interval."""

    log: str
    penalty: Penalty
    l21: float
    rate: float
    auc: float
    pruned_auc: float
    difference: float
    low: float
    high: float


@lru_cache(maxsize=1)
def load(source: str) -> ClickLog | PreparedLog:
    if source == "synthetic":
        return synthetic_log(SyntheticConfig(rows=30_000))
    return PreparedLog(source)


def validation_auc(source: str, config: Config) -> float:
    log = load(source)
    model, optimizer = config.build(log)
    return train(model, optimizer, log, train_rows=log.train_rows - log.train_rows // 10).test.auc


def find_l21(source: str, config: Config, rate: float) -> float:
    """The λ21 whose feature rate on the training rows is within 5 % of `rate`, by interpolation in logarithms."""
    log = load(source)

    def log_rate(log_l21: float) -> float:
        model, optimizer = config.replace(l21=math.exp(log_l21)).build(log)
        return math.log(max(train(model, optimizer, log).feature_rate, 1e-9) / rate)

    low, high = math.log(1e-6), math.log(1e-2)
    at_low, at_high = log_rate(low), log_rate(high)
    assert at_low > 0 > at_high, f"{source}: no λ21 in [1e-6, 1e-2] gives the feature rate {rate}"
    for step in range(12):
        # Regula falsi, every third step a bisection, so that one end cannot stay for ever.
        share = 0.5 if step % 3 == 2 else at_low / (at_low - at_high)
        middle = low + share * (high - low)
        at_middle = log_rate(middle)
        if abs(at_middle) < math.log1p(RATE_TOLERANCE):
            break
        if at_middle > 0:
            low, at_low = middle, at_middle
        else:
            high, at_high = middle, at_middle
    return math.exp(middle)


def run_seed(source: str, config: Config, cells: list[tuple[Penalty, float]]) -> tuple[float, list[list[float]]]:
    """Test AUC of Adam, and per (penalty, λ21) [feature rate, AUC of Group Adam, AUC of Adam pruned alike]."""
    log = load(source)
    adam, optimizer = config.build(log)
    adam_auc = train(adam, optimizer, log).test.auc
    dense = adam.embedding.state_dict()
    results = []
    for penalty, l21 in cells:
        model, optimizer = config.replace(penalty=penalty, l21=l21).build(log)
        trained = train(model, optimizer, log)
        adam.embedding.load_state_dict(dense)
        prune_rows(adam.embedding, min(trained.live_rows, adam.embedding.num_live))
        results.append([trained.feature_rate, trained.test.auc, score(adam, log).auc])
    return adam_auc, results


def measure(
    pool: ProcessPoolExecutor, source: str, config: Config, rates: Iterable[float], seeds: int
) -> tuple[float, list[float], list[Row]]:
    """Learning rate, test AUCs of Adam by seed, and the rows of the table for one log."""
    name = Path(source).name.split(".")[0]
    trials = [config.replace(lr=lr, seed=seed) for lr in LEARNING_RATES for seed in range(seeds)]
    jobs = [pool.submit(validation_auc, source, trial) for trial in trials]
    aucs = np.reshape([job.result() for job in track(jobs, f"{name}: learning rate")], (-1, seeds))
    config = config.replace(lr=LEARNING_RATES[int(np.argmax(aucs.mean(axis=1)))])
    wanted = [(penalty, rate) for rate in rates for penalty in PENALTIES]
    jobs = [pool.submit(find_l21, source, config.replace(penalty=penalty), rate) for penalty, rate in wanted]
    l21s = [job.result() for job in track(jobs, f"{name}: λ21")]
    cells = [(penalty, l21) for (penalty, _), l21 in zip(wanted, l21s, strict=True)]
    jobs = [pool.submit(run_seed, source, config.replace(seed=seed), cells) for seed in range(seeds)]
    by_seed = [job.result() for job in track(jobs, f"{name}: seeds")]
    table = np.array([results for _, results in by_seed])  # [seed, cell, (rate, AUC, pruned AUC)]
    rows = []
    for index, (penalty, l21) in enumerate(cells):
        differences = table[:, index, 1] - table[:, index, 2]
        interval = stats.ttest_1samp(differences, 0).confidence_interval(0.95)
        rate, auc, pruned = table[:, index].mean(axis=0)
        rows.append(Row(name, penalty, l21, rate, auc, pruned, differences.mean(), interval.low, interval.high))
    assert config.optimizer.lr is not None
    return config.optimizer.lr, [auc for auc, _ in by_seed], rows


def markdown(lr: float, model: str, adam: list[float], rows: list[Row]) -> str:
    lines = [
        f"**{rows[0].log}**, {model.upper()}, learning rate {lr:g}; "
        f"Adam with all features: {np.mean(adam):.4f} ± {np.std(adam, ddof=1):.4f}",
        "",
        "| feature rate | penalty | λ21 | Adam, pruned | Group Adam | difference (95 % interval) |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    for row in rows:
        lines.append(
            f"| {row.rate:.3f} | {row.penalty} | {row.l21:.1e} | {row.pruned_auc:.4f} | {row.auc:.4f} "
            f"| {row.difference:+.4f} ({row.low:+.4f} to {row.high:+.4f}) |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with avazu_sample.csv.xz and globo_clicks.csv.xz")
    parser.add_argument("--quick", action="store_true", help="a small synthetic log, one feature rate, two seeds")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as a flat object")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write the tables")
    arguments = parser.parse_args()
    if arguments.quick == (arguments.data is not None):
        parser.error("give one of --data and --quick")
    if arguments.quick:
        sources, rates, seeds = {"synthetic": Config.of(l21=0.0)}, RATES[1:2], 2
    else:
        sources = {str(arguments.data / f"{name}.csv.xz"): config for name, config in MODELS.items()}
        rates, seeds = RATES, SEEDS
    figures: dict[str, float] = {}
    tables = []
    with (
        tempfile.TemporaryDirectory() as folder,
        # One thread each: the models are small, and the same figures come out on any number of cores.
        ProcessPoolExecutor(
            os.cpu_count(), get_context("spawn"), initializer=torch.set_num_threads, initargs=(1,)
        ) as pool,
    ):
        for source, config in sources.items():
            if not arguments.quick:
                prepared = Path(folder, Path(source).name.split(".")[0])
                prepare([Path(source)], prepared)
                source = str(prepared)
            lr, adam, rows = measure(pool, source, config, rates, seeds)
            tables.append(markdown(lr, config.model.name, adam, rows))
            print(tables[-1], end="\n\n", flush=True)
            figures |= {f"{rows[0].log}.lr": lr, f"{rows[0].log}.adam_auc": float(np.mean(adam))}
            for row, wanted in zip(rows, np.repeat(list(rates), len(PENALTIES)), strict=True):
                for name in ("l21", "rate", "auc", "pruned_auc", "difference", "low", "high"):
                    figures[f"{row.log}.{row.penalty}.{wanted:g}.{name}"] = float(getattr(row, name))
    if arguments.json:
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    if arguments.markdown:
        arguments.markdown.write_text("\n\n".join(tables) + "\n")


if __name__ == "__main__":
    main()
