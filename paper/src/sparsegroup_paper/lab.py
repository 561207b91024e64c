"""Where experiments are made: runs go to several processes, and their results to disk, where they stay."""

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing import get_context, parent_process
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from sparsegroup.data import Log
from sparsegroup.training import Config
from sparsegroup_paper.datasets import Dataset, reserve
from sparsegroup_paper.execution import Worker, jobs_of
from sparsegroup_paper.runs import PLAIN, Method, Outcome, Results, Run

Recipe = Literal["searched", "paper"]

Reporting = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
"""Given what is run and how many runs it is, a context that yields a function of the number done."""


@dataclass(frozen=True)
class Sample:
    """Outcomes of the same run with several seeds."""

    outcomes: tuple[Outcome, ...]

    def __len__(self) -> int:
        return len(self.outcomes)

    @property
    def aucs(self) -> npt.NDArray[np.float64]:
        """`[seeds]`."""
        return np.array([outcome.auc for outcome in self.outcomes])

    @property
    def rates(self) -> npt.NDArray[np.float64]:
        """Feature rates `[seeds]`."""
        return np.array([outcome.feature_rate for outcome in self.outcomes])

    @property
    def parameter_rates(self) -> npt.NDArray[np.float64]:
        """`[seeds]`."""
        return np.array([outcome.parameter_rate for outcome in self.outcomes])

    @property
    def resampled(self) -> npt.NDArray[np.float64]:
        """AUC under resamplings of the rows `[seeds, replicates]`."""
        return np.array([outcome.resampled for outcome in self.outcomes], np.float64)

    @property
    def auc(self) -> float:
        """Mean."""
        return float(self.aucs.mean())

    @property
    def auc_deviation(self) -> float | None:
        """Standard deviation over seeds; None of one."""
        return float(self.aucs.std(ddof=1)) if len(self) > 1 else None

    @property
    def rate(self) -> float:
        """Mean feature rate."""
        return float(self.rates.mean())

    def between(self, other: "Sample", share: float, rate: float) -> "Sample":
        """`share` of the way from this sample to another of the same seeds, at feature rate `rate`."""
        return Sample(
            tuple(
                replace(
                    first,
                    auc=(1 - share) * first.auc + share * second.auc,
                    log_loss=(1 - share) * first.log_loss + share * second.log_loss,
                    feature_rate=rate,
                    resampled=(1 - share) * first.resampled + share * second.resampled,
                )
                for first, second in zip(self.outcomes, other.outcomes, strict=True)
            )
        )


class Lab:
    """Runs on one data set.

    Args:
        dataset: The data set.
        folder: For results; those it holds are not run again.
        runs: Seeds of each configuration, from 0.
        workers: Processes; 1 is this one.
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
        reserve(folder, dataset)
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

    @cached_property
    def log(self) -> Log:
        """The data set's."""
        return self.dataset.open()

    @property
    def config(self) -> Config:
        """The settings of the data set's network, with no λ."""
        return self.dataset.config

    def sample(
        self, config: Config, method: Method | Sequence[Method] = PLAIN, *, validate: bool = False, name: str
    ) -> Sample:
        """A run with each seed. `name` says in a few words what it is."""
        return self.samples([(config, method)], validate=validate, name=name)[0]

    def runs(
        self,
        wanted: Iterable[tuple[Config, Method | Sequence[Method]]],
        *,
        validate: bool = False,
        seeds: Sequence[int] | None = None,
    ) -> list[list[Run]]:
        """Several runs, each with each seed.

        Args:
            wanted: Configs, with the method, or one for each seed.
            validate: See `Run`.
            seeds: By default all.
        """
        seeds = self.seeds if seeds is None else seeds
        return [
            [
                Run(_with_seed(config, seed), method, validate)
                for seed, method in zip(
                    seeds, given if isinstance(given, Sequence) else [given] * len(seeds), strict=True
                )
            ]
            for config, given in wanted
        ]

    def samples(
        self,
        wanted: Iterable[tuple[Config, Method | Sequence[Method]]],
        *,
        validate: bool = False,
        name: str,
        seeds: Sequence[int] | None = None,
    ) -> list[Sample]:
        """What comes of `runs`. `name` says in a few words what they are."""
        runs = self.runs(wanted, validate=validate, seeds=seeds)
        self.carry_out([run for of_seeds in runs for run in of_seeds], name)
        return [Sample(tuple(self.results[run] for run in of_seeds)) for of_seeds in runs]

    def carry_out(self, runs: Sequence[Run], name: str) -> None:
        """Have results of all of them."""
        missing = list({run.key: run for run in runs if run not in self.results}.values())
        if not missing:
            return
        jobs = jobs_of(missing)
        with self.reporting(name, len(missing)) as report:
            done = 0
            for number in self._finished(jobs):
                done += number
                report(done)

    def _finished(self, jobs: list[list[Run]]) -> Iterator[int]:
        """How many runs each job had, as they end."""
        folder = self.results.folder
        if self.workers == 1:
            with _alone():
                _open(self.dataset)
                for job in jobs:
                    yield _carry_out(job, folder)
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


@contextmanager
def _alone() -> Iterator[None]:
    threads = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _carry_out(job: list[Run], folder: Path) -> int:
    assert _worker is not None
    results = Results(folder)
    for run, outcome in _worker.carry_out(job):
        results[run] = outcome
    return len(job)
