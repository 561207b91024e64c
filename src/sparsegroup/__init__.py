"""sparsegroup: adaptive optimizers with sparse group lasso, for models that are mostly embedding table."""

from importlib.metadata import version

from sparsegroup.optim import (
    GroupAdagrad,
    GroupAdaHessian,
    GroupAdam,
    GroupAMSGrad,
    GroupFTRL,
    GroupMomentum,
    GroupOptimizer,
    GroupSGD,
    param_groups,
)
from sparsegroup.rules import Rule
from sparsegroup.sparsity import ParameterSparsity, SparsityReport, feature_rate, sparsity_report
from sparsegroup.table import FieldCount, HashEmbedding, HashEmbeddingBag, TableMemory

__version__ = version("sparsegroup")

__all__ = [
    "FieldCount",
    "GroupAMSGrad",
    "GroupAdaHessian",
    "GroupAdagrad",
    "GroupAdam",
    "GroupFTRL",
    "GroupMomentum",
    "GroupOptimizer",
    "GroupSGD",
    "HashEmbedding",
    "HashEmbeddingBag",
    "ParameterSparsity",
    "Rule",
    "SparsityReport",
    "TableMemory",
    "feature_rate",
    "param_groups",
    "sparsity_report",
]
