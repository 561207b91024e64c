"""`sparsegroup inspect`: its options."""

from pathlib import Path
from typing import Annotated

import typer

from sparsegroup.cli.app import app, starting
from sparsegroup.cli.output import Json, Quiet, Verbose


@app.command("inspect")
def inspect_command(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="Folder of a run, a checkpoint or an export.", show_default=False)
    ],
    top: Annotated[int, typer.Option(min=0, help="Number of features to list, those of the largest norms.")] = 10,
    html: Annotated[
        Path | None, typer.Option(help="Also write the same to an HTML page, with charts.", show_default=False)
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Look into a trained model: sizes, feature rate per field, norms, the largest features, and what λ did."""
    with starting():
        from sparsegroup.cli.inspect_run import inspect_run

    inspect_run(model, top, html)
