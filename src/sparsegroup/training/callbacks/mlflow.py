"""A run in MLflow."""

import json
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import time
from typing import Any

from sparsegroup.addresses import public_address, without_secrets
from sparsegroup.artifact.folder import write_atomically
from sparsegroup.artifact.validation import shortened
from sparsegroup.errors import RunError, require
from sparsegroup.reporting.run_record import HistoryPoint, Summary
from sparsegroup.settings.declared import Settings
from sparsegroup.training.callbacks.figures import final_scalars, flat_settings, scalars
from sparsegroup.training.run_folder import CONFIG, MLFLOW, REPORT, SUMMARY
from sparsegroup.training.trainer import Callback, Trainer

_AT_A_TIME = 100
"""Params that MLflow takes in one call."""

_logger = logging.getLogger(__name__)


class MLflowCallback(Callback):
    """Logs a run's points to MLflow, over the samples trained on, as metrics `progressive/auc` and so on.

    A run in a folder adds its settings as params, metrics such as `test/auc`, and its report as an artifact. Resumed,
    it continues its MLflow run and logs no point twice. A server that cannot be reached when training begins is an
    error; later it is a warning, and the missed points are logged with the next one.

    Args:
        experiment: Its name; created if needed.
        tracking_uri: By default that of the environment variable `MLFLOW_TRACKING_URI`.
        run_name: By default MLflow makes one up.

    Attributes:
        run_id: MLflow's; None until training begins.

    Raises:
        MissingExtraError: The extra `mlflow` is not installed.

    Examples:
        >>> from sparsegroup.training import MLflowCallback
        >>> callback = MLflowCallback("clicks", tracking_uri="http://localhost:5000")  # doctest: +SKIP
        >>> trainer = Trainer(table, network, optimizer, callbacks=[callback])  # doctest: +SKIP
    """

    def __init__(
        self, experiment: str = "sparsegroup", *, tracking_uri: str | None = None, run_name: str | None = None
    ) -> None:
        require("mlflow", type(self).__name__)
        self.experiment, self.tracking_uri, self.run_name = experiment, tracking_uri, run_name
        self._uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI", "")
        self.run_id: str | None = None
        self._in_folder = False
        self._client: Any = None
        self._seen: set[int] = set()
        self._waiting: list[tuple[HistoryPoint, int]] = []

    def on_run_begin(self, folder: Path, config: Settings) -> None:
        """RunError: MLflow cannot be reached, or refuses the run."""
        from mlflow.entities import Param

        self._in_folder = True
        record = folder / MLFLOW
        self._open(_recorded_run(record) if record.is_file() else None)
        uri = None if self.tracking_uri is None else public_address(self.tracking_uri)
        content = {"run_id": self.run_id, "experiment": self.experiment, "tracking_uri": uri}
        write_atomically(record, lambda path: path.write_text(json.dumps(content, indent=1) + "\n"))
        params = [Param(name, str(value)) for name, value in flat_settings(config).items()]
        with self._warned("received the settings"):  # it refuses another value where a path, say, has changed
            for first in range(0, len(params), _AT_A_TIME):
                self._client.log_batch(self.run_id, params=params[first : first + _AT_A_TIME])

    def on_begin(self, trainer: Trainer) -> None:
        """RunError as in `on_run_begin`."""
        if self.run_id is None:
            self._open(None)
        for point in trainer.history:
            self.on_point(trainer, point)

    def on_point(self, trainer: Trainer, point: HistoryPoint) -> None:
        if point.samples not in self._seen:
            self._seen.add(point.samples)
            self._waiting.append((point, round(1000 * (time() - (trainer.seconds - point.seconds)))))
            self._log_waiting()

    def on_end(self, trainer: Trainer) -> None:
        if not self._in_folder:
            self._end("FINISHED")

    def on_run_end(self, folder: Path, summary: Summary | None) -> None:
        if self.run_id is None:
            return
        self._log_waiting()
        if summary is not None:
            with self._warned("received the results of the run"):
                self._log_metrics(final_scalars(summary), summary.samples, round(1000 * time()))
                for name in (CONFIG, SUMMARY, REPORT):
                    self._client.log_artifact(self.run_id, str(folder / name))
        self._end("FAILED" if summary is None else "FINISHED")

    def _open(self, before: str | None) -> None:
        """Make a run; or continue one, and learn which points it has."""
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        try:
            self._client = client = MlflowClient(tracking_uri=self.tracking_uri)
            if before is None:
                experiment = client.get_experiment_by_name(self.experiment)
                number = client.create_experiment(self.experiment) if experiment is None else experiment.experiment_id
                self.run_id = client.create_run(number, run_name=self.run_name).info.run_id
                return
            client.update_run(before, status="RUNNING")
            self.run_id = before
            self._seen = {metric.step for metric in client.get_metric_history(before, "progressive/feature_rate")}
        except (MlflowException, OSError) as error:
            where = f" at {public_address(self._uri)}" if self._uri else ""
            why = without_secrets(error, self._uri)
            raise RunError(f"MLflow{where}, experiment {self.experiment!r}: {why}") from error

    def _log_metrics(self, figures: dict[str, float], samples: int, when: int) -> None:
        from mlflow.entities import Metric

        metrics = [Metric(name, value, when, samples) for name, value in figures.items()]
        self._client.log_batch(self.run_id, metrics=metrics)

    def _log_waiting(self) -> None:
        while self._waiting:
            point, when = self._waiting[0]
            figures = {f"progressive/{name}": value for name, value in scalars(point).items()}
            with self._warned(f"yet received the last {len(self._waiting)} points"):
                self._log_metrics(figures, point.samples, when)
                self._waiting.pop(0)
                continue
            return

    def _end(self, status: str) -> None:
        with self._warned("received the end of the run"):
            self._client.set_terminated(self.run_id, status)

    @contextmanager
    def _warned(self, what: str) -> Iterator[None]:
        """Log an error of a failing server as a warning."""
        from mlflow.exceptions import MlflowException

        try:
            yield
        except (MlflowException, OSError) as error:
            _logger.warning("MLflow has not %s: %s", what, without_secrets(error, self._uri))


def _recorded_run(record: Path) -> str:
    """MLflow's id of the run, from its file."""
    try:
        content = json.loads(record.read_bytes())
    except (ValueError, RecursionError) as error:
        raise RunError(f"{record}: damaged ({error})") from error
    run = content.get("run_id") if isinstance(content, dict) else None
    if not isinstance(run, str) or not run.isalnum():
        raise RunError(f"{record}: damaged (run_id: MLflow's id of a run is expected, got {shortened(run)})")
    return run
