"""Training a click model on a click log: the pass, its metrics, magnitude pruning, and what a run leaves behind."""

from sparsegroup.training.click_model import ClickModel
from sparsegroup.training.columns import RunError
from sparsegroup.training.config import Config, read_config
from sparsegroup.training.metrics import Metrics, evaluate
from sparsegroup.training.one_pass import Trained, predict, score, train
from sparsegroup.training.pruning import prune_rows
from sparsegroup.training.records import Progress, Summary
from sparsegroup.training.run_dir import Run, load_model, load_run, save_run, summarize
from sparsegroup.training.session import Session
from sparsegroup.training.trainer import Trainer

__all__ = [
    "ClickModel",
    "Config",
    "Metrics",
    "Progress",
    "Run",
    "RunError",
    "Session",
    "Summary",
    "Trained",
    "Trainer",
    "evaluate",
    "load_model",
    "load_run",
    "predict",
    "prune_rows",
    "read_config",
    "save_run",
    "score",
    "summarize",
    "train",
]
