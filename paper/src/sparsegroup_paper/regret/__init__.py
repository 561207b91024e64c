"""Section 3 in numbers: the conditions, Lemma 1, Theorem 3 and the corollaries on convex online problems."""

from sparsegroup_paper.regret.experiment import regret

__all__ = ["regret"]
