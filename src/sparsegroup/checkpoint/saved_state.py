"""All that a checkpoint holds except the rows of tables: saving fills this, loading checks against it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field
from torch import Tensor

from sparsegroup.artifact.validation import STRICT, AnyReal, Key


@dataclass(frozen=True)
class SavedOptimizer:
    """A state dict without the rows of tables; `kind` is the rule's name, or the class of torch's own."""

    kind: str
    param_groups: list[dict[str, Any]]
    state: Mapping[Any, Any]


@dataclass(frozen=True)
class SavedRng:
    """The states of torch's, NumPy's and Python's global generators."""

    torch: Tensor
    cuda: list[Tensor]
    numpy: tuple[str, list[int], int, int, AnyReal]
    python: tuple[Key, tuple[int, ...], AnyReal | None]


@dataclass(frozen=True)
class SavedRank:
    """The random numbers of a rank: its global generators, and each optimizer's where it has one."""

    rng: SavedRng
    generators: list[Tensor | None]


@dataclass(frozen=True)
class SavedState:
    """State dicts of the model, its optimizers and the scheduler, the random numbers of each rank, and `extra`."""

    __pydantic_config__: ClassVar = STRICT

    model: dict[str, Any]
    optimizers: list[SavedOptimizer]
    scheduler: dict[str, Any] | None
    scheduler_kind: str | None
    ranks: Annotated[list[SavedRank], Field(min_length=1)]
    extra: Any

    def as_dict(self) -> dict[str, Any]:
        """The same in dictionaries and lists; nothing is copied."""
        ranks = [{"rng": vars(rank.rng), "generators": rank.generators} for rank in self.ranks]
        return {**vars(self), "optimizers": [vars(one) for one in self.optimizers], "ranks": ranks}
