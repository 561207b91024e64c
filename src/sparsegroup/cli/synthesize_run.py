"""What `sparsegroup synthesize` does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sparsegroup.cli.app import UsageError
from sparsegroup.cli.output import show
from sparsegroup.cli.prepare_run import log_figures, summary
from sparsegroup.cli.progress import progress
from sparsegroup.data.public_shapes import DATASETS, synthesize
from sparsegroup.data.synthetic import write_clicks
from sparsegroup.errors import UserError
from sparsegroup.settings.names import ShapeName

_CLICKS = 300_000

_Made = TypeVar("_Made")


def synthesize_run(dataset: ShapeName, out: Path, rows: int | None, seed: int, *, overwrite: bool) -> None:
    """Make up a log; the arguments are those of the command."""
    if dataset == "clicks":
        _clicks(out, _CLICKS if rows is None else rows, seed, overwrite)
    elif overwrite:
        raise UsageError(f"--overwrite is for clicks, which are a file; {dataset} is written to a new folder")
    else:
        _shaped(dataset, out, rows, seed)


def _shaped(dataset: ShapeName, out: Path, rows: int | None, seed: int) -> None:
    shape = DATASETS[dataset]
    wanted = shape.full_rows if rows is None else rows
    log = _with_progress(dataset, wanted, lambda update: synthesize(shape, wanted, out, seed, update))
    real = [f"the real log has {shape.full_features:,} features"] if wanted == shape.full_rows else []
    show(log_figures(log.manifest, out), summary(log.manifest, out), *real)


def _clicks(out: Path, rows: int, seed: int, overwrite: bool) -> None:
    truth = _with_progress("clicks", rows, lambda update: write_clicks(out, rows, seed, update, overwrite=overwrite))
    figures: dict[str, Any] = {"out": str(out), "rows": rows, "positive_rate": truth.everything.positive_rate}
    lines = [f"{out}: {rows:,} rows, {truth.everything.positive_rate:.1%} of them positive"]
    parts = (("test", "the last tenth, the test set", truth.test), ("all", "all rows", truth.everything))
    for part, name, best in parts:
        figures |= {f"best_auc_{part}": best.auc, f"best_log_loss_{part}": best.log_loss}
        lines.append(f"best possible on {name}: AUC {best.auc:.4f}, log loss {best.log_loss:.4f}")
    show(figures, *lines)


def _with_progress(name: str, rows: int, make: Callable[[Callable[[int], None]], _Made]) -> _Made:
    """What `make` makes, with a bar that it is given to tell how many rows are done."""
    with progress(f"synthetic {name}", "rows", rows) as update:
        try:
            return make(lambda done: update(done, rows, ""))
        except UserError:
            raise
        except ValueError as error:
            raise UsageError(str(error)) from error
