"""`train` without options but the label: what trials choose is said, kept in the run, and served."""

import io
import re
from contextlib import redirect_stderr
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from cli_cases import summary_of
from command import Run, call
from pair_logs import write_pair_log
from sparsegroup.cli.runs import _chosen_in_words
from sparsegroup.serving import read_manifest
from sparsegroup.training import load_run
from sparsegroup.training.run_folder import RUN

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


def assert_served_alike(ok: Run, run: Path | str, log: Path) -> None:
    """An export of the run predicts as the run does."""
    ok("export", run, "exact", "--no-onnx")
    for model, out in ((run, "run.parquet"), ("exact", "export.parquet")):
        ok("predict", model, log, "--out", out, "--overwrite")
    ours, theirs = (pl.read_parquet(name)["probability"] for name in ("run.parquet", "export.parquet"))
    assert (ours - theirs).abs().max() < 1e-6  # type: ignore[operator]


def test_the_trials_are_said_and_in_the_summary_and_the_report(place: Path) -> None:
    found = summary_of(place / "run")
    (chosen,) = [one for one in found["trials"] if one["is_chosen"]]
    assert chosen["pairs"] == ["b*d"]
    assert list(found["fields"]) == ["a", "b", "c", "d", "e", "b*d"]
    assert found["fields"]["b*d"]["seen"] > 1_500
    page = (place / "run" / "report.html").read_text()
    assert "<h2>Trials</h2>" in page
    assert page.count("<td>chosen</td>") == 1
    said = r"trials on .* rows choose \d+ pass(es)?, the pairs b\*d, \d+% of the features: log loss 0\.\d{4}"
    assert re.search(said, (place / "said.txt").read_text())
    defaults = replace(RUN.read(place / "run").summary.trials[0], is_chosen=True)
    assert "against" not in _chosen_in_words([defaults])


def test_a_model_with_pairs_is_exported_scored_inspected_and_continued(place: Path, ok: Run) -> None:
    export = ok("export", place / "run", "export", "--onnx", "--dtype", "int8", "--test", place / "log.csv")
    assert "largest difference to PyTorch" in " ".join(export.stdout.split())
    columns, _ = read_manifest(Path("export")).columns_and_config()
    assert list(columns.fields) == ["a", "b", "c", "d", "e"]
    assert_served_alike(ok, place / "run", place / "later.csv")
    assert "b*d" in ok("inspect", place / "run").stdout
    ok("train", place / "later.csv", "--continue", place / "run", "--out", "next")
    config = Path("next/config.yaml").read_text()
    assert "- b*d" in config
    assert "epochs: 1\n" in config
    ok("export", "next", "delta", "--since", "exact")


def test_pairs_are_given_by_name_or_none_and_trials_are_left_out(place: Path, ok: Run) -> None:
    options = ("--model", "lr", "--epochs", 1, "--l2", 0, "--target-rate", 1)
    done = ok("train", place / "log.csv", *options, "--pairs", "a*b, c*d", "--out", "given")
    assert "trials" not in done.stderr
    assert list(summary_of(Path("given"))["fields"])[5:] == ["a*b", "c*d"]
    frame = pl.read_csv(place / "log.csv")
    there = {f"{left} * {right}" for left, right in frame.select("a", "b").iter_rows()}
    names = pl.read_parquet("given/names.parquet").filter(pl.col("field") == "a*b")
    assert len(names) > 0
    assert {*names["value"]} <= there
    assert names["value"].n_unique() == len(names)
    ok("train", place / "log.csv", *options, "--pairs", "none", "--out", "without")
    without = summary_of(Path("without"))
    assert len(without["fields"]) == 5
    own = summary_of(place / "run")
    assert own["baseline"]["auc"] > without["baseline"]["auc"] + 0.05  # which has the pairs of the run
    done = ok("train", place / "log.csv", "--model", "lr", "--selection", "never", "--out", "plain")
    assert "trials" not in done.stderr
    plain = summary_of(Path("plain"))
    assert own["test"]["auc"] > plain["test"]["auc"] + 0.02
    assert plain["trials"] == []


def test_where_few_features_fit_vectors_become_shorter_and_are_served(place: Path, ok: Run) -> None:
    options = ("--model", "dcn", "--epochs", 1, "--l2", 0, "--target-bytes", 600, "--pairs", "b*d", "--out", "small")
    done = ok("train", place / "log.csv", *options)
    found = summary_of(Path("small"))
    (chosen,) = [one for one in found["trials"] if one["is_chosen"]]
    assert [one["dim"] for one in found["trials"]] == [8, 1, 2, 4]
    assert chosen == min(found["trials"], key=lambda one: one["log_loss"])
    assert chosen["dim"] < 8
    whole, *rates = (one["feature_rate"] for one in found["trials"])
    assert rates == sorted(rates, reverse=True)
    assert whole < rates[-1]
    model = load_run(Path("small")).model
    assert set(model.embedding.sizes.values()) == {chosen["dim"]}
    assert 0.9 * 600 < model.live_bytes + 8 * model.embedding.num_live <= 600
    assert f", vectors of {chosen['dim']}, " in done.stderr
    assert_served_alike(ok, "small", place / "later.csv")
