"""`sparsegroup train`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsegroup.cli.app import UsageError, starting
from sparsegroup.cli.options import OPTIONS, THREADS, Assignments, LogOrConfig, Threads, takes_settings


@takes_settings(*OPTIONS)
def train_command(
    log: LogOrConfig = None,
    set_: Assignments = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the run; default runs/<name of the log>/<time>.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the run that --out holds.")] = False,
    continue_: Annotated[
        Path | None,
        typer.Option(
            "--continue", metavar="RUN", help="Train a finished run further, on this log: the next day's, say."
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option("--resume", metavar="RUN", help="Complete an interrupted run, with the same result.")
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
) -> None:
    """Train on a click log, in one pass or several, and report AUC, log loss and feature rate on its last part.

    Settings come from the YAML file, if one is given, then from the options, then from --set.
    """
    with starting(threads):
        from sparsegroup.cli.runs import NewRun, train

    begun = {"log": log, "set": set_, "out": out, "overwrite": overwrite, "continue": continue_}
    given = [*(name for name, value in begun.items() if value not in (None, False)), *settings]
    if resume is not None and given:
        raise UsageError(
            f"--resume takes everything from the run, and no {', '.join(given).replace('_', '-')}; to change "
            "settings, use --continue once the run is complete"
        )
    new = NewRun(log, settings, set_ or [], out, overwrite, continue_)
    train(new if resume is None else resume, threads, rank_timeout)
