"""The average of two tables, in which rows that are dead in the newer one are zero."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from sparsegroup.kernels.views import array_of
from sparsegroup.optim.averaging import with_zeros_of
from sparsegroup.table.row_block import ROWS_AT_A_TIME
from sparsegroup.table.row_storage import WEIGHT
from sparsegroup.table.table_snapshot import TableSnapshot

if TYPE_CHECKING:
    from sparsegroup.table.table import Table


def averaged(average: "Table", current: "Table", weight: float) -> TableSnapshot:
    """What `current` holds, but for the optimizer's state, with vectors `average + weight * (current - average)`.

    A vector's elements are zero where they are in `current`, and those of `current` where they are zero in `average`.
    """
    content = current.snapshot((WEIGHT,))
    vectors = content.parts[WEIGHT]
    for first in range(0, len(content.keys), ROWS_AT_A_TIME):
        some = slice(first, first + ROWS_AT_A_TIME)
        before = average.look_up(content.keys[some], insert=False).vectors.cpu()
        now = torch.from_numpy(vectors[some]).to(before.dtype)
        mean = with_zeros_of(now, before, torch.lerp(before, now, weight))
        vectors[some] = array_of(mean.to(torch.from_numpy(vectors[some]).dtype))
    return replace(content, parts={WEIGHT: vectors})
