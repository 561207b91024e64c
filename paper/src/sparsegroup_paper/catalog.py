"""All experiments by name."""

from collections.abc import Callable, Mapping

from sparsegroup_paper.best_auc import best_auc
from sparsegroup_paper.embedding_dim import embedding_dim
from sparsegroup_paper.fine_tune import fine_tune
from sparsegroup_paper.frontier import frontier
from sparsegroup_paper.l1_vs_l21 import l1_vs_l21
from sparsegroup_paper.lab import Lab
from sparsegroup_paper.learning_rate import learning_rate
from sparsegroup_paper.norm_choice import norm
from sparsegroup_paper.optimizer_family import family
from sparsegroup_paper.section import Section
from sparsegroup_paper.sparsity_vs_auc import sparsity_vs_auc

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
"""Those on a log. The regret is another: it is on problems of its own."""

REGRET = "regret"
