"""`sparsegroup synthesize`."""

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sparsegroup.cli.app import UsageError, app, console
from sparsegroup.cli.prepare import summary
from sparsegroup.data.synthetic.log_shapes import DATASETS
from sparsegroup.data.synthetic.synthesis import synthesize


@app.command("synthesize")
def synthesize_command(
    dataset: Annotated[Literal["avazu", "criteo", "ipinyou"], typer.Argument(help="Whose shape the log has.")],
    out: Annotated[Path, typer.Argument(help="Folder for the log, as `prepare` writes it.")],
    rows: Annotated[
        int | None, typer.Option(help="Rows; default: as many as the real log.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
) -> None:
    """Make up a click log with the fields, the skew and the late features of a public one, of any size up to its own.

    Its informative features are known: `sparsegroup.data.synthetic.truth.effects` gives their effects.
    """
    shape = DATASETS[dataset]
    wanted = shape.full_rows if rows is None else rows
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(compact=True))
    with Progress(*columns, console=console) as bar:
        task = bar.add_task(f"synthetic {dataset}", total=wanted)
        try:
            log = synthesize(shape, wanted, out, seed, lambda done: bar.update(task, completed=done))
        except ValueError as error:
            raise UsageError(str(error)) from error
    console.print(summary(log.manifest, out), highlight=False)
    if wanted == shape.full_rows:
        console.print(f"the real log has {shape.full_features:,} features", highlight=False)
