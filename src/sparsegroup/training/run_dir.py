"""The folder that a training run leaves behind, in open formats."""

import json
import math
import shutil
from dataclasses import asdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from safetensors.torch import load_file, save_file

from sparsegroup.data import ClickLog, PreparedLog
from sparsegroup.training.click_model import ClickModel
from sparsegroup.training.config import TrainConfig
from sparsegroup.training.plots import plot_progress
from sparsegroup.training.trainer import Trained

MODEL, CONFIG, METRICS, VOCABULARY, PLOT = (
    "model.safetensors",
    "config.json",
    "metrics.json",
    "vocabulary.parquet",
    "progress.png",
)


def save_run(
    directory: Path, config: TrainConfig, log: ClickLog | PreparedLog, model: ClickModel, trained: Trained
) -> None:
    """Write the run into `directory`, which is made if need be.

    - `model.safetensors`: the model's `state_dict`.
    - `vocabulary.parquet`: one row per feature, `field`, `value` and `id` or `key`, its key in the table; of a prepared
      log, if it has one.
    - `config.json`: settings, fields and number of features; with the first two enough to use the model.
    - `metrics.json`: final metrics and the history of the pass.
    - `progress.png`: AUC and feature rate along the pass.
    """
    directory.mkdir(parents=True, exist_ok=True)
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, directory / MODEL)
    if isinstance(log, ClickLog):
        pq.write_table(_vocabulary(log), directory / VOCABULARY)
    elif (log.folder / VOCABULARY).exists():
        shutil.copyfile(log.folder / VOCABULARY, directory / VOCABULARY)
    about = {"log": log.name, "fields": log.fields, "numbers": log.numbers, "features": log.features}
    settings = {**asdict(config), **about}
    _write_json(directory / CONFIG, settings)
    metrics = {
        "test_auc": trained.test.auc,
        "test_log_loss": trained.test.log_loss,
        "test_normalized_entropy": trained.test.normalized_entropy,
        "test_calibration": trained.test.calibration,
        "feature_rate": trained.feature_rate,
        "live_rows": trained.live_rows,
        "history": [asdict(point) for point in trained.history],
    }
    _write_json(directory / METRICS, metrics)
    title = (
        f"{config.model.upper()}, {config.optimizer}, λ21 = {config.l21:g} ({config.penalty}) on {Path(log.name).name}"
    )
    plot_progress(trained.history, trained.test.auc, title, directory / PLOT)


def load_model(directory: str | Path) -> ClickModel:
    """The trained model of a run, in evaluation mode.

    Args:
        directory: As written by `save_run`.

    Raises:
        FileNotFoundError: A file of the run is missing.
    """
    directory = Path(directory)
    config = json.loads((directory / CONFIG).read_text())
    model = ClickModel(config["model"], len(config["fields"]), config["dim"], config["seed"], len(config["numbers"]))
    model.load_state_dict(load_file(directory / MODEL))
    return model.eval()


def _vocabulary(log: ClickLog) -> pa.Table:
    fields = [field for field, values in log.vocabulary.items() for _ in range(len(values))]
    values = pa.chunked_array([values.cast(pa.string()) for values in log.vocabulary.values()], pa.string())
    return pa.table({"field": fields, "value": values, "id": pa.array(range(1, len(fields) + 1), pa.int32())})


def _write_json(path: Path, content: object) -> None:
    def finite(value: object) -> object:  # JSON has no NaN: an AUC of one class is null
        if isinstance(value, float) and not math.isfinite(value):
            return None
        if isinstance(value, dict):
            return {name: finite(item) for name, item in value.items()}
        return [finite(item) for item in value] if isinstance(value, list | tuple) else value

    path.write_text(json.dumps(finite(content), indent=1, allow_nan=False) + "\n")
