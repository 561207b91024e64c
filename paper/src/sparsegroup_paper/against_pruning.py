"""Tables 2 and 8: Group Adam against Adam with magnitude pruning and fine-tuning, at the same feature rates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sparsegroup.training import Config
from sparsegroup_paper.choices import HIGHEST_RATE, LOWEST_RATE, TRIAL_SEEDS, grid, network_of, tuned
from sparsegroup_paper.lab import Lab, Sample
from sparsegroup_paper.published import published
from sparsegroup_paper.runs import Method, Plain, Pruned
from sparsegroup_paper.section import Figure, Section, SectionTable, Series, columns
from sparsegroup_paper.statistics import Count, share_significant
from sparsegroup_paper.versus import COLUMNS, STATISTICS, Versus, tally, versus


@dataclass(frozen=True)
class Point:
    """Group Adam at one λ21, and Adam at its feature rate.

    Attributes:
        l21: λ21.
        group: Group Adam's outcomes.
        pruned: Share of the samples for fine-tuning → Adam's outcomes on the test rows.
        validation: The same → mean AUC on the last tenth of the training rows.
        share: The one with the best of these.
    """

    l21: float
    group: Sample
    pruned: Mapping[float, Sample]
    validation: Mapping[float, float]
    share: float

    @property
    def adam(self) -> Sample:
        """Adam with the chosen schedule."""
        return self.pruned[self.share]


def prune_alike(lab: Lab, config: Config, values: Sequence[float]) -> list[Point]:
    """Group Adam at several λ21, and Adam pruned to as many vectors with each seed.

    Args:
        lab: Where it is run.
        config: Settings of Adam, with a learning rate and no λ.
        values: λ21.
    """
    shares = published().setup.fine_tune_shares
    groups = lab.samples([(config.replace(l21=value), Plain()) for value in values], name="Group Adam")
    # No further fine-tuning is tried on the test rows than is shown: all schedules are, as in Table 8.
    wanted: list[tuple[Config, Method | Sequence[Method]]] = []
    trials: list[tuple[Config, Method]] = []
    for group in groups:
        for share in shares:
            keeps = [outcome.live / max(1, outcome.seen) for outcome in group.outcomes]
            wanted.append((config, [Pruned(keep, share) for keep in keeps]))
            trials.append((config, Pruned(round(float(np.mean(keeps)), 9), share)))
    seeds = lab.seeds[:TRIAL_SEEDS]
    together = [*lab.runs(wanted), *lab.runs(trials, validate=True, seeds=seeds)]  # for there may be few of each
    lab.carry_out([run for runs in together for run in runs], "Adam, pruned")
    pruned = lab.samples(wanted, name="Adam, pruned")
    validated = lab.samples(trials, validate=True, name="schedules", seeds=seeds)
    points = []
    for number, (value, group) in enumerate(zip(values, groups, strict=True)):
        part = slice(number * len(shares), (number + 1) * len(shares))
        validation = dict(zip(shares, (sample.auc for sample in validated[part]), strict=True))
        share = max(shares, key=lambda share: validation[share])
        points.append(Point(value, group, dict(zip(shares, pruned[part], strict=True)), validation, share))
    return points


def sparsity_vs_auc(lab: Lab) -> Section:
    """Run it."""
    config = tuned(lab, lab.config)
    points = prune_alike(lab, config, grid(lab, config))
    adam = lab.sample(config, name="Adam")
    comparisons = [versus(point.group, point.adam) for point in points]
    claims = published().claims
    everywhere, low = (
        _significant(points, comparisons, claims.confidence, below) for below in (None, claims.low_feature_rate)
    )
    published_points = {point.l21: point for point in published().sparsity[network_of(config)]}
    rows = []
    for point, comparison in zip(points, comparisons, strict=True):
        paper = published_points.get(point.l21)
        rows.append(
            (
                point.l21,
                point.group.rate,
                point.adam.auc,
                point.adam.auc_deviation,
                f"{point.share:.0%}",
                point.group.auc,
                point.group.auc_deviation,
                *comparison.cells,
                *((paper.feature_rate, paper.adam_auc, paper.group_adam_auc, paper.p_value) if paper else [None] * 4),
            )
        )
    shown = (
        *columns("λ21; feature rate|.4f; Adam, pruned|.4f; ± sd|.4f; fine-tuned on; Group Adam|.4f; ± sd |.4f"),
        *COLUMNS,
        *columns("paper: rate|.4f; paper: Adam|.4f; paper: Group Adam|.4f; paper: p|.2g"),
    )
    seeds = len(lab.seeds)
    return Section(
        name="sparsity-vs-auc",
        title="Group Adam against Adam with magnitude pruning (Table 2, Figure 1)",
        findings=(
            f"Group Adam is {tally(comparisons)}, at feature rates from {max(p.group.rate for p in points):.2g} to "
            f"{min(p.group.rate for p in points):.2g}.",
            *_counted(everywhere, low, seeds),
            f"Adam with all features reaches {adam.auc:.4f}. Of the points within .001 of that, the sparsest is "
            f"{_sparsest(points, adam.auc, 'group')} with Group Adam and "
            f"{_sparsest(points, adam.auc, 'adam')} with pruning.",
        ),
        method=(
            f"{config.model.name.upper()}, one epoch, batches of {config.training.batch_size}, learning rate "
            f"{config.optimizer.lr:g} for both, {_seeds(seeds)}. λ1 = λ2 = 0; λ21 is the paper's"
            + (
                f", and goes on until feature rates from {HIGHEST_RATE} to {LOWEST_RATE} are covered."
                if lab.recipe == "searched"
                else ", five values: a part of the grid that covers all feature rates."
            ),
            "Adam is pruned to as many embedding vectors as Group Adam keeps with the same seed, as §4.2 says: the top "
            "N by norm, fine-tuned on the last 0, 10, 20 or 30 % of the samples, pruned to N again. The schedule is "
            "the "
            f"one with the best AUC on the last tenth of the training rows ({min(seeds, TRIAL_SEEDS)} seeds). That "
            "gives pruning four trials at each point, and Group Adam one.",
            STATISTICS,
        ),
        tables=(
            SectionTable(
                "points",
                "AUC at the same feature rate",
                shown,
                tuple(rows),
                f"The paper's columns are those of its {published().networks[network_of(config)].dataset} with "
                f"{network_of(config).upper()}, at the same λ21, for comparison: {published().source}.",
            ),
        ),
        figures=(
            Figure(
                "auc",
                "AUC across feature rates",
                "feature rate",
                "test AUC",
                (
                    _series("Group Adam", points, "group"),
                    _series("Adam, pruned", points, "adam"),
                    Series("Adam, all features", (), (adam.auc,), style="level"),
                ),
                x_scale="log",
                note="Error bars are one standard deviation over seeds.",
            ),
        ),
    )


def _seeds(number: int) -> str:
    whole = published().setup.runs
    return ("one seed" if number == 1 else f"{number} seeds") + (f", of the paper's {whole}" if number < whole else "")


def _series(label: str, points: list[Point], which: str) -> Series:
    samples = [getattr(point, which) for point in points]
    deviations = [sample.auc_deviation for sample in samples]
    return Series(
        label,
        tuple(point.group.rate for point in points),
        tuple(sample.auc for sample in samples),
        tuple(float(deviation) for deviation in deviations) if None not in deviations else (),
    )


def _significant(points: list[Point], comparisons: list[Versus], level: float, below: float | None) -> Count:
    return share_significant(
        [one.comparison.p_value for one in comparisons],
        [point.group.rate for point in points],
        [one.comparison.difference for one in comparisons],
        level,
        below,
    )


def _counted(everywhere: Count, low: Count, seeds: int) -> tuple[str, ...]:
    claims = published().claims
    if seeds == 1:
        return ("With one seed there is no t-test, and nothing to count as the paper does.",)
    at_low = f"{low.significant} of {low.cells} points" if low.cells else "no point"
    return (
        f"Counted as the paper does, Group Adam is significantly better at {claims.confidence:.0%} confidence at "
        f"{everywhere.significant} of {everywhere.cells} points ({everywhere.share:.0%}; the paper: "
        f"{claims.share_significant:.0%}), and below a feature rate of {claims.low_feature_rate:g} at {at_low} "
        f"(the paper: {claims.share_significant_at_low_rate:.1%}).",
    )


def _sparsest(points: list[Point], auc: float, which: str) -> str:
    rates = [point.group.rate for point in points if getattr(point, which).auc >= auc - 0.001]
    return f"{min(rates):.2g}" if rates else "none"


def fine_tune(lab: Lab) -> Section:
    """Run it."""
    config = tuned(lab, lab.config)
    points = prune_alike(lab, config, grid(lab, config))
    shares = published().setup.fine_tune_shares
    paper = {
        point.l21: cell
        for point, cell in zip(
            published().sparsity[network_of(config)], published().fine_tune[network_of(config)], strict=True
        )
    }
    rows = []
    for point in points:
        best = max(shares, key=lambda share: point.pruned[share].auc)
        for share in shares:
            sample = point.pruned[share]
            marks = ["chosen"] * (share == point.share) + ["best"] * (share == best)
            published_cell = paper.get(point.l21)
            rows.append(
                (
                    point.l21,
                    sample.rate,
                    f"{share:.0%}",
                    point.validation[share],
                    sample.auc,
                    sample.auc_deviation,
                    ", ".join(marks) or None,
                    None if published_cell is None else published_cell.feature_rate,
                    None if published_cell is None else published_cell.aucs[share],
                )
            )
    chosen = [point.share for point in points]
    lost = [max(point.pruned[share].auc for share in shares) - point.adam.auc for point in points]
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
            SectionTable(
                "schedules",
                "Test AUC by the share of samples kept for fine-tuning",
                columns(
                    "λ21; feature rate|.4f; fine-tuned on; validation AUC|.4f; test AUC|.4f; ± sd|.4f; "
                    "mark; paper: rate|.4f; paper: AUC|.4f"
                ),
                tuple(rows),
                f"The paper's numbers are those of {published().networks[network_of(config)].dataset}.",
            ),
        ),
    )
