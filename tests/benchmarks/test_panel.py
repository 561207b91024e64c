"""The panel: baselines that learn, chosen fairly and kept, and a verdict that tells a difference from noise."""

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy.sparse import csr_matrix
from sklearn.metrics import roc_auc_score

import default_settings
import out_of_the_box
from command import Run
from over import over
from panel import baselines
from panel.baselines import BASELINES, Said, said
from panel.contest import OURS, contest, verdict_of
from panel.linear import BETA, Chosen, Design, passes_of, tail_of
from panel.logs import PanelLog, read
from panel.ours import OwnRun
from panel.page import contest_figure

ROOT = Path(__file__).parents[2]


def typed_log(path: Path, rows: int = 3_000) -> Path:
    """A log whose label follows a name, a float and tags."""
    rng = np.random.default_rng(0)
    names, prices, tags = rng.integers(0, 30, rows), rng.lognormal(0, 1, rows), rng.integers(0, 4, rows)
    logit = 3.0 * (names % 3 == 0) + 2.0 * (np.abs(np.log(prices)) > 1) + 1.5 * (tags == 1) - 2.5
    frame = pl.DataFrame(
        {
            "bought": (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(int),
            "order": [f"{7919 * row:x}" for row in range(rows)],
            "name": [f"n{number}" for number in names],
            "price": prices,
            "tags": np.array(["a|b", "c", "b|d", "a"])[tags],
            "visits": rng.poisson(30, rows),
        }
    )
    frame.write_csv(path)
    return path


@pytest.fixture
def log(tmp_path: Path) -> PanelLog:
    return PanelLog("typed", typed_log(tmp_path / "log.csv"), label="bought")


def test_columns_are_told_and_rows_split_as_sparsegroup_splits_and_a_parquet_twin_is_read_alike(
    log: PanelLog, tmp_path: Path
) -> None:
    train, test, kinds, label = log.frames
    assert kinds == {"name": "category", "price": "number", "tags": "tags", "visits": "both"}
    assert (len(train), len(test), label) == (2_700, 300, "bought")
    assert [len(part) for part in tail_of(train)] == [2_430, 270]
    frame, kinds, _ = read(log.path, "bought")
    columns = (pl.col("tags").str.split("|"), pl.col("name").cast(pl.Categorical))
    frame.with_columns(columns).write_parquet(tmp_path / "log.parquet")
    twin, twin_kinds, _ = read(tmp_path / "log.parquet", "bought")
    assert twin_kinds == kinds
    assert (Design(frame, kinds).matrix(frame) - Design(twin, kinds).matrix(twin)).nnz == 0


def test_a_matrix_has_an_entry_for_each_value() -> None:
    frame = pl.DataFrame({"name": ["a", None, "a"], "tags": ["x|y", "", "y"], "price": [1.0, None, 3.0]})
    kinds: Mapping[str, baselines.Kind] = {"name": "category", "tags": "tags", "price": "number"}
    rows = [set(row.indices.tolist()) for row in Design(frame, kinds).matrix(frame)]
    assert [len(row) for row in rows] == [5, 2, 4]  # a missing value is one, no tags are none; a number is two
    assert len(rows[0] & rows[2]) == 3
    assert not rows[1] & (rows[0] | rows[2])


def test_ftrl_is_algorithm_1() -> None:
    rng = np.random.default_rng(1)
    x = (rng.random((60, 7)) < 0.4) * rng.normal(size=(60, 7))
    y = (rng.random(60) < 0.5).astype(int)
    alpha, l1, l2 = 0.3, 0.2, 0.5
    z, n = np.zeros(8), np.zeros(8)  # the last is the intercept, without λ

    def weights() -> np.ndarray:
        first, second = np.append(np.full(7, l1), 0.0), np.append(np.full(7, l2), 0.0)
        w = -(z - np.sign(z) * first) / ((BETA + np.sqrt(n)) / alpha + second)
        return np.where(np.abs(z) <= first, 0.0, w)

    for row, label in zip(np.column_stack([x, np.ones(60)]), y, strict=True):
        g = (1 / (1 + np.exp(-row @ weights())) - label) * row
        sigma = (np.sqrt(n + g**2) - np.sqrt(n)) / alpha
        z, n = z + g - sigma * weights(), n + g**2
    expected = 1 / (1 + np.exp(-np.column_stack([x, np.ones(60)]) @ weights()))
    ((probabilities, weights),) = passes_of(csr_matrix(x), y, csr_matrix(x), alpha, l1, l2, 1)
    np.testing.assert_allclose(probabilities, expected, rtol=1e-10)


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_finds_names_and_curves(name: str, log: PanelLog) -> None:
    if name not in baselines.installed():
        pytest.skip(f"{BASELINES[name][1]} is not installed")
    train, test, kinds, label = log.frames
    chosen = BASELINES[name][0](train, test, kinds, label, True)
    assert chosen.probabilities.shape == (len(test),)
    assert roc_auc_score(test[label], chosen.probabilities) > 0.8
    assert 0.85 < chosen.probabilities.sum() / test[label].sum() < 1.15


def test_a_baseline_is_run_once_for_a_log(log: PanelLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def run(*arguments: object) -> Chosen:
        calls.append(arguments)
        return Chosen(np.full(300, 0.25), {"C": 1}, 12)

    monkeypatch.setattr(baselines, "BASELINES", {"logistic regression": (run, "numpy")})
    first, again = (said(log, "logistic regression", False, tmp_path) for _ in range(2))
    assert len(calls) == 1
    np.testing.assert_array_equal(first.probabilities, again.probabilities)
    assert (again.settings, again.seconds) == ({"C": 1}, first.seconds)
    monkeypatch.setitem(baselines.BASELINES, "vw", (lambda *arguments: Chosen(np.full(300, 0.5), {}, 12), "numpy"))
    assert said(log, "vw", False, tmp_path).probabilities[0] == 0.5
    with log.path.open("a") as file:
        file.write("1,zz,n0,1.0,a,3\n")
    said(PanelLog("typed", log.path, label="bought"), "logistic regression", False, tmp_path)
    assert len(calls) == 2


def test_a_difference_comes_with_its_noise() -> None:
    rng = np.random.default_rng(2)
    truth = rng.random(4_000)
    labels = (rng.random(4_000) < truth).astype(int)
    worse = np.clip(truth + rng.normal(0, 0.5, 4_000), 0.01, 0.99)
    runs = [OwnRun(np.clip(truth, 0.01, 0.99), 0.05, 10, 1.0)] * 2
    equal = contest(labels, runs, {"same": Said(runs[0].probabilities, {}, 1.0)})["differences"]
    assert [equal[metric]["difference"] for metric in ("auc", "log_loss")] == pytest.approx([0, 0])
    assert [equal[metric]["error"] for metric in ("auc", "log_loss")] == pytest.approx([0, 0])
    found = contest(labels, runs, {"worse": Said(worse, {}, 1.0), "none": Said(np.full(4_000, 0.5), {}, 1.0)})
    assert found["differences"]["auc"]["best"] == "worse"
    assert found["differences"]["log_loss"]["best"] == "none"
    assert 0.002 < found["differences"]["auc"]["error"] < 0.02
    assert found["differences"]["auc"]["difference"] > 5 * found["differences"]["auc"]["error"]


@over(
    ("difference", "error", "verdict"),
    [
        (0.01, 0.001, "better"),
        (0.001, 0.001, "yes"),
        (-0.001, 0.0, "yes"),
        (-0.002, 0.001, "no, within noise"),
        (-0.004, 0.001, "no"),
    ],
)
def test_verdicts(difference: float, error: float, verdict: str) -> None:
    assert verdict_of(difference, error) == verdict


def test_the_command_writes_the_page_and_its_figures(log: PanelLog, tmp_path: Path) -> None:
    arguments = ["--log", log.path, "--label", "bought", "--seeds", 1, "--baselines", "logistic regression"]
    folders = ["--cache", tmp_path / "cache", "--report", tmp_path / "report", "--json", tmp_path / "figures.json"]
    out_of_the_box.main([*map(str, arguments), *map(str, folders)])
    figures = json.loads((tmp_path / "figures.json").read_text())
    entry = json.loads((tmp_path / "report" / "results.json").read_text())["log"]
    assert figures["log.sparsegroup.auc"] == entry["methods"]["sparsegroup"]["auc"]
    assert entry["methods"]["logistic regression"]["auc"] > 0.8
    assert entry["methods"][OURS]["seeds"] == 1
    difference = entry["methods"][OURS]["auc"] - entry["methods"]["logistic regression"]["auc"]
    assert entry["differences"]["auc"]["difference"] == pytest.approx(difference)
    page = (tmp_path / "report" / "index.md").read_text()
    assert f"| log | {difference:+.4f} ± {entry['differences']['auc']['error']:.4f} (logistic regression) |" in page
    assert "300 test rows" in page


def test_the_picture_shows_every_difference_where_it_is() -> None:
    results = json.loads((ROOT / "docs/results/out-of-the-box/results.json").read_text())
    figure = contest_figure(results)
    figure.draw_without_rendering()
    for ax, metric, sign in zip(figure.axes, ("auc", "log_loss"), (1, -1), strict=True):
        drawn = {(line.get_ydata()[0], line.get_xdata()[0]) for line in ax.get_lines() if line.get_marker() != "None"}
        left, right = ax.get_xlim()
        assert all(left <= x <= right for _, x in drawn)
        for row, entry in enumerate(one for name, one in results.items() if not name.endswith(", Parquet")):
            values = {name: sign * one[metric] for name, one in entry["methods"].items()}
            best = max(value for name, value in values.items() if name != OURS)
            assert {(row, value - best) for value in values.values()} <= drawn


def test_defaults_are_varied_one_setting_at_a_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def run(log: PanelLog, seed: int, folder: Path, options: tuple[str, ...]) -> OwnRun:
        asked.append(options)
        labels = log.frames[1][log.frames[3]].to_numpy()
        return OwnRun(np.where(labels == 1, 0.9, 0.1 * (1 + len(options))), 0.1, 5, 1.0)

    monkeypatch.setattr(default_settings, "own_run", run)
    default_settings.main(
        ["--quick", "--of", "order", "size", "--seeds", "2", "--json", str(tmp_path / "figures.json")]
    )
    assert asked[:4] == [(), (), ("--shuffle-buffer", "0"), ("--shuffle-buffer", "0")]
    assert len(asked) == 2 * 7
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert len(figures) == 7 * 3 + len(("commit", "machine"))
    assert figures["clicks, where nothing is said, auc"] == 1.0
    assert figures["clicks, where nothing is said, calibration"] < figures["clicks, all features, calibration"]


def test_the_other_settings_are_options_of_train(tmp_path: Path, run: Run) -> None:
    for settings in default_settings.OTHERS.values():
        for options in settings.values():
            done = run("train", tmp_path / "none.csv", *options)
            assert "none.csv: no such file" in done.stderr
