"""Going through the rows of a table, some at a time, while it is not held still."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from sparsegroup.table.row_storage import WEIGHT, Floats

if TYPE_CHECKING:
    from sparsegroup.table.row_locations import Int64s
    from sparsegroup.table.table_inspection import TableInspection

_KEYS_AT_A_TIME, _MOST_PASSES = 1 << 20, 16
"""At least this many keys are found by their row at a time, and the index is walked at most this often for it."""

_ROWS_AT_A_TIME = 1 << 16
"""Rows that are read at a time, at least, to find the live ones."""


def scan_live(table: "TableInspection", batch_size: int) -> "Iterator[tuple[Int64s, Floats]]":
    """See `Table.scan`."""
    held_keys, held_vectors = np.empty(0, np.int64), np.empty((0, table.dim), table.config.dtype)
    for keys, (vectors,) in scan_rows(table, (WEIGHT,), max(batch_size, _ROWS_AT_A_TIME)):
        live = (vectors != 0).any(axis=1)
        keys, vectors = np.concatenate([held_keys, keys[live]]), np.concatenate([held_vectors, vectors[live]])
        full = len(keys) - len(keys) % batch_size
        for first in range(0, full, batch_size):
            yield keys[first : first + batch_size], vectors[first : first + batch_size]
        held_keys, held_vectors = keys[full:], vectors[full:]
    if len(held_keys):
        yield held_keys, held_vectors


def scan_rows(
    table: "TableInspection", parts: Sequence[str], batch_size: int
) -> "Iterator[tuple[Int64s, list[Floats]]]":
    """See `Table.scan_rows`."""
    with table.at_rest():
        generation, count = table.directory.generation, table.directory.num_rows
    at_a_time, known = max(_KEYS_AT_A_TIME, count // _MOST_PASSES), np.empty(0, np.int64)
    begin = end = 0
    while begin < count:
        with table.at_rest():
            if table.directory.generation is not generation or table.directory.num_rows != count:
                raise RuntimeError("rows came or went while the table was iterated over")
            if begin == end:
                end = min(begin + at_a_time, count)
                known, start = table.directory.index.keys_of_rows(begin, end), begin
            rows = np.arange(begin, min(begin + batch_size, end))
            batch = known[rows - start], [table.rows.read(part, rows) for part in parts]
        begin += len(rows)
        yield batch
