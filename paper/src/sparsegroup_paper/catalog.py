"""All experiments by name."""

from collections.abc import Callable, Mapping

from sparsegroup_paper.against_pruning import fine_tune, sparsity_vs_auc
from sparsegroup_paper.frontier import frontier
from sparsegroup_paper.lab import Lab
from sparsegroup_paper.penalty import embedding_dim, l1_vs_l21, norm
from sparsegroup_paper.section import Section
from sparsegroup_paper.without_pruning import best_auc, family, learning_rate

EXPERIMENTS: Mapping[str, Callable[[Lab], Section]] = {
    "learning-rate": learning_rate,
    "sparsity-vs-auc": sparsity_vs_auc,
    "fine-tune": fine_tune,
    "best-auc": best_auc,
    "norm": norm,
    "l1-vs-l21": l1_vs_l21,
    "embedding-dim": embedding_dim,
    "family": family,
    "frontier": frontier,
}
"""Experiments on a log. The regret is not one: it is on convex problems."""

REGRET = "regret"
