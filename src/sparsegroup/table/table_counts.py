"""The counts of modules that hold tables."""

from collections.abc import Sequence

from sparsegroup.table.row_uses import LATEST
from sparsegroup.table.table import Table
from sparsegroup.table.table_config import check_int
from sparsegroup.table.table_report import FieldCount, TableMemory


class TableCounts:
    """The counts of a module that holds tables, summed over these. Of a sharded table they are those of its rank."""

    def _counted(self) -> Sequence[Table]:
        raise NotImplementedError

    @property
    def num_rows(self) -> int:
        """Rows, zero or not."""
        return sum(table.num_rows for table in self._counted())

    @property
    def num_live(self) -> int:
        """Rows with a non-zero vector."""
        return sum(table.num_live for table in self._counted())

    @property
    def num_seen(self) -> int:
        """Distinct keys ever seen in training, those that `shrink` has dropped included."""
        return sum(table.num_seen for table in self._counted())

    @property
    def feature_rate(self) -> float:
        """The paper's "sparsity": live rows over distinct keys ever seen; 0 if none was."""
        return self.num_live / self.num_seen if self.num_seen else 0.0

    @property
    def skipped_rows(self) -> int:
        """Row updates left out because of a non-finite gradient, with `nonfinite="skip"`."""
        return sum(table.skipped_rows for table in self._counted())

    @property
    def num_evicted(self) -> int:
        """Rows that the table has evicted by itself, by its policy or for lack of room."""
        return sum(table.directory.counters.evicted for table in self._counted())

    @property
    def num_refused(self) -> int:
        """How often a key would have got a row, had there been room within `max_bytes`."""
        return sum(table.directory.counters.refused for table in self._counted())

    def set_time(self, seconds: int) -> None:
        """Set the time, for instance that of the log that is trained on, in whole seconds from any moment on.

        It is the time of the following steps for policies that count in seconds.

        Raises:
            ValueError: It is not in [0, 2³²).
        """
        check_int("seconds", seconds, 0, LATEST)
        for table in self._counted():
            table.set_time(seconds)

    def field_counts(self) -> dict[int, FieldCount]:
        """Keys seen, rows and live rows of each field, by the number in a key's top `field_bits` bits.

        Raises:
            ValueError: `field_bits` is 0.
        """
        counts: dict[int, FieldCount] = {}
        for table in self._counted():
            if not table.config.field_bits:
                raise ValueError("field_counts needs keys that carry their field: give HashEmbedding field_bits > 0")
            counts |= table.field_counts()
        return dict(sorted(counts.items()))

    def memory(self) -> TableMemory:
        """Bytes of the index, the rows and what they hold."""
        return TableMemory.total_of(table.memory() for table in self._counted())
