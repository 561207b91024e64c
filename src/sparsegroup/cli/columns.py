"""`sparsegroup columns` and `sparsegroup select`."""

import logging
import shlex
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sparsegroup.cli.app import UsageError, starting
from sparsegroup.cli.options import (
    OF_THE_LOG,
    THREADS,
    Assignments,
    LogOrConfig,
    RawOrPrepared,
    Threads,
    takes_settings,
)
from sparsegroup.cli.output import plain, show, table, training_bar
from sparsegroup.reporting.formatting import count, metric, percent, titles_of

if TYPE_CHECKING:
    from sparsegroup.data import ColumnFinding
    from sparsegroup.data.schema import LogFormat
    from sparsegroup.training.build import Config
    from sparsegroup.training.selection.columns import ColumnSelection

_logger = logging.getLogger(__name__)


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


# The columns that a model can do without


@takes_settings(*OF_THE_LOG, "objective", "group", "model", "dim", "lr", "target_rate", "batch_size", "epochs", "seed")
def select_command(
    log: LogOrConfig = None,
    seeds: Annotated[int, typer.Option(min=1, help="Models of each kind.")] = 3,
    out: Annotated[
        Path | None, typer.Option(metavar="OUT.yaml", help="Write a schema for `train` that leaves them out.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing schema.")] = False,
    set_: Assignments = None,
    *,
    settings: Mapping[str, Any],
    threads: Threads = THREADS,
) -> None:
    """Find the columns of a log that a model can do without, and what it is without them.

    A column's importance is how much the loss on held-out rows rises when its values are shuffled. Columns are left out
    as long as models without them are as good.
    """
    if out is not None and out.exists() and not overwrite:
        raise UsageError(f"{out} exists; give another --out, or --overwrite")
    with starting(threads):
        from sparsegroup.cli.logs import config_given, open_config_log
        from sparsegroup.training.selection.columns import select_columns
    config = config_given(log, settings, set_)
    data = open_config_log(config, threads)
    if out is not None and not data.columns:
        raise UsageError(f"--out: {data.name} is not read by a schema: its format, or its preparation, says how")
    found = select_columns(config, data, seeds=seeds, reporting=partial(training_bar, stays=False))
    if out is not None:
        _write_schema(out, config, found)
    rows = (
        (
            plain(one.name),
            metric(one.importance.loss),
            metric(2 * one.importance.error),
            metric(one.importance.auc),
            percent(one.live),
            "" if one.is_kept else "left out",
        )
        for one in found.columns
    )
    shown = table("column", "loss", "±", "AUC", "live", "", rows=rows, box=None, pad_edge=False)
    shown.columns[-1].justify = "left"
    result = {
        **asdict(found),
        "log": data.name,
        "left_out": list(found.left_out),
        "schema": None if out is None else str(out),
    }
    show(result, shown, "", *_in_words(found), *_next(config, found, out))


def _in_words(found: "ColumnSelection") -> list[str]:
    """What a model is without the columns that are left out."""
    left_out, whole, kept = found.left_out, found.whole, found.kept
    where = f"{count(found.rows)} {'test' if found.has_test_rows else 'held-out'} rows"
    if not left_out:
        return [f"All {len(found.columns)} columns are needed."]
    first, *_ = (name for name in titles_of(whole.metrics) if name in ("auc", "rmse"))
    changes = [(titles_of(whole.metrics)[first], getattr(kept.metrics, first) - getattr(whole.metrics, first))]
    changes.append(("log loss" if first == "auc" else "loss", kept.metrics.loss - whole.metrics.loss))
    return [
        f"Without these {len(left_out)} of {len(found.columns)} columns, on {where}: "
        + ", ".join(f"{title} {change:+.4f}".replace("-", "\N{MINUS SIGN}") for title, change in changes)
        + f", table {kept.table_bytes / whole.table_bytes - 1:+.0%}".replace("-", "\N{MINUS SIGN}")
        + f", training {whole.seconds / kept.seconds:.1f} times as fast."
    ]


def _next(config: "Config", found: "ColumnSelection", schema: Path | None) -> list[str]:
    """The command that trains without the columns that are left out."""
    if not found.left_out or config.data.log is None:
        return []
    paths = [config.data.log] if isinstance(config.data.log, str) else list(config.data.log)
    how = [f"--exclude={name}" for name in found.left_out] if schema is None else ["--schema", str(schema)]
    return [shlex.join(["sparsegroup", "train", *map(str, paths), *how])]


def _write_schema(path: Path, config: "Config", found: "ColumnSelection") -> None:
    """Write the columns of the config's log as a schema; it ignores the columns that are left out."""
    from sparsegroup.data.open import raw_log_files
    from sparsegroup.data.raw.files import shown
    from sparsegroup.data.schema import write_schema

    assert config.data.log is not None
    log = raw_log_files(config.data.log, **config.format_options)[1]
    why = {
        one.name: f"left out: importance {one.importance.loss:.5f} ± {2 * one.importance.error:.5f}"
        for one in found.columns
        if not one.is_kept
    }
    write_schema(path, log, shown(config.data.log), left_out=why)
