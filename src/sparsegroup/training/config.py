"""What a training run is made of: a model, an optimizer and their settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from sparsegroup.data.batches import Log
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
from sparsegroup.prox import Norm, Penalty
from sparsegroup.training.click_model import ClickModel, ModelName

OptimizerName = Literal["sgd", "momentum", "adagrad", "adam", "amsgrad", "adahessian", "ftrl"]
OPTIMIZERS: Mapping[OptimizerName, type[GroupOptimizer]] = {
    "sgd": GroupSGD,
    "momentum": GroupMomentum,
    "adagrad": GroupAdagrad,
    "adam": GroupAdam,
    "amsgrad": GroupAMSGrad,
    "adahessian": GroupAdaHessian,
    "ftrl": GroupFTRL,
}


@dataclass(frozen=True)
class TrainConfig:
    """Settings of a run; checked when made.

    Attributes:
        model: "mlp", "opnn" or "dcn".
        dim: Embedding dimension; None is the paper's for the model.
        optimizer: The Group optimizer of that name. With all λ = 0 it is the base optimizer.
        lr: Learning rate; None is the optimizer's default.
        l1, l21, l2, norm, penalty, mcp_gamma: See `GroupOptimizer`; for the embeddings alone.
        batch_size: Samples per step.
        seed: Of initialization and dropout.

    Raises:
        ValueError: A value out of range.
    """

    model: ModelName = "dcn"
    dim: int | None = None
    optimizer: OptimizerName = "adam"
    lr: float | None = None
    l1: float = 0.0
    l21: float = 0.0
    l2: float = 0.0
    norm: Norm = "s"
    penalty: Penalty = "lasso"
    mcp_gamma: float = 3.0
    batch_size: int = 512
    seed: int = 0

    def __post_init__(self) -> None:
        for name, choices in (("model", get_args(ModelName)), ("optimizer", get_args(OptimizerName))):
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
        if self.optimizer == "ftrl" and self.lr is None:
            raise ValueError("the optimizer ftrl has no default learning rate: give lr")
        for name in ("dim", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be >= 1, got {value}")
        self._make_optimizer(ClickModel("mlp", fields=1, dim=1))

    def build(self, log: Log) -> tuple[ClickModel, GroupOptimizer]:
        """A freshly initialized model for `log`, and its optimizer. Seeds torch's generator."""
        torch.manual_seed(self.seed)
        model = ClickModel(self.model, len(log.fields), self.dim, self.seed, len(log.numbers))
        return model, self._make_optimizer(model)

    def _make_optimizer(self, model: ClickModel) -> GroupOptimizer:
        groups = param_groups(
            model,
            l1=self.l1,
            l21=self.l21,
            l2=self.l2,
            norm=self.norm,
            penalty=self.penalty,
            mcp_gamma=self.mcp_gamma,
        )
        arguments = {} if self.lr is None else {"lr": self.lr}
        return OPTIMIZERS[self.optimizer](groups, **arguments)  # type: ignore[arg-type]
