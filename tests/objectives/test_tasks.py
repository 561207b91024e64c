"""Several tasks: each as if it were alone, labels that are missing, ESMM, and what a table keeps of them."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from sparsegroup.data import ClickLogError, FrameLog, LogOptionError, PreparedLog, open_log, prepare
from sparsegroup.data.kinds import Label
from sparsegroup.data.schema import write_schema
from sparsegroup.objectives import LOGISTIC, Esmm, Objective, Poisson, Squared, Tasks
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.training import Callback, Config, Session
from sparsegroup.training.baseline import baseline_for
from sparsegroup.training.metrics import measure
from sparsegroup.training.session import RunStoppedError

DRAW = np.random.default_rng(0)
N = 200
LABELS = np.stack([DRAW.integers(2, size=N), DRAW.normal(4, 2, N), DRAW.poisson(2, N)], axis=1).astype(float)
LABELS[DRAW.random((N, 3)) < 0.3] = np.nan
LABELS[np.isnan(LABELS).all(1), 0] = 1
SCORES, WEIGHTS = DRAW.normal(size=(N, 3)), DRAW.random(N) + 0.1
ALONE = (LOGISTIC, Squared(scale=2.0), Poisson())
THREE = Tasks(objectives=ALONE, weights=(1, 0.5, 2), names=("click", "price", "count"))


def test_a_loss_is_the_sum_of_the_tasks_over_the_rows_that_have_their_label() -> None:
    found = THREE.mean_loss(*map(torch.tensor, (SCORES, LABELS, WEIGHTS)))
    expected = 0.0
    for task, (one, weight) in enumerate(zip(ALONE, THREE.weights, strict=True)):
        for score, label, of_row in zip(SCORES[:, task], LABELS[:, task], WEIGHTS, strict=True):
            if not np.isnan(label):
                expected += weight * of_row * float(one.losses(torch.tensor(score), torch.tensor(label))) / N
    assert float(found) == pytest.approx(expected)
    assert THREE.are_labels(torch.tensor([[np.nan] * 3, [1, np.nan, 2], [2, 0, 0], [0, 0, -1]])).tolist() == [
        False, True, False, False
    ]  # fmt: skip


@pytest.mark.parametrize("objective", [THREE, Esmm(weights=(1, 2), names=("click", "buy"))], ids=lambda one: one.name)
def test_the_gradient_is_the_derivative_of_the_loss(objective: Tasks) -> None:
    labels = LABELS if objective is THREE else np.where(np.isnan(LABELS[:, :2]), np.nan, LABELS[:, :2] > 3)
    scores = torch.tensor(3 * SCORES[:, : objective.outputs], requires_grad=True)
    (expected,) = torch.autograd.grad(objective.losses(scores, torch.tensor(labels)).sum(), scores)
    found = objective.gradient(scores.detach(), torch.tensor(labels))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert (found[np.isnan(labels[:, 0]), 0] == 0).all() or objective is not THREE


def test_a_task_alone_is_the_objective_of_one_label() -> None:
    labels, scores = torch.tensor(LABELS), torch.tensor(SCORES)
    for task, one in enumerate(ALONE):
        known = ~labels[:, task].isnan()
        tasks = Tasks(objectives=(one, one), weights=(1, 1e-30))
        both = torch.stack([labels[known, task]] * 2, dim=1)
        found = tasks.losses(torch.stack([scores[known, task]] * 2, dim=1), both)
        torch.testing.assert_close(found, one.losses(scores[known, task], labels[known, task]))
        y, s, w = LABELS[known.numpy(), task], SCORES[known.numpy(), task], WEIGHTS[known.numpy()]
        assert THREE.shift(SCORES, LABELS, WEIGHTS)[task] == pytest.approx(one.shift(s, y, w))
        assert THREE.start(LABELS, WEIGHTS)[task] == pytest.approx(one.start(y, w))
        predictions = THREE.predict(scores).numpy()
        own = measure(one, y, predictions[known.numpy(), task], w.astype(np.float32))
        assert measure(THREE, LABELS, predictions, WEIGHTS.astype(np.float32)).tasks[THREE.names[task]] == own


def test_the_metrics_add_up_by_weights_in_the_units_of_losses() -> None:
    found = measure(THREE, LABELS, THREE.predict(torch.tensor(SCORES)).numpy())
    losses = [found.tasks[name].loss / unit for name, unit in (("click", 1), ("price", 2 * 2.0**2), ("count", 2))]
    assert found.loss == pytest.approx(losses[0] + 0.5 * losses[1] + 2 * losses[2])
    best = np.broadcast_to(THREE.best_constant(LABELS, np.ones(N)), (N, 3))
    assert measure(THREE, LABELS, best).relative_loss == pytest.approx(1, abs=1e-3)
    nothing = np.full((N, 3), np.nan)
    nothing[:, 0] = LABELS[:, 2] > 1  # a task without a label counts nothing
    assert measure(THREE, nothing, best).loss == measure(LOGISTIC, nothing[:, 0], best[:, 0]).loss


def test_esmm_is_the_product_of_two_probabilities_over_all_rows() -> None:
    esmm, scores = Esmm(names=("click", "buy")), torch.tensor(2 * SCORES[:, :2])
    click = DRAW.integers(2, size=N).astype(float)
    labels = np.stack([click, click * DRAW.integers(2, size=N)], axis=1)
    p, q = torch.sigmoid(scores).unbind(1)
    predicted = esmm.predict(scores)
    torch.testing.assert_close(predicted, torch.stack([p, p * q], dim=1))
    expected = torch.nn.functional.binary_cross_entropy(predicted, torch.tensor(labels), reduction="none").sum(1)
    torch.testing.assert_close(esmm.losses(scores, torch.tensor(labels)), expected)
    shifted = esmm.predict(scores + torch.tensor(esmm.shift(scores.numpy(), labels, 1000 * WEIGHTS)))
    np.testing.assert_allclose(WEIGHTS @ shifted.numpy(), WEIGHTS @ labels, rtol=1e-3)
    np.testing.assert_allclose(esmm.best_constant(labels, 1000 * WEIGHTS), WEIGHTS @ labels / WEIGHTS.sum(), rtol=1e-3)
    far = torch.tensor([[200.0, 200.0], [-200.0, -200.0], [200.0, -200.0]])
    for given in (torch.zeros(3, 2), torch.ones(3, 2)):
        assert esmm.losses(far, given).isfinite().all()
        assert esmm.gradient(far, given).isfinite().all()
    torch.testing.assert_close(esmm.predict(esmm.of_parts(torch.logit(predicted))), predicted)
    with pytest.raises(ValueError, match="esmm is of two labels, 0 or 1, such as click,buy"):
        Esmm(objectives=("logistic", "squared"))


def test_a_row_of_the_table_lives_as_long_as_any_task_needs_it() -> None:
    draw = np.random.default_rng(5)
    values = draw.integers(8, size=(3_000, 3))
    labels = np.stack([values[:, 0] < 4, 2.0 * values[:, 1] + draw.normal(size=3_000)], axis=1)
    frame = pl.DataFrame({name: [f"{name}{one}" for one in values[:, place]] for place, name in enumerate("abc")})
    live = {}
    for tasks in (("click",), ("price",), ("click", "price")):
        columns = [("click", "price").index(name) for name in tasks]
        given = labels[:, columns] if len(tasks) > 1 else labels[:, columns[0]]
        log = FrameLog(frame, given, tasks=tasks if len(tasks) > 1 else ())
        objective = {"click": "logistic", "price": "squared"}
        config = Config.of(model="mlp", dim=4, objective=",".join(objective[name] for name in tasks))
        size = {"target_rate": len(tasks) / 3, "least_features": 0, "fallback": False}
        config = config.replace(optimizer="adagrad", lr=0.1, batch_size=64, epochs=4, **size).resolved_for(log)
        model, optimizer = config.build(log)
        plan = config.training.plan(log.train_rows)
        config.trainer(model, optimizer, plan).fit_plan(plan, log)
        live[tasks] = [model.embedding.field_counts()[field].live for field in range(3)]
    assert live["click",] == [8, 0, 0]
    assert live["price",] == [0, 8, 0]
    assert live["click", "price"] == [8, 8, 0]


class StopAt(Callback):
    def between_batches(self, trainer: object) -> None:
        if trainer.progress.steps == 9:  # type: ignore[attr-defined]
            trainer.stop()  # type: ignore[attr-defined]


def test_a_stopped_run_resumes_to_the_same_figures(tmp_path: Path) -> None:
    frame = pl.DataFrame({"a": [f"a{row % 7}" for row in range(N)], "b": DRAW.normal(size=N)})
    log = FrameLog(frame, LABELS, tasks=("click", "price", "count"))
    config = Config.of(
        objective="logistic,squared,poisson", task_weights="1,.5,2", model="mlp", batch_size=16, epochs=2
    )
    config = config.replace(windows=5, checkpoint_steps=4, seed=1)
    whole = Session.begin(tmp_path / "whole", config, log).train()
    with pytest.raises(RunStoppedError):
        Session.begin(tmp_path / "stopped", config, log).train(callbacks=[StopAt()])
    resumed = Session.resume(tmp_path / "stopped", log).train()
    assert resumed.samples == whole.samples == 2 * N
    histories = [
        pl.read_ndjson(tmp_path / name / "metrics.jsonl").drop("seconds", "samples_per_s")
        for name in ("whole", "stopped")
    ]
    assert histories[0].equals(histories[1])
    assert histories[0]["baseline_loss"].is_not_null().any()


def actions(folder: Path, rows: int = 60) -> Path:
    """Clicks, purchases and prices; a price is known of purchases alone."""
    buys = [row % 6 == 0 for row in range(rows)]
    frame = {
        "user": [f"u{row % 5}" for row in range(rows)],
        "click": [int(row % 3 == 0) for row in range(rows)],
        "buy": [int(buy) for buy in buys],
        "price": [2.5 * row if buy else None for row, buy in enumerate(buys)],
    }
    pl.DataFrame(frame).write_csv(folder / "actions.csv")
    return folder / "actions.csv"


def labels_of(log: object) -> np.ndarray:
    return np.concatenate([batch.labels.numpy() for batch in log.batches(0, len(log), 16)])  # type: ignore[attr-defined]


def test_labels_of_several_columns(tmp_path: Path) -> None:
    path = actions(tmp_path)
    options = {"label": "click,buy,price", "labels": ("binary", "binary", "numbers")}
    log = open_log(path, **options)
    assert (log.tasks, log.fields, log.binary) == (("click", "buy", "price"), ("user",), False)
    expected = pl.read_csv(path).select("click", "buy", "price").cast(pl.Float32).fill_null(np.nan).to_numpy()
    np.testing.assert_array_equal(labels_of(log), expected)
    prepare([path], tmp_path / "prepared", **options)
    again = PreparedLog(tmp_path / "prepared")
    assert again.tasks == log.tasks
    np.testing.assert_array_equal(labels_of(again), expected)
    write_schema(tmp_path / "schema.yaml", log.format, "it")
    from_schema = open_log(path, schema=tmp_path / "schema.yaml", labels=options["labels"])
    np.testing.assert_array_equal(labels_of(from_schema), expected)
    assert open_log(path, label=["click", "price>=20"], labels="binary").tasks == ("click", "price>=20")
    assert len({open_log(path, label=one).identity["format"] for one in ("click", "click,buy", "buy,click")}) == 3
    lines = path.read_text().splitlines()
    for line, reason in (
        ("u1,,,", "no task has a label: 'no click, buy, price'"),
        ("u1,1,2,", "label 'buy' must be 0 or 1"),
    ):
        path.write_text("\n".join([*lines[:4], line, *lines[5:]]) + "\n")
        with pytest.raises(ClickLogError, match=f"csv:5: {reason}"):
            open_log(path, **options)
    for wrong, message in (
        ({"label": "click,buy", "labels": ("binary",) * 3}, "the 2 labels click, buy take 0 and 1 or numbers"),
        ({"label": "click,buy", "negatives_kept": 0.5}, "`negatives_kept` is for labels 0 and 1; these are of several"),
        ({"label": "click,click"}, "`label` names one twice"),
    ):
        with pytest.raises(LogOptionError, match=message):
            open_log(path, **wrong)
    with pytest.raises(ClickLogError, match="no label column 'sold'"):
        open_log(path, label="click,sold")


def test_a_comma_may_be_in_a_column_or_in_a_value() -> None:
    columns = ["a", "b", "a,b", "city"]
    for given, expected in (
        ("a,b", ["a,b"]), ("a, city", ["a", "city"]), ("a>=2,city==x", ["a>=2", "city==x"]),
        ("city==Paris, France", ["city==Paris, France"]),
    ):  # fmt: skip
        assert [str(one) for one in Label.several(given, columns)] == expected


def test_objectives_weights_and_labels_have_to_go_together() -> None:
    frame = pl.DataFrame({"a": ["x", "y"] * 20})
    one, two = FrameLog(frame, [0, 1] * 20), FrameLog(frame, [[0, 1], [1, np.nan]] * 20, tasks=("click", "buy"))
    for settings, log, message in (
        ({"objective": "logistic,squared"}, one, "has one label, and 0: logistic, 1: squared is for the tasks 0, 1"),
        ({"task_weights": (1, 2)}, one, "has one label, and logistic is for one label; task_weights are for several"),
        ({"task_weights": (1, 2, 3)}, two, "2 tasks need as many weights, got 3"),
        ({"objective": "logistic,squared,squared"}, two, "2 tasks need as many objectives, got 3"),
        ({"objective": "softmax"}, two, "objectives of one output each"),
    ):
        with pytest.raises(SettingsError, match=message):
            Config.of(**settings).build(log)
    assert len(baseline_for(THREE).state_dict()["models"]) == 3
    restored = Objective.of(Config.of(objective="logistic,poisson").as_dict()["training"]["objective"])
    assert restored == Tasks(objectives=("logistic", "poisson"))
