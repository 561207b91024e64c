"""`sparsegroup columns`: its options."""

from pathlib import Path
from typing import Annotated

import typer

from sparsegroup.cli.app import app, starting
from sparsegroup.cli.options import RAW_LOG, Dataset, Exclude, Label, Weight
from sparsegroup.cli.output import Json, Quiet, Verbose


@app.command("columns")
def columns_command(
    log: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG",
            help=f"A raw log ({RAW_LOG}), or a folder written by `prepare`.",
            show_default=False,
        ),
    ],
    label: Label = None,
    exclude: Exclude = None,
    weight: Weight = None,
    dataset: Dataset = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.yaml", help="Write them as a schema, to edit and pass to --schema.", show_default=False
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing schema.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Show what the columns of a log are taken for, and why: categories, numbers, times, lists."""
    options = {"label": label, "exclude": exclude or (), "weight": weight, "dataset": dataset or "auto"}
    with starting():
        from sparsegroup.cli.columns_run import columns_run

    columns_run(log, options, schema, overwrite=overwrite)
