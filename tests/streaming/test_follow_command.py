"""`sparsegroup follow` and `watch`: from a folder of files to releases, through kills, by the same command."""

import json
import shutil
from contextlib import closing
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from support.streams import rows_of_clicks

from command import Run
from kill_runs import Driver
from sparsegroup.publishing import open_destination
from sparsegroup.training import load_model

FOLLOW = (
    "follow", "logs", "--out", "run", "--label", "click", "--model", "lr", "--batch-size", "64", "--set",
    "training.compile=never", "--first-wait", "0s", "--settle", "0s",
)  # fmt: skip
OTHER = ("follow", "logs", "--out", "other")
PUBLISH = ("--publish", "models", "--every", "1s", "--no-onnx")


def write_hour(folder: Path, hour: int, rows: int = 1_000) -> None:
    (folder / "logs").mkdir(exist_ok=True)
    rows_of_clicks(rows, hour, 3_600 * hour).write_csv(folder / "logs" / f"{hour:02d}.csv")


def bits(run: Path) -> list[torch.Tensor]:
    """Keys, vectors and the network of the last checkpoint."""
    model = load_model(run)
    rows = list(model.embedding.items())
    keys, vectors = torch.cat([one for one, _ in rows]), torch.cat([one for _, one in rows])
    order = keys.argsort()
    return [keys[order], vectors[order], *model.network.state_dict().values()]


def test_files_that_appear_are_learnt_and_published(tmp_path: Path, run: Run) -> None:
    write_hour(tmp_path, 0)
    done = run(*FOLLOW, *PUBLISH, "--until-idle", "1s")
    assert done.returncode == 0, done.stderr
    assert "logs: 4 fields, 1 numbers; writing to run" in done.stderr
    assert "release 1: export of" in done.stderr
    first = open_destination("models").releases()
    assert first[-1].samples == 960
    write_hour(tmp_path, 1)
    done = run(*FOLLOW, *PUBLISH, "--until-idle", "1s")
    assert done.returncode == 0, done.stderr
    assert "continuing after 960 rows" in done.stderr
    releases = open_destination("models").releases()
    assert releases[-1].number > first[-1].number
    assert releases[-1].samples == 1_984
    watched = run("watch", "run", "--json", "--html", "page.html")
    assert watched.returncode == 3
    found = json.loads(watched.stdout)
    assert found["samples"] == 1_984
    assert found["release"] == releases[-1].number
    assert "the same command continues it" in found["warnings"][0]
    assert "Rows learnt" in (tmp_path / "page.html").read_text()


def test_wrong_arguments_are_named(tmp_path: Path, run: Run) -> None:
    write_hour(tmp_path, 0)
    assert run(*FOLLOW, "--until-idle", "0s").returncode == 0
    for arguments, words in (
        ((*FOLLOW, "--lr", "0.5"), "optimizer.lr is 0.5, but the run in run has "),
        ((*FOLLOW, "--every", "soon"), "--every wants a time, such as 90s, 15min, 12h or 7d: got 'soon'"),
        ((*FOLLOW, "--on", "id"), "--on is for impressions that are joined with --clicks"),
        ((*OTHER, "--set", "training.epochs=2"), "a stream has no end, so that it must be 1"),
        ((*OTHER, "--label", "clock", "--first-wait", "0s"), "no label column 'clock'; name it with --label"),
        (("train", "--resume", "run"), "run follows a stream; `sparsegroup follow logs --out run` continues it"),
        (("watch", "logs"), "no run follows a stream there"),
        (("follow", "logs"), "Missing option '--out'"),
        (("follow", "kafka://broker", "--out", "other"), "name a broker and a topic"),
    ):
        done = run(*arguments)
        assert done.returncode == 2, (arguments, done.stderr)
        assert words in done.stderr, (arguments, done.stderr)


def test_clicks_that_come_late_correct_their_negatives(tmp_path: Path, run: Run) -> None:
    """Of the rows a third are clicked, a minute later: of all rows that are learnt, a quarter is positive."""
    rows = pl.DataFrame({"id": range(20_000), "ts": range(1_700_000_000, 1_700_020_000), "site": ["a", "b"] * 10_000})
    clicks = rows.filter(pl.col("id") % 3 == 0).select("id", pl.col("ts") + 60)
    for name, frame in (("rows", rows), ("clicks", clicks)):  # files of ten minutes, so that both come in turns
        (tmp_path / name).mkdir()
        for (part,), some in frame.group_by(pl.col("ts") // 600, maintain_order=True):
            some.write_csv(tmp_path / name / f"{part}.csv")
    options = ("--clicks", "clicks", "--on", "id", "--time", "ts", "--window", "0s", "--late", "positive")
    options += ("--objective", "fake_negatives", "--exclude", "id", "--until-idle", "1s", "--columns", "categorical")
    done = run("follow", "rows", *FOLLOW[2:4], *FOLLOW[6:], *options)
    assert done.returncode == 0, done.stderr
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["clicks"]["late"] > 6_400
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    share = 1 / 4  # of the rows as they come
    assert last["calibration"] == pytest.approx((1 / 3) / share, rel=0.1)


@pytest.mark.parametrize("kills", [3, pytest.param(50, marks=pytest.mark.slow)])
def test_kills_make_no_difference(tmp_path: Path, kills: int) -> None:
    rng = np.random.default_rng(kills)
    place, whole = tmp_path / "killed", tmp_path / "whole"
    for folder in (place, whole):
        folder.mkdir()
        for hour in range(4):
            write_hour(folder, hour)
    command = (*FOLLOW, *PUBLISH, "--until-idle", "1s", "--checkpoint-steps", "3", "--threads", "1")
    with closing(Driver(tmp_path)) as driver:
        ended = driver.run(whole, *command)
        assert ended.code == 0, ended.output
        expected, killed = bits(whole / "run"), 0
        for _ in range(kills):
            ended = driver.run(place, *command, kill_after=float(rng.uniform(0.05, ended.seconds + 0.2)))
            killed += ended.code != 0
            if ended.code == 0:  # it was too quick: the next hour has come
                for folder in (place, whole):
                    write_hour(folder, len(list((folder / "logs").iterdir())))
                assert driver.run(whole, *command).code == 0
                expected = bits(whole / "run")
        ended = driver.run(place, *command)
        assert ended.code == 0, ended.output
    assert killed
    assert all(map(torch.equal, bits(place / "run"), expected))
    releases = open_destination(place / "models").releases()
    assert releases[-1].samples == open_destination(whole / "models").releases()[-1].samples
    assert releases[-1].id == open_destination(whole / "models").releases()[-1].id
    shutil.rmtree(place)
