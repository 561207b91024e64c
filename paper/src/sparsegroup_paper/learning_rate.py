"""Table 5: learning rates, the best by AUC at λ = 0."""

from typing import get_args

from sparsegroup_paper.best_auc import NAMES
from sparsegroup_paper.choices import NO_PENALTY, best, learning_rate_trials, network_of
from sparsegroup_paper.lab import Lab
from sparsegroup_paper.published import Base, published
from sparsegroup_paper.section import Cell, Column, Figure, Section, SectionTable, Series


def learning_rate(lab: Lab) -> Section:
    """Run it."""
    network = network_of(lab.config)
    rows: list[tuple[Cell, ...]] = []
    series, findings = [], []
    for base in get_args(Base):
        trials = learning_rate_trials(lab, lab.config.replace(optimizer=base, **NO_PENALTY))
        chosen, paper = best(trials), published().learning_rates[network][base]
        for rate, sample in trials:
            marks = ["chosen"] * (rate == chosen) + ["paper's"] * (rate == paper)
            rows.append((NAMES[base], rate, sample.auc, sample.auc_deviation, ", ".join(marks) or None))
        deviations = [sample.auc_deviation for _, sample in trials]
        series.append(
            Series(
                NAMES[base],
                tuple(rate for rate, _ in trials),
                tuple(sample.auc for _, sample in trials),
                tuple(float(one) for one in deviations if one is not None),
            )
        )
        is_end = chosen in (trials[0][0], trials[-1][0])
        findings.append(
            f"{NAMES[base]}: {chosen:g} is best ({published().networks[network].dataset} in the paper: {paper:g})"
            + (", at the end of the grid." if is_end else ".")
        )
    return Section(
        name="learning-rate",
        title="Learning rates (Table 5)",
        findings=tuple(findings),
        method=(
            "Trained on the training rows without their last tenth, and measured on that, with λ1 = λ21 = λ2 = 0, "
            "which makes the Group optimizers the base ones. The Group version takes the base optimizer's rate, as in "
            "the "
            "paper. AUC is the mean over seeds.",
        ),
        tables=(
            SectionTable(
                "learning-rates",
                "Validation AUC",
                (
                    Column("optimizer"),
                    Column("learning rate"),
                    Column("validation AUC", ".4f"),
                    Column("± sd", ".4f"),
                    Column("mark"),
                ),
                tuple(rows),
                f"“paper's” marks the rate that its Table 5 gives for {network.upper()}.",
            ),
        ),
        figures=(
            Figure(
                "auc", "Validation AUC across learning rates", "learning rate", "validation AUC", tuple(series), "log"
            ),
        ),
    )
