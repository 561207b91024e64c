"""The points of a history, each measured on a window of samples by another thread."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from torch import nn

from sparsegroup.reporting.run_record import HistoryPoint, Metrics
from sparsegroup.table.field_tables import tables_in
from sparsegroup.table.table import FieldCount
from sparsegroup.training.evaluation import PredictionWindow
from sparsegroup.training.ranks import RankGroup


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


PointOf = Callable[[PredictionWindow], Callable[[], HistoryPoint]]
"""From the window that ends to what completes its point, see `Trainer`."""


class RecordedWindows:
    """Samples fill one window after the other; of each that is full, a point joins the history.

    Attributes:
        size: Samples of a window, of all ranks.
        points: The history so far.
        window: The one that is filled, with this rank's samples.
    """

    def __init__(self, size: int, ranks: RankGroup) -> None:
        self.size, self._ranks = size, ranks
        self.points: list[HistoryPoint] = []
        self.window = PredictionWindow(0.0)
        self._measured: Future[HistoryPoint] | None = None

    def begin(self) -> None:
        """Training begins or continues."""
        self.window.begin = perf_counter() - self.window.seconds

    def pause(self) -> None:
        """Training ends, perhaps in the middle of a window."""
        self.window.seconds = perf_counter() - self.window.begin

    def is_full_with(self, samples: int) -> bool:
        """Whether so many samples more, of all ranks, fill the window."""
        return self.window.samples + samples >= self.size

    @property
    def is_measured(self) -> bool:
        """Whether a point is done, to be taken by `settle`."""
        return self._measured is not None and self._measured.done()

    def end(self, thread: ThreadPoolExecutor, point: PointOf) -> None:
        """Let `thread` measure the window that ends here; a new one begins."""
        window = self.window
        if not self._ranks.is_alone:
            window = PredictionWindow.joined(self._ranks.all_gather([window.state()], "predictions"), window.begin)
        completed = point(window)
        if not self._ranks.rank:
            self._measured = thread.submit(completed)
        self.window = PredictionWindow(perf_counter())

    def settle(self) -> HistoryPoint | None:
        """Wait for the point whose metrics are being computed, add it to the history, and return it."""
        measured, self._measured = self._measured, None
        if measured is None:
            return None
        self.points.append(measured.result())
        return self.points[-1]

    def share(self) -> None:
        """Let all ranks have the history of the first."""
        self.points = self._ranks.broadcast(self.points, "the history")

    def note_validation(self, metrics: Metrics) -> None:
        """The last point is that of an epoch's end, where the model has these metrics on the validation rows."""
        if self.points:
            last = self.points[-1]
            self.points[-1] = replace(last, validation_auc=metrics.auc, validation_log_loss=metrics.log_loss)

    def history_state(self) -> list[dict[str, Any]]:
        """All points, one that is being measured included."""
        pending = [] if self._measured is None else [self._measured.result()]
        return [asdict(point) for point in [*self.points, *pending]]

    def go_on(self, points: Sequence[HistoryPoint], window: PredictionWindow | None = None) -> None:
        """Let what comes next follow these points, in the middle of a window."""
        self.points = list(points)
        if window is not None:
            self.window = window
