"""What a model learns of a label: probabilities, means, counts, quantiles, classes."""

from sparsegroup.importing import document_constructors
from sparsegroup.objectives.classes import Softmax
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

__all__ = [
    "LOGISTIC",
    "Gamma",
    "Huber",
    "Logistic",
    "Objective",
    "Poisson",
    "Quantile",
    "Softmax",
    "Squared",
    "Tweedie",
]

document_constructors(globals())
