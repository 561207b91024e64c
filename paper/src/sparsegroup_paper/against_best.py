"""The recommended recipe against the best of all other methods, at each feature rate."""

from collections.abc import Sequence

from sparsegroup_paper.contenders import PRUNED, RATES, Contender
from sparsegroup_paper.lab import Sample
from sparsegroup_paper.recipe import RECIPE, UNTUNED
from sparsegroup_paper.section import Cell, Column, SectionTable
from sparsegroup_paper.versus import COLUMNS, Versus, at_rate, tally, versus

AGAINST_BEST = "against-best"

RECIPES = (RECIPE, UNTUNED)


def against_best(found: Sequence[Contender]) -> tuple[SectionTable, list[str]]:
    """The comparison as a table, and what it says in sentences."""
    rows: list[tuple[Cell, ...]] = []
    comparisons: dict[str, list[Versus]] = {name: [] for name in RECIPES}
    wins, wanted = dict.fromkeys(RECIPES, 0), 0
    for rate in RATES:
        reached = ((one.name, at_rate(one.samples, rate)) for one in found)
        samples = {name: sample for name, sample in reached if sample is not None}
        others = {name: sample for name, sample in samples.items() if name not in RECIPES}
        if not others:
            continue
        best = max(others, key=lambda name: others[name].auc)
        better = {name for name in samples if PRUNED in samples and _is_better(samples[name], samples[PRUNED])}
        wanted += bool(better)
        for name in RECIPES:
            sample = samples.get(name)
            if sample is None:
                continue
            comparison = versus(sample, others[best])
            comparisons[name].append(comparison)
            wins[name] += name in better
            rows.append((rate, name, sample.auc, best, others[best].auc, *comparison.cells))
    table = SectionTable(
        AGAINST_BEST,
        f"{RECIPE} against the best of all others",
        (
            Column("feature rate"),
            Column("method"),
            Column("test AUC", ".4f"),
            Column("best of the others"),
            Column("its AUC", ".4f"),
            *COLUMNS,
        ),
        tuple(rows),
        "The best of the others is that with the highest mean test AUC, which is luck in part: the recipe's choices "
        "are made on training rows.",
    )
    sentences = [
        f"{name} against the best of all others: {tally(comparisons[name])}; where any method is better than {PRUNED}, "
        f"so is it at {wins[name]} of {wanted}."
        for name in RECIPES
    ]
    return table, sentences


def _is_better(sample: Sample, baseline: Sample) -> bool:
    return versus(sample, baseline).verdict == "better"
