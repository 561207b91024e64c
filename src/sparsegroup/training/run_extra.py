"""What a run's checkpoint keeps beside model and optimizer."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator
from torch import Tensor

from sparsegroup.artifact.validation import STRICT, Count, validated
from sparsegroup.data.schema import LogSchema
from sparsegroup.training.plan import EarlierRanks
from sparsegroup.training.run_error import RunError
from sparsegroup.training.state import TrainerState


@dataclass(frozen=True)
class RunExtra:
    """What a run's checkpoint keeps beside model and optimizer, so that a model can be made from it alone.

    Attributes:
        config: The settings, as files have them.
        columns: What the model expects of its logs.
        samples: Trained on, in all.
        position: Rows trained on in this run; None in the only checkpoint of a run that `save_run` wrote.
        trainer: Where the training stands; None there, too.
        earlier: Other numbers of ranks that its epoch was begun with.
    """

    __pydantic_config__: ClassVar = STRICT

    config: Mapping[str, Mapping[str, Any]]
    columns: Annotated[LogSchema, BeforeValidator(LogSchema.from_dict)]
    samples: Count
    position: Count | None = None
    trainer: Annotated[TrainerState, BeforeValidator(TrainerState.of)] | None = None
    earlier: tuple[EarlierRanks, ...] = ()

    @classmethod
    def of(cls, content: Any, checkpoint: Path) -> "RunExtra":
        """What `LoadResult.extra` of a run's checkpoint holds.

        Raises:
            RunError: The checkpoint is of no run, or damaged. The message names checkpoint and field.
        """
        if not isinstance(content, dict) or "config" not in content:
            raise RunError(f"{checkpoint}: was not written by `sparsegroup train`: it says of no model")
        try:
            return validated(cls, content)
        except ValueError as error:
            raise RunError(f"{checkpoint}: damaged (state.extra.{error})") from error

    def standing(self, checkpoint: Path) -> TrainerState:
        """Where the training stands.

        Raises:
            RunError: The checkpoint does not say that.
        """
        if self.trainer is None:
            raise RunError(f"{checkpoint}: does not say where the training stands (state.extra.trainer is missing)")
        return self.trainer

    @property
    def baseline(self) -> Mapping[str, Tensor] | None:
        """The state of the baseline; None where there was none."""
        return None if self.trainer is None else self.trainer.baseline
