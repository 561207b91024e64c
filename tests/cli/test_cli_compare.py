"""`sparsegroup demo` and `path` through the real command line: models of several sizes."""

import json
from pathlib import Path

import pytest

from cli_cases import many_features
from command import Run
from endings import Refused

LEARN = ("--lr", 0.05, "--batch-size", 64)


def test_demo_shows_four_methods_and_prunes_to_the_target_rate(ok: Run) -> None:
    rows = {
        cells[0]: cells[1:]
        for line in ok("demo", "--rows", 5_000, "--target-rate", 0.05).stdout.splitlines()
        if line.startswith("│") and (cells := [cell.strip() for cell in line.strip("│").split("│")])
    }
    target, constant = "Target rate", "Group Adam, fixed λ"
    assert list(rows) == ["Adam", "Adam, pruned", constant, target]
    assert rows["Adam"][2] == "100.00%"
    assert rows["Adam, pruned"][2:4] == rows[target][2:4]
    assert float(rows[target][2].rstrip("%")) == pytest.approx(5, abs=0.05)
    assert float(rows[constant][2].rstrip("%")) < 50


def test_path_shows_what_each_size_costs_and_keeps_what_is_there(tmp_path: Path, ok: Run, refused: Refused) -> None:
    log, folder = many_features(tmp_path / "log.csv", 2_000), tmp_path / "paths" / "log"
    done = ok("path", log, "--rates", ".3,.05", *LEARN)
    written = (folder / "path.json").read_bytes()
    content = json.loads(written)
    everything, *smaller = content["points"]
    assert (everything["asked"], everything["feature_rate"], everything["l21"]) == (None, 1.0, 0.0)
    assert [point["asked"] for point in smaller] == [0.3, 0.05]
    for point in smaller:
        assert point["feature_rate"] == pytest.approx(point["asked"], rel=0.02)
        assert point["bytes"] == point["live_rows"] * (8 * 4 + 8)
        assert f"{point['test']['auc']:.4f}" in done.stdout
    chosen = [line for line in done.stdout.splitlines() if "*" in line]
    assert len(chosen) == 2  # the row, and what the mark means
    (best,) = (point for point in content["points"] if point["feature_rate"] == content["no_loss_down_to"])
    assert f"{best['live_rows']:,}" in chosen[0]
    assert "*: the smallest size" in chosen[1]
    assert content["config"]["optimizer"]["penalty"] == "hard"
    assert (folder / "path.svg").read_text().startswith("<svg")

    options = ("--rates", ".3", *LEARN, "--epochs", 2, "--after-first-epoch", "reset", "--schedule", "cosine")
    assert "--overwrite" in refused("path", log, *options)
    assert (folder / "path.json").read_bytes() == written
    ok("path", log, *options, "--overwrite")
    content = json.loads((folder / "path.json").read_text())
    assert content["config"]["training"]["after_first_epoch"] == "reset"
    assert content["points"][1]["feature_rate"] == pytest.approx(0.3, abs=0.01)


def test_path_without_an_auc_draws_nothing(tmp_path: Path, ok: Run) -> None:
    """The test rows are all of one class."""
    lines = many_features(tmp_path / "all.csv", 600).read_text().splitlines()
    (tmp_path / "log.csv").write_text("\n".join([*lines[:541], *("0" + line[1:] for line in lines[541:])]) + "\n")
    shown = ok("path", "log.csv", "--rates", ".3", *LEARN, "--model", "lr").stdout
    assert "the labels of the test rows are all the same" in shown
    folder = tmp_path / "paths" / "log"
    assert not (folder / "path.svg").exists()
    assert json.loads((folder / "path.json").read_text())["points"][0]["test"]["auc"] is None
