"""The base optimizers (the paper's Table 1), one file each: their moments and σ_t = √V_t / α_t, nothing else."""

from sparsegroup.rules.adagrad import ADAGRAD
from sparsegroup.rules.adahessian import ADAHESSIAN
from sparsegroup.rules.adam import ADAM
from sparsegroup.rules.amsgrad import AMSGRAD
from sparsegroup.rules.ftrl import FTRL
from sparsegroup.rules.momentum import MOMENTUM
from sparsegroup.rules.rule import Rule, bind, xp
from sparsegroup.rules.sgd import SGD

__all__ = ["ADAGRAD", "ADAHESSIAN", "ADAM", "AMSGRAD", "FTRL", "MOMENTUM", "SGD", "Rule", "bind", "xp"]
