"""What `sparsegroup evaluate` does."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from sparsegroup.cli.output import show
from sparsegroup.cli.progress import reading_bar
from sparsegroup.cli.run_settings import check_weight, log_settings
from sparsegroup.data.raw.files import short_name, shown
from sparsegroup.reporting.formatting import count, metric, percent
from sparsegroup.reporting.run_record import Metrics
from sparsegroup.serving.evaluation import (
    LEAST_ROWS,
    EvaluationResult,
    evaluate_on,
    interval_text,
    open_test_rows,
)
from sparsegroup.serving.opening import check_rows, open_trained

_SHOWN_SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
_MEASURES = {
    "AUC": "auc",
    "log loss": "log_loss",
    "norm. entropy": "normalized_entropy",
    "calibration": "calibration",
}


def evaluate_run(
    model: Path, log: str, user: str | None, by: Sequence[str], top: int, settings: Mapping[str, Any], threads: int
) -> None:
    """Score a log and print how good that is; the arguments are those of the command."""
    trained = open_trained(model)
    check_rows(trained.path, trained.model.rows)
    read = log_settings(settings)
    with reading_bar(short_name(log)) as on_progress:
        test = open_test_rows(log, trained.config, threads, on_progress, read)
    check_weight(settings.get("weight"), test.log)
    trained.columns.check_fits(test.log.schema, test.log.name)
    found = evaluate_on(trained, test, user, by, top)
    tables = [_overall(found), *([_gains(found)] if found.curves.gains else []), *(_values(found, name) for name in by)]
    content = {"model": str(model), "log": log, **found.as_plain()}
    show(content, f"{count(found.rows)} rows of {shown(log)}", *tables)


def _table(*columns: str, title: str | None = None) -> Table:
    table = Table(box=None, header_style="dim", title=title, title_justify="left", title_style="bold", pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    return table


def _overall(found: EvaluationResult) -> Table:
    beside = found.baseline
    table = _table("", "model", *([] if beside is None else ["baseline"]))

    def add(name: str, own: float, theirs: float | None) -> None:
        table.add_row(name, metric(own), *([] if theirs is None else [metric(theirs)]))

    for name, attribute in _MEASURES.items():
        add(name, getattr(found.metrics, attribute), _of(beside, attribute))
    if found.gauc is not None:
        gauc = found.gauc
        name = f"gAUC by {found.user}, {count(gauc.users)} users of both classes, {percent(gauc.share)} of the rows"
        add(name, gauc.auc, None if found.baseline_gauc is None else found.baseline_gauc.auc)
    return table


def _of(metrics: Metrics | None, attribute: str) -> float | None:
    return None if metrics is None else float(getattr(metrics, attribute))


def _gains(found: EvaluationResult) -> Table:
    table = _table("highest predictions", "of all positives", "lift", title="\nGains")
    for point in found.curves.gains:
        if point.share in _SHOWN_SHARES:
            table.add_row(f"{point.share:.0%}", percent(point.captured), f"{point.captured / point.share:.2f}")
    return table


def _values(found: EvaluationResult, field: str) -> Table:
    """Values of a field, in the order of how far they are surely off."""
    title = f"\n{field}: calibration furthest from 1, of values with {LEAST_ROWS} rows or more"
    table = _table("value", "rows", "positives", "calibration", "95 %", "AUC", "log loss", title=title)
    for one in found.by[field]:
        table.add_row(
            Text(found.values[field].get(one.key, f"key {one.key}") or "(missing)"),
            count(one.rows),
            count(one.positives),
            metric(one.calibration),
            interval_text(one),
            metric(one.auc),
            metric(one.log_loss),
            style="yellow" if one.surely_off_by else None,
        )
    return table
