"""Callbacks of a trainer and of a run, and the points in TensorBoard and MLflow, resumed or not."""

import io
import json
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from cli_cases import click_log
from command import Run
from sparsegroup import GroupAdam, HashEmbedding
from sparsegroup.errors import MissingExtraError
from sparsegroup.models import MLP
from sparsegroup.settings.declared import TrackingSettings
from sparsegroup.training import Callback, HistoryPoint, MLflowCallback, ProgressBar, TensorBoardCallback, Trainer
from sparsegroup.training.callbacks import check_tracking, tracking_callbacks
from sparsegroup.training.callbacks.figures import scalars
from sparsegroup.training.trainer import TrainedBatch

FAST = ("--batch-size", 100, "--selection", "never", "--no-baseline")


class Recorder(Callback):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def on_begin(self, trainer: Trainer) -> None:
        self.calls.append(("begin", trainer.samples))

    def on_batch(self, trainer: Trainer, trained: TrainedBatch) -> None:
        assert 0 < trained.loss < 2
        assert trained.logits.shape == trained.batch.labels.shape
        self.calls.append(("batch", trained.samples))

    def on_point(self, trainer: Trainer, point: HistoryPoint) -> None:
        assert trainer.history[-1] is point
        self.calls.append(("point", point.samples))

    def between_batches(self, trainer: Trainer) -> None:
        self.calls.append(("between", trainer.state_dict()["progress"]["steps"]))

    def on_end(self, trainer: Trainer) -> None:
        self.calls.append(("end", trainer.samples))


def stream(batches: int = 6) -> list[Sequence[torch.Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randint(50, (10, 2), generator=generator), torch.randint(2, (10,), generator=generator))
        for _ in range(batches)
    ]


def trainer_with(*callbacks: Callback) -> Trainer:
    torch.manual_seed(0)
    model, table = MLP(fields=2, dim=4), HashEmbedding(4)
    optimizer = GroupAdam([*table.parameters(), *model.parameters()])
    return Trainer(table, model, optimizer, window=20, callbacks=callbacks)


class Evaluation(Callback):
    """Measures the model on other keys after each batch."""

    def on_batch(self, trainer: Trainer, trained: TrainedBatch) -> None:
        if trained.samples % 20:
            trainer.evaluate([(torch.randint(50, 90, (10, 2)), torch.randint(2, (10,)))])

    def between_batches(self, trainer: Trainer) -> None:
        trainer.predict([(torch.randint(90, 99, (3, 2)), torch.randint(2, (3,)))])


def test_callbacks_are_notified_in_order_and_change_nothing_and_the_end_also_where_training_fails() -> None:
    """Also one that predicts in between changes nothing that is learnt."""
    recorder = Recorder()
    trainer, plain = trainer_with(Evaluation(), recorder), trainer_with()
    points = trainer.fit(stream(), epochs=2)

    def epoch(first: int) -> Iterator[tuple[str, int]]:
        for step in range(1, 7):
            yield "batch", 10
            if step in (2, 4):
                yield "point", first + 10 * step
            yield "between", step
        yield "point", first + 60  # after the validation, if there is any

    assert recorder.calls == [("begin", 0), *epoch(0), ("between", 0), *epoch(60), ("end", 120)]
    assert points == plain.fit(stream(), epochs=2)
    assert trainer.table.keys.tolist() == plain.table.keys.tolist()
    broken: list[Any] = [*stream(2), ("no tensors",)]
    with pytest.raises(TypeError):
        trainer.fit(broken)
    assert recorder.calls[-1][0] == "end"


def test_figures_that_are_not_defined_are_left_out() -> None:
    figures = scalars(HistoryPoint(100, float("nan"), 0.5, 0.9, 1.0, 0.1, 10, 100, 4_000, 1.0, 100.0))
    assert figures["log_loss"] == 0.5
    assert not {"auc", "samples", "l21"} & set(figures)


def events_of(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Tag → step and value of each point that TensorBoard shows."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator", reason="tensorboard")
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_has_the_points_of_all_passes(tmp_path: Path) -> None:
    trainer = trainer_with(TensorBoardCallback(tmp_path))
    trainer.fit(stream())
    trainer.fit(stream(2))
    assert [step for step, _ in events_of(tmp_path)["progressive/auc"]] == [20, 40, 60, 80]


class MLflowDouble:
    """MLflow's client, as far as it is used, in memory."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.experiments: dict[str, str] = {}
        self.down = False

    def __call__(self, tracking_uri: str | None = None) -> "MLflowDouble":
        self.uri = tracking_uri
        return self

    def get_experiment_by_name(self, name: str) -> Any:
        return SimpleNamespace(experiment_id=self.experiments[name]) if name in self.experiments else None

    def create_experiment(self, name: str) -> str:
        return self.experiments.setdefault(name, str(len(self.experiments)))

    def create_run(self, experiment_id: str, run_name: str | None = None) -> Any:
        name = f"run{len(self.runs)}"
        self.run(name, {"name": run_name, "status": "RUNNING", "metrics": [], "params": {}, "artifacts": []})
        return SimpleNamespace(info=SimpleNamespace(run_id=name))

    def update_run(self, run_id: str, status: str) -> None:
        self.run(run_id)["status"] = status

    set_terminated = update_run

    def log_batch(self, run_id: str, metrics: Sequence[Any] = (), params: Sequence[Any] = ()) -> None:
        self.run(run_id)["metrics"] += [(metric.key, metric.step, metric.value) for metric in metrics]
        self.run(run_id)["params"].update({param.key: param.value for param in params})

    def log_artifact(self, run_id: str, path: str) -> None:
        assert Path(path).is_file()
        self.run(run_id)["artifacts"].append(Path(path).name)

    def get_metric_history(self, run_id: str, key: str) -> list[Any]:
        return [SimpleNamespace(step=step) for name, step, _ in self.run(run_id)["metrics"] if name == key]

    def run(self, run_id: str, new: dict[str, Any] | None = None) -> dict[str, Any]:
        if self.down:
            raise ConnectionError("no route to host")
        return self.runs[run_id] if new is None else self.runs.setdefault(run_id, new)

    def steps(self) -> list[int]:
        return [metric.step for metric in self.get_metric_history("run0", "progressive/auc")]


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[MLflowDouble]:
    double = MLflowDouble()
    package = ModuleType("mlflow")
    package.__spec__ = SimpleNamespace(name="mlflow")  # type: ignore[assignment]
    package.MlflowClient = double  # type: ignore[attr-defined]
    entities, exceptions = ModuleType("mlflow.entities"), ModuleType("mlflow.exceptions")
    entities.Metric = lambda key, value, timestamp, step: SimpleNamespace(key=key, value=value, step=step)  # type: ignore[attr-defined]
    entities.Param = lambda key, value: SimpleNamespace(key=key, value=value)  # type: ignore[attr-defined]
    exceptions.MlflowException = type("MlflowException", (Exception,), {})  # type: ignore[attr-defined]
    for module in (package, entities, exceptions):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return double


def test_mlflow_gets_each_point_once_and_later_those_that_it_misses_while_it_is_away(
    mlflow: MLflowDouble, caplog: pytest.LogCaptureFixture
) -> None:
    class GoesAway(Callback):
        def on_point(self, trainer: Trainer, point: HistoryPoint) -> None:
            mlflow.down = point.samples < 60

    callback = MLflowCallback("clicks", tracking_uri="http://here", run_name="mine")
    trainer = trainer_with(GoesAway(), callback)
    trainer.fit(stream())
    assert "MLflow has not yet received the last 2 points: no route to host" in caplog.text
    assert {record.levelno for record in caplog.records} == {logging.WARNING}
    trainer.fit(stream(2))
    assert (mlflow.uri, mlflow.experiments, callback.run_id) == ("http://here", {"clicks": "0"}, "run0")
    assert (mlflow.runs["run0"]["name"], mlflow.runs["run0"]["status"]) == ("mine", "FINISHED")
    figures = mlflow.runs["run0"]["metrics"]
    expected = [("progressive/log_loss", point.samples, point.log_loss) for point in trainer.history]
    assert [metric for metric in figures if metric[0] == "progressive/log_loss"] == expected
    assert [step for _, step, _ in expected] == [20, 40, 60, 80]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_run_is_logged_with_settings_metrics_and_report_and_resumed(
    tmp_path: Path, ok: Run, mlflow: MLflowDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    # TensorBoard reads its files by name, where the tenth of a process and second stands before the ninth
    files = pytest.importorskip("tensorboard.summary.writer.event_file_writer", reason="tensorboard")
    monkeypatch.setattr(files, "_global_uid", files.AtomicCounter(9))
    log, folder = click_log(tmp_path / "log.csv", 1_000), tmp_path / "run"
    options = ["--out", "run", "--lr", 0.05, "--set", "training.windows=3", *FAST, "--checkpoint-steps", 4]
    ok("train", log, *options, "--mlflow", "clicks", "--tensorboard", "auto")
    (logged,) = mlflow.runs.values()
    test = json.loads((folder / "summary.json").read_text())["test"]
    assert (logged["name"], logged["status"], mlflow.uri) == ("run", "FINISHED", None)
    assert ("test/auc", 900, test["auc"]) in logged["metrics"]
    assert (logged["params"]["optimizer.lr"], logged["params"]["model.name"]) == ("0.05", "dcn")
    assert logged["artifacts"] == ["config.yaml", "summary.json", "report.html"]
    # Cut off behind its last point, it goes on with the same MLflow run from the checkpoint before.
    steps = mlflow.steps()
    assert steps == [300, 600, 900]
    (folder / "summary.json").unlink()
    for file in max((folder / "checkpoints").iterdir()).iterdir():
        file.unlink()
    assert "resumed at row 800" in ok("train", "--resume", "run").stderr
    assert list(mlflow.runs) == ["run0"]
    assert (mlflow.steps(), logged["status"]) == (steps, "FINISHED")
    events = events_of(folder / "tensorboard")
    history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert events["progressive/log_loss"] == [(one["samples"], pytest.approx(one["log_loss"])) for one in history]
    assert events["test/auc"][-1] == (900, pytest.approx(test["auc"]))
    ok("train", log, *options, "--overwrite", "--tensorboard", "events")
    assert not (folder / "tensorboard").exists()
    assert [path.name for path in (tmp_path / "events").iterdir()] == ["run"]


def test_a_run_that_fails_is_marked_and_a_server_that_cannot_be_reached_is_an_error_at_once(
    tmp_path: Path, run: Run, mlflow: MLflowDouble
) -> None:
    log = click_log(tmp_path / "log.csv", 300)
    assert run("train", log, "--lr", 1e30, "--mlflow", "clicks").returncode == 2
    assert [logged["status"] for logged in mlflow.runs.values()] == ["FAILED"]
    mlflow.down = True
    done = run("train", log, "--mlflow", "http://nowhere:5000")
    assert done.returncode == 2
    assert "error: MLflow at http://nowhere:5000, experiment 'sparsegroup': no route to host" in done.stderr


def test_what_is_not_installed_is_said_before_anything_is_read(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sparsegroup.errors.find_spec", lambda module: None)
    with pytest.raises(MissingExtraError, match=r"sparsegroup\[tensorboard\]"):
        check_tracking(TrackingSettings(tensorboard="auto"))
    with pytest.raises(MissingExtraError, match=r"MLflowCallback needs mlflow, .* 'sparsegroup\[mlflow\]'"):
        MLflowCallback()
    done = run("train", "no.csv", "--mlflow", "clicks")
    assert (done.returncode, "pip install 'sparsegroup[mlflow]'" in done.stderr) == (2, True)


def test_an_experiment_or_a_tracking_uri(tmp_path: Path, mlflow: MLflowDouble) -> None:
    uris = {uri: ("sparsegroup", uri) for uri in ("http://here:5000", "file:runs", "databricks")}
    for given, expected in {"ads: June": ("ads: June", None), **uris}.items():
        (callback,) = tracking_callbacks(TrackingSettings(mlflow=given), tmp_path / "run")
        assert (callback.experiment, callback.tracking_uri) == expected


@pytest.mark.parametrize("place", ["terminal", "notebook", "file"])
def test_a_bar_shows_how_far_a_training_has_come(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class File(io.StringIO):
        def isatty(self) -> bool:
            return place == "terminal"

    class ZMQInteractiveShell:
        """Shell of a notebook kernel."""

    if place == "notebook":
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=ZMQInteractiveShell))
    file = File()
    table, network = HashEmbedding(4), MLP(2, 4)
    optimizer = GroupAdam([*table.parameters(), *network.parameters()])
    Trainer(table, network, optimizer, window=20, callbacks=[ProgressBar(60, "mine", file)]).fit(stream())
    *_, last = re.split(r"[\r\n]+", file.getvalue().strip())
    assert re.match(r"mine: 60 of 60 samples \(100.0%\), .*loss [\d.]+, AUC", last)
    assert file.getvalue().startswith("\r") == (place != "file")
    assert file.getvalue().endswith("\n")
