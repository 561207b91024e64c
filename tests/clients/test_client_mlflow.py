"""MLflow: the example's run has its settings, its points and its test metrics."""

from pathlib import Path

import pytest

pytest.importorskip("mlflow", reason="MLflow is not installed: pip install 'sparsegroup[mlflow]'")

import mlflow

import mlflow_run


def test_the_example_is_a_finished_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    run_id = mlflow_run.main(tmp_path.as_uri())
    client = mlflow.MlflowClient(tracking_uri=tmp_path.as_uri())
    run = client.get_run(run_id)
    assert (run.info.status, run.info.run_name) == ("FINISHED", "synthetic")
    assert run.data.params["optimizer.name"] == "adagrad"
    points = client.get_metric_history(run_id, "progressive/log_loss")
    assert len(points) > 3
    assert run.data.metrics["test/auc"] > 0.55
