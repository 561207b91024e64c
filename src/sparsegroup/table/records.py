"""What a table is made with, and what it tells of itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.kernels.views import array_of
from sparsegroup.table.start import Init

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TableConfig:
    """See `HashEmbedding`."""

    dim: int
    std: float
    init: Init
    seed: int
    max_rows: int
    field_bits: int
    skips_nonfinite: bool
    huge_pages: bool
    dtype: np.dtype[Any]
    """Of vectors on the host."""
    weight_dtype: torch.dtype
    device: torch.device
    on_device: bool
    """Whether the rows are in a GPU's memory (or in that of Triton's interpreter)."""


@dataclass(frozen=True)
class TableMemory:
    """Bytes of a table.

    Attributes:
        index: Of the index's slots.
        rows: Of the rows, in whole pages of the system's (2 MiB where they are huge).
        dropped: Of the keys that `shrink` has dropped, which are remembered to count distinct keys.
        parts: What the rows hold: "weight", "u" and the optimizer's state → rows × dim × bytes per number.
    """

    index: int
    rows: int
    dropped: int
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """Of all that is allocated."""
        return self.index + self.rows + self.dropped


@dataclass(frozen=True)
class FieldCount:
    """Of one field: distinct keys ever seen, rows, and rows with a non-zero vector."""

    seen: int
    rows: int
    live: int


@dataclass(frozen=True)
class Located:
    """Where the keys of one lookup are.

    Attributes:
        rows_tensor: `[distinct]` int64, each once, in order of appearance; `ABSENT` for a key without a row. A tensor,
            for torch may resize what it makes of it (`zero_` on a sparse gradient does).
        inverse: `[keys]` int32, the place in `rows` of each key.
        generation: Of the table: a `shrink` renumbers the rows.
        has_absent: Whether some key has no row.
    """

    rows_tensor: Tensor
    inverse: npt.NDArray[np.int32]
    generation: int
    has_absent: bool

    @property
    def rows(self) -> Int64s:
        """`rows_tensor` as an array."""
        return array_of(self.rows_tensor)


@dataclass(frozen=True)
class Space:
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


class Places:
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

    def located(self, generation: int, has_absent: bool) -> Located:
        """Them, when they have been filled."""
        return Located(self.rows[: int(self.count[0])], self.inverse, generation, has_absent)


@dataclass
class Ahead:
    """A lookup that has been begun before its time.

    Attributes:
        places: Where it looks, and what it finds.
        insert: Whether new keys get a row.
        located: Where the keys are; None if it has failed, or is not done.
    """

    places: Places
    insert: bool
    located: Located | None = None

    def is_for(self, keys: Int64s, insert: bool) -> bool:
        """Whether it is the lookup of these keys."""
        return self.insert == insert and np.array_equal(self.places.keys, keys)
