"""Callbacks that follow a training: MLflow, TensorBoard, Optuna, and the callbacks of a run's settings."""

from pathlib import Path

from sparsegroup.errors import require
from sparsegroup.settings.declared import TrackingSettings
from sparsegroup.training.callbacks.mlflow import MLflowCallback
from sparsegroup.training.callbacks.tensorboard import TensorBoardCallback
from sparsegroup.training.run_folder import TENSORBOARD, run_name
from sparsegroup.training.trainer import Callback


def check_tracking(tracking: TrackingSettings) -> None:
    """Raise MissingExtraError if the settings name a tracker that is not installed."""
    for name in ("tensorboard", "mlflow"):
        if getattr(tracking, name) is not None:
            require(name, f"tracking.{name}")


def tracking_callbacks(tracking: TrackingSettings, folder: Path) -> list[Callback]:
    """The callbacks for a run in `folder`."""
    callbacks: list[Callback] = []
    if tracking.tensorboard is not None:
        auto = tracking.tensorboard == "auto"
        events = folder / TENSORBOARD if auto else Path(tracking.tensorboard) / run_name(folder)
        callbacks.append(TensorBoardCallback(events))
    if tracking.mlflow is not None:
        is_uri = "://" in tracking.mlflow or tracking.mlflow.startswith("file:") or tracking.mlflow == "databricks"
        where = {"tracking_uri" if is_uri else "experiment": tracking.mlflow}
        callbacks.append(MLflowCallback(**where, run_name=run_name(folder)))
    return callbacks
