"""`sparsegroup predict`: its options."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsegroup.cli.app import THREADS, Threads, app, starting, use_threads
from sparsegroup.cli.options import OF_SCORED_LOG, RAW_LOG, THE_MODELS, takes_settings
from sparsegroup.cli.output import Json, Quiet, Verbose


@app.command("predict")
@takes_settings(*OF_SCORED_LOG, **THE_MODELS)
def predict_command(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Folder of a run, a checkpoint or an export.", show_default=False)
    ],
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
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Score all rows of a log: row (its place in the log, from 0), probability and label.

    The log is read the way the training log was, unless options say otherwise.
    """
    with starting():
        from sparsegroup.cli.predict_run import predict_run

    use_threads(threads)
    predict_run(model, log, out, settings, threads)
