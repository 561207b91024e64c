"""The base optimizers (the paper's Table 1), one file each with its variants: moments and σ_t = √V_t / α_t only."""

from sparsegroup.importing import document_constructors
from sparsegroup.rules.adagrad import ADAGRAD, ROWWISE_ADAGRAD
from sparsegroup.rules.adahessian import ADAHESSIAN
from sparsegroup.rules.adam import ADAM, AMSGRAD
from sparsegroup.rules.ftrl import FTRL
from sparsegroup.rules.hyperparameter import (
    FLAG,
    REQUIRED,
    WEIGHT_DECAY,
    Described,
    Hyperparameter,
    Range,
    above,
    at_least,
    from_to,
    learning_rate,
    pair,
)
from sparsegroup.rules.momentum import MOMENTUM, SGD
from sparsegroup.rules.rule import Rule, bind, is_of_group, xp

__all__ = [
    "ADAGRAD", "ADAHESSIAN", "ADAM", "AMSGRAD", "FLAG", "FTRL", "MOMENTUM", "REQUIRED", "ROWWISE_ADAGRAD", "SGD",
    "WEIGHT_DECAY", "Described", "Hyperparameter", "Range", "Rule", "above", "at_least", "bind", "from_to",
    "is_of_group", "learning_rate", "pair", "xp",
]  # fmt: skip

document_constructors(globals())
