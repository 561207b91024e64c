"""The frontier on a tiny log: its points as trained by hand, its comparisons and its recovery as they say."""

import re
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from by_hand import (
    BASE,
    L2S,
    LEARNING_RATES,
    LOWEST,
    RATES,
    SHARES,
    SPARSITIES,
    TRAIN_ROWS,
    Ran,
    best_rate,
    between,
    check_words,
    counts,
    prune_twice,
    table,
    train_twice,
)
from experiment_cases import counted, live_keys, trained
from sparsegroup.data import MemoryLog
from sparsegroup.training import Config
from sparsegroup_paper.contenders import CUT_OFF, GROUP_ADAM, PRUNED
from sparsegroup_paper.frontier import SHOWN
from sparsegroup_paper.recipe import FURTHER_L2S, PRUNED_BY_RATE, PRUNED_UNTUNED, RECIPE, UNTUNED, better_everywhere
from sparsegroup_paper.runs import Plain, Pruned
from sparsegroup_paper.section import Section

REGULARIZED = [f"Group {base}, {penalty}" for base in ("Adam", "Adagrad") for penalty in ("lasso", "mcp", "hard")]
SIZED = [f"{name}, rate asked for" for name in REGULARIZED]
SIZED = [*SIZED[:3], f"{SIZED[2]}, fallback", *SIZED[3:], f"{SIZED[5]}, fallback"]
ALL_PRUNED = [PRUNED, f"{PRUNED}, fallback", "Adam, pruned by ‖s‖ and fine-tuned"]
BY_RATE = (RECIPE, PRUNED_BY_RATE)
CONTENDERS = [
    RECIPE,
    UNTUNED,
    *REGULARIZED,
    *SIZED,
    *ALL_PRUNED,
    "Adam, gradual magnitude pruning",
    "Adam, element-wise l1",
    CUT_OFF,
    "DeepLight",
    PRUNED_BY_RATE,
    PRUNED_UNTUNED,
]


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
    for name in SIZED:
        optimizer, penalty, *more = name.removeprefix("Group ").lower().split(", ")
        rates = [float(row["strength"].removeprefix("rate = ")) for row in points[name]]
        assert rates == list(RATES)
        row = points[name][-1]
        config = chosen_config(row).replace(optimizer=optimizer, penalty=penalty, target_rate=rates[-1])
        config = config.replace(fallback="fallback" in more)
        expected = train_twice(log, config)
        assert (row["feature rate"], row["test AUC"]) == (expected.rate, expected.auc)
        seen = len(counted(log, TRAIN_ROWS))
        assert row["feature rate"] == pytest.approx(rates[-1], abs=1 / seen)
    row = points["Adam, element-wise l1"][1]
    expected = train_twice(log, chosen_config(row).replace(l1=strength(row)))
    assert (row["feature rate"], row["test AUC"]) == (expected.rate, expected.auc)
    assert row["non-zero weights"] < row["feature rate"]
    for name in (*ALL_PRUNED, "Adam, gradual magnitude pruning"):
        assert [row["feature rate"] for row in points[name]] == pytest.approx(RATES, abs=2e-3), name
    row = points[PRUNED][1]
    found = re.fullmatch(r"lr = (.+), fine-tuned on (\d+)%", row["chosen"])
    assert found is not None
    assert float(found[1]) == best_rate(log, "adam")
    keep = RATES[1]
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
    for name in CONTENDERS[2:-2]:
        rates = [c for c in calls if c.validate and c.name == "learning rate of adam, dcn"][:1]
        of = trials[name] if name not in ALL_PRUNED else [*rates, *trials[name]]
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
        if name in SIZED:
            assert {config.optimizer.target_rate for call in of for config, _ in call.wanted} == {0.1}
            assert {config.optimizer.penalty.name for call in of for config, _ in call.wanted} == {name.split(", ")[1]}
    # Nothing but that is measured on the validation rows, except learning rates at λ = 0.
    known = [call for of in trials.values() for call in of]
    others = [call for call in calls if call.validate and call not in known]
    assert all(config.optimizer.l21 == config.optimizer.l1 == 0 for call in others for config, _ in call.wanted)
    assert all(method == Plain() for call in others for _, method in call.wanted)
    assert {m for c in trials[PRUNED] for _, m in c.wanted} == {Pruned(0.1, share) for share in SHARES}
    assert {m for c in trials[ALL_PRUNED[2]] for _, m in c.wanted} == {Pruned(0.1, share, "s") for share in SHARES}


def test_all_that_is_chosen_at_each_rate_is_chosen_over_time_with_nine_trials_at_most(
    log: MemoryLog, ran: Callable[[str], Ran]
) -> None:
    section, calls = ran("frontier")
    points = points_of(section)
    around = [(name, float(f"{best_rate(log, name) * by:.1g}")) for name in ("adam", "adagrad") for by in (1 / 3, 1, 3)]
    tried = list(dict.fromkeys([("adagrad", 0.03), *around]))
    for name in (RECIPE, PRUNED_BY_RATE):
        first, second = [c for c in calls if c.validate and c.name.endswith(f": {name}")]
        assert {first.tenths, second.tenths} == {(7, 8, 9, 10)}
        more = 1 + min(9 - len(tried), 3 if name == RECIPE else len(SHARES))  # of which .1, tried first, is none
        assert (len(first.wanted), len(second.wanted)) == (len(tried) * len(RATES), more * len(RATES))
        for number, (rate, row) in enumerate(zip(RATES, points[name], strict=True)):
            trials = first.wanted[len(tried) * number :][: len(tried)]
            best, *further = second.wanted[more * number :][:more]
            assert best in trials
            assert [(config.optimizer.name, config.optimizer.lr) for config, _ in trials] == tried
            assert all(config.model.fallback for config, _ in [*trials, *further])
            if name == RECIPE:
                assert {config.optimizer.target_rate for config, _ in [*trials, *further]} == {rate}
                found = [(config.optimizer.penalty.name, config.optimizer.l2) for config, _ in further]
                assert found == [("mcp", 0.0), *(("hard", l2) for l2 in FURTHER_L2S)][: more - 1]
            else:
                assert {m for _, m in trials} == {Pruned(rate, 0.1)}
                assert [m for _, m in further] == [Pruned(rate, share) for share in SHARES][: more - 1]
            optimizer = best[0].optimizer
            assert all((c.optimizer.name, c.optimizer.lr) == (optimizer.name, optimizer.lr) for c, _ in further)
            assert row["chosen"].startswith(f"{optimizer.name}, lr = {optimizer.lr:g}, ")


def test_the_recipe_is_what_validation_leaves_of_its_beginning(log: MemoryLog, ran: Callable[[str], Ran]) -> None:
    section, calls = ran("frontier")
    first, second = [c for c in calls if c.validate and c.name.endswith(f": {RECIPE}")]
    number, share = list(RATES).index(0.3), len(first.wanted) // len(RATES)

    def over_time(config: Config) -> Any:
        parts = []
        for seed, stop in enumerate((1_620, 1_890, 2_160, 2_430)):
            shorter = replace(log, labels=log.labels[: stop + 270], keys=log.keys[: stop + 270], train_rows=stop)
            parts.append(trained(shorter, config, seed)[0].test.auc)
        return np.array(parts)

    def left(configs: list[Config]) -> Config:
        found = [over_time(config) for config in configs]
        above = [n for n, aucs in enumerate(found) if all(a > b for a, b in zip(aucs, found[0], strict=True))]
        return configs[max(above, key=lambda n: statistics.mean(found[n]), default=0)]

    best = left([config for config, _ in first.wanted[share * number :][:share]])
    share = len(second.wanted) // len(RATES)
    further = [config for config, _ in second.wanted[share * number :][:share]]
    assert further[0] == best
    config = left(further)
    (row,) = [row for row in points_of(section)[RECIPE] if row["strength"] == "rate = 0.3"]
    optimizer = config.optimizer
    words = f"{optimizer.name}, lr = {optimizer.lr:g}, λ2 = {optimizer.l2:g}, {optimizer.penalty.name}"
    expected = train_twice(log, config)
    assert (row["chosen"], row["test AUC"], row["feature rate"]) == (words, expected.auc, expected.rate)
    (row,) = [row for row in points_of(section)[UNTUNED] if row["strength"] == "rate = 0.3"]
    expected = train_twice(log, first.wanted[0][0].replace(target_rate=0.3, penalty="hard"))
    assert (row["chosen"], row["test AUC"]) == ("adagrad, lr = 0.03, λ2 = 0, hard", expected.auc)
    (row,) = [row for row in points_of(section)[PRUNED_UNTUNED] if row["strength"] == "rate = 0.3"]
    start = BASE.replace(optimizer="adagrad", lr=0.03, fallback=True)
    pruned = prune_twice(log, start, [0.3, 0.3], 0.1)
    assert (row["chosen"], row["test AUC"]) == ("adagrad, lr = 0.03, fine-tuned on 10%", pruned)


def test_what_is_better_everywhere_takes_the_place_of_the_first() -> None:
    first = np.array([0.6, 0.7, 0.5])
    assert better_everywhere([first, first + 0.1 * np.array([1, 1, -0.01])]) == 0
    assert better_everywhere([first, first]) == 0
    assert better_everywhere([first, first + 0.01, first + 0.02, first - 1]) == 2


def test_the_recipe_is_compared_with_the_best_of_the_others(ran: Callable[[str], Ran]) -> None:
    section, _ = ran("frontier")
    compared, against = table(section, "compared"), table(section, "against-best")
    recipes = (RECIPE, UNTUNED)
    assert [(row["feature rate"], row["method"]) for row in against] == [(r, name) for r in RATES for name in recipes]
    for row in against:
        at = {one["method"]: one for one in compared if one["feature rate"] == row["feature rate"]}
        assert row["test AUC"] == at[row["method"]]["test AUC"]
        best = max((one for name, one in at.items() if name not in recipes), key=lambda one: one["test AUC"])
        assert (row["best of the others"], row["its AUC"]) == (best["method"], best["test AUC"])
    better = [
        {row["method"] for row in compared if row["feature rate"] == rate and row["verdict"] == "better"}
        for rate in RATES
    ]
    for name, sentence in zip(recipes, section.findings[1:3], strict=True):
        words = check_words([row for row in against if row["method"] == name], "test AUC", "its AUC")
        wins = f"{sum(name in one for one in better)} of {sum(map(bool, better))}"
        assert sentence == (
            f"{name} against the best of all others: {counts(words)}; where any method is better than {PRUNED}, so is "
            f"it at {wins}."
        )


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
    assert set(section.findings[3:-1]) == {f"{name} against {PRUNED}: {counts(of)}." for name, of in words.items()}
    assert [series.label for series in section.figures[-1].series] == CONTENDERS
    *shown, rest = section.figures[0].series
    assert [series.label for series in shown] == list(SHOWN)
    for rate, auc in zip(rest.x, rest.y, strict=True):
        here = [row for row in compared if row["feature rate"] == rate and row["method"] not in (RECIPE, *SHOWN)]
        assert auc == max(row["test AUC"] for row in here)


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
