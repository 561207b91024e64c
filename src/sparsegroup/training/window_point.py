"""The point of the history at the end of a window."""

from collections.abc import Callable
from time import perf_counter
from typing import TYPE_CHECKING, Any

from sparsegroup.reporting.run_record import HistoryPoint
from sparsegroup.table.field_tables import TableTotals
from sparsegroup.training.evaluation import PredictionWindow

if TYPE_CHECKING:
    from sparsegroup.training.trainer import Trainer


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
