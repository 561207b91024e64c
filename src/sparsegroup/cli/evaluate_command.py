"""`sparsegroup evaluate`: its options."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsegroup.cli.app import THREADS, Threads, app, starting, use_threads
from sparsegroup.cli.options import OF_SCORED_LOG, THE_MODELS, takes_settings
from sparsegroup.cli.output import Json, Quiet, Verbose


@app.command("evaluate")
@takes_settings(*OF_SCORED_LOG, **THE_MODELS)
def evaluate_command(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Folder of a run, a checkpoint or an export.", show_default=False)
    ],
    log: Annotated[
        str,
        typer.Argument(
            metavar="LOG", help="A raw log with labels, or a folder written by `prepare`.", show_default=False
        ),
    ],
    user: Annotated[
        str | None, typer.Option(metavar="FIELD", help="Also report gAUC, the mean AUC within this field's values.")
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD",
            help="List the values of this field whose calibration is most certainly off (repeatable).",
            show_default=False,
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of values to list for each field.")] = 10,
    *,
    settings: Mapping[str, Any],
    threads: Threads = THREADS,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Compare a model's predictions with a log's labels: AUC, calibration, gains, by user and by value of a field.

    For the model's own log or a prepared one, the test rows are used, if there are any; for any other log, all rows.
    """
    with starting():
        from sparsegroup.cli.evaluate_run import evaluate_run

    use_threads(threads)
    evaluate_run(model, log, user, by or [], top, settings, threads)
