"""What an embedding's tables come to, on all ranks that they lie on."""

from dataclasses import dataclass

from torch import nn

from sparsegroup.table.field_tables import tables_in
from sparsegroup.table.hash_embedding import HashEmbedding
from sparsegroup.table.table_report import FieldCount


@dataclass(frozen=True)
class TableTotals:
    """Counts of all tables of an embedding.

    Attributes:
        num_seen, num_live: See `HashEmbedding`.
        bytes: Memory of index and rows, see `TableMemory`. Other memory of a table depends on what the process has
            done, so that a resumed run would differ.
        num_evicted, num_refused: See `HashEmbedding`.
    """

    num_seen: int = 0
    num_live: int = 0
    bytes: int = 0
    num_evicted: int = 0
    num_refused: int = 0

    @classmethod
    def of(cls, embedding: nn.Module) -> "TableTotals":
        """Those of the tables in `embedding`. Where they lie on several ranks, all have to call it."""
        totals = [0, 0, 0, 0, 0]
        for table in tables_in(embedding).values():
            totals = [one + more for one, more in zip(totals, _of_one(table), strict=True)]
        return cls(*totals)

    @property
    def feature_rate(self) -> float:
        """Live rows over distinct keys ever seen; 0 if none was."""
        return self.num_live / self.num_seen if self.num_seen else 0.0


def field_totals(embedding: nn.Module) -> dict[int, FieldCount]:
    """See `HashEmbedding.field_counts`, of all tables in `embedding`; all ranks that they lie on have to call it."""
    totals: dict[int, FieldCount] = {}
    for table in tables_in(embedding).values():
        own = table.field_counts()
        for counts in [own] if table.across is None else table.across.shards.of_all([own], "counts of fields"):
            for number, count in counts.items():
                before = totals.get(number, FieldCount(0, 0, 0))
                totals[number] = FieldCount(
                    before.seen + count.seen, before.rows + count.rows, before.live + count.live
                )
    return dict(sorted(totals.items()))


def _of_one(table: HashEmbedding) -> list[int]:
    own = [table.num_seen, table.num_live, table.memory().content, table.num_evicted, table.num_refused]
    return own if table.across is None else table.across.shards.totals(own, "counts of rows")
