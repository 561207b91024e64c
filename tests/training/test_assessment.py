"""What is said of a run at its end: the baseline beside it, curves, and warnings where something is wrong."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from cli_cases import click_log, many_features
from command import Run
from sparsegroup.data import FrameLog
from sparsegroup.data.batches import Batch
from sparsegroup.objectives import Pairwise
from sparsegroup.reporting.run_record import HistoryPoint
from sparsegroup.training import load_run
from sparsegroup.training.assessment.verdict import BLOCKS, Assessment, assess, by_block, metrics_lost
from sparsegroup.training.predictions import PredictionWindow
from sparsegroup.training.run_folder import RUN

POINT = HistoryPoint(100, 0.7, 0.5, 0.9, 1.0, 0.5, 10, 20, 1000, 1.0, 100.0)
"""Samples, AUC, log loss, normalized entropy, calibration …"""


def window_of(own: np.ndarray, labels: np.ndarray) -> PredictionWindow:
    """A window of logits."""
    window, label, none = PredictionWindow(), torch.from_numpy(labels.astype(np.float32)), torch.empty(len(labels), 0)
    window.add(Batch(none, none, label, torch.arange(len(labels))), torch.from_numpy(own))
    return window


def assessed(
    own: np.ndarray,
    baseline: np.ndarray | None,
    labels: np.ndarray,
    history: Sequence[HistoryPoint] = (),
    log: FrameLog | None = None,
) -> Assessment:
    """The assessment of a model's logits and of the baseline's."""
    beside = None if baseline is None else 1 / (1 + np.exp(-baseline))
    return assess(window_of(own, labels), history, log, beside)


def drawn(rows: int = 20_000, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """True logits, labels that they give, and the generator."""
    random = np.random.default_rng(seed)
    logits = random.normal(-1.5, 1.0, rows)
    return logits, (random.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.float64), random


def test_a_model_is_compared_with_the_baseline() -> None:
    logits, labels, random = drawn()
    found = assessed(logits, logits + random.normal(0, 1, len(logits)), labels, [POINT])
    assert found.warnings == ()
    assert found.test.auc > found.baseline.auc + 0.05
    assert found.curves is not None
    assert found.baseline_curves is not None
    assert assessed(logits, None, labels, []).baseline is None
    noisy = logits + random.normal(0, 0.7, len(logits))
    (warning,) = assessed(noisy, logits, labels, [POINT]).warnings
    assert "loses to the baseline, a logistic regression, in AUC, 0." in warning
    assert " and in log loss, 0." in warning
    assert "Try another learning rate" in warning
    # The same order with a worse scale: log loss alone.
    (stretched,) = assessed(0.6 * logits - 0.5, logits, labels, [POINT]).warnings
    assert "AUC" not in stretched
    assert "regression, in log loss, 0." in stretched
    for label in (0.0, 1.0):  # one class has no lead and no gains
        labels = np.full(50, label)
        found = assessed(np.zeros(50), np.ones(50), labels, [])
        assert found.curves.gains == ()
        assert metrics_lost(window_of(np.zeros(50), labels), np.full(50, 0.7)) == []


def test_an_order_is_compared_by_ndcg_in_blocks_of_whole_groups() -> None:
    random = np.random.default_rng(0)
    keys, labels = torch.arange(400).repeat(10)[:, None], random.integers(0, 4, 4_000).astype(np.float32)
    window, right = PredictionWindow(Pairwise()), labels + random.normal(0, 1, 4_000)
    numbers, times = torch.empty(4_000, 0), torch.arange(4_000)
    window.add(Batch(keys, numbers, torch.from_numpy(labels), times), torch.from_numpy(-right))
    assert [metrics.gauc for metrics in by_block(window, labels.astype(float))] == [1.0] * BLOCKS
    assert metrics_lost(window, right) == ["ndcg"]
    found = assess(window, [], None, right)
    assert any("loses to the baseline, a linear model, in NDCG@10, 0." in warning for warning in found.warnings)
    assert any("orders the test rows worse than equal scores would" in warning for warning in found.warnings)
    lone = replace(POINT, auc=None, calibration=None, ndcg=np.nan, gauc=np.nan, loss=np.nan, relative_loss=np.nan)
    (warning,) = assess(None, [lone, lone]).warnings
    assert warning.startswith("Nothing is learnt: in training, no group has rows of different labels")
    assert assess(None, [lone, replace(lone, ndcg=0.5)]).warnings == ()


def test_a_model_too_good_to_be_true_is_told_which_column_knows_the_label() -> None:
    _, labels, random = drawn(4_000)
    logits = 12 * labels - 6 + random.normal(0, 1, len(labels))
    frame = pl.DataFrame({"user": random.integers(50, size=4_000), "paid": labels * 3, "id": np.arange(4_000)})
    kinds = {"user": "category", "paid": "category", "id": "category"}
    (warning,) = assessed(logits, None, labels, [], FrameLog(frame, labels, columns=kinds)).warnings
    assert "The test AUC is 1.0000, too good to be true" in warning
    assert "training rows 'paid' 1.0000 alone reaches" in warning
    assert "(exclude)" in warning
    (vague,) = assessed(logits, None, labels, [], FrameLog(frame.drop("paid"), labels)).warnings
    assert "no single column alone" in vague
    logits, labels, _ = drawn(4_000)
    assert assessed(logits, None, labels, [], FrameLog(frame, labels, columns=kinds)).warnings == ()


@pytest.mark.parametrize("label", [0, 1])
def test_test_rows_of_one_label_are_warned_of(label: int) -> None:
    logits = drawn(2_000)[0]
    found = assessed(logits, logits, np.full(2_000, float(label)), [POINT])
    assert np.isnan(found.test.auc)
    assert any(f"have the label {label}" in warning for warning in found.warnings)


def test_noise_alone_seldom_makes_a_model_lose() -> None:
    losses = 0
    for seed in range(60):
        logits, labels, random = drawn(2_000, seed)
        own, theirs = (logits + random.normal(0, 0.3, len(logits)) for _ in range(2))
        losses += bool(metrics_lost(window_of(own, labels), 1 / (1 + np.exp(-theirs))))
    assert losses <= 8  # twice 2.5 % of 60, and then some


def test_worse_than_the_mean_and_whether_the_log_is_to_blame() -> None:
    logits, labels, _ = drawn()
    for own, baseline, why in (
        (-2 * logits - 4, logits, "lower learning rate"),
        (logits + 3, logits + 3, "So does the baseline"),
        (-6 * logits, logits + 3, "lower learning rate"),
    ):
        warnings = assessed(own, baseline, labels, [POINT]).warnings
        assert any("worse than their mean would: normalized entropy" in one and why in one for one in warnings)


@pytest.mark.parametrize(("shift", "word"), [(0.5, "high"), (-0.5, "low")])
def test_predictions_that_are_off_by_a_tenth_are_told(shift: float, word: str) -> None:
    logits, labels, _ = drawn()
    (warning,) = assessed(logits + shift, None, labels, [POINT]).warnings
    assert f"% too {word} on the test rows: calibration" in warning
    assert "(1.000), so the share of positives has moved: train on rows closer in time" in warning
    (warning,) = assessed(logits + shift, None, labels, [replace(POINT, calibration=1.3)]).warnings
    assert warning.endswith("Try a lower learning rate (lr).")
    assert assessed(logits + 0.05, None, labels, [POINT]).warnings == ()
    few = slice(0, 60)  # of which some 11 are positive: off by more than a tenth, but nobody can tell
    assert assessed((logits + shift / 3)[few], None, labels[few], [POINT]).warnings == ()


def test_a_run_that_diverges_is_told_that_alone() -> None:
    logits, labels, _ = drawn(1_000)
    bad = replace(POINT, log_loss=4.0, normalized_entropy=8.0)
    (warning,) = assessed(-9 * logits, logits, labels, [POINT, bad]).warnings
    assert warning.startswith("Training diverges: the log loss of the last windows is 4, 8 times")
    assert assess(None, [*[POINT] * 8, bad, bad]).warnings == (warning,)
    assert assess(None, [bad, *[POINT] * 8, replace(bad, normalized_entropy=float("nan"))]).warnings == ()
    calm = replace(POINT, log_loss=0.8, normalized_entropy=1.6)  # bad, and better than before
    assert assess(None, [bad, bad, calm]).warnings == ()


def test_a_run_has_its_baseline_in_what_it_prints_and_leaves_and_is_warned_of(tmp_path: Path, ok: Run) -> None:
    log = click_log(tmp_path / "log.csv")
    done = ok("train", log, "--out", "run", "--lr", 1e-7, "--selection", "never")
    summary = RUN.read(tmp_path / "run").summary
    assert summary.baseline.auc > 0.95
    assert summary.curves is not None
    assert summary.baseline_curves is not None
    assert f"(baseline {summary.baseline.auc:.4f})" in done.stdout
    assert any("loses to the baseline" in warning for warning in summary.warnings)
    assert all(warning in done.stderr for warning in summary.warnings)
    alone = ok("train", log, "--out", "alone", "--lr", 1e-7, "--no-baseline", "--selection", "never")
    assert "(baseline" not in alone.stdout
    bare = RUN.read(tmp_path / "alone").summary
    assert (bare.baseline, bare.baseline_curves) == (None, None)
    assert (bare.test, bare.curves) == (summary.test, summary.curves)
    for folder, is_there in (("run", True), ("alone", False)):
        points = [json.loads(line) for line in (tmp_path / folder / "metrics.jsonl").read_text().splitlines()]
        assert all((point["baseline_log_loss"] is not None) == is_there for point in points)


def test_a_continued_run_continues_its_baseline_with_the_same_bits(tmp_path: Path, ok: Run) -> None:
    log = many_features(tmp_path / "log.csv")
    options = ("--model", "lr", "--batch-size", 100, "--shuffle-buffer", 0, "--set", "training.windows=4")
    ok("train", log, "--out", "whole", *options)
    lines = log.read_text().splitlines(keepends=True)
    for name, part in (("first", lines[:1201]), ("second", lines[:1] + lines[1201:])):
        (tmp_path / f"{name}.csv").write_text("".join(part))
    ok("train", "first.csv", "--out", "day1", "--test-fraction", 0, *options)
    ok("train", "second.csv", "--continue", "day1", "--out", "day2", "--test-fraction", 300 / 1_800)
    later, once = (load_run(tmp_path / name).baseline for name in ("day2", "whole"))
    assert all(torch.equal(part, once.state_dict()[name]) for name, part in later.state_dict().items())
