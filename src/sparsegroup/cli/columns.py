"""`sparsegroup columns`."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsegroup.cli.app import UsageError, starting
from sparsegroup.cli.options import RawOrPrepared, takes_settings
from sparsegroup.cli.output import plain, show, table

if TYPE_CHECKING:
    from sparsegroup.data import ColumnFinding
    from sparsegroup.data.schema import LogFormat


@takes_settings("label", "exclude", "weight", "dataset")
def columns_command(
    log: RawOrPrepared,
    *,
    settings: Mapping[str, Any],
    schema: Annotated[
        Path | None, typer.Option(metavar="OUT.yaml", help="Write them as a schema, to edit and pass to --schema.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing schema.")] = False,
) -> None:
    """Show what the columns of a log are taken for, and why: categories, numbers, times, lists."""
    if schema is not None and schema.exists() and not overwrite:
        raise UsageError(f"{schema} exists; give another --schema, or --overwrite")
    with starting():
        from sparsegroup.cli.logs import warn_of_columns
        from sparsegroup.data.open import is_prepared
        from sparsegroup.data.raw.files import shown
        from sparsegroup.data.schema import write_schema
    found, problem = (None, None) if is_prepared(log) else _format_of(log, settings)
    findings = _of_prepared(log, settings) if found is None else found.explained
    if schema is not None:
        if found is None or not found.kinds:
            what = "it is prepared already" if found is None else f"the format {found.name!r} says them"
            raise UsageError(f"--schema: the columns of {shown(log)} need none: {what}")
        write_schema(schema, found, shown(log))
    header = ("column", "kind", "examples", "different", "missing", "AUC", "why")
    rows = [
        (
            one.name,
            one.kind,
            ", ".join(one.examples),
            f"{one.distinct:,}" if one.distinct or one.missing else "",
            f"{one.missing:.1%}" if one.missing else "",
            "" if one.auc is None else f"{one.auc:.3f}",
            one.why,
        )
        for one in findings
    ]
    filled = [place for place in range(len(header)) if any(row[place] for row in rows)]
    shown_columns = table(*(header[place] for place in filled), left=len(filled), box=None, pad_edge=False)
    for column, place in zip(shown_columns.columns, filled, strict=True):
        column.justify = "right" if header[place] in ("different", "missing", "AUC") else "left"
    for row in rows:
        shown_columns.add_row(*(plain(row[place]) for place in filled))
    written = [] if schema is None else [f"written to {schema}"]
    show({"columns": [asdict(finding) for finding in findings]}, shown_columns, *written)
    warn_of_columns(findings)
    if problem is not None:
        raise problem


def _format_of(log: list[str], options: Mapping[str, Any]) -> "tuple[LogFormat, Exception | None]":
    """The log's format; of one without its label that of the other columns, and the error about the label."""
    from sparsegroup.data import ClickLogError
    from sparsegroup.data.open import raw_log_files

    try:
        return raw_log_files(log, **options)[1], None
    except ClickLogError as error:
        if error.parameters != ("label",):
            raise
        return raw_log_files(log, whole=True, **{**options, "label": None})[1], error


def _of_prepared(folder: list[str], options: Mapping[str, Any]) -> "list[ColumnFinding]":
    from sparsegroup.data import ColumnFinding, PreparedLog
    from sparsegroup.data.raw.files import shown

    if options:
        raise UsageError(f"--{min(options)} is for raw logs; {shown(folder)} is a folder, prepared already")
    log = PreparedLog(Path(*folder))
    made = f"made of {log.manifest.dataset!r}"
    rows = [
        ColumnFinding(name, "list" if name in log.lists else "category", made, (), log.manifest.features[name][0])
        for name in log.fields
    ]
    rows += [ColumnFinding(name, "number", made) for name in log.numbers]
    weight = next((name for name, kind in log.columns.items() if kind == "weight"), "weight")
    return [*rows, *([ColumnFinding(weight, "weight", made)] if log.weighted else [])]
