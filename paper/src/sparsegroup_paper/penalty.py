"""Tables 4 and 9, Figures 2 and 3: embedding dimensions, norms, and λ1 against λ21."""

import itertools
from typing import get_args

import numpy as np

from sparsegroup.penalties import NormName
from sparsegroup_paper.choices import NO_PENALTY, grid, tuned
from sparsegroup_paper.lab import Lab, Sample
from sparsegroup_paper.published import published
from sparsegroup_paper.runs import Plain
from sparsegroup_paper.section import Cell, Figure, Section, SectionTable, Series, columns
from sparsegroup_paper.versus import COLUMNS, STATISTICS, WIDEST_GAP, at_rate, tally, versus


def embedding_dim(lab: Lab) -> Section:
    """Run it, on DCN whatever the data set's network."""
    lambdas = published().lambdas["dcn"]["adam"]
    config = tuned(lab, lab.config.replace(model="dcn", dim=None, optimizer="adam", **NO_PENALTY))
    config = config.replace(**lambdas.model_dump())
    paper = {point.dimension: point for point in published().embedding_dim}
    samples = dict(
        zip(paper, lab.samples([(config.replace(dim=dim), Plain()) for dim in paper], name="dimensions"), strict=True)
    )
    default = published().networks["dcn"].embedding_dim
    rows: list[tuple[Cell, ...]] = []
    for dim, sample in samples.items():
        cells = versus(sample, samples[default], paired=False).cells if dim != default else (None,) * len(COLUMNS)
        rows.append(
            (dim, sample.rate, sample.auc, sample.auc_deviation, *cells, paper[dim].feature_rate, paper[dim].auc)
        )
    rates = [sample.rate for sample in samples.values()]
    falls = all(one >= other for one, other in itertools.pairwise(rates))
    top = max(samples, key=lambda dim: samples[dim].auc)
    return Section(
        name="embedding-dim",
        title="Embedding dimensions (Table 4)",
        findings=(
            f"The feature rate {'falls' if falls else 'does not fall throughout'} as the dimension grows: "
            + ", ".join(f"{rate:.4f} at {dim}" for dim, rate in zip(samples, rates, strict=True))
            + f". AUC is highest at {top}.",
        ),
        method=(
            f"DCN with Group Adam, learning rate {config.optimizer.lr:g}, and the λs that Table 6 gives for DCN: "
            f"λ1 = {lambdas.l1:g}, λ21 = {lambdas.l21:g}, λ2 = {lambdas.l2:g}. The threshold is √d λ21.",
            f"Each dimension is compared with {default}. First weights differ, so the test is Welch's. " + STATISTICS,
        ),
        tables=(
            SectionTable(
                "dimensions",
                "Feature rate and AUC",
                (
                    *columns("dimension; feature rate|.4f; test AUC|.4f; ± sd|.4f"),
                    *COLUMNS,
                    *columns("paper: rate|.4f; paper: AUC|.4f"),
                ),
                tuple(rows),
                f"The paper's numbers are those of {published().networks['dcn'].dataset}.",
            ),
        ),
    )


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
                    *columns("other norm; feature rate; AUC of the other|.4f; AUC of ‖s‖|.4f"),
                    *COLUMNS,
                ),
                tuple(compared),
                f"Only rates that both reach, between points at most {WIDEST_GAP:g} times apart.",
            ),
            SectionTable(
                "points",
                "All points",
                columns("norm; λ21; feature rate|.4f; test AUC|.4f; ± sd|.4f"),
                tuple(rows),
            ),
        ),
    )


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
                columns(
                    "value; λ1: feature rate|.4f; λ21: feature rate|.4f; times|.2f; λ1: non-zero "
                    "weights|.4f; λ21: non-zero weights|.4f; λ1: AUC|.4f; λ21: AUC|.4f"
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
