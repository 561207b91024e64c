"""Numbers that are missing or infinite, where a network takes numbers as they are: told as such, not as divergence."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from torch import Tensor, nn

from sparsegroup.data.batches import Batch
from sparsegroup.data.log import Log
from sparsegroup.errors import UserError
from sparsegroup.models import NumberEncoder

_WHAT_TO_DO = (
    "the model takes numbers as they are: fill them in, or train with model.standardize=true, which takes them"
)


@dataclass(frozen=True)
class NumberPlace:
    """Where a number is.

    Attributes:
        first: The row of a stream that its batch begins with, from 0.
        batch: The batch.
        row, column: Its place in the batch's numbers.
    """

    first: int
    batch: Batch
    row: int
    column: int


class MissingNumberError(UserError):
    """A number that is missing or infinite, and a network that does not take it."""

    def __init__(self, place: NumberPlace, name: str = "") -> None:
        said = name or f"row {place.first + place.row} of the stream: column {place.column} of the numbers (from 0)"
        super().__init__(f"{said} has missing or infinite numbers, and {_WHAT_TO_DO}")
        self.place = place


def check_logits(model: nn.Module, batch: Batch, logits: Tensor, first: int) -> None:
    """Whether logits `[n]` are numbers. On a GPU to look would be to wait for them.

    Args:
        model: What gave them.
        batch: What they were given for.
        logits: To look at.
        first: The row of the stream that the batch begins with.

    Raises:
        MissingNumberError: One is NaN, as is a number of its row.
        FloatingPointError: One is NaN for another reason.
    """
    if logits.device.type != "cpu" or not bool((wrong := logits.isnan()).any()):
        return
    row = int(wrong.nonzero()[0])
    refused = _refused(model, batch.numbers)[row].nonzero()
    if len(refused):
        raise MissingNumberError(NumberPlace(first, batch, row, int(refused[0])))
    raise FloatingPointError(
        f"the model's logit of row {first + row} (from 0) is NaN: its weights are not finite, its training has "
        "diverged; train it with a lower learning rate"
    )


@contextmanager
def missing_numbers_told(model: nn.Module, batch: Batch) -> Iterator[None]:
    """An error of numbers that are not finite says which of the batch's the network does not take, if there are any.

    Raises:
        MissingNumberError: There are.
    """
    try:
        yield
    except FloatingPointError as error:
        refused = _refused(model, batch.numbers).nonzero()
        if not len(refused):
            raise
        row, column = refused[0].tolist()
        raise MissingNumberError(NumberPlace(0, batch, row, column)) from error


@contextmanager
def numbers_named(log: Log, start: int | None = None) -> Iterator[None]:
    """A `MissingNumberError` names the log and the column; and the row, where the stream is the log from `start` on."""
    try:
        yield
    except MissingNumberError as error:
        place = error.place
        row = ""
        if start is not None:
            row = f" row {log.places(start + place.first, place.batch)[place.row]} (from 0):"
        raise MissingNumberError(place, f"{log.name}:{row} {log.numbers[place.column]!r}") from error


def _refused(model: nn.Module, numbers: Tensor) -> Tensor:
    """Which of the numbers `[n, columns]` a network turns into no number."""
    encoder = next((module for module in model.modules() if isinstance(module, NumberEncoder)), None)
    if encoder is None:
        return ~numbers.isfinite()
    return numbers.isinf() & (not encoder.standardize)
