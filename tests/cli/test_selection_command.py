"""`train` without options but the label: what trials choose is said, kept in the run, and served."""

import io
import json
import re
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch

from command import Run, call
from pair_logs import write_pair_log
from sparsegroup.data import open_log
from sparsegroup.training import evaluate, load_run
from sparsegroup.training.baseline import LinearBaseline

ROWS = 9_000


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a log whose fields b and d have an effect together, a later one, and a run on the first."""
    folder = tmp_path_factory.mktemp("selection")
    write_pair_log(folder / "log.csv", 1.5, ROWS)
    write_pair_log(folder / "later.csv", 1.5, ROWS // 3, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with redirect_stderr(io.StringIO()) as said:
            assert call(patch, "train", "log.csv", "--model", "lr", "--out", "run") == 0
    (folder / "said.txt").write_text(said.getvalue())
    return folder


def summary(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return content


def test_the_trials_are_said_and_in_the_summary_and_the_report(place: Path) -> None:
    found = summary(place / "run")
    trials = found["trials"]
    (chosen,) = [one for one in trials if one["is_chosen"]]
    assert chosen["pairs"] == ["b*d"]
    fields = found["fields"]
    assert list(fields) == ["a", "b", "c", "d", "e", "b*d"]
    assert fields["b*d"]["seen"] > 1_500
    page = (place / "run" / "report.html").read_text()
    assert "<h2>Trials</h2>" in page
    assert page.count("<td>chosen</td>") == 1
    said = r"trials on .* rows choose \d+ pass(es)?, the pairs b\*d, \d+% of the features: log loss 0\.\d{4}"
    assert re.search(said, (place / "said.txt").read_text())


def test_it_is_better_than_without(place: Path, run: Run) -> None:
    done = run("train", place / "log.csv", "--model", "lr", "--selection", "never", "--out", "plain")
    assert "trials" not in done.stderr
    (plain, own) = (summary(Path("plain"))["test"], summary(place / "run")["test"])
    assert own["auc"] > plain["auc"] + 0.02
    assert summary(Path("plain"))["trials"] == []


def test_a_model_with_pairs_is_exported_scored_and_inspected(place: Path, run: Run) -> None:
    export = run("export", place / "run", "export", "--onnx", "--dtype", "int8", "--test", place / "log.csv")
    assert "largest difference to PyTorch" in " ".join(export.stdout.split())
    columns = json.loads(Path("export/manifest.json").read_text())["columns"]
    assert columns["fields"] == ["a", "b", "c", "d", "e"]
    run("predict", place / "run", place / "later.csv", "--out", "run.parquet")
    run("export", place / "run", "exact", "--no-onnx")
    run("predict", "exact", place / "later.csv", "--out", "export.parquet")
    ours, theirs = (pl.read_parquet(name)["probability"] for name in ("run.parquet", "export.parquet"))
    assert (ours - theirs).abs().max() < 1e-6  # type: ignore[operator]
    assert "b*d" in run("inspect", place / "run").stdout


def test_a_continued_run_keeps_the_pairs_and_makes_one_pass(place: Path, ok: Run, run: Run) -> None:
    run("train", place / "later.csv", "--continue", place / "run", "--out", "next")
    config = Path("next/config.yaml").read_text()
    assert "- b*d" in config
    assert "epochs: 1\n" in config
    run("export", place / "run", "base", "--no-onnx")
    ok("export", "next", "delta", "--since", "base")


def test_the_baseline_has_the_pairs_of_the_run(place: Path) -> None:
    trained, log = load_run(place / "run"), open_log(place / "log.csv")
    assert trained.baseline is not None
    assert trained.baseline.pairs is not None
    plan = trained.config.training.plan(log.train_rows)
    fresh, without = (LinearBaseline(numbers=0, pairs=pairs) for pairs in (trained.baseline.pairs, None))
    for batch in plan.batches(log, 0):
        fresh.learn(batch)
        without.learn(batch)
    (test,) = log.batches(log.train_rows, len(log), len(log))
    assert torch.equal(trained.baseline.predict(test), fresh.predict(test))
    with_pair, plain = (
        evaluate(test.labels.numpy(), one.predict(test).double().sigmoid().numpy()).auc for one in (fresh, without)
    )
    assert with_pair > plain + 0.05
    assert summary(place / "run")["baseline"]["auc"] >= plain + 0.05


def test_pairs_are_given_by_name(place: Path, run: Run) -> None:
    options = ("--model", "lr", "--pairs", "a*b, c*d", "--epochs", 1, "--l2", 0, "--target-rate", 1, "--out", "given")
    assert "trials" not in run("train", place / "log.csv", *options).stderr
    fields = summary(Path("given"))["fields"]
    assert list(fields)[5:] == ["a*b", "c*d"]
    frame = pl.read_csv(place / "log.csv")
    there = {f"{left} * {right}" for left, right in frame.select("a", "b").iter_rows()}
    names = pl.read_parquet("given/names.parquet").filter(pl.col("field") == "a*b")
    assert len(names) > 0
    assert {*names["value"]} <= there
    assert names["value"].n_unique() == len(names)
    run("train", place / "log.csv", *options[:2], "--pairs", "none", *options[4:-1], "without")
    assert len(summary(Path("without"))["fields"]) == 5


def test_where_few_features_fit_vectors_become_shorter_and_are_served(place: Path, run: Run) -> None:
    done = run(
        "train", place / "log.csv", "--model", "dcn", "--target-bytes", "600", "--pairs", "b*d", "--out", "small"
    )
    found = summary(Path("small"))
    (chosen,) = [one for one in found["trials"] if one["is_chosen"]]
    assert {one["dim"] for one in found["trials"]} == {8, 1, 2, 4}
    assert chosen["dim"] < 8
    assert f", vectors of {chosen['dim']}, " in done.stderr
    run("predict", "small", place / "later.csv", "--out", "run.parquet")
    run("export", "small", "served", "--no-onnx")
    run("predict", "served", place / "later.csv", "--out", "export.parquet")
    ours, theirs = (pl.read_parquet(name)["probability"] for name in ("run.parquet", "export.parquet"))
    assert (ours - theirs).abs().max() < 1e-6  # type: ignore[operator]
