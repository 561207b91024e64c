"""The baseline beside a run: FTRL-Proximal row by row, what becomes of bags and numbers, and its place in a trainer."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from following import Each
from plain_settings import plain
from sparsegroup import GroupFTRL
from sparsegroup.data import MemoryLog, SyntheticConfig, synthetic_log
from sparsegroup.data.batches import Bags, Batch, rebatched
from sparsegroup.data.schema import LogSchema
from sparsegroup.training import Trainer
from sparsegroup.training.baseline import BaselineCallback, LinearBaseline, predicting
from sparsegroup.training.metrics import evaluate

NAN = math.nan


def batch_of_keys(rows: int, seed: int = 0) -> Batch:
    """Two fields, a list, and weights; the first field says something."""
    generator = torch.Generator().manual_seed(seed)
    keys = torch.randint(0, 12, (rows, 2), generator=generator) + torch.tensor([0, 1 << 56])
    sizes = torch.randint(1, 4, (rows,), generator=generator)
    offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    # Distinct values within a row: the published loop knows no feature that comes twice.
    bags = torch.cat([torch.randperm(9, generator=generator)[:size] for size in sizes.tolist()]) + (2 << 56)
    labels = (torch.rand(rows, generator=generator) < 0.2 + 0.05 * (keys[:, 0] % 12)).float()
    weights = torch.rand(rows, generator=generator) * 2
    return Batch(keys, torch.empty(rows, 0), labels, torch.arange(rows), weights, (Bags(bags, offsets),))


def numbers_batch(numbers: torch.Tensor, labels: torch.Tensor) -> Batch:
    return Batch(torch.empty(len(labels), 0, dtype=torch.int64), numbers, labels, torch.arange(len(labels)))


def test_it_is_group_ftrl_row_by_row() -> None:
    batch = batch_of_keys(300)
    assert LinearBaseline().learn(batch[:0]).shape == (0,)
    logits = LinearBaseline().learn(batch)
    # Column 0 is the bias, then each field's values.
    x = torch.zeros(300, 1 + 12 + 12 + 9, dtype=torch.float64)
    x[:, 0] = 1
    for row in range(300):
        x[row, 1 + batch.keys[row, 0]] = 1
        x[row, 13 + batch.keys[row, 1] - (1 << 56)] = 1
        bag = batch.bags[0][row : row + 1].keys
        x[row, 25 + bag - (2 << 56)] = 1
    weight = torch.zeros(x.shape[1], dtype=torch.float64, requires_grad=True)
    # Each weight is a group of its own, so that one that no row has touched stays untouched.
    optimizer = GroupFTRL([weight], lr=2 / 3, beta=0.3, initial_accumulator_value=0.0, groups="all")
    expected = []
    for row in range(300):
        optimizer.zero_grad()
        logit = x[row] @ weight
        expected.append(float(logit.detach()))
        loss = binary_cross_entropy_with_logits(logit, batch.labels[row].double(), reduction="sum")
        (loss * batch.weights[row].double()).backward()
        optimizer.step()
    torch.testing.assert_close(logits.double(), torch.tensor(expected, dtype=torch.float64), rtol=1e-3, atol=1e-4)
    assert float(logits.abs().max()) > 0.5


def test_rows_are_predicted_before_they_are_learnt_from_however_they_are_cut_and_from_its_state() -> None:
    batch = batch_of_keys(200)
    numbers = torch.randn(200, 2, generator=torch.Generator().manual_seed(0))
    batch = replace(batch, numbers=numbers)
    whole, cut = LinearBaseline(), LinearBaseline()
    logits = whole.learn(batch)
    pieces = []
    for piece in rebatched(iter([batch]), 7):
        resumed = LinearBaseline()
        resumed.load_state_dict(cut.state_dict())  # first of one that has learnt nothing
        pieces.append(resumed.learn(piece))
        cut = resumed
    assert logits[0] == 0
    assert torch.equal(logits, torch.cat(pieces))
    assert all(torch.equal(cut.state_dict()[name], part) for name, part in whole.state_dict().items())
    assert len(whole.state_dict()["places"]) < 300
    flipped = replace(batch, labels=torch.cat([batch.labels[:-1], 1 - batch.labels[-1:]]))
    assert torch.equal(LinearBaseline().learn(flipped), logits)
    before = whole.predict(batch)
    assert torch.equal(whole.predict(batch), before)
    assert not torch.equal(before, logits)


@pytest.mark.parametrize(("scale", "shift"), [(1e-6, 0.0), (1.0, 50.0), (1e6, 0.0)])
def test_a_number_may_act_in_any_shape_and_have_any_unit(scale: float, shift: float) -> None:
    values = torch.randn(20_000, 1, generator=torch.Generator().manual_seed(0))
    labels = ((values.abs() > 0.7).float()).flatten()  # not monotone
    baseline = LinearBaseline()
    batch = numbers_batch((values + shift) * scale, labels)
    baseline.learn(batch)
    assert evaluate(labels.numpy(), torch.sigmoid(baseline.predict(batch).double()).numpy()).auc > 0.97


@pytest.mark.parametrize("missing", [NAN, math.inf, -math.inf])
def test_a_missing_number_has_a_weight_and_leaves_the_others_as_they_are(missing: float) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(5_000, 1, generator=generator)
    labels = torch.zeros(5_000)
    values[::5], labels[::5] = missing, 1.0
    baseline = LinearBaseline()
    baseline.learn(numbers_batch(values, labels))
    logits = baseline.predict(numbers_batch(torch.tensor([[missing], [0.5]]), torch.zeros(2)))
    assert logits[0] > 2
    assert logits[1] < -2
    count, mean, squares = baseline.state_dict()["moments"][0].tolist()
    present = values[values.isfinite()].double()
    assert (count, mean) == (4_000, pytest.approx(float(present.mean())))
    assert squares == pytest.approx(float((present - present.mean()).square().sum()))


@pytest.fixture(scope="module")
def log() -> MemoryLog:
    return synthetic_log(SyntheticConfig(rows=12_000, cardinalities=(10, 100, 2_000)), seed=4)


def trainer_on(log: MemoryLog, *callbacks: BaselineCallback) -> Trainer:
    model, optimizer = plain(dim=4, lr=1e-2, l21=1e-3).build(log)
    return Trainer(model.embedding, model.network, optimizer, window=2_000, callbacks=callbacks)


def test_a_trainer_records_it_beside_the_model_and_trains_to_the_same(log: MemoryLog) -> None:
    trained = BaselineCallback()
    beside, alone = trainer_on(log, trained), trainer_on(log)
    history = beside.fit(log.batches(0, 9_000, 500))
    bare = alone.fit(log.batches(0, 9_000, 500))
    assert [replace(point, baseline_auc=None, baseline_log_loss=None) for point in history] == bare
    baseline, window = LinearBaseline(), []
    for number, batch in enumerate(log.batches(0, 9_000, 500), start=1):
        window.append((batch, baseline.learn(batch)))
        if number in (4, 8, 12, 16, 18):
            labels = np.concatenate([part.labels for part, _ in window])
            expected = evaluate(labels, torch.sigmoid(torch.cat([logits for _, logits in window]).double()).numpy())
            point = history[(number - 1) // 4]
            assert (point.baseline_auc, point.baseline_log_loss) == (expected.auc, expected.log_loss)
            window = []
    logits: list[torch.Tensor] = []
    found = beside.predictions(predicting(trained.model, log.batches(9_000, 12_000, 4_096), logits))
    assert found.metrics() == alone.evaluate(log.batches(9_000, 12_000, 4_096))
    assert evaluate(found.labels(), torch.sigmoid(torch.cat(logits).double()).numpy()).auc > 0.57


@pytest.mark.parametrize(("cut", "joins_later"), [(5, False), (8, True)])
def test_a_trainer_goes_on_with_it_in_the_middle_of_a_window(log: MemoryLog, cut: int, joins_later: bool) -> None:
    whole, first = (trainer_on(log, BaselineCallback()) for _ in range(2))
    second = trainer_on(log, *([] if joins_later else [BaselineCallback()]))
    whole.fit(log.batches(0, 6_000, 500))
    states = []
    first.callbacks.append(Each(rest=lambda at: states.append(at.state_dict()) if at.samples == 500 * cut else None))
    first.fit(log.batches(0, 6_000, 500))
    second.network.load_state_dict(first.network.state_dict())
    second.load_state_dict(states[0])
    if joins_later:  # as a session lets it
        second.callbacks.append(BaselineCallback())
    second.fit(log.batches(500 * cut, 6_000, 500))
    second.fit([])  # which restores nothing again
    assert [point.baseline_auc for point in second.history] == [point.baseline_auc for point in whole.history]
    ours, theirs = (one.state_dict()["ranks"][0]["callbacks"]["BaselineCallback"] for one in (second, whole))
    assert all(torch.equal(part, theirs[name]) for name, part in ours.items())
    states[0]["ranks"][0]["callbacks"]["BaselineCallback"]["logits"] = "many"
    with pytest.raises(ValueError, match=r"callbacks\.BaselineCallback: logits: "):
        whole.load_state_dict(states[0])


def test_one_that_joins_in_the_middle_of_a_window_begins_with_the_next(log: MemoryLog) -> None:
    alone, later = trainer_on(log), trainer_on(log, BaselineCallback())
    alone.callbacks.append(Each(rest=lambda at: at.stop() if at.samples == 2_500 else None))
    alone.fit(log.batches(0, 6_000, 500))
    later.load_state_dict(alone.state_dict())
    last, following = later.fit(log.batches(2_500, 6_000, 500))[-2:]
    assert (last.baseline_auc, following.baseline_auc is None) == (None, False)


def test_several_go_on_as_their_mean_by_what_each_knows_of_a_feature() -> None:
    def state(*weights: list[float]) -> dict[str, torch.Tensor]:
        places = torch.arange(len(weights), dtype=torch.int32)
        return {"places": places, "weights": torch.tensor(weights), "moments": torch.zeros(0, 3).double()}

    baseline = LinearBaseline()
    baseline.load_state_dict(state([1.0, 3.0]), state([5.0, 1.0], [2.0, 1.0]))
    assert baseline.state_dict()["weights"].tolist() == [[2.0, 4.0], [2.0, 1.0]]


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("places", torch.tensor([1 << 23], dtype=torch.int32), "places: has some that are not within 0 to"),
        ("weights", torch.full((1, 2), NAN), "weights: has numbers that are not finite"),
        ("weights", torch.zeros(2, 2), r"weights: .*\[1, 2\].* are expected"),
        ("moments", torch.zeros(2, 3, dtype=torch.float64), "moments: are not of 1 numbers"),
    ],
)
def test_a_wrong_state_and_other_columns_are_refused_and_change_nothing(part: str, value: object, message: str) -> None:
    baseline, batch = (
        LinearBaseline(columns=LogSchema((), (), ("price",))),
        numbers_batch(torch.ones(3, 1), torch.ones(3)),
    )
    baseline.learn(batch)
    before = baseline.predict(batch)
    places = torch.zeros(1, dtype=torch.int32)
    state = {"places": places, "weights": torch.ones(1, 2), "moments": torch.zeros(1, 3).double(), part: value}
    with pytest.raises(ValueError, match=message):
        baseline.load_state_dict(state)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the baseline has learnt from rows of 1 numbers, got 2"):
        baseline.learn(numbers_batch(torch.zeros(3, 2), torch.ones(3)))
    assert torch.equal(baseline.predict(batch), before)
