"""A table of limited memory through the real command line: train, resume, export, a delta."""

import json
import shutil
from pathlib import Path

import pytest

from command import Run
from run_folders import state_of

ROWS = 20_000


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of 25,000 features, most of which come once, and of which few say anything; a tenth of the labels lies."""
    path = tmp_path_factory.mktemp("logs") / "log.csv"
    lines = ["label,ts,color,noise,user,item"]
    labels = [int((i % 7 in (1, 3)) ^ (i * 40503 % 101 < 10)) for i in range(ROWS)]
    noise = [i * 7919 % 1_000_003 if i % 50 else 0 for i in range(ROWS)]  # a column that never repeats is left out
    lines += [f"{label},{i},c{i % 7},n{noise[i]},u{i // 20},t{i * 31 % 4001}" for i, label in enumerate(labels)]
    path.write_text("\n".join(lines) + "\n")
    return path


def summary_of(folder: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((folder / "summary.json").read_text())
    return content


OPTIONS = ("--lr", 0.05, "--batch-size", 128, "--target-rate", 0.05, "--selection", "never")
LIMITS = ("--max-table-bytes", "4MB", "--admit-after", 2, "--admit-sketch", "64KiB", "--fallback")


def test_a_table_keeps_to_its_limit(log: Path, tmp_path: Path, run: Run) -> None:
    done = run("train", log, *OPTIONS, "--max-table-bytes", "4.5MB")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "log" / "latest"
    points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert max(point["table_bytes"] for point in points) <= 4_500_000
    summary = summary_of(folder)
    assert summary["evicted_rows"] > 0  # type: ignore[operator]
    assert summary["features_seen"] == pytest.approx(ROWS * 0.9 * (1 + 1 / 20) + 4008, rel=0.05)
    assert summary["test"]["auc"] > 0.8  # type: ignore[index]
    assert f"{summary['evicted_rows']:,} rows" in done.stdout
    assert "rows evicted" in (folder / "report.html").read_text()


@pytest.mark.parametrize(
    "age",
    [
        ("--evict-unseen", 20),
        ("--max-table-bytes", "9MB", "--evict-unseen", "10min"),
        ("--max-table-bytes", "3.9MB", "--state-dtype", "bfloat16"),
    ],
)
def test_a_run_under_all_limits_is_resumed_to_the_same_bits(
    log: Path, tmp_path: Path, run: Run, age: tuple[object, ...]
) -> None:
    options = (*OPTIONS, *LIMITS, *age, "--checkpoint-steps", 30, "--keep-checkpoints", 9)
    for name in ("whole", "cut"):
        done = run("train", log, *options, "--out", name)
        assert done.returncode == 0, done.stderr
    cut = tmp_path / "cut"
    for late in sorted((cut / "checkpoints").iterdir())[2:]:
        shutil.rmtree(late)
    (cut / "summary.json").unlink()
    resumed = run("train", "--resume", "cut")
    assert resumed.returncode == 0, resumed.stderr
    assert state_of(tmp_path / "whole") == state_of(cut)
    first, second = (summary_of(tmp_path / name) for name in ("whole", "cut"))
    for name in ("features_seen", "live_rows", "evicted_rows", "refused_rows", "table_bytes", "test"):
        assert first[name] == second[name], name
    assert first["evicted_rows"] > 0  # type: ignore[operator]


def test_deltas_name_what_was_evicted(log: Path, tmp_path: Path, run: Run) -> None:
    """Live features that lose their row are gone from the server too."""
    for arguments in (
        ("train", log, "--lr", 0.05, "--l21", 0, "--batch-size", 128, "--selection", "never", "--out", "first"),
        ("export", "first", "served", "--no-onnx"),
        ("train", log, "--continue", "first", "--out", "second", "--max-table-bytes", "4MB"),
        ("export", "second", "change", "--since", "served"),
    ):
        done = run(*arguments)
        assert done.returncode == 0, (arguments, done.stderr)
    manifest = json.loads((tmp_path / "change" / "manifest.json").read_text())
    assert manifest["changes"]["tombstones"] > 0
    assert run("apply", "served", "change", "applied", "--no-onnx").returncode == 0


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("--max-table-bytes", "lots", "200MB"),
        ("--max-table-bytes", "1000", "model.max_table_bytes must be at least"),
        ("--admit-sketch", "10", "sketch_bytes must be >= 4,096"),
        ("--evict-unseen", "-1", "wants a number of steps, such as 5000, or a time, such as 90s"),
        ("--evict-unseen", "3 fortnights", "got '3 fortnights'"),
    ],
)
def test_a_wrong_limit_is_explained(log: Path, run: Run, option: str, value: str, message: str) -> None:
    done = run("train", log, "--admit-after", 2, option, value)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_features_go_when_the_logs_own_time_has_come(log: Path, tmp_path: Path, run: Run) -> None:
    """A row of this log a second: 2,560 seconds are 20 batches."""
    assert run("prepare", log, "prepared").returncode == 0
    evicted = []
    for number, (source, age) in enumerate(((log, 20), (log, "2560s"), (tmp_path / "prepared", "2560s"))):
        done = run("train", source, *OPTIONS, "--evict-unseen", age, "--shuffle-buffer", 0, "--out", f"run{number}")
        assert done.returncode == 0, done.stderr
        evicted.append(summary_of(tmp_path / f"run{number}")["evicted_rows"])
    steps, raw, prepared = evicted
    assert raw == prepared
    assert raw > 3_000  # type: ignore[operator]
    assert raw == pytest.approx(steps, rel=0.1)


def test_a_log_without_a_clock_has_no_ages_in_seconds(log: Path, tmp_path: Path, run: Run) -> None:
    timeless = tmp_path / "timeless.csv"
    timeless.write_text("\n".join(line.replace(",ts,", ",when,") for line in log.read_text().splitlines()) + "\n")
    first = run("train", timeless, "--exclude", "when", "--selection", "never", "--out", "first")
    assert first.returncode == 0
    done = run("train", timeless, "--continue", "first", "--evict-unseen", "7d", "--out", "next")
    assert done.returncode == 2
    assert "has no column of times" in done.stderr
    assert not (tmp_path / "next").exists()
    done = run("train", "--rows", 1_000, "--evict-unseen", "7d")
    assert done.returncode == 2
    assert "model.evict_unseen: 7d goes by the log's own clock, but synthetic has no column of times" in done.stderr
