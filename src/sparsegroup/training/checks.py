"""What ends a training: wrong labels, missing numbers, divergence, parameters that no optimizer has."""

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import isfinite

import torch
from torch import Tensor, nn

from sparsegroup.data.batches import Batch
from sparsegroup.data.log import Log
from sparsegroup.errors import UserError
from sparsegroup.models import NumberEncoder
from sparsegroup.optim.table_parameter import store_of


def with_checked_labels(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The batches; ValueError names value, batch and row of a label that is neither 0 nor 1."""
    for number, batch in enumerate(batches):
        labels = batch.labels
        if not labels.bool().to(labels.dtype).equal(labels):
            row = int((labels.bool() != labels).flatten().nonzero()[0])
            raise ValueError(
                f"labels must be 0 or 1, got {labels.flatten()[row].item():g} in row {row} of batch {number} of the "
                "stream (both from 0)"
            )
        yield batch


class MissingNumberError(UserError):
    """A number that is missing or infinite, and a network that does not take it.

    Attributes:
        batch, row, column: A batch, and the number's place in it.
        first: The row of the stream, from 0, at which the batch begins.
    """

    def __init__(self, batch: Batch, row: int, column: int, first: int, place: str = "") -> None:
        place = place or f"row {first + row} of the stream: column {column} of the numbers (from 0)"
        super().__init__(
            f"{place} has missing or infinite numbers, and the model takes numbers as they are: fill them in, or train "
            "with model.standardize=true, which takes them"
        )
        self.batch, self.row, self.column, self.first = batch, row, column, first


@contextmanager
def numbers_named(log: Log, start: int | None = None) -> Iterator[None]:
    """A `MissingNumberError` names the log and the column; and the row, where the stream is the log from `start` on."""
    try:
        yield
    except MissingNumberError as error:
        batch, row, column, first = error.batch, error.row, error.column, error.first
        place = "" if start is None else f" row {log.places(start + first, batch)[row]} (from 0):"
        raise MissingNumberError(batch, row, column, first, f"{log.name}:{place} {log.numbers[column]!r}") from error


def _missing_number(model: nn.Module, batch: Batch, rows: slice, first: int) -> MissingNumberError | None:
    """The first number in rows of a batch that the network turns into no number."""
    encoder = next((module for module in model.modules() if isinstance(module, NumberEncoder)), None)
    numbers = batch.numbers[rows]
    refused = ~numbers.isfinite() if encoder is None else numbers.isinf() & (not encoder.standardize)
    if not bool(refused.any()):
        return None
    row, column = refused.nonzero()[0].tolist()
    return MissingNumberError(batch, (rows.start or 0) + row, column, first)


def check_logits(model: nn.Module, batch: Batch, logits: Tensor, first: int) -> None:
    """Raise where a logit `[n]` of a batch that begins at row `first` of a stream is NaN. Not checked on a GPU.

    The error is a MissingNumberError if a number of the row is missing, or else a FloatingPointError.
    """
    if logits.device.type != "cpu" or not bool((wrong := logits.isnan()).any()):
        return
    row = int(wrong.nonzero()[0])
    raise _missing_number(model, batch, slice(row, row + 1), first) or FloatingPointError(
        f"the model's logit of row {first + row} (from 0) is NaN: its weights are not finite, its training has "
        "diverged; train it with a lower learning rate"
    )


def backward(loss: Tensor, *, second_order: bool) -> None:
    """The gradients of a loss; for second derivatives with their graph."""
    if not second_order:
        loss.backward()  # type: ignore[no-untyped-call]
        return
    with warnings.catch_warnings():
        # torch warns of a reference cycle; GroupAdaHessian breaks it in step().
        warnings.filterwarnings("ignore", message=r"Using backward\(\) with create_graph=True", category=UserWarning)
        loss.backward(create_graph=True)  # type: ignore[no-untyped-call]


def check_loss(loss: Tensor) -> None:
    """Raise FloatingPointError where a loss, on a CPU, is not finite. On a GPU to look would be to wait for it."""
    if loss.device.type == "cpu" and not isfinite(loss.item()):
        raise FloatingPointError(f"the loss of the next batch is {loss.item()}")


def check_weights(model: nn.Module, samples: int) -> None:
    """Raise FloatingPointError if a weight of the network, trained on so many samples, is not finite."""
    if not all(one.isfinite().all() for one in model.parameters() if store_of(one) is None):
        raise _diverged(samples, "weights of the network are not finite")


def failed_step(error: FloatingPointError, model: nn.Module, batch: Batch, samples: int) -> Exception:
    """The error to raise for a step after so many samples: the batch has missing numbers, or training has diverged."""
    return _missing_number(model, batch, slice(None), 0) or _diverged(samples, error)


def _diverged(samples: int, why: object) -> FloatingPointError:
    return FloatingPointError(f"training has diverged after {samples:,} samples: {why}. Lower the learning rate")


def check_stepped(modules: Mapping[str, nn.Module], optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Raise where the rows of a table would never be trained; warn of other parameters that would not.

    Frozen parameters (`requires_grad_(False)`) need no optimizer. `modules` have the caller's names.
    """
    stepped = {id(one) for optimizer in optimizers for group in optimizer.param_groups for one in group["params"]}
    left_out = {
        id(parameter): (f"{module}.{name}", store_of(parameter) is not None)
        for module, of in modules.items()
        for name, parameter in of.named_parameters()
        if parameter.requires_grad and id(parameter) not in stepped
    }
    if rows := [name for name, is_table in left_out.values() if is_table]:
        raise ValueError(
            f"no optimizer has {_listed(rows)}, so that it would never be trained: give its module's parameters() to "
            "one, as in GroupAdam([*table.parameters(), *model.parameters()]), or freeze it by requires_grad_(False)"
        )
    if left_out:
        names = _listed([name for name, _ in left_out.values()])
        warnings.warn(
            f"no optimizer has {names}: these stay as they are. Give them to one, or freeze them by "
            "requires_grad_(False)",
            UserWarning,
            stacklevel=3,
        )


def _listed(names: Sequence[str], most: int = 4) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
