"""Runs are carried out here, several that share their training together."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from time import perf_counter

import numpy as np
import torch

from sparsegroup.data import Log
from sparsegroup.training import evaluate, predict
from sparsegroup_paper.learner import Learner
from sparsegroup_paper.pruning import WithoutRare, count_keys, deeplight, gradual, magnitude_pruning
from sparsegroup_paper.resampling import resampled_aucs
from sparsegroup_paper.runs import CutOff, DeepLight, Gradual, Outcome, Plain, Pruned, Run

REPLICATES = 1000
"""Resamplings of the rows that a run is measured on."""


def jobs_of(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs, those together that share their training, in the order of their first ones."""
    jobs: dict[object, list[Run]] = {}
    for run in runs:
        shared = isinstance(run.method, Pruned)
        place = (run.config.as_yaml(), run.validate, "pruned") if shared else run.key
        jobs.setdefault(place, []).append(run)
    return list(jobs.values())


class Worker:
    """Carries out runs on a log.

    Args:
        log: The log.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.counts = lru_cache(maxsize=2)(lambda rows: count_keys(self.log, rows))

    def carry_out(self, runs: Sequence[Run]) -> Iterator[tuple[Run, Outcome]]:
        """The runs of a job (see `jobs_of`), each with its outcome as soon as it is finished.

        Where training diverges, the AUC is NaN.
        """
        left = list(runs)
        begin = perf_counter()
        try:
            for run, outcome in self._carry_out(runs):
                yield run, outcome
                left.remove(run)
        except FloatingPointError:
            nothing = np.full(REPLICATES, np.nan, np.float32)
            for run in left:
                yield run, Outcome(math.nan, math.nan, 1.0, 1.0, 0, 0, perf_counter() - begin, nothing)

    def _carry_out(self, runs: Sequence[Run]) -> Iterator[tuple[Run, Outcome]]:
        run = runs[0]
        stop, end = self.extent(run)
        begin = perf_counter()
        if isinstance(run.method, Pruned):
            learner = Learner(self.log, run.config)
            by_method = {run.method: run for run in runs}
            for method in magnitude_pruning(learner, [m for m in by_method if isinstance(m, Pruned)], stop):
                yield by_method[method], self._measure(by_method[method], learner, stop, end, begin)
                begin = perf_counter()
            return
        log = self.log
        if isinstance(run.method, CutOff):
            log = WithoutRare(log, self.counts(stop).at_least(run.method.min_count))
        learner = Learner(log, run.config)
        if isinstance(run.method, DeepLight):
            deeplight(learner, run.method.sparsity, stop)
        elif isinstance(run.method, Gradual):
            gradual(learner, run.method.keep, stop)
        else:
            assert isinstance(run.method, Plain | CutOff)
            learner.fit(0, stop)
        yield run, self._measure(run, learner, stop, end, begin)

    def extent(self, run: Run) -> tuple[int, int]:
        """Where its training rows end, and the rows after them that it is measured on."""
        train_rows = self.log.train_rows
        if not run.validate:
            return train_rows, len(self.log)
        return train_rows - train_rows // 10, train_rows

    def _measure(self, run: Run, learner: Learner, stop: int, end: int, begin: float) -> Outcome:
        table = learner.model.table
        predictions = predict(learner.model, learner.log.batches(stop, end, 4096))
        probabilities, labels = predictions.probabilities(), predictions.labels()
        if not np.isfinite(probabilities).all():
            raise FloatingPointError("predictions are not finite")
        metrics = evaluate(labels, probabilities)
        seen = len(self.counts(stop)) if isinstance(run.method, CutOff) else table.num_seen
        non_zero = sum(int(torch.count_nonzero(vectors)) for _, vectors in table.items())
        resampled = resampled_aucs(labels, probabilities, REPLICATES)
        return Outcome(
            auc=metrics.auc,
            log_loss=metrics.log_loss,
            feature_rate=table.num_live / max(1, seen),
            parameter_rate=non_zero / max(1, seen * table.dim),
            live=table.num_live,
            seen=seen,
            seconds=perf_counter() - begin,
            resampled=resampled.astype(np.float32),
        )
