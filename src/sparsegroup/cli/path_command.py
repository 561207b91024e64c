"""`sparsegroup path`: its options."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsegroup.cli.app import THREADS, Threads, app, starting, use_threads
from sparsegroup.cli.options import OF_THE_LOG, Assignments, LogOrConfig, takes_settings
from sparsegroup.cli.output import Json, Quiet, Verbose


@app.command("path")
@takes_settings(
    *OF_THE_LOG,
    "model",
    "optimizer",
    "lr",
    "network_lr",
    "schedule",
    "warmup",
    "penalty",
    "fallback",
    "admit_after",
    "batch_size",
    "epochs",
    "validation",
    "patience",
    "shuffle_buffer",
    "after_first_epoch",
    "seed",
    penalty={"show_default": "hard"},
)
def path_command(
    log: LogOrConfig = None,
    rates: Annotated[str, typer.Option(help="Feature rates, separated by commas.")] = ".3,.1,.03,.01",
    tolerance: Annotated[
        float, typer.Option(min=0, help="AUC below that of all features that still counts as no loss.")
    ] = 0.001,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for path.json and path.png; default paths/<name of the log>.", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what --out holds.")] = False,
    set_: Assignments = None,
    *,
    settings: Mapping[str, Any],
    threads: Threads = THREADS,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """How good would a smaller model be? One pass for each feature rate, against all features: table, plot and JSON."""
    with starting():
        from sparsegroup.cli.path_run import path_run

    use_threads(threads)
    path_run(log, rates, tolerance, out, settings, set_ or [], threads, overwrite=overwrite)
