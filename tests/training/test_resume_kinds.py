"""A run on any kind of log that is cut off is resumed, and ends with the same bits as an undisturbed run."""

import gzip
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from cli_cases import click_log
from command import Run
from following import CutOffError, cut_off_at
from kill_runs import differences, outcome_of
from run_folders import state_of
from sparsegroup.training import Session

TRAIN = ("--model", "lr", "--batch-size", 80, "--checkpoint-steps", 1, "--checkpoint-minutes", 0, "--target-rate", 0.5)


def frame() -> pl.DataFrame:
    rows = range(240)
    return pl.DataFrame(
        {
            "label": [int(i % 7 in (1, 3)) for i in rows],
            "color": [f"c{i % 7}" for i in rows],
            "size": [i * 37 % 97 / 2 for i in rows],
        }
    )


def csv(folder: Path) -> list[str]:
    click_log(folder / "log.csv", 240)
    return ["log.csv"]


def columns_of_a_compressed_log(folder: Path) -> list[str]:
    (folder / "log.csv.gz").write_bytes(gzip.compress(click_log(folder / "log.csv", 240).read_bytes()))
    options = ["--columns", "categorical", "--label", "label", "--exclude", "id", "--test-fraction", "0.2"]
    return ["log.csv.gz", *options]


def several_files_by_a_schema(folder: Path) -> list[str]:
    for day in range(3):
        (folder / "days" / f"day={day}").mkdir(parents=True)
        frame()[day * 80 : day * 80 + 80].write_csv(folder / "days" / f"day={day}" / "part.csv")
    (folder / "schema.yaml").write_text("label: label\ncategorical: [color]\nnumeric: [size]\n")
    return ["days/*/part.csv", "--schema", "schema.yaml"]


def own_test_log(folder: Path) -> list[str]:
    frame()[:40].write_csv(folder / "test.csv")
    return [*csv(folder), "--exclude", "id", "--exclude", "ts", "--test", "test.csv"]


def criteo(folder: Path) -> list[str]:
    numbers, words = [f"{n}" for n in range(13)], [f"{n:08x}" for n in range(26)]
    lines = ["\t".join([str(i % 7 // 5), *numbers[:12], str(i % 5), *words[:25], f"{i % 9:08x}"]) for i in range(240)]
    (folder / "train.txt").write_text("\n".join(lines) + "\n")
    return ["train.txt", "--criteo-numbers", "buckets"]


def synthetic(folder: Path) -> list[str]:
    return ["--rows", "400"]


def prepared(folder: Path) -> list[str]:
    return ["prepare", *own_test_log(folder)]


KINDS = (columns_of_a_compressed_log, several_files_by_a_schema, own_test_log, criteo, synthetic, prepared)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_run_on_any_kind_of_log_is_resumed_to_the_same_bits(
    tmp_path: Path, ok: Run, run: Run, monkeypatch: pytest.MonkeyPatch, kind: Callable[[Path], list[str]]
) -> None:
    command = kind(tmp_path)
    if command[0] == "prepare":
        raw, *options = command[1:]
        ok("prepare", raw, "folder", *options)
        command = ["folder"]
    ok("train", *command, "--out", "whole", *TRAIN)
    with monkeypatch.context() as patch:
        cut_off_at(patch, Session, "checkpoint", 2, after=True)
        with pytest.raises(CutOffError):
            run("train", *command, "--out", "run", *TRAIN)
    ok("train", "--resume", "run")
    assert not differences(outcome_of(tmp_path / "whole"), outcome_of(tmp_path / "run"))


def test_the_settings_of_a_run_on_a_prepared_log_train_it_again(tmp_path: Path, ok: Run, run: Run) -> None:
    csv(tmp_path)
    ok("prepare", "log.csv", "folder")
    ok("train", "folder", "--out", "run", *TRAIN)
    assert "rows:" not in (tmp_path / "run" / "config.yaml").read_text()  # the size of a synthetic log
    ok("train", "run/config.yaml", "--out", "again")
    assert state_of(tmp_path / "again") == state_of(tmp_path / "run")
    other = run("train", "run/config.yaml", "--out", "other", "--columns", "categorical")
    assert "--columns is for raw logs; folder is a folder, prepared already" in other.stderr
