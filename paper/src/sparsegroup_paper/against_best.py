"""The recommended recipe against the best of all other contenders, at each feature rate."""

from collections.abc import Sequence

from sparsegroup_paper.contenders import PRUNED, RATES, Contender, of
from sparsegroup_paper.lab import Sample
from sparsegroup_paper.recipe import RECIPE
from sparsegroup_paper.section import Cell, Column, SectionTable
from sparsegroup_paper.versus import COLUMNS, at_rate, tally, versus

AGAINST_BEST = "against-best"


def against_best(found: Sequence[Contender]) -> tuple[SectionTable, list[str]]:
    """The comparison as a table, and what it says in sentences."""
    rows: list[tuple[Cell, ...]] = []
    against_all, wins, wanted = [], 0, 0
    for rate in RATES:
        ours = at_rate(of(found, RECIPE).samples, rate)
        reached = ((one.name, at_rate(one.samples, rate)) for one in found)
        samples = {name: sample for name, sample in reached if sample is not None}
        others = {name: sample for name, sample in samples.items() if name != RECIPE}
        if ours is None or not others:
            continue
        best = max(others, key=lambda name: others[name].auc)
        comparison = versus(ours, others[best])
        against_all.append(comparison)
        number = None
        if PRUNED in samples:
            better = {name for name in samples if _is_better(samples, name)}
            number = len(better)
            wanted += bool(better)
            wins += RECIPE in better
        rows.append((rate, ours.auc, best, others[best].auc, *comparison.cells, number))
    table = SectionTable(
        AGAINST_BEST,
        f"{RECIPE} against the best of all others",
        (
            Column("feature rate"),
            Column("recipe", ".4f"),
            Column("best of the others"),
            Column("its AUC", ".4f"),
            *COLUMNS,
            Column("better than pruned"),
        ),
        tuple(rows),
        "The best of the others is the one with the highest mean test AUC, which is luck in part: the recipe is "
        f"chosen on training rows alone. The last column is how many contenders are better than “{PRUNED}”.",
    )
    return table, [
        f"{RECIPE} against the best of all others at each rate: {tally(against_all)}.",
        f"Where any method is better than {PRUNED}, so is the recipe at {wins} of {wanted} rates.",
    ]


def _is_better(samples: dict[str, Sample], name: str) -> bool:
    return name != PRUNED and versus(samples[name], samples[PRUNED]).verdict.split(",")[0] == "better"
