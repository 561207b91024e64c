"""Drop-in `torch.optim` optimizers with sparse group lasso."""

from sparsegroup.constructor_help import document_constructors
from sparsegroup.optim.averaging import keep_zeros
from sparsegroup.optim.base import GroupOptimizer
from sparsegroup.optim.family import (
    GroupAdagrad,
    GroupAdam,
    GroupAMSGrad,
    GroupFTRL,
    GroupMomentum,
    GroupRowWiseAdagrad,
    GroupSGD,
)
from sparsegroup.optim.group_adahessian import GroupAdaHessian
from sparsegroup.optim.param_groups import param_groups
from sparsegroup.optim.size_target import SizeTarget
from sparsegroup.optim.target_rate import TargetBytes, TargetRate

__all__ = [
    "GroupAMSGrad",
    "GroupAdaHessian",
    "GroupAdagrad",
    "GroupAdam",
    "GroupFTRL",
    "GroupMomentum",
    "GroupOptimizer",
    "GroupRowWiseAdagrad",
    "GroupSGD",
    "SizeTarget",
    "TargetBytes",
    "TargetRate",
    "keep_zeros",
    "param_groups",
]

document_constructors(globals())
