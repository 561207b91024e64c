"""What `sparsegroup prepare` does."""

from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from sparsegroup.cli.app import UsageError, console
from sparsegroup.cli.progress import print_notes
from sparsegroup.data.keys import expected_collisions
from sparsegroup.data.log_manifest import LogManifest
from sparsegroup.data.log_opening import FormatOptions
from sparsegroup.data.preparation import PreparationProgress, prepare
from sparsegroup.data.public_counts import compare_with_published
from sparsegroup.names import OnBadRow


def prepare_run(
    log: Path,
    out: Path,
    test: Path | None,
    options: FormatOptions,
    *,
    on_bad_row: OnBadRow,
    max_bad: str,
    vocabulary: bool,
    threads: int,
) -> None:
    """Prepare a log.

    Args:
        log: The log.
        out: Folder for the prepared log.
        test: A log of its own for the test set.
        options: What tells the format.
        on_bad_row: "error" stops at a bad row, "skip" leaves it out and counts it.
        max_bad: Share of bad rows, like 0.1%, above which to stop all the same.
        vocabulary: Write vocabulary.parquet, too.
        threads: That parse and hash.

    Raises:
        UsageError: `max_bad` is no share.
        LogOptionError: Options that do not go together, or not with the log.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        DownloadColumn(),
        TextColumn("{task.fields[rows]}"),
    )
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(compact=True), console=console) as bar:
        task = bar.add_task(f"preparing {log.name}", total=None, rows="")

        def show(done: PreparationProgress) -> None:
            bad = f", {done.bad:,} bad" if done.bad else ""
            bar.update(task, completed=done.bytes, total=done.total, rows=f"{done.rows:,} rows{bad}")

        done, bads = prepare(
            [log, *([test] if test else [])],
            out,
            on_bad_row=on_bad_row,
            max_bad=_share(max_bad),
            vocabulary=vocabulary,
            threads=threads,
            on_progress=show,
            **options,
        )
    print_notes(str(bad) for bad in bads if bad.count)
    console.print(summary(done.manifest, out), highlight=False)
    for line in compare_with_published(done.manifest):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise UsageError(f"--max-bad must be a share like 0.1% or 0.001, below 100 %, got {text!r}")
    return share


def summary(manifest: LogManifest, out: Path) -> Table:
    """What a prepared log holds."""
    table = Table(show_header=False, box=None)
    rows, train = manifest.rows, manifest.train_rows
    in_all, in_training = (sum(counts[k] for counts in manifest.features.values()) for k in (0, 1))
    collisions = expected_collisions({name: counts[0] for name, counts in manifest.features.items()})
    table.add_row("rows", f"{rows:,}: {train:,} for training, {rows - train:,} for testing")
    table.add_row("positives", f"{manifest.positives / rows:.3%}")
    table.add_row("fields", f"{len(manifest.fields)} categorical, {len(manifest.numbers)} numeric")
    table.add_row("features", f"{in_all:,}, of which {in_training:,} in the training rows")
    table.add_row("collisions", f"{collisions:.2g} pairs of features are expected to share a key")
    table.add_row("written to", str(out))
    return table
