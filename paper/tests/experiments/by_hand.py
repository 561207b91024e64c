"""What the experiments do, trained and compared by hand on a tiny log."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from experiment_cases import BASE as TINY
from experiment_cases import pruned_by_hand, records, trained
from sparsegroup.data import MemoryLog
from sparsegroup.training import Config, predict
from sparsegroup_paper.lab import Lab, Wanted
from sparsegroup_paper.runs import Sample
from sparsegroup_paper.section import Section
from sparsegroup_paper.statistics import WIDEST_GAP, Interval, verdict

BASE = TINY.replace(batch_size=270)
TRAIN_ROWS, VALIDATED_FROM = 2_700, 2_430
LEARNING_RATES = (1e-3, 1e-2, 1e-1)
FINER = (0.5, 2.0)
SHARES = (0.0, 0.2)
L2S = (0.0, 1e-5)
SPARSITIES = (0.5, 0.9, 0.98)
RATES = (0.5, 0.3, 0.1)
REPLICATES = 200
HIGHEST, LOWEST = 0.7, 0.05
NORM_GRIDS = {"s": [0, 1e-3, 5e-3, 2.5e-2], "s_tilde": [0, 0.05, 0.1, 0.25]}


@dataclass(frozen=True)
class Call:
    """The arguments of a call of `Lab.samples`."""

    name: str
    wanted: tuple[Any, ...]
    validate: bool
    seeds: int


class RecordingLab(Lab):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.calls: list[Call] = []

    def samples(
        self, wanted: Wanted, *, validate: bool = False, name: str, seeds: Sequence[int] | None = None
    ) -> list[Sample]:
        given = tuple(wanted)
        self.calls.append(Call(name, given, validate, len(self.seeds if seeds is None else seeds)))
        return super().samples(given, validate=validate, name=name, seeds=seeds)


Ran = tuple[Section, list[Call]]


def table(section: Section, name: str) -> list[dict[str, Any]]:
    return records(next(one for one in section.tables if one.name == name))


@dataclass(frozen=True)
class Trainings:
    """What comes of plain trainings with seeds 0 and 1."""

    aucs: list[float]
    rates: list[float]
    live: list[int]
    predictions: list[npt.NDArray[np.float64]]

    @property
    def auc(self) -> Any:
        return pytest.approx(statistics.mean(self.aucs), rel=1e-12)

    @property
    def cells(self) -> tuple[Any, Any, Any]:
        """Feature rate, AUC and its deviation."""
        deviation = pytest.approx(statistics.stdev(self.aucs), rel=1e-6, abs=1e-15)
        return pytest.approx(statistics.mean(self.rates), rel=1e-12), self.auc, deviation


_TRAININGS: dict[tuple[str, int | None], Trainings] = {}


def train_twice(log: MemoryLog, config: Config, train_rows: int | None = None) -> Trainings:
    """Each is made once: several experiments have it."""
    key = (config.as_yaml(), train_rows)
    if key not in _TRAININGS:
        both = [trained(log, config, seed, train_rows) for seed in (0, 1)]
        _TRAININGS[key] = Trainings(
            [result.test.auc for result, _ in both],
            [result.feature_rate for result, _ in both],
            [result.live_rows for result, _ in both],
            [predict(model, log.batches(TRAIN_ROWS, len(log), 4096)).probabilities() for _, model in both],
        )
    return _TRAININGS[key]


def prune_twice(log: MemoryLog, config: Config, keeps: Sequence[float], share: float, validate: bool = False) -> Any:
    stop, end = (VALIDATED_FROM, TRAIN_ROWS) if validate else (TRAIN_ROWS, len(log))
    aucs = [pruned_by_hand(log, config.replace(seed=s), keep, share, stop, end)[0] for s, keep in enumerate(keeps)]
    return pytest.approx(statistics.mean(aucs), rel=1e-12)


def best_of(log: MemoryLog, configs: dict[float, Config]) -> float:
    """The key of the one with the best validation AUC."""
    aucs = {key: statistics.mean(train_twice(log, config, VALIDATED_FROM).aucs) for key, config in configs.items()}
    return max(aucs, key=lambda key: aucs[key])


def best_rate(log: MemoryLog, optimizer: str, config: Config = BASE) -> float:
    """The learning rate with the best validation AUC at λ = 0."""
    return best_of(log, {lr: config.replace(optimizer=optimizer, lr=lr) for lr in LEARNING_RATES})


def check_words(rows: Iterable[dict[str, Any]], a: str, b: str) -> str:
    """Each comparison's difference is that of its two means, its verdict that of its interval; the tally in words."""
    words = []
    for row in rows:
        assert row["difference"] == pytest.approx(row[a] - row[b], abs=1e-12)
        assert row["95 % low"] <= row["95 % high"]
        assert row["verdict"] == verdict(Interval(row["95 % low"], row["95 % high"]))
        assert 0 <= row["p"] <= 1
        words.append(row["verdict"])
    number = {word: sum(one.split(",")[0] == word for one in words) for word in ("better", "within noise", "worse")}
    non_inferior = sum("non-inferior" in one or one == "better" for one in words)
    return (
        f"better at {number['better']}, within noise at {number['within noise']}, worse at {number['worse']} of "
        f"{len(words)}; non-inferior at {non_inferior}"
    )


def paired_p(ours: Sequence[float], theirs: Sequence[float]) -> Any:
    if ours == theirs:  # such as .5 where nothing is left
        return 1.0
    return pytest.approx(stats.ttest_rel(ours, theirs).pvalue, rel=1e-6)


def between(rows: list[dict[str, Any]], rate: float) -> float | None:
    """AUC at a feature rate; None beyond the points, and where they are too far apart."""
    points = sorted((row["feature rate"], row["test AUC"]) for row in rows if row["feature rate"] > 0)
    for at, auc in points:
        if abs(at / rate - 1) < 0.005:
            return float(auc)
    for (low, first), (high, second) in pairwise(points):
        if low <= rate <= high <= WIDEST_GAP * low:
            return float(np.interp(np.log(rate), np.log([low, high]), [first, second]))
    return None
