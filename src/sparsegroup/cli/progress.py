"""Progress bars: of reading a raw log, and of training."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, DownloadColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from sparsegroup.cli.app import console
from sparsegroup.data.raw.text_file import uncompressed_size
from sparsegroup.training import HistoryPoint
from sparsegroup.training.comparison import Reporter


@contextmanager
def reading_bar(logs: Sequence[Path]) -> Iterator[Callable[[int], None]]:
    """A progress bar over the bytes of raw logs, while their rows are counted.

    Yields:
        `on_progress` of `open_log`.
    """
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), DownloadColumn(), TimeRemainingColumn())
    with ProgressBar(*columns, console=console, transient=True) as bar:
        task = bar.add_task(f"counting rows of {logs[0].name}", total=uncompressed_size(logs))
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def training_bar(total: int, name: str) -> Iterator[Reporter]:
    """A progress bar over `total` samples, with samples/s, log loss, progressive AUC, feature rate and table size.

    Yields:
        `on_batch` and `on_progress` for `train`.
    """
    bar = ProgressBar(
        TextColumn("{task.description}"),
        BarColumn(bar_width=10),
        TaskProgressColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(compact=True),
        TextColumn("{task.fields[state]}"),
        console=console,
    )
    state: dict[str, Any] = {"loss": float("nan"), "auc": float("nan"), "rate": float("nan"), "bytes": 0}
    with bar:
        task = bar.add_task(name, total=total, speed="", state="")

        def show() -> None:
            speed = bar.tasks[task].finished_speed or bar.tasks[task].speed
            bar.update(
                task,
                speed=f"{speed:,.0f}/s" if speed else "",
                state=f"loss {state['loss']:.4f} AUC {state['auc']:.4f} rate {state['rate']:.4f} "
                f"{state['bytes'] / 1e6:,.0f} MB",
            )

        def on_batch(samples: int, loss: float) -> None:
            bar.advance(task, samples)

        def on_progress(point: HistoryPoint) -> None:
            state.update(loss=point.log_loss, auc=point.auc, rate=point.feature_rate, bytes=point.table_bytes)
            show()

        yield on_batch, on_progress
        show()
