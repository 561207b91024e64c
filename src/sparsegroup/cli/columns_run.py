"""What `sparsegroup columns` does."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sparsegroup.cli.app import UsageError
from sparsegroup.cli.column_table import column_table, warn_of_columns
from sparsegroup.cli.output import show
from sparsegroup.data.columns.column_finding import ColumnFinding
from sparsegroup.data.formats.log_format import LogFormat
from sparsegroup.data.formats.schema_file import findings_of, write_schema
from sparsegroup.data.log_errors import ClickLogError
from sparsegroup.data.log_opening import given, is_prepared, raw_log_files
from sparsegroup.data.prepared_log import PreparedLog
from sparsegroup.data.raw.file_listing import LogPaths, paths_of, shown


def columns_run(log: LogPaths, options: Any, schema: Path | None, *, overwrite: bool) -> None:
    """Show what the columns of a log are.

    Args:
        log: A raw log, or a prepared folder.
        options: What tells the format.
        schema: File to write them to.
        overwrite: Replace it.

    Raises:
        UsageError: A schema that is there, or cannot be written of this log; options of raw logs for a prepared one.
        ClickLogError, OSError: The log cannot be read, or has no label; the columns have been shown then.
    """
    if schema is not None and schema.exists() and not overwrite:
        raise UsageError(f"{schema} exists; give another --schema, or --overwrite")
    found, problem = (None, None) if is_prepared(log) else _format_of(log, options)
    findings = _of_prepared(log, options) if found is None else findings_of(found)
    if schema is not None:
        _write(schema, found, log)
    written = [] if schema is None else [f"written to {schema}"]
    show({"columns": [asdict(finding) for finding in findings]}, column_table(findings), *written)
    warn_of_columns(findings)
    if problem is not None:
        raise problem


def _format_of(log: LogPaths, options: Any) -> tuple[LogFormat, ClickLogError | None]:
    """The log's format; of one without its label that of the other columns, and the error that says so."""
    try:
        return raw_log_files(log, **options)[1], None
    except ClickLogError as error:
        if error.parameters != ("label",):
            raise
        return raw_log_files(log, whole=True, **{**options, "label": None})[1], error


def _write(schema: Path, found: LogFormat | None, log: LogPaths) -> None:
    if found is None or not found.kinds:
        what = "it is prepared already" if found is None else f"the format {found.name!r} says them"
        raise UsageError(f"--schema: the columns of {shown(log)} need none: {what}")
    write_schema(schema, found, shown(log))


def _of_prepared(folder: LogPaths, options: Any) -> Sequence[ColumnFinding]:
    if others := given(options):
        raise UsageError(f"--{min(others)} is for raw logs; {shown(folder)} is a folder, prepared already")
    log = PreparedLog(*paths_of(folder))
    made = f"made of {log.manifest.dataset!r}"
    rows = [
        ColumnFinding(name, "list" if name in log.lists else "category", made, (), log.manifest.features[name][0])
        for name in log.fields
    ]
    rows += [ColumnFinding(name, "number", made) for name in log.numbers]
    weight = next((name for name, kind in log.columns.items() if kind == "weight"), "weight")
    return [*rows, *([ColumnFinding(weight, "weight", made)] if log.weighted else [])]
