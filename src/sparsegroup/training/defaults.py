"""What a run trains with where nobody has said it: rules that go by the log.

A setting that is given, in a file, by an option or in Python, is never changed. What the rules say is written into the
run's `config.yaml` and its checkpoints, so that a resumed or continued run keeps it, whatever they say later.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sparsegroup.data.log import Log


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

RULES: Mapping[str, Callable[[LogFacts, Settings], Any]] = {
    "model.standardize": lambda log, settings: True,
    "model.number_buckets": lambda log, settings: 32,
    "model.base_rate": lambda log, settings: True,
    "training.batch_size": lambda log, settings: 512,
    "training.epochs": lambda log, settings: 1,
    "training.validation": lambda log, settings: 0.0,
    "training.shuffle_buffer": lambda log, settings: 0,
    "optimizer.network_lr": lambda log, settings: None,
    "optimizer.schedule": lambda log, settings: "constant",
    "optimizer.warmup": lambda log, settings: 0.0,
}
"""Setting → what it is where nobody has said it."""
