"""`sparsegroup prepare`: its options."""

from pathlib import Path
from typing import Annotated

import typer

from sparsegroup.cli.app import THREADS, app, starting
from sparsegroup.cli.options import COLUMNS, RAW_LOG, SORT_FILES, WEIGHT
from sparsegroup.cli.output import Json, Quiet, Verbose
from sparsegroup.settings.names import AvazuHour, ColumnsName, CriteoNumbers, DatasetName, OnBadRow, SortFiles


@app.command("prepare")
def prepare_command(
    log: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG",
            help="Click log: text, plain, .gz, .bz2, .xz, .zst or .lz4; or .parquet, .arrow: " + RAW_LOG + ".",
        ),
    ],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Folder for the prepared log; an interrupted preparation is resumed.")
    ],
    test: Annotated[str | None, typer.Option(help="A separate log to use as the test set.", show_default=False)] = None,
    sort_files: Annotated[SortFiles, typer.Option(help=SORT_FILES)] = "name",
    dataset: Annotated[
        DatasetName, typer.Option(help="Format of the log; auto detects it from the first line.")
    ] = "auto",
    schema: Annotated[
        Path | None, typer.Option(help="YAML file that says what the columns are.", show_default=False)
    ] = None,
    columns: Annotated[
        ColumnsName | None, typer.Option(help=COLUMNS, show_default="inferred from its first rows")
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(
            help="Label column of a log with a header; default `label`, `click`, `clicked` or the like.",
            show_default=False,
        ),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        typer.Option(help="Column to ignore in a log with a header (repeatable).", show_default=False),
    ] = None,
    weight: Annotated[str | None, typer.Option(help=WEIGHT, show_default="weight, sample_weight or the like")] = None,
    test_fraction: Annotated[
        str | None,
        typer.Option(
            help="Share of the rows, from the end, for the test set, in [0, 1); for a log with a header and no column "
            "`split`.",
            show_default="0.1",
        ),
    ] = None,
    criteo_numbers: Annotated[
        CriteoNumbers, typer.Option(help="Criteo's integers: logarithms, or embedded buckets (39 fields).")
    ] = "log",
    avazu_hour: Annotated[AvazuHour, typer.Option(help="How to encode Avazu's hour.")] = "hour",
    on_bad_row: Annotated[OnBadRow, typer.Option(help="Stop at a bad row, or skip and count it.")] = "error",
    max_bad: Annotated[str, typer.Option(help="Share of bad rows, such as 0.1%, above which to stop anyway.")] = "0.1%",
    vocabulary: Annotated[
        bool, typer.Option("--vocabulary", help="Also write vocabulary.parquet: key, field and value of every feature.")
    ] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads that parse and hash.")] = THREADS,
    json: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Read a click log of any size and write it as Parquet: 64-bit keys, numbers, label, time and weight.

    Memory is bounded, and the same command resumes an interrupted preparation.
    """
    with starting():
        from sparsegroup.cli.prepare_run import prepare_run
        from sparsegroup.cli.run_settings import share_given

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
            "weight": weight,
            "test_fraction": None if test_fraction is None else share_given("--test-fraction", test_fraction),
            "criteo_numbers": criteo_numbers,
            "avazu_hour": avazu_hour,
        },
        sort_files=sort_files,
        on_bad_row=on_bad_row,
        max_bad=share_given("--max-bad", max_bad),
        vocabulary=vocabulary,
        threads=threads,
    )
