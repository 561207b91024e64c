"""`sparsegroup tune`: its options."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsegroup.cli.app import THREADS, Threads, UsageError, app, starting, use_threads
from sparsegroup.cli.options import OF_THE_LOG, Assignments, LogOrConfig, takes_settings
from sparsegroup.cli.output import Json, Quiet, Verbose

_MINUTES, _TRIALS = 30.0, 50


@app.command("tune")
@takes_settings(
    *OF_THE_LOG,
    "model",
    "dim",
    "optimizer",
    "lr",
    "network_lr",
    "schedule",
    "warmup",
    "target_rate",
    "target_bytes",
    "fallback",
    "admit_after",
    "batch_size",
    "epochs",
    "shuffle_buffer",
    "after_first_epoch",
    "seed",
    dim={"show_default": "the network's"},
    target_rate={"show_default": "as `train`", "help": "Share of the features to keep, such as .05, in all trials."},
    target_bytes={
        "show_default": "as `train`",
        "help": "Bytes of the embeddings to keep, such as 200MB, in all trials.",
    },
)
def tune_command(
    log: LogOrConfig = None,
    minutes: Annotated[float, typer.Option(help="Time limit, without compiling kernels.")] = _MINUTES,
    trials: Annotated[
        int, typer.Option(min=0, help="Total number of trials in the study; 0 only shows what is searched.")
    ] = (_TRIALS),
    tune_rows: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Training rows to tune on, from the end, including those to measure on.",
            show_default="all, up to 1000000",
        ),
    ] = None,
    held_out: Annotated[
        str | None,
        typer.Option(
            help="Share of these, from the end, to measure trials on; test rows are not touched.", show_default="0.2"
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the study; default studies/<name of the log>/<time>.", show_default=False),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume",
            metavar="STUDY",
            help="Resume a study: first the interrupted trial, then new ones.",
            show_default=False,
        ),
    ] = None,
    set_: Assignments = None,
    *,
    settings: Mapping[str, Any],
    threads: Threads = THREADS,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Search for settings on part of the training rows, by successive halving; ends with a YAML file for `train`.

    A setting that is given, by an option, --set or a YAML file, is not searched. The search begins with the
    defaults: the first trial has the settings that `train` would have.
    """
    with starting():
        from sparsegroup.cli.run_settings import share_given
        from sparsegroup.cli.tune_run import TuningLimits, resume_study, show_space, tune_run

    if not minutes > 0:
        raise UsageError(f"--minutes must be above 0, got {minutes:g}; --trials 0 shows what is searched")
    use_threads(threads)
    limits = TuningLimits(minutes, trials, threads)
    if resume is not None:
        own = {"log": log, "tune_rows": tune_rows, "held_out": held_out, "out": out, "set": set_}
        given = [*(name for name, value in own.items() if value is not None), *settings]
        if others := [name.replace("_", "-") for name in given]:
            raise UsageError(f"--resume takes everything from the study, and no {', '.join(others)}")
        resume_study(resume, limits)
    elif trials == 0:
        show_space(log, settings, set_ or [], threads)
    else:
        tune_run(log, settings, set_ or [], out, tune_rows, share_given("--held-out", held_out or "0.2"), limits)
