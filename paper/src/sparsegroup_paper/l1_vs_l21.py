"""Figure 3: equal values of λ1 and λ21."""

import numpy as np

from sparsegroup_paper.choices import NO_PENALTY, grid, tuned
from sparsegroup_paper.lab import Lab
from sparsegroup_paper.runs import Plain
from sparsegroup_paper.section import Column, Figure, Section, SectionTable, Series


def l1_vs_l21(lab: Lab) -> Section:
    """Run it, on DCN whatever the data set's network."""
    config = tuned(lab, lab.config.replace(model="dcn", dim=None, optimizer="adam", **NO_PENALTY))
    values = grid(lab, config)
    with_l1 = lab.samples([(config.replace(l1=value), Plain()) for value in values], name="λ1")
    with_l21 = lab.samples([(config.replace(l21=value), Plain()) for value in values], name="λ21")
    ratios = [one.rate / max(other.rate, 1e-12) for one, other in zip(with_l1, with_l21, strict=True)]
    middle = [ratio for ratio, other in zip(ratios, with_l21, strict=True) if 0 < other.rate < 0.9]
    fewer = sum(ratio > 1 for ratio in ratios)
    return Section(
        name="l1-vs-l21",
        title="Equal values of λ1 and λ21 (Figure 3)",
        findings=(
            f"At {fewer} of {len(values)} values λ21 keeps fewer features than λ1"
            + (
                f"; where it keeps less than .9 of them, λ1 keeps {np.median(middle):.2g} times as many (median)."
                if middle
                else "."
            ),
        ),
        method=(
            f"DCN with Group Adam, learning rate {config.optimizer.lr:g}: λ1 with λ21 = λ2 = 0, and λ21 with λ1 = λ2 "
            "= 0.",
        ),
        tables=(
            SectionTable(
                "values",
                "Feature rate and AUC",
                (
                    Column("value"),
                    Column("λ1: feature rate", ".4f"),
                    Column("λ21: feature rate", ".4f"),
                    Column("times", ".2f"),
                    Column("λ1: non-zero weights", ".4f"),
                    Column("λ21: non-zero weights", ".4f"),
                    Column("λ1: AUC", ".4f"),
                    Column("λ21: AUC", ".4f"),
                ),
                tuple(
                    (
                        value,
                        one.rate,
                        other.rate,
                        ratio,
                        float(one.parameter_rates.mean()),
                        float(other.parameter_rates.mean()),
                        one.auc,
                        other.auc,
                    )
                    for value, one, other, ratio in zip(values, with_l1, with_l21, ratios, strict=True)
                ),
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
