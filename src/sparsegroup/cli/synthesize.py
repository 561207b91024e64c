"""`sparsegroup synthesize`."""

from pathlib import Path
from typing import Annotated

import typer

from sparsegroup.cli.app import app, starting
from sparsegroup.cli.output import Json, Quiet, Verbose, show


@app.command("synthesize")
def synthesize_command(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A .csv or .parquet file.")],
    rows: Annotated[int, typer.Option(min=1, help="Number of rows.")] = 300_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Make up a raw click log of typed columns: users, ads, times, tags, prices, counts and rates."""
    with starting():
        from sparsegroup.cli.progress import progress
        from sparsegroup.data.synthetic import write_clicks

    with progress("synthetic clicks", "rows", rows) as update:
        write_clicks(out, rows, seed, lambda done: update(done, rows, ""), overwrite=overwrite)
    show({"out": str(out), "rows": rows}, f"{out}: {rows:,} rows")
