"""What `inspect` finds in a trained model: by the definitions first, then through the command line."""

import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from command import Run, call
from over import over
from sparsegroup import GroupAdagrad, GroupAdam, GroupOptimizer, HashEmbedding
from sparsegroup.serving.inspection import Distances, Histogram, Threshold, inspect, quantiles_of, read_rows
from sparsegroup.serving.opening import open_trained
from sparsegroup.training.assessment.features import Largest

DIM = 4


def soft(z: Any, l1: float) -> Any:
    return -np.sign(z) * np.maximum(np.abs(z) - l1, 0)


def trained(
    make: Callable[..., GroupOptimizer], steps: int = 12, seed: int = 0, **options: Any
) -> tuple[HashEmbedding, GroupOptimizer, dict[str, Any], Any]:
    """A table after some steps, its optimizer, the parts of its rows before the last one, and that one's gradient."""
    generator = torch.Generator().manual_seed(seed)
    table = HashEmbedding(DIM, std=0.1, dtype=torch.float64)
    optimizer = make(table.parameters(), **options)
    keys = torch.arange(300)
    scale = torch.logspace(-2.5, 0.5, len(keys), dtype=torch.float64)[:, None]
    before: dict[str, Any] = {}
    for _ in range(steps):
        gradient = scale * torch.randn(len(keys), DIM, generator=generator, dtype=torch.float64)
        optimizer.zero_grad()
        (table(keys) * gradient).sum().backward()
        before = table.table.snapshot().arrays()
        optimizer.step()
    return table, optimizer, before, gradient.numpy()


def threshold_of(optimizer: GroupOptimizer, steps: int | None = 12) -> Any:
    return Threshold.of(optimizer.rule, optimizer.param_groups[0], steps)


# Statistics


@over("spread", [0.01, 1.0, 5.0, 20.0])
def test_the_shown_histogram_counts_all_and_its_edges_hold_the_powers_of_ten(spread: float) -> None:
    values = 10.0 ** np.random.default_rng(1).uniform(-spread, spread / 2, 5_000)
    shown = Histogram.logarithmic(values)
    assert sum(shown.counts) == len(values)
    assert len(shown.counts) <= max(24, math.ceil(1.5 * spread) + 1)
    assert list(shown.counts) == np.histogram(values, shown.edges)[0].tolist()
    exponents = np.log10(shown.edges)
    inner = np.arange(math.ceil(exponents[0] - 1e-9), math.floor(exponents[-1] + 1e-9) + 1)
    assert all(np.abs(exponents - exponent).min() < 1e-9 for exponent in inner)
    assert Histogram.of(np.array([-3.0, 0.5, 2.0, math.inf]), np.array([0.0, 1.0, 2.0])).counts == (2, 2)
    assert Histogram.logarithmic(np.empty(0)) == Histogram()
    assert all(math.isnan(value) for value in quantiles_of(np.empty(0)).values())


@over("count", [0, 1, 7, 500])
def test_the_largest_are_those_of_all_sorted_however_they_come(count: int) -> None:
    random = np.random.default_rng(2)
    keys, values = random.permutation(300), random.integers(0, 40, 300).astype(np.float64)  # many are equal
    found = Largest(count)
    for part in np.array_split(np.arange(300), 11):
        found.add(keys[part], values[part])
    order = np.lexsort((keys, -values))[:count]
    assert (found.keys.tolist(), found.values.tolist()) == (keys[order].tolist(), values[order].tolist())


# The threshold


@over(("penalty", "l1"), [("lasso", 0.03), ("mcp", 0.0), ("hard", 0.03)])
def test_the_measures_of_rows_are_what_their_last_step_compared(penalty: str, l1: float) -> None:
    l21, l2, lr = 0.4, 0.2, 0.05
    table, optimizer, before, g = trained(GroupAdagrad, lr=lr, l1=l1, l21=l21, l2=l2, penalty=penalty)
    content = table.table.snapshot().arrays()
    sigma = (np.sqrt(content["sum"]) + 1e-10) / lr  # no step decays it
    s = soft(before["u"] + g - sigma * before["weight"], l1)
    measures = np.linalg.norm(s, axis=1) / (math.sqrt(DIM) * l21)
    live = (content["weight"] != 0).any(axis=1)
    assert live.tolist() == (measures > 1).tolist()
    assert 20 < (~live).sum() < 280
    threshold = threshold_of(optimizer)
    found = read_rows([table.table], 5, threshold)
    assert (found.zero_rows, len(found.norms)) == ((~live).sum(), live.sum())
    of_zero = np.linalg.norm(soft(content["u"][~live], l1), axis=1) / (math.sqrt(DIM) * l21)
    for shown, expected, edge in ((found.live, measures[live], 1.1), (found.zero, of_zero, 0.9)):
        np.testing.assert_allclose(np.sort(shown), np.sort(expected), rtol=1e-6)
        distances, is_live = Distances.of(shown, live=edge > 1), edge > 1
        assert distances is not None
        near = expected <= edge if is_live else expected >= edge
        assert (distances.rows, distances.near) == (len(expected), near.sum())
        assert sum(distances.histogram.counts) == len(expected)
        assert distances.quantiles[0.25] == pytest.approx(np.quantile(expected, 0.25, method="inverted_cdf"))
        if not is_live:
            counts = np.histogram(expected.clip(0, 1), np.linspace(0, 1, 21))[0]
            assert list(distances.histogram.counts) == counts.tolist()
    # k: what x is of what it would be without λ21
    k = np.linalg.norm((content["weight"] * (sigma + 2 * l2))[live], axis=1) / np.linalg.norm(s[live], axis=1)
    assert [threshold.kept(float(measure)) for measure in measures[live]] == pytest.approx(k, rel=1e-9)


def test_sigma_of_adam_is_that_of_its_next_step_and_nothing_is_said_where_it_is_not_known() -> None:
    table, optimizer, _, _ = trained(GroupAdam, lr=0.05, l21=0.4)
    content, group = table.table.snapshot().arrays(), optimizer.param_groups[0]
    threshold = threshold_of(optimizer)
    found = threshold.sigma([content["exp_avg"], content["exp_avg_sq"]], content["weight"].shape)
    expected = (np.sqrt(0.999 * content["exp_avg_sq"] / (1 - 0.999**13)) + 1e-8) / 0.05
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    before = read_rows([table.table], 5, threshold)
    assert before.zero.max() <= 1 + 1e-9 < 1.0001 * before.live.min()
    for without in ({"l21": 0.0}, {"l21": 0.0, "l2": 1.0}, {"norm": "metric"}):
        assert Threshold.of(optimizer.rule, {**group, **without}, 12) is None
    assert Threshold.of(optimizer.rule, {**group, "lr": 0.0}, 12).scalars is None  # type: ignore[union-attr]
    unknown = read_rows([table.table], 5, threshold_of(optimizer, None))
    assert len(unknown.zero) == unknown.zero_rows > 0
    assert len(unknown.live) == 0
    # Rows that were never updated have no measure.
    table.assign(torch.tensor([1000, 1001]), torch.tensor([[0.0] * DIM, [1.0] * DIM], dtype=torch.float64))
    after = read_rows([table.table], 5, threshold)
    assert (after.zero_rows, len(after.norms)) == (before.zero_rows + 1, len(before.norms) + 1)
    assert (len(after.zero), len(after.live)) == (len(before.zero), len(before.live))
    assert after.largest.keys[0] == 1001


def test_without_l21_the_largest_element_is_compared_with_l1() -> None:
    table, optimizer, _, _ = trained(GroupAdagrad, lr=0.05, l1=0.5)
    threshold = threshold_of(optimizer)
    assert threshold.measure == "max |z| / λ1"
    found = read_rows([table.table], 5, threshold)
    content = table.table.snapshot().arrays()
    zero = ~(content["weight"] != 0).any(axis=1)
    assert found.zero.max() == pytest.approx(np.abs(content["u"][zero]).max() / 0.5)
    assert found.zero.max() <= 1 + 1e-9
    assert found.live.min() >= 1 - 1e-9
    assert found.zero_elements == (content["weight"][~zero] == 0).sum() > 0
    assert math.isnan(threshold.kept(2.0))


# The command line


def click_log(path: Path, rows: int = 2_000) -> Path:
    lines = ["label,color,size"]
    lines += [f"{int(i % 7 in (1, 3))},{f'c<{i % 7}>' if i % 7 else ''},{i * 2654435761 % 97}" for i in range(rows)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a prepared log with a vocabulary."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert call(patch, "prepare", click_log(folder / "log.csv"), "log", "--vocabulary") == 0
        assert call(patch, "train", "log", "--lr", 0.05, "--l21", 2e-3, "--out", "model") == 0
        assert call(patch, "inspect", "model") == 0  # compiles what a test's own call would report
    return folder / "model"


@pytest.fixture
def model(trained_once: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that run in the current folder."""
    monkeypatch.chdir(tmp_path)
    return shutil.copytree(trained_once, tmp_path / "model")


def shown(run: Run, *arguments: object) -> str:
    """What `inspect` prints, as one line."""
    done = run("inspect", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    return " ".join(done.stdout.split())


def failed(run: Run, *arguments: object) -> str:
    done = run(*arguments)
    assert done.returncode == 2
    return done.stderr


def test_figures_are_those_of_the_run_and_add_up(model: Path, run: Run) -> None:
    found = json.loads(shown(run, "model", "--json", "--top", 8))
    summary = json.loads((model / "summary.json").read_text())
    assert found["columns"] != []
    assert all(found[name] == summary[name] for name in ("fields", "columns", "feature_rate", "live_rows"))
    assert (found["samples"], found["kind"]) == (1_800, "run")
    assert sum(found["norms"]["counts"]) == found["live_rows"]
    assert 0 < found["live_rows"] < found["features_seen"]
    regularized, sizes = found["regularized"], found["sizes"]
    assert regularized["zero_rows"] + found["live_rows"] == sum(rows["rows"] for rows in found["fields"].values())
    assert regularized["zero"]["rows"] == sum(regularized["zero"]["histogram"]["counts"]) == regularized["zero_rows"]
    assert regularized["live"]["rows"] == sum(regularized["live"]["histogram"]["counts"]) == found["live_rows"]
    assert sizes["live_vectors"] == 4 * found["dim"] * found["live_rows"]
    assert sizes["dense_table"] == 4 * found["dim"] * found["features_seen"]
    files = {path.name: path.stat().st_size for path in model.iterdir() if path.is_file()}
    assert files.items() <= sizes["files"].items()
    inside = sum(path.stat().st_size for path in (model / "checkpoints").rglob("*") if path.is_file())
    assert sizes["files"]["checkpoints/"] == inside
    assert sizes["network"] == 4 * sizes["network_parameters"] > 0
    assert set(sizes["table"]["parts"]) == {"weight", "u", "exp_avg", "exp_avg_sq"}
    kept = [regularized["kept"][share] for share in ("0.05", "0.25", "0.5", "0.75", "0.95")]
    assert kept == sorted(kept)
    assert kept[0] >= 0


def test_the_largest_features_are_named_by_the_vocabulary(model: Path, run: Run) -> None:
    opened = open_trained(model)
    found = inspect(opened, 8)
    rows = (row for part in opened.model.embedding.items() for row in zip(*part, strict=True))
    norms = {int(key): float(row.norm()) for key, row in rows}
    assert [feature.norm for feature in found.top] == pytest.approx(sorted(norms.values(), reverse=True)[:8])
    assert all(feature.norm == pytest.approx(norms[feature.key]) for feature in found.top)
    colors = {feature.value for feature in found.top if feature.field == "color"}
    assert {"c<1>", "c<3>"} <= colors  # which the label is a function of
    (model / "vocabulary.parquet").unlink()
    assert inspect(open_trained(model), 8).top == found.top  # by the names of the largest ones
    (model / "names.parquet").write_bytes(b"rubbish")
    assert failed(run, "inspect", model).startswith(f"error: {model / 'names.parquet'}: damaged (")
    (model / "names.parquet").unlink()
    assert {feature.value for feature in inspect(open_trained(model), 8).top} == {None}


def test_a_checkpoint_is_as_the_run_and_an_export_has_the_live_rows_alone(model: Path, run: Run) -> None:
    (checkpoint,) = (model / "checkpoints").iterdir()
    assert run("export", "model", "exported", "--no-onnx").returncode == 0
    of_run, of_checkpoint, of_export = (inspect(open_trained(path)) for path in (model, checkpoint, "exported"))
    assert (of_checkpoint.kind, of_export.kind) == ("checkpoint", "export")
    for name in ("model", "samples", "optimizer", "fields", "norms", "top", "regularized"):
        assert getattr(of_run, name) == getattr(of_checkpoint, name), name
    for name in ("features_seen", "live_rows", "norms"):
        assert getattr(of_run, name) == getattr(of_export, name), name
    for name, rows in of_run.fields.items():
        assert (rows.seen, rows.live) == (of_export.fields[name].seen, of_export.fields[name].live)
    assert [(feature.key, feature.value) for feature in of_export.top] == [
        (feature.key, feature.value) for feature in of_run.top
    ]
    keys = pl.read_parquet("exported/vocabulary.parquet")["key"]
    assert keys.to_list() == sorted(keys)
    assert len(keys) == of_run.live_rows
    assert of_export.regularized.measure is None
    assert "an export holds no optimizer state" in shown(run, "exported", "--html", "page.html", "--overwrite")


def test_the_terminal_and_the_page_show_all_parts_and_the_page_loads_nothing(model: Path, run: Run) -> None:
    done = run("inspect", "model", "--html", "page.html", "--overwrite")
    assert (done.returncode, done.stderr, done.stdout.endswith("written to page.html\n")) == (0, "", True)
    for part in (
        "DCN of dimension 8 with Group Adam, λ21 = 0.002, lasso, norm s",
        *("Feature rate", "Norms of the live rows", "Features of the largest norms", "What λ did", "Files"),
        *("Columns, on the first test rows", "zero rows within 10 % of coming back"),
    ):
        assert part in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert re.search(r"all fields +104 +104 +\d+ +\d+\.\d\d %", done.stdout)
    page = Path("page.html").read_text(encoding="utf-8")
    assert not re.search(r"<script|<link|<img|@import|src=|url\((?!#)|https?://(?!www\.w3\.org/)|\bnan\b", page)
    assert "c&lt;1&gt;" in page
    assert page.count("<svg") == 2
    assert "<h2>Columns</h2>" in page
    assert failed(run, "inspect", "model", "--html", "nowhere/page.html") == "error: nowhere: no such folder\n"
    assert failed(run, "inspect", "nothing").startswith("error: nothing")
    assert failed(run, "train", "model").startswith("error: model is a run, not a log: --continue model")


def test_a_target_is_shown_with_its_lambda_and_the_distances_from_it(tmp_path: Path, run: Run) -> None:
    done = run("train", click_log(tmp_path / "log.csv"), "--target-rate", 0.3, "--out", "model")
    assert done.returncode == 0, done.stderr
    found = inspect(open_trained("model"))
    last = json.loads(Path("model/metrics.jsonl").read_text().splitlines()[-1])
    assert found.optimizer.target == "target rate 0.3"
    assert found.optimizer.l21 == last["l21"] > 0
    assert found.regularized.measure == "‖s‖ / (√d λ21)"
    words = shown(run, "model", "--html", "page.html", "--overwrite")
    assert "DCN of dimension 8 with Group Adagrad, target rate 0.3" in words
    assert f"λ21 in force, set by the target {last['l21']:.3g}" in words
    assert "live rows within 10 % of the threshold" in words
    assert "Distance from the threshold" in Path("page.html").read_text(encoding="utf-8")
    assert run("export", "model", "exported", "--no-onnx").returncode == 0
    of_export = shown(run, "exported")
    assert "target rate 0.3" in of_export
    assert "nothing is regularized" not in of_export
    assert "an export holds no λ21 and no optimizer state" in of_export


def test_a_model_without_penalty_and_one_without_live_rows(tmp_path: Path, run: Run) -> None:
    log = click_log(tmp_path / "log.csv", 600)
    assert run("train", log, "--l21", 0, "--out", "plain").returncode == 0
    words = shown(run, "plain", "--html", "page.html", "--overwrite")
    assert "nothing is regularized: λ1, λ21 and λ2 are 0" in words
    assert "within 10 %" not in words
    assert "u" not in json.loads(run("inspect", "plain", "--json").stdout)["sizes"]["table"]["parts"]
    assert run("train", log, "--l21", 10, "--norm", "metric", "--out", "zero").returncode == 0
    words = shown(run, "zero", "--html", "page.html", "--overwrite")
    assert "rows made exactly zero" in words
    assert "Norms of the live rows" not in words
    assert "is known for the norm s only, not for metric" in words
    assert "No row is live." in Path("page.html").read_text(encoding="utf-8")
