"""What `sparsegroup synthesize` does."""

from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from sparsegroup.cli.app import UsageError, console
from sparsegroup.cli.prepare_run import summary
from sparsegroup.data.synthetic.log_shapes import DATASETS
from sparsegroup.data.synthetic.synthesis import synthesize
from sparsegroup.names import ShapeName


def synthesize_run(dataset: ShapeName, out: Path, rows: int | None, seed: int) -> None:
    """Make up a log; the arguments are those of the command."""
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
