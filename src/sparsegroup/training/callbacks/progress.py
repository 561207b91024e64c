"""Progress of a training: a line that is rewritten in a terminal or notebook, or a line a minute in other outputs."""

import sys
from collections.abc import Callable
from typing import TextIO

from sparsegroup.reporting.progress import HEARTBEAT, Heartbeat
from sparsegroup.reporting.run_record import HistoryPoint
from sparsegroup.training.trainer import Callback, TrainedBatch, Trainer

_REWRITTEN = 0.25
"""Seconds between two updates of a rewritten line."""
_WIDTH = 100


class TrainingProgress(Callback):
    """Callback that calls `show(samples, total, figures of the last point)` after each batch of a training."""

    def __init__(self, show: Callable[[int, int | None, str], None], total: int | None = None) -> None:
        self._show, self.total = show, total
        self.done, self.figures = 0, ""

    def on_batch(self, trainer: Trainer, trained: TrainedBatch) -> None:
        """See `Callback`."""
        self.done += trained.samples
        self._show(self.done, self.total, self.figures)

    def on_point(self, trainer: Trainer, point: HistoryPoint) -> None:
        """See `Callback`."""
        scheduled = "" if point.scheduled_rate is None else f" (scheduled {point.scheduled_rate:.4f})"
        orders = {"AUC": point.auc, "NDCG@10": point.ndcg}
        order = "".join(f"{title} {value:.4f}, " for title, value in orders.items() if value is not None)
        self.figures = (
            f"loss {point.metrics.loss:.4f}, {order}rate {point.feature_rate:.4f}{scheduled}, "
            f"{point.table_bytes / 1e6:,.0f} MB"
        )
        self._show(self.done, self.total, self.figures)


class ProgressBar(TrainingProgress):
    """Callback that shows the progress of a training: samples, remaining time, and the figures of the last point.

    In a terminal or notebook, one line is rewritten. In other outputs, such as a file, a line is added about once a
    minute.

    Args:
        total: Samples of the training, such as epochs times rows; None if unknown.
        name: Beginning of the line.
        file: Output; None for standard error.

    Examples:
        >>> from sparsegroup.training import ProgressBar
        >>> callback = ProgressBar(total=1_000_000)
        >>> trainer = Trainer(table, network, optimizer, callbacks=[callback])  # doctest: +SKIP
    """

    def __init__(self, total: int | None = None, name: str = "training", file: TextIO | None = None) -> None:
        self._file, self._shown = file or sys.stderr, ""
        self._is_rewritten = self._file.isatty() or _in_notebook()
        seconds = _REWRITTEN if self._is_rewritten else HEARTBEAT
        self._heartbeat = Heartbeat(name, "samples", self._write, seconds)
        super().__init__(self._heartbeat.update, total)

    def on_end(self, trainer: Trainer) -> None:
        """See `Callback`."""
        self._heartbeat.update(self.done, self.total, self.figures, is_last=True)
        if self._is_rewritten:
            self._file.write("\n")
            self._shown = ""

    def _write(self, line: str) -> None:
        if self._is_rewritten:
            line = line if len(line) <= _WIDTH else line[: _WIDTH - 1] + "…"
            self._file.write(f"\r{line:{len(self._shown)}}")
            self._shown = line
        else:
            self._file.write(f"{line}\n")
        self._file.flush()


def _in_notebook() -> bool:
    """Return whether this process is a notebook's kernel, whose output can rewrite a line."""
    interactive = sys.modules.get("IPython")
    return interactive is not None and type(interactive.get_ipython()).__name__ == "ZMQInteractiveShell"
