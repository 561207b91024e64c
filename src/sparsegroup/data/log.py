"""What every click log offers."""

from collections.abc import Iterator
from typing import Protocol

from sparsegroup.data.batches import Batch


class Log(Protocol):
    """A click log in time order, the training rows first."""

    @property
    def name(self) -> str:
        """Where it comes from."""

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the categorical fields, by their number in the keys."""

    @property
    def lists(self) -> tuple[str, ...]:
        """Those of them that have several values, in the order of a batch's bags."""

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names of the numeric ones."""

    @property
    def train_rows(self) -> int:
        """Rows, from the start, for training; the others are the test set."""

    @property
    def features(self) -> int | None:
        """Distinct features in the training rows, if they have been counted."""

    def __len__(self) -> int: ...

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """Rows `start` to `stop` in order, `size` at a time, the last ones fewer."""
