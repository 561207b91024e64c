"""Classes: the softmax against autograd, the logistic objective and scikit-learn, and a model of each network."""

import numpy as np
import polars as pl
import pytest
import sklearn.metrics
import torch

from sparsegroup.data import FrameLog
from sparsegroup.objectives import LOGISTIC, Objective, Softmax
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.training import Config, network_step
from sparsegroup.training.baseline import LinearBaselines, baseline_for
from sparsegroup.training.metrics import measure
from sparsegroup.training.predictions import PredictionWindow

DRAW = np.random.default_rng(0)
LABELS, SCORES, WEIGHTS = DRAW.integers(4, size=300).astype(float), DRAW.normal(size=(300, 4)), DRAW.random(300) + 0.1
FOUR = Softmax(classes=4)


def test_classes_are_texts_or_their_number() -> None:
    assert FOUR == Softmax(classes=("0", "1", "2", "3")) == Objective.of(FOUR.plain)
    assert (str(FOUR), Objective.of("softmax").plain) == ("softmax (4 classes)", "softmax")
    assert FOUR.are_labels(torch.tensor([0.0, 3.0, 4.0, -1.0, 0.5])).tolist() == [True, True, False, False, False]
    with pytest.raises(ValueError, match="classes of the objective 'softmax' must be two or more different texts"):
        Softmax(classes=("a", "a"))
    with pytest.raises(ValueError, match="the classes of the objective softmax are not known"):
        Softmax().outputs  # noqa: B018


def test_the_gradient_is_the_derivative_of_the_loss() -> None:
    scores, labels, weights = torch.tensor(SCORES, requires_grad=True), torch.tensor(LABELS), torch.tensor(WEIGHTS)
    (expected,) = torch.autograd.grad(FOUR.losses(scores, labels).sum(), scores)
    torch.testing.assert_close(FOUR.gradient(scores.detach(), labels), expected, rtol=1e-12, atol=1e-12)
    (expected,) = torch.autograd.grad(FOUR.mean_loss(scores, labels, weights), scores)
    one, count = torch.tensor(1.0), torch.tensor(300.0)
    found = network_step.logit_gradient(FOUR, scores.detach(), labels, weights, one, count)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_two_classes_are_the_logistic_objective_of_the_difference() -> None:
    two, labels, scores = Softmax(classes=2), (LABELS > 1).astype(float), SCORES[:, :2]
    difference = scores[:, 1] - scores[:, 0]
    given = torch.tensor(scores), torch.tensor(labels)
    torch.testing.assert_close(two.losses(*given), LOGISTIC.losses(torch.tensor(difference), given[1]))
    torch.testing.assert_close(two.gradient(*given)[:, 1], LOGISTIC.gradient(torch.tensor(difference), given[1]))
    for found, expected in (
        (two.start(labels, WEIGHTS), LOGISTIC.start(labels, WEIGHTS)),
        (two.shift(scores, labels, WEIGHTS), LOGISTIC.shift(difference, labels, WEIGHTS)),
    ):
        assert found[1] - found[0] == pytest.approx(expected, abs=1e-6)


def test_a_shift_makes_the_classes_add_up_and_a_start_has_their_frequencies() -> None:
    shifted = torch.tensor(SCORES + FOUR.shift(SCORES, LABELS, 1000 * WEIGHTS))
    sums = np.bincount(LABELS.astype(int), WEIGHTS)
    np.testing.assert_allclose(WEIGHTS @ FOUR.predict(shifted).numpy(), sums, rtol=1e-3)
    constant = FOUR.predict(torch.tensor(FOUR.start(LABELS, 1000 * WEIGHTS)[None])).numpy()[0]
    np.testing.assert_allclose(constant, sums / sums.sum(), rtol=1e-3)
    np.testing.assert_allclose(FOUR.best_constant(LABELS, WEIGHTS), sums / sums.sum())
    assert np.isfinite(FOUR.start(np.zeros(3), np.ones(3))).all()  # of classes that are missing


def test_the_metrics_are_scikit_learns() -> None:
    p, weights = FOUR.predict(torch.tensor(SCORES)).numpy(), WEIGHTS.astype(np.float32)
    found, metrics = measure(FOUR, LABELS, p, weights), sklearn.metrics
    assert found.accuracy == pytest.approx(metrics.accuracy_score(LABELS, p.argmax(1), sample_weight=weights))
    assert found.loss == found.log_loss == pytest.approx(metrics.log_loss(LABELS, p, sample_weight=weights))
    aucs = [metrics.roc_auc_score(one == LABELS, p[:, one], sample_weight=weights) for one in range(4)]
    assert found.auc == pytest.approx(np.mean(aucs))
    assert measure(FOUR, LABELS, p).auc == pytest.approx(metrics.roc_auc_score(LABELS, p, multi_class="ovr"))
    constant = np.broadcast_to(FOUR.best_constant(LABELS, WEIGHTS), (300, 4))
    assert measure(FOUR, LABELS, constant, WEIGHTS).relative_loss == pytest.approx(1)
    present = LABELS < 2  # a class that no row has counts in no mean
    assert measure(FOUR, LABELS[present], p[present]).auc == pytest.approx(
        np.mean([metrics.roc_auc_score(LABELS[present] == one, p[present, one]) for one in (0, 1)])
    )


def classes_of_values(rows: int = 3_000) -> tuple[FrameLog, np.ndarray]:
    """A field of nine values, of which each has one of three classes nine times in ten, and a number."""
    draw = np.random.default_rng(1)
    values = draw.integers(9, size=rows)
    labels = np.where(draw.random(rows) < 0.9, values % 3, draw.integers(3, size=rows))
    frame = pl.DataFrame({"value": [f"v{value}" for value in values], "noise": draw.normal(size=rows)})
    return FrameLog(frame, labels, classes=("low", "middle", "high")), values % 3


def test_the_baseline_is_a_model_of_each_class_against_the_others() -> None:
    log, best = classes_of_values()
    baseline, window = baseline_for(Softmax(classes=3)), PredictionWindow(Softmax(classes=3))
    assert isinstance(baseline, LinearBaselines)
    for batch in log.batches(0, len(log), 500):
        baseline.learn(batch)
    again = baseline_for(Softmax(classes=3))
    again.load_state_dict(baseline.state_dict())
    (whole,) = log.batches(0, len(log), len(log))
    window.add(whole, again.predict(whole))
    torch.testing.assert_close(again.predict(whole), baseline.predict(whole), rtol=0, atol=0)
    assert (window.probabilities().argmax(1) == best).mean() > 0.99
    assert window.metrics().normalized_entropy < 0.65
    assert baseline_for(Softmax(classes=65)) is None
    with pytest.raises(ValueError, match="models: are 3, and not 4"):
        baseline_for(FOUR).load_state_dict(baseline.state_dict())


def test_objectives_and_labels_have_to_go_together() -> None:
    log, _ = classes_of_values(100)
    numbers = FrameLog(pl.DataFrame({"value": ["a", "b"] * 50}), np.arange(100) % 3)
    for objective, of, message in (
        ("softmax", numbers, "softmax takes classes, and the labels of a data frame are numbers; read them as classes"),
        ("squared", log, "squared .*takes no classes, and the labels of a data frame are low, middle, high"),
        ("logistic", log, "has labels that are classes, and logistic takes 0 and 1"),
        (Softmax(classes=2), log, "softmax .2 classes. takes the classes 0, 1, and the labels"),
    ):
        with pytest.raises(SettingsError, match=message):
            Config.of(objective=objective).build(of)
