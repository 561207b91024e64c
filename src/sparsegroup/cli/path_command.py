"""`sparsegroup path`: its options."""

from pathlib import Path
from typing import Annotated

import typer

from sparsegroup.cli.app import THREADS, Threads, app, use_threads
from sparsegroup.cli.options import ADMIT_AFTER, DATASET, EXCLUDE, FALLBACK, LABEL, SCHEMA, log_option
from sparsegroup.names import DatasetName, ModelName, OptimizerName, PenaltyName


@app.command("path")
def path_command(
    log: Annotated[
        Path | None,
        typer.Argument(
            metavar="[LOG|CONFIG.yaml]",
            help="A folder that `prepare` has written, a raw log, or a YAML file of settings that names one. "
            "Default: a synthetic log.",
            show_default=False,
        ),
    ] = None,
    rates: Annotated[str, typer.Option(help="Feature rates, separated by commas.")] = ".3,.1,.03,.01",
    tolerance: Annotated[float, typer.Option(min=0, help="AUC below that of all features that is no loss.")] = 0.001,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for path.json and path.png; default paths/<name of the log>.", show_default=False),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what --out holds.")] = False,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any setting (repeatable).", show_default=False),
    ] = None,
    test: Annotated[Path | None, log_option("A raw log of its own for the test set.")] = None,
    dataset: Annotated[DatasetName | None, log_option(DATASET, "told from its first line")] = None,
    schema: Annotated[Path | None, log_option(SCHEMA)] = None,
    label: Annotated[str | None, log_option(LABEL, "label or click")] = None,
    exclude: Annotated[list[str] | None, log_option(EXCLUDE)] = None,
    rows: Annotated[int | None, log_option("Size of the synthetic log.", "200000")] = None,
    model: Annotated[ModelName | None, typer.Option(help="Network over the embeddings.", show_default="dcn")] = None,
    optimizer: Annotated[OptimizerName | None, typer.Option(help="Base optimizer.", show_default="adam")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.", show_default="as in torch.optim")] = None,
    penalty: Annotated[
        PenaltyName | None, typer.Option(help="Shape of the group threshold.", show_default="hard")
    ] = None,
    fallback: Annotated[
        bool | None,
        typer.Option(
            "--fallback/--no-fallback",
            help=FALLBACK,
            show_default="no",
        ),
    ] = None,
    admit_after: Annotated[
        int | None,
        typer.Option(
            help=ADMIT_AFTER,
            show_default="1",
        ),
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per step.", show_default="512")] = None,
    seed: Annotated[int | None, typer.Option(help="Of everything random.", show_default="0")] = None,
    threads: Threads = THREADS,
) -> None:
    """How good would a smaller model be? One pass for each feature rate, against all features: table, plot and JSON."""
    options = {name: value for name, value in locals().items() if value is not None and name != "overwrite"}
    from sparsegroup.cli.path_run import path_run

    use_threads(threads)
    path_run(log, rates, tolerance, out, options, set_ or [], threads, overwrite=overwrite)
