"""Norms, λ1 against λ21, dimensions and all optimizers on a tiny log: numbers as trained by hand."""

import statistics
from collections.abc import Callable
from itertools import pairwise

import pytest
from scipy import stats

from by_hand import (
    BASE,
    FINER,
    NORM_GRIDS,
    RATES,
    Ran,
    best_rate,
    between,
    check_words,
    counts,
    table,
    train_twice,
)
from sparsegroup.data import MemoryLog
from sparsegroup_paper.statistics import Interval, verdict

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
