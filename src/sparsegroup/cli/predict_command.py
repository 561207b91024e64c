"""`sparsegroup predict`: its options."""

from pathlib import Path
from typing import Annotated

import typer

from sparsegroup.cli.app import THREADS, Threads, app, starting, use_threads
from sparsegroup.cli.options import (
    AVAZU_HOUR,
    CRITEO_NUMBERS,
    DATASET,
    EXCLUDE,
    LABEL,
    RAW_LOG,
    SCHEMA,
    WEIGHT,
    BadRow,
    MaxBad,
    log_option,
)
from sparsegroup.cli.output import Json, Quiet, Verbose
from sparsegroup.settings.names import AvazuHour, CriteoNumbers, DatasetName

_MODELS = "the model's"


@app.command("predict")
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
    dataset: Annotated[DatasetName | None, log_option(DATASET, _MODELS)] = None,
    schema: Annotated[Path | None, log_option(SCHEMA, _MODELS)] = None,
    label: Annotated[str | None, log_option(LABEL, _MODELS)] = None,
    exclude: Annotated[list[str] | None, log_option(EXCLUDE, _MODELS)] = None,
    weight: Annotated[str | None, log_option(WEIGHT, _MODELS)] = None,
    criteo_numbers: Annotated[CriteoNumbers | None, log_option(CRITEO_NUMBERS, _MODELS)] = None,
    avazu_hour: Annotated[AvazuHour | None, log_option(AVAZU_HOUR, _MODELS)] = None,
    on_bad_row: BadRow = None,
    max_bad: MaxBad = None,
    threads: Threads = THREADS,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Score all rows of a log: row (its place in the log, from 0), probability and label.

    The log is read the way the training log was, unless options say otherwise.
    """
    options = {name: value for name, value in locals().items() if value is not None}
    with starting():
        from sparsegroup.cli.predict_run import predict_run

    use_threads(threads)
    predict_run(model, log, out, options, threads)
