"""The report of a run: figures in words, charts, settings; a page that loads nothing."""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from html_page import Page
from over import over
from sparsegroup.reporting.charts import path_svg
from sparsegroup.reporting.formatting import count, duration, metric, per_second, percent, short, size
from sparsegroup.reporting.page import render_report
from sparsegroup.reporting.run_record import (
    GainPoint,
    HistoryPoint,
    LargestFeature,
    ReliabilityBin,
    ScoreCurves,
    Summary,
)
from sparsegroup.table import FieldCount
from sparsegroup.training.metrics import Metrics

NAN = math.nan
CONFIG: dict[str, Any] = {
    "data": {"log": "criteo-week", "batch_size": 4096, "on_bad_row": "skip", "exclude": ["id", "ip"], "label": None},
    "model": {"name": "dcn", "dim": 8, "cross_layers": 3, "mlp": [400, 400, 400]},
    "optimizer": {"name": "adam", "lr": 1e-3, "l1": 0.0, "l21": 1e-5, "l2": 0.0, "norm": "s", "penalty": "lasso"},
    "training": {"passes": 1, "seed": 7, "threads": 16, "admission": {"after": 2, "evict_zero": True}},
}


SIZES = np.random.default_rng(1).permutation(np.geomspace(3, 10_131_227, 26).astype(int)).tolist()
FIELDS = {f"C{i}": FieldCount(seen, round(seen**0.9), round(seen**0.8)) for i, seen in enumerate(SIZES, 1)}
SEEN, LIVE = 22_419_075, 1_053_470


def point_at(share: float) -> HistoryPoint:
    """A point of a training with 39M samples of a large click log: AUC up, feature rate down."""
    seen, live = round(SEEN * share), round(LIVE * share * (2 - share))
    normalized_entropy = 0.79 + 0.11 * math.exp(-6 * share)
    return HistoryPoint(
        samples=round(39_291_954 * share),
        auc=0.793 - 0.093 * math.exp(-5 * share),
        log_loss=0.569 * normalized_entropy,
        normalized_entropy=normalized_entropy,
        calibration=1 + 0.11 * math.exp(-12 * share),
        feature_rate=live / seen,
        live_rows=live,
        features_seen=seen,
        table_bytes=round(6.1e9 * share),
        seconds=464.3 * share,
        samples_per_s=84_626.0,
    )


HISTORY = [point_at(window / 50) for window in range(1, 51)]
OF_LAST = ("samples", "seconds", "feature_rate", "live_rows", "features_seen", "table_bytes")
SUMMARY = Summary(
    log="criteo-week",
    test_rows=4_583_000,
    test=Metrics(0.79312, 0.44871, 0.78860, 1.00213),
    fields=FIELDS,
    started="2026-03-01T09:12:44+01:00",
    versions={"python": "3.11.7", "sparsegroup": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6"},
    continued_from="runs/criteo-monday",
    bad_rows={"label is neither 0 nor 1": 12_345, "too few columns": 7},
    **{name: getattr(HISTORY[-1], name) for name in OF_LAST},
)


def render(history: list[HistoryPoint], summary: Summary, config: Mapping[str, Any] = CONFIG) -> Page:
    return Page(render_report(config, history, summary))


def test_says_what_the_run_came_to() -> None:
    text = render(HISTORY, SUMMARY).text
    for expected in (
        "DCN with Group Adam, λ21 = 1e-5 (lasso)",
        "On 4,583,000 test rows the AUC is 0.7931, and the log loss 0.4487, 0.1203 better than that of always",
        "1,053,470 of 22,419,075 features are live, 4.70 %. No warnings.",
        "Test AUC 0.7931 on 4,583,000 test rows",
        "Test log loss 0.4487",
        "Test normalized entropy 0.7886",
        "Test calibration 1.0021",
        "Feature rate 4.70 % 1,053,470 live of 22,419,075 seen",
        "Table size 6.1 GB",
        "Samples 39.3M 39,291,954 trained on",
        "Throughput 84.6k/s 7 min 44 s of training",
        "2026-03-01 09:12:44 +01:00",
        "continued from runs/criteo-monday",
        "label is neither 0 nor 1 12,345",
        "torch 2.13.0",
        "mlp 400, 400, 400",
        "admission.evict_zero yes",
        "test set: 0.7931",
    ):
        assert expected in text


def test_shows_the_baseline_and_what_is_wrong_beside_the_model() -> None:
    bins = tuple(ReliabilityBin(0.05 * i + 0.02, 0.045 * i + 0.03, 0.1) for i in range(10))
    gains = tuple(GainPoint(share, share**0.5) for share in (0.01, 0.1, 0.5, 1.0))
    points = [replace(point, baseline_auc=point.auc - 0.02, baseline_log_loss=0.47) for point in HISTORY]
    full = replace(
        SUMMARY,
        baseline=Metrics(0.7712, 0.4622, 0.8123, 0.9871),
        curves=ScoreCurves(bins, gains),
        baseline_curves=ScoreCurves(bins[:7], gains),
        warnings=("The model loses to something.",),
        largest=(LargestFeature("site", 7, "<b>news</b>", 1.5), LargestFeature("user", 8, None, 1.25)),
    )
    page = render(points, full)
    for expected in (
        "The model loses to something.",
        "the AUC is 0.7931, 0.0219 better than the baseline's (logistic regression), and the log loss 0.4487, 0.0135",
        "1 warning: The model loses to something.",
        "Test AUC 0.7931 baseline 0.7712; on 4,583,000 test rows",
        "Test calibration 1.0021 baseline 0.9871;",
        f"last {points[-1].auc:.4f}, baseline {points[-1].auc - 0.02:.4f}",
        "Reliability 10 bins of about as many rows",
        "Gains lift at 10%: 3.16",
    ):
        assert expected in page.text
    assert ["site", "<b>news</b>", "1.5000"] in page.rows
    assert ["user", "key 8", "1.2500"] in page.rows
    assert page.tags.count("svg") == 10
    assert not [name for name, _ in page.attributes if name == "id"]  # drawings on one page cannot collide
    one_class = replace(full, curves=ScoreCurves(bins, ()), baseline_curves=None, baseline=None)
    assert render(HISTORY, one_class).tags.count("svg") == 9


def test_a_target_is_in_title_and_verdict_and_the_lag_behind_its_schedule_is_explained() -> None:
    config = {"model": {"name": "dcnv2"}, "optimizer": {"name": "adagrad", "penalty": "hard", "target_rate": 0.1}}
    rates = [(1.0, 0.9), (0.8, 0.5), (0.4, 0.2), (0.35, 0.105), (0.104, 0.104), (0.1, 0.1)]
    points = [
        replace(point, feature_rate=rate, scheduled_rate=scheduled, l21=0.001)
        for point, (rate, scheduled) in zip(HISTORY, rates, strict=False)
    ]
    text = render(points, replace(SUMMARY, feature_rate=0.1), config).text
    assert "DCNv2 with Group Adagrad, target rate 0.1 on criteo-week" in text
    assert "asked for" not in text
    assert "features are live, 10.00 %: the target rate 0.1 is met. No warnings." in text
    assert "features that have not appeared again since λ21 rose still count as live" in text
    assert f"The sweep of all rows by {points[4].samples:,} samples removed theirs: from 35.00 % to 10.40 %." in text
    followed = [replace(point, feature_rate=point.scheduled_rate) for point in points]  # type: ignore[arg-type]
    text = render(followed, replace(SUMMARY, feature_rate=0.2), config).text
    assert "still count as live" not in text
    assert "the target rate 0.1 is not met" in text
    few = {**config, "optimizer": {**config["optimizer"], "least_features": 256}}
    text = render([], replace(SUMMARY, feature_rate=0.5, live_rows=256, features_seen=512), few).text
    assert "the target rate 0.1 would be fewer than the 256 that are kept in any case" in text
    of_bytes = {**config, "optimizer": {"name": "adagrad", "target_bytes": 200_000_000}}
    assert (
        "features are live, 10.00 %; target size 200000000."
        in render([], replace(SUMMARY, feature_rate=0.1), of_bytes).text
    )


def test_is_small_loads_nothing_and_takes_the_pages_colours() -> None:
    html = render_report(CONFIG, HISTORY, SUMMARY)
    assert html == render_report(CONFIG, HISTORY, SUMMARY)
    assert len(html.encode()) < 500_000
    page = Page(html)
    assert not {"script", "link", "img", "iframe", "object", "embed", "base"} & set(page.tags)
    assert "@import" not in html
    links = [value for name, value in page.attributes if value and not name.startswith("xmlns")]
    assert not [value for value in links if re.search(r"https?:|^//|url\(", value)]
    assert set(re.findall(r"https?://[^\"<\s]*", html)) == {"http://www.w3.org/2000/svg"}
    assert page.tags.count("svg") == 8
    drawn = " ".join(value or "" for name, value in page.attributes if name == "style")
    assert re.findall(r"(?:stroke|fill): #\w+", drawn) == []
    assert {value for name, value in page.attributes if name in ("stroke", "fill")} == {"none", "currentColor"}
    for axis in ("samples trained on", "40M", "1.000 1.025 1.050 1.075"):  # whose ticks have as many decimals each
        assert axis in page.text


def test_values_are_escaped() -> None:
    evil = "<script>alert(1)</script>\"'&"
    config = {evil: {evil: evil}, "model": {"name": evil}, "optimizer": {"name": evil, "l21": evil, "penalty": evil}}
    named = dict.fromkeys(("log", "started", "continued_from"), evil)
    fields = {evil: FieldCount(3, 2, 1)}
    page = render(HISTORY, replace(SUMMARY, fields=fields, versions={evil: evil}, bad_rows={evil: 1}, **named), config)
    assert "script" not in page.tags
    assert [evil, "3", "2", "1", "33.33 %"] in page.rows
    assert page.text.count(evil) >= 8


def test_a_value_that_is_not_defined_is_a_dash_and_a_gap_leaves_lone_points_visible() -> None:
    nothing = {"auc": NAN, "log_loss": NAN, "normalized_entropy": NAN, "calibration": NAN}
    blank = [replace(point, **nothing) for point in HISTORY]  # type: ignore[arg-type]
    html = render_report(CONFIG, blank, replace(SUMMARY, test=Metrics(**nothing), feature_rate=NAN))
    page = Page(html)
    assert "Test AUC – " in page.text
    assert page.text.count("No point has a value.") == 4
    assert "nan" not in re.sub(r"<style>.*?</style>", "", html, flags=re.DOTALL).lower()
    gaps = [replace(point, auc=NAN) if index % 2 else point for index, point in enumerate(HISTORY)]
    assert render(gaps, SUMMARY).tags.count("circle") > render(HISTORY, SUMMARY).tags.count("circle") + 20


def test_without_a_test_set_shows_the_last_window() -> None:
    without = replace(SUMMARY, test=None, test_rows=0)
    text = render(HISTORY, without).text
    assert f"Progressive AUC {HISTORY[-1].auc:.4f} of the last window, 785,839 samples" in text
    assert "Test AUC" not in text
    assert "test rows none" in text
    page = render(HISTORY[:1], replace(without, continued_from=None))
    assert "of the last window, 785,839 samples" in page.text
    assert "1 point in numbers" in page.text
    assert page.tags.count("svg") == 8
    assert "of the last window Progressive log loss" in render(HISTORY[:1], without).text  # how many is not known


def test_empty_history_and_settings_by_section() -> None:
    page = render([], SUMMARY, {"model": {"name": "opnn"}, "training": {"lr": None, "a": {"b": 1e-4}, "empty": {}}})
    assert "No point was recorded." in page.text
    assert "svg" not in page.tags
    assert "OPNN on criteo-week" in page.text
    rows = [row for row in page.rows if row and row[0] in ("lr", "a.b", "empty")]
    assert rows == [["lr", "–"], ["a.b", "0.0001"], ["empty", "–"]]
    nothing = dict.fromkeys(("samples", "live_rows", "features_seen"), 0)
    bare = replace(SUMMARY, test=None, seconds=0.0, feature_rate=NAN, fields={}, **nothing)
    text = render([], bare, {}).text
    assert "Training run" in text
    assert text.count("AUC – ") == 1
    assert "Throughput – " in text


def test_fields_stand_in_order_of_features_seen() -> None:
    dead = [replace(point, live_rows=0, features_seen=0, feature_rate=NAN, table_bytes=0) for point in HISTORY]
    page = render(dead, replace(SUMMARY, fields={"site": FieldCount(0, 0, 0)}))
    assert ["site", "0", "0", "0", "–"] in page.rows
    rows = [row for row in render([], SUMMARY).rows if row and row[0] in FIELDS and len(row) == 5]
    ordered = sorted(FIELDS.items(), key=lambda field: -field[1].seen)
    assert rows == [
        [name, f"{of.seen:,}", f"{of.rows:,}", f"{of.live:,}", f"{100 * of.live / of.seen:.2f} %"]
        for name, of in ordered
    ]


@over(
    ("shown", "expected"),
    [
        (short(9_999), "9,999"),
        (percent(1e-6), "<0.01 %"),
        (percent(0.0), "0.00 %"),
        (duration(4.21), "4.2 s"),
        (duration(59.97), "1 min 00 s"),
        (duration(3599.6), "1 h 00 min"),
        *((show(NAN), "–") for show in (count, short, per_second, percent, size, metric, duration)),
    ],
)
def test_numbers_are_for_people(shown: str, expected: str) -> None:
    assert shown == expected


def test_the_path_of_sizes_is_a_picture_of_its_own() -> None:
    points = [(0.1, 0.72, 415_000), (0.01, 0.71, 41_000), (0.0, 0.5, 0)]
    svg = path_svg(points, all_features=0.7233, tolerance=0.001, begins=None, title="DCN on <clicks>")
    page = Page(svg)
    for shown in ("DCN on <clicks>", "all features: 0.7233", "0.7200", "415.0 kB", "0.7100", "41.0 kB", "10 %", "1 %"):
        assert shown in page.text
    assert "0.5000" not in page.text  # of rate 0, which a logarithmic axis does not have
    assert "no loss" not in page.text
    assert "no loss of more than 0.001 AUC down to 10 %" in path_svg(points, 0.7205, 0.001, 0.1, "DCN")
    assert path_svg(points[2:], 0.7233, 0.001, None, "DCN").startswith("<svg")
