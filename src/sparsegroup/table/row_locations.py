"""Where the keys of one lookup are, among a table's rows."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sparsegroup.kernels.views import array_of

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class RowLocations:
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
