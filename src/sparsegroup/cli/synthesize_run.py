"""What `sparsegroup synthesize` does."""

from pathlib import Path

from sparsegroup.cli.app import UsageError
from sparsegroup.cli.output import show
from sparsegroup.cli.prepare_run import log_figures, summary
from sparsegroup.cli.progress import progress
from sparsegroup.data.synthetic.log_shapes import DATASETS
from sparsegroup.data.synthetic.synthesis import synthesize
from sparsegroup.names import ShapeName


def synthesize_run(dataset: ShapeName, out: Path, rows: int | None, seed: int) -> None:
    """Make up a log; the arguments are those of the command."""
    shape = DATASETS[dataset]
    wanted = shape.full_rows if rows is None else rows
    with progress(f"synthetic {dataset}", "rows", wanted) as update:
        try:
            log = synthesize(shape, wanted, out, seed, lambda done: update(done, wanted, ""))
        except ValueError as error:
            raise UsageError(str(error)) from error
    real = [f"the real log has {shape.full_features:,} features"] if wanted == shape.full_rows else []
    show(log_figures(log.manifest, out), summary(log.manifest, out), *real)
