"""`sparsegroup train`: its options."""

from pathlib import Path
from typing import Annotated

import typer

from sparsegroup.cli.app import THREADS, Threads, UsageError, app, use_threads
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
    TestLog,
    Validation,
    Warmup,
    log_option,
)
from sparsegroup.cli.output import Json, Quiet, Verbose
from sparsegroup.names import NormName, PenaltyName


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
            "--continue", metavar="RUN", help="Go on with a run on this log, the next day's, say.", show_default=False
        ),
    ] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            "--resume", metavar="RUN", help="Go on with a run that was cut off, to the same result.", show_default=False
        ),
    ] = None,
    test: TestLog = None,
    sort_files: Sorting = None,
    dataset: Dataset = None,
    schema: Schema = None,
    columns: ColumnsAs = None,
    label: Label = None,
    exclude: Exclude = None,
    test_fraction: Annotated[
        float | None,
        log_option(
            "Share of the rows, the last ones, for the test set; of a raw log with a header, no column `split`.", "0.1"
        ),
    ] = None,
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
        float | None, typer.Option(rich_help_panel="Optimizer", help="λ1, of the embeddings.", show_default="0")
    ] = None,
    l21: Annotated[
        float | None,
        typer.Option(
            rich_help_panel="Optimizer",
            help="A constant λ21 of the embeddings instead of a size: raise it to keep fewer features.",
            show_default=False,
        ),
    ] = None,
    l2: Annotated[
        float | None, typer.Option(rich_help_panel="Optimizer", help="λ2, of the embeddings.", show_default="0")
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
    target_rate: Annotated[
        float | None,
        typer.Option(
            rich_help_panel="Size",
            help="Share of the features to keep, such as .03: λ21 is set along the way.",
            show_default="0.1, and 256 features at least",
        ),
    ] = None,
    target_bytes: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Size",
            help="Bytes of the embeddings to keep, such as 200MB: vectors, and 8 for each key.",
            show_default=False,
        ),
    ] = None,
    field_rate: Annotated[
        list[str] | None,
        typer.Option(
            rich_help_panel="Size",
            metavar="FIELD=RATE",
            help="Share of a field's own features to keep, such as C3=.5; --target-rate is that of all other fields "
            "(repeatable).",
            show_default=False,
        ),
    ] = None,
    fallback: Fallback = None,
    admit_after: AdmitAfter = None,
    admit_sketch: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Size",
            help="Bytes in which to count that, such as 64MB: some features then get their row early.",
            show_default="counted exactly",
        ),
    ] = None,
    evict_unseen: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Size",
            help="Steps, or time of the log, such as 7d, after which dead features that have not come lose their row; "
            "0 for never.",
            show_default="0",
        ),
    ] = None,
    max_table_bytes: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Size",
            help="What the table never exceeds, such as 2GB: dead features go first, then those that came least often.",
            show_default="no limit",
        ),
    ] = None,
    pack_dead: Annotated[
        bool | None,
        typer.Option(
            "--pack-dead/--no-pack-dead",
            rich_help_panel="Size",
            help="Keep dead features in half the bytes: no vector, and the optimizer's state in bfloat16.",
            show_default="no",
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
            help="Train a logistic regression on the same rows, to compare with.",
            show_default="yes",
        ),
    ] = None,
    checkpoint_minutes: Annotated[
        float | None,
        typer.Option(rich_help_panel="Checkpoints", help="Minutes between two; 0 for none by time.", show_default="10"),
    ] = None,
    checkpoint_steps: Annotated[
        int | None,
        typer.Option(
            rich_help_panel="Checkpoints", help="Batches between two; 0 for none by number.", show_default="0"
        ),
    ] = None,
    keep_checkpoints: Annotated[
        int | None, typer.Option(rich_help_panel="Checkpoints", help="How many are kept.", show_default="2")
    ] = None,
    tensorboard: Annotated[
        str | None,
        typer.Option(
            rich_help_panel="Tracking",
            metavar="DIR|auto",
            help="Write the points of the history for TensorBoard, into a folder of DIR or into that of the run.",
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
    from sparsegroup.cli.train_run import resume_run, train_run

    use_threads(threads)
    if resume is None:
        train_run(log, options, set_ or [], out, continue_, overwrite=overwrite, threads=threads)
        return
    if others := [name.strip("_").replace("_", "-") for name in options if name not in ("resume", "threads")]:
        raise UsageError(
            f"--resume takes everything from the run, and no {', '.join(others)}; to change settings, use "
            "--continue when it is done"
        )
    resume_run(resume, threads)
