"""The training that is measured: DCN over a table on several ranks, on a log of Criteo's shape."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ranks.step_parts import StepParts, hook_of
from sparsegroup import GroupAdam, HashEmbedding, param_groups
from sparsegroup.integrations import data_parallel
from sparsegroup.models import DCN
from sparsegroup_paper.public_shapes import DATASETS, synthetic_batches

SHAPE = DATASETS["criteo"]
FIELDS, NUMBERS = len(SHAPE.fields), len(SHAPE.numbers)


def write_log(folder: Path, rows: int, seed: int = 0) -> None:
    """Rows of a synthetic log with Criteo's fields, as arrays."""
    keys, numbers, labels = np.empty((rows, FIELDS), np.int64), np.empty((rows, NUMBERS), np.float32), []
    first = 0
    for batch in synthetic_batches(SHAPE, rows, seed):
        last = first + batch.num_rows
        for field, shape in enumerate(SHAPE.fields):
            keys[first:last, field] = batch.column(shape.name).to_numpy()
        for number, name in enumerate(SHAPE.numbers):
            numbers[first:last, number] = np.log1p(batch.column(name).to_numpy())
        labels.append(batch.column("label").to_numpy().astype(np.float32))
        first = last
    for name, values in {"keys": keys, "numbers": numbers, "labels": np.concatenate(labels)}.items():
        np.save(folder / f"{name}.npy", values)


@dataclass(frozen=True)
class Job:
    """A training.

    Attributes:
        dim: Of the table's vectors.
        wire: In which they travel; None: as they are.
        sharded: Whether the table lies on all ranks; else each trains a model of its own.
        parallel: Whether the network's gradients are averaged over the ranks.
        ahead: Whether the next batch's keys are exchanged while this one trains.
        in_parts: Whether steps are timed by part.
    """

    dim: int
    wire: torch.dtype | None = None
    sharded: bool = True
    parallel: bool = True
    ahead: bool = False
    in_parts: bool = False


class CtrModel(nn.Module):
    """DCN over a table; logits."""

    def __init__(self, job: Job) -> None:
        super().__init__()
        group = dist.group.WORLD if job.sharded else None
        self.table = HashEmbedding(job.dim, seed=1, process_group=group, wire_dtype=job.wire, per_rank=not job.sharded)
        self.network = DCN(FIELDS, job.dim, NUMBERS)

    def forward(self, keys: Tensor, numbers: Tensor) -> Tensor:
        logits: Tensor = self.network(self.table(keys), numbers)
        return logits


@dataclass(frozen=True)
class Steps:
    """Some steps of one rank.

    Attributes:
        seconds: Of each.
        cpu: Seconds of the processor, of all threads, in all of them.
        sent: Bytes of keys, vectors and gradients that the table has sent to others.
        distinct: Keys that were asked for, each counted once per step.
        away: Those of them that belong to other ranks.
        waited: Seconds in the exchanges of the table.
        parts: Seconds of each part of each step, `[steps]`; empty unless the job is in parts.
        owned: Rows that were asked of this rank, `[steps]`.
    """

    seconds: list[float]
    cpu: float
    sent: int
    distinct: int
    away: int
    waited: float
    parts: dict[str, list[float]]
    owned: list[int]


class CtrTraining:
    """One rank's part of it.

    Args:
        job: What is trained.
        folder: Of the log.
        fill: So many rows of the log, of all ranks together, have their keys in the table before it begins.
    """

    def __init__(self, job: Job, folder: Path, fill: int) -> None:
        torch.manual_seed(0)
        self.job = job
        self._keys, self._numbers, self._labels = (
            np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("keys", "numbers", "labels")
        )
        self.ranks, self.rank = dist.get_world_size(), dist.get_rank()
        self.model = CtrModel(job)
        self.optimizer = GroupAdam(param_groups(self.model, l21=1e-4), lr=1e-3)
        self._called: nn.Module = self.model
        self._parts = StepParts() if job.in_parts else None
        if job.sharded and job.parallel and self.ranks > 1:
            parallel = data_parallel(self.model)
            if self._parts is not None:
                parallel.register_comm_hook(None, hook_of(self._parts))
            self._called = parallel
        with torch.no_grad():
            for first in range(0, fill, 8192 * self.ranks):
                self.model.table(self._rows(self._keys, first, 8192, fill))
        self.steps(0, 2, 64)

    def _rows(self, values: np.ndarray, first: int, batch: int, stop: int) -> Tensor:
        begin = first + self.rank * batch
        return torch.from_numpy(values[min(begin, stop) : min(begin + batch, stop)].copy())

    def _batches(self, first: int, count: int, batch: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        whole = batch * self.ranks
        places = len(self._labels) // whole
        for index in range(first, first + count):
            begin = index % places * whole
            yield tuple(  # type: ignore[misc]
                self._rows(values, begin, batch, len(values)) for values in (self._keys, self._numbers, self._labels)
            )

    def steps(self, first: int, count: int, batch: int) -> Steps:
        """Train on some batches: the first one is number `first`; each rank has `batch` rows of each."""
        batches = list(self._batches(first, count, batch))
        across = self.model.table.across
        traffic = None if across is None else across.shards.traffic
        sent, waited = (0, 0.0) if traffic is None else (traffic.sent, traffic.waited)
        marks, owned = [perf_counter()], []
        cpu = process_time()
        with self._watched():
            for index, (keys, numbers, labels) in enumerate(batches):
                self.optimizer.zero_grad()
                logits = self._called(keys, numbers)
                if self.job.ahead and index + 1 < count:
                    self.model.table.prefetch(batches[index + 1][0])
                nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
                with self._part("optimizer step"):
                    self.optimizer.step()
                marks.append(perf_counter())
                if self._parts is not None:
                    owned.append(self._parts.end_step())
        return Steps(
            np.diff(marks).tolist(),
            process_time() - cpu,
            0 if traffic is None else traffic.sent - sent,
            *self._asked(batches),
            0.0 if traffic is None else traffic.waited - waited,
            {} if self._parts is None else self._parts.taken(),
            owned,
        )

    def _asked(self, batches: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[int, int]:
        distinct = away = 0
        for keys, _, _ in batches:
            own = np.unique(keys.numpy())
            distinct += len(own)
            if self.model.table.across is not None:
                away += int((self.model.table.across.shards.routing.ranks_of(own) != self.rank).sum())
        return distinct, away

    @contextmanager
    def _watched(self) -> Iterator[None]:
        if self._parts is None:
            yield
        else:
            with self._parts.watched():
                yield

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        if self._parts is None:
            yield
        else:
            with self._parts.part(name):
                yield


@cache
def _trainings() -> dict[Job, CtrTraining]:
    return {}


def make(job: Job, folder: Path, fill: int) -> int:
    """On a rank: make a training ready. Gives the rows of its part of the table."""
    training = _trainings()[job] = CtrTraining(job, folder, fill)
    return training.model.table.num_rows


def run(job: Job, *arguments: Any) -> Steps:
    """On a rank: `CtrTraining.steps` of what `make` has made ready."""
    return _trainings()[job].steps(*arguments)


def network_bytes(dim: int) -> int:
    """Bytes of the network's gradients."""
    return sum(4 * parameter.numel() for parameter in DCN(FIELDS, dim, NUMBERS).parameters())
