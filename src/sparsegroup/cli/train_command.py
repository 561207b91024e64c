"""`sparsegroup train`: its options."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsegroup.cli.app import THREADS, Threads, UsageError, app, starting, use_threads
from sparsegroup.cli.options import OPTIONS, Assignments, LogOrConfig, takes_settings
from sparsegroup.cli.output import Json, Quiet, Verbose


@app.command("train")
@takes_settings(*OPTIONS)
def train_command(
    log: LogOrConfig = None,
    set_: Assignments = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the run; default runs/<name of the log>/<time>.", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that --out holds.")] = False,
    continue_: Annotated[
        Path | None,
        typer.Option(
            "--continue",
            metavar="RUN",
            help="Train a finished run further, on this log: the next day's, say.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume", metavar="RUN", help="Complete an interrupted run, with the same result.", show_default=False
        ),
    ] = None,
    *,
    settings: Mapping[str, Any],
    threads: Threads = THREADS,
    rank_timeout: Annotated[
        float,
        typer.Option(
            min=0.05, help="Started by torchrun on several ranks: minutes to wait for one that does not come."
        ),
    ] = 10.0,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Train on a click log, in one pass or several, and report AUC, log loss and feature rate on its last part.

    Settings come from the YAML file, if one is given, then from the options, then from --set.
    """
    with starting():
        from sparsegroup.cli.torchrun import launched
        from sparsegroup.cli.train_run import resume_run, train_run

    use_threads(threads)
    if resume is None:
        with launched(rank_timeout) as launch:
            train_run(log, settings, set_ or [], out, continue_, overwrite=overwrite, threads=threads, launch=launch)
        return
    own = {"log": log, "set": set_, "out": out, "overwrite": overwrite, "continue": continue_}
    shown = {"json": json, "quiet": quiet, "verbose": verbose}
    given = [name for name, value in own.items() if value not in (None, False)] + [*settings]
    if others := [name.replace("_", "-") for name in (*given, *(name for name, value in shown.items() if value))]:
        raise UsageError(
            f"--resume takes everything from the run, and no {', '.join(others)}; to change settings, use "
            "--continue once the run is complete"
        )
    with launched(rank_timeout) as launch:
        resume_run(resume, threads, launch)
