"""`sparsegroup prepare`: its options."""

from pathlib import Path
from typing import Annotated

import typer

from sparsegroup.cli.app import THREADS, app
from sparsegroup.cli.options import COLUMNS, RAW_LOG, SORT_FILES
from sparsegroup.cli.output import Json, Quiet, Verbose
from sparsegroup.names import AvazuHour, ColumnsName, CriteoNumbers, DatasetName, OnBadRow, SortFiles


@app.command("prepare")
def prepare_command(
    log: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG",
            help="Click log: text, plain, .gz, .bz2, .xz, .zst or .lz4; or .parquet, .arrow: " + RAW_LOG + ".",
        ),
    ],
    out: Annotated[Path, typer.Argument(help="Folder for the prepared log; one that was cut off is gone on with.")],
    test: Annotated[str | None, typer.Option(help="A log of its own for the test set.", show_default=False)] = None,
    sort_files: Annotated[SortFiles, typer.Option(help=SORT_FILES)] = "name",
    dataset: Annotated[
        DatasetName, typer.Option(help="Format of the log; auto tells it from the first line.")
    ] = "auto",
    schema: Annotated[
        Path | None, typer.Option(help="YAML file that says what the columns are.", show_default=False)
    ] = None,
    columns: Annotated[ColumnsName | None, typer.Option(help=COLUMNS, show_default="told from its first rows")] = None,
    label: Annotated[
        str | None,
        typer.Option(
            help="Label column, of a log with a header; default `label`, `click`, `clicked` or the like.",
            show_default=False,
        ),
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
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Read a click log of any size and write it as Parquet: 64-bit keys, numbers, label, time and weight.

    It takes bounded memory, and a run that was cut off is gone on with by the same command.
    """
    from sparsegroup.cli.prepare_run import prepare_run

    prepare_run(
        log,
        out,
        test,
        {
            "dataset": dataset,
            "schema": schema,
            "columns": columns,
            "label": label,
            "exclude": exclude or (),
            "test_fraction": test_fraction,
            "criteo_numbers": criteo_numbers,
            "avazu_hour": avazu_hour,
        },
        sort_files=sort_files,
        on_bad_row=on_bad_row,
        max_bad=max_bad,
        vocabulary=vocabulary,
        threads=threads,
    )
