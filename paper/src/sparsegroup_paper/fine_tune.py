"""Table 8: fine-tuning schedules of magnitude pruning."""

from sparsegroup_paper.choices import TRIAL_SEEDS, grid, network_of, tuned
from sparsegroup_paper.lab import Lab
from sparsegroup_paper.published import published
from sparsegroup_paper.schedules import prune_alike
from sparsegroup_paper.section import Column, Figure, Section, SectionTable, Series


def fine_tune(lab: Lab) -> Section:
    """Run it."""
    config = tuned(lab, lab.config)
    points = prune_alike(lab, config, grid(lab, config))
    shares = published().setup.fine_tune_shares
    paper = {
        point.l21: cell
        for point, cell in zip(
            published().sparsity[network_of(config)], published().fine_tune[network_of(config)], strict=True
        )
    }
    rows = []
    for point in points:
        best = max(shares, key=lambda share: point.pruned[share].auc)
        for share in shares:
            sample = point.pruned[share]
            marks = ["chosen"] * (share == point.share) + ["best"] * (share == best)
            published_cell = paper.get(point.l21)
            rows.append(
                (
                    point.l21,
                    sample.rate,
                    f"{share:.0%}",
                    point.validation[share],
                    sample.auc,
                    sample.auc_deviation,
                    ", ".join(marks) or None,
                    None if published_cell is None else published_cell.feature_rate,
                    None if published_cell is None else published_cell.aucs[share],
                )
            )
    chosen = [point.share for point in points]
    lost = [max(point.pruned[share].auc for share in shares) - point.adam.auc for point in points]
    counts = ", ".join(f"{share:.0%} at {chosen.count(share)}" for share in shares)
    return Section(
        name="fine-tune",
        title="Fine-tuning schedules of magnitude pruning (Table 8)",
        findings=(
            f"Of {len(points)} feature rates, validation chooses fine-tuning on {counts}.",
            f"Had the best schedule been known from the test rows, AUC would be {sum(lost) / len(lost):.4f} higher on "
            f"average, and {max(lost):.4f} at most.",
        ),
        method=(
            "Adam is trained on the first samples, pruned to N embedding vectors, trained on the last ones, and pruned "
            "to N again, for features come and go in between: new ones, and pruned ones, which start again from zero. "
            "N is what Group Adam keeps at the λ21 of the row. 0 % is pruning at the end and nothing else.",
            "“Chosen” is the schedule with the best AUC on the last tenth of the training rows "
            f"({min(len(lab.seeds), TRIAL_SEEDS)} seeds), “best” the one with the best test AUC, which nobody knows.",
        ),
        tables=(
            SectionTable(
                "schedules",
                "Test AUC by the share of samples kept for fine-tuning",
                (
                    Column("λ21"),
                    Column("feature rate", ".4f"),
                    Column("fine-tuned on"),
                    Column("validation AUC", ".4f"),
                    Column("test AUC", ".4f"),
                    Column("± sd", ".4f"),
                    Column("mark"),
                    Column("paper: rate", ".4f"),
                    Column("paper: AUC", ".4f"),
                ),
                tuple(rows),
                f"The paper's numbers are those of {published().networks[network_of(config)].dataset}.",
            ),
        ),
        figures=(
            Figure(
                "auc",
                "Fine-tuning schedules",
                "feature rate",
                "test AUC",
                tuple(
                    Series(
                        f"fine-tuned on {share:.0%}",
                        tuple(point.pruned[share].rate for point in points),
                        tuple(point.pruned[share].auc for point in points),
                    )
                    for share in shares
                ),
                x_scale="log",
            ),
        ),
    )
