"""What `sparsegroup predict` does."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import perf_counter
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from sparsegroup.artifact.disk import write_atomically
from sparsegroup.cli.app import UsageError
from sparsegroup.data.log_errors import ClickLogError
from sparsegroup.data.prepared_log import PreparedLog
from sparsegroup.data.raw.text_file import uncompressed_size
from sparsegroup.serving.trained_model import open_trained
from sparsegroup.training import Config
from sparsegroup.training.config import DataConfig
from sparsegroup.training.scoring import (
    SUFFIXES,
    LogToScore,
    Predictions,
    Tally,
    open_to_score,
    predictions,
    write_csv,
    write_predictions,
)
from sparsegroup.yaml_settings import checked

_OF_THE_FORMAT = ("dataset", "schema", "label", "exclude", "criteo_numbers", "avazu_hour")


def predict_run(model: Path, log: Path, out: Path | None, options: Mapping[str, Any], threads: int) -> None:
    """Score a log.

    Args:
        model: Folder of a run, a checkpoint or an export.
        log: A raw log, or a prepared folder.
        out: File to write; None is CSV on standard output.
        options: Those that were given, by their names in Python.
        threads: That share the table's work.

    Raises:
        UsageError: Options that do not go together, or a file to write of no known kind.
    """
    if out is not None and _suffix(out) is None:
        raise UsageError(f"--out must end with {', '.join(SUFFIXES)}, got {out.name!r}")
    opened = open_trained(model)
    given = {name: options[name] for name in (*_OF_THE_FORMAT, "on_bad_row", "max_bad") if name in options}
    console = Console(stderr=True)
    data = _open(log, _data(opened.config, given, log.is_dir()), threads, console)
    opened.columns.check(data.log)
    tally, begin = Tally(len(data.log)), perf_counter()
    hidden = out is None and sys.stdout.isatty()  # the rows themselves show how far it has come
    with nullcontext(_nothing) if hidden else _scoring_bar(len(data.log), log.name, console) as on_rows:

        def seen() -> Iterator[Predictions]:
            for part in predictions(opened.model, data):
                tally.add(part)
                yield part
                on_rows(len(part.rows))

        if out is None:
            _write_to_stdout(seen())
        else:
            suffix = _suffix(out)
            assert suffix is not None
            write_atomically(out, lambda path: write_predictions(seen(), path, suffix))
    console.print(_outcome(tally, perf_counter() - begin, out), markup=False, highlight=False, soft_wrap=True)


def _suffix(path: Path) -> str | None:
    return next((suffix for suffix in SUFFIXES if path.name.endswith(suffix)), None)


def _data(config: Config, given: dict[str, Any], is_prepared: bool) -> DataConfig:
    """How to read the log: as the model's, and as `given` says.

    A schema or a data set that is given says all of the format; a prepared log has none of the model's.
    """
    model = config.data.model_dump(mode="json", by_alias=True)
    says_all = is_prepared or "schema" in given or "dataset" in given
    own = {} if says_all else {name: model[name] for name in _OF_THE_FORMAT}
    values = {name: str(value) if isinstance(value, Path) else value for name, value in given.items()}
    return checked(Config, {"data": {**own, **values}}, "the command line").data


def _open(log: Path, data: DataConfig, threads: int, console: Console) -> LogToScore:
    if data.schema_file is not None and not Path(data.schema_file).is_file():
        raise UsageError(f"no schema {data.schema_file}; say with --schema what the columns of {log} are")
    with nullcontext() if log.is_dir() else _counting_bar(log, console) as on_progress:
        try:
            opened = open_to_score(
                log,
                on_bad_row=data.on_bad_row,
                max_bad=data.max_bad,
                threads=threads,
                on_progress=on_progress,
                **data.format_options,
            )
        except ClickLogError:
            raise
        except ValueError as error:  # options that do not go together
            raise UsageError(str(error)) from error
    for bad in [] if isinstance(opened.log, PreparedLog) else opened.log.bad:
        if bad.count:
            console.print(str(bad), style="yellow", markup=False, highlight=False, soft_wrap=True)
    return opened


def _write_to_stdout(parts: Iterator[Predictions]) -> None:
    try:
        write_csv(parts, sys.stdout.buffer)
        sys.stdout.flush()
    except BrokenPipeError:  # who reads has seen enough; nothing is left to be said at the interpreter's end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None


def _outcome(tally: Tally, seconds: float, out: Path | None) -> str:
    parts = [f"{tally.rows:,} rows, {tally.rows / max(seconds, 1e-9):,.0f} rows/s"]
    if tally.has_both_classes:
        metrics = tally.metrics()
        parts.append(f"AUC {metrics.auc:.4f}, log loss {metrics.log_loss:.4f}, calibration {metrics.calibration:.4f}")
    if out is not None:
        parts.append(f"written to {out}")
    return "; ".join(parts)


def _nothing(rows: int) -> None:
    pass


@contextmanager
def _counting_bar(log: Path, console: Console) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"counting rows of {log.name}", total=uncompressed_size([log]))
        yield lambda done: bar.update(task, completed=done)


@contextmanager
def _scoring_bar(rows: int, name: str, console: Console) -> Iterator[Callable[[int], None]]:
    columns = (TextColumn("{task.description}"), BarColumn(bar_width=20), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"scoring {name}", total=rows)
        yield lambda done: bar.advance(task, done)
