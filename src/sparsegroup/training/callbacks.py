"""Callbacks of a `Trainer`: what others are told while it trains."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparsegroup.reporting.run_record import HistoryPoint, Metrics, Summary

if TYPE_CHECKING:
    from sparsegroup.training.config import Config
    from sparsegroup.training.trainer import Trainer


class Callback:
    """Is told what happens while a model is trained. By itself it does nothing: override what is needed.

    A `Trainer` calls the first five, and each may call its `stop`. The others are of a run in a folder (`Session`,
    `sparsegroup train`), around them.

    Examples:
        >>> import torch
        >>> from sparsegroup import GroupAdam, HashEmbedding
        >>> from sparsegroup.models import MLP
        >>> from sparsegroup.training import Callback, Trainer
        >>> class Show(Callback):
        ...     def on_point(self, trainer, point):
        ...         print(point.samples)
        >>> table, network = HashEmbedding(4), MLP(fields=3, dim=4)
        >>> optimizer = GroupAdam([*table.parameters(), *network.parameters()])
        >>> stream = [(torch.randint(100, (32, 3)), torch.randint(2, (32,))) for _ in range(10)]
        >>> trainer = Trainer(table, network, optimizer, window=160, callbacks=[Show()])
        >>> points = trainer.fit(stream)
        160
        320
    """

    def on_begin(self, trainer: "Trainer") -> None:
        """`fit` begins. `trainer.history` has the points so far, also those of a run that is resumed."""

    def on_batch(self, trainer: "Trainer", samples: int, loss: float) -> None:
        """A batch of so many samples has been trained on, with the loss before its step."""

    def on_point(self, trainer: "Trainer", point: HistoryPoint) -> None:
        """A point has joined the history; some batches after it, as its metrics take a while."""

    def on_validation(self, trainer: "Trainer", metrics: Metrics) -> None:
        """An epoch has ended, and the model has these metrics on the validation rows; see `trainer.progress`."""

    def on_end(self, trainer: "Trainer") -> None:
        """`fit` is over, or has failed."""

    def on_run_begin(self, folder: Path, config: "Config") -> None:
        """A run begins in `folder`, or is resumed there."""

    def on_run_end(self, folder: Path, summary: Summary | None) -> None:
        """A run is complete, with all its files; `summary` is None where an exception has ended it before that."""


def scalars(record: HistoryPoint) -> dict[str, float]:
    """The figures of a point but for its place, by name; what is not defined is left out.

    Those of a record in the point are named after it, with a slash.
    """
    return {name: value for name, value in _flat(asdict(record), "") if name != "samples"}


def final_scalars(summary: Summary) -> dict[str, float]:
    """The metrics of a summary, such as `test/auc`; those that are not defined are left out."""
    found = {name: value for name, value in vars(summary).items() if isinstance(value, Metrics)}
    return {
        f"{name}/{metric}": value for name, metrics in found.items() for metric, value in _flat(asdict(metrics), "")
    }


@contextmanager
def told(callbacks: Sequence[Callback], trainer: "Trainer") -> Iterator[None]:
    """While it lasts, callbacks know that training is under way: they are told of its begin and its end."""
    try:
        for callback in callbacks:
            callback.on_begin(trainer)
        yield
    finally:
        for callback in callbacks:
            callback.on_end(trainer)


def flat_settings(config: "Config") -> dict[str, str | int | float | bool]:
    """Settings by their dotted keys, such as `optimizer.lr`; those that are not set are left out."""
    values: dict[str, str | int | float | bool] = {}
    for section, settings in config.as_dict().items():
        for name, value in settings.items():
            if value is not None:
                values[f"{section}.{name}"] = value if isinstance(value, str | int | float | bool) else str(value)
    return values


def _flat(values: Mapping[str, Any], prefix: str) -> list[tuple[str, float]]:
    found: list[tuple[str, float]] = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and isfinite(value):
            found.append((prefix + name, float(value)))
    return found
