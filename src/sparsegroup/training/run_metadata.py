"""What a run records besides its model: what it was begun on, and in its checkpoints how far it has come."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator

from sparsegroup.artifact.validation import STRICT, Count, validated
from sparsegroup.data.log import Log
from sparsegroup.data.schema import LogSchema
from sparsegroup.training.baseline import BaselineCallback, LogisticBaseline
from sparsegroup.training.plan import EarlierRanks
from sparsegroup.training.run_files import RunError
from sparsegroup.training.state import TrainerState


@dataclass(frozen=True)
class Provenance:
    """What is known of a run when it begins: when (ISO 8601), on which log, after which run, in which torchrun job.

    Attributes:
        source: Sizes of the log's files and a hash of its format, where it has any.
        continued_id: The id of the checkpoint of `continued_from` that training was continued from.
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
        """The provenance of a run that begins on `log`."""
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
        """Raise RunError where `log` is not what it was."""
        if (len(log), log.train_rows, log.identity) != (self.rows, self.train_rows, self.source):
            raise RunError(
                f"{log.name}: has changed since the run began (begun.json), so the remaining rows are unknown; begin a "
                "new run"
            )


@dataclass(frozen=True)
class CheckpointMetadata:
    """What a run's checkpoint keeps besides model and optimizer, so that a model can be made from it alone.

    Attributes:
        samples: Trained on, in all.
        position, trainer: Rows trained on in this run, and the trainer's state; None where `save_run` wrote it.
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
    def of(cls, content: Any, checkpoint: Path) -> "CheckpointMetadata":
        """Parse `LoadResult.extra` of a run's checkpoint; RunError names checkpoint and field."""
        if not isinstance(content, dict) or "config" not in content:
            raise RunError(f"{checkpoint}: was not written by `sparsegroup train`: it has no model settings")
        try:
            return validated(cls, content)
        except ValueError as error:
            raise RunError(f"{checkpoint}: damaged (state.extra.{error})") from error

    def trainer_state(self, checkpoint: Path) -> TrainerState:
        """The trainer's state; raises RunError where there is none."""
        if self.trainer is None:
            raise RunError(f"{checkpoint}: has no state of the training (state.extra.trainer is missing)")
        return self.trainer

    def baseline(self, checkpoint: Path) -> LogisticBaseline | None:
        """The baseline of all ranks; None where there was none. Raises RunError where its state is damaged."""
        states = [] if self.trainer is None else self.trainer.callbacks(BaselineCallback.__name__)
        if not states:
            return None
        baseline = LogisticBaseline(numbers=len(self.columns.numbers))
        try:
            baseline.load_state_dict(*states)
        except ValueError as error:
            raise RunError(f"{checkpoint}: damaged (state.extra.trainer.callbacks.{error})") from error
        return baseline
