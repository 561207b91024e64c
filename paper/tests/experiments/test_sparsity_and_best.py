"""Tables 2, 3, 5 and 8 on a tiny log: numbers as trained by hand, and words as the numbers are."""

import statistics
from collections.abc import Callable

import numpy as np
import pytest

from by_hand import (
    BASE,
    FINER,
    HIGHEST,
    LEARNING_RATES,
    LOWEST,
    REPLICATES,
    SHARES,
    TRAIN_ROWS,
    VALIDATED_FROM,
    Ran,
    best_rate,
    check_words,
    counts,
    paired_p,
    prune_twice,
    table,
    train_twice,
)
from experiment_cases import pruned_by_hand
from sparsegroup.data import MemoryLog
from sparsegroup.training import predict
from sparsegroup_paper.resampling import resampled_aucs
from sparsegroup_paper.statistics import bootstrap_difference

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
        windows = [predict(model, log.batches(TRAIN_ROWS, len(log), 4096)) for _, _, model in pruned]
        theirs = [resampled_aucs(labels, window.probabilities(), REPLICATES) for window in windows]
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
