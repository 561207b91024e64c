"""All optimizers of the paper's Table 1 against their Group versions, which the paper promises and does not show."""

from sparsegroup.settings.names import OptimizerName
from sparsegroup_paper.choices import NO_PENALTY, TOLERANCE, TRIALS, choose_l21, tuned, tuned_finer
from sparsegroup_paper.lab import Lab
from sparsegroup_paper.runs import Plain
from sparsegroup_paper.section import Cell, Column, Section, SectionTable
from sparsegroup_paper.versus import COLUMNS, STATISTICS, tally, versus

NAMES: dict[OptimizerName, str] = {
    "sgd": "SGD",
    "momentum": "Momentum",
    "adagrad": "Adagrad",
    "adam": "Adam",
    "amsgrad": "AMSGrad",
    "adahessian": "AdaHessian",
}


def family(lab: Lab) -> Section:
    """Run it."""
    rows: list[tuple[Cell, ...]] = []
    comparisons = []
    for optimizer, name in NAMES.items():
        coarse = tuned(lab, lab.config.replace(optimizer=optimizer, **NO_PENALTY))
        plain, group = tuned_finer(lab, coarse), coarse.replace(l21=choose_l21(lab, coarse))
        ours, theirs = lab.samples([(group, Plain()), (plain, Plain())], name=name)
        comparisons.append(versus(ours, theirs))
        rows.append(
            (
                name,
                plain.optimizer.lr,
                theirs.auc,
                theirs.auc_deviation,
                group.optimizer.lr,
                group.optimizer.l21,
                ours.auc,
                ours.auc_deviation,
                ours.rate,
                *comparisons[-1].cells,
            )
        )
    return Section(
        name="family",
        title="The six optimizers of Table 1 against their Group versions",
        findings=(f"The Group versions are {tally(comparisons)}.",),
        method=(
            "Both have the best of the paper's five learning rates at λ = 0, by AUC on the last tenth of the training "
            f"rows. Then the base optimizer has {TRIALS} more trials there, of learning rates between that and its "
            f"neighbours, and the Group version {TRIALS}, of λ21, with λ1 = λ2 = 0: the sparsest whose AUC is within "
            f"{TOLERANCE:g} of the best one. SGD's rate falls with √t, as Table 1 has it.",
            STATISTICS,
        ),
        tables=(
            SectionTable(
                "family",
                "AUC without pruning, and the Group version's feature rate",
                (
                    Column("optimizer"),
                    Column("learning rate"),
                    Column("AUC", ".4f"),
                    Column("± sd", ".4f"),
                    Column("Group: learning rate"),
                    Column("λ21"),
                    Column("Group: AUC", ".4f"),
                    Column("± sd ", ".4f"),
                    Column("Group: feature rate", ".4f"),
                    *COLUMNS,
                ),
                tuple(rows),
            ),
        ),
    )
