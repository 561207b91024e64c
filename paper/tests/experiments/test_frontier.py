"""The frontier on a tiny log: its points as trained by hand, its choices, and its comparisons."""

import re
from collections.abc import Callable
from typing import Any

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
from experiment_cases import counted
from sparsegroup.data import MemoryLog
from sparsegroup.training import Config
from sparsegroup_paper.frontier import CUT_OFF, GROUP_ADAM, PRUNED, RECIPE
from sparsegroup_paper.runs import Plain, Pruned
from sparsegroup_paper.section import Section

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


def test_points_are_as_trained_by_hand(log: MemoryLog, ran: Callable[[str], Ran]) -> None:
    points = points_of(ran("frontier")[0])
    assert list(points) == CONTENDERS
    row = points[GROUP_ADAM][len(points[GROUP_ADAM]) // 2]
    expected = train_twice(log, chosen_config(row).replace(l21=strength(row)))
    assert (row["feature rate"], row["test AUC"], row["± sd"]) == (expected.rate, expected.auc, expected.deviation)
    seen = len(counted(log, TRAIN_ROWS))
    for name, optimizer in TARGETS.items():
        assert [strength(row) for row in points[name]] == list(RATES)
        row = points[name][-1]
        config = chosen_config(row).replace(optimizer=optimizer, penalty="hard", target_rate=RATES[-1], fallback=False)
        expected = train_twice(log, config)
        assert (row["feature rate"], row["test AUC"]) == (expected.rate, expected.auc)
        assert row["feature rate"] == pytest.approx(RATES[-1], abs=1 / seen)
    row = points[L1][1]
    expected = train_twice(log, chosen_config(row).replace(l1=strength(row)))
    assert (row["feature rate"], row["test AUC"]) == (expected.rate, expected.auc)
    assert row["non-zero weights"] < row["feature rate"]
    for name in (PRUNED, BY_CRITERION, FROM_START, GRADUAL):
        assert [row["feature rate"] for row in points[name]] == pytest.approx(RATES, abs=2e-3), name
    row = points[PRUNED][1]
    found = re.fullmatch(r"lr = (.+), fine-tuned on (\d+)%", row["chosen"])
    assert found is not None
    assert float(found[1]) == best_rate(log, "adam")
    pruned = prune_twice(log, BASE.replace(lr=float(found[1])), [RATES[1]] * 2, int(found[2]) / 100)
    assert row["test AUC"] == pruned


def test_the_recipe_and_its_pruned_start_are_trained_as_they_are(log: MemoryLog, ran: Callable[[str], Ran]) -> None:
    section, calls = ran("frontier")
    points = points_of(section)
    expected = train_twice(log, START.replace(target_rate=0.3, penalty="hard"))
    row = points[RECIPE][1]
    assert (row["chosen"], row["test AUC"]) == ("adagrad, lr = 0.03, λ2 = 0, hard", expected.auc)
    row = points[FROM_START][1]
    pruned = prune_twice(log, START, [0.3, 0.3], 0.1)
    assert (row["chosen"], row["test AUC"]) == ("adagrad, lr = 0.03, fine-tuned on 10%", pruned)
    assert not [call for call in calls if call.validate and call.name.endswith(UNTUNED)]


def test_the_cut_off_and_deeplight_have_the_requested_share(log: MemoryLog, ran: Callable[[str], Ran]) -> None:
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


def test_all_tuned_methods_have_as_many_trials(ran: Callable[[str], Ran]) -> None:
    _, calls = ran("frontier")
    trials = {name: [c for c in calls if c.validate and c.name.endswith(f": {name}")] for name in CONTENDERS}
    shared = [c for c in calls if c.validate and c.name == "learning rate of adam, dcn"][:1]
    for name in CONTENDERS:
        if name in UNTUNED:
            continue
        of_method = [*(shared if name in (PRUNED, BY_CRITERION) else []), *trials[name]]
        assert [len(call.wanted) for call in of_method] == [len(LEARNING_RATES), len(L2S)], name
        assert [call.seeds for call in of_method] == [2, 2]
        assert sorted(config.optimizer.lr for config, _ in of_method[0].wanted) == list(LEARNING_RATES)
    for name in (GROUP_ADAM, L1):  # at one strength, which is not 0
        attribute = "l1" if name == L1 else "l21"
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


def test_comparisons_are_between_the_points(ran: Callable[[str], Ran]) -> None:
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
    words: dict[str, list[str]] = {}
    for rate in RATES:
        at = {row["method"]: row for row in compared if row["feature rate"] == rate}
        top = max(at, key=lambda name: at[name]["test AUC"])
        leaders.append(f"{top} at {rate:g} ({at[top]['test AUC']:.4f})")
        for name, row in at.items():
            if name == PRUNED or PRUNED not in at:
                assert row["verdict"] is None
            else:
                check_words([row | {"baseline": at[PRUNED]["test AUC"]}], "test AUC", "baseline")
                words.setdefault(name, []).append(row["verdict"])
    assert section.findings[0] == f"Highest mean AUC: {', '.join(leaders)}."
    assert set(section.findings[1:]) == {f"{name} against {PRUNED}: {counts(of)}." for name, of in words.items()}
    assert [series.label for series in section.figures[0].series] == CONTENDERS
