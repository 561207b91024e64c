"""Hashed logistic regression: scikit-learn's, over one-hot categories and quantile buckets."""

from collections.abc import Mapping

import numpy as np
import polars as pl
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

from panel.choosing import Chosen, best_of, loss_of, tail_of
from panel.design import Design
from panel.logs import Kind

CS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)


def logistic(
    train: pl.DataFrame, test: pl.DataFrame, kinds: Mapping[str, Kind], label: str, quick: bool = False
) -> Chosen:
    """Logistic regression with an L2 penalty whose C is chosen."""
    head, tail = tail_of(train)
    design = Design(head, kinds)
    inside, held, y_held = design.matrix(head), design.matrix(tail), tail[label].to_numpy()
    tried: list[tuple[dict[str, float], float]] = []
    for c in CS[5:6] if quick else CS:  # the larger, the slower; none is tried beyond one that is worse
        tried.append(({"C": c}, loss_of(y_held, _fitted(inside, head[label].to_numpy(), held, c))))
        if len(tried) > 1 and tried[-1][1] > tried[-2][1]:
            break
    best = best_of(tried)
    design = Design(train, kinds)
    return Chosen(_fitted(design.matrix(train), train[label].to_numpy(), design.matrix(test), best["C"]), best)


def _fitted(train: csr_matrix, labels: np.ndarray, test: csr_matrix, c: float) -> np.ndarray:
    used = np.flatnonzero(np.bincount(train.indices, minlength=train.shape[1]))
    model = LogisticRegression(C=c, solver="liblinear", tol=1e-3, max_iter=200).fit(train[:, used], labels)
    return model.predict_proba(test[:, used])[:, 1]
