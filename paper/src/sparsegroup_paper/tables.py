"""The paper's Tables 1 to 5, 8 and 9 and its figures, repeated on the data set of a lab: an experiment each."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparsegroup.penalties import NormName
from sparsegroup.training import Config
from sparsegroup_paper.choices import (
    HIGHEST_RATE,
    LOWEST_RATE,
    NO_PENALTY,
    TOLERANCE,
    TRIAL_SEEDS,
    TRIALS,
    best,
    choose_l21,
    grid,
    learning_rate_trials,
    network_of,
    tuned,
    tuned_finer,
    tuned_on_dcn,
)
from sparsegroup_paper.lab import Lab, Wanted
from sparsegroup_paper.published import BASES, published
from sparsegroup_paper.runs import Pruned, Sample
from sparsegroup_paper.section import Figure, Row, Section, Series, table
from sparsegroup_paper.statistics import (
    COLUMNS,
    NOT_COMPARED,
    STATISTICS,
    WIDEST_GAP,
    at_rate,
    counted,
    t_test,
    tally,
    versus,
)

NAMES = {
    "sgd": "SGD",
    "momentum": "Momentum",
    "adagrad": "Adagrad",
    "adam": "Adam",
    "amsgrad": "AMSGrad",
    "adahessian": "AdaHessian",
}

RATES = (0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01, 0.005)
"""Feature rates at which the norms are compared."""

LABELS: dict[NormName, str] = {"s": "‖s‖", "s_tilde": "‖s̃‖", "metric": "metric"}

SEARCHED = (
    "of learning rates between that and its neighbours, and the Group version "
    f"{TRIALS}, of λ21, with λ1 = λ2 = 0: the sparsest whose AUC is within {TOLERANCE:g} of the best one."
)


@dataclass(frozen=True)
class Point:
    """Group Adam at one λ21, and Adam at its feature rate.

    `pruned` is Adam on the test rows by the share of the samples for fine-tuning, `validation` its mean AUC on the last
    tenth of the training rows; `share` has the best of these.
    """

    l21: float
    group: Sample
    pruned: Mapping[float, Sample]
    validation: Mapping[float, float]
    share: float

    @property
    def adam(self) -> Sample:
        return self.pruned[self.share]


def prune_alike(lab: Lab, config: Config, values: Sequence[float]) -> list[Point]:
    """Group Adam at several λ21, and Adam (the config has no λ) pruned to as many vectors with each seed."""
    shares = published()["setup"]["fine_tune_shares"]
    groups = lab.plain([config.replace(l21=value) for value in values], "Group Adam")
    # No further fine-tuning is tried on the test rows than is shown: all schedules are, as in Table 8.
    keeps = [[outcome.live / max(1, outcome.seen) for outcome in group.outcomes] for group in groups]
    of_test: Wanted = [(config, [Pruned(keep, share) for keep in of]) for of in keeps for share in shares]
    of_trials: Wanted = [(config, Pruned(round(float(np.mean(of)), 9), share)) for of in keeps for share in shares]
    seeds = lab.seeds[:TRIAL_SEEDS]
    together = [*lab.runs(of_test), *lab.runs(of_trials, validate=True, seeds=seeds)]  # for there may be few of each
    lab.carry_out([run for runs in together for run in runs], "Adam, pruned")
    pruned = iter(lab.samples(of_test, name="Adam, pruned"))
    trials = iter(lab.samples(of_trials, validate=True, name="schedules", seeds=seeds))
    points = []
    for value, group in zip(values, groups, strict=True):
        validation = {share: next(trials).auc for share in shares}
        chosen = max(shares, key=lambda share: validation[share])
        points.append(Point(value, group, {share: next(pruned) for share in shares}, validation, chosen))
    return points


def sparsity_vs_auc(lab: Lab) -> Section:
    """Table 2 and Figure 1."""
    config = tuned(lab, lab.config)
    points = prune_alike(lab, config, grid(lab, config))
    (adam,) = lab.plain([config], "Adam")
    comparisons = [versus(point.group, point.adam) for point in points]
    network, seeds = network_of(config), len(lab.seeds)
    names = "feature_rate", "adam_auc", "group_adam_auc", "p_value"
    paper = {point["l21"]: [point[name] for name in names] for point in published()["sparsity"][network]}
    rows: list[Row] = [
        (
            *(point.l21, point.group.rate, *point.adam.auc_cells, f"{point.share:.0%}", *point.group.auc_cells),
            *comparison.cells,
            *paper.get(point.l21, [None] * 4),
        )
        for point, comparison in zip(points, comparisons, strict=True)
    ]
    rates = [point.group.rate for point in points]

    def sparsest(samples: Sequence[Sample]) -> str:
        near = [rate for rate, sample in zip(rates, samples, strict=True) if sample.auc >= adam.auc - 0.001]
        return f"{min(near):.2g}" if near else "none"

    def curve(label: str, samples: Sequence[Sample]) -> Series:
        deviations = [sample.auc_deviation for sample in samples]
        bars = tuple(deviation for deviation in deviations if deviation is not None)
        return Series(label, tuple(rates), tuple(sample.auc for sample in samples), bars)

    group, pruned = [point.group for point in points], [point.adam for point in points]
    cells = [(one.p_value, rate, one.difference) for one, rate in zip(comparisons, rates, strict=True)]
    whole = published()["setup"]["runs"]
    shown_seeds = "one seed" if seeds == 1 else f"{seeds} seeds"
    shown_seeds += f", of the paper's {whole}" if seeds < whole else ""
    return Section(
        name="sparsity-vs-auc",
        title="Group Adam against Adam with magnitude pruning (Table 2, Figure 1)",
        findings=(
            f"Group Adam is {tally(comparisons)}, at feature rates from {max(rates):.2g} to {min(rates):.2g}.",
            "With one seed there is no t-test, and nothing to count as the paper does."
            if seeds == 1
            else f"Counted as the paper does, Group Adam is better: {counted(cells)}.",
            f"Adam with all features reaches {adam.auc:.4f}. Of the points within .001 of that, the sparsest is "
            f"{sparsest(group)} with Group Adam and {sparsest(pruned)} with pruning.",
        ),
        method=(
            f"{config.model.name.upper()}, one epoch, batches of {config.training.batch_size}, learning rate "
            f"{config.optimizer.lr:g} for both, {shown_seeds}. λ1 = λ2 = 0; λ21 is the paper's"
            + (
                f", and goes on until feature rates from {HIGHEST_RATE} to {LOWEST_RATE} are covered."
                if lab.recipe == "searched"
                else ", five values: a part of the grid that covers all feature rates."
            ),
            "Adam is pruned to as many embedding vectors as Group Adam keeps with the same seed, as §4.2 says: the top "
            "N by norm, fine-tuned on the last 0, 10, 20 or 30 % of the samples, pruned to N again. The schedule is "
            f"the one with the best AUC on the last tenth of the training rows ({min(seeds, TRIAL_SEEDS)} seeds). That "
            "gives pruning four trials at each point, and Group Adam one.",
            STATISTICS,
        ),
        tables=(
            table(
                "points",
                "AUC at the same feature rate",
                "λ21; feature rate|.4f; Adam, pruned|.4f; ± sd|.4f; fine-tuned on; Group Adam|.4f; ± sd |.4f; "
                f"{COLUMNS}; paper: rate|.4f; paper: Adam|.4f; paper: Group Adam|.4f; paper: p|.2g",
                rows,
                f"The paper's columns are those of its {published()['datasets'][network]} with "
                f"{network.upper()}, at the same λ21, for comparison: {published()['source']}.",
            ),
        ),
        figures=(
            Figure(
                "auc",
                "AUC across feature rates",
                "feature rate",
                "test AUC",
                (
                    curve("Group Adam", group),
                    curve("Adam, pruned", pruned),
                    Series("Adam, all features", (), (adam.auc,), style="level"),
                ),
                x_scale="log",
                note="Error bars are one standard deviation over seeds.",
            ),
        ),
    )


def fine_tune(lab: Lab) -> Section:
    """Table 8."""
    config = tuned(lab, lab.config)
    points = prune_alike(lab, config, grid(lab, config))
    shares, network = published()["setup"]["fine_tune_shares"], network_of(config)
    l21s = [point["l21"] for point in published()["sparsity"][network]]
    paper = dict(zip(l21s, published()["fine_tune"][network], strict=True))
    rows: list[Row] = []
    lost = []
    for point in points:
        best_share = max(shares, key=lambda share: point.pruned[share].auc)
        lost.append(point.pruned[best_share].auc - point.adam.auc)
        theirs = paper.get(point.l21)
        for share, sample in point.pruned.items():
            marks = ["chosen"] * (share == point.share) + ["best"] * (share == best_share)
            rows.append(
                (
                    *(point.l21, sample.rate, f"{share:.0%}", point.validation[share], *sample.auc_cells),
                    ", ".join(marks) or None,
                    *((None, None) if theirs is None else (theirs["feature_rate"], theirs["aucs"][share])),
                )
            )
    chosen = [point.share for point in points]
    counts = ", ".join(f"{share:.0%} at {chosen.count(share)}" for share in shares)
    return Section(
        name="fine-tune",
        title="Fine-tuning schedules of magnitude pruning (Table 8)",
        findings=(
            f"Of {len(points)} feature rates, validation chooses fine-tuning on {counts}.",
            f"Had the best schedule been known from the test rows, AUC would be {sum(lost) / len(lost):.4f} higher on "
            f"average, and {max(lost):.4f} at most.",
        ),
        method=(
            "Adam is trained on the first samples, pruned to N embedding vectors, trained on the last ones, and pruned "
            "to N again, for features come and go in between: new ones, and pruned ones, which start again from zero. "
            "N is what Group Adam keeps at the λ21 of the row. 0 % is pruning at the end and nothing else.",
            "“Chosen” is the schedule with the best AUC on the last tenth of the training rows "
            f"({min(len(lab.seeds), TRIAL_SEEDS)} seeds), “best” the one with the best test AUC, which nobody knows.",
        ),
        tables=(
            table(
                "schedules",
                "Test AUC by the share of samples kept for fine-tuning",
                "λ21; feature rate|.4f; fine-tuned on; validation AUC|.4f; test AUC|.4f; ± sd|.4f; mark; "
                "paper: rate|.4f; paper: AUC|.4f",
                rows,
                f"The paper's numbers are those of {published()['datasets'][network]}.",
            ),
        ),
    )


def learning_rate(lab: Lab) -> Section:
    """Table 5."""
    network = network_of(lab.config)
    dataset = published()["datasets"][network]
    rows: list[Row] = []
    findings = []
    for base in BASES:
        trials = learning_rate_trials(lab, lab.config.replace(optimizer=base, **NO_PENALTY))
        chosen, paper = best(trials), published()["learning_rates"][network][base]
        for rate, sample in trials:
            marks = ["chosen"] * (rate == chosen) + ["paper's"] * (rate == paper)
            rows.append((NAMES[base], rate, *sample.auc_cells, ", ".join(marks) or None))
        at_end = ", at the end of the grid" if chosen in (trials[0][0], trials[-1][0]) else ""
        findings.append(f"{NAMES[base]}: {chosen:g} is best ({dataset} in the paper: {paper:g}){at_end}.")
    return Section(
        name="learning-rate",
        title="Learning rates (Table 5)",
        findings=tuple(findings),
        method=(
            "Trained on the training rows without their last tenth, and measured on that, with λ1 = λ21 = λ2 = 0, "
            "which makes the Group optimizers the base ones. The Group version takes the base optimizer's rate, as in "
            "the paper. AUC is the mean over seeds.",
        ),
        tables=(
            table(
                "learning-rates",
                "Validation AUC",
                "optimizer; learning rate; validation AUC|.4f; ± sd|.4f; mark",
                rows,
                f"“paper's” marks the rate that its Table 5 gives for {network.upper()}.",
            ),
        ),
    )


def _without_and_with(lab: Lab, config: Config) -> tuple[Config, Config]:
    """A base optimizer and its Group version, each tuned: a finer learning rate, and λ21."""
    coarse = tuned(lab, config)
    return tuned_finer(lab, coarse), coarse.replace(l21=choose_l21(lab, coarse), l2=0.0)


def best_auc(lab: Lab) -> Section:
    """Table 3."""
    network = network_of(lab.config)
    dataset = published()["datasets"][network]
    rows: list[Row] = []
    findings = []
    for base in BASES:
        config = lab.config.replace(optimizer=base, **NO_PENALTY)
        learning_rate, lambdas, paper = (
            published()[name][network][base] for name in ("learning_rates", "lambdas", "best_auc")
        )
        as_published = config.replace(lr=learning_rate)
        pairs = {"paper's": (as_published, as_published.replace(**lambdas))}
        if lab.recipe == "searched":
            pairs["searched"] = _without_and_with(lab, config)
        for recipe, (plain, group) in pairs.items():
            ours, theirs = lab.plain([group, plain], f"{NAMES[base]}, {recipe} λ")
            comparison, of = versus(ours, theirs), group.optimizer
            rows.append(
                (
                    *(NAMES[base], recipe, plain.optimizer.lr, of.lr, of.l1, of.l21, of.l2),
                    *(*theirs.auc_cells, theirs.rate, *ours.auc_cells, ours.rate),
                    *(*comparison.cells, t_test(ours.each("feature_rate"), theirs.each("feature_rate"), paired=True)),
                    *(paper[name] for name in ("auc", "group_auc", "group_feature_rate", "auc_p_value")),
                )
            )
            findings.append(
                f"Group {NAMES[base]} with the {recipe} settings keeps {ours.rate:.2%} of the features, and its AUC is "
                f"{comparison.difference:+.4f} against {NAMES[base]}'s: {comparison.verdict}."
            )
    searched = (
        "“Searched” are chosen on the last tenth of the training rows. Both have the best of the paper's five learning "
        f"rates at λ = 0. Then the base optimizer has {TRIALS} more trials, {SEARCHED}"
    )
    return Section(
        name="best-auc",
        title="Adam and Adagrad against their Group versions (Table 3)",
        findings=tuple(findings),
        method=(
            "Nothing is pruned. “Paper's” are the learning rate and the λs that its Tables 5 to 7 give for "
            f"{network.upper()} on {dataset}, whatever the data here.",
            *([searched] if lab.recipe == "searched" else []),
            STATISTICS + " The p of the rate is of the same test.",
        ),
        tables=(
            table(
                "best",
                "AUC and feature rate without pruning",
                "optimizer; settings; learning rate; Group: rate; λ1; λ21; λ2; AUC|.4f; ± sd|.4f; feature rate|.4f; "
                f"Group: AUC|.4f; ± sd |.4f; Group: feature rate|.4f; {COLUMNS}; p of rate|.2g; paper: AUC|.4f; "
                "paper: Group AUC|.4f; paper: Group rate|.4f; paper: p|.2g",
                rows,
                f"The paper's numbers are those of {dataset}.",
            ),
        ),
    )


def family(lab: Lab) -> Section:
    """Table 1."""
    rows: list[Row] = []
    comparisons = []
    for optimizer, name in NAMES.items():
        plain, group = _without_and_with(lab, lab.config.replace(optimizer=optimizer, **NO_PENALTY))
        ours, theirs = lab.plain([group, plain], name)
        comparisons.append(versus(ours, theirs))
        rows.append(
            (
                *(name, plain.optimizer.lr, *theirs.auc_cells, group.optimizer.lr, group.optimizer.l21),
                *(*ours.auc_cells, ours.rate, *comparisons[-1].cells),
            )
        )
    return Section(
        name="family",
        title="The six optimizers of Table 1 against their Group versions",
        findings=(f"The Group versions are {tally(comparisons)}.",),
        method=(
            "Both have the best of the paper's five learning rates at λ = 0, by AUC on the last tenth of the training "
            f"rows. Then the base optimizer has {TRIALS} more trials there, {SEARCHED} SGD's rate falls with √t, as "
            "Table 1 has it.",
            STATISTICS,
        ),
        tables=(
            table(
                "family",
                "AUC without pruning, and the Group version's feature rate",
                "optimizer; learning rate; AUC|.4f; ± sd|.4f; Group: learning rate; λ21; Group: AUC|.4f; ± sd |.4f; "
                f"Group: feature rate|.4f; {COLUMNS}",
                rows,
            ),
        ),
    )


def embedding_dim(lab: Lab) -> Section:
    """Table 4, always on DCN."""
    lambdas, default = published()["lambdas"]["dcn"]["adam"], published()["dcn_dim"]
    config = tuned_on_dcn(lab).replace(**lambdas)
    paper = {point["dimension"]: point for point in published()["embedding_dim"]}
    trained = lab.plain([config.replace(dim=dim) for dim in paper], "dimensions")
    samples = dict(zip(paper, trained, strict=True))
    rows: list[Row] = []
    for dim, sample in samples.items():
        cells = versus(sample, samples[default], paired=False).cells if dim != default else NOT_COMPARED
        rows.append((dim, sample.rate, *sample.auc_cells, *cells, paper[dim]["feature_rate"], paper[dim]["auc"]))
    falls = all(one.rate >= other.rate for one, other in itertools.pairwise(trained))
    rates = ", ".join(f"{sample.rate:.4f} at {dim}" for dim, sample in samples.items())
    return Section(
        name="embedding-dim",
        title="Embedding dimensions (Table 4)",
        findings=(
            f"The feature rate {'falls' if falls else 'does not fall throughout'} as the dimension grows: {rates}. "
            f"AUC is highest at {max(samples, key=lambda dim: samples[dim].auc)}.",
        ),
        method=(
            f"DCN with Group Adam, learning rate {config.optimizer.lr:g}, and the λs that Table 6 gives for DCN: "
            f"λ1 = {lambdas['l1']:g}, λ21 = {lambdas['l21']:g}, λ2 = {lambdas['l2']:g}. The threshold is √d λ21.",
            f"Each dimension is compared with {default}. First weights differ, so the test is Welch's. " + STATISTICS,
        ),
        tables=(
            table(
                "dimensions",
                "Feature rate and AUC",
                f"dimension; feature rate|.4f; test AUC|.4f; ± sd|.4f; {COLUMNS}; paper: rate|.4f; paper: AUC|.4f",
                rows,
                f"The paper's numbers are those of {published()['datasets']['dcn']}.",
            ),
        ),
    )


def norm(lab: Lab) -> Section:
    """Table 9 and Figure 2, always on DCN."""
    config = tuned_on_dcn(lab)
    # For the metric, whose threshold is between theirs, the geometric means of the paper's two grids.
    pairs = zip(*published()["norm_grids"].values(), strict=True)
    between = [float(f"{np.sqrt(a * b):.2g}") for a, b in pairs]
    grids: dict[NormName, list[float]] = {**published()["norm_grids"], "metric": between}
    found: dict[NormName, list[Sample]] = {}
    rows: list[Row] = []
    for kind, values in grids.items():
        # At λ = 0 the norms are the same.
        found[kind] = lab.plain([config.replace(l21=l21, norm=kind if l21 else "s") for l21 in values], f"norm {kind}")
        for l21, sample in zip(values, found[kind], strict=True):
            rows.append((LABELS[kind], l21, sample.rate, *sample.auc_cells))
    compared: list[Row] = []
    findings = []
    for other in ("s_tilde", "metric"):
        comparisons = []
        for rate in RATES:
            ours, theirs = at_rate(found["s"], rate), at_rate(found[other], rate)
            if ours is not None and theirs is not None:
                comparisons.append(versus(ours, theirs))
                compared.append((LABELS[other], rate, theirs.auc, ours.auc, *comparisons[-1].cells))
        rates, ours_rates = ([sample.rate for sample in found[kind]] for kind in (other, "s"))
        findings.append(
            f"‖s‖ against {LABELS[other]} at the same feature rate: {tally(comparisons)}."
            if comparisons
            else f"The λ grid leads {LABELS[other]} to feature rates from {max(rates):.2g} to {min(rates):.2g} and "
            f"‖s‖ from {max(ours_rates):.2g} to {min(ours_rates):.2g}: they meet nowhere among the rates of the table."
        )
    return Section(
        name="norm",
        title="‖s‖, ‖s̃‖ or the metric in the group threshold (Figure 2, Table 9)",
        findings=tuple(findings),
        method=(
            f"DCN with Group Adam, λ1 = λ2 = 0, learning rate {config.optimizer.lr:g}. λ21 is as in Table 9; for the "
            "metric, of which the paper has no experiment, the geometric means of the other two grids.",
            "The norms are compared at the same feature rate, each between its two nearest points, linearly in the "
            "logarithm of the rate, seed by seed. " + STATISTICS,
        ),
        tables=(
            table(
                "compared",
                "AUC at the same feature rate",
                f"other norm; feature rate; AUC of the other|.4f; AUC of ‖s‖|.4f; {COLUMNS}",
                compared,
                f"Only rates that both reach, between points at most {WIDEST_GAP:g} times apart.",
            ),
            table("points", "All points", "norm; λ21; feature rate|.4f; test AUC|.4f; ± sd|.4f", rows),
        ),
    )


def l1_vs_l21(lab: Lab) -> Section:
    """Figure 3, always on DCN."""
    config = tuned_on_dcn(lab)
    values = grid(lab, config)
    with_l1 = lab.plain([config.replace(l1=value) for value in values], "λ1")
    with_l21 = lab.plain([config.replace(l21=value) for value in values], "λ21")
    ratios = [one.rate / max(other.rate, 1e-12) for one, other in zip(with_l1, with_l21, strict=True)]
    middle = [ratio for ratio, other in zip(ratios, with_l21, strict=True) if 0 < other.rate < 0.9]
    times = f"; where it keeps less than .9 of them, λ1 keeps {np.median(middle):.2g} times as many (median)"
    fewer = f"At {sum(ratio > 1 for ratio in ratios)} of {len(values)} values λ21 keeps fewer features than λ1"
    rows: list[Row] = [
        (value, one.rate, other.rate, ratio, *(of.mean("parameter_rate") for of in (one, other)), one.auc, other.auc)
        for value, one, other, ratio in zip(values, with_l1, with_l21, ratios, strict=True)
    ]
    return Section(
        name="l1-vs-l21",
        title="Equal values of λ1 and λ21 (Figure 3)",
        findings=(f"{fewer}{times if middle else ''}.",),
        method=(
            f"DCN with Group Adam, learning rate {config.optimizer.lr:g}: λ1 with λ21 = λ2 = 0, and λ21 with λ1 = λ2 "
            "= 0.",
        ),
        tables=(
            table(
                "values",
                "Feature rate and AUC",
                "value; λ1: feature rate|.4f; λ21: feature rate|.4f; times|.2f; λ1: non-zero weights|.4f; "
                "λ21: non-zero weights|.4f; λ1: AUC|.4f; λ21: AUC|.4f",
                rows,
                "“Non-zero weights” are a share of the embedding weights of all features seen.",
            ),
        ),
        figures=(
            Figure(
                "rate",
                "Feature rate across values of λ",
                "λ1 or λ21",
                "feature rate",
                (
                    Series("λ1", values, tuple(sample.rate for sample in with_l1)),
                    Series("λ21", values, tuple(sample.rate for sample in with_l21)),
                ),
                "log",
            ),
        ),
    )
