"""Going through the rows of a table, some at a time, while it is not held still."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from sparsegroup.table import packing
from sparsegroup.table.row_lookup import CHUNK
from sparsegroup.table.row_storage import WEIGHT, Floats

if TYPE_CHECKING:
    from sparsegroup.table.row_locations import Int64s
    from sparsegroup.table.table_inspection import TableInspection


def scan_live(table: "TableInspection", batch_size: int) -> "Iterator[tuple[Int64s, Floats]]":
    """See `Table.scan`."""
    for keys, (vectors,) in scan_rows(table, (WEIGHT,), max(batch_size, CHUNK)):
        live = (vectors != 0).any(axis=1)
        for first in range(0, int(live.sum()), batch_size):
            yield keys[live][first : first + batch_size], vectors[live][first : first + batch_size]


def scan_rows(
    table: "TableInspection", parts: Sequence[str], batch_size: int
) -> "Iterator[tuple[Int64s, list[Floats]]]":
    """See `Table.scan_rows`."""
    with table.at_rest():
        before = table.directory.generation, table.directory.num_rows, table.directory.num_packed
        batches = packing.scan(table.directory, table.rows, parts, batch_size)
    while True:
        with table.at_rest():
            if before != (table.directory.generation, table.directory.num_rows, table.directory.num_packed):
                raise RuntimeError("rows came or went while the table was iterated over")
            batch = next(batches, None)
        if batch is None:
            return
        yield batch
