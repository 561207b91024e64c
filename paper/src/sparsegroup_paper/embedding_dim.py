"""Table 4: embedding dimensions."""

import itertools

from sparsegroup_paper.choices import NO_PENALTY, tuned
from sparsegroup_paper.lab import Lab
from sparsegroup_paper.published import published
from sparsegroup_paper.runs import Plain
from sparsegroup_paper.section import Cell, Column, Section, SectionTable
from sparsegroup_paper.versus import COLUMNS, STATISTICS, versus


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
                    Column("dimension"),
                    Column("feature rate", ".4f"),
                    Column("test AUC", ".4f"),
                    Column("± sd", ".4f"),
                    *COLUMNS,
                    Column("paper: rate", ".4f"),
                    Column("paper: AUC", ".4f"),
                ),
                tuple(rows),
                f"The paper's numbers are those of {published().networks['dcn'].dataset}.",
            ),
        ),
    )
