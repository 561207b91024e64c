"""`sparsegroup synthesize`: its options."""

from pathlib import Path
from typing import Annotated

import typer

from sparsegroup.cli.app import app, starting
from sparsegroup.cli.output import Json, Quiet, Verbose
from sparsegroup.settings.names import ShapeName


@app.command("synthesize")
def synthesize_command(
    dataset: Annotated[
        ShapeName,
        typer.Argument(
            metavar="DATASET", help="Public log whose shape to imitate, or clicks for a raw log of typed columns."
        ),
    ],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT", help="Folder for the log, as `prepare` writes it; for clicks, a .csv or .parquet file."
        ),
    ],
    rows: Annotated[
        int | None,
        typer.Option(
            help="Number of rows; default: as many as the real log has, 300000 for clicks.", show_default=False
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file of clicks.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Make up a click log: with the fields, the skew and the late features of a public one, or with raw typed columns.

    In a log of a public one's shape the effects of the features are known: `sparsegroup.data.public_shapes.effects`
    returns them. For clicks, the best possible AUC and log loss are printed.
    """
    with starting():
        from sparsegroup.cli.synthesize_run import synthesize_run

    synthesize_run(dataset, out, rows, seed, overwrite=overwrite)
