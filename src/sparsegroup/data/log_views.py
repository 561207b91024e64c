"""Logs made of another log."""

from collections.abc import Iterator
from dataclasses import dataclass

from sparsegroup.data.batches import Batch
from sparsegroup.data.log import Log


@dataclass(frozen=True)
class LogView:
    """What a log has in common with another one that is made of it: its name and columns.

    Attributes:
        log: The one it is made of.
    """

    log: Log

    @property
    def name(self) -> str:
        """The log's."""
        return self.log.name

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the categorical fields."""
        return self.log.fields

    @property
    def lists(self) -> tuple[str, ...]:
        """Fields of several values."""
        return self.log.lists

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names of the numeric ones."""
        return self.log.numbers


@dataclass(frozen=True)
class Excerpt(LogView):
    """Consecutive rows of a log: its last training rows and its first test rows.

    Attributes:
        train_rows: Training rows, of those that the log has.
        test_rows: Test rows, likewise.
    """

    train_rows: int
    test_rows: int

    def __post_init__(self) -> None:
        tests = len(self.log) - self.log.train_rows
        if not 0 < self.train_rows <= self.log.train_rows or not 0 <= self.test_rows <= tests:
            raise ValueError(
                f"{self.log.name} has {self.log.train_rows:,} training and {tests:,} test rows, "
                f"got train_rows={self.train_rows:,}, test_rows={self.test_rows:,}"
            )

    def __len__(self) -> int:
        return self.train_rows + self.test_rows

    @property
    def features(self) -> int | None:
        """Not counted, unless it is the whole log."""
        return self.log.features if self.train_rows == self.log.train_rows else None

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """Rows `start` to `stop` of the excerpt, `size` at a time."""
        first = self.log.train_rows - self.train_rows
        return self.log.batches(first + start, first + stop, size)


def excerpt(log: Log, rows: int) -> Excerpt:
    """At most so many rows around the place where the test set begins, as many of them for training as in the whole."""
    if len(log) <= rows:
        return Excerpt(log, log.train_rows, len(log) - log.train_rows)
    train_rows = max(1, rows * log.train_rows // len(log))
    return Excerpt(log, train_rows, rows - train_rows)
