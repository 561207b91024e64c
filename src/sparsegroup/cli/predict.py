"""`sparsegroup predict`."""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from math import nan
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsegroup.cli.app import THREADS, Threads, UsageError, starting, use_threads
from sparsegroup.cli.options import OF_SCORED_LOG, RAW_LOG, THE_MODELS, Model, takes_settings
from sparsegroup.cli.output import is_json, show, to_stdout

if TYPE_CHECKING:
    from sparsegroup.data import Log
    from sparsegroup.training import Config

_logger = logging.getLogger(__name__)


@takes_settings(*OF_SCORED_LOG, **THE_MODELS)
def predict_command(
    model: Model,
    log: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG",
            help=f"A raw log ({RAW_LOG}), or a folder written by `prepare`.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="File to write: .csv, .csv.gz or .parquet.", show_default="CSV on standard output"),
    ] = None,
    *,
    settings: Mapping[str, Any],
    threads: Threads = THREADS,
) -> None:
    """Score all rows of a log: row (its place in the log, from 0), probability and label.

    The log is read the way the training log was, unless options say otherwise.
    """
    with starting():
        from sparsegroup.artifact.folder import write_atomically
        from sparsegroup.cli.progress import progress
        from sparsegroup.cli.run_settings import check_weight
        from sparsegroup.data.raw.files import short_name, shown
        from sparsegroup.serving.opening import open_trained
        from sparsegroup.training import Metrics
        from sparsegroup.training.predictions import (
            SUFFIXES,
            Columns,
            PredictionWindow,
            predicted_rows,
            write_csv,
            write_predictions,
        )

    use_threads(threads)
    suffix = None if out is None else next((suffix for suffix in SUFFIXES if out.name.endswith(suffix)), None)
    if out is not None and suffix is None:
        raise UsageError(f"--out must end with {', '.join(SUFFIXES)}, got {out.name!r}")
    if out is None and is_json():
        raise UsageError("--json wants --out: without it, stdout is for the predictions")
    if out is None and sys.stdout is None:
        raise UsageError("stdout is closed: give --out for the predictions")
    opened = open_trained(model)
    opened.check_rows()
    data = _open(log, opened.config, settings, threads)
    check_weight(settings.get("weight"), data)
    opened.columns.check_fits(data.schema, data.name)
    window, begin = PredictionWindow(), perf_counter()
    hidden = out is None and sys.stdout.isatty()  # the rows themselves show how far it has come
    with nullcontext(_nothing) if hidden else progress(f"scoring {short_name(log)}", "rows") as update:

        def parts() -> Iterator[Columns]:
            for part in predicted_rows(opened.model, data, window):
                yield part
                update(window.samples, len(data), "")

        if out is not None and suffix is not None:
            write_atomically(out, lambda path: write_predictions(parts(), path, suffix))
        else:
            with to_stdout():
                write_csv(parts(), sys.stdout.buffer)
    seconds = perf_counter() - begin
    has_both_classes = 0 < window.labels().sum() < window.samples
    metrics = window.metrics() if has_both_classes else Metrics(nan, nan, nan, nan)
    outcome = [f"{window.samples:,} rows, {window.samples / max(seconds, 1e-9):,.0f} rows/s"]
    if has_both_classes:
        outcome.append(f"AUC {metrics.auc:.4f}, log loss {metrics.log_loss:.4f}, calibration {metrics.calibration:.4f}")
    if out is not None:
        outcome.append(f"written to {out}")
    _logger.info("; ".join(outcome))
    show({"log": shown(log), "out": str(out), "rows": window.samples, "seconds": seconds, **asdict(metrics)})


def _open(log: list[str], config: "Config", given: Mapping[str, Any], threads: int) -> "Log":
    """The log, read as the model's except for the given settings."""
    from sparsegroup.cli.progress import reading_bar
    from sparsegroup.cli.run_settings import log_settings
    from sparsegroup.data import open_log
    from sparsegroup.data.raw.files import short_name

    data = log_settings(given)
    with reading_bar(short_name(log)) as on_progress:
        return open_log(
            log,
            like=config.data.format_options,
            whole=True,
            sort_files=data.sort_files,
            on_bad_row=data.on_bad_row,
            max_bad=data.max_bad,
            threads=threads,
            on_progress=on_progress,
            **data.format_options,
        )


def _nothing(done: int, total: int | None, detail: str) -> None:
    pass
