"""Fields with embeddings of their own size through the real command line: train, resume, predict, export, inspect."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from safetensors.numpy import load_file

from cli_cases import many_features, summary_of
from command import Run, call, without_pictures
from following import CutOffError, cut_off_at
from run_folders import state_of
from serving_cases import opened_model
from sparsegroup import HashEmbedding
from sparsegroup.data import open_log
from sparsegroup.serving import ExportError, open_trained, read_export
from sparsegroup.serving.onnx import OnnxModel
from sparsegroup.training import Trainer

DIMS = ("--set", "model.dims={color: 2, size: 8}", "--set", "model.dim=4")
COMMON = ("--lr", 0.05, "--batch-size", 64, "--no-baseline", "--selection", "never")
TRAIN = ("train", "log.csv", *DIMS, *COMMON, "--target-rate", 0.2, "--checkpoint-steps", 5)
ROWS = 1_000
SIZES = {"color": 2, "noise": 4, "size": 8}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log, a run on it with vectors of three sizes, and its export."""
    folder = tmp_path_factory.mktemp("dims")
    many_features(folder / "log.csv", ROWS)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        without_pictures(patch)
        assert call(patch, *TRAIN, "--out", "run") == 0
        assert call(patch, "export", "run", "export", "--test", "log.csv") == 0
    return folder


@pytest.fixture
def there(place: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    return place


def scores(ok: Run, model: str, out: Path) -> np.ndarray[Any, Any]:
    ok("predict", model, "log.csv", "--out", out, "--overwrite")
    return pl.read_parquet(out)["probability"].to_numpy()


def test_a_run_that_is_cut_off_ends_with_the_same_bits(there: Path, tmp_path: Path, ok: Run, run: Run) -> None:
    with pytest.MonkeyPatch.context() as patch:
        cut_off_at(patch, Trainer, "_step", 7)
        with pytest.raises(CutOffError):
            run(*TRAIN, "--out", tmp_path / "cut")
    assert "resumed at row 320" in ok("train", "--resume", tmp_path / "cut").stderr
    assert state_of(tmp_path / "cut") == state_of(there / "run")
    files = {path.name for path in (there / "run" / "checkpoints").glob("*/table-*")}
    assert files == {f"table-embedding.dim_{size}.safetensors" for size in SIZES.values()}


def test_run_export_and_onnx_give_the_same_scores(there: Path, tmp_path: Path, ok: Run) -> None:
    of_run, of_export = (scores(ok, model, tmp_path / f"{model}.parquet") for model in ("run", "export"))
    assert len(of_run) == ROWS
    np.testing.assert_allclose(of_export, of_run, rtol=0, atol=1e-6)
    log, export = open_log(there / "log.csv"), read_export(there / "export")
    serving, onnx = export.serving_model(), OnnxModel(there / "export" / "model.onnx")
    batches = [onnx(serving.arguments(batch))[0] for batch in log.batches(0, len(log), 300)]
    np.testing.assert_allclose(np.concatenate(batches), of_run, rtol=0, atol=1e-6)
    assert export.manifest.test is not None
    assert set(export.manifest.test.scores) == {"training", "export", "onnx"}


def test_several_epochs_and_another_network(there: Path, tmp_path: Path, ok: Run) -> None:
    options = ("--epochs", 2, "--after-first-epoch", "reset", "--target-rate", 0.3, "--validation", 0.2)
    ok("train", "log.csv", "--out", tmp_path / "run", *DIMS, *COMMON, *options, "--model", "dcnv2")
    rate = open_trained(tmp_path / "run").model.embedding.feature_rate
    assert rate == pytest.approx(summary_of(tmp_path / "run")["feature_rate"])
    assert 0.2 < rate <= 0.31


def test_sizes_that_are_all_the_same_are_one_table() -> None:
    assert isinstance(opened_model(dim=4, dims={"user": 4, "site": 4}).model.embedding, HashEmbedding)


def test_a_run_lands_at_its_rate_over_all_tables_and_each_has_its_size(there: Path, ok: Run) -> None:
    summary, export = summary_of(there / "run"), read_export(there / "export")
    assert summary["live_rows"] == pytest.approx(0.2 * summary["features_seen"], abs=1)
    assert summary["test"]["auc"] > 0.9
    with pytest.raises(ExportError, match=r"has the tables embedding.dim_2, embedding.dim_4, embedding.dim_8, not one"):
        _ = export.embeddings
    fields, manifest = summary["fields"], export.manifest
    assert manifest.live_rows == summary["live_rows"]
    assert manifest.tables.keys() == {f"embedding.dim_{size}" for size in SIZES.values()}
    for number, (field, size) in enumerate(SIZES.items()):
        table = manifest.tables[f"embedding.dim_{size}"]
        rows = load_file(there / "export" / table.file)
        assert table.dim == rows["vectors"].shape[1] == size
        assert (table.live_rows, table.features_seen) == (fields[field]["live"], fields[field]["seen"])
        assert set(rows["keys"] >> 56) <= {number}
    weights = load_file(there / "export" / "network.safetensors")
    shapes = {name: one.shape for name, one in weights.items() if name.startswith("embedding.up.")}
    assert shapes == {"embedding.up.dim_2.weight": (8, 2), "embedding.up.dim_4.weight": (8, 4)}

    of_run, of_export = (json.loads(ok("inspect", model, "--json").stdout) for model in ("run", "export"))
    for found in (of_run, of_export):
        assert (found["dim"], found["dims"]) == (4, {"color": 2, "size": 8})
        for name, count in (("live_vectors", "live"), ("dense_table", "seen")):
            assert found["sizes"][name] == sum(4 * size * fields[field][count] for field, size in SIZES.items())
        assert {name: one["live"] for name, one in found["fields"].items()} == {
            name: fields[name]["live"] for name in SIZES
        }
    assert manifest.before.dense == of_run["sizes"]["dense_table"]
    for name in ("norms", "live_rows", "features_seen"):
        assert of_run[name] == of_export[name]
    assert len({one["field"] for one in of_run["top"]}) > 1
    assert all(one["value"] is not None for one in of_run["top"])
    assert "dimension 4 (color: 2; size: 8)" in ok("inspect", "run").stdout
