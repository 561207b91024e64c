"""What a table is made with, and what it tells of itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
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
