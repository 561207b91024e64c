"""Beyond the paper: AUC against feature rate for all ways to a small table, for a user to choose from."""

from collections.abc import Sequence

from sparsegroup_paper.against_best import against_best
from sparsegroup_paper.choices import TENTHS, TRIAL_SEEDS
from sparsegroup_paper.contenders import CUT_OFF, GROUP_ADAM, L2S, PRUNED, RATES, Contender, contenders, of
from sparsegroup_paper.lab import Lab
from sparsegroup_paper.recipe import (
    FACTORS,
    LEARNING_RATE,
    PRUNED_BY_RATE,
    PRUNED_UNTUNED,
    RECIPE,
    UNTUNED,
    pruned_by_rate,
    pruned_untuned,
    recipe,
    untuned,
)
from sparsegroup_paper.recovery import is_known, recovery_figure, recovery_table
from sparsegroup_paper.section import Cell, Column, Figure, Section, SectionTable, Series
from sparsegroup_paper.versus import COLUMNS, STATISTICS, WIDEST_GAP, Versus, at_rate, tally, versus

SHOWN = (UNTUNED, PRUNED, PRUNED_UNTUNED, GROUP_ADAM, CUT_OFF)
"""In the first figure; all are in the last."""

REST = "best of all others"


def frontier(lab: Lab) -> Section:
    """Run it."""
    found = [recipe(lab), untuned(lab), *contenders(lab), pruned_by_rate(lab), pruned_untuned(lab)]
    pruned = of(found, PRUNED)
    compared: list[tuple[Cell, ...]] = []
    by_method: dict[str, list[Versus]] = {}
    leaders, rest = [], {}
    for rate in RATES:
        aucs = {}
        baseline = at_rate(pruned.samples, rate)
        for one in found:
            sample = at_rate(one.samples, rate)
            if sample is None:
                continue
            aucs[one.name] = sample.auc
            cells: tuple[Cell, ...] = (None,) * len(COLUMNS)
            if one is not pruned and baseline is not None:
                comparison = versus(sample, baseline)
                by_method.setdefault(one.name, []).append(comparison)
                cells = comparison.cells
            compared.append((rate, one.name, sample.auc, sample.auc_deviation, *cells))
        if aucs:
            top = max(aucs, key=lambda name: aucs[name])
            leaders.append(f"{top} at {rate:g} ({aucs[top]:.4f})")
        if others := [auc for name, auc in aucs.items() if name not in (RECIPE, *SHOWN)]:
            rest[rate] = max(others)
    findings = [f"Highest mean AUC: {', '.join(leaders)}."]
    against, sentences = against_best(found)
    findings += sentences
    findings += [f"{name} against {PRUNED}: {tally(comparisons)}." for name, comparisons in by_method.items()]
    tables = [
        against,
        SectionTable(
            "compared",
            f"AUC at the same feature rate, against “{PRUNED}”",
            (
                Column("feature rate"),
                Column("method"),
                Column("test AUC", ".4f"),
                Column("± sd", ".4f"),
                *COLUMNS,
            ),
            tuple(compared),
            "Each between its two nearest points, linearly in the logarithm of the rate, seed by seed. A method is "
            f"left out at rates that it does not reach, or between points more than {WIDEST_GAP:g} times apart.",
        ),
    ]
    figures = [
        _figure(
            "frontier",
            "AUC against feature rate",
            [of(found, name) for name in SHOWN],
            Series(REST, tuple(rest), tuple(rest.values()), style="points"),
        )
    ]
    if is_known(found):
        table, sentence = recovery_table(found)
        tables.append(table)
        findings.append(sentence)
        figures.append(recovery_figure(found))
    figures.append(_figure("all-methods", "AUC against feature rate, all methods", found))
    tables.append(_points(found))
    return Section(
        name="frontier",
        title="The frontier: AUC against feature rate, for all methods",
        findings=tuple(findings),
        method=(
            f"“{RECIPE}” is a size that is asked for (`TargetRate`), the hard threshold and a learned vector per field "
            f"for features without a live row, with Group Adagrad at a learning rate of {LEARNING_RATE:g}, unless "
            "validation at that feature rate says otherwise: Adam or Adagrad, another learning rate, λ2, mcp. "
            f"“{UNTUNED}” asks no validation. “{PRUNED_BY_RATE}” has the same beginning and the same freedom, with the "
            f"fine-tuning schedule in place of λ2 and mcp; “{PRUNED_UNTUNED}” has the beginning alone.",
            "Beside it are Group Adam and Group Adagrad (also known as Group FTRL) with each penalty, at constant λ21 "
            "and with λ21 set along the way for a feature rate that was asked for, the hard threshold also with such a "
            "vector; Adam with magnitude pruning and fine-tuning; Adam with λ1 alone; "
            "Adam on a log in which each field's features seen less than k times "
            "in the training rows are one; and DeepLight's pruning of single weights while training, with Adam.",
            f"Every method has {5 + len(L2S)} trials on the last tenth of the training rows: the paper's five learning "
            f"rates, then {len(L2S)} values of λ2, both near a feature rate of .1; pruning has the learning rates "
            "before "
            f"it prunes, and {len(L2S)} fine-tuning schedules. (Where to look for the rate of .1 is found with Adam's "
            "or Adagrad's learning rate at λ = 0. Pruning and the frequency cut-off know the rate that they lead to "
            "beforehand.)",
            f"“{RECIPE}” has as many trials at each rate: its beginning, {len(FACTORS)} learning rates of Adam and of "
            "Adagrad, half a decade apart around the best one at λ = 0; then, with the best, mcp and values of λ2. "
            f"Each trial is validated on the last {len(TENTHS)} tenths of the training rows, each after training on "
            "what is before it, with a seed of its own, and takes another's place if it is better on each of them: "
            "one tenth tells of one day or one season. So a trial takes "
            f"{len(TENTHS)} shorter runs where the others' take {TRIAL_SEEDS}, and the recipe is tuned at each rate "
            "where they are tuned near .1. Its beginning was found on avazu_sample, criteo_sample and nycflights13, "
            "their test rows included, and on no other log. Pruning with the same freedom tells the recipe from "
            "its choices.",
            STATISTICS,
        ),
        tables=tuple(tables),
        figures=tuple(figures),
    )


def _figure(name: str, title: str, shown: Sequence[Contender], *more: Series) -> Figure:
    lines = [
        Series(
            one.name,
            tuple(sample.rate for sample in one.samples if sample.rate > 0),
            tuple(sample.auc for sample in one.samples if sample.rate > 0),
        )
        for one in shown
    ]
    return Figure(name, title, "feature rate", "test AUC", (*lines, *more), "log")


def _points(found: list[Contender]) -> SectionTable:
    return SectionTable(
        "points",
        "All points",
        (
            Column("method"),
            Column("chosen"),
            Column("strength"),
            Column("feature rate", ".4f"),
            Column("non-zero weights", ".4f"),
            Column("test AUC", ".4f"),
            Column("± sd", ".4f"),
        ),
        tuple(
            (
                one.name,
                chosen,
                strength,
                sample.rate,
                float(sample.parameter_rates.mean()),
                sample.auc,
                sample.auc_deviation,
            )
            for one in found
            for strength, sample, chosen in zip(one.strengths, one.samples, one.chosen, strict=True)
        ),
    )
