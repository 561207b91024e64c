"""What a run and its checkpoints say of themselves besides the model: what it was begun on, and how far it has come."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator
from torch import Tensor

from sparsegroup.artifact.validation import STRICT, Count, validated
from sparsegroup.data.log import Log
from sparsegroup.data.schema import LogSchema
from sparsegroup.training.plan import EarlierRanks
from sparsegroup.training.run_files import RunError
from sparsegroup.training.state import TrainerState


@dataclass(frozen=True)
class Provenance:
    """What is known of a run when it begins.

    Attributes:
        started: Date and time, ISO 8601.
        rows, train_rows: The rows of its log, and of its training part.
        source: Sizes of the log's files and a hash of its format, where it has any.
        continued_from: The run that it goes on with, or None.
        continued_id: The id of the checkpoint that it goes on from.
        job: The id of the torchrun job that began it; None without torchrun.
    """

    __pydantic_config__: ClassVar = STRICT

    started: str
    rows: Count
    train_rows: Count
    source: Mapping[str, Any] | None = None
    continued_from: str | None = None
    continued_id: str | None = None
    job: str | None = None

    @classmethod
    def now(
        cls, log: Log, continued_from: str | None = None, continued_id: str | None = None, job: str | None = None
    ) -> "Provenance":
        """The provenance of a run on `log`, which may go on with another."""
        return cls(
            datetime.now(UTC).isoformat(timespec="seconds"),
            len(log),
            log.train_rows,
            log.identity,
            continued_from,
            continued_id,
            job,
        )

    def check(self, log: Log) -> None:
        """Whether `log` is still what it was.

        Raises:
            RunError: It is not.
        """
        if (len(log), log.train_rows, log.identity) != (self.rows, self.train_rows, self.source):
            raise RunError(
                f"{log.name}: has changed since the run began (begun.json), so the remaining rows are unknown; begin a "
                "new run"
            )


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
