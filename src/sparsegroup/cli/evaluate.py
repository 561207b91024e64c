"""`sparsegroup evaluate`."""

from collections.abc import Mapping
from math import isinf
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from sparsegroup.cli.app import THREADS, Threads, starting, use_threads
from sparsegroup.cli.options import OF_SCORED_LOG, THE_MODELS, Model, takes_settings
from sparsegroup.cli.output import show
from sparsegroup.reporting.formatting import count, metric, percent

if TYPE_CHECKING:
    from sparsegroup.serving.evaluation import EvaluationResult

_SHOWN_SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
_MEASURES = {
    "AUC": "auc",
    "log loss": "log_loss",
    "norm. entropy": "normalized_entropy",
    "calibration": "calibration",
}


@takes_settings(*OF_SCORED_LOG, **THE_MODELS)
def evaluate_command(
    model: Model,
    log: Annotated[
        str,
        typer.Argument(
            metavar="LOG", help="A raw log with labels, or a folder written by `prepare`.", show_default=False
        ),
    ],
    user: Annotated[
        str | None, typer.Option(metavar="FIELD", help="Also report gAUC, the mean AUC within this field's values.")
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD",
            help="List the values of this field whose calibration is most certainly off (repeatable).",
            show_default=False,
        ),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="Number of values to list for each field.")] = 10,
    *,
    settings: Mapping[str, Any],
    threads: Threads = THREADS,
) -> None:
    """Compare a model's predictions with a log's labels: AUC, calibration, gains, by user and by value of a field.

    For the model's own log or a prepared one, the test rows are used, if there are any; for any other log, all rows.
    """
    with starting():
        from sparsegroup.cli.progress import reading_bar
        from sparsegroup.cli.run_settings import check_weight, log_settings
        from sparsegroup.data.raw.files import short_name, shown
        from sparsegroup.serving.evaluation import evaluate_on, open_test_rows
        from sparsegroup.serving.opening import open_trained

    use_threads(threads)
    fields = by or []
    trained = open_trained(model)
    trained.check_rows()
    read = log_settings(settings)
    with reading_bar(short_name(log)) as on_progress:
        test = open_test_rows(log, trained.config, threads, on_progress, read)
    check_weight(settings.get("weight"), test.log)
    trained.columns.check_fits(test.log.schema, test.log.name)
    found = evaluate_on(trained, test, user, fields, top)
    gains = [_gains(found)] if found.curves.gains else []
    content = {"model": str(model), "log": log, **found.as_plain()}
    title = f"{count(found.rows)} rows of {shown(log)}"
    show(content, title, _overall(found), *gains, *(_values(found, name) for name in fields))


def _table(*columns: str, title: str | None = None) -> Table:
    table = Table(box=None, header_style="dim", title=title, title_justify="left", title_style="bold", pad_edge=False)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", overflow="fold")
    return table


def _overall(found: "EvaluationResult") -> Table:
    of_baseline = found.baseline
    rows = [
        (name, getattr(found.metrics, measure), None if of_baseline is None else getattr(of_baseline, measure))
        for name, measure in _MEASURES.items()
    ]
    if (gauc := found.gauc) is not None:
        name = f"gAUC by {found.user}, {count(gauc.users)} users of both classes, {percent(gauc.share)} of the rows"
        rows.append((name, gauc.auc, None if found.baseline_gauc is None else found.baseline_gauc.auc))
    table = _table("", "model", *([] if of_baseline is None else ["baseline"]))
    for name, own, theirs in rows:
        table.add_row(name, metric(own), *([] if theirs is None else [metric(theirs)]))
    return table


def _gains(found: "EvaluationResult") -> Table:
    table = _table("highest predictions", "of all positives", "lift", title="\nGains")
    for point in found.curves.gains:
        if point.share in _SHOWN_SHARES:
            table.add_row(f"{point.share:.0%}", percent(point.captured), f"{point.captured / point.share:.2f}")
    return table


def _values(found: "EvaluationResult", field: str) -> Table:
    """Values of a field, in the order of how far they are surely off."""
    from sparsegroup.serving.evaluation import LEAST_ROWS

    title = f"\n{field}: calibration furthest from 1, of values with {LEAST_ROWS} rows or more"
    table = _table("value", "rows", "positives", "calibration", "95 %", "AUC", "log loss", title=title)
    for one in found.by[field]:
        table.add_row(
            Text(found.values[field].get(one.key, f"key {one.key}") or "(missing)"),
            count(one.rows),
            count(one.positives),
            metric(one.calibration),
            f"{one.low:.2f} to " + ("∞" if isinf(one.high) else f"{one.high:.2f}"),
            metric(one.auc),
            metric(one.log_loss),
            style="yellow" if one.surely_off_by else None,
        )
    return table
