"""Rows set back to where they started, for another epoch."""

from collections.abc import Sequence

import numpy as np
import torch

from sparsegroup.table.hash_embedding import HashEmbedding
from sparsegroup.table.row_block import ROWS_AT_A_TIME
from sparsegroup.table.row_storage import WEIGHT
from sparsegroup.table.table import Table


def restart_tables(tables: Sequence[HashEmbedding], optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """Let all rows start again, without gradients and without the optimizers' state of them; frozen tables stay."""
    for optimizer in optimizers:
        optimizer.zero_grad()
    for table in tables:
        if table.weight.requires_grad:
            for optimizer in optimizers:
                optimizer.state.pop(table.weight, None)
            restart_rows(table.table)


def restart_rows(table: Table) -> None:
    """Give all rows the vectors that they started from.

    Which keys have rows, and which have been seen and when, stays as it is. So does the optimizer's state in the rows,
    until one that has dropped its state of the table takes a step: it starts afresh.

    Args:
        table: No gradient may be pending.
    """
    with table.at_rest():
        table.track(None)
        count = table.directory.num_rows
        for first in range(0, count, ROWS_AT_A_TIME):
            last = min(first + ROWS_AT_A_TIME, count)
            starts = table.starts.of(table.directory.index.keys_of_rows(first, last))
            table.rows.write(WEIGHT, np.arange(first, last), starts)
        table.storage.recount(count)
