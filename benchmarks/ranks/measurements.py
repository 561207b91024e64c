"""What is measured on this machine: bytes, steps on one rank and on two, their parts, and slow networks."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter, process_time

import numpy as np
import torch
import torch.distributed as dist

from pretend_hosts import Host, NoHostsError, pretended
from ranks.crew import Crew
from ranks.ctr_training import Job, Steps, make, network_bytes, run
from ranks.key_load import KeyDraws
from ranks.step_model import Link, Observed, StepModel, StepShape
from ranks.step_parts import PARTS, WAITING
from sparsegroup.table.sharded.exchange import schedule_receivers

PLAIN, SHARDED, PARTED = Job(16, sharded=False), Job(16), Job(16, in_parts=True)
FITTED = ((512, 8), (512, 32), (4096, 8), (4096, 32))
"""Batch of a rank and dim of what the model is fitted to."""

HELD_OUT = ((512, 16), (1024, 16), (2048, 16), (8192, 16), (2048, 8), (2048, 32))
"""What it is checked on."""

RATES = {"1gbit": 1.0, "100mbit": 0.1}
"""Gigabits per second."""


@dataclass(frozen=True)
class Extent:
    """How much is measured.

    Attributes:
        rows: Of the log; all its keys are in the tables.
        rounds: In which everything is measured once.
        steps: Of one measurement.
        fitted, held_out: Batches and dims.
        byte_ranks: Numbers of ranks of which bytes are counted.
        peers: Numbers of ranks between which exchanges without content are timed.
    """

    rows: int = 1 << 17
    rounds: int = 5
    steps: int = 16
    fitted: Sequence[tuple[int, int]] = FITTED
    held_out: Sequence[tuple[int, int]] = HELD_OUT
    byte_ranks: Sequence[int] = (2, 4)
    peers: Sequence[int] = (2, 4, 6)


QUICK = Extent(1 << 12, 1, 4, ((128, 8), (512, 8)), ((256, 8),), (2,), (2, 3))


def quick_step(steps: Sequence[Steps]) -> float:
    """Seconds of a step that nobody has disturbed: the fastest quarter's slowest, of the slowest rank."""
    return max(float(np.quantile(one.seconds, 0.25)) for one in steps)


class Bench:
    """Crews on this machine that take turns.

    Args:
        folder: Of the log.
        extent: How much is measured.
    """

    def __init__(self, folder: Path, extent: Extent) -> None:
        self.folder, self.extent = folder, extent
        self.draws = KeyDraws.of(folder)
        self.figures: dict[str, float] = {}
        self.here = 0.0

    def shape(self, ranks: int, batch: int, job: Job) -> StepShape:
        """Of a step of a job."""
        steps = min(4, self.extent.rows // (batch * ranks))
        wire = 4 if job.wire is None else 2
        load = self.draws.load(ranks, batch, steps=steps)
        return StepShape(ranks, batch, job.dim, load, wire, network_bytes(job.dim))

    def count_bytes(self) -> None:
        """Bytes that go to other ranks, by our count and by the network card's, against the least that can."""
        for ranks in self.extent.byte_ranks:
            with _hosts_or_none(ranks) as hosts, Crew(ranks, hosts) as crew:
                for name, wire in (("float32", None), ("bfloat16", torch.bfloat16)):
                    job = Job(16, wire=wire, parallel=False)
                    crew.call(make, job, self.folder, self.extent.rows)
                    batch = min(2048, self.extent.rows // (2 * ranks))
                    before = [host.sent() for host in hosts]
                    done = crew.call(run, job, 0, self.extent.steps, batch)
                    on_card = sum(host.sent() for host in hosts) - sum(before)
                    samples = ranks * batch * self.extent.steps
                    least = sum(one.away for one in done) * (8 + 2 * 16 * (4 if wire is None else 2))
                    sent = sum(one.sent for one in done)
                    label = f"bytes.{ranks}_ranks.{name}"
                    self.figures |= {
                        f"{label}.per_sample": sent / samples,
                        f"{label}.least_per_sample": least / samples,
                        f"{label}.ratio": sent / least,
                        f"{label}.distinct_per_sample": sum(one.distinct for one in done) / samples,
                    }
                    if hosts:
                        self.figures |= {
                            f"{label}.on_card_per_sample": on_card / samples,
                            f"{label}.on_card_ratio": on_card / least,
                        }

    def time_steps(self) -> StepModel:
        """Steps on one rank and on two, and the model that is fitted to their parts."""
        jobs = [PLAIN, *self._jobs(SHARDED), *self._jobs(PARTED)]
        fitted = [(batch, replace(PARTED, dim=dim)) for batch, dim in self.extent.fitted]
        held_out = [(batch, replace(SHARDED, dim=dim)) for batch, dim in self.extent.held_out]
        with Crew(1) as one, Crew(2) as two:
            for crew in (one, two):
                for job in jobs:
                    crew.call(make, job, self.folder, self.extent.rows)
            barrier = float(np.median(two.call(barrier_seconds)))
            self.here = float(np.median(two.call(exchange_seconds)))
            self._scaling(one, two, "scaling.")
            two.call(schedule_receivers, os.SCHED_OTHER)
            self._scaling(one, two, "scaling_by_default.")
            two.call(schedule_receivers)
            seen: dict[tuple[int, int, Job], list[dict[str, float]]] = {}
            totals: dict[tuple[int, int, Job], list[float]] = {}
            for turn in range(self.extent.rounds):
                for ranks, crew in ((1, one), (2, two)):
                    for batch, job in (*fitted, (self.page_batch, PARTED)):
                        done = crew.call(run, job, turn * self.extent.steps, self.extent.steps, batch)
                        seen.setdefault((ranks, batch, job), []).append(_parts(done))
                    for batch, job in (*held_out, (self.page_batch, PLAIN)):
                        done = crew.call(run, job, turn * self.extent.steps, self.extent.steps, batch)
                        totals.setdefault((ranks, batch, job), []).append(quick_step(done))
        observed = [
            Observed(self.shape(ranks, batch, job), _least(parts))
            for (ranks, batch, job), parts in seen.items()
            if (batch, job) in fitted
        ]
        for ranks in (1, 2):
            for part, taken in _least(seen[ranks, self.page_batch, PARTED]).items():
                waited = max(0.0, taken - 5 * barrier) if part == WAITING else taken
                self.figures[f"parts.{ranks}_ranks.{part.replace(' ', '_')}_ms"] = 1e3 * waited
        crowding = max(1.0, min(totals[2, self.page_batch, PLAIN]) / min(totals[1, self.page_batch, PLAIN]))
        model = StepModel.fitted(observed, self._peer_seconds(), crowding)
        self.figures["alone_ms"] = 1e3 * min(totals[1, self.page_batch, PLAIN])
        for (ranks, batch, job), taken in totals.items():
            if not job.sharded:
                continue
            predicted = model.seconds(self.shape(ranks, batch, job), crowded=True)
            self._checked(f"check.{ranks}_ranks.batch_{batch}.dim_{job.dim}", predicted, min(taken))
        return model

    def _jobs(self, job: Job) -> list[Job]:
        held = self.extent.held_out if job == SHARDED else self.extent.fitted
        dims = {dim for _, dim in held} | {16}
        return [replace(job, dim=dim) for dim in sorted(dims)]

    def _scaling(self, one: Crew, two: Crew, label: str) -> None:
        """Samples per second on two ranks in units of those on one: medians over rounds, in which they take turns."""
        whole = self.page_batch
        ratios: dict[str, list[float]] = {}
        for turn in range(self.extent.rounds):
            first, steps = turn * self.extent.steps, self.extent.steps

            def seconds(crew: Crew, job: Job, batch: int, at: int = first, count: int = steps) -> float:
                return max(float(np.median(done.seconds)) for done in crew.call(run, job, at, count, batch))

            for batch in (whole // 4, whole, 4 * whole):
                alone = seconds(one, PLAIN, batch)
                found = {
                    f"ms_alone_{batch}": 1e3 * alone,
                    f"ms_one_rank_{batch}": 1e3 * seconds(one, SHARDED, batch),
                    f"weak_{batch}": 2 * alone / seconds(two, SHARDED, batch),
                    f"strong_{batch}": alone / seconds(two, SHARDED, batch // 2),
                    f"apart_{batch}": 2 * alone / seconds(two, PLAIN, batch),
                }
                for name, value in found.items():
                    ratios.setdefault(name, []).append(value)
        self.figures |= {f"{label}{name}": float(np.median(values)) for name, values in ratios.items()}
        self.figures |= {
            f"{label}{name}_{share}": float(np.quantile(values, quantile))
            for name, values in ratios.items()
            if "ms_" not in name
            for share, quantile in (("low", 0.25), ("high", 0.75))
        }

    @property
    def page_batch(self) -> int:
        """The batch whose parts are shown, and which more ranks are asked about."""
        return 2048 if self.extent.rows > 1 << 16 else 256

    def _peer_seconds(self) -> float:
        """Seconds of the processor that an exchange takes for each further rank."""
        counts, taken = [], []
        for ranks in self.extent.peers:
            with Crew(ranks) as crew:
                crew.call(schedule_receivers)
                cpu = min(float(np.median(crew.call(exchange_cpu))) for _ in range(3))
            counts.append(ranks)
            taken.append(cpu)
            self.figures[f"exchange.{ranks}_ranks.cpu_us"] = 1e6 * cpu
        return max(0.0, float(np.polyfit(counts, taken, 1)[0]))

    def slow_networks(self, model: StepModel) -> None:
        """Steps of two hosts with a rate limit on their links, against the model, which knows limit and latency."""
        half = replace(SHARDED, wire=torch.bfloat16)
        ahead = replace(SHARDED, ahead=True)
        whole = self.page_batch
        with _hosts_or_none(2) as hosts:
            if not hosts:
                return
            with Crew(2, hosts) as crew:
                for job in (SHARDED, half, ahead):
                    crew.call(make, job, self.folder, self.extent.rows)
                latency = max(0.0, float(np.median(crew.call(exchange_seconds))) - self.here)
                self.figures["network.latency_us"] = 1e6 * latency
                for rate, gigabits in {None: np.inf, **RATES}.items():
                    for host in hosts:
                        host.limit(rate)
                    for name, batch, job in (
                        *(("float32", batch, SHARDED) for batch in (whole // 4, whole)),
                        *(("bfloat16", whole, half), ("float32_ahead", whole, ahead)),
                    ):
                        taken = [
                            quick_step(crew.call(run, job, turn * 8, 8, batch)) for turn in range(self.extent.rounds)
                        ]
                        label = f"network.{rate or 'unlimited'}.batch_{batch}.{name}"
                        if job.ahead:
                            self.figures[f"{label}.ms"] = 1e3 * min(taken)
                            continue
                        link = Link(gigabits, latency=latency)
                        predicted = model.seconds(self.shape(2, batch, job), link, crowded=True)
                        self._checked(label, predicted, min(taken))

    def _checked(self, label: str, predicted: float, measured: float) -> None:
        self.figures |= {
            f"{label}.ms": 1e3 * measured,
            f"{label}.predicted_ms": 1e3 * predicted,
            f"{label}.error": predicted / measured - 1,
        }


@contextmanager
def _hosts_or_none(count: int) -> Iterator[list[Host]]:
    """Pretended hosts; none where the machine has none."""
    try:
        with pretended(count) as made:
            yield made
    except NoHostsError as error:
        print(f"no network namespaces here, so that no network card counts, and no network is slow: {error}")
        yield []


def _parts(steps: Sequence[Steps]) -> dict[str, float]:
    """Seconds of each part where it is undisturbed, the mean of the ranks."""
    return {part: float(np.mean([np.quantile(one.parts[part], 0.1) for one in steps])) for part in PARTS}


def _least(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The parts of the least disturbed round."""
    return dict(min(rounds, key=lambda parts: sum(parts.values())))


def barrier_seconds(count: int = 100) -> float:
    """On a rank: the median time of a barrier."""
    marks = [perf_counter()]
    for _ in range(count):
        dist.barrier()
        marks.append(perf_counter())
    return float(np.median(np.diff(marks)))


def exchange_seconds(count: int = 200) -> float:
    """On a rank: the median time of an exchange of one number with each other rank."""
    marks = [perf_counter()]
    for _ in _exchanges(count):
        marks.append(perf_counter())
    return float(np.median(np.diff(marks)))


def exchange_cpu(count: int = 100) -> float:
    """On a rank: seconds of the processor of an exchange of one number with each other rank."""
    begin = process_time()
    for _ in _exchanges(count):
        pass
    return (process_time() - begin) / count


def _exchanges(count: int) -> Iterator[None]:
    ranks = dist.get_world_size()
    numbers, out, ones = torch.zeros(ranks), torch.empty(ranks), [1] * ranks
    for _ in range(count):
        dist.all_to_all_single(out, numbers, ones, ones)
        yield
