"""`sparsegroup prepare`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from sparsegroup.cli.app import THREADS, UsageError, app, console
from sparsegroup.data import ClickLogError
from sparsegroup.data.formats.log_format import AvazuHour, CriteoNumbers
from sparsegroup.data.formats.recognition import DatasetName, choose_format
from sparsegroup.data.keys import expected_collisions
from sparsegroup.data.preparation import PreparationProgress, prepare
from sparsegroup.data.prepared_log import LogManifest
from sparsegroup.data.public_counts import compare_with_published
from sparsegroup.data.raw.chunk_reader import OnBadRow
from sparsegroup.data.raw.text_file import uncompressed_size


@app.command("prepare")
def prepare_command(
    log: Annotated[
        Path, typer.Argument(help="Click log: text, plain, .gz, .bz2, .xz, .zst or .lz4; or .parquet, .arrow.")
    ],
    out: Annotated[Path, typer.Argument(help="Folder for the prepared log; one that was cut off is gone on with.")],
    test: Annotated[Path | None, typer.Option(help="A log of its own for the test set.", show_default=False)] = None,
    dataset: Annotated[
        DatasetName, typer.Option(help="Format of the log; auto tells it from the first line.")
    ] = "auto",
    schema: Annotated[
        Path | None, typer.Option(help="YAML file that says what the columns are.", show_default=False)
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help="Label column, of a log with a header; default `label` or `click`.", show_default=False),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="A column that is no feature, of a log with a header (repeatable).", show_default=False),
    ] = None,
    test_fraction: Annotated[
        float | None,
        typer.Option(
            help="Share of the rows, the last ones, for the test set, in [0, 1); of a log with a header and no column "
            "`split`.",
            show_default="0.1",
        ),
    ] = None,
    criteo_numbers: Annotated[
        CriteoNumbers, typer.Option(help="Criteo's integers: logarithms, or buckets that are embedded (39 fields).")
    ] = "log",
    avazu_hour: Annotated[AvazuHour, typer.Option(help="What becomes of Avazu's hour.")] = "hour",
    on_bad_row: Annotated[OnBadRow, typer.Option(help="Stop at a bad row, or leave it out and count it.")] = "error",
    max_bad: Annotated[
        str, typer.Option(help="Share of bad rows, like 0.1%, above which to stop all the same.")
    ] = "0.1%",
    vocabulary: Annotated[
        bool, typer.Option("--vocabulary", help="Write vocabulary.parquet, too: key, field and value.")
    ] = False,
    threads: Annotated[int, typer.Option(min=1, help="That parse and hash.")] = THREADS,
) -> None:
    """Read a click log of any size and write it as Parquet: 64-bit keys, numbers, label, time and weight.

    It takes bounded memory, and a run that was cut off is gone on with by the same command.
    """
    try:
        wanted = choose_format(
            log,
            test,
            dataset=dataset,
            schema=schema,
            label=label,
            exclude=exclude or (),
            test_fraction=test_fraction,
            criteo_numbers=criteo_numbers,
            avazu_hour=avazu_hour,
        )
    except ClickLogError:
        raise
    except ValueError as error:  # options that do not go together
        raise UsageError(str(error)) from error
    logs = [log, *([test] if test else [])]
    total = uncompressed_size(logs)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        DownloadColumn(),
        TextColumn("{task.fields[rows]}"),
    )
    with Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(compact=True), console=console) as bar:
        task = bar.add_task(f"preparing {log.name}", total=total, rows="")

        def show(done: PreparationProgress) -> None:
            bad = f", {done.bad:,} bad" if done.bad else ""
            bar.update(task, completed=done.bytes, rows=f"{done.rows:,} rows{bad}")

        done, bads = prepare(
            logs,
            out,
            wanted,
            on_bad_row=on_bad_row,
            max_bad=_share(max_bad),
            vocabulary=vocabulary,
            threads=threads,
            on_progress=show,
        )
    for bad in bads:
        if bad.count:
            console.print(str(bad), style="yellow", markup=False, highlight=False, soft_wrap=True)
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
