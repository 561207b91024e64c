"""A training that diverges ends: where that shows, and what is said of it."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from math import isfinite

from torch import Tensor, nn

from sparsegroup.optim.table_parameter import store_of


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
    """Raise FloatingPointError where a weight beside the tables' rows, trained on so many samples, is not finite."""
    with divergence_told(samples):
        weights = [parameter for parameter in model.parameters() if store_of(parameter) is None]
        if not all(weight.isfinite().all() for weight in weights):
            raise FloatingPointError("weights of the network are not finite")


@contextmanager
def divergence_told(samples: int) -> Iterator[None]:
    """An error of numbers that are not finite says after how many samples it came, and what to try."""
    try:
        yield
    except FloatingPointError as error:
        raise FloatingPointError(
            f"training has diverged after {samples:,} samples: {error}. Lower the learning rate"
        ) from error
