"""Table 3: Adam and Adagrad with all features against Group Adam and Group Adagrad."""

from typing import get_args

from sparsegroup.training import Config
from sparsegroup_paper.choices import (
    NO_PENALTY,
    TOLERANCE,
    TRIALS,
    choose_l21,
    network_of,
    tuned,
    tuned_finer,
)
from sparsegroup_paper.lab import Lab, Sample
from sparsegroup_paper.published import Base, published
from sparsegroup_paper.runs import Plain
from sparsegroup_paper.section import Cell, Column, Section, SectionTable
from sparsegroup_paper.statistics import compare
from sparsegroup_paper.versus import COLUMNS, STATISTICS, Versus, versus

NAMES = {"adam": "Adam", "adagrad": "Adagrad"}


def best_auc(lab: Lab) -> Section:
    """Run it."""
    network = network_of(lab.config)
    rows: list[tuple[Cell, ...]] = []
    findings = []
    for base in get_args(Base):
        config = lab.config.replace(optimizer=base, **NO_PENALTY)
        rate, lambdas = published().learning_rates[network][base], published().lambdas[network][base]
        as_published = config.replace(lr=rate)
        pairs = {"paper's": (as_published, as_published.replace(**lambdas.model_dump()))}
        if lab.recipe == "searched":
            coarse = tuned(lab, config)
            pairs["searched"] = (tuned_finer(lab, coarse), coarse.replace(l21=choose_l21(lab, coarse), l2=0.0))
        for recipe, (plain, group) in pairs.items():
            ours, theirs = lab.samples([(group, Plain()), (plain, Plain())], name=f"{NAMES[base]}, {recipe} λ")
            comparison = versus(ours, theirs)
            rows.append(_row(base, recipe, plain, group, theirs, ours, comparison, network))
            findings.append(
                f"Group {NAMES[base]} with the {recipe} settings keeps {ours.rate:.2%} of the features, and its AUC is "
                f"{comparison.comparison.difference:+.4f} against {NAMES[base]}'s: {comparison.verdict}."
            )
    return Section(
        name="best-auc",
        title="Adam and Adagrad against their Group versions (Table 3)",
        findings=tuple(findings),
        method=(
            "Nothing is pruned. “Paper's” are the learning rate and the λs that its Tables 5 to 7 give for "
            f"{network.upper()} on {published().networks[network].dataset}, whatever the data here.",
            *(
                (
                    "“Searched” are chosen on the last tenth of the training rows. Both have the best of the paper's "
                    f"five learning rates at λ = 0. Then the base optimizer has {TRIALS} more trials, of learning "
                    f"rates between that and its neighbours, and the Group version {TRIALS}, of λ21, with λ1 = λ2 = "
                    "0: the "
                    f"sparsest whose AUC is within {TOLERANCE:g} of the best one.",
                )
                if lab.recipe == "searched"
                else ()
            ),
            STATISTICS + " The p of the rate is of the same test.",
        ),
        tables=(
            SectionTable(
                "best",
                "AUC and feature rate without pruning",
                (
                    Column("optimizer"),
                    Column("settings"),
                    Column("learning rate"),
                    Column("Group: rate"),
                    Column("λ1"),
                    Column("λ21"),
                    Column("λ2"),
                    Column("AUC", ".4f"),
                    Column("± sd", ".4f"),
                    Column("feature rate", ".4f"),
                    Column("Group: AUC", ".4f"),
                    Column("± sd ", ".4f"),
                    Column("Group: feature rate", ".4f"),
                    *COLUMNS,
                    Column("p of rate", ".2g"),
                    Column("paper: AUC", ".4f"),
                    Column("paper: Group AUC", ".4f"),
                    Column("paper: Group rate", ".4f"),
                    Column("paper: p", ".2g"),
                ),
                tuple(rows),
                f"The paper's numbers are those of {published().networks[network].dataset}.",
            ),
        ),
    )


def _row(
    base: Base,
    recipe: str,
    plain: Config,
    group: Config,
    theirs: Sample,
    ours: Sample,
    comparison: Versus,
    network: str,
) -> tuple[Cell, ...]:
    paper = published().best_auc[network][base]  # type: ignore[index]
    return (
        NAMES[base],
        recipe,
        plain.optimizer.lr,
        group.optimizer.lr,
        group.optimizer.l1,
        group.optimizer.l21,
        group.optimizer.l2,
        theirs.auc,
        theirs.auc_deviation,
        theirs.rate,
        ours.auc,
        ours.auc_deviation,
        ours.rate,
        *comparison.cells,
        compare(list(ours.rates), list(theirs.rates), paired=True).p_value,
        paper.auc,
        paper.group_auc,
        paper.group_feature_rate,
        paper.auc_p_value,
    )
