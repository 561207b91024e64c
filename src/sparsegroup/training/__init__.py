"""Training a click model on a click log: the pass, its metrics, magnitude pruning, and what a run leaves behind."""

from sparsegroup.training.click_model import ClickModel
from sparsegroup.training.config import TrainConfig
from sparsegroup.training.metrics import Metrics, evaluate
from sparsegroup.training.pruning import prune_rows
from sparsegroup.training.run_dir import load_model, save_run
from sparsegroup.training.trainer import Progress, Trained, predict, score, train

__all__ = [
    "ClickModel",
    "Metrics",
    "Progress",
    "TrainConfig",
    "Trained",
    "evaluate",
    "load_model",
    "predict",
    "prune_rows",
    "save_run",
    "score",
    "train",
]
