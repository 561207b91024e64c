"""What a model learns of a label: probabilities, means, counts, quantiles, an order."""

from sparsegroup.importing import document_constructors
from sparsegroup.objectives.losses import (
    LOGISTIC,
    Gamma,
    Huber,
    Logistic,
    Poisson,
    Quantile,
    Squared,
    Tweedie,
)
from sparsegroup.objectives.objective import Objective
from sparsegroup.objectives.ranking import LambdaRank, Pairwise

__all__ = [
    "LOGISTIC",
    "Gamma",
    "Huber",
    "LambdaRank",
    "Logistic",
    "Objective",
    "Pairwise",
    "Poisson",
    "Quantile",
    "Squared",
    "Tweedie",
]

document_constructors(globals())
