"""What a table without autograd tells, and what changes nothing in it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from sparsegroup.table import table_scan
from sparsegroup.table.directory import Directory
from sparsegroup.table.pending import Pending
from sparsegroup.table.row_block import ROWS_AT_A_TIME
from sparsegroup.table.row_locations import Int64s
from sparsegroup.table.row_storage import Floats, Rows, RowStorage
from sparsegroup.table.table_config import TableConfig
from sparsegroup.table.table_report import FieldCount, count_fields


class TableInspection:
    """The part of a `Table` that only reads.

    Attributes:
        config: See `HashEmbedding`.
        directory: Key → row; to be read at rest.
        storage: The rows and what is done where they are, likewise.
    """

    config: TableConfig
    directory: Directory
    storage: RowStorage
    _pending: Pending

    @contextmanager
    def at_rest(self) -> Iterator[None]:
        """While it lasts, no other thread comes to the table, and nothing is pending."""
        with self._pending.lock, self._pending:
            yield

    @property
    def num_rows(self) -> int:
        """Rows, live or not."""
        with self._pending.lock, self._pending:
            return self.directory.num_rows

    @property
    def num_live(self) -> int:
        """Rows that are not zero."""
        with self._pending.lock, self._pending:
            return self.storage.num_live

    @property
    def num_seen(self) -> int:
        """Distinct keys that training has ever seen."""
        with self._pending.lock, self._pending:
            return self.directory.num_seen

    @property
    def skipped_rows(self) -> int:
        """See `HashEmbedding`."""
        return self.storage.skipped_rows

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self.config.dim

    @property
    def weight_dtype(self) -> torch.dtype:
        """The dtype of the vectors, as torch names it."""
        return self.config.weight_dtype

    @property
    def device(self) -> torch.device:
        """Where the vectors are."""
        return self.config.device

    @property
    def rows(self) -> Rows:
        """The rows; to be read at rest."""
        return self.storage.rows

    @property
    def state_names(self) -> tuple[str, ...]:
        """The parts of a row beside its weights."""
        return self.storage.state_names

    def find(self, keys: Int64s) -> Int64s:
        """Rows of `keys`, `ABSENT` where there is none."""
        with self._pending.lock, self._pending:
            return self.directory.find(keys)

    def scan(self, batch_size: int) -> Iterator[tuple[Int64s, Floats]]:
        """Keys and vectors of the live rows, at most `batch_size` at a time."""
        return table_scan.scan_live(self, batch_size)

    def scan_rows(
        self, parts: Sequence[str], batch_size: int = ROWS_AT_A_TIME
    ) -> Iterator[tuple[Int64s, list[Floats]]]:
        """Keys `[n]` of all rows and some of their parts, `[n, dim]` each, at most `batch_size` ≥ 4 at a time.

        Raises:
            RuntimeError: Rows came or went meanwhile.
        """
        return table_scan.scan_rows(self, parts, batch_size)

    def field_counts(self) -> dict[int, FieldCount]:
        """Counts by the field that a key's top `field_bits` bits hold, of the fields ever seen."""
        with self._pending.lock, self._pending:
            return count_fields(self.directory, self.rows.live(0, self.directory.num_rows), self.config.field_bits)
