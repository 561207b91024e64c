"""What `sparsegroup prepare` does."""

from pathlib import Path
from typing import Any

from rich.table import Table

from sparsegroup.cli.columns import print_columns
from sparsegroup.cli.output import show
from sparsegroup.cli.progress import progress
from sparsegroup.data.keys import expected_collisions
from sparsegroup.data.open import FormatOptions
from sparsegroup.data.preparation import PreparationProgress, prepare
from sparsegroup.data.prepared_log import LogManifest
from sparsegroup.data.raw.file_listing import LogPaths, short_name
from sparsegroup.settings.names import OnBadRow, SortFiles


def prepare_run(
    log: LogPaths,
    out: Path,
    test: LogPaths | None,
    options: FormatOptions,
    *,
    sort_files: SortFiles,
    on_bad_row: OnBadRow,
    max_bad: float,
    vocabulary: bool,
    threads: int,
) -> None:
    """Prepare a log.

    Args:
        log: The log.
        out: Folder for the prepared log.
        test: A log of its own for the test set.
        options: What tells the format.
        sort_files: Order of the log's files.
        on_bad_row: "error" stops at a bad row, "skip" leaves it out and counts it.
        max_bad: Share of bad rows above which to stop all the same.
        vocabulary: Write vocabulary.parquet, too.
        threads: That parse and hash.

    Raises:
        LogOptionError: Options that do not go together, or not with the log.
    """
    with progress(f"preparing {short_name(log)}", "bytes") as update:

        def on_progress(done: PreparationProgress) -> None:
            bad = f", {done.bad:,} bad" if done.bad else ""
            update(done.bytes, done.total, f"{done.rows:,} rows{bad}")

        done, _ = prepare(
            [log, *([] if test is None else [test])],
            out,
            sort_files=sort_files,
            on_format=lambda found: print_columns(found.findings),
            on_bad_row=on_bad_row,
            max_bad=max_bad,
            vocabulary=vocabulary,
            threads=threads,
            on_progress=on_progress,
            **options,
        )
    show(log_figures(done.manifest, out), summary(done.manifest, out))


def log_figures(manifest: LogManifest, out: Path) -> dict[str, Any]:
    """What `--json` says of a prepared log."""
    in_all, in_training = _feature_counts(manifest)
    return {
        "folder": str(out),
        "dataset": manifest.dataset,
        "rows": manifest.rows,
        "train_rows": manifest.train_rows,
        "test_rows": manifest.rows - manifest.train_rows,
        "positive_rate": manifest.positives / manifest.rows,
        "fields": len(manifest.fields),
        "numbers": len(manifest.numbers),
        "features": in_all,
        "train_features": in_training,
        "bad_rows": sum(manifest.bad_rows.values()),
    }


def _feature_counts(manifest: LogManifest) -> tuple[int, int]:
    """Features in all rows, and in the training rows."""
    in_all, in_training = (sum(counts[k] for counts in manifest.features.values()) for k in (0, 1))
    return in_all, in_training


def summary(manifest: LogManifest, out: Path) -> Table:
    """What a prepared log holds."""
    table = Table(show_header=False, box=None)
    rows, train = manifest.rows, manifest.train_rows
    in_all, in_training = _feature_counts(manifest)
    collisions = expected_collisions({name: counts[0] for name, counts in manifest.features.items()})
    table.add_row("rows", f"{rows:,}: {train:,} for training, {rows - train:,} for testing")
    table.add_row("positives", f"{manifest.positives / rows:.3%}")
    table.add_row("fields", f"{len(manifest.fields)} categorical, {len(manifest.numbers)} numeric")
    table.add_row("features", f"{in_all:,}, of which {in_training:,} in the training rows")
    table.add_row("collisions", f"{collisions:.2g} pairs of features are expected to share a key")
    table.add_row("written to", str(out))
    return table
