"""`sparsegroup prepare` and `synthesize`: logs written to disk."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from sparsegroup.cli.app import starting
from sparsegroup.cli.options import OF_THE_LOG, RAW_LOG, THREADS, log_settings, takes_settings
from sparsegroup.cli.output import figures, progress, show


@takes_settings(*(name for name in OF_THE_LOG if name != "rows"))
def prepare_command(
    log: Annotated[
        list[str],
        typer.Argument(
            metavar="LOG", help=f"Click log: text, plain, .gz, .bz2, .xz, .zst or .lz4; or .parquet, .arrow: {RAW_LOG}."
        ),
    ],
    out: Annotated[
        Path, typer.Argument(metavar="OUT", help="Folder for the prepared log; an interrupted preparation is resumed.")
    ],
    *,
    settings: Mapping[str, Any],
    vocabulary: Annotated[
        bool, typer.Option("--vocabulary", help="Also write vocabulary.parquet: key, field and value of every feature.")
    ] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads that parse and hash.")] = THREADS,
) -> None:
    """Read a click log of any size and write it as Parquet: 64-bit keys, numbers, label, time and weight.

    Memory is bounded, and the same command resumes an interrupted preparation.
    """
    with starting():
        from sparsegroup.cli.logs import print_columns
        from sparsegroup.data import PreparationProgress, prepare
        from sparsegroup.data.keys import expected_collisions
        from sparsegroup.data.raw.files import short_name

    data = log_settings(settings)
    with progress(f"preparing {short_name(log)}", "bytes") as update:

        def on_progress(done: PreparationProgress) -> None:
            bad = f", {done.bad:,} bad" if done.bad else ""
            update(done.bytes, done.total, f"{done.rows:,} rows{bad}")

        prepared, _ = prepare(
            [log, *([] if data.test is None else [data.test])],
            out,
            on_format=lambda found: print_columns(found.findings),
            vocabulary=vocabulary,
            threads=threads,
            on_progress=on_progress,
            **data.reading_options,
            **data.format_options,
        )
    manifest = prepared.manifest
    rows, train_rows = manifest.rows, manifest.train_rows
    features, train_features = (sum(counts[part] for counts in manifest.vocabularies.values()) for part in (0, 1))
    collisions = expected_collisions({name: counts[0] for name, counts in manifest.vocabularies.items()})
    result = {
        "folder": str(out),
        "dataset": manifest.dataset,
        "rows": rows,
        "train_rows": train_rows,
        "test_rows": rows - train_rows,
        "positive_rate": manifest.positives / rows,
        "fields": len(manifest.fields),
        "numbers": len(manifest.numbers),
        "features": features,
        "train_features": train_features,
        "bad_rows": sum(manifest.bad_rows.values()),
    }
    outcome = {
        "rows": f"{rows:,}: {train_rows:,} for training, {rows - train_rows:,} for testing",
        "positives": f"{manifest.positives / rows:.3%}",
        "fields": f"{len(manifest.fields)} categorical, {len(manifest.numbers)} numeric",
        "features": f"{features:,}, of which {train_features:,} in the training rows",
        "collisions": f"{collisions:.2g} pairs of features are expected to share a key",
        "written to": str(out),
    }
    show(result, figures(outcome.items()))


def synthesize_command(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A .csv or .parquet file.")],
    rows: Annotated[int, typer.Option(min=1, help="Number of rows.")] = 300_000,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
) -> None:
    """Make up a raw click log of typed columns: users, ads, times, tags, prices, counts and rates."""
    with starting():
        from sparsegroup.data.synthetic import write_clicks

    with progress("synthetic clicks", "rows", rows) as update:
        write_clicks(out, rows, seed, lambda done: update(done, rows, ""), overwrite=overwrite)
    show({"out": str(out), "rows": rows}, f"{out}: {rows:,} rows")
