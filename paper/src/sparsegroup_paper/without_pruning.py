"""Tables 1, 3 and 5: base optimizers and their Group versions, and learning rates."""

from typing import get_args

from sparsegroup.settings.names import OptimizerName
from sparsegroup.training import Config
from sparsegroup_paper.choices import (
    NO_PENALTY,
    TOLERANCE,
    TRIALS,
    best,
    choose_l21,
    learning_rate_trials,
    network_of,
    tuned,
    tuned_finer,
)
from sparsegroup_paper.lab import Lab, Sample
from sparsegroup_paper.published import Base, published
from sparsegroup_paper.runs import Plain
from sparsegroup_paper.section import Cell, Section, SectionTable, columns
from sparsegroup_paper.statistics import compare
from sparsegroup_paper.versus import COLUMNS, STATISTICS, Versus, tally, versus

NAMES: dict[OptimizerName, str] = {
    "sgd": "SGD",
    "momentum": "Momentum",
    "adagrad": "Adagrad",
    "adam": "Adam",
    "amsgrad": "AMSGrad",
    "adahessian": "AdaHessian",
}


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
                    *columns(
                        "optimizer; settings; learning rate; Group: rate; λ1; λ21; λ2; AUC|.4f; ± sd|.4f; "
                        "feature rate|.4f; Group: AUC|.4f; ± sd |.4f; Group: feature rate|.4f"
                    ),
                    *COLUMNS,
                    *columns(
                        "p of rate|.2g; paper: AUC|.4f; paper: Group AUC|.4f; paper: Group rate|.4f; paper: p|.2g"
                    ),
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
                    *columns(
                        "optimizer; learning rate; AUC|.4f; ± sd|.4f; Group: learning rate; λ21; Group: "
                        "AUC|.4f; ± sd |.4f; Group: feature rate|.4f"
                    ),
                    *COLUMNS,
                ),
                tuple(rows),
            ),
        ),
    )


def learning_rate(lab: Lab) -> Section:
    """Run it."""
    network = network_of(lab.config)
    rows: list[tuple[Cell, ...]] = []
    findings = []
    for base in get_args(Base):
        trials = learning_rate_trials(lab, lab.config.replace(optimizer=base, **NO_PENALTY))
        chosen, paper = best(trials), published().learning_rates[network][base]
        for rate, sample in trials:
            marks = ["chosen"] * (rate == chosen) + ["paper's"] * (rate == paper)
            rows.append((NAMES[base], rate, sample.auc, sample.auc_deviation, ", ".join(marks) or None))
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
                columns("optimizer; learning rate; validation AUC|.4f; ± sd|.4f; mark"),
                tuple(rows),
                f"“paper's” marks the rate that its Table 5 gives for {network.upper()}.",
            ),
        ),
    )
