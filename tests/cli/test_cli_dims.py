"""Fields with embeddings of their own size through the real command line: train, resume, predict, export, inspect."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from safetensors.numpy import load_file

from cli_cases import many_features, summary_of
from command import Run, call
from following import CutOff, CutOffError
from plain_settings import plain
from run_folders import state_of
from sparsegroup.data import open_log
from sparsegroup.serving import ExportError, open_trained, read_export
from sparsegroup.serving.onnx import OnnxModel
from sparsegroup.training import Callback, Session

DIMS = ("--set", "model.dims={color: 2, size: 8}", "--set", "model.dim=4")
COMMON = ("--lr", 0.05, "--batch-size", 64, "--set", "training.baseline=false")
TABLES = {"dim_2": "color", "dim_4": "noise", "dim_8": "size"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log, a run on it with vectors of three sizes, and its export."""
    folder = tmp_path_factory.mktemp("dims")
    many_features(folder / "log.csv", 1_500)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        options = (*DIMS, *COMMON, "--target-rate", 0.2, "--checkpoint-steps", 5)
        assert call(patch, "train", "log.csv", "--out", "run", *options) == 0
        assert call(patch, "export", "run", "export", "--program", "--test", "log.csv") == 0
    return folder


@pytest.fixture
def there(place: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    return place


def shown(run: Run, *arguments: Any) -> Any:
    done = run(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def scores(run: Run, model: str, out: Path) -> np.ndarray[Any, Any]:
    done = run("predict", model, "log.csv", "--out", out)
    assert done.returncode == 0, done.stderr
    return pl.read_parquet(out)["probability"].to_numpy()


def test_a_run_lands_at_its_rate_over_all_tables(there: Path) -> None:
    summary = summary_of(there / "run")
    assert summary["live_rows"] == pytest.approx(0.2 * summary["features_seen"], abs=1)  # type: ignore[operator]
    assert summary["test"]["auc"] > 0.9  # type: ignore[index]
    config = yaml.safe_load((there / "run" / "config.yaml").read_text())
    assert config["model"]["dims"] == {"color": 2, "size": 8}
    files = {path.name for path in (there / "run" / "checkpoints").glob("*/table-*")}
    assert files == {f"table-embedding.{name}.safetensors" for name in TABLES}


def test_a_run_that_is_cut_off_anywhere_ends_with_the_same_bits(there: Path, tmp_path: Path, run: Run) -> None:
    options = (*DIMS, *COMMON, "--target-rate", 0.2, "--checkpoint-steps", 5)
    for at in (3, 12):
        with pytest.MonkeyPatch.context() as patch:
            cut(patch, at)
            with pytest.raises(CutOffError):
                run("train", "log.csv", "--out", tmp_path / f"cut{at}", *options)
        resumed = run("train", "--resume", tmp_path / f"cut{at}")
        assert resumed.returncode == 0, resumed.stderr
        assert ("resumed at row 640" in resumed.stderr) == (at == 12)
        assert state_of(tmp_path / f"cut{at}") == state_of(there / "run")


def cut(patch: pytest.MonkeyPatch, at: int) -> None:
    """Let the at-th batch be the last thing that a process does."""
    real = Session.train

    def train(self: Session, *, callbacks: Sequence[Callback]) -> Any:
        return real(self, callbacks=[*callbacks, CutOff(at)])

    patch.setattr(Session, "train", train)


def test_run_export_onnx_and_program_give_the_same_scores(there: Path, tmp_path: Path, run: Run) -> None:
    of_run, of_export = (scores(run, model, tmp_path / f"{model}.parquet") for model in ("run", "export"))
    assert len(of_run) == 1_500
    np.testing.assert_allclose(of_export, of_run, rtol=0, atol=1e-6)
    log = open_log(there / "log.csv")
    serving, onnx = read_export(there / "export").serving_model(), OnnxModel(there / "export" / "model.onnx")
    batches = [onnx(serving.arguments(batch))[0] for batch in log.batches(0, len(log), 700)]
    np.testing.assert_allclose(np.concatenate(batches), of_run, rtol=0, atol=1e-6)
    manifest = read_export(there / "export").manifest
    assert manifest.test is not None
    assert set(manifest.test.scores) == {"training", "export", "onnx", "program"}


def test_an_export_holds_each_table_at_its_size(there: Path) -> None:
    found = read_export(there / "export")
    with pytest.raises(ExportError, match=r"has the tables embedding.dim_2, embedding.dim_4, embedding.dim_8, not one"):
        _ = found.embeddings
    manifest, summary = found.manifest, summary_of(there / "run")
    fields = summary["fields"]
    assert manifest.live_rows == summary["live_rows"]
    for name, field in TABLES.items():
        table = manifest.tables[f"embedding.{name}"]
        rows = load_file(there / "export" / table.file)
        assert table.dim == rows["vectors"].shape[1] == int(name[4:])
        assert (table.live_rows, table.features_seen) == (fields[field]["live"], fields[field]["seen"])  # type: ignore[index]
        assert set(rows["keys"] >> 56) <= {["color", "noise", "size"].index(field)}
    seen = {field: fields[field]["seen"] for field in fields}  # type: ignore[index,attr-defined]
    assert manifest.before.dense == 4 * (2 * seen["color"] + 4 * seen["noise"] + 8 * seen["size"])
    weights = load_file(there / "export" / "network.safetensors")
    assert weights["embedding.up.dim_2.weight"].shape == (8, 2)
    assert weights["embedding.up.dim_4.weight"].shape == (8, 4)
    assert "embedding.up.dim_8.weight" not in weights


@pytest.mark.parametrize("dtype", ["int8", "float16"])
def test_an_export_of_an_export_and_other_formats(dtype: str, there: Path, tmp_path: Path, run: Run) -> None:
    assert run("export", "run", tmp_path / "once", "--dtype", dtype, "--no-onnx").returncode == 0
    assert run("export", "export", tmp_path / "twice", "--dtype", dtype, "--no-onnx").returncode == 0
    once, twice = (read_export(tmp_path / name) for name in ("once", "twice"))
    assert once.manifest.id == twice.manifest.id
    assert once.manifest.id != read_export(there / "export").manifest.id
    assert once.manifest.tables.keys() == {f"embedding.{name}" for name in TABLES}


def test_it_can_be_looked_into(there: Path, run: Run) -> None:
    of_run, of_export = (shown(run, "inspect", model) for model in ("run", "export"))
    counts = summary_of(there / "run")["fields"]
    sizes = {"color": 2, "noise": 4, "size": 8}
    for found in (of_run, of_export):
        assert (found["dim"], found["dims"]) == (4, {"color": 2, "size": 8})
        assert found["sizes"]["live_vectors"] == sum(4 * sizes[name] * counts[name]["live"] for name in sizes)  # type: ignore[index]
        assert found["sizes"]["dense_table"] == sum(4 * sizes[name] * counts[name]["seen"] for name in sizes)  # type: ignore[index]
        assert {name: one["live"] for name, one in found["fields"].items()} == {
            name: counts[name]["live"]  # type: ignore[index]
            for name in sizes
        }
    names = ("top", "norms", "live_rows", "features_seen")
    assert [of_run[name] for name in names[1:]] == [of_export[name] for name in names[1:]]
    assert len({one["field"] for one in of_run["top"]}) > 1
    assert all(one["value"] is not None for one in of_run["top"])
    assert of_run["sizes"]["network"] == of_export["sizes"]["network"]
    assert "dimension 4 (color: 2; size: 8)" in run("inspect", "run").stdout
    assert run("inspect", "run", "--html", "page.html").returncode == 0


def test_it_is_evaluated(there: Path, run: Run) -> None:
    of_run, of_export = (shown(run, "evaluate", model, "log.csv", "--by", "color") for model in ("run", "export"))
    assert of_run["metrics"]["auc"] == pytest.approx(summary_of(there / "run")["test"]["auc"])  # type: ignore[index]
    assert of_export["metrics"]["log_loss"] == pytest.approx(of_run["metrics"]["log_loss"], abs=1e-6)


def test_the_next_day_goes_on_with_the_same_sizes(there: Path, tmp_path: Path, run: Run) -> None:
    done = run("train", "log.csv", "--continue", "run", "--out", tmp_path / "next")
    assert done.returncode == 0, done.stderr
    assert summary_of(tmp_path / "next")["samples"] == 2 * summary_of(there / "run")["samples"]  # type: ignore[operator]
    other = run("train", "log.csv", "--continue", "run", "--set", "model.dims={color: 4}", "--out", tmp_path / "other")
    assert (other.returncode, other.stdout) == (2, "")
    assert "model.dims cannot change to {'color': 4}" in other.stderr


def test_a_delta_of_several_tables_is_refused(there: Path, tmp_path: Path, run: Run) -> None:
    done = run("export", "run", tmp_path / "delta", "--since", "export")
    assert done.returncode == 2
    assert "a delta is of one table, and with model.dims there are several; export the model as a whole" in done.stderr
    assert not (tmp_path / "delta").exists()


def test_a_damaged_export_says_so(there: Path, tmp_path: Path, run: Run) -> None:
    assert run("export", "run", tmp_path / "out", "--no-onnx").returncode == 0
    path = tmp_path / "out" / "embeddings-embedding.dim_2.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ExportError, match=r"dim_2.safetensors"):
        read_export(tmp_path / "out")


def test_lists_may_have_a_size_of_their_own_and_attention(tmp_path: Path, run: Run) -> None:
    rows = [f"{int(i % 7 in (1, 3))},u{i % 11},c{i % 7},{'a|b|d' if i % 2 else 'b'}" for i in range(1_000)]
    (tmp_path / "log.csv").write_text("\n".join(["label,user,color,tags", *rows]) + "\n")
    (tmp_path / "schema.yaml").write_text("label: label\ncategorical: [user, color]\nmulti: {tags: '|'}\n")
    (tmp_path / "settings.yaml").write_text(
        "data: {log: log.csv, schema: schema.yaml}\noptimizer: {lr: 0.05, target_rate: 0.7}\n"
        "training: {batch_size: 64}\nmodel:\n  dim: 3\n  dims: {tags: 2, user: 5}\n  attention: {tags: color}\n"
    )
    assert run("train", "settings.yaml", "--out", "run").returncode == 0
    assert run("export", "run", "export", "--no-onnx", "--program", "--test", "log.csv").returncode == 0
    assert np.allclose(*(scores(run, model, tmp_path / f"{model}.parquet") for model in ("run", "export")), atol=1e-6)
    assert open_trained("run").model.embedding.sizes == {0: 5, 1: 3, 2: 2}


@pytest.mark.parametrize("later", ["train", "reset", "freeze"])
@pytest.mark.parametrize("model", ["fm", "dcnv2"])
def test_several_epochs_and_other_networks(model: str, later: str, there: Path, tmp_path: Path, run: Run) -> None:
    options = ("--epochs", 2, "--after-first-epoch", later, "--target-rate", 0.3, "--validation", 0.2, "--model", model)
    done = run("train", "log.csv", "--out", tmp_path / "run", *DIMS, *COMMON, *options)
    assert done.returncode == 0, done.stderr
    opened = open_trained(tmp_path / "run")
    rate = opened.model.embedding.feature_rate
    assert rate == pytest.approx(summary_of(tmp_path / "run")["feature_rate"])
    assert 0.2 < rate <= 0.31


def test_sizes_that_are_all_the_same_are_one_table_as_ever(there: Path, tmp_path: Path, run: Run) -> None:
    options = (*COMMON, "--set", "model.dim=4", "--l21", 1e-4)
    assert run("train", "log.csv", "--out", tmp_path / "plain", *options).returncode == 0
    same = ("--set", "model.dims={color: 4, noise: 4}")
    assert run("train", "log.csv", "--out", tmp_path / "same", *options, *same).returncode == 0
    plain, named = (state_of(tmp_path / name) for name in ("plain", "same"))
    assert "table-embedding.safetensors" in plain
    assert plain["table-embedding.safetensors"] == named["table-embedding.safetensors"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("model.dims={colour: 2}",), "there is no field 'colour'; did you mean 'color'? the fields are color, noise"),
        (("model.dims={color: 0}",), "model.dims.color: input should be greater than or equal to 1, got 0"),
        (("model.dims={color: 1}", "model.name=lr"), "dims: lr has one weight per feature"),
        (("model.dims={color: 2}", "model.max_table_bytes=1MB"), "max_table_bytes is the limit of one table"),
    ],
)
def test_sizes_that_cannot_be(settings: tuple[str, ...], message: str, there: Path, tmp_path: Path, run: Run) -> None:
    done = run("train", "log.csv", "--out", tmp_path / "run", *(part for one in settings for part in ("--set", one)))
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "run").exists()


def test_the_largest_size_is_the_networks(there: Path) -> None:
    config = plain(dim=4, dims={"color": 2})
    assert (config.model.vector_dim, config.model.network_dim) == (4, 4)
    assert config.replace(dims={"color": 16}).model.network_dim == 16
    assert plain().model.network_dim == plain().model.vector_dim
