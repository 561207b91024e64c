"""The folder that a training run leaves behind, in open formats."""

import dataclasses
import json
import math
import platform
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from sparsegroup.data.batches import Log
from sparsegroup.data.keys import HASH
from sparsegroup.data.prepared import PreparedLog, write_atomically
from sparsegroup.optim import GroupOptimizer
from sparsegroup.table import FieldCount
from sparsegroup.training.click_model import ClickModel
from sparsegroup.training.config import Config, read_config
from sparsegroup.training.metrics import Metrics
from sparsegroup.training.plots import plot_progress
from sparsegroup.training.records import Progress, Summary
from sparsegroup.training.report import render_report

CONFIG = "config.yaml"
COLUMNS = "columns.json"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
VOCABULARY = "vocabulary.parquet"
PLOT = "progress.png"
REPORT = "report.html"

UNFINISHED = ".unfinished"
"""Folder in that of a run, for the one that is to replace it."""

_RNG = "rng"


class RunError(ValueError):
    """A folder that holds no run, or a run that does not fit what is asked of it."""


@dataclass(frozen=True)
class Columns:
    """What a model expects of its logs.

    Attributes:
        fields: Categorical fields, in the order of their numbers in the keys.
        lists: Those of them with several values.
        numbers: Numeric ones.
        hash: What keys are made with.
    """

    fields: tuple[str, ...]
    lists: tuple[str, ...]
    numbers: tuple[str, ...]
    hash: str = HASH

    @classmethod
    def of(cls, log: Log) -> "Columns":
        """Those of a log."""
        return cls(
            tuple(log.fields),
            tuple(log.lists),
            tuple(log.numbers),
            log.manifest.hash if isinstance(log, PreparedLog) else HASH,
        )

    def check(self, log: Log) -> None:
        """Whether a model trained on these can go on with `log`.

        Raises:
            RunError: It has other columns, or keys made otherwise.
        """
        other = Columns.of(log)
        for name in ("fields", "lists", "numbers", "hash"):
            ours, theirs = getattr(self, name), getattr(other, name)
            if ours != theirs:
                raise RunError(f"{log.name}: its {name} are {_shown(theirs)}; the run was trained with {_shown(ours)}")


@dataclass(frozen=True)
class Run:
    """What a folder holds: settings, columns, the trained model and its optimizer, and what was recorded."""

    folder: Path
    config: Config
    columns: Columns
    model: ClickModel
    optimizer: GroupOptimizer
    history: list[Progress]
    summary: Summary


def save_run(
    folder: Path,
    config: Config,
    log: Log,
    model: ClickModel,
    optimizer: GroupOptimizer,
    history: Sequence[Progress],
    summary: Summary,
) -> None:
    """Write the run into `folder`, which is made if need be; `summary.json`, written last, makes it whole.

    - `config.yaml`: all settings, to be given to `sparsegroup train` again.
    - `columns.json`: the fields and numbers that the model expects.
    - `metrics.jsonl`: the history, a point per line.
    - `model.safetensors`: the model's `state_dict`.
    - `optimizer.safetensors`: the optimizer's state and that of torch's random numbers, to go on with.
    - `vocabulary.parquet`: key → field and value, of a prepared log that has it.
    - `report.html` and `progress.png`: for people.
    - `summary.json`: final figures, versions.
    """
    begin_run(folder, config, log, history)
    weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    write_atomically(folder / MODEL, lambda path: save_file(weights, path))
    state = {**_flat(optimizer.state_dict()["state"]), _RNG: torch.get_rng_state()}
    write_atomically(folder / OPTIMIZER, lambda path: save_file(state, path))
    if isinstance(log, PreparedLog) and (log.folder / VOCABULARY).exists():
        write_atomically(folder / VOCABULARY, lambda path: shutil.copyfile(log.folder / VOCABULARY, path))
    (folder / REPORT).write_text(render_report(config.as_dict(), history, summary), encoding="utf-8")
    optimized = config.optimizer
    title = f"{config.model.name.upper()}, {optimized.name}, λ21 = {optimized.l21:g} ({optimized.penalty})"
    test_auc = math.nan if summary.test is None else summary.test.auc
    plot_progress(history, test_auc, f"{title} on {Path(log.name).name}", folder / PLOT)
    _write_json(folder / SUMMARY, asdict(summary))


def begin_run(folder: Path, config: Config, log: Log, history: Sequence[Progress]) -> None:
    """Make the folder of a run, with what is known before it: settings, columns, and points of earlier passes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SUMMARY).unlink(missing_ok=True)
    (folder / CONFIG).write_text(config.as_yaml())
    _write_json(folder / COLUMNS, asdict(Columns.of(log)))
    text = "".join(map(_line, history))
    write_atomically(folder / METRICS, lambda path: path.write_text(text))


def replace_run(unfinished: Path, folder: Path) -> None:
    """Move a complete run into the place of another, whose files go; others in `folder` stay."""
    (folder / SUMMARY).unlink(missing_ok=True)
    for name in (CONFIG, COLUMNS, METRICS, MODEL, OPTIMIZER, VOCABULARY, REPORT, PLOT, SUMMARY):
        if (unfinished / name).exists():
            (unfinished / name).replace(folder / name)
        else:
            (folder / name).unlink(missing_ok=True)
    unfinished.rmdir()


def append_point(folder: Path, point: Progress) -> None:
    """Add a point to `metrics.jsonl` while training goes on."""
    with (folder / METRICS).open("a") as file:
        file.write(_line(point))


def _line(point: Progress) -> str:
    return json.dumps(_finite(asdict(point)), allow_nan=False) + "\n"


def config_of(folder: str | Path) -> Config:
    """The settings of a complete run.

    Raises:
        RunError: The folder holds none.
    """
    folder = Path(folder)
    if not (folder / SUMMARY).is_file():
        what = "a run that did not come to its end" if (folder / CONFIG).is_file() else "no run"
        raise RunError(f"{folder}: {what} ({SUMMARY} is missing)")
    return read_config(folder / CONFIG, {})


def load_run(folder: str | Path, config: Config | None = None) -> Run:
    """A run with its model and optimizer, to go on with. Sets torch's random numbers to where they were.

    Args:
        folder: As written by `save_run`.
        config: Settings to go on with, where they are not the run's: other λ, say.

    Raises:
        RunError: No complete run, or a damaged one.
    """
    folder = Path(folder)
    columns, model, optimizer, config = _load(folder, config or config_of(folder))
    try:
        state = load_file(folder / OPTIMIZER)
        torch.set_rng_state(state.pop(_RNG))
        optimizer.load_state_dict({**optimizer.state_dict(), "state": _nested(state)})
        history = [_point(json.loads(line)) for line in (folder / METRICS).read_text().splitlines()]
        summary = _summary(json.loads((folder / SUMMARY).read_text()))
    except _DAMAGE as error:
        raise RunError(f"{folder}: damaged ({error})") from error
    return Run(folder, config, columns, model, optimizer, history, summary)


def load_model(folder: str | Path) -> ClickModel:
    """The trained model of a run, in evaluation mode.

    Raises:
        RunError: No complete run, or a damaged one.
    """
    return _load(Path(folder), config_of(folder))[1].eval()


_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError)


def _load(folder: Path, config: Config) -> tuple[Columns, ClickModel, GroupOptimizer, Config]:
    try:
        content = json.loads((folder / COLUMNS).read_text())
        fields, lists, numbers = (tuple(content[name]) for name in ("fields", "lists", "numbers"))
        columns = Columns(fields, lists, numbers, content["hash"])
        model, optimizer = config.build_for(len(columns.fields), len(columns.numbers))
        model.load_state_dict(load_file(folder / MODEL))
    except _DAMAGE as error:
        raise RunError(f"{folder}: damaged ({error})") from error
    return columns, model, optimizer, config


def summarize(
    log: Log,
    model: ClickModel,
    history: Sequence[Progress],
    test: Metrics | None,
    started: str,
    *,
    continued_from: str | None = None,
    bad_rows: Mapping[str, int] | None = None,
) -> Summary:
    """What a run came to."""
    table = model.embedding
    counts = table.field_counts()
    rows = {name: counts.get(number, FieldCount(0, 0, 0)) for number, name in enumerate(log.fields)}
    return Summary(
        log=log.name,
        test_rows=len(log) - log.train_rows,
        test=test,
        samples=history[-1].samples if history else 0,
        seconds=history[-1].seconds if history else 0.0,
        feature_rate=table.feature_rate,
        live_rows=table.num_live,
        features_seen=table.num_seen,
        table_bytes=table.memory().total,
        fields=rows,
        started=started,
        versions={
            "python": platform.python_version(),
            **{name: version(name) for name in ("sparsegroup", "torch", "numpy", "numba", "polars", "pyarrow")},
        },
        continued_from=continued_from,
        bad_rows=dict(bad_rows or {}),
    )


def _flat(state: Mapping[int, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {
        f"{number}.{name}": torch.as_tensor(value).contiguous()
        for number, entry in state.items()
        for name, value in entry.items()
    }


def _nested(tensors: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        number, part = name.split(".", 1)
        state.setdefault(int(number), {})[part] = tensor
    return state


def _point(content: Mapping[str, Any]) -> Progress:
    return Progress(**{field.name: _number(content[field.name]) for field in dataclasses.fields(Progress)})


def _summary(content: dict[str, Any]) -> Summary:
    test = content["test"]
    content["test"] = None if test is None else Metrics(**{name: _number(value) for name, value in test.items()})
    content["fields"] = {name: FieldCount(**rows) for name, rows in content["fields"].items()}
    return Summary(**content)


def _number(value: Any) -> Any:
    return math.nan if value is None else value


def _shown(value: object) -> str:
    return ", ".join(value) or "none" if isinstance(value, tuple) else str(value)


def _finite(value: object) -> object:
    """JSON has no NaN: an AUC of one class is null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _write_json(path: Path, content: object) -> None:
    text = json.dumps(_finite(content), indent=1, allow_nan=False) + "\n"
    write_atomically(path, lambda temporary: temporary.write_text(text))
