"""Optuna's pruning of a trial while its model is trained."""

from typing import TYPE_CHECKING

from sparsegroup.errors import require
from sparsegroup.reporting.run_record import AnyMetrics, HistoryPoint
from sparsegroup.training.callbacks.figures import scalars
from sparsegroup.training.trainer import Callback, Trainer

if TYPE_CHECKING:
    from optuna.trial import Trial


_VALIDATION = "validation_"


class OptunaPruningCallback(Callback):
    """Reports a figure of the training to an Optuna trial, and ends both where the study's pruner says so.

    A figure of the validation is reported after each epoch, by the epoch's number from 1; another at each point of the
    history, by the point's number from 1, so that trials of different batch sizes compare at the same steps. The
    study's `direction` says which way is better: "minimize" for log losses.

    Args:
        trial: The trial that trains.
        monitor: A figure of `HistoryPoint`, such as `validation_log_loss` or `auc`.

    Raises:
        MissingExtraError: The extra `tune` is not installed.
        ValueError: No such figure.
        optuna.TrialPruned: From `Trainer.fit`, where the trial is pruned; other callbacks are notified of the end.

    Examples:
        >>> from sparsegroup.training import OptunaPruningCallback
        >>> def objective(trial):
        ...     callback = OptunaPruningCallback(trial, "validation_log_loss")
        ...     trainer = Trainer(table, network, optimizer, callbacks=[callback])  # doctest: +SKIP
    """

    def __init__(self, trial: "Trial", monitor: str = "validation_log_loss") -> None:
        require("tune", type(self).__name__)
        figures = set(HistoryPoint.__dataclass_fields__) - {"samples", "epoch"}
        if monitor not in figures:
            raise ValueError(f"monitor must be one of {', '.join(sorted(figures))}, got {monitor!r}")
        self.trial, self.monitor = trial, monitor

    def on_point(self, trainer: Trainer, point: HistoryPoint) -> None:
        if not self.monitor.startswith(_VALIDATION) and (value := scalars(point).get(self.monitor)) is not None:
            self._report(value, len(trainer.history))

    def on_validation(self, trainer: Trainer, metrics: AnyMetrics) -> None:
        if self.monitor.startswith(_VALIDATION):
            self._report(getattr(metrics, self.monitor.removeprefix(_VALIDATION)), trainer.progress.epoch)

    def _report(self, value: float, step: int) -> None:
        from optuna import TrialPruned

        self.trial.report(value, step)
        if self.trial.should_prune():
            raise TrialPruned(f"{self.monitor} is {value:.6g} at step {step}")
