"""What a lookup is given and finds on its way: keys, the distinct ones, their rows."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from sparsegroup.table.row_locations import RowLocations

Int64s = npt.NDArray[np.int64]


class KeySearch:
    """Where a lookup puts what it finds.

    Args:
        keys: `[n]`.

    Attributes:
        inverse: `[n]` int32, the place of each key among the distinct ones.
        rows: `[n]` int64, the rows of the distinct keys, as many as `count` says.
        count: `[1]`, how many are distinct.
    """

    def __init__(self, keys: Int64s) -> None:
        self.keys = keys
        self.inverse = np.empty(len(keys), np.int32)
        self.rows = torch.empty(len(keys), dtype=torch.int64)
        self.count = np.zeros(1, np.int64)

    def located(self, generation: int, has_absent: bool) -> RowLocations:
        """Them, when they have been filled."""
        return RowLocations(self.rows[: int(self.count[0])], self.inverse, generation, has_absent)


@dataclass
class LookAhead:
    """A lookup that has been begun before its time.

    Attributes:
        places: Where it looks, and what it finds.
        insert: Whether new keys get a row.
        located: Where the keys are; None if it has failed, or is not done.
    """

    places: KeySearch
    insert: bool
    located: RowLocations | None = None

    def is_for(self, keys: Int64s, insert: bool) -> bool:
        """Whether it is the lookup of these keys."""
        return self.insert == insert and np.array_equal(self.places.keys, keys)


@dataclass(frozen=True)
class RowSpace:
    """Memory for new rows, as `batch.insert_rows` takes it.

    Attributes:
        addresses: `[p]` int64, of pages.
        shift: log2 of the rows of a page.
        row_bytes: Bytes of a row.
        initial: What the parts after the weights begin with.
    """

    addresses: Int64s
    shift: int
    row_bytes: int
    initial: tuple[float, ...]
