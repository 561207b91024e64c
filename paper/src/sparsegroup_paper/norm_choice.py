"""Figure 2 and Table 9: which norm the group threshold is compared with."""

from typing import get_args

import numpy as np

from sparsegroup.penalties import NormName
from sparsegroup_paper.choices import NO_PENALTY, tuned
from sparsegroup_paper.lab import Lab, Sample
from sparsegroup_paper.published import published
from sparsegroup_paper.runs import Plain
from sparsegroup_paper.section import Cell, Column, Figure, Section, SectionTable, Series
from sparsegroup_paper.versus import COLUMNS, STATISTICS, WIDEST_GAP, at_rate, tally, versus

RATES = (0.7, 0.5, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01, 0.005)
"""Feature rates at which the norms are compared."""

LABELS: dict[NormName, str] = {"s": "‖s‖", "s_tilde": "‖s̃‖", "metric": "metric"}


def grids() -> dict[NormName, tuple[float, ...]]:
    """λ21 of each norm: the paper's of two; for the metric, whose threshold lies between, their geometric means."""
    s, s_tilde = published().norm_grids.s, published().norm_grids.s_tilde
    between = tuple(float(f"{np.sqrt(a * b):.2g}") for a, b in zip(s, s_tilde, strict=True))
    return {"s": s, "s_tilde": s_tilde, "metric": between}


def norm(lab: Lab) -> Section:
    """Run it, on DCN whatever the data set's network."""
    config = tuned(lab, lab.config.replace(model="dcn", dim=None, optimizer="adam", **NO_PENALTY))
    found: dict[NormName, list[Sample]] = {}
    rows: list[tuple[Cell, ...]] = []
    for kind in get_args(NormName):
        values = grids()[kind]
        wanted = [
            # At λ = 0 the norms are the same.
            (config.replace(l21=value, norm=kind if value else "s"), Plain())
            for value in values
        ]
        found[kind] = lab.samples(wanted, name=f"norm {kind}")
        rows += [
            (LABELS[kind], value, sample.rate, sample.auc, sample.auc_deviation)
            for value, sample in zip(values, found[kind], strict=True)
        ]
    compared: list[tuple[Cell, ...]] = []
    findings = []
    for other in ("s_tilde", "metric"):
        comparisons = []
        for rate in RATES:
            ours, theirs = at_rate(found["s"], rate), at_rate(found[other], rate)
            if ours is not None and theirs is not None:
                comparisons.append(versus(ours, theirs))
                compared.append((LABELS[other], rate, theirs.auc, ours.auc, *comparisons[-1].cells))
        rates = [sample.rate for sample in found[other]]
        findings.append(
            f"‖s‖ against {LABELS[other]} at the same feature rate: {tally(comparisons)}."
            if comparisons
            else f"The λ grid leads {LABELS[other]} to feature rates from {max(rates):.2g} to {min(rates):.2g} and "
            f"‖s‖ from {max(s.rate for s in found['s']):.2g} to {min(s.rate for s in found['s']):.2g}: they meet "
            "nowhere among the rates of the table."
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
            SectionTable(
                "compared",
                "AUC at the same feature rate",
                (
                    Column("other norm"),
                    Column("feature rate"),
                    Column("AUC of the other", ".4f"),
                    Column("AUC of ‖s‖", ".4f"),
                    *COLUMNS,
                ),
                tuple(compared),
                f"Only rates that both reach, between points at most {WIDEST_GAP:g} times apart.",
            ),
            SectionTable(
                "points",
                "All points",
                (
                    Column("norm"),
                    Column("λ21"),
                    Column("feature rate", ".4f"),
                    Column("test AUC", ".4f"),
                    Column("± sd", ".4f"),
                ),
                tuple(rows),
            ),
        ),
        figures=(
            Figure(
                "auc",
                "AUC across feature rates by norm",
                "feature rate",
                "test AUC",
                tuple(
                    Series(
                        LABELS[kind],
                        tuple(sample.rate for sample in samples if sample.rate > 0),
                        tuple(sample.auc for sample in samples if sample.rate > 0),
                    )
                    for kind, samples in found.items()
                ),
                "log",
            ),
        ),
    )
