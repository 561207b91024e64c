"""Do bytes split over fields by held-out rows beat one dimension and one λ21, at the same served bytes?

DCN, Group Adagrad at a learning rate of .03, `hard`, fallback vectors, `TargetBytes`, one pass in time order; served
are float32 vectors and an 8-byte key for each live row, and budgets are shares of the float32 vectors of all training
features at d = 8. The network takes vectors of 8 in every contender, shorter ones through a learned projection:

- today: d = 8, one λ21;
- one_dim_4, 2, 1: the same d for all fields;
- by_size: d of a field falls as its number of features to the power -α (Ginart et al. 2019);
- by_loss: d of each field by a greedy search on held-out rows: from a trained model whose fields are all constant, rows
  and main directions (of the vectors, weighted by frequency) are given back, whichever lowers the loss most per byte;
- by_loss_rows: these d, and the rows of each field also by that search, with a separate λ21;
- rows: d = 8, the rows of each field by that search.

Choices, and the search, are made on the last tenth of the training rows: `one_dim` is the best of 8, 4, 2 and 1 by
their log loss, `by_size` of the α and 8, `any` of all. The last log, in Criteo's shape and longer, has today and
one_dim only, one seed, and three budgets. Differences in test AUC and log loss have the standard
error of a bootstrap over rows and seeds; `logs` counts the logs where they are more than 1.96 of these.

    python benchmarks/field_split.py --data FOLDER --json field_split.json
"""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import log2
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import timing
from field_search import KEY_BYTES, Allotted, Search, cost
from panel.logs import shared_logs
from plain_loop import PLAIN
from sparsegroup import GroupAdagrad, TargetBytes, param_groups
from sparsegroup.data import Log, MemoryLog, SyntheticConfig, open_log, prepare, synthetic_log
from sparsegroup.data.batches import concatenated
from sparsegroup.data.order import LogPart
from sparsegroup.table import HashEmbedding
from sparsegroup.table.hash_embedding import TableCounts
from sparsegroup.training import ClickModel, Config, Trainer, predict
from sparsegroup_paper.public_shapes import DATASETS, synthesize
from sparsegroup_paper.resampling import resampled_aucs
from sparsegroup_paper.statistics import bootstrap_difference

DIM, ROWS, LONG_ROWS, LONG = 8, 100_000, 700_000, "criteo_shape"
REPLICATES = 400
BUDGETS = (0.1, 0.03, 0.01, 0.003, 0.001)
LONG_BUDGETS = (0.03, 0.003, 0.001)
DIMS, ALPHAS = (1, 2, 4, 8), (0.2, 0.4)
BASE = Config.of(
    **PLAIN
    | {"dim": DIM, "standardize": True, "optimizer": "adagrad", "lr": 0.03, "fallback": True, "compile": "never"}
)


class PerField(TableCounts, nn.Module):
    """A table per field, each of its own dimension."""

    def __init__(self, dims: Sequence[int], seed: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(HashEmbedding(dim, seed=seed, field_bits=8, fallback=True) for dim in dims)
        self.up = nn.ModuleList(nn.Linear(dim, DIM, bias=False) if dim < DIM else nn.Identity() for dim in dims)
        for one in self.up:
            if isinstance(one, nn.Linear):
                nn.init.orthogonal_(one.weight)

    def _counted(self) -> list[Any]:
        return [one.table for one in self.tables]

    def prefetch(self, keys: Tensor) -> None:
        """The tables are short: there is nothing to look for ahead."""

    def forward(self, keys: Tensor) -> Tensor:
        parts = zip(self.tables, self.up, keys.unbind(1), strict=True)
        return torch.stack([up(table(own)) for table, up, own in parts], 1)


class Targets:
    """A target for each field."""

    def __init__(self, optimizer: GroupAdagrad, sizes: Sequence[float], **steps: Any) -> None:
        self.each = [
            TargetBytes(optimizer, max(1, int(size)), param_groups=[n], **steps) for n, size in enumerate(sizes)
        ]
        self.l21 = self.scheduled_rate = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.each[0], name)  # the steps, which are the same for all

    def step(self) -> None:
        for one in self.each:
            one.step()


@dataclass(frozen=True)
class Ran:
    """A run: its model, the bytes that are served, and AUC and log loss of its test rows, also of them resampled."""

    model: ClickModel
    bytes: float
    found: dict[str, float]
    resampled: dict[str, np.ndarray]


def run(log: Log, size: int | None, dims: Sequence[int], seed: int, split: Sequence[float] | None = None) -> Ran:
    """Train on a log, to a size or to the bytes of each field, and predict its test rows."""
    given = dict(zip(log.fields, dims, strict=True)) if set(dims) != {DIM} else {}
    sized = {"l21": 0.0} if size is None else {"target_bytes": size, "penalty": "hard"}
    config = BASE.replace(dims=given, seed=seed, **sized).resolved_for(log)
    plan = config.training.plan(log.train_rows)
    if split is None:
        model, optimizer = config.build(log)
        trainer = config.trainer(model, optimizer, plan)
    else:
        torch.manual_seed(seed)
        network = config.model.network(log.schema)
        model = ClickModel(PerField(dims, seed), network)
        tables, others = param_groups(model, named=False, penalty="hard")
        groups = [{**tables, "params": [one]} for one in tables["params"]]
        optimizer = GroupAdagrad([*groups, others], lr=0.03)
        target = Targets(optimizer, split, **plan.target_steps)
        trainer = Trainer(model.embedding, network, optimizer, target=target, window=10**9)
    trainer.fit_plan(plan, log)
    found = predict(model, log.batches(log.train_rows, len(log), 4096))
    labels, predicted = found.labels(), found.probabilities().clip(1e-7, 1 - 1e-7)
    losses = -np.where(labels == 1, np.log(predicted), np.log1p(-predicted))
    draws = np.random.default_rng(0).poisson(1, (REPLICATES, len(losses))).astype(np.float32)
    return Ran(
        model,
        model.live_bytes + model.embedding.num_live * KEY_BYTES,
        {"auc": found.metrics().auc, "loss": float(losses.mean())},
        {
            "auc": resampled_aucs(labels, predicted, REPLICATES),
            "loss": draws @ losses.astype(np.float32) / draws.sum(1),
        },
    )


def by_size(counts: Sequence[int], alpha: float) -> list[int]:
    """d of each field, a power of two, the largest for the field of fewest features."""
    least = min(counts)
    return [2 ** max(0, round(log2(DIM * (count / least) ** -alpha))) for count in counts]


def logs(data: Path | None, folder: Path, quick: bool) -> Iterator[tuple[str, Log]]:
    """The synthetic log, the public ones that are there, and a long synthetic one."""
    rows = 4_000 if quick else ROWS
    yield "synthetic", synthetic_log(SyntheticConfig(rows=rows))
    there = {one.name: one for one in (shared_logs(data) if data else ())}
    for name in ("avazu_sample", "criteo_sample", "ipinyou_sample", "nycflights13", "globo_clicks"):
        if name not in there:
            print(f"{name}: left out, there is no such log in --data", flush=True)
            continue
        log = open_log(there[name].path, there[name].test)
        if there[name].test is None:
            prepare([there[name].path], folder / name, log.format)
            log = open_log(folder / name)
        else:  # it has no numbers
            batch = concatenated(list(log.batches(0, len(log), 4096)))
            log = MemoryLog(name, log.fields, batch.keys.numpy(), batch.labels.numpy(), log.train_rows)
        if len(log) > 2 * rows:
            log = LogPart(log, log.train_rows - rows, rows - rows // 10, rows // 10)
        yield name, log
    if not quick:
        yield LONG, synthesize(DATASETS["criteo"], LONG_ROWS, folder / LONG)


Figures = dict[str, float]
Way = tuple[list[int], list[float] | None]
"""The d of each field, and the bytes of each where they are not by one λ21."""

CHOICES = {
    "one_dim": ("today", "one_dim_4", "one_dim_2", "one_dim_1"),
    "by_size": ("today", *(f"by_size_{alpha:g}" for alpha in ALPHAS)),
    "any": (),
}
SHOWN = ("one_dim_4", "one_dim_2", "one_dim_1", "one_dim", "by_size", "by_loss", "by_loss_rows", "rows", "any")


def split_ways(counts: Sequence[int], size: int, live: Sequence[int], both: Allotted, rows: Allotted) -> dict[str, Way]:
    """Contenders by field; `live`: the rows of each field that one λ21 leaves, `both`, `rows`: what was searched."""

    def filled(state: Allotted) -> list[float]:
        """Bytes of each field; the remaining bytes are spread as one λ21 spreads them."""
        own = [cost(*one) for one in state]
        rest = max(0.0, size - sum(own)) / max(1, sum(live))
        return [one + rest * more for one, more in zip(own, live, strict=True)]

    dims, same = [dim for _, dim in both], [DIM] * len(counts)
    return {
        **{f"by_size_{alpha:g}": (by_size(counts, alpha), None) for alpha in ALPHAS},
        "by_loss": (dims, None),
        "by_loss_rows": (dims, filled(both)),
        "rows": (same, filled(rows)),
    }


def compared(log: Log, budgets: Sequence[float], seeds: int, by_field: bool) -> Iterator[tuple[float, str, Figures]]:
    """Budget, contender, and its figures."""
    keys = np.concatenate([batch.keys.numpy() for batch in log.batches(0, log.train_rows, 65_536)])
    counts = [len(np.unique(column)) for column in keys.T]
    whole, part = sum(counts) * DIM * 4, log.train_rows // 10
    held = LogPart(log, 0, log.train_rows - part, part)
    paths = []
    if by_field:
        search = Search(run(held, None, [DIM] * len(counts), 0).model, held)
        sizes = [share * whole for share in sorted(budgets)]
        paths = [dict(zip(sorted(budgets), search.path(sizes, dims), strict=True)) for dims in (DIMS, (DIM,))]
    for share in budgets:
        size = int(share * whole)
        ways: dict[str, Way] = {"today": ([DIM] * len(counts), None)}
        ways |= {f"one_dim_{dim}": ([dim] * len(counts), None) for dim in (4, 2, 1)}
        validated = {"today": run(held, size, ways["today"][0], 0)}
        if by_field:
            found = validated["today"].model.embedding.field_counts()
            live = [found[field].live if field in found else 0 for field in range(len(counts))]
            ways |= split_ways(counts, size, live, *(path[share] for path in paths))
        runs = {}
        for way, (dims, split) in ways.items():
            validated[way] = validated.get(way) or run(held, size, dims, 0, split)
            runs[way] = [run(log, size, dims, seed, split) for seed in range(seeds)]
        for choice, among in CHOICES.items():
            open_to = among or tuple(ways)
            if {*open_to} - {*ways} or (not among and not by_field):
                continue
            runs[choice] = runs[min(open_to, key=lambda way: validated[way].found["loss"])]
        for way, its in runs.items():
            figures = {"bytes_of_budget": float(np.mean([one.bytes for one in its])) / size}
            for name, base in product(("auc", "loss"), ("today", "one_dim")):
                values, of_base = (np.mean([one.found[name] for one in of]) for of in (its, runs[base]))
                drawn, drawn_of_base = (np.array([one.resampled[name] for one in of]) for of in (its, runs[base]))
                low, high = bootstrap_difference(drawn, drawn_of_base)
                more = {
                    name: values,
                    f"{name}_minus_{base}": values - of_base,
                    f"{name}_{base}_error": (high - low) / 3.92,
                }
                figures |= {key: float(value) for key, value in more.items()}
            yield share, way, figures


def sure(figures: Figures, name: str, base: str = "today") -> int:
    """1 or -1 where a difference is positive or negative beyond 1.96 standard errors, else 0."""
    more = figures[f"{name}_minus_{base}"]
    return int(np.sign(more)) if abs(more) > 1.96 * figures[f"{name}_{base}_error"] else 0


def counts_of(found: Mapping[str, Mapping[tuple[float, str], Figures]]) -> Figures:
    """Logs on which a contender is better, and worse, than today and than one_dim, beyond noise."""
    counts: Figures = {}
    for of_log in found.values():
        for (share, way), figures in of_log.items():
            for (name, better), base in product((("auc", 1), ("loss", -1)), ("today", "one_dim")):
                for word, sign in (("better", better), ("worse", -better)):
                    at = f"logs.{share:g}.{way}.{name}_{word}_than_{base}"
                    counts[at] = counts.get(at, 0) + (sure(figures, name, base) == sign)
    return counts


def main() -> None:
    parser = timing.parser(__doc__, "a short made-up log, one seed, one budget", seeds=3)
    parser.add_argument("--data", type=Path, help="folder of the public logs")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "a size of", RuntimeWarning)  # of fields that the search leaves out
    found: dict[str, dict[tuple[float, str], Figures]] = {}
    with TemporaryDirectory() as folder:
        for name, log in logs(None if given.quick else given.data, Path(folder), given.quick):
            seeds = 1 if given.quick or name == LONG else given.seeds
            budgets = BUDGETS[2:3] if given.quick else LONG_BUDGETS if name == LONG else BUDGETS
            found[name] = {(share, way): its for share, way, its in compared(log, budgets, seeds, name != LONG)}
            columns = [way for way in SHOWN if (budgets[0], way) in found[name]]
            for of in ("auc", "loss"):
                lines = []
                for share in budgets:
                    at = {way: found[name][share, way] for way in ("today", *columns)}
                    cells = [
                        f"{1e4 * at[one][f'{of}_minus_today']:+.0f}{' *'[abs(sure(at[one], of))]}" for one in columns
                    ]
                    lines.append((f"{share:.1%}", f"{at['today'][of]:.4f}", *cells))
                timing.show(f"{name}: {of} minus today's, in 1e-4", ("budget", "today", *columns), lines)
            written = {
                f"{log_name}.{share:g}.{way}.{key}": round(value, 6)
                for log_name, of_log in found.items()
                for (share, way), figures in of_log.items()
                for key, value in figures.items()
                if "one_dim" not in key
            }
            timing.write_json(given.json, written | counts_of(found))


if __name__ == "__main__":
    main()
