"""A model in training on a log, and other ways to a small table: pruning as in §4.2 and others, a cut-off."""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import torch
from torch import Tensor

from sparsegroup.data import VALUE_BITS, Bags, Batch, Log, LogView
from sparsegroup.optim.target import RAMP
from sparsegroup.table import HashEmbedding
from sparsegroup.training import Callback, Config, TrainedBatch, Trainer, prune_rows
from sparsegroup_paper.runs import Pruned

Int64s = npt.NDArray[np.int64]

TIMES = 50
"""How often `gradual` prunes along a pass."""

DAMPING, EVERY, REACHED = 0.99, 10, 0.99
"""DeepLight's D, the steps between two prunings, and the share of S that the last step of a pass has."""

RARE = (1 << VALUE_BITS) - 1
"""Value part of the key that rare features get."""

ROWS, MERGED = 1 << 16, 1 << 22
"""Rows that are counted at a time, and counted keys that are merged in one call, at least."""


class Learner:
    """A freshly initialized model, its optimizer, and the log they learn from; the config's seed is torch's."""

    def __init__(self, log: Log, config: Config) -> None:
        self.log, self.config = log, config
        self.model, self.optimizer = config.build(log)

    def steps(self, rows: int) -> int:
        """Steps of a pass over `rows` rows."""
        return -(-rows // self.config.training.batch_size)

    def fit(self, start: int, stop: int, after_step: Callable[[int], None] | None = None) -> None:
        """Train on rows `start` to `stop` once, to the config's target size at their end.

        An experiment's pass is one epoch in the log's order: of the config's `training`, batch size and seed count.
        `after_step` is called with the number of steps made, after each of them.
        """
        optimizer, steps = self.config.optimizer, self.steps(stop - start)
        trainer = Trainer(
            self.model.embedding,
            self.model.network,
            self.optimizer,
            scheduler=optimizer.scheduler(self.optimizer, steps),
            target=optimizer.target(self.optimizer, steps),
            window=max(1, stop - start),
            callbacks=() if after_step is None else [_EachStep(after_step)],
        )
        trainer.fit(self.log.batches(start, stop, self.config.training.batch_size))


def checkpoint(*parts: Any) -> Callable[[], None]:
    """A function that sets models, optimizers and torch's generator back to where they are now."""
    states, generator = copy.deepcopy([part.state_dict() for part in parts]), torch.get_rng_state()

    def restore() -> None:
        for part, state in zip(parts, copy.deepcopy(states), strict=True):
            part.load_state_dict(state)
        torch.set_rng_state(generator)

    return restore


class _EachStep(Callback):
    def __init__(self, call: Callable[[int], None]) -> None:
        self._call = call

    def on_batch(self, trainer: Trainer, trained: TrainedBatch) -> None:
        self._call(trainer.progress.steps)


def magnitude_pruning(learner: Learner, methods: Sequence[Pruned], stop: int) -> Iterator[Pruned]:
    """Train once on the first `stop` rows, and prune and fine-tune by each method.

    A share of the samples, the last ones, is kept for fine-tuning. When the others have been trained on, the top N
    embedding vectors by norm stay and the others are set to zero. Fine-tuning changes both: a pruned feature that
    comes again starts from zero and may grow, and new features come in. So at the end the top N stay again. Yields each
    of `methods` when the learner, freshly initialized, holds its model.
    """
    size = learner.config.training.batch_size
    trained = 0
    for share in sorted({method.fine_tune for method in methods}, reverse=True):
        # Whole batches, so that the first phase is a part of the plain pass.
        mark = min(stop, round((1 - share) * stop / size) * size) if share else stop
        learner.fit(trained, mark)
        trained, restore = mark, checkpoint(learner.model, learner.optimizer)
        for method in methods:
            if method.fine_tune == share:
                _prune(learner, method)
                if mark < stop:
                    learner.fit(mark, stop)
                    _prune(learner, method)
                yield method
                restore()


def _prune(learner: Learner, method: Pruned) -> None:
    """Keep N vectors: the share of the features seen so far, which at the end are all of the training rows'."""
    if method.by == "x":
        _keep(learner.model.table, method.keep)
    else:
        _keep_by_saliency(learner, method.keep)


def _keep(table: HashEmbedding, share: float) -> None:
    """Keep the vectors of largest norm: that share of the features seen."""
    prune_rows(table, min(round(share * table.num_seen), table.num_live))


@torch.no_grad()
def _keep_by_saliency(learner: Learner, share: float) -> None:
    """Keep the vectors with the largest ‖u - σx‖; ties fall to the lower key."""
    table = learner.model.table
    if not (parts := [keys for keys, _ in table.items()]):
        return
    keys = torch.cat(parts).sort().values
    (census,) = learner.optimizer.census(0)
    saliency = torch.from_numpy(census.critical[table.table.find(keys.numpy())])
    dropped = keys[torch.argsort(saliency, descending=True, stable=True)[round(share * table.num_seen) :]]
    table.assign(dropped, torch.zeros(len(dropped), table.dim))


def gradual(learner: Learner, keep: float, stop: int) -> None:
    """Gradual magnitude pruning (Zhu and Gupta, 2017) of whole vectors, on the schedule of `TargetRate`.

    The share that is kept falls from 1 to r = `keep` along r + (1 - r) (1 - p)³, with p the share of the ramp, 80 % of
    the pass, that is behind. A pruned vector that is trained on again grows from zero.
    """
    table, steps = learner.model.table, learner.steps(stop)
    ramp, interval = math.ceil(RAMP * steps), max(1, steps // TIMES)

    def after_step(done: int) -> None:
        if done % interval == 0:
            _keep(table, keep + (1 - keep) * (1 - min(1.0, done / ramp)) ** 3)

    learner.fit(0, stop, after_step)
    _keep(table, keep)


def deeplight(learner: Learner, sparsity: float, stop: int) -> None:
    """DeepLight's pruning of single weights while training (Deng et al., "DeepLight", WSDM 2021).

    At step k the smallest weights by magnitude are set to zero, so that the share S (1 - D^(k/Ω)) of the weights of all
    features seen is zero, with S = `sparsity` and D = .99; they may grow again. DeepLight takes some 100,000 steps to
    come near S with Ω = 100. A pass of one epoch may have a hundredth of them, so Ω is chosen such that the last step
    reaches 99 % of S; then the rest is pruned.
    """
    table = learner.model.table
    omega = learner.steps(stop) * math.log(DAMPING) / math.log(1 - REACHED)

    def after_step(done: int) -> None:
        if done % EVERY == 0:
            prune_weights(table, sparsity * (1 - DAMPING ** (done / omega)))

    learner.fit(0, stop, after_step)
    prune_weights(table, sparsity)


@torch.no_grad()
def prune_weights(table: HashEmbedding, sparsity: float) -> None:
    """Set the smallest weights by magnitude to zero, so that the share `sparsity` of all features' weights is."""
    if not (parts := list(table.items())):
        return
    keys, vectors = (torch.cat(part) for part in zip(*parts, strict=True))
    weights = vectors.abs().flatten().numpy()
    drop = len(weights) - round((1 - sparsity) * table.num_seen * table.dim)  # zero rows are dropped already
    if drop <= 0:
        return
    small = vectors.abs() <= float(np.partition(weights, drop - 1)[drop - 1])
    changed = (small & (vectors != 0)).any(1)
    table.assign(keys[changed], torch.where(small, 0.0, vectors)[changed])


class WithoutRare(LogView):
    """A log in which each field's rare features are one, also in test rows; `kept` are the others' keys, ascending."""

    def __init__(self, log: Log, kept: Int64s) -> None:
        super().__init__(log)
        self.kept = kept

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        for batch in self.log.batches(start, stop, size):
            bags = tuple(Bags(self._joined(bag.keys), bag.offsets) for bag in batch.bags)
            yield replace(batch, keys=self._joined(batch.keys), bags=bags)

    def _joined(self, keys: Tensor) -> Tensor:
        given = keys.numpy()
        place = np.searchsorted(self.kept, given)
        is_kept = self.kept[np.minimum(place, len(self.kept) - 1)] == given if len(self.kept) else given != given
        # The low bits all set, the field's bits unchanged.
        return torch.from_numpy(np.where(is_kept, given, given | RARE))


@dataclass(frozen=True)
class Counts:
    """How often features were seen: `keys` `[features]`, ascending, and `counts` `[features]`."""

    keys: Int64s
    counts: Int64s

    def __len__(self) -> int:
        return len(self.keys)

    def at_least(self, count: int) -> Int64s:
        """Keys seen so often, ascending."""
        return self.keys[self.counts >= count]


def count_keys(log: Log, rows: int) -> Counts:
    """How often each feature is in the first `rows` rows."""
    total = pl.DataFrame(schema={"key": pl.Int64, "count": pl.Int64})
    parts: list[pl.DataFrame] = []

    def merged() -> pl.DataFrame:
        return pl.concat([total, *parts]).group_by("key").agg(pl.col("count").sum())

    for batch in log.batches(0, rows, ROWS):
        keys = torch.cat([batch.keys.flatten(), *(bag.keys for bag in batch.bags)]).numpy()
        parts.append(pl.DataFrame({"key": keys}).group_by("key").agg(pl.len().cast(pl.Int64).alias("count")))
        if sum(map(len, parts)) > max(len(total), MERGED):  # so that each key is merged a few times only
            total, parts = merged(), []
    total = merged().sort("key")
    return Counts(total["key"].to_numpy(), total["count"].to_numpy())
