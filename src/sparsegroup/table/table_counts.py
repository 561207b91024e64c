"""What a table tells of itself in numbers."""

from sparsegroup.table.row_uses import LATEST
from sparsegroup.table.sharded.lookup import ShardedLookup
from sparsegroup.table.table import Table
from sparsegroup.table.table_config import check_int
from sparsegroup.table.table_report import FieldCount, TableMemory


class TableCounts:
    """The counts of a module that holds a table. Of a sharded one they are those of its rank.

    Attributes:
        table: The rows.
        across: Looks keys up on all ranks; None where the rows are on one.
    """

    table: Table
    across: ShardedLookup | None

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self.table.config.dim

    @property
    def num_rows(self) -> int:
        """Rows, zero or not."""
        return self.table.num_rows

    @property
    def num_live(self) -> int:
        """Rows with a non-zero vector."""
        return self.table.num_live

    @property
    def num_seen(self) -> int:
        """Distinct keys ever seen in training, those that `shrink` has dropped included."""
        return self.table.num_seen

    @property
    def feature_rate(self) -> float:
        """The paper's "sparsity": live rows over distinct keys ever seen; 0 if none was."""
        return self.num_live / self.num_seen if self.num_seen else 0.0

    @property
    def skipped_rows(self) -> int:
        """Row updates left out because of a non-finite gradient, with `nonfinite="skip"`."""
        return self.table.skipped_rows

    @property
    def num_evicted(self) -> int:
        """Rows that the table has dropped by itself: its policy's, and those for which there was no room."""
        return self.table.directory.counters.evicted

    @property
    def num_refused(self) -> int:
        """How often a key would have got a row, had there been room within `max_bytes`."""
        return self.table.directory.counters.refused

    def set_time(self, seconds: int) -> None:
        """Tell the table the time, of the log that it is trained on, say, in whole seconds from any moment on.

        Policies that count in seconds go by it; the steps that follow happen then.

        Raises:
            ValueError: It is not in [0, 2³²).
        """
        check_int("seconds", seconds, 0, LATEST)
        self.table.set_time(seconds)

    def field_counts(self) -> dict[int, FieldCount]:
        """Keys seen, rows and live rows of each field, by the number in a key's top `field_bits` bits.

        Raises:
            ValueError: `field_bits` is 0.
        """
        if not self.table.config.field_bits:
            raise ValueError("field_counts needs keys that carry their field: give HashEmbedding field_bits > 0")
        return self.table.field_counts()

    def memory(self) -> TableMemory:
        """Bytes of the index, the rows and what they hold."""
        return self.table.memory()
