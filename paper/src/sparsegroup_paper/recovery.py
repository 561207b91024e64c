"""Whether the features that survive are those that matter, on a log of which that is known."""

from collections.abc import Sequence

import numpy as np

from sparsegroup_paper.contenders import CUT_OFF, GROUP_ADAM, MIDDLE, Contender, of
from sparsegroup_paper.lab import Sample
from sparsegroup_paper.runs import Survivors
from sparsegroup_paper.section import Column, Figure, SectionTable, Series


def is_known(found: Sequence[Contender]) -> bool:
    """Whether the informative features of the log are known."""
    return any(outcome.survivors for one in found for sample in one.samples for outcome in sample.outcomes)


def recovery_table(found: Sequence[Contender]) -> tuple[SectionTable, str]:
    """Precision and recall by frequency, of Group Adam and of a count cut-off that keeps about as many features.

    Returns:
        The table, and what it says in a sentence.
    """
    group = min(_whole(of(found, GROUP_ADAM)), key=lambda sample: abs(sample.rate - MIDDLE))
    cut = min(_whole(of(found, CUT_OFF)), key=lambda sample: abs(np.log(max(sample.rate, 1e-9) / group.rate)))
    rows = []
    for number in range(len(group.outcomes[0].survivors)):
        ours, theirs = ([outcome.survivors[number] for outcome in sample.outcomes] for sample in (group, cut))
        one = ours[0]
        seen = f"{one.least:,}" if one.least == one.most else f"{one.least:,}–{one.most:,}"
        rows.append((seen, one.features, one.informative / one.features, *_cells(ours), *_cells(theirs)))
    everything = [[_sum(outcome.survivors) for outcome in sample.outcomes] for sample in (group, cut)]
    one = everything[0][0]
    rows.append(("all", one.features, one.informative / one.features, *_cells(everything[0]), *_cells(everything[1])))
    columns = (
        Column("seen"),
        Column("features"),
        Column("informative", ".3f"),
        Column("Group Adam: kept", ",.0f"),
        Column("precision", ".3f"),
        Column("recall", ".3f"),
        Column("cut-off: kept", ",.0f"),
        Column("precision ", ".3f"),
        Column("recall ", ".3f"),
    )
    table = SectionTable(
        "recovery",
        f"Informative features among the survivors, at feature rates {group.rate:.3f} and {cut.rate:.3f}",
        columns,
        tuple(rows),
        "Features by how often they are in the training rows: tenths of all, joined where the counts are the same. "
        "Precision is the share of the kept that have an effect on the label, recall the share of those that have one "
        "that are kept; means over seeds. A cut-off keeps all of a frequency or none, so its precision is the share "
        "that is informative anyway.",
    )
    precisions = [_cells(one)[1] for one in everything]
    recalls = [_cells(one)[2] for one in everything]
    sentence = (
        f"At a feature rate of {group.rate:.3f}, {precisions[0]:.1%} of the features that Group Adam keeps are "
        f"informative ({precisions[1]:.1%} of those of a count cut-off at {cut.rate:.3f}, "
        f"{one.informative / one.features:.1%} of all), and it keeps {recalls[0]:.1%} of the informative ones (the "
        f"cut-off: {recalls[1]:.1%})."
    )
    return table, sentence


def recovery_figure(found: Sequence[Contender]) -> Figure:
    """Precision against feature rate for all methods."""
    return Figure(
        "precision",
        "Informative features among the survivors",
        "feature rate",
        "share that is informative",
        tuple(
            Series(
                one.name,
                tuple(sample.rate for sample in _whole(one)),
                tuple(_precision(sample) for sample in _whole(one)),
            )
            for one in found
        ),
        "log",
    )


def _whole(one: Contender) -> list[Sample]:
    """Points at which something is left and nothing diverged."""
    return [sample for sample in one.samples if sample.rate > 0 and np.isfinite(sample.auc)]


def _precision(sample: Sample) -> float:
    return _cells([_sum(outcome.survivors) for outcome in sample.outcomes])[1]


def _cells(survivors: Sequence[Survivors]) -> tuple[float, float, float]:
    """Kept, precision and recall, over seeds."""
    live = sum(one.live for one in survivors)
    hits = sum(one.live_informative for one in survivors)
    informative = sum(one.informative for one in survivors)
    return live / len(survivors), hits / live if live else np.nan, hits / informative if informative else np.nan


def _sum(survivors: Sequence[Survivors]) -> Survivors:
    names = ("features", "informative", "live", "live_informative")
    sums = {name: sum(getattr(one, name) for one in survivors) for name in names}
    return Survivors(survivors[0].least, survivors[-1].most, **sums)
