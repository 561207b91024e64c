"""`sparsegroup evaluate`."""

from collections.abc import Mapping
from math import isinf
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from sparsegroup.cli.app import starting
from sparsegroup.cli.options import OF_SCORED_LOG, THE_MODELS, THREADS, Model, Threads, log_settings, takes_settings
from sparsegroup.cli.output import plain, show, table
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
_STYLE: Mapping[str, Any] = {
    "box": None, "header_style": "dim", "title_justify": "left", "title_style": "bold", "pad_edge": False
}  # fmt: skip


@takes_settings(*OF_SCORED_LOG, **THE_MODELS)
def evaluate_command(
    model: Model,
    log: Annotated[str, typer.Argument(metavar="LOG", help="A raw log with labels, or a folder written by `prepare`.")],
    user: Annotated[
        str | None, typer.Option(metavar="FIELD", help="Also report gAUC, the mean AUC within this field's values.")
    ] = None,
    by: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FIELD", help="List the values of this field whose calibration is most certainly off (repeatable)."
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
    with starting(threads):
        from sparsegroup.cli.logs import check_scored_log, reading_bar
        from sparsegroup.data.raw.files import shown
        from sparsegroup.serving.evaluation import evaluate_on, open_test_rows
        from sparsegroup.serving.opening import open_trained

    fields = by or []
    trained = open_trained(model)
    trained.check_rows()
    with reading_bar(log) as on_progress:
        test = open_test_rows(log, trained.config, threads, on_progress, log_settings(settings))
    check_scored_log(test.log, trained, settings)
    found = evaluate_on(trained, test, user, fields, top)
    content = {"model": str(model), "log": log, **found.as_plain()}
    gains = [_gains(found)] if found.curves.gains else []
    values = (_values(found, name) for name in fields)
    show(content, f"{count(found.rows)} rows of {shown(log)}", _overall(found), *gains, *values)


def _overall(found: "EvaluationResult") -> Table:
    columns = {"model": (found.metrics, found.gauc)}
    if found.baseline is not None:
        columns["baseline"] = (found.baseline, found.baseline_gauc)
    rows = [
        (name, *(metric(getattr(metrics, measure)) for metrics, _ in columns.values()))
        for name, measure in _MEASURES.items()
    ]
    if (gauc := found.gauc) is not None:
        name = f"gAUC by {found.user}, {count(gauc.users)} users of both classes, {percent(gauc.share)} of the rows"
        rows.append((name, *("" if own is None else metric(own.auc) for _, own in columns.values())))
    return table("", *columns, rows=rows, **_STYLE)


def _gains(found: "EvaluationResult") -> Table:
    rows = (
        (f"{point.share:.0%}", percent(point.captured), f"{point.captured / point.share:.2f}")
        for point in found.curves.gains
        if point.share in _SHOWN_SHARES
    )
    return table("highest predictions", "of all positives", "lift", rows=rows, title="\nGains", **_STYLE)


def _values(found: "EvaluationResult", field: str) -> Table:
    """Values of a field, in the order of how far they are surely off."""
    from sparsegroup.serving.evaluation import LEAST_ROWS

    title = f"\n{field}: calibration furthest from 1, of values with {LEAST_ROWS} rows or more"
    columns = ("value", "rows", "positives", "calibration", "95 %", "AUC", "log loss")
    made = table(*columns, title=title, **_STYLE)
    for one in found.by[field]:
        made.add_row(
            plain(found.values[field].get(one.key, f"key {one.key}") or "(missing)"),
            *(count(one.rows), count(one.positives), metric(one.calibration)),
            f"{one.low:.2f} to " + ("∞" if isinf(one.high) else f"{one.high:.2f}"),
            *(metric(one.auc), metric(one.log_loss)),
            style="yellow" if one.surely_off_by else None,
        )
    return made
