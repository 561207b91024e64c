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
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import product
from math import log2
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import common
from panel.logs import shared_logs
from plain_loop import PLAIN, tested
from sparsegroup import GroupAdagrad, TargetBytes, param_groups
from sparsegroup.data import Log, MemoryLog, SyntheticConfig, open_log, prepare, synthetic_log
from sparsegroup.data.batches import concatenated
from sparsegroup.data.order import LogPart
from sparsegroup.table import HashEmbedding
from sparsegroup.table.hash_embedding import TableCounts
from sparsegroup.training import ClickModel, Config, Trainer
from sparsegroup_paper.public_shapes import DATASETS, synthesize
from sparsegroup_paper.resampling import resampled_aucs
from sparsegroup_paper.statistics import bootstrap_difference

Figures = dict[str, float]
DIM, ROWS, LONG_ROWS, LONG = 8, 100_000, 700_000, "criteo_shape"
REPLICATES = 400
BUDGETS = (0.1, 0.03, 0.01, 0.003, 0.001)
LONG_BUDGETS = (0.03, 0.003, 0.001)
DIMS, ALPHAS = (1, 2, 4, 8), (0.2, 0.4)
BASE = Config.of(
    **PLAIN
    | {"dim": DIM, "standardize": True, "optimizer": "adagrad", "lr": 0.03, "fallback": True, "compile": "never"}
)


KEY_BYTES = 8
Allotted = Sequence[tuple[int, int]]
"""Rows and d of each field."""


def cost(rows: float, dim: int) -> float:
    """Bytes of live rows where they are served."""
    return rows * (4 * dim + KEY_BYTES)


class Search:
    """A trained model whose fields are all constant on held-out rows, until their vectors are given back.

    Args:
        model: A model with one table, trained on the training rows of the log.
        log: Its test rows are those on which the loss is measured.
        most: About how many of these to take.
    """

    def __init__(self, model: ClickModel, log: Log, most: int = 5_000) -> None:
        self.model, self.dim = model.eval(), model.table.dim
        trained = concatenated(list(log.batches(0, log.train_rows, 4096))).keys.numpy()
        batch = concatenated(list(log.batches(log.train_rows, len(log), 4096)))
        pick = slice(None, None, -(-len(batch.labels) // most))
        self.labels = batch.labels[pick]
        self.numbers = batch.numbers[pick] if batch.numbers.shape[1] else None
        self.fields: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]] = []
        for trained_keys, held_keys in zip(trained.T, batch.keys[pick].numpy().T, strict=True):
            keys, counts = np.unique(trained_keys, return_counts=True)
            vectors = self.model.table.lookup(torch.from_numpy(keys)).numpy().astype(np.float64)
            mean = np.average(vectors, 0, counts)
            order = np.argsort(-np.sqrt(counts) * np.linalg.norm(vectors - mean, axis=1), kind="stable")
            keys, counts, vectors = keys[order], counts[order], vectors[order]  # the most useful first
            basis = np.linalg.svd(np.sqrt(counts)[:, None] * (vectors - mean), full_matrices=False)[2]
            place = {key: at for at, key in enumerate(keys.tolist())}
            places = np.array([place.get(key, len(keys)) for key in held_keys.tolist()])
            self.fields.append((vectors, counts, basis, places))
        self.now = torch.stack([self.column(field, 0, self.dim) for field in range(len(self.fields))], 1)

    def column(self, field: int, rows: int, dim: int) -> Tensor:
        """Vectors of a field in the held-out rows when so many rows of it, in so many directions, are left."""
        vectors, counts, basis, places = self.fields[field]
        mean = np.average(vectors, 0, counts)
        rest = np.average(vectors[rows:], 0, counts[rows:]) if rows < len(vectors) else mean
        left = mean + (vectors[:rows] - mean) @ basis[:dim].T @ basis[:dim]
        whole = np.concatenate([left, np.broadcast_to(rest, (len(vectors) + 1 - rows, self.dim))])
        return torch.from_numpy(whole[places]).float()

    @torch.no_grad()
    def loss(self, vectors: Tensor) -> float:
        found = self.model.network(vectors, self.numbers)
        return float(nn.functional.binary_cross_entropy_with_logits(found, self.labels))

    def path(self, budgets: Sequence[float], dims: Sequence[int]) -> list[list[tuple[int, int]]]:
        """Rows and dimension of each field at each of the budgets, the smallest first."""
        state = [(0, dims[0])] * len(self.fields)
        now, spent, loss, found = self.now.clone(), 0.0, self.loss(self.now), []
        queue: list[tuple[float, int, int, int, int]] = []  # least gain first; with the step at which it was measured

        def worth(field: int, rows: int, dim: int) -> float:
            trial = now.clone()
            trial[:, field] = self.column(field, rows, dim)
            return (loss - self.loss(trial)) / (cost(rows, dim) - cost(*state[field]))

        def push(field: int, step: int) -> None:
            rows, dim = state[field]
            most = len(self.fields[field][0])
            moves = {(min(2**power, most), dim) for power in range(30) if min(2**power, most) > rows}
            for more, wider in moves | {(rows, one) for one in dims if one > dim and rows}:
                heappush(queue, (-worth(field, more, wider), step, field, more, wider))

        for field in range(len(state)):
            push(field, 0)
        step = 0
        for budget in sorted(budgets):
            set_aside: list[tuple[float, int, int, int, int]] = []
            while queue and queue[0][0] < 0:
                gain, at, field, rows, dim = heappop(queue)
                price = spent + cost(rows, dim) - cost(*state[field])
                if price > budget:
                    set_aside.append((gain, at, field, rows, dim))
                elif at < step:  # measured before the last change: lazily again
                    heappush(queue, (-worth(field, rows, dim), step, field, rows, dim))
                else:
                    now[:, field] = self.column(field, rows, dim)
                    state[field], spent, loss, step = (rows, dim), price, self.loss(now), step + 1
                    queue = [one for one in queue if one[2] != field]
                    set_aside = [one for one in set_aside if one[2] != field]
                    heapify(queue)
                    push(field, step)
            for one in set_aside:
                heappush(queue, one)
            found.append(list(state))
        return found


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


class Ran(NamedTuple):
    """A run: its model, the bytes that are served, and AUC and log loss of its test rows, also of them resampled."""

    model: ClickModel
    bytes: float
    found: Figures
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
    found = tested(model, log)
    labels, predicted = found.labels(), found.probabilities().clip(1e-7, 1 - 1e-7)
    losses = -np.where(labels == 1, np.log(predicted), np.log1p(-predicted))
    draws = np.random.default_rng(0).poisson(1, (REPLICATES, len(losses))).astype(np.float32)
    resampled = draws @ losses.astype(np.float32) / draws.sum(1)
    return Ran(
        model,
        model.live_bytes + model.embedding.num_live * KEY_BYTES,
        {"auc": found.metrics().auc, "loss": float(losses.mean())},
        {"auc": resampled_aucs(labels, predicted, REPLICATES), "loss": resampled},
    )


def by_size(counts: Sequence[int], alpha: float) -> list[int]:
    """d of each field, a power of two, the largest for the field of fewest features."""
    least = min(counts)
    return [2 ** max(0, round(log2(DIM * (count / least) ** -alpha))) for count in counts]


def logs(data: Path | None, folder: Path, quick: bool) -> Iterator[tuple[str, Log]]:
    """The synthetic log, the public ones that are there, and a long synthetic one."""
    rows = 4_000 if quick else ROWS
    yield "synthetic", synthetic_log(SyntheticConfig(rows=rows))
    for one in shared_logs(data) if data else ():
        log = open_log(one.path, one.test)
        if one.test is None:
            prepare([one.path], folder / one.name, log.format)
            log = open_log(folder / one.name)
        else:  # it has no numbers
            batch = concatenated(list(log.batches(0, len(log), 4096)))
            log = MemoryLog(one.name, log.fields, batch.keys.numpy(), batch.labels.numpy(), log.train_rows)
        if len(log) > 2 * rows:
            log = LogPart(log, log.train_rows - rows, rows - rows // 10, rows // 10)
        yield one.name, log
    if not quick:
        yield LONG, synthesize(DATASETS["criteo"], LONG_ROWS, folder / LONG)


Way = tuple[list[int], list[float] | None]
"""The d of each field, and the bytes of each where they are not by one λ21."""

CHOICES = {
    "one_dim": ("today", "one_dim_4", "one_dim_2", "one_dim_1"),
    "by_size": ("today", *(f"by_size_{alpha:g}" for alpha in ALPHAS)),
    "any": (),
}


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
                value, of_base = (float(np.mean([one.found[name] for one in of])) for of in (its, runs[base]))
                drawn, drawn_of_base = (np.array([one.resampled[name] for one in of]) for of in (its, runs[base]))
                low, high = bootstrap_difference(drawn, drawn_of_base)
                figures |= {name: value, f"{name}_minus_{base}": value - of_base}
                figures[f"{name}_{base}_error"] = (high - low) / 3.92
            yield share, way, figures


def counts_of(found: Mapping[tuple[str, float, str], Figures]) -> Figures:
    """Logs on which a contender is better, and worse, than today and than one_dim, beyond 1.96 standard errors."""
    counts: Figures = {}
    for (_, share, way), figures in found.items():
        for (name, better), base in product((("auc", 1), ("loss", -1)), ("today", "one_dim")):
            difference = figures[f"{name}_minus_{base}"]
            is_sure = abs(difference) > 1.96 * figures[f"{name}_{base}_error"]
            for word, sign in (("better", better), ("worse", -better)):
                at = f"logs.{share:g}.{way}.{name}_{word}_than_{base}"
                counts[at] = counts.get(at, 0) + (is_sure and difference * sign > 0)
    return counts


def measure(given: Namespace) -> Iterator[common.Figures]:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "a size of", RuntimeWarning)  # of fields that the search leaves out
    found: dict[tuple[str, float, str], Figures] = {}
    with TemporaryDirectory() as folder:
        for name, log in logs(given.data, Path(folder), given.quick):
            seeds = 1 if name == LONG else given.seeds
            budgets = BUDGETS[2:3] if given.quick else LONG_BUDGETS if name == LONG else BUDGETS
            for share, way, figures in compared(log, budgets, seeds, name != LONG):
                found[name, share, way] = figures
                kept = {key: round(value, 6) for key, value in figures.items() if "one_dim" not in key}
                yield {f"{name}.{share:g}.{way}": kept}
            yield counts_of(found)


if __name__ == "__main__":
    common.run(measure, __doc__, "a short made-up log, one seed, one budget", seeds=3, options=common.DATA)
