"""All experiments by name."""

from collections.abc import Callable, Mapping

from sparsegroup.experiments.best_auc import best_auc
from sparsegroup.experiments.embedding_dim import embedding_dim
from sparsegroup.experiments.family import family
from sparsegroup.experiments.fine_tune import fine_tune
from sparsegroup.experiments.frontier import frontier
from sparsegroup.experiments.l1_vs_l21 import l1_vs_l21
from sparsegroup.experiments.lab import Lab
from sparsegroup.experiments.learning_rate import learning_rate
from sparsegroup.experiments.norm import norm
from sparsegroup.experiments.section import Section
from sparsegroup.experiments.sparsity_vs_auc import sparsity_vs_auc

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
