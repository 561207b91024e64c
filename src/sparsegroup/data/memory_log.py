"""A click log in memory."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch

from sparsegroup.data.batches import Batch
from sparsegroup.data.keys import Int64s
from sparsegroup.data.log import Log


@dataclass(eq=False)
class MemoryLog(Log):
    """Rows of categorical fields of one value each.

    Attributes:
        name: Where the rows come from.
        fields: Names of the fields.
        keys: `[rows, fields]` int64, each with its field in the high bits, as `sparsegroup.data.keys` makes them.
        labels: `[rows]` float32, 0 or 1.
        train_rows: Number of rows, from the start, for training; the rest is the test set.
        informative: Keys that have an effect on the label, ascending, where the truth is known (synthetic logs), else
            None.
    """

    name: str
    fields: tuple[str, ...]
    keys: Int64s
    labels: npt.NDArray[np.float32]
    train_rows: int
    informative: Int64s | None = None

    def __post_init__(self) -> None:
        self.truth = None if self.informative is None else self.are_informative

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def seen(self) -> Int64s:
        """The distinct features in the training rows, ascending."""
        return np.unique(self.keys[: self.train_rows])

    @property
    def features(self) -> int:
        """Number of distinct features in the training rows."""
        return len(self.seen)

    def are_informative(self, keys: Int64s) -> npt.NDArray[np.bool_]:
        """Which of `keys` have an effect on the label.

        Raises:
            ValueError: The truth is not known.
        """
        if self.informative is None:
            raise ValueError(f"{self.name}: which features are informative is not known")
        return np.isin(keys, self.informative)

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """Rows `start` to `stop`, `size` at a time, with the row's number for the time."""
        for begin in range(start, stop, size):
            end = min(begin + size, stop)
            yield Batch(
                torch.from_numpy(self.keys[begin:end]),
                torch.empty(end - begin, 0),
                torch.from_numpy(self.labels[begin:end]),
                torch.arange(begin, end),
            )
