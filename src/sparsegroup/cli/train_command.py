"""`sparsegroup train`: its options."""

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
    Patience,
    Rows,
    Schedule,
    Schema,
    Seed,
    ShuffleBuffer,
    Sorting,
    TestFraction,
    TestLog,
    Validation,
    Warmup,
    Weight,
)
from sparsegroup.cli.output import Json, Quiet, Verbose
from sparsegroup.names import NormName, PenaltyName
from sparsegroup.settings.names import StateDtype


@app.command("train")
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
        int | None,
        typer.Option(
            rich_help_panel="Model",
            help="Embedding dimension.",
            show_default="lr 1; fm, deepfm, xdeepfm 9: a weight and 8 factors; mlp 16, opnn 10, dcn, dcnv2 8",
        ),
    ] = None,
    optimizer: Optimizer = None,
    lr: LearningRate = None,
    network_lr: NetworkLearningRate = None,
    schedule: Schedule = None,
    warmup: Warmup = None,
    l1: Annotated[
        float | None, typer.Option(rich_help_panel="Optimizer", help="λ1 of the embeddings.", show_default="0")
    ] = None,
    l21: Annotated[
        float | None,
        typer.Option(
            rich_help_panel="Optimizer",
            help="A constant λ21 for the embeddings instead of a size: raise it to keep fewer features.",
            show_default=False,
        ),
    ] = None,
    l2: Annotated[
        float | None, typer.Option(rich_help_panel="Optimizer", help="λ2 of the embeddings.", show_default="0")
    ] = None,
    norm: Annotated[
        NormName | None,
        typer.Option(rich_help_panel="Optimizer", help="Norm in the group threshold.", show_default="s"),
    ] = None,
    penalty: Annotated[
        PenaltyName | None,
        typer.Option(
            rich_help_panel="Optimizer", help="Shape of the group threshold.", show_default="lasso; hard with a size"
        ),
    ] = None,
    state_dtype: Annotated[
        StateDtype | None,
        typer.Option(
            rich_help_panel="Optimizer",
            help="How the embeddings' rows keep the optimizer's state: bfloat16 takes half the memory.",
            show_default="float32",
        ),
    ] = None,
    target_rate: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Size",
            help="Share of the features to keep, such as .03: λ21 is adjusted during training.",
            show_default="0.1, but at least 256 features",
        ),
    ] = None,
    target_bytes: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Size",
            help="Size of the embeddings to keep, such as 200MB: vectors, and 8 bytes for each key.",
            show_default=False,
        ),
    ] = None,
    fallback: Fallback = None,
    admit_after: AdmitAfter = None,
    admit_sketch: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Size",
            help="Memory in which to count these batches, such as 64MB: some features then get their row early.",
            show_default="counted exactly",
        ),
    ] = None,
    evict_unseen: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Size",
            help="Drop the rows of dead features that have not appeared for so many steps, or for so long by the log's "
            "own clock, such as 7d; 0 for never.",
            show_default="0",
        ),
    ] = None,
    max_table_bytes: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Size",
            help="Hard limit on the table's memory, such as 2GB: dead features are dropped first, then the rarest.",
            show_default="no limit",
        ),
    ] = None,
    batch_size: BatchSize = None,
    epochs: Epochs = None,
    validation: Validation = None,
    patience: Patience = None,
    shuffle_buffer: ShuffleBuffer = None,
    after_first_epoch: LaterEmbeddings = None,
    seed: Seed = None,
    baseline: Annotated[
        bool | None,
        typer.Option(
            "--baseline/--no-baseline",
            rich_help_panel="Training",
            help="Train a logistic regression on the same rows for comparison.",
            show_default="yes",
        ),
    ] = None,
    checkpoint_minutes: Annotated[
        float | None,
        typer.Option(
            rich_help_panel="Checkpoints", help="Minutes between checkpoints; 0 for none by time.", show_default="10"
        ),
    ] = None,
    checkpoint_steps: Annotated[
        int | None,
        typer.Option(
            rich_help_panel="Checkpoints", help="Batches between checkpoints; 0 for none by count.", show_default="0"
        ),
    ] = None,
    keep_checkpoints: Annotated[
        int | None, typer.Option(rich_help_panel="Checkpoints", help="Number of checkpoints to keep.", show_default="2")
    ] = None,
    tensorboard: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Tracking",
            metavar="DIR|auto",
            help="Write the run's history for TensorBoard: into a folder in DIR, or (auto) into the run's own.",
            show_default=False,
        ),
    ] = None,
    mlflow: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Tracking",
            metavar="URI|EXPERIMENT",
            help="Log the run to MLflow: to a tracking URI, or to an experiment at $MLFLOW_TRACKING_URI.",
            show_default=False,
        ),
    ] = None,
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
    options = {
        name: value
        for name, value in locals().items()
        if value is not None and not (value is False and name in ("overwrite", "json", "quiet", "verbose"))
    }
    with starting():
        from sparsegroup.cli.torchrun import launched
        from sparsegroup.cli.train_run import resume_run, train_run

    use_threads(threads)
    if resume is None:
        with launched(rank_timeout) as launch:
            train_run(log, options, set_ or [], out, continue_, overwrite=overwrite, threads=threads, launch=launch)
        return
    if others := [
        name.strip("_").replace("_", "-") for name in options if name not in ("resume", "threads", "rank_timeout")
    ]:
        raise UsageError(
            f"--resume takes everything from the run, and no {', '.join(others)}; to change settings, use "
            "--continue once the run is complete"
        )
    with launched(rank_timeout) as launch:
        resume_run(resume, threads, launch)
