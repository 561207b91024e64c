"""How good a model of each size is: base optimizers against their Group versions, pruning, and a path of sizes."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from sparsegroup.data import Log, MemoryLog
from sparsegroup.optim import GroupOptimizer
from sparsegroup.optim.census import KEY_BYTES
from sparsegroup.reporting.run_record import AnyMetrics, headline_of
from sparsegroup.table import HashEmbedding
from sparsegroup.training.build import NO_TARGET, Config
from sparsegroup.training.model import ClickModel
from sparsegroup.training.predictions import EVALUATED, predict
from sparsegroup.training.trainer import Callback

Reporting = Callable[[str], AbstractContextManager[Callback | None]]
"""From the name of a model to a context in which it is trained, which yields what follows the training."""


@dataclass(frozen=True)
class ModelScore:
    """A trained model, its size, and its metrics."""

    name: str  # of the method, or of the size
    test: AnyMetrics
    asked: float | None  # the target feature rate
    feature_rate: float
    live_rows: int
    bytes: int  # a server's memory for the live rows: float32 vectors and 8-byte keys
    l21: float  # at the end of training
    informative: float | None  # share of the live features that have an effect, in synthetic logs that know it

    @classmethod
    def of(
        cls, name: str, config: Config, model: ClickModel, optimizer: GroupOptimizer, log: Log, test: AnyMetrics
    ) -> "ModelScore":
        """The size of a model, with its metrics."""
        table = model.embedding
        live, informative = table.num_live, None
        if isinstance(log, MemoryLog) and log.informative is not None and isinstance(table, HashEmbedding):
            found = sum(int(log.are_informative(keys.numpy()).sum()) for keys, _ in table.items())
            informative = found / live if live else 0.0
        size, l21 = model.live_bytes + live * KEY_BYTES, float(optimizer.param_groups[0]["l21"])
        return cls(name, test, config.optimizer.target_rate, table.feature_rate, live, size, l21, informative)


def train_and_test(
    config: Config,
    model: ClickModel,
    optimizer: GroupOptimizer,
    log: Log,
    *,
    name: str = "",
    callbacks: Sequence[Callback] = (),
) -> ModelScore:
    """Train a model, in place, on a log as a config says, in all its epochs, and measure it on the test rows.

    Raises:
        SettingsError: The settings do not suit the log.
        FloatingPointError: Training has diverged.
    """
    plan = config.training.plan(log.train_rows)
    trainer = config.trainer(model, optimizer, plan, callbacks)
    trainer.fit_plan(plan, log)
    test = trainer.evaluate(log.batches(log.train_rows, len(log), EVALUATED))
    return ModelScore.of(name, config, model, optimizer, log, test)


def compare(
    log: Log, configs: Mapping[str, Config], reporting: Reporting = lambda name: nullcontext()
) -> list[ModelScore]:
    """Train a base optimizer, and Group versions of it or of others; prune the first to the rate of the last.

    `configs` has the settings of the Group versions by name; the base optimizer is the first one's with all λ = 0.
    """
    configs = {name: config.resolved_for(log) for name, config in configs.items()}
    first = next(iter(configs.values()))
    base_name, plain = first.optimizer.name.capitalize(), _with_all_features(first)
    base, model, optimizer = _trained(log, plain, base_name, reporting)
    groups = [_trained(log, config, name, reporting)[0] for name, config in configs.items()]
    prune_rows(model.table, min(groups[-1].live_rows, base.live_rows))
    test = predict(model, log.batches(log.train_rows, len(log), EVALUATED)).metrics()
    return [base, ModelScore.of(f"{base_name}, pruned", plain, model, optimizer, log, test), *groups]


def size_path(
    log: Log, config: Config, rates: Sequence[float], reporting: Reporting = lambda name: nullcontext()
) -> list[ModelScore]:
    """Train once with all features, then once for each feature rate in (0, 1), with the same seed.

    `config` has all settings except the size; with a target, so that its penalty is "hard" unless another was given.

    Raises:
        SettingsError: A rate out of range, or fields or times that the log does not have.
    """
    config.check_log(log)
    config = config.resolved_for(log)
    smaller = [(f"rate {rate:g}", config.replace(l21=0.0, target_rate=rate, target_bytes=None)) for rate in rates]
    configs = [("all features", _with_all_features(config)), *smaller]
    return [_trained(log, one, name, reporting)[0] for name, one in configs]


def cheapest(scores: Sequence[ModelScore], tolerance: float) -> ModelScore:
    """The smallest model that loses at most `tolerance` against all features, the first model."""
    good = [score for score in scores if lost(score, scores[0]) <= tolerance]
    return min(good or scores[:1], key=lambda score: score.live_rows)


def lost(score: ModelScore, whole: ModelScore) -> float:
    """How much worse a model is than one of all features: in test AUC, NDCG@10 or relative loss, see `headline_of`."""
    name, is_loss = headline_of(whole.test)
    gap = getattr(whole.test, name) - getattr(score.test, name)
    return -float(gap) if is_loss else float(gap)


def _with_all_features(config: Config) -> Config:
    return config.replace(l1=0.0, l21=0.0, l2=0.0, **NO_TARGET)


def _trained(
    log: Log, config: Config, name: str, reporting: Reporting
) -> tuple[ModelScore, ClickModel, GroupOptimizer]:
    model, optimizer = config.build(log)
    with reporting(name) as callback:
        callbacks = () if callback is None else (callback,)
        score = train_and_test(config, model, optimizer, log, name=name, callbacks=callbacks)
    return score, model, optimizer


@torch.no_grad()
def prune_rows(embedding: HashEmbedding, keep: int) -> None:
    """Set all but the `keep` rows of largest Euclidean norm to zero, in place (§4.2). Ties fall to the lower key.

    Args:
        embedding: The table.
        keep: Number of rows to keep.

    Raises:
        ValueError: `keep` is negative or larger than the number of live rows.
    """
    if not 0 <= keep <= embedding.num_live:
        raise ValueError(f"keep must be in [0, {embedding.num_live}], got {keep}")
    if not embedding.num_live:
        return
    parts = [(keys, torch.linalg.vector_norm(vectors, dim=1)) for keys, vectors in embedding.items()]
    keys, norms = (torch.cat(part) for part in zip(*parts, strict=True))
    by_key = torch.argsort(keys)
    keys, norms = keys[by_key], norms[by_key]
    dropped = keys[torch.argsort(norms, descending=True, stable=True)[keep:]]
    embedding.assign(dropped, torch.zeros(len(dropped), embedding.dim))
