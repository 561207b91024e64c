"""`sparsegroup serve` as a process: what a request costs, and what a swap of the model costs requests.

The model is a DCN, d = 16, over a made-up log of 14 columns, with `ROWS` live rows. Its releases are made in advance:
each changes `CHANGED` of the rows and all weights. They are made visible one after the other, by the index alone, as a
publisher on another machine does.

Requests of 1 row, over connections that stay open, begin every `PAUSE` seconds on each of two connections of another
process, whether the one before was slow or not: latency counts from when a request was due. Periods without and with a
release every second take turns. Stale is the time from when a release is visible to the first answer by it.
Then 100,000 requests back to back, still with a release every second. Then requests of 1, 32 and 512 rows one after
another, of values that the server has seen and of new users and ads, and of the server's work for them the CPU time of
each part, in this process.

    python benchmarks/server.py    # 2 GiB of memory; some minutes
"""

import csv
import http.client
import json
import multiprocessing
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

import common
from sparsegroup.artifact.folder import write_atomically
from sparsegroup.data import open_log
from sparsegroup.models import NumberEncoder
from sparsegroup.publishing import Publisher
from sparsegroup.server import ExportFolder, Metrics, ReleaseFollower
from sparsegroup.serving import TrainedModel, export_trained
from sparsegroup.training import Config

ROUNDS, SECONDS, PAUSE, CONNECTIONS = 6, 10, 0.02, 2
"""Pairs of periods, seconds of each, and how requests come: 100 a second."""
ROWS, QUICK_ROWS, CHANGED = 1_000_000, 20_000, 0.01
SIZES = (1, 32, 512)
INDEX = "releases.json"


def measure(given: Namespace) -> Iterator[common.Figures]:
    rounds, seconds, calls, many = (1, 3, 30, 1_000) if given.quick else (ROUNDS, SECONDS, 500, 100_000)
    size = QUICK_ROWS if given.quick else ROWS
    with tempfile.TemporaryDirectory() as scratch, common.undisturbed() as others:
        place = Path(scratch)
        log = place / "log.csv"
        common.sparsegroup("synthesize", log, "--rows", 20_000, "--quiet")
        with log.open() as file:
            rows = list(csv.DictReader(file))
        model = made_up(log, size)
        indices, delta_bytes = published(model, place / "there", rounds * seconds + 2 + many // 400)
        figures = {"rows": size, "delta_bytes": delta_bytes}
        bodies = [json.dumps({"row": row}).encode() for row in rows[:500]]
        with serving(place / "there") as (port, lines):
            figures |= under_swaps(place / "there", port, bodies, indices, rounds, seconds)
            figures["swap_p50_ms"] = swap_ms(lines)
            figures |= back_to_back(place / "there", port, bodies, indices[rounds * seconds + 1 :], many)
            figures |= by_size(port, rows, calls)
        figures |= parts(model, place / "export", rows, calls)
    yield figures | {"others_cores": others.cores}


def made_up(log: Path, rows: int) -> TrainedModel:
    """A model over the log, with the rows of its values and others, as many as `rows`."""
    opened = open_log(log)
    config = Config.of(model="dcn", dim=16, seed=0).resolved_for(opened).for_log(opened)
    torch.manual_seed(0)
    model, _ = config.build_for(opened.schema)
    draw, numbers = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    others = torch.randint(0, len(opened.fields) << 56, (rows,), generator=draw)
    keys = []
    for batch in opened.batches(0, len(opened), 1 << 16):
        keys += [batch.keys.flatten(), *(bag.keys for bag in batch.bags)]
    own = torch.cat(keys).unique()
    every = torch.cat([own, others[: max(0, rows - len(own))]]).unique()
    model.embedding.assign(every, torch.randn(len(every), 16, generator=numbers) * 0.05)
    for module in model.modules():
        if isinstance(module, NumberEncoder):
            module.fit(torch.randn(500, len(opened.numbers), generator=numbers).exp())
    return TrainedModel(Path("made-up"), "run", config, opened.schema, model.eval(), None)


def published(trained: TrainedModel, place: Path, releases: int) -> tuple[list[bytes], float]:
    """The index after each release, the first in place; and the bytes of a delta in the mean."""
    draw, indices, sizes = torch.Generator().manual_seed(3), list[bytes](), list[int]()
    keys = torch.cat([keys for keys, _ in trained.model.embedding.items()])
    with Publisher(place, compact_after=1e9, keep=1) as publisher:
        for number in range(releases):
            if number:
                some = keys[torch.rand(len(keys), generator=draw) < CHANGED]
                trained.model.embedding.assign(some, torch.randn(len(some), 16, generator=draw) * 0.05)
                with torch.no_grad():
                    for weights in trained.model.network.parameters():
                        weights += 1e-4 * torch.randn(weights.shape, generator=draw)
            release = publisher.publish(publisher.draft(trained), samples=number, read_until=time.time())
            assert release is not None
            sizes.append(release.bytes)
            indices.append((place / INDEX).read_bytes())
    reveal(place, indices[0])
    return indices, float(np.mean(sizes[1:]))


def reveal(place: Path, index: bytes) -> float:
    """Make the releases of an index visible; the moment."""
    write_atomically(place / INDEX, lambda path: path.write_bytes(index))
    return time.time()


@contextmanager
def serving(place: Path) -> Iterator[tuple[int, list[str]]]:
    """The port of a server, once it answers, and what it has printed."""
    command = [sys.executable, "-m", "sparsegroup", "serve", str(place), "--port", "0", "--poll", "100ms"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    lines: list[str] = []
    port = 0
    for line in process.stderr:
        lines.append(line)
        if "listening on" in line:
            port = int(line.rpartition(":")[2])
        if port and any(line.startswith("serving release") for line in lines):
            break
    reader = threading.Thread(target=lambda: lines.extend(process.stderr or ()))
    reader.start()
    try:
        yield port, lines
    finally:
        process.terminate()
        process.wait()
        reader.join()
        process.stderr.close()


def swap_ms(lines: list[str]) -> float:
    """Milliseconds in which the server had a release ready, in the median."""
    found = [float(line.rpartition("ready in ")[2].removesuffix(" s\n")) for line in lines if "ready in" in line]
    return float(np.median(found[1:])) * 1e3


Answer = tuple[float, float, int, int]
"""When a request was due, how many seconds later it was answered, its status (0: none), and the release."""


def ask(connection: http.client.HTTPConnection, body: bytes) -> tuple[int, int]:
    """Status and release."""
    connection.request("POST", "/predict", body)
    answer = connection.getresponse()
    content = json.loads(answer.read())
    return answer.status, content.get("release", 0)


def client(port: int, bodies: list[bytes], pause: float, begun: Any, ended: Any, answers: Any, most: int) -> None:
    """Send requests at a steady pace until `ended`, or `most` of them, on a few connections; a process."""

    def send(number: int) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        due, place = time.time() + number * pause / CONNECTIONS, number
        while not ended.is_set() and len(found[number]) < most // CONNECTIONS:
            time.sleep(max(0.0, due - time.time()))
            try:
                status, release = ask(connection, bodies[place % len(bodies)])
            except (OSError, http.client.HTTPException):
                status, release = 0, 0
                connection.close()
            found[number].append((due, time.time() - due, status, release))
            due, place = due + pause, place + CONNECTIONS
        connection.close()

    found: list[list[Answer]] = [[] for _ in range(CONNECTIONS)]
    threads = [threading.Thread(target=send, args=(number,)) for number in range(CONNECTIONS)]
    begun.set()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ended.set()
    answers.put([answer for some in found for answer in some])


@contextmanager
def asked(port: int, bodies: list[bytes], pause: float, most: int = 1 << 62) -> Iterator[tuple[Any, list[Answer]]]:
    """An event, which is set when `most` requests have been answered, and which ends them; and all answers after it."""
    context = multiprocessing.get_context("spawn")
    begun, ended, answers, found = context.Event(), context.Event(), context.Queue(), list[Answer]()
    process = context.Process(target=client, args=(port, bodies, pause, begun, ended, answers, most))
    process.start()
    begun.wait()
    yield ended, found
    found += answers.get()
    process.join()


def under_swaps(
    place: Path, port: int, bodies: list[bytes], indices: list[bytes], rounds: int, seconds: int
) -> dict[str, float]:
    """Latencies of requests of a row in periods without and with a release every second."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    for body in bodies:
        ask(connection, body)
    connection.close()
    periods: list[tuple[str, float, float]] = []
    visible: dict[int, float] = {}
    remaining = iter(range(1, len(indices)))
    with asked(port, bodies, PAUSE) as (ended, found):
        time.sleep(2)  # the first requests are slow
        for turn in range(rounds):
            for period in ("swapping", "quiet") if turn % 2 == 0 else ("quiet", "swapping"):
                begin = time.time()
                for second in range(seconds):
                    if period == "swapping":
                        number = next(remaining)
                        visible[number + 1] = reveal(place, indices[number])
                    time.sleep(max(0.0, begin + second + 1 - time.time()))
                periods.append((period, begin, time.time()))
                time.sleep(1)  # the last swap ends
        ended.set()
    latency: dict[str, list[float]] = {"quiet": [], "swapping": []}
    for due, taken, status, _ in found:
        for period, begin, end in periods:
            if begin <= due < end and status == 200:
                latency[period].append(taken * 1e3)
    stale = [
        min(due + taken for due, taken, _, by in found if by >= release) - moment
        for release, moment in visible.items()
        if any(by >= release for *_, by in found)
    ]
    figures: dict[str, float] = {
        "requests": len(found),
        "failed": sum(status != 200 for *_, status, _ in found),
        "releases": len(visible),
        "releases_served": len({by for *_, by in found} & visible.keys()),
        "stale_p50_s": float(np.quantile(stale, 0.5)),
        "stale_p99_s": float(np.quantile(stale, 0.99)),
    }
    for share in (50, 95, 99):
        quiet, swapping = (float(np.quantile(latency[period], share / 100)) for period in ("quiet", "swapping"))
        figures |= {f"quiet_p{share}_ms": quiet, f"swapping_p{share}_ms": swapping}
        figures[f"ratio_p{share}"] = swapping / quiet
    return figures


def back_to_back(place: Path, port: int, bodies: list[bytes], indices: list[bytes], many: int) -> dict[str, float]:
    """So many requests of a row, each as soon as the one before is answered, with a release every second."""
    with asked(port, bodies, 0.0, many) as (ended, found):
        for index in indices:
            reveal(place, index)
            if ended.wait(1.0):
                break
    return {"many_requests": len(found), "many_failed": sum(status != 200 for *_, status, _ in found)}


def by_size(port: int, rows: list[dict[str, str]], calls: int) -> dict[str, float]:
    """Milliseconds of requests of some rows, one after another."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    figures = {}
    for size in SIZES:
        for kind in ("known", "new"):
            taken = []
            for call in range(calls):
                part = [dict(rows[(call * size + place) % 2000]) for place in range(size)]
                if kind == "new":
                    part = [row | new_values(call, place, size) for place, row in enumerate(part)]
                body = json.dumps({"rows": part}).encode()
                begin = time.perf_counter()
                status, _ = ask(connection, body)
                taken.append((time.perf_counter() - begin) * 1e3)
                assert status == 200
            figures[f"{kind}_{size}_p50_ms"] = float(np.quantile(taken, 0.5))
            figures[f"{kind}_{size}_p99_ms"] = float(np.quantile(taken, 0.99))
    connection.close()
    return figures


def new_values(call: int, place: int, size: int) -> dict[str, str]:
    """A user and an ad that no request before has had."""
    return {"user_id": f"new {size} {call} {place}", "ad_id": f"ad {size} {call} {place}"}


def parts(trained: TrainedModel, folder: Path, rows: list[dict[str, str]], calls: int) -> dict[str, float]:
    """CPU milliseconds of the parts of an answer, in the median."""
    export_trained(trained, folder, formats=["onnx"])
    follower = ReleaseFollower(ExportFolder(folder), Metrics())
    follower.load_newest()
    model = follower.model
    assert model is not None

    def cpu(run: Callable[[int], object]) -> float:
        taken = []
        for call in range(calls):
            begin = time.thread_time()
            run(call)
            taken.append(time.thread_time() - begin)
        return float(np.median(taken)) * 1e3

    figures = {}
    for size in SIZES:
        part = rows[:size]
        body, batch = json.dumps({"rows": part}), model.reader.batch(part)
        news = [[row | new_values(call, place, -size) for place, row in enumerate(part)] for call in range(calls)]
        figures |= {
            f"json_{size}_ms": cpu(lambda _, body=body: json.loads(body)),
            f"encode_known_{size}_ms": cpu(lambda _, part=part: model.reader.batch(part)),
            f"encode_new_{size}_ms": cpu(lambda call, news=news: model.reader.batch(news[call])),
            f"onnx_{size}_ms": cpu(lambda _, batch=batch: model.predictions(batch)),
        }
    return figures


if __name__ == "__main__":
    common.run(measure, __doc__, quick="a pair of short periods and a small model")
