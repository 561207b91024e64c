"""Magnitude pruning of an embedding table (§4.2), the baseline: keep the rows with the largest norm."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from sparsegroup.data import Log, MemoryLog
from sparsegroup.optim.step import KEY_BYTES
from sparsegroup.reporting.run_record import HistoryPoint, Metrics
from sparsegroup.table import HashEmbedding
from sparsegroup.training.build import NO_TARGET, Config
from sparsegroup.training.click_model import ClickModel
from sparsegroup.training.log_pass import score, train_as


@torch.no_grad()
def prune_rows(embedding: HashEmbedding, keep: int) -> None:
    """Set all but the `keep` rows of largest Euclidean norm to zero, in place. Ties fall to the lower key.

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


Reporter = tuple[Callable[[int, float], None], Callable[[HistoryPoint], None]]


@dataclass(frozen=True)
class MethodScore:
    """A trained table and how well it does.

    Attributes:
        name: The method.
        test: Metrics on the test rows.
        feature_rate: Live features over features seen in training.
        live_rows: Features with a non-zero vector.
        table_bytes: What a server has to hold: a 64-bit key and a float32 vector per live feature.
        informative: Share of the live features that have an effect, where the truth is known (synthetic logs).
    """

    name: str
    test: Metrics
    feature_rate: float
    live_rows: int
    table_bytes: int
    informative: float | None


def compare(
    log: Log,
    configs: Mapping[str, Config],
    reporting: Callable[[str], AbstractContextManager[Reporter | None]] = lambda name: nullcontext(),
) -> list[MethodScore]:
    """Train a base optimizer and Group versions of it or of others; prune the first to the rate of the last.

    Args:
        log: The click log.
        configs: Name → settings of a Group version, one or several; the base optimizer is the first with all λ = 0.
        reporting: Given a method's name, a context that yields the `on_batch` and `on_progress` of `train`, or None.
    """
    configs = {name: config.resolved_for(log) for name, config in configs.items()}
    first = next(iter(configs.values()))
    base_name = first.optimizer.name.capitalize()
    plain = first.replace(l1=0.0, l21=0.0, l2=0.0, **NO_TARGET)
    base, base_model = _train(log, plain, base_name, reporting)
    groups = [_train(log, config, name, reporting)[0] for name, config in configs.items()]
    prune_rows(base_model.table, min(groups[-1].live_rows, base.live_rows))
    pruned = _method_score(f"{base_name}, pruned", log, base_model, score(base_model, log))
    return [base, pruned, *groups]


def _train(
    log: Log,
    config: Config,
    name: str,
    reporting: Callable[[str], AbstractContextManager[Reporter | None]],
) -> tuple[MethodScore, ClickModel]:
    model, optimizer = config.build(log)
    with reporting(name) as reporter:
        on_batch, on_progress = reporter or (None, None)
        trained = train_as(config, model, optimizer, log, on_batch=on_batch, on_progress=on_progress)
    return _method_score(name, log, model, trained.test), model


def _method_score(name: str, log: Log, model: ClickModel, metrics: Metrics) -> MethodScore:
    table = model.table
    rows = table.num_live
    informative = None
    if isinstance(log, MemoryLog) and log.informative is not None:
        found = sum(int(log.are_informative(keys.numpy()).sum()) for keys, _ in table.items())
        informative = found / rows if rows else 0.0
    return MethodScore(
        name,
        metrics,
        table.feature_rate,
        rows,
        model.live_bytes + rows * KEY_BYTES,
        informative,
    )
