"""The optimizer of a run, as people write it down."""

from collections.abc import Mapping
from typing import Annotated, Any, Self

import torch
from pydantic import (
    BeforeValidator,
    Field,
    InstanceOf,
    ModelWrapValidatorHandler,
    PlainSerializer,
    field_validator,
    model_validator,
)
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from sparsegroup.groups import is_rows
from sparsegroup.names import NormName, bytes_of
from sparsegroup.optim import (
    GroupAdagrad,
    GroupAdaHessian,
    GroupAdam,
    GroupAMSGrad,
    GroupFTRL,
    GroupMomentum,
    GroupOptimizer,
    GroupRowWiseAdagrad,
    GroupSGD,
    SizeTarget,
    TargetBytes,
    TargetRate,
    param_groups,
)
from sparsegroup.penalties import Lasso, Penalty
from sparsegroup.rules import REQUIRED, Rule
from sparsegroup.settings.names import OptimizerName, ScheduleName, StateDtype, unknown_optimizer
from sparsegroup.settings.yaml_settings import Share, StrictSettings, share_of
from sparsegroup.training.further_options import check_further_options, check_magnitude
from sparsegroup.training.rate_schedule import RateSchedule

OPTIMIZERS: Mapping[OptimizerName, type[GroupOptimizer]] = {
    "sgd": GroupSGD,
    "momentum": GroupMomentum,
    "adagrad": GroupAdagrad,
    "rowwise_adagrad": GroupRowWiseAdagrad,
    "adam": GroupAdam,
    "amsgrad": GroupAMSGrad,
    "adahessian": GroupAdaHessian,
    "ftrl": GroupFTRL,
}


def _penalty(given: object) -> Penalty:
    try:
        return Penalty.of(given)
    except TypeError as error:
        raise ValueError(str(error)) from error


PenaltySetting = Annotated[
    InstanceOf[Penalty], BeforeValidator(_penalty), PlainSerializer(lambda penalty: penalty.plain)
]
"""A penalty; in files its name, or `{name: mcp, gamma: 2.5}`."""


def _size(given: object) -> object:
    bytes_of(given)
    return given if isinstance(given, int) else str(given)


SizeSetting = Annotated[int | str, BeforeValidator(_size)]
"""A number of bytes, or a text such as "200MB"."""

DEFAULT_L21 = 1e-3

RECOMMENDED_WITH_A_SIZE: Mapping[str, Any] = {"name": "adagrad", "lr": 0.1, "network_lr": 0.03}
"""What trains towards a size where none is chosen; see "How big should it be?" in the documentation."""

NO_TARGET: Mapping[str, Any] = {"target_rate": None, "target_bytes": None, "least_features": 0}
"""The settings of a constant λ21 that have to do with size."""


def targets_in(content: Mapping[str, Any]) -> list[str]:
    """Which settings of an optimizer, as they are written down, ask for a size."""
    return [name for name in ("target_rate", "target_bytes") if content.get(name) is not None]


Rate = Annotated[float, BeforeValidator(share_of), Field(gt=0, le=1)]
"""A number in (0, 1], or a text such as "5%"."""


class OptimizerConfig(StrictSettings):
    """The Group optimizer; with all λ = 0 it is the base optimizer.

    Attributes:
        name: The name of the base optimizer.
        lr: Learning rate; None is the optimizer's default.
        network_lr: That of all but the table's rows, so of the network and of fallback vectors; None: `lr`.
        schedule, warmup: How both go along the samples of all epochs, see `RateSchedule`.
        l1, l21, l2, norm, penalty: See `GroupOptimizer`; for the embeddings alone. A penalty with other parameters than
            its default ones is a mapping, `{name: mcp, gamma: 2.5}`.
        state_dtype: In which the rows of the embeddings keep u and the optimizer's state, see `GroupOptimizer`.
        target_rate: The share of the features seen that is to be left: λ21 is set along the way, see `TargetRate`.
        target_bytes: The same for a size, such as "200MB", see `TargetBytes`. With either, l21 is not to be given, the
            penalty is "hard" unless another is, and where no name is given, it is "adagrad", with a learning rate of
            0.1 and 0.03 for the network where none is given either.
        least_features: Features that `target_rate` keeps in any case; all, where there are fewer.
        options: Further arguments of the optimizer, such as `betas`, as its rule declares them; none that has a setting
            of its own.
    """

    name: OptimizerName = "adam"
    lr: float | None = None
    network_lr: float | None = None
    schedule: ScheduleName = "constant"
    warmup: Share = 0.0
    l1: float = 0.0
    l21: float = DEFAULT_L21
    l2: float = 0.0
    norm: NormName = "s"
    penalty: PenaltySetting = Lasso()
    state_dtype: StateDtype = "float32"
    target_rate: Rate | None = None
    target_bytes: SizeSetting | None = None
    least_features: int = Field(default=0, ge=0)
    options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="wrap")
    @classmethod
    def _for_a_target(cls, content: Any, check: ModelWrapValidatorHandler[Self]) -> Self:
        """A target sets λ21, and the recommended recipe fills in what is not given. `model_fields_set` is what is."""
        if not isinstance(content, Mapping):
            return check(content)
        if content.get("least_features") and content.get("target_rate") is None:
            raise ValueError("least_features need target_rate beside them: the share of the features to keep")
        targets = targets_in(content)
        if not targets:
            return check(content)
        if len(targets) > 1:
            raise ValueError("target_rate and target_bytes exclude each other: give one")
        if l21 := content.get("l21"):
            raise ValueError(f"{targets[0]} sets l21 during training: give one of them, not both (l21 is {l21})")
        given = {name: value for name, value in content.items() if value is not None}
        if "name" not in given:
            rates = () if "lr" in given else ("lr", "network_lr")
            given = {name: RECOMMENDED_WITH_A_SIZE[name] for name in ("name", *rates)} | given
        config = check({"penalty": "hard", **given, "l21": 0.0})
        config.model_fields_set.intersection_update(content)
        return config

    @field_validator("name", mode="before")
    @classmethod
    def _is_known(cls, name: Any) -> Any:
        if isinstance(name, str) and (problem := unknown_optimizer(name)):
            raise ValueError(problem)
        return name

    @model_validator(mode="after")
    def _is_valid(self) -> Self:
        check_further_options(self.options, own=("lr", *self._of_embeddings()))
        for name in ("lr", "network_lr", "l1", "l21", "l2"):
            check_magnitude(name, getattr(self, name))
        needs_lr = any(one.name == "lr" and one.default is REQUIRED for one in self.rule.hyperparameters)
        if needs_lr and self.lr is None:
            raise ValueError(f"the optimizer {self.name} has no default learning rate: give lr")
        try:
            arguments = self.arguments
        except TypeError as error:
            raise ValueError(str(error)) from error
        if self.network_lr is not None:
            try:
                OPTIMIZERS[self.name].checked_arguments(**{**self._given(), "lr": self.network_lr})
            except (ValueError, TypeError) as error:
                raise ValueError(f"network_lr: {error}") from error
        if not is_rows(arguments["groups"]):
            raise ValueError(f"embeddings need groups='rows', got {arguments['groups']!r}")
        if arguments["capturable"]:
            raise ValueError("embeddings, whose rows differ from step to step, cannot have capturable=True")
        return self

    def make(self, model: nn.Module) -> GroupOptimizer:
        """The optimizer of a model's parameters."""
        table, *others = param_groups(model, **self._of_embeddings())
        if self.network_lr is not None:
            others = [{**group, "lr": self.network_lr} for group in others]
        return OPTIMIZERS[self.name]([table, *others], **self._given())

    def scheduler(self, optimizer: GroupOptimizer, steps: int) -> LambdaLR | None:
        """What sets the learning rates along so many steps; None where they are constant."""
        if self.schedule == "constant" and not self.warmup:
            return None
        return LambdaLR(optimizer, RateSchedule(self.schedule, steps, self.warmup))

    @property
    def has_target(self) -> bool:
        """Whether a size is asked for, so that λ21 changes along the way."""
        return self.target_rate is not None or self.target_bytes is not None

    def target(
        self,
        optimizer: GroupOptimizer,
        steps: int,
        *,
        ramp: int | None = None,
        interval: int | None = None,
    ) -> SizeTarget | None:
        """What sets λ21 over so many steps; None where it is constant.

        Args:
            optimizer: The optimizer.
            steps, ramp, interval: See `TargetRate`.
        """
        if self.target_rate is not None:
            return TargetRate(
                optimizer, self.target_rate, steps=steps, ramp=ramp, interval=interval, least=self.least_features
            )
        if self.target_bytes is None:
            return None
        return TargetBytes(optimizer, self.target_bytes, steps=steps, ramp=ramp, interval=interval)

    @property
    def rule(self) -> Rule:
        """The base optimizer, which declares what `options` may have."""
        return OPTIMIZERS[self.name].rule

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of the embeddings' param group: those given, and the defaults of the others.

        Raises:
            ValueError, TypeError: As the optimizer.
        """
        return OPTIMIZERS[self.name].checked_arguments(**{**self._given(), **self._of_embeddings()})

    def _of_embeddings(self) -> dict[str, Any]:
        """What the embeddings' param group has and the others have not."""
        regularizer = {name: getattr(self, name) for name in ("l1", "l21", "l2", "norm", "penalty")}
        return {**regularizer, "state_dtype": torch.bfloat16 if self.state_dtype == "bfloat16" else None}

    def _given(self) -> dict[str, Any]:
        options: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in self.options.items()
        }
        return options if self.lr is None else {**options, "lr": self.lr}
