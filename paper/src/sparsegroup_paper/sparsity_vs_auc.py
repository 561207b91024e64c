"""Table 2 and Figure 1: Group Adam against Adam with magnitude pruning at the same feature rate."""

from sparsegroup_paper.choices import HIGHEST_RATE, LOWEST_RATE, TRIAL_SEEDS, grid, network_of, tuned
from sparsegroup_paper.lab import Lab
from sparsegroup_paper.published import published
from sparsegroup_paper.schedules import Point, prune_alike
from sparsegroup_paper.section import Column, Figure, Section, SectionTable, Series
from sparsegroup_paper.statistics import Count, share_significant
from sparsegroup_paper.versus import COLUMNS, STATISTICS, Versus, tally, versus


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
    columns = (
        Column("λ21"),
        Column("feature rate", ".4f"),
        Column("Adam, pruned", ".4f"),
        Column("± sd", ".4f"),
        Column("fine-tuned on"),
        Column("Group Adam", ".4f"),
        Column("± sd ", ".4f"),
        *COLUMNS,
        Column("paper: rate", ".4f"),
        Column("paper: Adam", ".4f"),
        Column("paper: Group Adam", ".4f"),
        Column("paper: p", ".2g"),
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
            *_rows_seen_once(points),
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
                columns,
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


def _rows_seen_once(points: list[Point]) -> tuple[str, ...]:
    """What becomes of features seen once, where the truth is known."""
    found = [point for point in points if point.group.outcomes[0].survivors]
    once = [(point, point.group.outcomes[0].survivors[0]) for point in found]
    gone = [point.l21 for point, survivors in once if survivors.most == 1 and not survivors.live]
    if not gone:
        return ()
    share = once[0][1].features / once[0][0].group.outcomes[0].seen
    return (f"Features seen once, {share:.0%} of all, are gone from λ21 = {min(gone):g} on.",)
