"""What a checkpoint's `state` holds, as `save_checkpoint` makes it: its parts and their types."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from sparsegroup.artifact.validation import STRICT, AnyReal, Key


@dataclass(frozen=True)
class SavedOptimizer:
    """An optimizer's state without the rows of tables.

    Attributes:
        kind: What it is told by.
        param_groups, state: As a state dict has them.
        generator: The state of its generator, where it has one.
    """

    kind: str
    param_groups: list[dict[str, Any]]
    state: Mapping[Any, Any]
    generator: Tensor | None


@dataclass(frozen=True)
class SavedRng:
    """The states of torch's, NumPy's and Python's generators; see `rng_state`."""

    torch: Tensor
    cuda: list[Tensor]
    numpy: tuple[str, list[int], int, int, AnyReal]
    python: tuple[Key, tuple[int, ...], AnyReal | None]


@dataclass(frozen=True)
class SavedRank:
    """What each of several ranks has of its own: the states of its generators, and of its optimizers'."""

    rng: SavedRng
    generators: list[Tensor | None]


@dataclass(frozen=True)
class SavedState:
    """All but the rows.

    Attributes:
        model: The state dict.
        optimizers, rng: As above.
        scheduler, scheduler_kind: The scheduler's state dict and class; None without one.
        extra: What was given to be kept.
        ranks: What each rank has of its own; None where one has written alone.
    """

    __pydantic_config__: ClassVar = STRICT

    model: dict[str, Any]
    optimizers: list[SavedOptimizer]
    rng: SavedRng
    scheduler: dict[str, Any] | None
    scheduler_kind: str | None
    extra: Any
    ranks: list[SavedRank] | None = None
