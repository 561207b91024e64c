"""Asking for a rate of their own for some fields, through the real command line."""

import json
import re
from pathlib import Path

import pytest
import yaml

from cli_cases import many_features, summary_of
from command import Run
from run_folders import state_of

OPTIONS = ["--lr", 0.05, "--target-rate", 0.03, "--batch-size", 64]
FIELDS = ["--field-rate", "color=.5", "--field-rate", "size=0.2"]


def check_fields(folder: Path, rates: dict[str, float], others: float) -> None:
    fields = summary_of(folder)["fields"]
    assert isinstance(fields, dict)
    for name, rate in rates.items():
        assert fields[name]["live"] == pytest.approx(rate * fields[name]["seen"], abs=1)
    rest = [count for name, count in fields.items() if name not in rates]
    assert sum(c["live"] for c in rest) == pytest.approx(others * sum(c["seen"] for c in rest), abs=1)


def test_each_field_lands_where_it_was_asked_to(tmp_path: Path, run: Run) -> None:
    log = many_features(tmp_path / "log.csv")
    done = run("train", log, *OPTIONS, *FIELDS)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "log" / "latest"
    check_fields(folder, {"color": 0.5, "size": 0.2}, 0.03)
    summary = summary_of(folder)
    points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    scheduled = [point["scheduled_rate"] for point in points]
    assert scheduled == sorted(scheduled, reverse=True)
    assert scheduled[-1] == pytest.approx(summary["feature_rate"], abs=3 / summary["features_seen"])  # type: ignore[operator]
    settings = yaml.safe_load((folder / "config.yaml").read_text())["optimizer"]
    assert settings["field_rates"] == {"color": 0.5, "size": 0.2}
    assert "rate 0.03 asked for, color 0.5, size 0.2 (hard)" in (folder / "report.html").read_text()


def test_a_settings_file_may_name_fields_and_an_export_sweeps(tmp_path: Path, run: Run) -> None:
    many_features(tmp_path / "log.csv")
    (tmp_path / "settings.yaml").write_text(
        "data: {log: log.csv}\noptimizer: {lr: 0.05, target_rate: 0.03, field_rates: {size: 0.4}}\n"
        "training: {batch_size: 64}\n"
    )
    done = run("train", "settings.yaml", "--set", "optimizer.field_rates.color=1")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "runs" / "log" / "latest"
    check_fields(folder, {"color": 1.0, "size": 0.4}, 0.03)
    done = run("export", "runs/log", "swept", "--sweep")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "swept" / "manifest.json").read_text())
    assert manifest["tables"]["embedding"]["live_rows"] == summary_of(folder)["live_rows"]


def test_a_run_that_was_cut_off_ends_with_the_same_bits(tmp_path: Path, run: Run) -> None:
    log = many_features(tmp_path / "log.csv")
    for name in ("whole", "cut"):
        done = run("train", log, *OPTIONS, *FIELDS, "--checkpoint-steps", 11, "--keep-checkpoints", 9, "--out", name)
        assert done.returncode == 0, done.stderr
    cut = tmp_path / "cut"
    last = sorted((cut / "checkpoints").iterdir())[-1]
    for file in sorted(last.iterdir()):
        file.unlink()
    last.rmdir()
    (cut / "summary.json").unlink()
    resumed = run("train", "--resume", "cut")
    assert resumed.returncode == 0, resumed.stderr
    assert "resumed at row" in resumed.stderr
    assert state_of(cut) == state_of(tmp_path / "whole")


def test_the_next_day_keeps_the_rates(tmp_path: Path, run: Run) -> None:
    log = many_features(tmp_path / "log.csv")
    assert run("train", log, *OPTIONS, *FIELDS).returncode == 0
    done = run("train", log, "--continue", "runs/log", "--out", "next")
    assert done.returncode == 0, done.stderr
    assert "l21 is" not in done.stderr
    check_fields(tmp_path / "next", {"color": 0.5, "size": 0.2}, 0.03)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--field-rate", "colour=.5"],
            "has no field 'colour'; did you mean 'color'? its fields are color, noise, size",
        ),
        (
            ["--field-rate", "color=1.5"],
            "optimizer.field_rates.color: input should be less than or equal to 1, got 1.5",
        ),
        (["--field-rate", "color=0"], "optimizer.field_rates.color: input should be greater than 0, got 0"),
        (["--field-rate", "color=.5", "--max-table-bytes", "9MB"], "leave one of them out"),
        (["--field-rate", "color"], "--field-rate wants FIELD=RATE, such as C3=.5: got 'color'"),
        (["--field-rate", "color=a"], "--field-rate wants FIELD=RATE, such as C3=.5: got 'color=a'"),
        (["--field-rate", "color=.1", "--field-rate", "color=.2"], "--field-rate names color twice: 0.1 and 0.2"),
    ],
)
def test_what_is_no_field_or_rate(tmp_path: Path, run: Run, options: list[str], message: str) -> None:
    log = many_features(tmp_path / "log.csv", 200)
    done = run("train", log, *OPTIONS, *options)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()  # nothing has begun


@pytest.mark.parametrize("options", [[], ["--target-bytes", "4kB"]])
def test_the_rate_of_all_others_is_needed(tmp_path: Path, run: Run, options: list[str]) -> None:
    done = run("train", many_features(tmp_path / "log.csv", 200), *options, "--field-rate", "color=.5")
    assert done.returncode == 2
    assert re.search("field_rates need target_rate beside them", done.stderr)


def test_path_goes_on_with_the_fields_of_a_file(tmp_path: Path, run: Run) -> None:
    many_features(tmp_path / "log.csv")
    (tmp_path / "settings.yaml").write_text(
        "data: {log: log.csv}\noptimizer: {lr: 0.05, target_rate: 0.1, field_rates: {color: 1}}\n"
        "training: {batch_size: 64}\n"
    )
    done = run("path", "settings.yaml", "--rates", ".3,.05")
    assert done.returncode == 0, done.stderr
    content = json.loads((tmp_path / "paths" / "log" / "path.json").read_text())
    everything, *smaller = content["points"]
    assert everything["feature_rate"] == 1
    assert all(point["feature_rate"] > point["asked"] for point in smaller)
