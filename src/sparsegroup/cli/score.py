"""`sparsegroup predict`, `evaluate` and `explain`: a model scores the rows of a log; and `inspect`: a look into it."""

import logging
import sys
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from math import isinf, isnan
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.bar import Bar
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from sparsegroup.cli.app import UsageError, in_shell, starting
from sparsegroup.cli.options import (
    OF_THE_LOG,
    THREADS,
    Model,
    OverwriteFile,
    RawOrPrepared,
    Threads,
    check_new_file,
    log_settings,
    takes_settings,
)
from sparsegroup.cli.output import is_json, plain, progress, show, table, to_stdout
from sparsegroup.reporting.formatting import TITLES, count, measures_of, metric, percent
from sparsegroup.settings.declared import FORMAT

if TYPE_CHECKING:
    from sparsegroup.data import Log
    from sparsegroup.data.raw.files import LogPaths
    from sparsegroup.serving import TrainedModel
    from sparsegroup.serving.evaluation import EvaluationResult
    from sparsegroup.serving.explanation import ExplainedRow, LogExplanation
    from sparsegroup.serving.inspection_views import Section

_logger = logging.getLogger(__name__)

_READING = tuple(name for name in OF_THE_LOG if name not in ("test", "test_fraction", "test_from", "rows"))
"""How to read a raw log whose rows a model scores."""
_THE_MODELS = {name: {"show_default": "the model's"} for name in FORMAT}
"""How commands that score a log show the defaults of what tells its format."""
_SHOWN_SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
_STYLE: Mapping[str, Any] = {
    "box": None, "header_style": "dim", "title_justify": "left", "title_style": "bold", "pad_edge": False
}  # fmt: skip


@takes_settings(*_READING, **_THE_MODELS)
def predict_command(
    model: Model,
    log: RawOrPrepared,
    out: Annotated[
        Path | None,
        typer.Option(help="File to write: .csv, .csv.gz or .parquet.", show_default="CSV on standard output"),
    ] = None,
    overwrite: OverwriteFile = False,
    *,
    settings: Mapping[str, Any],
    threads: Threads = THREADS,
) -> None:
    """Score all rows of a log: row (its place in the log, from 0), probability and label.

    The log is read the way the training log was, unless options say otherwise.
    """
    with starting(threads):
        import numpy as np

        from sparsegroup.artifact.folder import write_atomically
        from sparsegroup.data.raw.files import is_same, short_name, shown
        from sparsegroup.training.metrics import undefined
        from sparsegroup.training.predictions import (
            SUFFIXES,
            Columns,
            PredictionWindow,
            UnseenValues,
            predicted_rows,
            write_csv,
            write_predictions,
        )

    suffix = None if out is None else next((suffix for suffix in SUFFIXES if out.name.endswith(suffix)), None)
    if out is not None and suffix is None:
        raise UsageError(f"--out must end with {', '.join(SUFFIXES)}, got {out.name!r}")
    if out is None and is_json():
        raise UsageError("--json wants --out: without it, stdout is for the predictions")
    if out is None and sys.stdout is None:
        raise UsageError("stdout is closed: give --out for the predictions")
    check_new_file(out, "--out", overwrite)
    trained, data = _open_whole(model, log, settings, threads)
    window, begin = PredictionWindow(trained.model.objective), perf_counter()
    unseen = UnseenValues(trained.model.embedding, trained.columns)
    is_hidden = out is None and sys.stdout.isatty()  # the rows themselves show how far it has come
    with nullcontext() if is_hidden else progress(f"scoring {short_name(log)}", "rows") as update:

        def parts() -> Iterator[Columns]:
            for part in predicted_rows(trained.model, data, window, unseen.add):
                yield part
                if update is not None:
                    update(window.samples, len(data), "")

        if out is not None and suffix is not None:
            write_atomically(out, lambda path: write_predictions(parts(), path, suffix))
        else:
            with to_stdout():
                write_csv(parts(), sys.stdout.buffer)
    seconds = perf_counter() - begin
    if warning := unseen.warning(shown(log)):
        _logger.warning(warning)
    labels = window.labels()
    has_labels = data.labelled and window.samples > 0 and np.nanmin(labels) < np.nanmax(labels)
    metrics = window.metrics() if has_labels else undefined(trained.model.objective)
    outcome = [f"{window.samples:,} rows, {window.samples / max(seconds, 1e-9):,.0f} rows/s"]
    if has_labels:
        left_out = {TITLES[name] for name in ("normalized_entropy", "loss")}
        shown_measures = {title: value for title, value in measures_of(metrics).items() if title not in left_out}
        outcome.append(", ".join(f"{title} {value:.4f}" for title, value in shown_measures.items()))
        if (own := trained.config.data.log) is not None and is_same(log, own):
            again = in_shell("evaluate", model, *log)
            outcome.append(f"the model was trained on rows of this log, so these figures flatter it: see {again}")
    if out is not None:
        outcome.append(f"written to {out}")
    _logger.info("; ".join(outcome))
    show(
        {
            "log": shown(log),
            "out": str(out),
            "rows": window.samples,
            "seconds": seconds,
            "unseen": dict(unseen.shares),
            **asdict(metrics),
        }
    )


@takes_settings(*_READING, **_THE_MODELS)
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
        from sparsegroup.cli.logs import reading_bar
        from sparsegroup.data.raw.files import shown
        from sparsegroup.serving.evaluation import evaluate_on, open_test_rows
        from sparsegroup.serving.opening import open_trained

    fields = by or []
    trained = open_trained(model)
    trained.check_rows()
    with reading_bar(log) as on_progress:
        test = open_test_rows(log, trained.config, threads, on_progress, log_settings(settings))
    _check_fits(test.log, trained, settings)
    found = evaluate_on(trained, test, user, fields, top)
    if found.warning:
        _logger.warning(found.warning)
    content = {"model": str(model), "log": log, **found.as_plain()}
    gains = [_gains(found)] if found.curves.gains else []
    values = (_values(found, name) for name in fields)
    show(content, f"{count(found.rows)} rows of {shown(log)}", _overall(found), *gains, *values)


def _overall(found: "EvaluationResult") -> Table:
    columns = {"model": (found.metrics, found.gauc)}
    if found.baseline is not None:
        columns["baseline"] = (found.baseline, found.baseline_gauc)
    rows = [
        (title, *(metric(measures_of(metrics)[title]) for metrics, _ in columns.values()))
        for title in measures_of(found.metrics)
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
    from sparsegroup.reporting.run_record import Metrics
    from sparsegroup.serving.evaluation import LEAST_ROWS

    title = f"\n{field}: calibration furthest from 1, of values with {LEAST_ROWS} rows or more"
    is_binary = isinstance(found.metrics, Metrics)
    columns = ("value", "rows", "positives", "calibration", "95 %", "AUC", "log loss")
    of_numbers = ("value", "rows", "labels' sum", "calibration", "95 %", "loss")
    made = table(*(columns if is_binary else of_numbers), title=title, **_STYLE)
    for one in found.by[field]:
        made.add_row(
            plain(found.values[field].get(one.key, f"key {one.key}") or "(missing)"),
            *(count(one.rows), count(one.positives), metric(one.calibration)),
            f"{one.low:.2f} to " + ("∞" if isinf(one.high) else f"{one.high:.2f}"),
            *([metric(one.auc)] if is_binary else []),
            metric(one.log_loss),
            style="yellow" if one.surely_off_by else None,
        )
    return made


@takes_settings(*_READING, **_THE_MODELS)
def explain_command(
    model: Model,
    log: RawOrPrepared,
    row: Annotated[
        list[str], typer.Option(metavar="N|N-M", help="Row, or rows, by their place in the log, from 0 (repeatable).")
    ],
    top: Annotated[int, typer.Option(min=1, help="Number of columns to show; --json has all.")] = 10,
    permutations: Annotated[
        int, typer.Option(min=4, help="Orders of the columns to draw, an even number; up to 10 columns need none.")
    ] = 32,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the orders.")] = 0,
    *,
    settings: Mapping[str, Any],
    threads: Threads = THREADS,
) -> None:
    """Say why a model predicts what it does for rows of a log: what each column contributes to the logit.

    The contributions add up to the difference from a row of which nothing is known: values that training has never
    seen, and mean numbers. They are Shapley values.
    """
    rows = [_places(text) for text in row]
    with starting(threads):
        from sparsegroup.data.raw.files import shown
        from sparsegroup.serving.explanation import explain_rows

    trained, data = _open_whole(model, log, settings, threads)
    found = explain_rows(trained, data, rows, permutations=permutations, seed=seed)
    tables = (_contributions(one, found, top) for one in found.rows)
    show({"model": str(model), "log": shown(log), "seed": seed, **found.as_plain()}, *tables)


def _places(text: str) -> range:
    """The places that `--row` names."""
    first, _, last = text.partition("-")
    if not (first.isdecimal() and (last or first).isdecimal() and int(first) <= int(last or first)):
        raise UsageError(f"--row takes a place in the log from 0, or two, such as 7 or 0-4, got {text!r}")
    return range(int(first), int(last or first) + 1)


def _contributions(one: "ExplainedRow", found: "LogExplanation", top: int) -> Table:
    """A row's columns of the largest contributions, and the sum of the others."""
    what, label = found.objective.prediction, "" if one.label is None else f", label {one.label:g}"
    title = f"\nrow {one.row}: {what} {metric(found.prediction(one.logit))}{label}"
    made = table("column", "value", "contribution", "±", left=2, title=title, **_STYLE)
    start = f"{what} {metric(found.prediction(found.reference))}"
    made.add_row("reference row", start, f"{found.reference:+.3f}", "", style="dim")
    for part in one.contributions[:top]:
        text = part.value if isinstance(part.value, str) else "" if isnan(part.value) else f"{part.value:g}"
        error = f"{part.error:.3f}" if found.permutations else "exact"
        made.add_row(plain(part.column), plain(text) or "(missing)", f"{part.contribution:+.3f}", error)
    if others := one.contributions[top:]:
        made.add_row(f"{len(others)} others", "", f"{sum(part.contribution for part in others):+.3f}", "")
    made.add_row("logit", "", f"{one.logit:+.3f}", "", style="dim")
    return made


def _open_whole(
    model: Path, log: "LogPaths", settings: Mapping[str, Any], threads: int
) -> tuple["TrainedModel", "Log"]:
    """A model of finite rows, and all rows of a log that fits it."""
    from sparsegroup.cli.logs import reading_bar
    from sparsegroup.data import open_log
    from sparsegroup.serving.opening import open_trained

    trained = open_trained(model)
    trained.check_rows()
    read = log_settings(settings)
    how: Mapping[str, Any] = {**read.reading_options, **read.format_options}
    with reading_bar(log) as on_progress:
        like = trained.config.format_options
        data = open_log(log, like=like, whole=True, threads=threads, on_progress=on_progress, **how)
    _check_fits(data, trained, settings)
    trained.config.check_labels(data)
    return trained, data


def _check_fits(log: "Log", trained: "TrainedModel", settings: Mapping[str, Any]) -> None:
    """Raise an error if the log lacks columns of the model, or the one that `--weight` names."""
    from sparsegroup.data.open import NO_WEIGHT

    weight = settings.get("weight")
    if weight not in (None, NO_WEIGHT) and not log.weighted:
        raise UsageError(f"--weight: {log.name} has no column {weight!r}")
    trained.columns.check_fits(log.schema, log.name)


def inspect_command(
    model: Model,
    top: Annotated[int, typer.Option(min=0, help="Number of features to list, those of the largest norms.")] = 10,
    html: Annotated[Path | None, typer.Option(help="Also write the same to an HTML page, with charts.")] = None,
    overwrite: OverwriteFile = False,
) -> None:
    """Look into a trained model: sizes, feature rate per field, norms, the largest features, and what λ did."""
    with starting():
        from sparsegroup.artifact.folder import write_atomically
        from sparsegroup.serving.inspection import inspect
        from sparsegroup.serving.inspection_views import lead_of, render_inspection, sections, title_of
        from sparsegroup.serving.opening import open_trained
        from sparsegroup.training.run_folder import RunFolder, find_run

    check_new_file(html, "--html", overwrite)
    if (checkpoint := RunFolder(find_run(model)).unfinished_checkpoint) is not None:
        again = in_shell("train", "--resume", model)
        _logger.warning(f"{model}: a run that did not finish; this is its last checkpoint; {again} completes the run")
        model = checkpoint
    found = inspect(open_trained(model), top)
    if html is not None:
        page = render_inspection(found)
        write_atomically(html, lambda path: path.write_text(page, encoding="utf-8"))
    parts: list[RenderableType] = [Text(title_of(found), style="bold"), Text(lead_of(found), style="dim")]
    for section in sections(found).values():
        parts += [Text(f"\n{section.title}", style="bold"), Padding(_section_table(section), (0, 0, 0, 1))]
        if section.note:
            parts.append(Padding(Text(section.note, style="dim"), (0, 0, 0, 2)))
    show(found.as_plain(), Group(*parts), *([] if html is None else [f"written to {html}"]))


def _section_table(section: "Section") -> Table:
    """A section as a table, in which the sums of all fields are emphasized."""
    table = Table(box=None, show_header=bool(section.columns), header_style="dim", pad_edge=False, padding=(0, 2, 0, 1))
    for number, name in enumerate(section.columns):
        is_text = number < section.texts
        table.add_column(name, justify="left" if is_text else "right", overflow="fold", no_wrap=not is_text)
    if section.bars:
        table.add_column("", no_wrap=True)
    ends = [max(share, 1 / 160) if share > 0 else 0 for share in section.bars]  # at least an eighth of a character
    bars = [[Bar(1, 0, end, width=20, color="yellow")] for end in ends] or [[]] * len(section.rows)
    for row, bar in zip(section.rows, bars, strict=True):
        table.add_row(*map(Text, row), *bar, style="bold" if row[0] == "all fields" else None)
    return table
