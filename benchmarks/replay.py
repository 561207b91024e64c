"""A log replayed: `follow` learns and publishes every second, `serve` takes each release, clients ask all the while.

Three processes as a user would start them, and a fourth that sends a request of a row 100 times a second. First the
rows come as fast as they are learnt, then at 50 times the speed of the log's own clock. The logs are a made-up one that
drifts and, with `--data`, globo_clicks. Stale is how old the newest row is, since it was read, that the serving model
has learnt, looked up five times a second; at 50 times it includes the wait until a batch of 128 is full.

    python benchmarks/replay.py --data FOLDER --json replay.json
"""

import json
import lzma
import subprocess
import sys
import tempfile
import time
import urllib.request
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

import common
from server import PAUSE, asked, serving
from sparsegroup.data.synthetic import write_clicks
from sparsegroup.publishing import open_destination

FIRST, RATE, BATCH = 20_000, 50, 128
"""Rows before anything starts; how many times faster than its clock the log comes in the end; rows of a batch."""


@contextmanager
def following(place: Path, label: str) -> Iterator[subprocess.Popen[bytes]]:
    """`sparsegroup follow` of the file `log.csv`, from when it has published a release."""
    command = [sys.executable, "-m", "sparsegroup", "follow", "log.csv", "--label", label, "--out", "run"]
    command += ["--publish", "models", "--every", "1s", "--first-wait", "1s", "--batch-size", str(BATCH)]
    with (
        (place / "follow.txt").open("wb") as log,
        subprocess.Popen(command, cwd=place, stdout=log, stderr=log) as process,
    ):
        while not (place / "models" / "releases.json").exists():
            assert process.poll() is None, (place / "follow.txt").read_text()
            time.sleep(0.1)
        try:
            yield process
        finally:
            process.terminate()
            process.wait()


def status(place: Path) -> dict[str, Any]:
    """Samples learnt so far; number and bytes of all releases, also of those that are no longer kept."""
    found: dict[str, Any] = json.loads((place / "run" / "status.json").read_text())
    return found


def replayed(
    frame: pl.DataFrame, times: np.ndarray, label: str, fast: int, seconds: int, place: Path
) -> dict[str, float]:
    """Rows as texts, the time of each in seconds; figures of both parts."""
    log = place / "log.csv"
    frame[:FIRST].write_csv(log)
    bodies = [json.dumps({"row": row}).encode() for row in frame[:500].drop(label).iter_rows(named=True)]
    figures: dict[str, float] = {}
    with (
        following(place, label),
        serving(place / "models") as (port, _),
        asked(port, bodies, PAUSE) as (ended, found),
    ):
        time.sleep(2)  # the first requests are slow
        periods = {}
        for part, first in (("fast", FIRST), ("slow", FIRST + fast)):
            begin, before, stale = time.time(), status(place), list[tuple[float, float]]()
            given = first
            with log.open("a") as file:
                for block in slices(frame[first:], times[first:], fast if part == "fast" else None, seconds):
                    file.write(block.write_csv(include_header=False))
                    file.flush()
                    given += len(block)
                    stale.append((age(port), time.time() - begin))
            while status(place)["samples"] < given - 2 * BATCH:  # a batch may wait to be full
                time.sleep(0.2)
                stale.append((age(port), time.time() - begin))
            taken, after = time.time() - begin, status(place)
            # From the first release with rows of this part on.
            ages = [one for one, since in stale if one < since] or [one for one, _ in stale]
            periods[part] = (begin, time.time())
            releases, size = (after["published"][name] - before["published"][name] for name in ("releases", "bytes"))
            figures |= {
                f"{part}_rows_per_s": (after["samples"] - before["samples"]) / taken,
                f"{part}_seconds": taken,
                f"{part}_releases": releases,
                f"{part}_bytes_a_minute": 60 * size / taken,
                f"{part}_stale_p50_s": float(np.quantile(ages, 0.5)),
                f"{part}_stale_p99_s": float(np.quantile(ages, 0.99)),
            }
        whole = [one.bytes for one in open_destination(str(place / "models")).releases() if one.kind == "export"]
        figures["export_bytes"] = whole[-1]
        ended.set()
    figures |= {"requests": len(found), "failed": sum(code != 200 for *_, code, _ in found)}
    for part, (begin, end) in periods.items():
        latency = [1e3 * taken for due, taken, *_ in found if begin <= due < end]
        figures |= {f"{part}_p{share}_ms": float(np.quantile(latency, share / 100)) for share in (50, 99)}
    return figures


def age(port: int) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/model") as answer:
        return float(json.load(answer)["age_seconds"])


def slices(frame: pl.DataFrame, times: np.ndarray, fast: int | None, seconds: int) -> Iterator[pl.DataFrame]:
    """All of the first `fast` rows; or, five times a second, the rows whose time has come, at 50 times their clock."""
    if fast is not None:
        yield frame[:fast]
        return
    begin, given = time.time(), 0
    while time.time() < begin + seconds and given < len(frame):
        time.sleep(0.2)
        until = int(np.searchsorted(times, times[0] + RATE * (time.time() - begin)))
        yield frame[given:until]
        given = max(given, until)


def measure(given: Namespace) -> Iterator[common.Figures]:
    fast, seconds = (10_000, 5) if given.quick else (300_000, 240)
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "made_up.csv"
        write_clicks(made, 50_000 if given.quick else 2_000_000)
        frame = pl.read_csv(made, infer_schema=False, n_rows=FIRST + fast + 40_000)
        times = frame["event_time"].str.to_datetime().dt.epoch("ms")
        logs = {"made_up": (frame, times, "clicked")}
        if given.data is not None:
            globo = lzma.decompress((given.data / "globo_clicks.csv.xz").read_bytes())
            frame = pl.read_csv(globo, infer_schema=False).drop("split")
            logs["globo_clicks"] = (frame, frame["ts"].cast(pl.Int64), "label")
        for name, (frame, milliseconds, label) in logs.items():
            place = Path(scratch) / name
            place.mkdir()
            yield {name: replayed(frame, milliseconds.to_numpy() / 1_000, label, fast, seconds, place)}


if __name__ == "__main__":
    common.run(measure, __doc__, "10,000 rows, then 5 seconds", between="_", options=common.DATA)
