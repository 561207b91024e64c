"""Each experiment on a tiny log: its numbers are those of plain training, and its words those of its numbers."""

import copy
import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import yaml
from scipy import stats

from experiment_cases import BASE as TINY
from experiment_cases import click_log, counted, dataset_of, live_keys, pruned_by_hand, records, tiny_log, trained
from paper_command import Run
from sparsegroup.data import MemoryLog, PreparedLog, prepare
from sparsegroup.training import Config, predict, read_config
from sparsegroup_paper import published as published_module
from sparsegroup_paper.catalog import EXPERIMENTS
from sparsegroup_paper.contenders import CUT_OFF, GROUP_ADAM, PRUNED
from sparsegroup_paper.lab import Lab, Sample
from sparsegroup_paper.published import published
from sparsegroup_paper.resampling import resampled_aucs
from sparsegroup_paper.runs import Method, Plain, Pruned
from sparsegroup_paper.section import Section
from sparsegroup_paper.statistics import Interval, bootstrap_difference, verdict
from sparsegroup_paper.versus import WIDEST_GAP

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
    """Of `Lab.samples`."""

    name: str
    wanted: tuple[tuple[Config, Method | Sequence[Method]], ...]
    validate: bool
    seeds: int


class RecordingLab(Lab):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.calls: list[Call] = []

    def samples(
        self,
        wanted: Iterable[tuple[Config, Method | Sequence[Method]]],
        *,
        validate: bool = False,
        name: str,
        seeds: Sequence[int] | None = None,
    ) -> list[Sample]:
        given = tuple(wanted)
        self.calls.append(Call(name, given, validate, len(self.seeds if seeds is None else seeds)))
        return super().samples(given, validate=validate, name=name, seeds=seeds)


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    return tiny_log()


@pytest.fixture(scope="module", autouse=True)
def few_points() -> Iterator[None]:
    """Fewer points than the paper has, so that each experiment takes seconds."""
    content = copy.deepcopy(published_module.read_yaml(Path(published_module.__file__).with_name("published.yaml")))
    content["setup"] |= {"learning_rate_grid": list(LEARNING_RATES), "fine_tune_shares": list(SHARES)}
    for name in ("sparsity", "fine_tune"):
        content[name]["dcn"] = content[name]["dcn"][2:]
    content["embedding_dim"] = content["embedding_dim"][:3]
    content["norm_grids"] = NORM_GRIDS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(published_module, "read_yaml", lambda path: content)
        for name, value in {
            "choices.HIGHEST_RATE": HIGHEST,
            "choices.LOWEST_RATE": LOWEST,
            "contenders.LOWEST_RATE": LOWEST,
            "choices.FINER": FINER,
            "contenders.L2S": L2S,
            "execution.REPLICATES": REPLICATES,
            "contenders.SPARSITIES": SPARSITIES,
            "frontier.RATES": RATES,
            "norm_choice.RATES": RATES,
        }.items():
            patch.setattr(f"sparsegroup_paper.{name}", value)
        published.cache_clear()
        yield
    published.cache_clear()


Ran = tuple[Section, list[Call]]


@pytest.fixture(scope="module")
def ran(log: MemoryLog, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ran]:
    """An experiment's section, and what it asked of the lab; each is run once."""
    lab = RecordingLab(dataset_of(log, BASE), tmp_path_factory.mktemp("lab"), runs=2, workers=1)

    @cache
    def run_once(name: str) -> Ran:
        lab.calls = []
        section = EXPERIMENTS[name](lab)
        assert section.name == name
        return section, lab.calls

    return run_once


def table(section: Section, name: str) -> list[dict[str, Any]]:
    return records(next(one for one in section.tables if one.name == name))


@dataclass(frozen=True)
class Trainings:
    """Of plain trainings with seeds 0 and 1."""

    aucs: list[float]
    rates: list[float]
    live: list[int]
    predictions: list[npt.NDArray[np.float64]]

    @property
    def auc(self) -> Any:
        return pytest.approx(statistics.mean(self.aucs), rel=1e-12)

    @property
    def deviation(self) -> Any:
        return pytest.approx(statistics.stdev(self.aucs), rel=1e-6, abs=1e-15)

    @property
    def rate(self) -> Any:
        return pytest.approx(statistics.mean(self.rates), rel=1e-12)


_TRAININGS: dict[tuple[str, int | None], Trainings] = {}


def train_twice(log: MemoryLog, config: Config, train_rows: int | None = None) -> Trainings:
    """Each is made once: several experiments have it."""
    key = (config.as_yaml(), train_rows)
    if key not in _TRAININGS:
        _TRAININGS[key] = _train_twice(log, config, train_rows)
    return _TRAININGS[key]


def _train_twice(log: MemoryLog, config: Config, train_rows: int | None) -> Trainings:
    results, predictions = [], []
    for seed in (0, 1):
        result, model = trained(log, config, seed, train_rows)
        results.append(result)
        predictions.append(predict(model, log, TRAIN_ROWS, len(log)))
    return Trainings(
        [result.test.auc for result in results],
        [result.feature_rate for result in results],
        [result.live_rows for result in results],
        predictions,
    )


def prune_twice(log: MemoryLog, config: Config, keeps: Sequence[float], share: float, validate: bool = False) -> Any:
    stop, end = (VALIDATED_FROM, TRAIN_ROWS) if validate else (TRAIN_ROWS, len(log))
    aucs = [pruned_by_hand(log, config.replace(seed=s), keep, share, stop, end)[0] for s, keep in enumerate(keeps)]
    return pytest.approx(statistics.mean(aucs), rel=1e-12)


def best_rate(log: MemoryLog, optimizer: str, config: Config = BASE) -> float:
    """The learning rate with the best validation AUC at λ = 0."""
    aucs = {
        lr: statistics.mean(train_twice(log, config.replace(optimizer=optimizer, lr=lr), VALIDATED_FROM).aucs)
        for lr in LEARNING_RATES
    }
    return max(aucs, key=lambda lr: aucs[lr])


def check_words(rows: Iterable[dict[str, Any]], a: str, b: str) -> list[str]:
    """Each comparison's difference is that of its two means, and its verdict that of its interval."""
    words = []
    for row in rows:
        if row["verdict"] is None:
            continue
        assert row["difference"] == pytest.approx(row[a] - row[b], abs=1e-12)
        assert row["95 % low"] <= row["95 % high"]
        assert row["verdict"] == verdict(Interval(row["95 % low"], row["95 % high"]))
        assert 0 <= row["p"] <= 1
        words.append(row["verdict"])
    return words


def counts(words: list[str]) -> str:
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


# Learning rates


def test_learning_rates_are_those_of_plain_training_and_the_best_is_chosen(
    log: MemoryLog, ran: Callable[[str], Ran]
) -> None:
    section, _ = ran("learning-rate")
    rows = table(section, "learning-rates")
    assert [(row["optimizer"], row["learning rate"]) for row in rows] == [
        (name, lr) for name in ("Adam", "Adagrad") for lr in LEARNING_RATES
    ]
    for row in rows:
        config = BASE.replace(optimizer=row["optimizer"].lower(), lr=row["learning rate"])
        expected = train_twice(log, config, VALIDATED_FROM)
        assert (row["validation AUC"], row["± sd"]) == (expected.auc, expected.deviation)
    for name, paper, finding in zip(("Adam", "Adagrad"), (1e-3, 1e-2), section.findings, strict=True):
        of = {row["learning rate"]: row["validation AUC"] for row in rows if row["optimizer"] == name}
        chosen = max(of, key=lambda lr: of[lr])
        marked = {row["learning rate"]: row["mark"] or "" for row in rows if row["optimizer"] == name}
        assert [lr for lr, mark in marked.items() if "chosen" in mark] == [chosen]
        assert [lr for lr, mark in marked.items() if "paper's" in mark] == [paper]
        assert finding.startswith(f"{name}: {chosen:g} is best (Criteo in the paper: {paper:g})")
        assert ("at the end of the grid" in finding) == (chosen in (1e-3, 1e-1))
    assert section.figures[0].series[1].y == tuple(row["validation AUC"] for row in rows[3:])


# Sparsity and fine-tuning


def test_group_adam_and_pruned_adam_are_as_trained_by_hand(log: MemoryLog, ran: Callable[[str], Ran]) -> None:
    section, _ = ran("sparsity-vs-auc")
    config = BASE.replace(lr=best_rate(log, "adam"))
    rows = table(section, "points")
    assert len(rows) >= 4
    for row in rows:
        group = train_twice(log, config.replace(l21=row["λ21"]))
        assert (row["feature rate"], row["Group Adam"], row["± sd "]) == (group.rate, group.auc, group.deviation)
        share = int(row["fine-tuned on"].rstrip("%")) / 100
        # Adam is pruned to as many rows as Group Adam has with the same seed.
        pruned = [
            pruned_by_hand(log, config.replace(seed=seed), rate, share, TRAIN_ROWS, len(log))
            for seed, rate in enumerate(group.rates)
        ]
        assert [live for _, live, _ in pruned] == group.live
        aucs = [auc for auc, _, _ in pruned]
        assert row["Adam, pruned"] == pytest.approx(statistics.mean(aucs), rel=1e-12)
        assert row["p"] == paired_p(group.aucs, aucs)
        labels = log.labels[TRAIN_ROWS:]
        ours = [resampled_aucs(labels, scores, REPLICATES) for scores in group.predictions]
        theirs = [
            resampled_aucs(labels, predict(model, log, TRAIN_ROWS, len(log)), REPLICATES) for _, _, model in pruned
        ]
        interval = bootstrap_difference(np.array(ours), np.array(theirs))
        assert (row["95 % low"], row["95 % high"]) == pytest.approx(interval, abs=1e-6)
    assert rows[0]["feature rate"] >= HIGHEST
    assert rows[-1]["feature rate"] <= LOWEST


def test_what_is_said_of_sparsity_is_what_the_rows_say(log: MemoryLog, ran: Callable[[str], Ran]) -> None:
    section, _ = ran("sparsity-vs-auc")
    rows = table(section, "points")
    words = check_words(rows, "Group Adam", "Adam, pruned")
    assert section.findings[0] == (
        f"Group Adam is {counts(words)}, at feature rates from {rows[0]['feature rate']:.2g} to "
        f"{rows[-1]['feature rate']:.2g}."
    )
    significant = [row["p"] < 0.1 and row["difference"] > 0 for row in rows]
    low = [one for one, row in zip(significant, rows, strict=True) if row["feature rate"] < 0.05]
    assert f"at {sum(significant)} of {len(rows)} points" in section.findings[1]
    assert (f"at {sum(low)} of {len(low)} points" if low else "at no point") in section.findings[1]
    adam = train_twice(log, BASE.replace(lr=best_rate(log, "adam")))
    full = statistics.mean(adam.aucs)
    near = [
        min((row["feature rate"] for row in rows if row[name] >= full - 0.001), default=None)
        for name in ("Group Adam", "Adam, pruned")
    ]
    shown = ["none" if rate is None else f"{rate:.2g}" for rate in near]
    assert section.findings[2] == (
        f"Adam with all features reaches {full:.4f}. Of the points within .001 of that, the sparsest is "
        f"{shown[0]} with Group Adam and {shown[1]} with pruning."
    )
    assert section.figures[0].series[2].y == (pytest.approx(full, rel=1e-12),)
    papers = {row["λ21"]: row["paper: Group Adam"] for row in rows}
    assert {value: auc for value, auc in papers.items() if auc} == {1e-3: 0.8017, 5e-3: 0.8007, 1e-2: 0.7999}


def test_features_seen_once_are_gone_where_it_is_said(log: MemoryLog, ran: Callable[[str], Ran]) -> None:
    section, _ = ran("sparsity-vs-auc")
    seen = counted(log, TRAIN_ROWS)
    once = {key for key, count in seen.items() if count == 1}
    assert len(once) >= len(seen) / 10
    config = BASE.replace(lr=best_rate(log, "adam"))
    values = [row["λ21"] for row in table(section, "points")]
    gone = [value for value in values if not once & live_keys(trained(log, config.replace(l21=value))[1])]
    expected = f"Features seen once, {len(once) / len(seen):.0%} of all, are gone from λ21 = {gone[0]:g} on."
    assert section.findings[3] == expected


def test_schedules_are_as_pruned_by_hand_and_chosen_on_training_rows(log: MemoryLog, ran: Callable[[str], Ran]) -> None:
    section, _ = ran("fine-tune")
    config = BASE.replace(lr=best_rate(log, "adam"))
    rows = table(section, "schedules")
    chosen, lost = [], []
    for pair in zip(*[iter(rows)] * len(SHARES), strict=True):
        group = train_twice(log, config.replace(l21=pair[0]["λ21"]))
        keep = round(statistics.mean(group.rates), 9)
        for share, row in zip(SHARES, pair, strict=True):
            assert row["fine-tuned on"] == f"{share:.0%}"
            assert row["feature rate"] == group.rate
            assert row["test AUC"] == prune_twice(log, config, group.rates, share)
            assert row["validation AUC"] == prune_twice(log, config, [keep, keep], share, validate=True)
        of = dict(zip(SHARES, pair, strict=True))
        chosen.append(max(SHARES, key=lambda share: of[share]["validation AUC"]))
        best = max(SHARES, key=lambda share: of[share]["test AUC"])
        for share, row in of.items():
            assert ("chosen" in (row["mark"] or "")) == (share == chosen[-1])
            assert ("best" in (row["mark"] or "")) == (share == best)
        lost.append(of[best]["test AUC"] - of[chosen[-1]]["test AUC"])
    counted_by_share = ", ".join(f"{share:.0%} at {chosen.count(share)}" for share in SHARES)
    assert section.findings == (
        f"Of {len(chosen)} feature rates, validation chooses fine-tuning on {counted_by_share}.",
        f"Had the best schedule been known from the test rows, AUC would be {statistics.mean(lost):.4f} higher on "
        f"average, and {max(lost):.4f} at most.",
    )
    # Table 2 has the chosen ones.
    points = table(ran("sparsity-vs-auc")[0], "points")
    assert [row["fine-tuned on"] for row in points] == [f"{share:.0%}" for share in chosen]
    assert [row["Adam, pruned"] for row in points] == [r["test AUC"] for r in rows if "chosen" in (r["mark"] or "")]


# Best AUC


@pytest.mark.parametrize("name", ["Adam", "Adagrad"])
def test_the_best_are_as_trained_by_hand(log: MemoryLog, ran: Callable[[str], Ran], name: str) -> None:
    section, _ = ran("best-auc")
    papers, searched = (row for row in table(section, "best") if row["optimizer"] == name)
    lambdas = {"Adam": (4e-4, 5e-4, 1e-5), "Adagrad": (0.0, 4e-3, 1e-5)}[name]
    lr = {"Adam": 1e-3, "Adagrad": 1e-2}[name]
    assert papers["settings"] == "paper's"
    assert (papers["learning rate"], papers["Group: rate"]) == (lr, lr)
    assert (papers["λ1"], papers["λ21"], papers["λ2"]) == lambdas
    assert searched["settings"] == "searched"
    assert (searched["λ1"], searched["λ2"]) == (0, 0)
    coarse = best_rate(log, name.lower())
    assert searched["Group: rate"] == coarse
    config = BASE.replace(optimizer=name.lower())
    finer = {
        lr: statistics.mean(train_twice(log, config.replace(lr=lr), VALIDATED_FROM).aucs)
        for lr in (coarse, *(float(f"{factor * coarse:.3g}") for factor in FINER))
    }
    assert searched["learning rate"] == max(finer, key=lambda lr: finer[lr])
    for row, finding in zip((papers, searched), section.findings[0 if name == "Adam" else 2 :], strict=False):
        plain = train_twice(log, config.replace(lr=row["learning rate"]))
        penalties = {"l1": row["λ1"], "l21": row["λ21"], "l2": row["λ2"]}
        group = train_twice(log, config.replace(lr=row["Group: rate"], **penalties))
        assert (row["AUC"], row["± sd"], row["feature rate"]) == (plain.auc, plain.deviation, plain.rate)
        assert (row["Group: AUC"], row["± sd "], row["Group: feature rate"]) == (group.auc, group.deviation, group.rate)
        assert row["p"] == paired_p(group.aucs, plain.aucs)
        check_words([row], "Group: AUC", "AUC")
        assert finding == (
            f"Group {name} with the {row['settings']} settings keeps {row['Group: feature rate']:.2%} of the features, "
            f"and its AUC is {row['difference']:+.4f} against {name}'s: {row['verdict']}."
        )
    assert (papers["paper: Group AUC"], papers["paper: Group rate"]) == {
        "Adam": (0.8019, 0.030),
        "Adagrad": (0.7978, 0.040),
    }[name]


@pytest.mark.parametrize(("experiment", "row_names"), [("best-auc", ["Adam", "Adagrad"]), ("family", None)])
def test_the_l21_chosen_is_the_sparsest_within_a_thousandth_on_training_rows(
    log: MemoryLog, ran: Callable[[str], Ran], experiment: str, row_names: list[str] | None
) -> None:
    section, calls = ran(experiment)
    searched = {
        row["optimizer"]: row["λ21"]
        for row in table(section, experiment.split("-")[0])
        if row.get("settings") != "paper's"
    }
    assert row_names is None or list(searched) == row_names
    trials = [call for call in calls if call.name.startswith("λ21 of")]
    assert len(trials) == len(searched)
    for (name, chosen), call in zip(searched.items(), trials, strict=True):
        assert call.validate
        values = [config.optimizer.l21 for config, _ in call.wanted]
        assert 1 <= len(values) <= 5
        assert all(config.optimizer.name == name.lower() for config, _ in call.wanted)
        aucs = [statistics.mean(train_twice(log, config, VALIDATED_FROM).aucs) for config, _ in call.wanted]
        assert chosen == max(value for value, auc in zip(values, aucs, strict=True) if auc >= max(aucs) - 0.001)


# Norms


def test_each_norm_is_as_trained_by_hand_and_all_are_the_same_without_lambda(
    log: MemoryLog, ran: Callable[[str], Ran]
) -> None:
    section, _ = ran("norm")
    rows = table(section, "points")
    config = BASE.replace(dim=None, lr=best_rate(log, "adam", BASE.replace(dim=None)))
    kinds = {"‖s‖": "s", "‖s̃‖": "s_tilde", "metric": "metric"}
    for row in rows:
        expected = train_twice(log, config.replace(l21=row["λ21"], norm=kinds[row["norm"]]))
        assert (row["feature rate"], row["test AUC"], row["± sd"]) == (expected.rate, expected.auc, expected.deviation)
    grids = {kind: [row["λ21"] for row in rows if kinds[row["norm"]] == kind] for kind in kinds.values()}
    assert (grids["s"], grids["s_tilde"]) == (NORM_GRIDS["s"], NORM_GRIDS["s_tilde"])
    products = [a * b for a, b in zip(grids["s"], grids["s_tilde"], strict=True)]
    assert [value**2 for value in grids["metric"]] == pytest.approx(products, rel=0.1)
    without = [tuple(row.values())[2:] for row in rows if row["λ21"] == 0]
    assert len(without) == 3
    assert without[0] == without[1] == without[2]


def between(rows: list[dict[str, Any]], rate: float) -> float | None:
    """AUC at a feature rate; None beyond the points, and where they are too far apart."""
    points = sorted((row["feature rate"], row["test AUC"]) for row in rows if row["feature rate"] > 0)
    for (low, first), (high, second) in pairwise(points):
        if low <= rate <= high <= WIDEST_GAP * low:
            return float(np.interp(np.log(rate), np.log([low, high]), [first, second]))
    return None


def test_norms_are_compared_at_the_same_rate(ran: Callable[[str], Ran]) -> None:
    section, _ = ran("norm")
    points, compared = table(section, "points"), table(section, "compared")
    of = {name: [row for row in points if row["norm"] == name] for name in ("‖s‖", "‖s̃‖", "metric")}
    expected = []
    for other in ("‖s̃‖", "metric"):
        for rate in RATES:
            ours, theirs = between(of["‖s‖"], rate), between(of[other], rate)
            if ours is not None and theirs is not None:
                expected.append((other, rate, pytest.approx(theirs), pytest.approx(ours)))
    assert expected
    assert [tuple(row.values())[:4] for row in compared] == expected
    check_words(compared, "AUC of ‖s‖", "AUC of the other")
    for other, finding in zip(("‖s̃‖", "metric"), section.findings, strict=True):
        words = [row["verdict"] for row in compared if row["other norm"] == other]
        if words:
            assert finding == f"‖s‖ against {other} at the same feature rate: {counts(words)}."
        else:
            assert f"leads {other} to feature rates from" in finding


# λ1 and λ21


def test_equal_values_of_l1_and_l21_are_as_trained_by_hand(log: MemoryLog, ran: Callable[[str], Ran]) -> None:
    section, _ = ran("l1-vs-l21")
    rows = table(section, "values")
    config = BASE.replace(dim=None, lr=best_rate(log, "adam", BASE.replace(dim=None)))
    for row in rows:
        for symbol, strength in (("λ1", "l1"), ("λ21", "l21")):
            expected = train_twice(log, config.replace(**{strength: row["value"]}))
            assert (row[f"{symbol}: feature rate"], row[f"{symbol}: AUC"]) == (expected.rate, expected.auc)
        assert 0 < row["λ1: non-zero weights"] < row["λ1: feature rate"]  # single weights are zero, too
        assert row["λ21: non-zero weights"] == pytest.approx(row["λ21: feature rate"])
        assert row["times"] == pytest.approx(row["λ1: feature rate"] / row["λ21: feature rate"])
    fewer = sum(row["λ21: feature rate"] < row["λ1: feature rate"] for row in rows)
    middle = statistics.median(row["times"] for row in rows if row["λ21: feature rate"] < 0.9)
    assert section.findings == (
        f"At {fewer} of {len(rows)} values λ21 keeps fewer features than λ1; where it keeps less than .9 of them, λ1 "
        f"keeps {middle:.2g} times as many (median).",
    )
    assert section.figures[0].series[0].y == tuple(row["λ1: feature rate"] for row in rows)


# Dimensions


def test_dimensions_are_as_trained_by_hand(log: MemoryLog, ran: Callable[[str], Ran]) -> None:
    section, _ = ran("embedding-dim")
    rows = table(section, "dimensions")
    lr = best_rate(log, "adam", BASE.replace(dim=None))
    config = BASE.replace(lr=lr, l1=4e-4, l21=5e-4, l2=1e-5)
    all_trained = {dim: train_twice(log, config.replace(dim=dim)) for dim in (4, 8, 16)}
    assert [row["dimension"] for row in rows] == [4, 8, 16]
    for row in rows:
        expected = all_trained[row["dimension"]]
        assert (row["feature rate"], row["test AUC"], row["± sd"]) == (expected.rate, expected.auc, expected.deviation)
        if row["dimension"] == 8:
            assert (row["difference"], row["verdict"]) == (None, None)
            continue
        theirs = all_trained[8]
        p_value = stats.ttest_ind(expected.aucs, theirs.aucs, equal_var=False).pvalue
        assert (row["p"], row["test"]) == (pytest.approx(p_value, rel=1e-6), "Welch t")
        assert row["difference"] == pytest.approx(statistics.mean(expected.aucs) - statistics.mean(theirs.aucs))
        assert row["verdict"] == verdict(Interval(row["95 % low"], row["95 % high"]))
    rates = [row["feature rate"] for row in rows]
    falls = "falls" if all(a >= b for a, b in pairwise(rates)) else "does not fall throughout"
    top = max(rows, key=lambda row: row["test AUC"])["dimension"]
    shown = ", ".join(f"{rate:.4f} at {dim}" for dim, rate in zip((4, 8, 16), rates, strict=True))
    assert section.findings == (f"The feature rate {falls} as the dimension grows: {shown}. AUC is highest at {top}.",)
    assert [row["paper: AUC"] for row in rows] == [0.8008, 0.8019, 0.8020]


# The family


def test_the_family_is_as_trained_by_hand(log: MemoryLog, ran: Callable[[str], Ran]) -> None:
    section, _ = ran("family")
    rows = table(section, "family")
    names = ["SGD", "Momentum", "Adagrad", "Adam", "AMSGrad", "AdaHessian"]
    assert [row["optimizer"] for row in rows] == names
    for row in rows:
        config = BASE.replace(optimizer=row["optimizer"].lower())
        plain = train_twice(log, config.replace(lr=row["learning rate"]))
        group = train_twice(log, config.replace(lr=row["Group: learning rate"], l21=row["λ21"]))
        assert (row["AUC"], row["± sd"]) == (plain.auc, plain.deviation)
        assert (row["Group: AUC"], row["± sd "], row["Group: feature rate"]) == (group.auc, group.deviation, group.rate)
        assert row["Group: learning rate"] == best_rate(log, row["optimizer"].lower())
        finer = [pytest.approx(factor * row["Group: learning rate"]) for factor in (1, *FINER)]
        assert row["learning rate"] in finer
    assert section.findings == (f"The Group versions are {counts(check_words(rows, 'Group: AUC', 'AUC'))}.",)
    # Two experiments, one number.
    best = next(row for row in table(ran("best-auc")[0], "best") if row["settings"] == "searched")
    adam = rows[3]
    assert (best["AUC"], best["Group: AUC"], best["λ21"]) == (adam["AUC"], adam["Group: AUC"], adam["λ21"])


# The frontier


REGULARIZED = [f"Group {base}, {penalty}" for base in ("Adam", "Adagrad") for penalty in ("lasso", "mcp", "hard")]
CONTENDERS = [*REGULARIZED, PRUNED, "Adam, element-wise l1", CUT_OFF, "DeepLight"]


def points_of(section: Section) -> dict[str, list[dict[str, Any]]]:
    rows = table(section, "points")
    return {name: [row for row in rows if row["method"] == name] for name in dict.fromkeys(r["method"] for r in rows)}


def chosen_config(row: dict[str, Any], config: Config = BASE) -> Config:
    """With the learning rate and the λ2 that the row says."""
    found = re.fullmatch(r"lr = ([^,]+), λ2 = (.+)", row["chosen"])
    assert found is not None
    return config.replace(lr=float(found[1]), l2=float(found[2]))


def strength(row: dict[str, Any]) -> float:
    return float(
        re.findall(r"[\d.,]+(?:e-?\d+)?", row["strength"].replace("λ21", "").replace("λ1", ""))[0].replace(",", "")
    )


def test_the_frontiers_points_are_as_trained_by_hand(log: MemoryLog, ran: Callable[[str], Ran]) -> None:
    points = points_of(ran("frontier")[0])
    assert list(points) == CONTENDERS
    for name in REGULARIZED:
        optimizer, penalty = name.removeprefix("Group ").lower().split(", ")
        row = points[name][len(points[name]) // 2]
        config = chosen_config(row).replace(optimizer=optimizer, penalty=penalty, l21=strength(row))
        expected = train_twice(log, config)
        assert (row["feature rate"], row["test AUC"], row["± sd"]) == (expected.rate, expected.auc, expected.deviation)
    row = points["Adam, element-wise l1"][1]
    expected = train_twice(log, chosen_config(row).replace(l1=strength(row)))
    assert (row["feature rate"], row["test AUC"]) == (expected.rate, expected.auc)
    assert row["non-zero weights"] < row["feature rate"]
    # Pruning goes to the feature rates of Group Adam.
    rates = [row["feature rate"] for row in points[GROUP_ADAM] if row["feature rate"] > 0]
    assert [row["feature rate"] for row in points[PRUNED]] == pytest.approx(rates, abs=2e-3)
    row = points[PRUNED][1]
    found = re.fullmatch(r"lr = (.+), fine-tuned on (\d+)%", row["chosen"])
    assert found is not None
    assert float(found[1]) == best_rate(log, "adam")
    keep = round(rates[1], 6)
    pruned = prune_twice(log, BASE.replace(lr=float(found[1])), [keep, keep], int(found[2]) / 100)
    assert row["test AUC"] == pruned


def test_a_frontiers_cut_off_and_deeplight_have_the_share_that_they_are_asked_for(
    log: MemoryLog, ran: Callable[[str], Ran]
) -> None:
    points = points_of(ran("frontier")[0])
    seen = counted(log, TRAIN_ROWS)
    leasts = []
    for row in points[CUT_OFF]:
        least = int(strength(row))
        kept = [key for key, count in seen.items() if count >= least]
        assert row["feature rate"] == pytest.approx((len(kept) + 3) / len(seen), abs=3 / len(seen))
        leasts.append((least, len(kept) / len(seen)))
    assert [least for least, _ in leasts] == sorted({least for least, _ in leasts})
    assert leasts[0][0] == 2
    assert leasts[-1][1] <= LOWEST < leasts[-2][1]
    assert [strength(row) for row in points["DeepLight"]] == list(SPARSITIES)
    for row, sparsity in zip(points["DeepLight"], SPARSITIES, strict=True):
        assert row["non-zero weights"] == pytest.approx(1 - sparsity, abs=1 / len(seen))
        assert row["feature rate"] >= row["non-zero weights"]


def test_all_contenders_have_as_many_trials(ran: Callable[[str], Ran]) -> None:
    _, calls = ran("frontier")
    trials = {name: [c for c in calls if c.validate and c.name.endswith(f": {name}")] for name in CONTENDERS}
    for name in CONTENDERS:
        rates = [c for c in calls if c.validate and c.name == "learning rate of adam, dcn"][:1]
        of = trials[name] if name != PRUNED else [*rates, *trials[name]]
        assert [len(call.wanted) for call in of] == [len(LEARNING_RATES), len(L2S)], name
        assert [call.seeds for call in of] == [2, 2]
        assert sorted(config.optimizer.lr for config, _ in of[0].wanted) == list(LEARNING_RATES)
        if name in REGULARIZED:
            # They are at one strength of the method, which is not 0.
            values = {config.optimizer.l21 for call in of for config, _ in call.wanted}
            assert len(values) == 1
            assert values != {0.0}
            assert [config.optimizer.l2 for config, _ in of[1].wanted] == list(L2S)
            assert {config.optimizer.penalty.name for call in of for config, _ in call.wanted} == {name.split(", ")[1]}
    # Nothing but that is measured on the validation rows, except learning rates at λ = 0.
    known = [call for of in trials.values() for call in of]
    others = [call for call in calls if call.validate and call not in known]
    assert all(config.optimizer.l21 == config.optimizer.l1 == 0 for call in others for config, _ in call.wanted)
    assert all(method == Plain() for call in others for _, method in call.wanted)
    assert {m for c in trials[PRUNED] for _, m in c.wanted} == {Pruned(0.1, share) for share in SHARES}


def test_the_frontiers_comparisons_are_between_its_points(ran: Callable[[str], Ran]) -> None:
    section, _ = ran("frontier")
    points, compared = points_of(section), table(section, "compared")
    expected = [
        (rate, name, pytest.approx(auc))
        for rate in RATES
        for name in CONTENDERS
        if (auc := between(points[name], rate)) is not None
    ]
    assert [tuple(row.values())[:3] for row in compared] == expected
    leaders, words = [], {}
    for rate in RATES:
        at = {row["method"]: row for row in compared if row["feature rate"] == rate}
        if at:
            top = max(at, key=lambda name: at[name]["test AUC"])
            leaders.append(f"{top} at {rate:g} ({at[top]['test AUC']:.4f})")
        for name, row in at.items():
            if name == PRUNED or PRUNED not in at:
                assert row["verdict"] is None
            else:
                check_words([row | {"baseline": at[PRUNED]["test AUC"]}], "test AUC", "baseline")
                words.setdefault(name, []).append(row["verdict"])
    assert section.findings[0] == f"Highest mean AUC: {', '.join(leaders)}."
    assert words
    assert set(section.findings[1:-1]) == {f"{name} against {PRUNED}: {counts(of)}." for name, of in words.items()}
    assert [series.label for series in section.figures[0].series] == CONTENDERS


def test_recovery_is_what_the_truth_says_of_the_survivors(log: MemoryLog, ran: Callable[[str], Ran]) -> None:
    section, _ = ran("frontier")
    points = points_of(section)
    *parts, total = table(section, "recovery")
    seen = counted(log, TRAIN_ROWS)
    assert log.informative is not None
    informative = set(seen) & set(log.informative.tolist())
    assert total["seen"] == "all"
    assert total["features"] == sum(row["features"] for row in parts) == len(seen)
    assert total["informative"] == len(informative) / len(seen)
    for name in ("Group Adam: kept", "cut-off: kept"):
        assert total[name] == pytest.approx(sum(row[name] for row in parts))

    row = min(points[GROUP_ADAM], key=lambda row: abs(row["feature rate"] - 0.1))
    config = chosen_config(row).replace(l21=strength(row))
    live = [live_keys(trained(log, config, seed)[1]) for seed in (0, 1)]
    hits = sum(len(keys & informative) for keys in live)
    assert total["Group Adam: kept"] == statistics.mean(map(len, live))
    assert total["precision"] == hits / sum(map(len, live))
    assert total["recall"] == hits / (2 * len(informative))
    for part in parts:
        ends = [int(end.replace(",", "")) for end in part["seen"].split("–")]
        here = {key for key, count in seen.items() if ends[0] <= count <= ends[-1]}
        assert part["features"] == len(here)
        assert part["Group Adam: kept"] == statistics.mean(len(keys & here) for keys in live)

    cut = min(points[CUT_OFF], key=lambda one: abs(np.log(one["feature rate"] / row["feature rate"])))
    kept = {key for key, count in seen.items() if count >= strength(cut)}
    assert total["cut-off: kept"] == len(kept)
    assert total["precision "] == len(kept & informative) / len(kept)
    assert total["recall "] == len(kept & informative) / len(informative)
    assert f"{total['precision']:.1%} of the features that Group Adam keeps are informative" in section.findings[-1]
    assert f"keeps {total['recall']:.1%} of the informative ones" in section.findings[-1]
    figure = section.figures[1]
    assert figure.name == "precision"
    at = next(series for series in figure.series if series.label == GROUP_ADAM)
    assert at.y[at.x.index(row["feature rate"])] == total["precision"]


# The command


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """Of a tiny log, beside it."""
    content = {"model": {"name": "mlp", "dim": 2, "hidden": [4]}, "training": {"batch_size": 100}}
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(content))
    click_log(tmp_path / "tiny.csv")
    return tmp_path / "tiny.yaml"


def test_the_command_makes_a_report_and_makes_no_run_twice(settings: Path, run: Run) -> None:
    command = ["run", "learning-rate", "--dataset", settings, "--data", "tiny.csv"]
    command += ["--runs", 1, "--workers", 1, "--out", "out"]
    done = run(*command)
    assert (done.returncode, done.stderr) == (0, "")
    out = settings.parent / "out"
    files = {path: path.stat().st_mtime_ns for path in (out / "runs").iterdir()}
    assert len(files) == 2 * 2 * len(LEARNING_RATES)

    header, *lines = (out / "learning-rate" / "learning-rates.csv").read_text().splitlines()
    assert header == "optimizer,learning rate,validation AUC,± sd,mark"
    assert len(lines) == 2 * len(LEARNING_RATES)
    pages = [(out / name).read_text() for name in ("report.html", "report.md")]
    pages.append((out / "learning-rate" / "learning-rate.md").read_text())
    log, config = PreparedLog(out / "log"), read_config(settings, {})
    size = config.training.batch_size
    for line in lines:
        name, lr, auc, deviation, _ = line.split(",", 4)
        one = config.replace(optimizer=name.lower(), lr=float(lr), l21=0.0)
        assert one.training.batch_size == size == 100
        assert float(auc) == pytest.approx(trained(log, one, train_rows=1_620)[0].test.auc, rel=1e-12)
        assert deviation == ""
        for page in pages:
            assert f"{float(auc):.4f}" in page
    assert "sparsegroup-paper run learning-rate --dataset" in pages[1]
    assert "1,800 for training, 200 for testing" in pages[0]
    assert (out / "learning-rate" / "auc.png").read_bytes().startswith(b"\x89PNG")

    (out / "report.html").unlink()
    again = run(*command, "--report", "shown")
    assert (again.returncode, again.stderr) == (0, "")
    assert {path: path.stat().st_mtime_ns for path in (out / "runs").iterdir()} == files
    assert not (out / "report.html").exists()
    csv = Path("learning-rate", "learning-rates.csv")
    assert (settings.parent / "shown" / csv).read_text() == (out / csv).read_text()
    assert pages[2] in (settings.parent / "shown" / "learning-rate" / "learning-rate.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["learning-rat", "--dataset", "tiny.yaml"], "no experiment 'learning-rat'; did you mean 'learning-rate'?"),
        (["colour"], "no experiment 'colour'; there are learning-rate, sparsity-vs-auc, "),
        (["learning-rate"], "learning-rate wants a data set: give --dataset, one of avazu, criteo, "),
        (["regret", "--data", "tiny.csv"], "--data and --test are for a --dataset"),
        (["learning-rate", "--dataset", "criteo"], "--dataset criteo wants its log: give --data"),
        (["learning-rate", "--dataset", "tiny.yaml"], "--dataset tiny wants its log: give --data"),
        (["learning-rate", "--dataset", "cifar"], "--dataset is one of avazu, criteo, ipinyou, "),
        (["learning-rate", "--dataset", "no.yaml"], "no.yaml: No such file"),
        (["learning-rate", "--dataset", "tiny.yaml", "--data", "no.csv"], "no.csv: no such file"),
        (["learning-rate", "--dataset", "synthetic", "--test", "tiny.csv"], "--test is for raw logs"),
        (
            ["learning-rate", "--dataset", "tiny.yaml", "--data", "prepared", "--test", "tiny.csv"],
            "--test is for raw logs; prepared is a folder, prepared already",
        ),
        (
            ["learning-rate", "--dataset", "untested.yaml", "--data", "tiny.csv"],
            "tiny.csv: it has no test rows, and experiments need them",
        ),
        (
            ["learning-rate", "--dataset", "weighted.yaml", "--data", "tiny.csv"],
            "tiny.csv: its rows have weights, which the experiments' resampling of test rows cannot count",
        ),
        (
            ["learning-rate", "--dataset", "tiny.yaml", "--data", "prepared"],
            "out: holds results on another log, or on another part of it (fields [",
        ),
        (["learning-rate", "--dataset", "tiny.yaml", "--data", "empty"], "empty: no such log"),
    ],
)
def test_what_cannot_be_done_is_one_line(settings: Path, run: Run, arguments: list[str], message: str) -> None:
    folder = settings.parent
    (folder / "empty").mkdir()
    (folder / "untested.yaml").write_text("data: {test_fraction: 0}\n")
    (folder / "weighted.yaml").write_text("data: {schema: schema.yaml}\n")
    (folder / "schema.yaml").write_text("label: label\nweight: size\ncategorical: [color]\n")
    prepare([click_log(folder / "other.csv", 500)], folder / "prepared")
    if "prepared" in arguments and "--test" not in arguments:
        Lab(dataset_of(tiny_log(200)), folder / "out", workers=1)
    done = run("run", *arguments, "--runs", 1, "--workers", 1, "--out", "out")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert not list((folder / "out").glob("runs/*"))
