"""The scripts of `examples/clients`, as a user runs them; `test_client_optuna` runs that of Optuna."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
PRINTED = re.compile(r"AUC (\S+), feature rate (\S+) \(([\d,]+) of ([\d,]+)\)")


@pytest.mark.parametrize(
    ("package", "example", "least_auc", "rates"),
    [
        ("accelerate", "accelerate_loop", 0.74, (0, 0.101)),
        ("lightning", "lightning_module", 0.74, (0, 0.101)),
        ("transformers", "transformers_trainer", 0.74, (0, 0.101)),
        ("deepctr_torch", "deepctr_torch_model", 0.8, (0.099, 0.101)),
        ("fuxictr", "fuxictr_model", 0.85, (0.03, 0.2)),
        ("torchrec", "torchrec_model", 0.75, (0.09, 0.11)),
        ("torchrec", "torchrec_sharded", 0.75, (0.09, 0.11)),
    ],
)
def test_the_example_learns_and_has_the_size_that_was_asked_for(
    package: str, example: str, least_auc: float, rates: tuple[float, float], tmp_path: Path
) -> None:
    pytest.importorskip(package)
    path = os.pathsep.join([str(ROOT / "src"), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "clients" / f"{example}.py")],
        capture_output=True,
        text=True,
        cwd=tmp_path,  # Lightning leaves its checkpoint in the folder that it is called in
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    found = PRINTED.search(done.stdout)
    assert found, done.stdout
    auc, rate, live, seen = (float(number.replace(",", "")) for number in found.groups())
    assert abs(live / seen - rate) <= 5e-4
    assert auc > least_auc
    assert rates[0] <= rate <= rates[1]
    if package == "deepctr_torch":
        assert f"AUC {auc:.4f} without tables" in done.stdout


def test_an_export_is_scored_by_onnxruntime_and_in_its_int8_nearly_so(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    import onnxruntime_scores

    trained, exact, small = onnxruntime_scores.main(tmp_path)
    assert np.abs(exact - trained).max() < 1e-5
    assert 0 < np.abs(small - exact).max() < 0.02
    assert (tmp_path / "small.onnx").stat().st_size < 0.6 * (tmp_path / "model.onnx").stat().st_size


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard_shows_the_points_of_a_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    import tensorboard_run

    trainer = tensorboard_run.main(str(tmp_path))
    events = accumulator.EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    events.Reload()
    found = [(event.step, event.value) for event in events.Scalars("progressive/log_loss")]
    assert found == [(point.samples, pytest.approx(point.log_loss)) for point in trainer.history]
    assert len(found) > 3
    assert "auc" in capsys.readouterr().out


def test_mlflow_has_settings_points_and_metrics_of_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    import mlflow_run

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run_id = mlflow_run.main(tmp_path.as_uri())
    client = mlflow.MlflowClient(tracking_uri=tmp_path.as_uri())
    run = client.get_run(run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "synthetic")
    assert run.data.params["optimizer.name"] == "adagrad"
    assert len(client.get_metric_history(run_id, "progressive/log_loss")) > 3
    assert run.data.metrics["test/auc"] > 0.55
