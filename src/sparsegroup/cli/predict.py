"""`sparsegroup predict`."""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from math import nan
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

from sparsegroup.cli.app import UsageError, starting
from sparsegroup.cli.options import OF_SCORED_LOG, THE_MODELS, THREADS, Model, RawOrPrepared, Threads, takes_settings
from sparsegroup.cli.output import is_json, progress, show, to_stdout

_logger = logging.getLogger(__name__)


@takes_settings(*OF_SCORED_LOG, **THE_MODELS)
def predict_command(
    model: Model,
    log: RawOrPrepared,
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
    with starting(threads):
        from sparsegroup.artifact.folder import write_atomically
        from sparsegroup.cli.logs import check_scored_log, open_scored_log
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

    suffix = None if out is None else next((suffix for suffix in SUFFIXES if out.name.endswith(suffix)), None)
    if out is not None and suffix is None:
        raise UsageError(f"--out must end with {', '.join(SUFFIXES)}, got {out.name!r}")
    if out is None and is_json():
        raise UsageError("--json wants --out: without it, stdout is for the predictions")
    if out is None and sys.stdout is None:
        raise UsageError("stdout is closed: give --out for the predictions")
    trained = open_trained(model)
    trained.check_rows()
    data = open_scored_log(log, trained.config, settings, threads)
    check_scored_log(data, trained, settings)
    window, begin = PredictionWindow(), perf_counter()
    is_hidden = out is None and sys.stdout.isatty()  # the rows themselves show how far it has come
    with nullcontext() if is_hidden else progress(f"scoring {short_name(log)}", "rows") as update:

        def parts() -> Iterator[Columns]:
            for part in predicted_rows(trained.model, data, window):
                yield part
                if update is not None:
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
