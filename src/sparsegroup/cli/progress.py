"""The progress of a command: a bar where stderr is a terminal, else a line about once a minute."""

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    ProgressColumn,
    Task,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from sparsegroup.cli.output import has_bars, messages
from sparsegroup.reporting.formatting import duration, per_second, size
from sparsegroup.training import Callback, HistoryPoint, TrainedBatch, Trainer

Unit = Literal["bytes", "rows", "samples"]
Update = Callable[[int, int | None, str], None]
"""Called with how much is done, how much there is (None if unknown), and details to show."""

HEARTBEAT = 60.0
"""Seconds between two lines where there is no terminal."""

_logger = logging.getLogger(__name__)


class Heartbeat:
    """Logs a line about once a minute: what is done, its share, the speed, and the remaining time.

    `every` is the number of seconds between two lines, by `clock`.
    """

    def __init__(
        self, name: str, unit: Unit, every: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name, self._unit, self._clock = name, unit, clock
        self._every = HEARTBEAT if every is None else every
        self._begun = self._last = clock()
        self._first: int | None = None

    def update(self, done: int, total: int | None, detail: str) -> None:
        """See `Update`."""
        self._first = done if self._first is None else self._first
        now = self._clock()
        if now - self._last < self._every:
            return
        self._last = now
        speed = (done - self._first) / max(now - self._begun, 1e-9)
        share = f"{self._number(done)} of {self._number(total)}" if total else self._number(done)
        unit = "" if self._unit == "bytes" else f" {self._unit}"
        parts = [f"{share}{unit}" + (f" ({done / total:.1%})" if total else "")]
        parts.append(f"{self._number(round(speed))}{unit}/s" if speed else "")
        parts.append(detail)
        if total is not None and speed:
            parts.append(f"{duration((total - done) / speed)} left")
        _logger.info("%s: %s", self._name, ", ".join(part for part in parts if part))

    def _number(self, value: int) -> str:
        return size(value) if self._unit == "bytes" else f"{value:,}"


class _SpeedColumn(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text(per_second(speed) if speed else "")


@contextmanager
def progress(name: str, unit: Unit, total: int | None = None, *, stays: bool = False) -> Iterator[Update]:
    """Show how far something has come from the first call of what this yields; `stays`: also in the end."""
    if not has_bars():
        yield Heartbeat(name, unit).update
        return
    counted = (DownloadColumn(),) if unit == "bytes" else (TaskProgressColumn(), _SpeedColumn())
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=10), *counted)
    detailed = TextColumn("{task.fields[detail]}", markup=False)
    with Progress(*columns, TimeRemainingColumn(compact=True), detailed, console=messages, transient=not stays) as bar:

        def update(done: int, total: int | None, detail: str) -> None:
            task = bar.task_ids[0] if bar.task_ids else bar.add_task(name, total=total, detail="")
            bar.update(task, completed=done, total=total, detail=detail)

        yield update


@contextmanager
def reading_bar(name: str) -> Iterator[Callable[[int, int | None], None]]:
    """Progress while the rows of a raw log of that name are counted; yields `on_progress` of `open_log`."""
    with progress(f"counting rows of {name}", "bytes") as update:
        yield lambda done, total: update(done, total, "")


class _Bar(Callback):
    def __init__(self, update: Update, total: int) -> None:
        self._update, self._total, self._done, self._state = update, total, 0, ""

    def on_batch(self, trainer: Trainer, trained: TrainedBatch) -> None:
        self._done += trained.samples
        self._update(self._done, self._total, self._state)

    def on_point(self, trainer: Trainer, point: HistoryPoint) -> None:
        scheduled = "" if point.scheduled_rate is None else f" (scheduled {point.scheduled_rate:.4f})"
        self._state = (
            f"loss {point.log_loss:.4f}, AUC {point.auc:.4f}, rate {point.feature_rate:.4f}{scheduled}, "
            f"{point.table_bytes / 1e6:,.0f} MB"
        )
        self._update(self._done, self._total, self._state)


@contextmanager
def training_bar(total: int, name: str, *, stays: bool = True) -> Iterator[Callback]:
    """Progress over `total` samples, with figures of the last point; yields the callback that shows it."""
    with progress(name, "samples", total, stays=stays) as update:
        yield _Bar(update, total)
