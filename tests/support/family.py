"""The optimizers of the library beside their rules in the oracle, for the tests that run over all of them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from sparsegroup import (
    GroupAdagrad,
    GroupAdaHessian,
    GroupAdam,
    GroupAMSGrad,
    GroupFTRL,
    GroupMomentum,
    GroupOptimizer,
    GroupRowWiseAdagrad,
    GroupSGD,
)


@dataclass(frozen=True)
class Member:
    """One optimizer.

    Attributes:
        optimizer: Its class.
        rule: Its name in `reference.MOMENTS`.
        lr: A learning rate that moves weights of size 1 under gradients of size 1 in some hundred steps.
        hyperparameters: By the same names in the library and in the oracle.
        only_ours: What the oracle does not know.
        gain: How many gradients m_t adds up: what λ, which is compared with sums of m_t, should be multiplied by.
    """

    optimizer: type[GroupOptimizer]
    rule: str
    lr: float
    hyperparameters: Mapping[str, Any] = field(default_factory=dict)
    only_ours: Mapping[str, Any] = field(default_factory=dict)
    gain: float = 1.0

    @property
    def second_order(self) -> bool:
        return self.rule == "adahessian"

    def build(self, parameter: Tensor, **options: Any) -> GroupOptimizer:
        return self.optimizer([parameter], **{"lr": self.lr, **self.hyperparameters, **self.only_ours, **options})


_ADAM = {"betas": (0.9, 0.999), "eps": 1e-8}

SIX: Mapping[str, Member] = {
    "sgd": Member(GroupSGD, "sgd", 0.3),
    "momentum": Member(GroupMomentum, "momentum", 0.02, {"momentum": 0.9, "nesterov": False}, gain=10.0),
    "adagrad": Member(GroupAdagrad, "adagrad", 0.3, {"lr_decay": 0.0, "initial_accumulator_value": 0.0, "eps": 1e-10}),
    "adam": Member(GroupAdam, "adam", 0.03, _ADAM),
    "amsgrad": Member(GroupAMSGrad, "amsgrad", 0.03, _ADAM),
    # Averaging would mix the coordinates' Hessians, which the oracle is given one by one.
    "adahessian": Member(
        GroupAdaHessian,
        "adahessian",
        0.03,
        {"betas": (0.9, 0.999), "eps": 1e-4},
        {"spatial_average_block_size": (1, 1, 1, 1)},
    ),
}
"""The six base optimizers of the paper's Table 1."""

FAMILY: Mapping[str, Member] = {
    **SIX,
    "rowwise_adagrad": Member(
        GroupRowWiseAdagrad, "rowwise_adagrad", 0.3, {"lr_decay": 0.0, "initial_accumulator_value": 0.0, "eps": 1e-10}
    ),
    "ftrl": Member(GroupFTRL, "ftrl", 0.3, {"beta": 0.5, "initial_accumulator_value": 0.1}),
}


def regularizer(member: Member, norm: str = "s", penalty: str = "lasso") -> dict[str, Any]:
    """λ's at which some rows live and some are zero; λ21 is compared with sums of m, with x, or with their mean."""
    l21 = {"s": 0.6 * member.gain, "s_tilde": 0.2 if member.lr < 0.1 else 0.6, "metric": 0.5}[norm]
    return {"l1": 0.02 * member.gain, "l21": l21, "l2": 0.05, "norm": norm, "penalty": penalty}
