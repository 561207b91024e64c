"""What a model learns of a label: probabilities, means, counts, quantiles, classes, an order, and several tasks."""

from sparsegroup.importing import document_constructors
from sparsegroup.objectives.classes import Softmax
from sparsegroup.objectives.losses import (
    LOGISTIC,
    Binomial,
    FakeNegatives,
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
from sparsegroup.objectives.tasks import Esmm, Tasks

__all__ = [
    "LOGISTIC",
    "Binomial",
    "Esmm",
    "FakeNegatives",
    "Gamma",
    "Huber",
    "LambdaRank",
    "Logistic",
    "Objective",
    "Pairwise",
    "Poisson",
    "Quantile",
    "Softmax",
    "Squared",
    "Tasks",
    "Tweedie",
]

document_constructors(globals())
