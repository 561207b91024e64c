"""`sparsegroup tune`: its options."""

from pathlib import Path
from typing import Annotated

import typer

from sparsegroup.cli.app import THREADS, Threads, UsageError, app, starting, use_threads
from sparsegroup.cli.options import (
    AdmitAfter,
    Assignments,
    BadRow,
    BatchSize,
    ColumnsAs,
    Dataset,
    Epochs,
    Exclude,
    Fallback,
    Hour,
    Label,
    LaterEmbeddings,
    LearningRate,
    LogOrConfig,
    MaxBad,
    Network,
    NetworkLearningRate,
    Numbers,
    Optimizer,
    Rows,
    Schedule,
    Schema,
    Seed,
    ShuffleBuffer,
    Sorting,
    TestFraction,
    TestLog,
    Warmup,
    Weight,
)
from sparsegroup.cli.output import Json, Quiet, Verbose

_MINUTES, _TRIALS = 30.0, 50


@app.command("tune")
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
    test: TestLog = None,
    sort_files: Sorting = None,
    dataset: Dataset = None,
    schema: Schema = None,
    columns: ColumnsAs = None,
    label: Label = None,
    exclude: Exclude = None,
    weight: Weight = None,
    test_fraction: TestFraction = None,
    criteo_numbers: Numbers = None,
    avazu_hour: Hour = None,
    on_bad_row: BadRow = None,
    max_bad: MaxBad = None,
    rows: Rows = None,
    model: Network = None,
    dim: Annotated[
        int | None, typer.Option(rich_help_panel="Model", help="Embedding dimension.", show_default="the network's")
    ] = None,
    optimizer: Optimizer = None,
    lr: LearningRate = None,
    network_lr: NetworkLearningRate = None,
    schedule: Schedule = None,
    warmup: Warmup = None,
    target_rate: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Size",
            help="Share of the features to keep, such as .05, in all trials.",
            show_default="as `train`",
        ),
    ] = None,
    target_bytes: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Size",
            help="Bytes of the embeddings to keep, such as 200MB, in all trials.",
            show_default="as `train`",
        ),
    ] = None,
    fallback: Fallback = None,
    admit_after: AdmitAfter = None,
    batch_size: BatchSize = None,
    epochs: Epochs = None,
    shuffle_buffer: ShuffleBuffer = None,
    after_first_epoch: LaterEmbeddings = None,
    seed: Seed = None,
    threads: Threads = THREADS,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Search for settings on part of the training rows, by successive halving; ends with a YAML file for `train`.

    A setting that is given, by an option, --set or a YAML file, is not searched. The search begins with the
    defaults: the first trial has the settings that `train` would have.
    """
    options = {name: value for name, value in locals().items() if value is not None}
    with starting():
        from sparsegroup.cli.run_settings import share_given
        from sparsegroup.cli.tune_run import TuningLimits, resume_study, show_space, tune_run

    if not minutes > 0:
        raise UsageError(f"--minutes must be above 0, got {minutes:g}; --trials 0 shows what is searched")
    use_threads(threads)
    limits = TuningLimits(minutes, trials, threads)
    if resume is not None:
        there = ("resume", "minutes", "trials", "threads", "json", "quiet", "verbose")
        if others := [name.strip("_").replace("_", "-") for name in options if name not in there]:
            raise UsageError(f"--resume takes everything from the study, and no {', '.join(others)}")
        resume_study(resume, limits)
    elif trials == 0:
        show_space(log, options, set_ or [], threads)
    else:
        tune_run(log, options, set_ or [], out, tune_rows, share_given("--held-out", held_out or "0.2"), limits)
