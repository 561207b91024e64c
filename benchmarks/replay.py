"""A log replayed: `follow` learns and publishes every second, `serve` takes each release, clients ask all the while.

Three processes as a user would start them, and a fourth that sends a request of a row 100 times a second. First the
rows come as fast as they are learnt, then at 50 times the speed of the log's own clock. The logs are a made-up one that
drifts and, with `--data`, globo_clicks. Stale is how old the newest row is, since it was read, that the serving model
has learnt, looked up five times a second; at 50 times it includes the wait until a batch of 128 is full.

    python benchmarks/replay.py --data FOLDER --json replay.json
"""

import json
import lzma
import multiprocessing
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import polars as pl

import timing
from server import PAUSE, client, serving
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


def status(place: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((place / "run" / "status.json").read_text())
    return found


def published_so_far(place: Path) -> dict[str, float]:
    """Number and bytes of all releases, also of those that are no longer kept."""
    found: dict[str, dict[str, float]] = json.loads((place / "run" / "status.json").read_text())
    return {name: found["published"][name] for name in ("releases", "bytes")}


def replayed(
    frame: pl.DataFrame, times: np.ndarray, label: str, fast: int, seconds: int, place: Path
) -> dict[str, float]:
    """Rows as texts, the time of each in seconds; figures of both parts."""
    log = place / "log.csv"
    frame[:FIRST].write_csv(log)
    bodies = [json.dumps({"row": row}).encode() for row in frame[:500].drop(label).iter_rows(named=True)]
    figures: dict[str, float] = {}
    context = multiprocessing.get_context("spawn")
    with following(place, label), serving(place / "models") as (port, _):
        ended, answers = context.Event(), context.Queue()
        process = context.Process(target=client, args=(port, bodies, PAUSE, ended, answers))
        process.start()
        time.sleep(5)
        periods = {}
        for part in ("fast", "slow"):
            begin, before, stale = time.time(), status(place)["samples"], list[tuple[float, float]]()
            status_before = published_so_far(place)
            first = FIRST if part == "fast" else FIRST + fast
            rows = iter(slices(frame[first:], times[first:], fast if part == "fast" else None, seconds))
            given = first
            with log.open("a") as file:
                while (block := next(rows, None)) is not None:
                    file.write(block.write_csv(include_header=False))
                    file.flush()
                    given += len(block)
                    stale.append((age(port), time.time() - begin))
            while status(place)["samples"] < given - 2 * BATCH:  # a batch may wait to be full
                time.sleep(0.2)
                stale.append((age(port), time.time() - begin))
            taken = time.time() - begin
            # From the first release with rows of this part on.
            ages = [one for one, since in stale if one < since] or [one for one, _ in stale]
            periods[part] = (begin, time.time())
            published = {name: after - status_before[name] for name, after in published_so_far(place).items()}
            figures |= {
                f"{part}_rows_per_s": (status(place)["samples"] - before) / taken,
                f"{part}_seconds": taken,
                f"{part}_releases": published["releases"],
                f"{part}_bytes_a_minute": 60 * published["bytes"] / taken,
                f"{part}_stale_p50_s": float(np.quantile(ages, 0.5)),
                f"{part}_stale_p99_s": float(np.quantile(ages, 0.99)),
            }
        whole = [one.bytes for one in open_destination(str(place / "models")).releases() if one.kind == "export"]
        figures["export_bytes"] = whole[-1]
        ended.set()
        found = answers.get()
        process.join()
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


def main() -> None:
    parser = timing.parser(__doc__, "10,000 rows, then 5 seconds")
    parser.add_argument("--data", type=Path, help="folder of the public logs")
    given = parser.parse_args()
    fast, seconds = (10_000, 5) if given.quick else (300_000, 240)
    figures: dict[str, float | str] = {"machine": timing.machine()}
    with tempfile.TemporaryDirectory() as scratch:
        made = Path(scratch) / "made_up.csv"
        write_clicks(made, 50_000 if given.quick else 2_000_000)
        logs = {"made_up": (pl.read_csv(made, infer_schema=False, n_rows=FIRST + fast + 40_000), "clicked")}
        if given.data is not None and not given.quick:
            globo = lzma.decompress((given.data / "globo_clicks.csv.xz").read_bytes())
            logs["globo_clicks"] = (pl.read_csv(globo, infer_schema=False).drop("split"), "label")
        for name, (frame, label) in logs.items():
            times = seconds_of(frame)
            place = Path(scratch) / name
            place.mkdir()
            found = replayed(frame, times, label, fast, seconds, place)
            figures |= {f"{name}_{key}": value for key, value in found.items()}
            timing.show(name, ("", ""), [[key.replace("_", " "), f"{value:,.3g}"] for key, value in found.items()])
    timing.write_json(given.json, figures)


def seconds_of(frame: pl.DataFrame) -> np.ndarray:
    """Times of the rows, which rise."""
    name = "ts" if "ts" in frame.columns else "event_time"
    if frame[name][0].isdigit():
        return frame[name].cast(pl.Int64).to_numpy() / 1_000
    return frame[name].str.to_datetime().dt.epoch("ms").to_numpy() / 1_000


if __name__ == "__main__":
    main()
