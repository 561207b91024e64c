"""A target size, the path of sizes, and a table of limited memory, through the real command line."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from cli_cases import many_features, points_of, summary_of
from command import Run
from endings import Refused
from run_folders import state_of

LEARN = ("--lr", 0.05, "--batch-size", 64)
FAST = (*LEARN, "--selection", "never")


@pytest.mark.usefixtures("pictures")
def test_train_lands_at_the_target_rate_and_the_next_day_continues_at_it(tmp_path: Path, ok: Run) -> None:
    many_features(tmp_path / "log.csv")
    (tmp_path / "settings.yaml").write_text("data: {log: log.csv}\noptimizer: {lr: 0.05, target_rate: 0.2}\n")
    ok("train", "settings.yaml", "--target-rate", 0.05, "--batch-size", 64, "--out", "run")
    summary, points = summary_of(tmp_path / "run"), points_of(tmp_path / "run")
    assert summary["live_rows"] == pytest.approx(0.05 * summary["features_seen"], abs=1)
    assert summary["test"]["auc"] > 0.9
    settings = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["optimizer"]
    assert (settings["penalty"], settings["l21"], settings["target_rate"]) == ("hard", 0.0, 0.05)
    scheduled = [point["scheduled_rate"] for point in points]
    assert scheduled == sorted(scheduled, reverse=True)
    assert scheduled[-1] == 0.05
    assert points[-1]["l21"] > 0
    page = (tmp_path / "run" / "report.html").read_text()
    assert all(word in page for word in ("λ21", "scheduled", "DCN with Group Adagrad, target rate 0.05"))

    assert "l21 is" not in ok("train", "log.csv", "--continue", "run", "--out", "next").stderr
    second = [point for point in points_of(tmp_path / "next") if point["samples"] > summary["samples"]]
    assert all(0.045 <= point["feature_rate"] <= 0.055 for point in second[-5:])
    assert max(point["scheduled_rate"] for point in second) < 0.2  # no ramp from all features


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


# A table of limited memory

ROWS = 4_000
OPTIONS = (*FAST, "--target-rate", 0.05, "--no-baseline")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 6,500 features, most of which appear once; few predict anything, and a tenth of the labels is wrong."""
    path = tmp_path_factory.mktemp("logs") / "log.csv"
    lines = ["label,ts,color,noise,user,item"]
    labels = [int((i % 7 in (1, 3)) ^ (i * 40503 % 101 < 10)) for i in range(ROWS)]
    noise = [i * 7919 % 1_000_003 if i % 50 else 0 for i in range(ROWS)]  # a column that never repeats is left out
    lines += [f"{label},{i},c{i % 7},n{noise[i]},u{i // 20},t{i * 31 % 2503}" for i, label in enumerate(labels)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.usefixtures("pictures")
@pytest.mark.parametrize(
    ("limit", "options"),
    [
        (3_950_000, ()),
        (9_000_000, ("--evict-unseen", "10min", "--admit-after", 2, "--admit-sketch", "4KiB")),
    ],
)
def test_a_table_keeps_to_its_limits_and_its_run_is_resumed_to_the_same_bits(
    log: Path, tmp_path: Path, ok: Run, limit: int, options: tuple[object, ...]
) -> None:
    limits = ("--fallback", "--max-table-bytes", limit, *options)
    done = ok("train", log, *OPTIONS, *limits, "--checkpoint-steps", 12, "--keep-checkpoints", 9, "--out", "whole")
    whole = summary_of(tmp_path / "whole")
    assert max(point["table_bytes"] for point in points_of(tmp_path / "whole")) <= limit
    assert whole["evicted_rows"] > 0
    assert whole["features_seen"] == pytest.approx(ROWS * 0.9 * (1 + 1 / 20) + 2503, rel=0.05)
    assert whole["test"]["auc"] > 0.8
    assert f"{whole['evicted_rows']:,} rows" in done.stdout
    assert "rows evicted" in (tmp_path / "whole" / "report.html").read_text()
    fields = whole["fields"]
    assert fields["color"] == {"seen": 7, "rows": 7, "live": 7}
    assert (fields["noise"]["rows"] < 0.1 * fields["noise"]["seen"]) == ("--admit-after" in options)

    cut = shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for late in sorted((cut / "checkpoints").iterdir())[2:]:
        shutil.rmtree(late)
    (cut / "summary.json").unlink()
    assert "resumed at row" in ok("train", "--resume", "cut").stderr
    assert state_of(tmp_path / "whole") == state_of(cut)
    resumed = summary_of(cut)
    for name in ("features_seen", "live_rows", "evicted_rows", "refused_rows", "table_bytes", "test"):
        assert resumed[name] == whole[name], name


def test_features_go_when_the_logs_own_time_has_come(log: Path, tmp_path: Path, ok: Run) -> None:
    """A row of this log a second: 640 seconds are 10 batches."""
    ok("prepare", log, "prepared")
    evicted = []
    for number, (source, age) in enumerate(((log, 10), (log, "640s"), ("prepared", "640s"))):
        ok("train", source, *OPTIONS, "--evict-unseen", age, "--shuffle-buffer", 0, "--out", f"run{number}")
        evicted.append(summary_of(tmp_path / f"run{number}")["evicted_rows"])
    steps, raw, prepared = evicted
    assert raw == prepared > 1_000
    assert raw == pytest.approx(steps, rel=0.1)
