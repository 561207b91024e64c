"""Training a click model on a click log: the pass, its metrics, magnitude pruning, and what a run leaves behind."""

from sparsegroup.errors import RunError, require
from sparsegroup.importing import document_constructors

require("cli", __name__)

from sparsegroup.reporting.run_record import HistoryPoint, Importance, Metrics, Summary, Trial
from sparsegroup.training.assessment.columns import importances
from sparsegroup.training.averaging import AveragedNetwork
from sparsegroup.training.build import Config, OptimizerConfig, read_config
from sparsegroup.training.callbacks.mlflow import MLflowCallback
from sparsegroup.training.callbacks.optuna import OptunaPruningCallback
from sparsegroup.training.callbacks.progress import ProgressBar
from sparsegroup.training.callbacks.tensorboard import TensorBoardCallback
from sparsegroup.training.metrics import evaluate
from sparsegroup.training.model import NETWORKS, ClickModel
from sparsegroup.training.predictions import predict
from sparsegroup.training.run_folder import TrainingRun, load_model, load_run
from sparsegroup.training.selection.columns import ColumnSelection, select_columns
from sparsegroup.training.selection.sizes import prune_rows
from sparsegroup.training.selection.trials import settings_by_trials
from sparsegroup.training.session import RunStoppedError, Session
from sparsegroup.training.trainer import Callback, TrainedBatch, Trainer

__all__ = [
    "NETWORKS",
    "AveragedNetwork",
    "Callback",
    "ClickModel",
    "ColumnSelection",
    "Config",
    "HistoryPoint",
    "Importance",
    "MLflowCallback",
    "Metrics",
    "OptimizerConfig",
    "OptunaPruningCallback",
    "ProgressBar",
    "RunError",
    "RunStoppedError",
    "Session",
    "Summary",
    "TensorBoardCallback",
    "TrainedBatch",
    "Trainer",
    "TrainingRun",
    "Trial",
    "evaluate",
    "importances",
    "load_model",
    "load_run",
    "predict",
    "prune_rows",
    "read_config",
    "select_columns",
    "settings_by_trials",
]

document_constructors(globals())
