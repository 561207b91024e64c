"""Each experiment on a tiny log: numbers as trained by hand, choices on training rows, and words as the numbers are."""

import re
import statistics
from collections import namedtuple
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
from scipy import stats

from experiment_cases import BASE as TINY
from experiment_cases import counted, dataset_of, pruned_by_hand, records, trained
from sparsegroup.training import predict
from sparsegroup_paper.command_line import EXPERIMENTS
from sparsegroup_paper.frontier import CUT_OFF, GROUP_ADAM, PRUNED, RECIPE
from sparsegroup_paper.lab import Lab
from sparsegroup_paper.published import published
from sparsegroup_paper.resampling import resampled_aucs
from sparsegroup_paper.runs import Plain, Pruned
from sparsegroup_paper.statistics import WIDEST_GAP, Interval, bootstrap_difference, verdict
from sparsegroup_paper.tables import NAMES

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


@pytest.fixture(scope="module", autouse=True)
def few_points():
    """Fewer points than the paper has, so that each experiment takes seconds."""
    content = published()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(content["setup"], "learning_rate_grid", list(LEARNING_RATES))
        patch.setitem(content["setup"], "fine_tune_shares", list(SHARES))
        for name in ("sparsity", "fine_tune"):
            patch.setitem(content[name], "dcn", content[name]["dcn"][2:])
        patch.setitem(content, "embedding_dim", content["embedding_dim"][:3])
        patch.setitem(content, "norm_grids", NORM_GRIDS)
        assert [*NAMES] == ["sgd", "momentum", "adagrad", "adam", "amsgrad", "adahessian"]
        for name in ("momentum", "amsgrad"):  # they go the ways of the others, with kernels to compile
            patch.delitem(NAMES, name)
        for name, value in {
            "choices.HIGHEST_RATE": HIGHEST,
            "choices.LOWEST_RATE": LOWEST,
            "frontier.LOWEST_RATE": LOWEST,
            "choices.FINER": FINER,
            "frontier.L2S": L2S,
            "lab.REPLICATES": REPLICATES,
            "frontier.SPARSITIES": SPARSITIES,
            "frontier.RATES": RATES,
            "tables.RATES": RATES,
        }.items():
            patch.setattr(f"sparsegroup_paper.{name}", value)
        yield


Call = namedtuple("Call", "name wanted validate seeds")


class RecordingLab(Lab):
    def samples(self, wanted, *, validate=False, name, seeds=None):
        given = tuple(wanted)
        self.calls.append(Call(name, given, validate, len(self.seeds if seeds is None else seeds)))
        return super().samples(given, validate=validate, name=name, seeds=seeds)


@pytest.fixture(scope="module")
def ran(log, tmp_path_factory):
    """An experiment's section, and what it asked of the lab; each is run once."""
    lab = RecordingLab(dataset_of(log, BASE), tmp_path_factory.mktemp("lab"), runs=2, workers=1)

    @cache
    def run_once(name):
        lab.calls = []
        section = EXPERIMENTS[name](lab)
        assert section.name == name
        return section, lab.calls

    return run_once


def table(section, name):
    return records(next(one for one in section.tables if one.name == name))


class Trainings:
    """What comes of plain trainings with seeds 0 and 1."""

    def __init__(self, log, config, train_rows):
        metrics, models = zip(*(trained(log, config, seed, train_rows) for seed in (0, 1)), strict=True)
        self.aucs = [one.auc for one in metrics]
        self.rates = [model.embedding.feature_rate for model in models]
        self.live = [model.embedding.num_live for model in models]
        self.predictions = [predict(one, log.batches(TRAIN_ROWS, len(log), 4096)).probabilities() for one in models]
        self.auc = pytest.approx(statistics.mean(self.aucs), rel=1e-12)
        deviation = pytest.approx(statistics.stdev(self.aucs), rel=1e-6, abs=1e-15)
        self.cells = pytest.approx(statistics.mean(self.rates), rel=1e-12), self.auc, deviation


TRAININGS: dict[tuple[str, int | None], Trainings] = {}


def train_twice(log, config, train_rows=None):
    """Each is made once: several experiments have it."""
    key = (config.as_yaml(), train_rows)
    if key not in TRAININGS:
        TRAININGS[key] = Trainings(log, config, train_rows)
    return TRAININGS[key]


def prune_twice(log, config, keeps, share, validate=False):
    stop, end = (VALIDATED_FROM, TRAIN_ROWS) if validate else (TRAIN_ROWS, len(log))
    aucs = [pruned_by_hand(log, config.replace(seed=s), keep, share, stop, end)[0] for s, keep in enumerate(keeps)]
    return pytest.approx(statistics.mean(aucs), rel=1e-12)


def best_of(log, configs):
    """The key of the one with the best validation AUC."""
    aucs = {key: statistics.mean(train_twice(log, config, VALIDATED_FROM).aucs) for key, config in configs.items()}
    return max(aucs, key=lambda key: aucs[key])


def best_rate(log, optimizer, config=BASE):
    """The learning rate with the best validation AUC at λ = 0."""
    return best_of(log, {lr: config.replace(optimizer=optimizer, lr=lr) for lr in LEARNING_RATES})


def check_words(rows, a, b):
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
    tally = ", ".join(f"{word} at {count}" for word, count in number.items())
    return f"{tally} of {len(words)}; non-inferior at {non_inferior}"


def paired_p(ours, theirs):
    if ours == theirs:  # such as .5 where nothing is left
        return 1.0
    return pytest.approx(stats.ttest_rel(ours, theirs).pvalue, rel=1e-6)


def between(rows, rate):
    """AUC at a feature rate; None beyond the points, and where they are too far apart."""
    points = sorted((row["feature rate"], row["test AUC"]) for row in rows if row["feature rate"] > 0)
    for at, auc in points:
        if abs(at / rate - 1) < 0.005:
            return auc
    for (low, first), (high, second) in pairwise(points):
        if low <= rate <= high <= WIDEST_GAP * low:
            return float(np.interp(np.log(rate), np.log([low, high]), [first, second]))
    return None


def test_learning_rates_are_those_of_plain_training_and_the_best_is_chosen(log, ran):
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


def test_group_adam_and_pruned_adam_are_as_trained_by_hand(log, ran):
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
    assert section.findings[0] == (
        f"Group Adam is {check_words(rows, 'Group Adam', 'Adam, pruned')}, at feature rates from "
        f"{rows[0]['feature rate']:.2g} to {rows[-1]['feature rate']:.2g}."
    )
    significant = [row["p"] < 0.1 and row["difference"] > 0 for row in rows]
    low = [one for one, row in zip(significant, rows, strict=True) if row["feature rate"] < 0.05]
    assert f"at {sum(significant)} of {len(rows)} points" in section.findings[1]
    assert f"below a feature rate of 0.05 at {sum(low)} of {len(low)} (" in section.findings[1]
    full = statistics.mean(train_twice(log, config).aucs)
    assert section.findings[2].startswith(f"Adam with all features reaches {full:.4f}.")
    for name in ("Group Adam", "Adam, pruned"):
        near = min((row["feature rate"] for row in rows if row[name] >= full - 0.001), default=None)
        words = name.replace("Adam, pruned", "pruning")
        assert f"{'none' if near is None else f'{near:.2g}'} with {words}" in section.findings[2]
    assert section.figures[0].series[2].y == (pytest.approx(full, rel=1e-12),)
    papers = {row["λ21"]: row["paper: Group Adam"] for row in rows}
    assert {value: auc for value, auc in papers.items() if auc} == {1e-3: 0.8017, 5e-3: 0.8007, 1e-2: 0.7999}


def test_schedules_are_as_pruned_by_hand_and_chosen_on_training_rows(log, ran):
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
    assert section.findings[0].startswith(f"Of {len(chosen)} feature rates")
    for share in SHARES:
        assert f"{share:.0%} at {chosen.count(share)}" in section.findings[0]
    assert f"{statistics.mean(lost):.4f} higher on average, and {max(lost):.4f} at most." in section.findings[1]
    # Table 2 has the chosen ones.
    points = table(ran("sparsity-vs-auc")[0], "points")
    assert [row["fine-tuned on"] for row in points] == [f"{share:.0%}" for share in chosen]
    assert [row["Adam, pruned"] for row in points] == [r["test AUC"] for r in rows if "chosen" in (r["mark"] or "")]


@pytest.mark.parametrize("name", ["Adam", "Adagrad"])
def test_the_best_are_as_trained_by_hand(log, ran, name):
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


def test_the_family_is_as_trained_by_hand(log, ran):
    section, calls = ran("family")
    rows = table(section, "family")
    assert [row["optimizer"] for row in rows] == ["SGD", "Adagrad", "Adam", "AdaHessian"]
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


def test_each_norm_is_as_trained_by_hand_and_all_are_the_same_without_lambda(log, ran):
    section, _ = ran("norm")
    rows = table(section, "points")
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
    # They are compared at the same rate.
    of = {name: [row for row in rows if row["norm"] == name] for name in kinds}
    expected = [
        (other, rate, pytest.approx(theirs), pytest.approx(ours))
        for other in ("‖s̃‖", "metric")
        for rate in RATES
        if (ours := between(of["‖s‖"], rate)) is not None and (theirs := between(of[other], rate)) is not None
    ]
    assert expected
    compared = table(section, "compared")
    assert [tuple(row.values())[:4] for row in compared] == expected
    for other, finding in zip(("‖s̃‖", "metric"), section.findings, strict=True):
        compared_to = [row for row in compared if row["other norm"] == other]
        words = check_words(compared_to, "AUC of ‖s‖", "AUC of the other")
        assert (words if compared_to else f"leads {other} to feature rates from") in finding


def test_equal_values_of_l1_and_l21_are_as_trained_by_hand(log, ran):
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
    (finding,) = section.findings
    assert finding.startswith(f"At {fewer} of {len(rows)} values λ21 keeps fewer features than λ1")
    assert f"keeps {middle:.2g} times as many" in finding
    assert section.figures[0].series[0].y == tuple(row["λ1: feature rate"] for row in rows)


def test_dimensions_are_as_trained_by_hand(log, ran):
    section, _ = ran("embedding-dim")
    rows = table(section, "dimensions")
    config = BASE.replace(lr=best_rate(log, "adam", BASE.replace(dim=None)), l1=4e-4, l21=5e-4, l2=1e-5)
    all_trained = {dim: train_twice(log, config.replace(dim=dim)) for dim in (4, 8, 16)}
    for row, (dim, expected) in zip(rows, all_trained.items(), strict=True):
        assert tuple(row.values())[:4] == (dim, *expected.cells)
        difference = None if dim == 8 else pytest.approx(row["test AUC"] - rows[1]["test AUC"])
        assert (row["difference"], row["test"]) == (difference, None if dim == 8 else "Welch t")
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


def points_of(section):
    rows = table(section, "points")
    return {name: [row for row in rows if row["method"] == name] for name in dict.fromkeys(r["method"] for r in rows)}


def chosen_config(row):
    """With the learning rate and the λ2 of the row."""
    lr, l2 = re.fullmatch(r"lr = ([^,]+), λ2 = (.+)", row["chosen"]).groups()
    return BASE.replace(lr=float(lr), l2=float(l2))


def strength(row):
    words = re.sub("λ21?|λ1", "", row["strength"])
    return float(re.findall(r"[\d.,]+(?:e-?\d+)?", words)[0].replace(",", ""))


def test_points_of_the_frontier_are_as_trained_by_hand(log, ran):
    section, calls = ran("frontier")
    points = points_of(section)
    assert list(points) == CONTENDERS

    def check(row, config):
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
    expected = train_twice(log, START.replace(target_rate=0.3, penalty="hard"))
    row = points[RECIPE][1]
    assert (row["chosen"], row["test AUC"]) == ("adagrad, lr = 0.03, λ2 = 0, hard", expected.auc)
    row = points[FROM_START][1]
    pruned = prune_twice(log, START, [0.3, 0.3], 0.1)
    assert (row["chosen"], row["test AUC"]) == ("adagrad, lr = 0.03, fine-tuned on 10%", pruned)
    assert not [call for call in calls if call.validate and call.name.endswith(UNTUNED)]


def test_the_cut_off_and_deeplight_have_the_requested_share(log, ran):
    points = points_of(ran("frontier")[0])
    seen = counted(log, TRAIN_ROWS)
    leasts = [strength(row) for row in points[CUT_OFF]]
    shares = [sum(count >= least for count in seen.values()) / len(seen) for least in leasts]
    assert [row["feature rate"] for row in points[CUT_OFF]] == pytest.approx(shares, abs=6 / len(seen))
    assert (leasts[0], leasts) == (2, sorted(set(leasts)))
    assert shares[-1] <= LOWEST < shares[-2]
    for row, sparsity in zip(points["DeepLight"], SPARSITIES, strict=True):
        assert strength(row) == sparsity
        assert row["non-zero weights"] == pytest.approx(1 - sparsity, abs=1 / len(seen))


def test_all_tuned_methods_have_as_many_trials(ran):
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


def test_comparisons_of_the_frontier_are_between_the_points(ran):
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
    for rate in RATES:
        at = {row["method"]: row["test AUC"] for row in compared if row["feature rate"] == rate}
        top = max(at, key=at.get)
        leaders.append(f"{top} at {rate:g} ({at[top]:.4f})")
    assert section.findings[0] == f"Highest mean AUC: {', '.join(leaders)}."
    baseline = {row["feature rate"]: row["test AUC"] for row in compared if row["method"] == PRUNED}
    for name in {row["method"] for row in compared} - {PRUNED}:
        rows = [row | {"its": baseline.get(row["feature rate"])} for row in compared if row["method"] == name]
        words = check_words([row for row in rows if row["its"] is not None], "test AUC", "its")
        assert f"{name} against {PRUNED}: {words}." in section.findings
    assert [series.label for series in section.figures[0].series] == CONTENDERS
