"""The point of the history at the end of a window, and the counts of all tables on all ranks."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from sparsegroup.reporting.run_record import HistoryPoint
from sparsegroup.table.field_tables import tables_in
from sparsegroup.table.table import FieldCount
from sparsegroup.training.evaluation import PredictionWindow

if TYPE_CHECKING:
    from sparsegroup.training.trainer import Trainer


@dataclass(frozen=True)
class TableTotals:
    """Counts of all tables of an embedding."""

    # num_seen, num_live: see `HashEmbedding`
    num_seen: int = 0
    num_live: int = 0
    # memory of index and rows, see `TableMemory`. Other memory of a table depends on what the process has done, so
    # that a resumed run would differ
    bytes: int = 0
    # num_evicted, num_refused: see `HashEmbedding`
    num_evicted: int = 0
    num_refused: int = 0

    @classmethod
    def of(cls, embedding: nn.Module) -> "TableTotals":
        """Those of the tables in `embedding`, on all ranks; each of them must call it."""
        totals = np.zeros(5, np.int64)
        for table in tables_in(embedding).values():
            own = [table.num_seen, table.num_live, table.memory().content, table.num_evicted, table.num_refused]
            totals += own if table.across is None else table.across.shards.totals(own, "counts of rows")
        return cls(*totals.tolist())

    @property
    def feature_rate(self) -> float:
        """Live rows over distinct keys ever seen; 0 if none was."""
        return self.num_live / self.num_seen if self.num_seen else 0.0


def field_totals(embedding: nn.Module) -> dict[int, FieldCount]:
    """`HashEmbedding.field_counts` of all tables in `embedding`, on all ranks; each of them must call it."""
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


def point_of(trainer: "Trainer", window: PredictionWindow) -> Callable[[], HistoryPoint]:
    """What is known of a training at the end of a window, to be completed with the window's metrics."""
    table, target = TableTotals.of(trainer.table), trainer.target
    facts: dict[str, Any] = {
        "samples": trainer.samples,
        "epoch": trainer.progress.epoch + 1,
        "feature_rate": table.feature_rate,
        "live_rows": table.num_live,
        "features_seen": table.num_seen,
        "table_bytes": table.bytes,
        "seconds": trainer.seconds,
        "samples_per_s": window.samples / max(perf_counter() - window.begin, 1e-9),
        "l21": None if target is None else target.l21,
        "scheduled_rate": None if target is None else target.scheduled_rate,
    }
    return lambda: HistoryPoint(**facts, **window.point_metrics())
