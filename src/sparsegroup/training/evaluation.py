"""What a model predicts for a stream of batches, and how good that is."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.data.batches import Batch
from sparsegroup.reporting.run_record import Metrics
from sparsegroup.training.lookup_model import LookupModel
from sparsegroup.training.metrics import evaluate

EVALUATED = 4096
"""Samples of a batch in evaluation."""

Sample = Batch | Sequence[Tensor]
"""A batch, or tensors (keys, labels) or (keys, numbers, labels), as a torch DataLoader gives them."""


def as_batch(sample: Sample) -> Batch:
    """A batch of what a stream gives.

    Raises:
        TypeError: It is neither a `Batch` nor two or three tensors.
    """
    if isinstance(sample, Batch):
        return sample
    if not 2 <= len(sample) <= 3:
        raise TypeError(f"a batch is a Batch, (keys, labels) or (keys, numbers, labels), got {len(sample)} parts")
    keys, *numbers, labels = sample
    given = numbers[0] if numbers else torch.empty(len(labels), 0)
    return Batch(keys, given, labels.to(torch.get_default_dtype()), torch.zeros(len(labels), dtype=torch.int64))


def predictions_over(model: LookupModel, stream: Iterable[Sample]) -> "PredictionWindow":
    """What `model` predicts for all batches of a stream. The model is left in evaluation mode."""
    window = PredictionWindow(perf_counter())
    for batch, logits in logits_over(model, stream):
        window.add(batch, logits)
    return window


@torch.no_grad()
def logits_over(model: LookupModel, stream: Iterable[Sample]) -> Iterator[tuple[Batch, Tensor]]:
    """Each batch of a stream and the model's logits `[n]`. The model is left in evaluation mode."""
    model.eval()
    for batch in map(as_batch, stream):
        yield batch, model(batch.keys, batch.numbers, batch.bags)


class PredictionWindow:
    """Predictions for some samples, and their labels.

    Args:
        begin: When it began, as `perf_counter` says.
    """

    def __init__(self, begin: float) -> None:
        self.begin = begin
        self.seconds = 0.0
        self.samples = 0
        self._logits: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._weights: list[Tensor] = []

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> "PredictionWindow":
        """The window that `state_dict` described, to be begun again."""
        window = cls(0.0)
        window.seconds = state["seconds"]
        window.samples = len(state["labels"])
        for part, values in (("logits", window._logits), ("labels", window._labels), ("weights", window._weights)):
            if len(state[part]):
                values.append(state[part])
        return window

    def state_dict(self) -> dict[str, Any]:
        """Its logits, labels and weights `[samples]`, and the seconds since it began."""
        parts = {"logits": self._logits, "labels": self._labels, "weights": self._weights}
        tensors = {name: _joined(values) if values else torch.zeros(0) for name, values in parts.items()}
        return {**tensors, "seconds": perf_counter() - self.begin}

    def add(self, batch: Batch, logits: Tensor) -> None:
        """Take the labels and weights of a batch, and its logits `[n]`."""
        self.samples += len(batch)
        self._logits.append(logits)
        self._labels.append(batch.labels)
        if batch.weights is not None:
            self._weights.append(batch.weights)

    def probabilities(self) -> npt.NDArray[np.float64]:
        """The predictions `[samples]`, in the order in which they came."""
        if not self._logits:
            return np.zeros(0)
        result: npt.NDArray[np.float64] = torch.sigmoid(_joined(self._logits).double()).numpy()
        return result

    def metrics(self) -> Metrics:
        """Metrics of the predictions against the labels."""
        labels = _joined(self._labels).numpy() if self._labels else np.zeros(0, np.float32)
        weights = _joined(self._weights).numpy() if self._weights else None
        return evaluate(labels, self.probabilities(), weights)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """All parts, one behind the other, on the host."""
    return torch.cat([part.cpu() for part in parts])
