"""Each experiment on a tiny log: numbers as trained by hand, choices on training rows, and words as the numbers are."""

import re
import statistics
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy import stats

from by_hand import (
    BASE,
    FINER,
    HIGHEST,
    L2S,
    LEARNING_RATES,
    LOWEST,
    NORM_GRIDS,
    RATES,
    REPLICATES,
    SHARES,
    SPARSITIES,
    TRAIN_ROWS,
    VALIDATED_FROM,
    Ran,
    best_of,
    best_rate,
    between,
    check_words,
    paired_p,
    prune_twice,
    table,
    train_twice,
)
from experiment_cases import counted, pruned_by_hand
from sparsegroup.data import MemoryLog
from sparsegroup.training import Config, predict
from sparsegroup_paper.frontier import CUT_OFF, GROUP_ADAM, PRUNED, RECIPE
from sparsegroup_paper.resampling import resampled_aucs
from sparsegroup_paper.runs import Plain, Pruned
from sparsegroup_paper.section import Section
from sparsegroup_paper.statistics import Interval, bootstrap_difference, verdict

Run = Callable[[str], Ran]


def test_learning_rates_are_those_of_plain_training_and_the_best_is_chosen(log: MemoryLog, ran: Run) -> None:
    section, _ = ran("learning-rate")
    rows = iter(table(section, "learning-rates"))
    for name, paper, finding in zip(("Adam", "Adagrad"), (1e-3, 1e-2), section.findings, strict=True):
        configs = {lr: BASE.replace(optimizer=name.lower(), lr=lr) for lr in LEARNING_RATES}
        chosen = best_of(log, configs)
        for lr, config in configs.items():
            row = next(rows)
            _, auc, deviation = train_twice(log, config, VALIDATED_FROM).cells
            marks = ", ".join(["chosen"] * (lr == chosen) + ["paper's"] * (lr == paper)) or None
            assert tuple(row.values()) == (name, lr, auc, deviation, marks)
        end = ", at the end of the grid." if chosen in (1e-3, 1e-1) else "."
        assert finding == f"{name}: {chosen:g} is best (Criteo in the paper: {paper:g}){end}"
    assert next(rows, None) is None


# Sparsity and fine-tuning


def test_group_adam_and_pruned_adam_are_as_trained_by_hand(log: MemoryLog, ran: Run) -> None:
    section, _ = ran("sparsity-vs-auc")
    config = BASE.replace(lr=best_rate(log, "adam"))
    rows = table(section, "points")
    assert len(rows) >= 4
    for row in rows:
        group = train_twice(log, config.replace(l21=row["λ21"]))
        assert (row["feature rate"], row["Group Adam"], row["± sd "]) == group.cells
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


def test_what_is_said_of_sparsity_is_what_the_rows_say(log: MemoryLog, ran: Run) -> None:
    section, _ = ran("sparsity-vs-auc")
    rows = table(section, "points")
    assert section.findings[0] == (
        f"Group Adam is {check_words(rows, 'Group Adam', 'Adam, pruned')}, at feature rates from "
        f"{rows[0]['feature rate']:.2g} to {rows[-1]['feature rate']:.2g}."
    )
    significant = [row["p"] < 0.1 and row["difference"] > 0 for row in rows]
    low = [one for one, row in zip(significant, rows, strict=True) if row["feature rate"] < 0.05]
    assert f"at {sum(significant)} of {len(rows)} points" in section.findings[1]
    assert (f"at {sum(low)} of {len(low)} points" if low else "at no point") in section.findings[1]
    full = statistics.mean(train_twice(log, BASE.replace(lr=best_rate(log, "adam"))).aucs)
    near = [
        min((f"{row['feature rate']:.2g}" for row in rows if row[name] >= full - 0.001), key=float, default="none")
        for name in ("Group Adam", "Adam, pruned")
    ]
    assert section.findings[2] == (
        f"Adam with all features reaches {full:.4f}. Of the points within .001 of that, the sparsest is "
        f"{near[0]} with Group Adam and {near[1]} with pruning."
    )
    assert section.figures[0].series[2].y == (pytest.approx(full, rel=1e-12),)
    papers = {row["λ21"]: row["paper: Group Adam"] for row in rows}
    assert {value: auc for value, auc in papers.items() if auc} == {1e-3: 0.8017, 5e-3: 0.8007, 1e-2: 0.7999}


def test_schedules_are_as_pruned_by_hand_and_chosen_on_training_rows(log: MemoryLog, ran: Run) -> None:
    section, _ = ran("fine-tune")
    config = BASE.replace(lr=best_rate(log, "adam"))
    rows = table(section, "schedules")
    chosen, lost = [], []
    for pair in zip(*[iter(rows)] * len(SHARES), strict=True):
        group = train_twice(log, config.replace(l21=pair[0]["λ21"]))
        keep = round(statistics.mean(group.rates), 9)
        of = dict(zip(SHARES, pair, strict=True))
        chosen.append(max(SHARES, key=lambda share: of[share]["validation AUC"]))
        best = max(SHARES, key=lambda share: of[share]["test AUC"])
        for share, row in of.items():
            assert (row["fine-tuned on"], row["feature rate"]) == (f"{share:.0%}", group.cells[0])
            assert row["test AUC"] == prune_twice(log, config, group.rates, share)
            assert row["validation AUC"] == prune_twice(log, config, [keep, keep], share, validate=True)
            assert row["mark"] == (", ".join(["chosen"] * (share == chosen[-1]) + ["best"] * (share == best)) or None)
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


# Without pruning


@pytest.mark.parametrize("name", ["Adam", "Adagrad"])
def test_the_best_are_as_trained_by_hand(log: MemoryLog, ran: Run, name: str) -> None:
    section, _ = ran("best-auc")
    papers, searched = (row for row in table(section, "best") if row["optimizer"] == name)
    expected = {"Adam": ("paper's", 1e-3, 1e-3, 4e-4, 5e-4, 1e-5), "Adagrad": ("paper's", 1e-2, 1e-2, 0.0, 4e-3, 1e-5)}
    assert tuple(papers.values())[1:7] == expected[name]
    config = BASE.replace(optimizer=name.lower())
    coarse = best_rate(log, name.lower())
    finer = best_of(log, {lr: config.replace(lr=lr) for lr in (coarse, *(round(one * coarse, 9) for one in FINER))})
    assert tuple(searched.values())[1:7] == ("searched", finer, coarse, 0, searched["λ21"], 0)
    for row, finding in zip((papers, searched), section.findings[0 if name == "Adam" else 2 :], strict=False):
        plain = train_twice(log, config.replace(lr=row["learning rate"]))
        penalties = {"l1": row["λ1"], "l21": row["λ21"], "l2": row["λ2"]}
        group = train_twice(log, config.replace(lr=row["Group: rate"], **penalties))
        assert (row["feature rate"], row["AUC"], row["± sd"]) == plain.cells
        assert (row["Group: feature rate"], row["Group: AUC"], row["± sd "]) == group.cells
        assert row["p"] == paired_p(group.aucs, plain.aucs)
        assert row["p of rate"] == paired_p(group.rates, plain.rates)
        check_words([row], "Group: AUC", "AUC")
        assert finding == (
            f"Group {name} with the {row['settings']} settings keeps {row['Group: feature rate']:.2%} of the features, "
            f"and its AUC is {row['difference']:+.4f} against {name}'s: {row['verdict']}."
        )
    figures = {"Adam": (0.8019, 0.030), "Adagrad": (0.7978, 0.040)}
    assert (papers["paper: Group AUC"], papers["paper: Group rate"]) == figures[name]


def test_the_family_is_as_trained_by_hand(log: MemoryLog, ran: Run) -> None:
    section, calls = ran("family")
    rows = table(section, "family")
    assert [row["optimizer"] for row in rows] == ["SGD", "Momentum", "Adagrad", "Adam", "AMSGrad", "AdaHessian"]
    trials = [call for call in calls if call.name.startswith("λ21 of")]
    for row, call in zip(rows, trials, strict=True):
        config = BASE.replace(optimizer=row["optimizer"].lower())
        plain = train_twice(log, config.replace(lr=row["learning rate"]))
        group = train_twice(log, config.replace(lr=row["Group: learning rate"], l21=row["λ21"]))
        assert (row["AUC"], row["± sd"]) == plain.cells[1:]
        assert (row["Group: feature rate"], row["Group: AUC"], row["± sd "]) == group.cells
        assert row["Group: learning rate"] == best_rate(log, row["optimizer"].lower())
        finer = [pytest.approx(factor * row["Group: learning rate"]) for factor in (1, *FINER)]
        assert row["learning rate"] in finer
        # λ21 is the sparsest within a thousandth of the best, on training rows.
        assert call.validate
        assert 1 <= len(call.wanted) <= 5
        aucs = {
            one.optimizer.l21: statistics.mean(train_twice(log, one, VALIDATED_FROM).aucs) for one, _ in call.wanted
        }
        assert row["λ21"] == max(value for value, auc in aucs.items() if auc >= max(aucs.values()) - 0.001)
    assert section.findings == (f"The Group versions are {check_words(rows, 'Group: AUC', 'AUC')}.",)
    # Two experiments, one number.
    best = next(row for row in table(ran("best-auc")[0], "best") if row["settings"] == "searched")
    adam = rows[3]
    assert (best["AUC"], best["Group: AUC"], best["λ21"]) == (adam["AUC"], adam["Group: AUC"], adam["λ21"])


# Norms, λ1 and λ21, dimensions


def test_each_norm_is_as_trained_by_hand_and_all_are_the_same_without_lambda(log: MemoryLog, ran: Run) -> None:
    rows = table(ran("norm")[0], "points")
    config = BASE.replace(dim=None, lr=best_rate(log, "adam", BASE.replace(dim=None)))
    kinds = {"‖s‖": "s", "‖s̃‖": "s_tilde", "metric": "metric"}
    for row in rows:
        expected = train_twice(log, config.replace(l21=row["λ21"], norm=kinds[row["norm"]]))
        assert (row["feature rate"], row["test AUC"], row["± sd"]) == expected.cells
    grids = {kind: [row["λ21"] for row in rows if kinds[row["norm"]] == kind] for kind in kinds.values()}
    assert (grids["s"], grids["s_tilde"]) == (NORM_GRIDS["s"], NORM_GRIDS["s_tilde"])
    products = [a * b for a, b in zip(grids["s"], grids["s_tilde"], strict=True)]
    assert [value**2 for value in grids["metric"]] == pytest.approx(products, rel=0.1)
    without = [tuple(row.values())[2:] for row in rows if row["λ21"] == 0]
    assert without == [without[0]] * 3


def test_norms_are_compared_at_the_same_rate(ran: Run) -> None:
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
    for other, finding in zip(("‖s̃‖", "metric"), section.findings, strict=True):
        rows = [row for row in compared if row["other norm"] == other]
        words = f"‖s‖ against {other} at the same feature rate: {check_words(rows, 'AUC of ‖s‖', 'AUC of the other')}."
        assert finding == words if rows else f"leads {other} to feature rates from" in finding


def test_equal_values_of_l1_and_l21_are_as_trained_by_hand(log: MemoryLog, ran: Run) -> None:
    section, _ = ran("l1-vs-l21")
    rows = table(section, "values")
    config = BASE.replace(dim=None, lr=best_rate(log, "adam", BASE.replace(dim=None)))
    for row in rows:
        for symbol, strength in (("λ1", "l1"), ("λ21", "l21")):
            expected = train_twice(log, config.replace(**{strength: row["value"]}))
            assert (row[f"{symbol}: feature rate"], row[f"{symbol}: AUC"]) == expected.cells[:2]
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


def test_dimensions_are_as_trained_by_hand(log: MemoryLog, ran: Run) -> None:
    section, _ = ran("embedding-dim")
    rows = table(section, "dimensions")
    config = BASE.replace(lr=best_rate(log, "adam", BASE.replace(dim=None)), l1=4e-4, l21=5e-4, l2=1e-5)
    all_trained = {dim: train_twice(log, config.replace(dim=dim)) for dim in (4, 8, 16)}
    theirs = all_trained[8]
    for row, (dim, expected) in zip(rows, all_trained.items(), strict=True):
        assert tuple(row.values())[:4] == (dim, *expected.cells)
        if dim == 8:
            assert (row["difference"], row["verdict"]) == (None, None)
            continue
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


# The frontier

TARGETS = {"Group Adam, hard, target rate": "adam", "Group Adagrad, hard, target rate": "adagrad"}
BY_CRITERION, FROM_START = "Adam, pruned by ‖s‖ and fine-tuned", "Adagrad with fallback, pruned and fine-tuned"
GRADUAL, L1 = "Adam, gradual magnitude pruning", "Adam, element-wise l1"
CONTENDERS = [RECIPE, GROUP_ADAM, *TARGETS, PRUNED, BY_CRITERION, FROM_START, GRADUAL, L1, CUT_OFF, "DeepLight"]
UNTUNED = (RECIPE, FROM_START)
START = BASE.replace(optimizer="adagrad", lr=0.03, fallback=True)


def points_of(section: Section) -> dict[str, list[dict[str, Any]]]:
    rows = table(section, "points")
    return {name: [row for row in rows if row["method"] == name] for name in dict.fromkeys(r["method"] for r in rows)}


def chosen_config(row: dict[str, Any]) -> Config:
    """With the learning rate and the λ2 of the row."""
    found = re.fullmatch(r"lr = ([^,]+), λ2 = (.+)", row["chosen"])
    assert found is not None
    return BASE.replace(lr=float(found[1]), l2=float(found[2]))


def strength(row: dict[str, Any]) -> float:
    words = row["strength"].replace("λ21", "").replace("λ1", "")
    return float(re.findall(r"[\d.,]+(?:e-?\d+)?", words)[0].replace(",", ""))


def test_points_of_the_frontier_are_as_trained_by_hand(log: MemoryLog, ran: Run) -> None:
    points = points_of(ran("frontier")[0])
    assert list(points) == CONTENDERS

    def check(row: dict[str, Any], config: Config) -> None:
        assert (row["feature rate"], row["test AUC"], row["± sd"]) == train_twice(log, config).cells

    row = points[GROUP_ADAM][len(points[GROUP_ADAM]) // 2]
    check(row, chosen_config(row).replace(l21=strength(row)))
    for name, optimizer in TARGETS.items():
        assert [strength(row) for row in points[name]] == list(RATES)
        row = points[name][-1]
        sized = {"optimizer": optimizer, "penalty": "hard", "target_rate": RATES[-1], "fallback": False}
        check(row, chosen_config(row).replace(**sized))
        assert row["feature rate"] == pytest.approx(RATES[-1], abs=1 / len(counted(log, TRAIN_ROWS)))
    row = points[L1][1]
    check(row, chosen_config(row).replace(l1=strength(row)))
    assert row["non-zero weights"] < row["feature rate"]
    for name in (PRUNED, BY_CRITERION, FROM_START, GRADUAL):
        assert [row["feature rate"] for row in points[name]] == pytest.approx(RATES, abs=2e-3), name
    row, lr = points[PRUNED][1], best_rate(log, "adam")
    share = int(row["chosen"].removeprefix(f"lr = {lr:g}, fine-tuned on ").removesuffix("%")) / 100
    assert row["test AUC"] == prune_twice(log, BASE.replace(lr=lr), [RATES[1]] * 2, share)


def test_the_recipe_and_its_pruned_start_are_trained_as_they_are(log: MemoryLog, ran: Run) -> None:
    section, calls = ran("frontier")
    points = points_of(section)
    expected = train_twice(log, START.replace(target_rate=0.3, penalty="hard"))
    row = points[RECIPE][1]
    assert (row["chosen"], row["test AUC"]) == ("adagrad, lr = 0.03, λ2 = 0, hard", expected.auc)
    row = points[FROM_START][1]
    pruned = prune_twice(log, START, [0.3, 0.3], 0.1)
    assert (row["chosen"], row["test AUC"]) == ("adagrad, lr = 0.03, fine-tuned on 10%", pruned)
    assert not [call for call in calls if call.validate and call.name.endswith(UNTUNED)]


def test_the_cut_off_and_deeplight_have_the_requested_share(log: MemoryLog, ran: Run) -> None:
    points = points_of(ran("frontier")[0])
    seen = counted(log, TRAIN_ROWS)
    kept = {}
    for row in points[CUT_OFF]:
        kept[int(strength(row))] = number = sum(count >= strength(row) for count in seen.values())
        assert row["feature rate"] == pytest.approx((number + 3) / len(seen), abs=3 / len(seen))
    shares = [number / len(seen) for number in kept.values()]
    assert (next(iter(kept)), list(kept)) == (2, sorted(kept))
    assert shares[-1] <= LOWEST < shares[-2]
    for row, sparsity in zip(points["DeepLight"], SPARSITIES, strict=True):
        assert strength(row) == sparsity
        assert row["non-zero weights"] == pytest.approx(1 - sparsity, abs=1 / len(seen))
        assert row["feature rate"] >= row["non-zero weights"]


def test_all_tuned_methods_have_as_many_trials(ran: Run) -> None:
    _, calls = ran("frontier")
    trials = {name: [c for c in calls if c.validate and c.name.endswith(f": {name}")] for name in CONTENDERS}
    shared = [c for c in calls if c.validate and c.name == "learning rate of adam, dcn"][:1]
    for name in set(CONTENDERS) - {*UNTUNED}:
        of_method = [*(shared if name in (PRUNED, BY_CRITERION) else []), *trials[name]]
        assert [len(call.wanted) for call in of_method] == [len(LEARNING_RATES), len(L2S)], name
        assert [call.seeds for call in of_method] == [2, 2]
        assert sorted(config.optimizer.lr for config, _ in of_method[0].wanted) == list(LEARNING_RATES)
    for name, attribute in ((GROUP_ADAM, "l21"), (L1, "l1")):  # at one strength, which is not 0
        values = {getattr(config.optimizer, attribute) for call in trials[name] for config, _ in call.wanted}
        assert len(values) == 1
        assert values != {0.0}
        assert [config.optimizer.l2 for config, _ in trials[name][1].wanted] == list(L2S)
    for name in TARGETS:
        assert {config.optimizer.target_rate for call in trials[name] for config, _ in call.wanted} == {0.1}
    # Nothing else is measured on the validation rows, except learning rates at λ = 0.
    known = [call for of_method in trials.values() for call in of_method]
    others = [call for call in calls if call.validate and call not in known]
    assert all(config.optimizer.l21 == config.optimizer.l1 == 0 for call in others for config, _ in call.wanted)
    assert all(method == Plain() for call in others for _, method in call.wanted)
    assert {m for c in trials[PRUNED] for _, m in c.wanted} == {Pruned(0.1, share) for share in SHARES}
    assert {m for c in trials[BY_CRITERION] for _, m in c.wanted} == {Pruned(0.1, share, "s") for share in SHARES}


def test_comparisons_of_the_frontier_are_between_the_points(ran: Run) -> None:
    section, _ = ran("frontier")
    points, compared = points_of(section), table(section, "compared")
    expected = [
        (rate, name, pytest.approx(auc))
        for rate in RATES
        for name in CONTENDERS
        if (auc := between(points[name], rate)) is not None
    ]
    assert [tuple(row.values())[:3] for row in compared] == expected
    leaders = []
    against: dict[str, list[dict[str, Any]]] = {}
    for rate in RATES:
        at = {row["method"]: row for row in compared if row["feature rate"] == rate}
        top = max(at, key=lambda name: at[name]["test AUC"])
        leaders.append(f"{top} at {rate:g} ({at[top]['test AUC']:.4f})")
        for name, row in at.items():
            if name == PRUNED or PRUNED not in at:
                assert row["verdict"] is None
            else:
                against.setdefault(name, []).append(row | {"baseline": at[PRUNED]["test AUC"]})
    words = {f"{name} against {PRUNED}: {check_words(of, 'test AUC', 'baseline')}." for name, of in against.items()}
    assert section.findings[0] == f"Highest mean AUC: {', '.join(leaders)}."
    assert set(section.findings[1:]) == words
    assert [series.label for series in section.figures[0].series] == CONTENDERS
