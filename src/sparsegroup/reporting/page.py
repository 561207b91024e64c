"""Pages that need nothing else: the report of a run, and what all pages share."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

from sparsegroup.reporting.charts import run_charts, score_charts
from sparsegroup.reporting.formatting import (
    NONE,
    count,
    duration,
    exact,
    metric,
    per_second,
    percent,
    short,
    size,
    target_words,
    titles_of,
)
from sparsegroup.reporting.run_record import (
    AnyMetrics,
    ClassMetrics,
    HistoryPoint,
    LargestFeature,
    Metrics,
    NumberMetrics,
    RankMetrics,
    Summary,
    TaskMetrics,
    field_rows,
)
from sparsegroup.settings.names import model_title, optimizer_title


def page_environment(*packages: str) -> Environment:
    """Jinja's environment for pages whose templates are in packages; they extend `page.html.jinja` of this package.

    Its filters are the functions of `formatting`, and `width`.

    Args:
        packages: Names of packages that hold templates, such as "sparsegroup.serving".
    """
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package, ".") for package in (*packages, "sparsegroup.reporting")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update({f.__name__: f for f in (count, duration, per_second, percent, size, metric, width)})
    return environment


@dataclass(frozen=True)
class Tile:
    """A key figure: what it is, its value, and what it means."""

    label: str
    value: str
    note: str


def width(share: float) -> str:
    """The width of a bar, in CSS; what is not 0 is seen."""
    return f"max(1px, {100 * share:.2f}%)" if share > 0 else "0px"


def render_report(config: Mapping[str, Mapping[str, Any]], history: Sequence[HistoryPoint], summary: Summary) -> str:
    """The run as an HTML page: key figures with the baseline's, what is wrong, charts along the pass and of the test
    set, live rows per field, the largest features, settings and versions.

    The page loads nothing, holds no script, and is the same for the same arguments.

    Args:
        config: Section → setting → value, such as `{"model": {"name": "dcn"}, "optimizer": {"name": "adam", "l21":
            1e-4, "penalty": "lasso"}}`. Those four, where present, make the headline.
        history: Points along the pass, in order; may be empty.
        summary: The run's result. Without a test set, the figures of the last point replace it.
    """
    test = summary.test
    environment = page_environment()
    environment.filters.update(feature=_feature_name)
    return environment.get_template("run.html.jinja").render(
        headline=run_title(config),
        verdict=_verdict(config, summary),
        started=_moment(summary.started),
        summary=summary,
        tiles=_tiles(history, summary),
        figures=score_charts(summary.curves, summary.baseline_curves, Metrics if test is None else type(test)),
        charts=run_charts(history, getattr(test, "auc", None)),
        titles=titles_of(history[0].metrics) if history else {},
        is_binary=not history or isinstance(history[0].metrics, Metrics),
        progressive=_PROGRESSIVE[type(history[0].metrics) if history else Metrics],
        history=history,
        fields=field_rows(summary.fields),
        settings={section: list(_flat(settings)) for section, settings in config.items()},
        about=_about(summary),
    )


def run_title(config: Mapping[str, Mapping[str, Any]]) -> str:
    """Such as "DCNv2 with Group Adagrad, target rate 0.1"; settings that the config lacks are left out."""
    model, optimizer = config.get("model", {}), config.get("optimizer", {})
    parts = [model_title(str(model["name"]))] if "name" in model else []
    if "name" in optimizer:
        parts.append(optimizer_title(str(optimizer["name"])))
    size = target_words(optimizer.get("target_rate"), optimizer.get("target_bytes"))
    if size is None and optimizer.get("l21") is not None:
        penalty = optimizer.get("penalty")
        if isinstance(penalty, Mapping):
            penalty = ", ".join(str(penalty[key]) if key == "name" else f"{key} = {penalty[key]}" for key in penalty)
        size = f"λ21 = {_setting(optimizer['l21'])}" + (f" ({penalty})" if penalty else "")
    return ", ".join(filter(None, (" with ".join(parts), size))) or "Training run"


def _verdict(config: Mapping[str, Mapping[str, Any]], summary: Summary) -> str:
    """How good the model is, which size it has, and how many warnings there are: two or three sentences."""
    sentences = [_quality(summary)]
    if summary.features_seen:
        live = f"{count(summary.live_rows)} of {count(summary.features_seen)} features are live"
        sentences.append(f"{live}, {percent(summary.feature_rate)}{_against_target(config, summary)}.")
    warned = len(summary.warnings)
    sentences.append("No warnings." if not warned else f"{warned} warning{'s' if warned > 1 else ''}:")
    return " ".join(sentences)


_PROGRESSIVE: Mapping[type[AnyMetrics], str] = {
    Metrics: "AUC, calibration, log loss and normalized entropy",
    NumberMetrics: "Losses and errors",
    RankMetrics: "Losses and other measures",
    ClassMetrics: "Accuracy, AUC, log loss and normalized entropy",
    TaskMetrics: "Losses",
}
"""Kind of metrics → what a report shows along the pass."""


def _quality(summary: Summary) -> str:
    test, baseline = summary.test, summary.baseline
    if test is None:
        return "No test rows: the figures are of training samples, each predicted before the model learned from it."
    if isinstance(test, NumberMetrics):
        return _quality_of_numbers(summary, test)
    if isinstance(test, RankMetrics):
        return _quality_of_order(summary, test)
    if isinstance(test, ClassMetrics):
        return _quality_of_classes(summary, test)
    if isinstance(test, TaskMetrics):
        return _quality_of_tasks(summary, test)
    assert baseline is None or isinstance(baseline, Metrics)
    if math.isnan(test.auc):
        return f"The log loss on {count(summary.test_rows)} test rows is {metric(test.log_loss)}; all have one label."
    auc, log_losses = metric(test.auc), []
    if baseline is not None:
        auc += f", {_compared(test.auc - baseline.auc)} the baseline's (logistic regression)"
        log_losses.append(f"{_compared(baseline.log_loss - test.log_loss)} the baseline's")
    if test.normalized_entropy > 0:
        mean = test.log_loss / test.normalized_entropy
        log_losses.append(f"{_compared(mean - test.log_loss)} that of always predicting the mean click rate")
    log_loss = ", ".join(filter(None, (metric(test.log_loss), " and ".join(log_losses))))
    return f"On {count(summary.test_rows)} test rows the AUC is {auc}, and the log loss {log_loss}."


def _quality_of_tasks(summary: Summary, test: TaskMetrics) -> str:
    losses = [metric(test.loss)]
    if isinstance(summary.baseline, TaskMetrics):
        losses.append(f"{_compared(summary.baseline.loss - test.loss)} the baseline's (linear models)")
    if test.relative_loss > 0:
        losses.append(f"{percent(test.relative_loss)} of that of the best constant predictions")
    return f"On {count(summary.test_rows)} test rows the weighted loss of the tasks is {', '.join(losses)}."


def _quality_of_classes(summary: Summary, test: ClassMetrics) -> str:
    right, log_losses = f"right in {percent(test.accuracy)}", [metric(test.log_loss)]
    if isinstance(summary.baseline, ClassMetrics):
        right += f", the baseline's (linear models) in {percent(summary.baseline.accuracy)}"
    if test.normalized_entropy > 0:
        log_losses.append(f"{percent(test.normalized_entropy)} of that of always predicting the classes' frequencies")
    return (
        f"On {count(summary.test_rows)} test rows the likeliest class is {right}, and the log loss is "
        f"{', '.join(log_losses)}."
    )


def _quality_of_numbers(summary: Summary, test: NumberMetrics) -> str:
    errors, losses = metric(test.rmse), [metric(test.loss)]
    if isinstance(summary.baseline, NumberMetrics):
        errors += f", {_compared(summary.baseline.rmse - test.rmse)} the baseline's (a linear model)"
    if test.relative_loss > 0:
        losses.append(f"{percent(test.relative_loss)} of that of the best constant prediction")
    return (
        f"On {count(summary.test_rows)} test rows the root of the mean squared error is {errors}, and the loss "
        f"{', '.join(losses)}."
    )


def _quality_of_order(summary: Summary, test: RankMetrics) -> str:
    if math.isnan(test.ndcg):
        return f"No group of the {count(summary.test_rows)} test rows has different labels."
    ndcg = metric(test.ndcg)
    if isinstance(summary.baseline, RankMetrics):
        ndcg += f", {_compared(test.ndcg - summary.baseline.ndcg)} the baseline's (a linear model of the labels)"
    return (
        f"On {count(summary.test_rows)} test rows the NDCG@10 within groups is {ndcg}, and {percent(test.gauc)} of the "
        "pairs of rows with different labels are in order."
    )


def _compared(gain: float) -> str:
    return f"{metric(abs(gain))} {'better' if gain >= 0 else 'worse'} than"


def _against_target(config: Mapping[str, Mapping[str, Any]], summary: Summary) -> str:
    optimizer = config.get("optimizer", {})
    rate, least = optimizer.get("target_rate"), optimizer.get("least_features") or 0
    words = target_words(rate, optimizer.get("target_bytes"))
    if words is None:
        return ""
    if rate is None:
        return f"; {words}"
    if abs(summary.feature_rate - rate) <= 0.02 * rate:
        return f": the {words} is met"
    if summary.feature_rate > rate and summary.live_rows <= least:
        return f": the {words} would be fewer than the {least} that are kept in any case"
    return f": the {words} is not met"


def _tiles(history: Sequence[HistoryPoint], summary: Summary) -> list[Tile]:
    metrics = summary.test or (history[-1].metrics if history else None)
    of, note = "Progressive ", "no test set, no point recorded"
    if summary.test is not None:
        of, note = "Test ", f"on {count(summary.test_rows)} test rows"
    elif history:
        before = history[-2].samples if len(history) > 1 else 0
        is_known = len(history) > 1 or summary.continued_from is None  # a continued run had trained before
        note = "of the last window" + (f", {count(history[-1].samples - before)} samples" if is_known else "")

    def quality(label: str, name: str, note: str) -> Tile:
        if summary.test is not None and summary.baseline is not None:
            note = f"baseline {metric(getattr(summary.baseline, name))}; {note}"
        return Tile(of + label, metric(getattr(metrics, name, math.nan)), note)

    if isinstance(metrics, RankMetrics):
        measures = [
            quality("NDCG@10", "ndcg", note),
            quality("grouped AUC", "gauc", "share of a group's pairs in order; 0.5 is chance"),
            quality("relative loss", "relative_loss", "1 is equal scores"),
        ]
    elif isinstance(metrics, NumberMetrics):
        measures = [
            quality("RMSE", "rmse", note),
            quality("MAE", "mae", "mean absolute error"),
            quality("relative loss", "relative_loss", "1 is the best constant prediction"),
            quality("calibration", "calibration", "sum of predictions over sum of labels; 1 is best"),
        ]
    elif isinstance(metrics, TaskMetrics):
        measures = [
            quality("loss", "loss", note),
            quality("relative loss", "relative_loss", "1 is the best constant predictions"),
        ]
        others = summary.baseline.tasks if isinstance(summary.baseline, TaskMetrics) else {}
        for task, own in metrics.tasks.items():
            name = "auc" if isinstance(own, Metrics) else "relative_loss"
            other = f"baseline {metric(getattr(others[task], name))}; " if task in others else ""
            loss = f"{other}relative loss {metric(own.relative_loss)}, calibration {metric(own.calibration)}"
            measures.append(Tile(f"{of}{titles_of(own)[name]}, {task}", metric(getattr(own, name)), loss))
    elif isinstance(metrics, ClassMetrics):
        measures = [
            quality("accuracy", "accuracy", note),
            quality("log loss", "log_loss", "nats per sample"),
            quality("normalized entropy", "normalized_entropy", "1 is predicting the classes' frequencies"),
            quality("AUC", "auc", "of each class against the others, on average"),
        ]
    else:
        measures = [
            quality("AUC", "auc", note),
            quality("log loss", "log_loss", "nats per sample"),
            quality("normalized entropy", "normalized_entropy", "1 is predicting the mean click rate"),
            quality("calibration", "calibration", "predicted over real clicks; 1 is best"),
        ]
    speed = summary.samples / summary.seconds if summary.seconds > 0 else math.nan
    live = f"{count(summary.live_rows)} live of {count(summary.features_seen)} seen"
    return [
        *measures,
        Tile("Feature rate", percent(summary.feature_rate), live),
        Tile("Table size", size(summary.table_bytes), "with index and optimizer state"),
        Tile("Samples", short(summary.samples), f"{count(summary.samples)} trained on"),
        Tile("Throughput", per_second(speed), f"{duration(summary.seconds)} of training"),
    ]


def _about(summary: Summary) -> dict[str, list[tuple[str, str]]]:
    """Heading → names and values: data, time, bad rows and versions."""
    best = "" if summary.best_epoch is None else f", the best of them {summary.best_epoch}"
    return {
        "Data and time": [
            ("log", summary.log),
            ("samples trained on", count(summary.samples)),
            ("epochs", f"{summary.epochs}{best}"),
            ("validation rows", count(summary.validation_rows) if summary.validation_rows else "none"),
            ("validation loss", metric(getattr(summary.validation, "loss", math.nan))),
            ("test rows", count(summary.test_rows) if summary.test_rows else "none"),
            ("started", _moment(summary.started)),
            ("training took", duration(summary.seconds)),
            ("continued from", summary.continued_from or NONE),
            ("rows evicted", count(summary.evicted_rows)),
            ("no room for a row", f"{count(summary.refused_rows)} times"),
        ],
        "Bad rows left out": [(reason, count(rows)) for reason, rows in summary.bad_rows.items()] or [("none", "0")],
        "Versions": list(summary.versions.items()),
    }


def _feature_name(feature: LargestFeature) -> str:
    """Its text, or its key where that is not known."""
    return f"key {feature.key}" if feature.value is None else feature.value or "(missing)"


def _moment(started: str) -> str:
    """2026-03-01T09:12:44+01:00 → "2026-03-01 09:12:44 +01:00"."""
    return re.sub(r"^(.{10})T(.{8})(?:\.\d+)?", r"\1 \2 ", started).strip()


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for name, value in section.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", _setting(value)


def _setting(value: object) -> str:
    if value is None or value == "" or (isinstance(value, float) and math.isnan(value)):
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return exact(value)
    if isinstance(value, Mapping | Sequence) and not isinstance(value, str):
        return ", ".join(_setting(item) for item in value) or NONE
    return str(value)
