"""A model that is worse than the served one is not published."""

import pytest
import torch

from sparsegroup.data.batches import Batch
from sparsegroup.objectives import LOGISTIC
from sparsegroup.streaming.gate import Gate
from sparsegroup.training.model import LookupModel


class Constant(torch.nn.Module):
    """A network whose logit is that of its only number, times a factor, plus a shift."""

    def __init__(self, factor: float, shift: float) -> None:
        super().__init__()
        self.factor, self.shift = factor, shift

    def forward(self, embeddings, numbers):
        return self.factor * numbers[:, 0] + self.shift


def model(factor: float = 1.0, shift: float = 0.0) -> LookupModel:
    made = LookupModel(torch.nn.Embedding(4, 2), Constant(factor, shift))
    made.objective = LOGISTIC
    return made


def batches(count: int, seed: int = 0) -> list[Batch]:
    drawn = torch.Generator().manual_seed(seed)
    logits = torch.randn(count, 1, generator=drawn) - 1
    labels = (torch.rand(count, generator=drawn) < logits[:, 0].sigmoid()).float()
    batch = Batch(torch.zeros(count, 1, dtype=torch.int64), logits, labels, torch.arange(count))
    return [batch[first : first + 100] for first in range(0, count, 100)]


def gate_of(before: LookupModel, rows: list[Batch]) -> Gate:
    gate = Gate(LOGISTIC, 20_000)
    for batch in rows:
        gate.add(batch, before.network(None, batch.numbers))
    return gate


@pytest.mark.parametrize(
    ("before", "candidate", "why"),
    [
        (model(), model(), ""),
        (model(1.01), model(0.99), ""),
        (model(0.2), model(), "before it learnt them, its loss"),
        (model(), model(-1.0), "after it has learnt them, its loss"),
        (model(0.9, 0.1), model(1.0, 0.6), "calibration|loss"),
    ],
    ids=["the same", "a little better or worse", "learns badly", "is broken", "predicts too much"],
)
def test_what_is_surely_worse_is_refused(before, candidate, why):
    gate = gate_of(before, batches(4_000))
    verdict = gate.judge(gate.take(), candidate, model())
    assert verdict.is_accepted is (not why)
    assert not why or any(one in verdict.why for one in why.split("|"))
    assert verdict.figures["rows"] == 4_000
    assert 0.5 < verdict.figures["auc"] < 1


def test_better_models_few_rows_and_first_ones_pass():
    assert (
        gate_of(model(), batches(4_000)).judge(gate_of(model(), batches(4_000)).take(), model(), model(0.1)).is_accepted
    )
    few = gate_of(model(0.5), batches(100))
    assert few.judge(few.take(), model(0.5), model()).is_accepted
    first = gate_of(model(-3), batches(1_000))
    assert first.judge(first.take(), model(-3), None).is_accepted


def test_only_the_last_rows_are_kept_and_refused_ones_return():
    gate = Gate(LOGISTIC, 350)
    rows = batches(1_000)
    for batch in rows:
        gate.add(batch, torch.zeros(100))
    taken = gate.take()
    assert [one.times[0].item() for one, _ in taken] == [600, 700, 800, 900]
    gate.add(rows[0], torch.zeros(100))
    gate.give_back(taken)
    assert [one.times[0].item() for one, _ in gate.take()] == [700, 800, 900, 0]
    assert not gate.take()
