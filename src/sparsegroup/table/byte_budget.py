"""How many rows a table may have, so that all that belongs to it stays below a number of bytes."""

from sparsegroup.table.buckets import BUCKET_BYTES, MOST_ROWS, SLACK
from sparsegroup.table.directory import Directory
from sparsegroup.table.index import KEYS_PER_BUCKET
from sparsegroup.table.row_storage import Rows
from sparsegroup.table.row_uses import BYTES

_MARKS = 2.2
"""Bytes of a row that mark what stays when others go, and what has changed since a checkpoint."""

_PARTS = 5
"""Of a row, while no optimizer has said which: x, u and three moments."""

_FEWEST = 1000
"""Rows below which a table is of no use."""


class ByteBudget:
    """Shares a table's bytes out: so much to rows, and to the index what so many take, from the beginning.

    Args:
        max_bytes: That are never exceeded.
        scratch_bytes: The part of `max_bytes` for the working memory of lookups.
        directory: What it takes beside its index does not change.
        memory: Rows, whose parts may become more once.

    Raises:
        ValueError: That is too little for 1,000 rows.
    """

    def __init__(self, max_bytes: int, scratch_bytes: int, directory: Directory, memory: Rows) -> None:
        self.max_bytes = max_bytes
        self._left = max_bytes - scratch_bytes - SLACK * BUCKET_BYTES - directory.fixed_bytes - memory.bytes(1)
        if self.most_rows(memory) < _FEWEST:
            least = max_bytes - self._left + int(_FEWEST * self._bytes_of_row(memory)) + 1
            raise ValueError(f"max_bytes must be at least {least:,} for 1,000 rows of this table, got {max_bytes:,}")

    def most_rows(self, memory: Rows, *, known: bool = False) -> int:
        """How many rows there can be, with the parts that they may get, or just with those that are `known`."""
        return min(MOST_ROWS, max(0, int(self._left / self._bytes_of_row(memory, known=known))))

    def buckets(self, memory: Rows, *, known: bool = False) -> int:
        """How many an index of that many keys takes."""
        return int(self.most_rows(memory, known=known) / KEYS_PER_BUCKET) + 1

    def check_room(self, wanted: int, rows: int, memory: Rows, *, known: bool) -> None:
        """Raise RuntimeError unless there is room for `wanted` more than `rows` rows; for `known`, see `most_rows`."""
        room = self.most_rows(memory, known=known) - rows
        if wanted > room:
            raise RuntimeError(
                f"the table is full: within max_bytes={self.max_bytes:,} there is room for {max(room, 0):,} more rows, "
                f"and {wanted:,} are to be set; none was"
            )

    def check_layout(self, parts: int, rows: int, memory: Rows) -> None:
        """Raise RuntimeError unless `rows` rows of so many parts are within the limit."""
        most = int(self._left / self._bytes_of_parts(parts, memory))
        if rows > most and parts > len(memory.parts):
            raise RuntimeError(
                f"with this optimizer's state, max_bytes={self.max_bytes:,} are enough for {most:,} rows, and the "
                f"table has {rows:,}: drop some by shrink(), or give it more; nothing has been changed"
            )

    def room(self, wanted: int, directory: Directory, memory: Rows) -> int:
        """How many of `wanted` more rows there is room for."""
        return max(0, min(wanted, self.most_rows(memory) - directory.num_rows))

    def _bytes_of_row(self, memory: Rows, *, known: bool = False) -> float:
        parts = len(memory.parts)
        if not known:
            parts = _PARTS if parts == 1 else parts + ("u" not in memory.parts)
        return self._bytes_of_parts(parts, memory)

    def _bytes_of_parts(self, parts: int, memory: Rows) -> float:
        return memory.bytes_of_row(parts) + BYTES + _MARKS + BUCKET_BYTES / KEYS_PER_BUCKET
