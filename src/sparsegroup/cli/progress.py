"""Progress bars and notes: while a raw log is counted, and while a model is trained."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as ProgressBar

from sparsegroup.cli.app import console
from sparsegroup.training import HistoryPoint
from sparsegroup.training.comparison import Reporter


@contextmanager
def reading_bar(name: str, console: Console = console) -> Iterator[Callable[[int, int | None], None]]:
    """A progress bar that appears when rows of a raw log are counted.

    Args:
        name: The name of the log.
        console: Where it appears.

    Yields:
        `on_progress` of `open_log`.
    """
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), DownloadColumn(), TimeRemainingColumn())
    with ProgressBar(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:

        def show(done: int, total: int | None) -> None:
            task = bar.task_ids[0] if bar.task_ids else bar.add_task(f"counting rows of {name}", total=total)
            bar.update(task, completed=done)

        yield show


def print_notes(notes: Iterable[str], console: Console = console) -> None:
    """What a user should know of a log or a run, in yellow."""
    for note in notes:
        console.print(note, style="yellow", markup=False, highlight=False, soft_wrap=True)


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
    state: dict[str, Any] = {"loss": float("nan"), "auc": float("nan"), "rate": float("nan"), "asked": "", "bytes": 0}
    with bar:
        task = bar.add_task(name, total=total, speed="", state="")

        def show() -> None:
            speed = bar.tasks[task].finished_speed or bar.tasks[task].speed
            bar.update(
                task,
                speed=f"{speed:,.0f}/s" if speed else "",
                state=f"loss {state['loss']:.4f} AUC {state['auc']:.4f} rate {state['rate']:.4f}{state['asked']} "
                f"{state['bytes'] / 1e6:,.0f} MB",
            )

        def on_batch(samples: int, loss: float) -> None:
            bar.advance(task, samples)

        def on_progress(point: HistoryPoint) -> None:
            asked = "" if point.scheduled_rate is None else f" (asked {point.scheduled_rate:.4f})"
            state.update(loss=point.log_loss, auc=point.auc, rate=point.feature_rate, bytes=point.table_bytes)
            state["asked"] = asked
            show()

        yield on_batch, on_progress
        show()
