"""Ranking within groups: losses and metrics against double loops and scikit-learn."""

import math
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import ndcg_score

from over import over
from sparsegroup import HashEmbedding
from sparsegroup.data import FrameLog
from sparsegroup.estimator import Classifier, Regressor
from sparsegroup.models import MLP
from sparsegroup.objectives import LambdaRank, Objective, Pairwise, ranking
from sparsegroup.optim import GroupAdagrad
from sparsegroup.reporting.run_record import RankMetrics
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.training import Config, Trainer
from sparsegroup.training.metrics import grouped_auc, measure, ndcg_of
from sparsegroup.training.predictions import PredictionWindow, as_batch
from sparsegroup.training.trainer import Callback

DRAW = np.random.default_rng(0)
ROWS = 120
GROUPS, LABELS = DRAW.integers(-4, 5, ROWS), DRAW.integers(0, 4, ROWS).astype(float)
SCORES, WEIGHTS = DRAW.integers(0, 12, ROWS) / 4, DRAW.integers(0, 3, ROWS).astype(np.float32)
ROWS_OF = [np.flatnonzero(group == GROUPS) for group in np.unique(GROUPS)]
OBJECTIVES = [Pairwise(), LambdaRank(at=3)]


def slow_losses(objective: Pairwise, scores: np.ndarray, labels: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """The losses of rows, pair by pair."""
    found = np.zeros(len(scores))
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        place = {row: place for place, row in enumerate(rows[np.argsort(-scores[rows], kind="stable")])}

        def discount(row: int, place: dict[int, int] = place) -> float:
            return 1 / math.log2(place[row] + 2) if place[row] < objective.at else 0.0

        pairs = [(better, worse) for better in rows for worse in rows if labels[better] > labels[worse]]
        weights = [
            abs((2 ** labels[better] - 2 ** labels[worse]) * (discount(better) - discount(worse)))
            if isinstance(objective, LambdaRank)
            else 1.0
            for better, worse in pairs
        ]
        for (better, worse), weight in zip(pairs, weights, strict=True):
            loss = math.log1p(math.exp(scores[worse] - scores[better])) * weight / sum(weights) * len(rows) / 2
            found[[better, worse]] += loss
    return found


@pytest.mark.parametrize("portion", [1, 1 << 22])
@pytest.mark.parametrize("objective", OBJECTIVES, ids=str)
def test_losses_are_those_of_a_loop_over_pairs_and_gradients_their_differences(
    objective: Pairwise, portion: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranking, "_PORTION", portion)
    scores, labels, groups = (torch.from_numpy(one) for one in (DRAW.normal(size=ROWS), LABELS, GROUPS))
    losses = objective.losses(scores, labels, groups)
    np.testing.assert_allclose(losses, slow_losses(objective, scores.numpy(), LABELS, GROUPS), rtol=1e-12)
    gradient, step = objective.gradient(scores, labels, groups), 1e-6
    for row in range(0, ROWS, 17):  # so small a step changes no place
        up, down = scores.clone(), scores.clone()
        up[row] += step
        down[row] -= step
        rise = objective.losses(up, labels, groups).sum() - objective.losses(down, labels, groups).sum()
        assert gradient[row] == pytest.approx(float(rise) / (2 * step), rel=1e-4, abs=1e-7)
    weights = torch.from_numpy(WEIGHTS)
    weighted = objective.mean_loss(scores, labels, weights, groups)
    torch.testing.assert_close(weighted, (losses * weights).mean())
    torch.testing.assert_close(objective.mean_loss(scores, labels, None, groups, total=True), losses.sum())


@over("objective", OBJECTIVES)
def test_a_groups_level_makes_no_difference_and_rows_without_a_pair_have_no_loss(objective: Pairwise) -> None:
    scores, labels, groups = (torch.from_numpy(one) for one in (DRAW.normal(size=ROWS), LABELS, GROUPS))
    levels = torch.from_numpy(DRAW.normal(size=20) * 10)[groups]
    moved = objective.losses(scores + levels, labels, groups)
    torch.testing.assert_close(moved, objective.losses(scores, labels, groups))
    assert not torch.allclose(objective.losses(scores, labels), moved)  # as one group
    equal = objective.mean_loss(torch.zeros_like(scores), labels, None, groups)
    assert equal == pytest.approx(math.log(2))
    assert objective.shift(SCORES, LABELS, np.ones(ROWS)) == objective.start(LABELS, np.ones(ROWS)) == 0
    for labels, groups in (([], []), ([1.0], [0]), ([1.0, 0.0], [0, 1]), ([2.0, 2.0], [0, 0])):
        scores = torch.zeros(len(labels), requires_grad=True)
        loss = objective.mean_loss(scores, torch.tensor(labels), None, torch.tensor(groups).long(), total=True)
        loss.backward()
        assert scores.grad is not None
        assert (loss.item(), scores.grad.tolist()) == (0.0, [0.0] * len(labels))
    lone = torch.tensor([0, 0, *range(1, 9)])  # which must not make the losses of a pair NaN
    assert objective.losses(torch.zeros(10), torch.arange(10.0), lone).sum() == pytest.approx(2 * math.log(2))


def test_rows_of_a_large_group_are_paired_within_blocks() -> None:
    rows = ranking.PAIRED + 3
    numbers = ranking.numbered(torch.tensor([7] * rows + [-7] * 2))
    assert torch.bincount(numbers).tolist() == [2, ranking.PAIRED, 3]
    labels = torch.arange(rows + 2.0)
    pairs = sum(len(better) for better, _ in ranking.pairs_of(labels, numbers))
    assert pairs == 1 + ranking.PAIRED * (ranking.PAIRED - 1) // 2 + 3


def test_ndcg_is_that_of_scikit_learn_and_large_labels_stay_finite() -> None:
    for at in (1, 3, 10):
        expected = [ndcg_score([2 ** LABELS[of] - 1], [SCORES[of]], k=at) for of in ROWS_OF]
        np.testing.assert_allclose(ndcg_of(LABELS, SCORES, GROUPS, at), expected, rtol=1e-12)
    assert ndcg_of(LABELS * 1e4, SCORES, GROUPS).max() <= 1
    assert LambdaRank().deviance(LABELS * 1e4, SCORES, GROUPS).sum() > 0
    np.testing.assert_array_equal(ndcg_of(np.ones(4), np.arange(4.0), np.array([0, 0, 1, 1])), [np.nan, np.nan])


@over("objective", OBJECTIVES)
def test_metrics_are_means_over_groups_of_the_rows_that_count(objective: Pairwise) -> None:
    found = measure(objective, LABELS, SCORES, WEIGHTS, GROUPS)
    assert isinstance(found, RankMetrics)
    shares, sizes = [], []
    for of in ROWS_OF:
        y, s, w = (one[of] for one in (LABELS, SCORES, WEIGHTS.astype(float)))
        pairs = np.where(y[:, None] > y, w[:, None] * w, 0)
        won = (s[:, None] > s) + (s[:, None] == s) / 2
        shares.append((pairs * won).sum() / pairs.sum())
        sizes.append(w.sum())
    assert found.gauc == pytest.approx(np.average(shares, weights=sizes))
    binary, counts = (LABELS > 1).astype(float), WEIGHTS.astype(float)
    clicks = measure(objective, binary, SCORES, WEIGHTS, GROUPS)
    assert clicks.gauc == pytest.approx(grouped_auc(GROUPS, binary, SCORES, counts).auc)  # type: ignore[union-attr]
    used = WEIGHTS > 0
    assert found.ndcg == pytest.approx(np.mean(ndcg_of(LABELS[used], SCORES[used], GROUPS[used])))
    whole = measure(objective, LABELS, SCORES, None, GROUPS)
    assert whole.loss == pytest.approx(objective.deviance(LABELS, SCORES, GROUPS).mean())
    assert measure(objective, LABELS, np.zeros(ROWS), None, GROUPS).relative_loss == pytest.approx(1)
    assert math.isnan(measure(objective, np.ones(ROWS), SCORES, None, GROUPS).loss)


def test_a_resumed_window_has_its_groups() -> None:
    keys, states, groups = torch.from_numpy(DRAW.integers(5, size=(100, 2))), list[dict[str, Any]](), []

    class Noting(Callback):
        def between_batches(self, trainer: Trainer) -> None:
            states.append(trainer.state_dict())

        def on_window(self, trainer: Trainer, window: PredictionWindow) -> None:
            groups.append(window.groups())

    def trainer() -> Trainer:
        table, network = HashEmbedding(4), MLP(2, 4, hidden=(8,))
        optimizer = GroupAdagrad([*table.parameters(), *network.parameters()], lr=0.1)
        return Trainer(table, network, optimizer, objective=Pairwise(group=1), window=100, callbacks=[Noting()])

    stream = [as_batch((part, part[:, 0].float())) for part in keys.split(20)]
    trainer().fit(stream)
    resumed = trainer()
    resumed.load_state_dict(states[1])
    resumed.fit(stream[2:])
    assert [one.tolist() for one in groups] == [keys[:, 1].tolist()] * 2
    assert resumed.history[0].ndcg is not None
    del states[1]["ranks"][0]["window"]["groups"]
    with pytest.raises(ValueError, match=r"window\.groups: are missing, which pairwise"):
        trainer().load_state_dict(states[1])


def test_what_does_not_go_with_a_group_is_named() -> None:
    letters = list("abcde" * 40)
    columns = {"a": letters, "tags": [["p", letter] for letter in letters], "n": np.arange(200) / 7}
    lists = FrameLog(pl.DataFrame(columns), [0.5] * 200)
    for group, words in (("tags", "'tags' has several values"), ("n", "'n' is a number; a schema")):
        with pytest.raises(SettingsError, match=f"{words}.* the fields of one value are a$"):
            Config.of(objective="pairwise", group=group).build(lists)
    with pytest.raises(ValueError, match=r"at of the objective 'lambdarank' must be a whole number >= 1, got 2\.5"):
        Objective.of({"name": "lambdarank", "at": 2.5})
    assert Objective.of(LambdaRank(at=5).plain) == LambdaRank(at=5)
    for estimator in (Classifier("lr", objective="pairwise"), Regressor("lr", objective="lambdarank")):
        with pytest.raises(ValueError, match=r"learns an order of rows within groups, which .* do not have"):
            estimator.fit(pl.DataFrame({"a": letters}), [0, 1] * 100)
