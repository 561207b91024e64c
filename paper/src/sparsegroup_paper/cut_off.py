"""Frequency cut-off: what most click models do about rare features. They share one vector per field."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.data import VALUE_BITS, Bags, Batch, Log, LogView

RARE = (1 << VALUE_BITS) - 1
"""Value part of the key that rare features get."""


class WithoutRare(LogView):
    """A log in which each field's rare features are one, those of the test rows included.

    Args:
        log: The log.
        kept: Keys of the features that stay as they are, ascending.
    """

    def __init__(self, log: Log, kept: npt.NDArray[np.int64]) -> None:
        super().__init__(log)
        self.kept = kept

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """Rows `start` to `stop`, `size` at a time."""
        for batch in self.log.batches(start, stop, size):
            bags = tuple(Bags(self._joined(bag.keys), bag.offsets) for bag in batch.bags)
            yield replace(batch, keys=self._joined(batch.keys), bags=bags)

    def _joined(self, keys: Tensor) -> Tensor:
        given = keys.numpy()
        place = np.searchsorted(self.kept, given)
        is_kept = self.kept[np.minimum(place, len(self.kept) - 1)] == given if len(self.kept) else given != given
        # The low bits all set, the field's bits as they are.
        return torch.from_numpy(np.where(is_kept, given, given | RARE))
