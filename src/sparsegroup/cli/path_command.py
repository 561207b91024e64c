"""`sparsegroup path`: its options."""

from pathlib import Path
from typing import Annotated

import typer

from sparsegroup.cli.app import THREADS, Threads, app, starting, use_threads
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
from sparsegroup.names import PenaltyName


@app.command("path")
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
    optimizer: Optimizer = None,
    lr: LearningRate = None,
    network_lr: NetworkLearningRate = None,
    schedule: Schedule = None,
    warmup: Warmup = None,
    penalty: Annotated[
        PenaltyName | None,
        typer.Option(rich_help_panel="Optimizer", help="Shape of the group threshold.", show_default="hard"),
    ] = None,
    fallback: Fallback = None,
    admit_after: AdmitAfter = None,
    batch_size: BatchSize = None,
    epochs: Epochs = None,
    validation: Validation = None,
    patience: Patience = None,
    shuffle_buffer: ShuffleBuffer = None,
    after_first_epoch: LaterEmbeddings = None,
    seed: Seed = None,
    threads: Threads = THREADS,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """How good would a smaller model be? One pass for each feature rate, against all features: table, plot and JSON."""
    options = {name: value for name, value in locals().items() if value is not None and name != "overwrite"}
    with starting():
        from sparsegroup.cli.path_run import path_run

    use_threads(threads)
    path_run(log, rates, tolerance, out, options, set_ or [], threads, overwrite=overwrite)
