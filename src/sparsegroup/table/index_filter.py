"""Taking keys out of an index where it is: nothing is copied aside, whatever its size."""

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu.jit import kernel, load, store
from sparsegroup.table.index import COUNT, PHYSICAL, Index, bucket_address, hash_of, put

Int64s = npt.NDArray[np.int64]

_RUN = 64
"""Rows whose number is found by counting from the last one that is noted."""


def keep_rows(index: Index, kept: npt.NDArray[np.bool_]) -> tuple[Int64s, Int64s]:
    """Keep the rows of the mask `[num_keys]`, renumbered in their order; the index stays as large as it is.

    Returns:
        Keys and former rows of the others, in no particular order.
    """
    starts = np.arange(0, len(kept), _RUN)
    counts = np.add.reduceat(kept.view(np.uint8), starts, dtype=np.int64) if len(kept) else np.zeros(0, np.int64)
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    gone = len(kept) - int(before[-1])
    keys, rows = np.empty(gone, np.int64), np.empty(gone, np.int64)
    _keep_kernel(kept, before, index.state, index.pages, keys, rows)
    return keys, rows


def _keep_all(kept: Any, before: Any, state: Any, pages: Any, gone_keys: Any, gone_rows: Any) -> None:
    """Bucket after bucket is emptied, and what stays is put back.

    It goes where it lay or further down, never up: its home is at or below its bucket, which has room again. Buckets
    that have been passed lose nothing any more, so that what lies behind full ones is found.
    """
    gone = stayed = 0
    taken = np.empty((4, 2), np.int64)
    for bucket in range(state[PHYSICAL]):
        slot = bucket_address(bucket, pages)
        count = 0
        for _ in range(4):
            key, row = load(slot), load(slot + 8) - 1
            if row >= 0:
                store(slot, 0)
                store(slot + 8, 0)
                if kept[row]:
                    taken[count, 0], taken[count, 1] = key, row
                    count += 1
                else:
                    gone_keys[gone], gone_rows[gone] = key, row
                    gone += 1
            slot += 16
        for i in range(count):
            key, row = taken[i, 0], taken[i, 1]
            run = row >> 6
            number = before[run]
            for other in range(run << 6, row):
                number += kept[other]
            put(key, number + 1, hash_of(key), state, pages)
        stayed += count
    state[COUNT] = stayed


_keep_kernel = kernel(_keep_all, "the table's index (removal)")
