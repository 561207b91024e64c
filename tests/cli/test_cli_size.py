"""A target size and a table of limited memory through the real command line: train, resume, continue, export."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from cli_cases import many_features, points_of, summary_of
from command import Run
from run_folders import state_of

FAST = ("--lr", 0.05, "--batch-size", 64, "--selection", "never")


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


def test_train_lands_at_the_target_bytes(tmp_path: Path, ok: Run) -> None:
    log = many_features(tmp_path / "log.csv", 1_500)
    ok("train", log, *FAST, "--target-bytes", "4 kB", "--penalty", "mcp", "--out", "run")
    assert summary_of(tmp_path / "run")["live_rows"] == 4000 // (8 * 4 + 8)


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
        (3_730_000, ("--state-dtype", "bfloat16")),
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


def test_deltas_name_what_was_evicted(log: Path, tmp_path: Path, ok: Run) -> None:
    """Live features that lose their row are gone from the server too."""
    ok("train", log, *FAST, "--l21", 0, "--no-baseline", "--out", "first")
    ok("export", "first", "served", "--no-onnx")
    ok("train", log, "--continue", "first", "--out", "second", "--max-table-bytes", "3.8MB")
    ok("export", "second", "change", "--since", "served")
    assert json.loads((tmp_path / "change" / "manifest.json").read_text())["changes"]["tombstones"] > 0
    ok("apply", "served", "change", "applied", "--no-onnx")


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
