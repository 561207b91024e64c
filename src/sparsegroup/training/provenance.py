"""What is known of a run when it begins, to tell later whether its log is still the same."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

from sparsegroup.artifact.validation import STRICT, Count
from sparsegroup.data.log import Log
from sparsegroup.training.run_error import RunError


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
