"""Drop-in `torch.optim` optimizers with sparse group lasso."""

from sparsegroup.importing import document_constructors
from sparsegroup.optim.adahessian import GroupAdaHessian
from sparsegroup.optim.averaging import keep_zeros
from sparsegroup.optim.optimizer import GroupOptimizer
from sparsegroup.optim.optimizers import (
    GroupAdagrad,
    GroupAdam,
    GroupAMSGrad,
    GroupFTRL,
    GroupMomentum,
    GroupRowWiseAdagrad,
    GroupSGD,
)
from sparsegroup.optim.param_groups import param_groups
from sparsegroup.optim.target import SizeTarget, TargetBytes, TargetRate

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
