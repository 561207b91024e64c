"""The settings that are decided for a log if they are not given.

A setting that is given, in a file, by an option or in Python, is never changed. The decided values are written into the
run's `config.yaml` and its checkpoints, so that a resumed run keeps them even if the rules change. A continued run
keeps them too, except those in `PER_LOG`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparsegroup.data.log import Log
from sparsegroup.training.age import age_of


@dataclass(frozen=True)
class LogFacts:
    """What the rules go by.

    Attributes:
        train_rows: Training rows, those for validation among them.
        fields: Categorical fields.
        numbers: Numeric columns.
        features: Distinct features of the training rows; None where they have not been counted.
        timed: Whether the rows have times.
    """

    train_rows: int
    fields: int
    numbers: int
    features: int | None
    timed: bool

    @classmethod
    def of(cls, log: Log) -> "LogFacts":
        """Those of a log."""
        return cls(log.train_rows, len(log.fields), len(log.numbers), log.features, log.timed)


Settings = Mapping[str, Mapping[str, Any]]
"""Section → setting → value, as it is without the rules."""

SIZES = frozenset({"l1", "l21", "target_rate", "target_bytes"})
"""Settings of the optimizer that say how large the model becomes. Where none is given:"""

SIZE: Mapping[str, Any] = {"target_rate": 0.1, "least_features": 256}

SHUFFLED, BLOCK = 300_000, 10_000
"""Training rows up to which all are shuffled, and rows of the blocks in which those of longer logs are: these follow
what drifts in the log, while no stretch of like rows makes up a batch. See docs/training.md for what was measured."""


MANY = 100_000
"""Training rows above which a DCNv2, whose matrices have more to learn, is better than a DCN; see docs/models.md."""


def _network(log: LogFacts, settings: Settings) -> str:
    has_options = bool(settings["model"]["options"])  # they are those of a DCN
    return "dcnv2" if log.train_rows > MANY and not has_options else "dcn"


def _batch_size(log: LogFacts, settings: Settings) -> int:
    """A thousandth of the rows, as a power of two from 128 to 8,192."""
    return 1 << min(max(round(math.log2(max(log.train_rows, 1) / 1_000)), 7), 13)


def _shuffle_buffer(log: LogFacts, settings: Settings) -> int:
    if age_of(settings["model"]["evict_unseen"]).seconds is not None:
        return 0  # the log's own time goes by its order
    return log.train_rows if log.train_rows <= SHUFFLED else BLOCK


RULES: Mapping[str, Callable[[LogFacts, Settings], Any]] = {
    "model.name": _network,
    "model.standardize": lambda log, settings: True,
    "model.number_buckets": lambda log, settings: 32,
    "model.base_rate": lambda log, settings: True,
    "training.batch_size": _batch_size,
    "training.epochs": lambda log, settings: 1,
    "training.validation": lambda log, settings: 0.0,
    "training.shuffle_buffer": _shuffle_buffer,
    "optimizer.network_lr": lambda log, settings: None,
    "optimizer.schedule": lambda log, settings: "constant",
    "optimizer.warmup": lambda log, settings: 0.0,
}
"""Setting → its value if it is not given."""

DECIDABLE = (
    *RULES,
    *(f"optimizer.{name}" for name in ("name", "lr", "l21", "penalty", *SIZE)),
    "model.fallback",
)
"""Settings that a log decides: those of `RULES`, and the recipe that trains towards a size."""

PER_LOG = ("training.batch_size", "training.shuffle_buffer")
"""Settings that depend on the length of the log, so that a run that is continued on another log decides them again."""
