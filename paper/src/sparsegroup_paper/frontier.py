"""Beyond the paper: AUC against feature rate for ways to a small table, for a user to choose from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from sparsegroup.training import Config
from sparsegroup_paper.choices import LOWEST_RATE, NO_PENALTY, Strength, choose, grid, mid_strength, tuned
from sparsegroup_paper.lab import Lab
from sparsegroup_paper.pruning import count_keys
from sparsegroup_paper.published import published
from sparsegroup_paper.runs import PLAIN, CutOff, DeepLight, Gradual, Method, Pruned, Sample
from sparsegroup_paper.section import Figure, Row, Section, Series, table
from sparsegroup_paper.statistics import COLUMNS, NOT_COMPARED, STATISTICS, WIDEST_GAP, Versus, at_rate, tally, versus

L2S = (0.0, 1e-6, 1e-5, 1e-4)
"""λ2 that are tried for each method; pruning has as many fine-tuning schedules instead."""

SPARSITIES = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.998, 0.999)
"""DeepLight's values of its sparsity S."""

RATES = (0.5, 0.3, 0.1, 0.05, 0.03, 0.01)
"""Feature rates at which the methods are compared, and the target rates of the methods that have one."""

MIDDLE = 0.1
"""Feature rate at which choices are made."""

RECIPE = "Recommended recipe"
PRUNED = "Adam, pruned and fine-tuned"
GROUP_ADAM = "Group Adam, lasso"
CUT_OFF = "Frequency cut-off"

RECIPE_RATE, RECIPE_FINE_TUNE = 0.03, 0.1
"""The recipe's learning rate, and the share of the samples for fine-tuning where its start is pruned instead."""

Trial = tuple[Config, Method]


@dataclass(frozen=True)
class Contender:
    """A method at several strengths: the varied setting in words and its sample, by point; and what is `chosen`."""

    name: str
    strengths: tuple[str, ...]
    samples: tuple[Sample, ...]
    chosen: str


def contenders(lab: Lab) -> list[Contender]:
    """All of them on the data set of a lab."""
    adam, adagrad = (lab.config.replace(optimizer=name, **NO_PENALTY) for name in ("adam", "adagrad"))
    start = adagrad.replace(lr=RECIPE_RATE, fallback=True)
    first = f"adagrad, lr = {RECIPE_RATE:g}"
    pruned = "Adagrad with fallback, pruned and fine-tuned"
    return [
        _run(lab, RECIPE, [_sized(start, rate) for rate in RATES], f"{first}, λ2 = 0, hard"),
        _regularized(lab, GROUP_ADAM, adam.replace(penalty="lasso"), "l21"),
        _tuned(lab, "Group Adam, hard, target rate", adam, _sized),
        _tuned(lab, "Group Adagrad, hard, target rate", adagrad, _sized),
        _pruned(lab, PRUNED, adam),
        _pruned(lab, "Adam, pruned by ‖s‖ and fine-tuned", adam, by="s"),
        _run(
            lab,
            pruned,
            [(start, Pruned(rate, RECIPE_FINE_TUNE)) for rate in RATES],
            f"{first}, fine-tuned on {RECIPE_FINE_TUNE:.0%}",
        ),
        _tuned(lab, "Adam, gradual magnitude pruning", adam, lambda config, rate: (config, Gradual(rate))),
        _regularized(lab, "Adam, element-wise l1", adam, "l1"),
        _cut_off(lab, adam),
        _tuned(
            lab,
            "DeepLight",
            adam,
            lambda config, sparsity: (config, DeepLight(sparsity)),
            middle=1 - MIDDLE,
            strengths=lambda _: SPARSITIES,
            words="{:g} of the weights",
        ),
    ]


def _run(lab: Lab, name: str, points: Sequence[Trial], chosen: str, words: Sequence[str] | None = None) -> Contender:
    """The method at these points, which are `RATES` unless `words` says something else."""
    words = [f"rate = {rate:g}" for rate in RATES] if words is None else words
    return Contender(name, tuple(words), tuple(lab.samples(points, name=name)), chosen)


def _sized(config: Config, rate: float) -> Trial:
    """λ21 moves along the pass until the target rate remains: `sparsegroup.TargetRate`."""
    return config.replace(target_rate=rate, penalty="hard", fallback=config.model.fallback), PLAIN


def _tuned(
    lab: Lab,
    name: str,
    config: Config,
    at: Callable[[Config, float], Trial],
    middle: float = MIDDLE,
    strengths: Callable[[Config], Sequence[float]] = lambda _: RATES,
    words: str = "rate = {:g}",
) -> Contender:
    """A method with the learning rate, and then λ2, of the best validation AUC at the strength `middle`.

    `at` says what is run with a config at a strength, `strengths` gives the points of a tuned config, and `words` is a
    point in words, for `str.format`.
    """
    config = tuned(lab, config)
    rates = published()["setup"]["learning_rate_grid"]
    number = choose(lab, [at(config.replace(lr=rate), middle) for rate in rates], f"learning rate: {name}")
    config = config.replace(lr=rates[number])
    number = choose(lab, [at(config.replace(l2=l2), middle) for l2 in L2S], f"λ2: {name}")
    config = config.replace(l2=L2S[number])
    values = strengths(config)
    chosen = f"lr = {config.optimizer.lr:g}, λ2 = {config.optimizer.l2:g}"
    return _run(lab, name, [at(config, value) for value in values], chosen, [words.format(value) for value in values])


def _regularized(lab: Lab, name: str, config: Config, strength: Strength) -> Contender:
    at_best_rate = tuned(lab, config)
    return _tuned(
        lab,
        name,
        config,
        lambda one, value: (one.replace(**{strength: value}), PLAIN),
        middle=mid_strength(lab, at_best_rate, grid(lab, at_best_rate, strength), strength),
        strengths=lambda one: grid(lab, one, strength),
        words=f"λ{strength[1:]} = {{:g}}",
    )


def _pruned(lab: Lab, name: str, config: Config, by: Literal["x", "s"] = "x") -> Contender:
    config = tuned(lab, config)
    shares = published()["setup"]["fine_tune_shares"]
    share = shares[choose(lab, [(config, Pruned(MIDDLE, share, by)) for share in shares], f"schedule: {name}")]
    chosen = f"lr = {config.optimizer.lr:g}, fine-tuned on {share:.0%}"
    return _run(lab, name, [(config, Pruned(rate, share, by)) for rate in RATES], chosen)


def _cut_off(lab: Lab, config: Config) -> Contender:
    counts = count_keys(lab.log, lab.log.train_rows)
    shares: dict[int, float] = {}
    for least in (factor * 10**power for power in range(9) for factor in (1, 2, 3, 5)):
        if least > 1 and min(shares.values(), default=1) > LOWEST_RATE:  # the first one below it is the last one
            shares[least] = len(counts.at_least(least)) / len(counts)
    return _tuned(
        lab,
        CUT_OFF,
        config,
        lambda one, least: (one, CutOff(int(least))),
        middle=min(shares, key=lambda least: abs(shares[least] - MIDDLE)),
        strengths=lambda _: list(shares),
        words="seen ≥ {:,} times",
    )


def frontier(lab: Lab) -> Section:
    """Run it."""
    methods = contenders(lab)
    pruned = next(one for one in methods if one.name == PRUNED)
    compared: list[Row] = []
    comparisons: dict[str, list[Versus]] = {}
    leaders = []
    for rate in RATES:
        reached = [(one.name, sample) for one in methods if (sample := at_rate(one.samples, rate)) is not None]
        baseline = at_rate(pruned.samples, rate)
        for name, sample in reached:
            cells: Row = NOT_COMPARED
            if name != PRUNED and baseline is not None:
                comparison = versus(sample, baseline)
                comparisons.setdefault(name, []).append(comparison)
                cells = comparison.cells
            compared.append((rate, name, *sample.auc_cells, *cells))
        if reached:
            name, sample = max(reached, key=lambda one: one[1].auc)
            leaders.append(f"{name} at {rate:g} ({sample.auc:.4f})")
    points = [
        (one.name, one.chosen, strength, sample.rate, sample.mean("parameter_rate"), *sample.auc_cells)
        for one in methods
        for strength, sample in zip(one.strengths, one.samples, strict=True)
    ]
    series = []
    for one in methods:
        drawn = [sample for sample in one.samples if sample.rate]
        series.append(Series(one.name, tuple(of.rate for of in drawn), tuple(of.auc for of in drawn)))
    of_methods = [f"{name} against {PRUNED}: {tally(of_method)}." for name, of_method in comparisons.items()]
    return Section(
        name="frontier",
        title="The frontier: AUC against feature rate",
        findings=(f"Highest mean AUC: {', '.join(leaders)}.", *of_methods),
        method=(
            f"“{RECIPE}” is a target rate (`TargetRate`), the hard threshold and a learned vector per field for "
            f"features without a live row, with Group Adagrad at a learning rate of {RECIPE_RATE:g}; nothing is chosen "
            "by validation. “Adagrad with fallback, pruned and fine-tuned” is the same without a penalty, pruned by "
            "norm. The recipe was found on avazu_sample, criteo_sample and nycflights13, their test rows included, and "
            "on no other log.",
            "They are compared with Group Adam and a constant λ21; Group Adam and Group Adagrad with a target rate; "
            "Adam with magnitude pruning and fine-tuning, by the norm of the vector or by what Group Adam compares; "
            "gradual pruning; Adam with λ1 only; Adam on a log in which each field's features seen less than k times "
            "in the training rows are one; and DeepLight's pruning of single weights while training, with Adam.",
            f"These methods have {5 + len(L2S)} trials on the last tenth of the training rows: the paper's five "
            f"learning rates, then {len(L2S)} values of λ2, both near a feature rate of {MIDDLE:g}; pruning has the "
            f"learning rates before it prunes, and {len(L2S)} fine-tuning schedules.",
            STATISTICS,
        ),
        tables=(
            table(
                "compared",
                f"AUC at the same feature rate, against “{PRUNED}”",
                f"feature rate; method; test AUC|.4f; ± sd|.4f; {COLUMNS}",
                compared,
                "Each between its two nearest points, linearly in the logarithm of the rate, seed by seed. A method is "
                f"left out at rates that it does not reach, or between points more than {WIDEST_GAP:g} times apart.",
            ),
            table(
                "points",
                "All points",
                "method; chosen; strength; feature rate|.4f; non-zero weights|.4f; test AUC|.4f; ± sd|.4f",
                points,
            ),
        ),
        figures=(Figure("frontier", "AUC against feature rate", "feature rate", "test AUC", tuple(series), "log"),),
    )
