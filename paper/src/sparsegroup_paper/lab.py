"""Where experiments are made: runs go to several processes, and their results to disk, where they stay."""

import math
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import lru_cache
from multiprocessing import get_context, parent_process
from pathlib import Path
from time import perf_counter
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from sparsegroup.data import Log
from sparsegroup.training import Config, evaluate, predict
from sparsegroup.training.model import LookupModel
from sparsegroup_paper.datasets import Dataset, reserve
from sparsegroup_paper.equal_bytes.methods import contest, shared_training
from sparsegroup_paper.equal_bytes.training import LATENCY_ROWS, Served, Task
from sparsegroup_paper.pruning import Learner, WithoutRare, count_keys, deeplight, gradual, magnitude_pruning
from sparsegroup_paper.resampling import resampled_aucs
from sparsegroup_paper.runs import (
    PLAIN,
    Compact,
    CutOff,
    DeepLight,
    Gradual,
    Method,
    Outcome,
    Pruned,
    Results,
    Run,
    Sample,
)

REPLICATES = 1000
"""Resamplings of the rows that a run is measured on."""

TRIAL_ROWS = 500_000
"""A trial of the contest takes these first training rows of a longer log for all of them."""

Recipe = Literal["searched", "paper"]

Wanted = Iterable[tuple[Config, Method | Sequence[Method]]]
"""Configs, with the method, or one for each seed."""

Reporting = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Given what is run and how many runs it is, a context that yields a function of the number done."""


def jobs_of(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs, those together that share their training, in the order of their first ones."""
    jobs: dict[object, list[Run]] = {}
    for run in runs:
        shared = "pruned" if isinstance(run.method, Pruned) else None
        if isinstance(run.method, Compact):
            shared = shared_training(run.method)
        jobs.setdefault((run.config.as_yaml(), run.validate, shared) if shared else run.key, []).append(run)
    return list(jobs.values())


class Worker:
    """Carries out runs on a log."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.counts = lru_cache(maxsize=2)(lambda rows: count_keys(self.log, rows))

    def carry_out(self, runs: Sequence[Run]) -> Iterator[tuple[Run, Outcome]]:
        """The runs of a job (see `jobs_of`), each with its outcome as soon as it is finished.

        Where training diverges, the AUC is NaN.
        """
        left, begin = list(runs), perf_counter()
        try:
            for run, outcome in self._carry_out(runs):
                yield run, replace(outcome, seconds=perf_counter() - begin)
                left.remove(run)
                begin = perf_counter()
        except FloatingPointError:
            for run in left:
                yield run, replace(_nothing(), seconds=perf_counter() - begin)

    def _carry_out(self, runs: Sequence[Run]) -> Iterator[tuple[Run, Outcome]]:
        log, run, method = self.log, runs[0], runs[0].method
        stop, by_method = self.extent(run)[0], {run.method: run for run in runs}
        if isinstance(method, Compact):
            methods = [one for one in by_method if isinstance(one, Compact)]
            for compact, served in contest(Task(log, run.config, self.counts(stop), stop), methods):
                run = by_method[compact]
                yield run, _nothing() if served is None else self._measure_served(run, served)
            return
        if isinstance(method, CutOff):
            log = WithoutRare(log, self.counts(stop).at_least(method.min_count))
        learner = Learner(log, run.config)
        if isinstance(method, Pruned):
            for pruned in magnitude_pruning(learner, [one for one in by_method if isinstance(one, Pruned)], stop):
                yield by_method[pruned], self._measure(by_method[pruned], learner)
            return
        if isinstance(method, DeepLight):
            deeplight(learner, method.sparsity, stop)
        elif isinstance(method, Gradual):
            gradual(learner, method.keep, stop)
        else:
            learner.fit(0, stop)
        yield run, self._measure(run, learner)

    def extent(self, run: Run) -> tuple[int, int]:
        """Where its training rows end, and the rows after them that it is measured on."""
        train_rows = self.log.train_rows
        if run.validate and isinstance(run.method, Compact):
            train_rows = min(train_rows, TRIAL_ROWS)
        return (train_rows - train_rows // 10, train_rows) if run.validate else (train_rows, len(self.log))

    def _measure(self, run: Run, learner: Learner) -> Outcome:
        table = learner.model.table
        seen = len(self.counts(self.extent(run)[0])) if isinstance(run.method, CutOff) else table.num_seen
        non_zero = sum(int(torch.count_nonzero(vectors)) for _, vectors in table.items())
        rates = table.num_live / max(1, seen), non_zero / max(1, seen * table.dim)
        auc, log_loss, resampled = self._accuracy(run, learner.model, learner.log)
        return Outcome(auc, log_loss, *rates, table.num_live, seen, 0.0, resampled)

    def _measure_served(self, run: Run, served: Served) -> Outcome:
        stop, end = self.extent(run)
        auc, log_loss, resampled = self._accuracy(run, served.model, self.log)
        batch = next(iter(self.log.batches(stop, end, max(LATENCY_ROWS))))
        latencies = (0.0, 0.0) if run.validate else served.latencies(batch.keys, batch.numbers)
        seen = len(self.counts(stop))
        rate, costs = served.bytes / (seen * run.config.model.vector_dim * 4), (served.peak_bytes, served.seconds)
        return Outcome(auc, log_loss, rate, rate, 0, seen, 0.0, resampled, served.bytes, *costs, *latencies)

    def _accuracy(self, run: Run, model: LookupModel, log: Log) -> tuple[float, float, npt.NDArray[np.float32]]:
        """AUC, log loss and resampled AUCs of a model on the rows that a run is measured on."""
        predictions = predict(model, log.batches(*self.extent(run), 4096))
        probabilities, labels = predictions.probabilities(), predictions.labels()
        if not np.isfinite(probabilities).all():
            raise FloatingPointError("predictions are not finite")
        metrics = evaluate(labels, probabilities)
        return metrics.auc, metrics.log_loss, resampled_aucs(labels, probabilities, REPLICATES).astype(np.float32)


def _nothing() -> Outcome:
    """The outcome of a run that diverged, or that there cannot be."""
    return Outcome(math.nan, math.nan, 1.0, 1.0, 0, 0, 0.0, np.full(REPLICATES, np.nan, np.float32))


class Lab:
    """Runs on one data set.

    Args:
        dataset: The data set.
        folder: For results; those it holds are not run again.
        runs: Seeds of each configuration, from 0.
        workers: Processes; 1 is this one, None as many as there are cores.
        recipe: "searched" chooses learning rates and λ on the last tenth of the training rows, "paper" takes the
            published ones of the network.
        reporting: See `Reporting`.

    Raises:
        ClickLogError: The folder holds results on another data set.
    """

    def __init__(
        self,
        dataset: Dataset,
        folder: Path,
        *,
        runs: int = 5,
        workers: int | None = None,
        recipe: Recipe = "searched",
        reporting: Reporting = lambda name, total: nullcontext(lambda done: None),
    ) -> None:
        self.log, self.config = dataset.open(), dataset.config
        reserve(folder, self.log)
        self.dataset, self.recipe, self.reporting = dataset, recipe, reporting
        self.seeds: Sequence[int] = range(runs)
        self.workers = os.cpu_count() or 1 if workers is None else workers
        self.results = Results(folder / "runs")
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Lab":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._pool is not None:
            if kind is not None:  # a job may take many minutes, and what it has finished is on disk
                for process in list(self._pool._processes.values()):
                    process.terminate()
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def runs(self, wanted: Wanted, *, validate: bool = False, seeds: Sequence[int] | None = None) -> list[list[Run]]:
        """Several runs, each with each seed; see `Run` for `validate`."""
        seeds = self.seeds if seeds is None else seeds
        runs = []
        for config, given in wanted:
            methods = given if isinstance(given, Sequence) else [given] * len(seeds)
            configs = [_with_seed(config, seed) for seed in seeds]
            runs.append([Run(*of_seed, validate) for of_seed in zip(configs, methods, strict=True)])
        return runs

    def samples(
        self, wanted: Wanted, *, validate: bool = False, name: str, seeds: Sequence[int] | None = None
    ) -> list[Sample]:
        """What comes of `runs`. `name` says in a few words what they are."""
        runs = self.runs(wanted, validate=validate, seeds=seeds)
        self.carry_out([run for of_seeds in runs for run in of_seeds], name)
        return [Sample(tuple(self.results[run] for run in of_seeds)) for of_seeds in runs]

    def plain(self, configs: Iterable[Config], name: str, seeds: Sequence[int] | None = None) -> list[Sample]:
        """What comes of training as the configs say."""
        return self.samples([(config, PLAIN) for config in configs], name=name, seeds=seeds)

    def validated(self, configs: Iterable[Config], name: str, seeds: Sequence[int] | None = None) -> list[Sample]:
        """The same, trained without the last tenth of the training rows and measured on it."""
        return self.samples([(config, PLAIN) for config in configs], validate=True, name=name, seeds=seeds)

    def carry_out(self, runs: Sequence[Run], name: str) -> None:
        """Have results of all of them."""
        missing = list({run.key: run for run in runs if run not in self.results}.values())
        if not missing:
            return
        with self.reporting(name, len(missing)) as report:
            done = 0
            for number in self._finished(jobs_of(missing)):
                done += number
                report(done)

    def _finished(self, jobs: list[list[Run]]) -> Iterator[int]:
        """How many runs each job had, as they end."""
        folder = self.results.folder
        if self.workers == 1:
            threads = torch.get_num_threads()
            try:
                _open(self.dataset)
                for job in jobs:
                    yield _carry_out(job, folder)
            finally:
                torch.set_num_threads(threads)
            return
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                self.workers, get_context("spawn"), initializer=_begin, initargs=(self.dataset,)
            )
        futures = [self._pool.submit(_carry_out, job, folder) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def _with_seed(config: Config, seed: int) -> Config:
    """The config with another seed, which need not be checked as a whole again."""
    return config.model_copy(update={"training": config.training.model_copy(update={"seed": seed})})


_worker: Worker | None = None


def _begin(dataset: Dataset) -> None:
    """Begin a worker process, which ends with the one that started it, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which the terminal sends to all: the other process sees to it

    def end_together() -> None:
        parent = parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=end_together, daemon=True).start()
    _open(dataset)


def _open(dataset: Dataset) -> None:
    global _worker
    torch.set_num_threads(1)  # so that the same figures come out on any number of cores, and no process waits in line
    _worker = Worker(dataset.open())


def _carry_out(job: list[Run], folder: Path) -> int:
    assert _worker is not None
    results = Results(folder)
    for run, outcome in _worker.carry_out(job):
        results[run] = outcome
    return len(job)
