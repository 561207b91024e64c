"""Target attention over lists: against DIN's formulas in loops, through the table, and on the way to an export."""

from itertools import pairwise

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from plain_settings import plain
from serving_cases import columns_of
from sparsegroup import GroupMomentum, HashEmbedding
from sparsegroup.data import FrameLog
from sparsegroup.data.batches import Bags, Batch
from sparsegroup.models import MLP, ListPooling, WithPooling
from sparsegroup.models.attention import Dice
from sparsegroup.settings.yaml_settings import SettingsError
from sparsegroup.training import Config, Trainer, predict
from sparsegroup.training.model import LookupModel, by_field

OFFSETS = torch.tensor([0, 2, 2, 5, 6])


def pooling_of_two(*, sums: bool = False) -> ListPooling:
    """Two lists of dimension 3, of which the second has attention, seen from the last of two fields."""
    torch.manual_seed(0)
    pooling = ListPooling(3, {1: 1}, hidden=(4, 2), sums=sums).double()
    for parameter in pooling.parameters():
        torch.nn.init.normal_(parameter)
    return pooling


def some(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape)))


def test_dice_goes_by_the_batch_in_training_and_else_by_running_moments() -> None:
    dice, s = Dice(2).double(), some(7, 2) * 3 + 1
    torch.nn.init.normal_(dice.alpha)
    found = dice(s)
    for row in range(7):
        for unit in range(2):
            column = s[:, unit]
            p = 1 / (1 + torch.exp(-(s[row, unit] - column.mean()) / (column.var(correction=0) + 1e-8).sqrt()))
            expected = p * s[row, unit] + (1 - p) * dice.alpha[unit] * s[row, unit]
            torch.testing.assert_close(found[row, unit], expected)
    torch.testing.assert_close(dice.mean, 0.1 * s.mean(0))
    torch.testing.assert_close(dice.variance, 0.9 + 0.1 * s.var(0))
    before = dice.mean.clone()
    for rows in (0, 1):  # too few for a variance
        few = dice.train()(some(rows, 2))
        assert torch.equal(few, dice.eval()(some(rows, 2)))
    assert torch.equal(dice.mean, before)
    dice.train()(some(2, 2))
    assert not torch.equal(dice.mean, before)


def test_a_list_is_the_sum_of_its_values_weighted_by_the_candidate() -> None:
    pooling = pooling_of_two().eval()
    values, fields = some(6, 3), some(4, 2, 3)
    found = pooling(1, values, OFFSETS, fields)
    unit = pooling.units["1"].layers
    for row, (begin, end) in enumerate(pairwise(OFFSETS)):
        expected, q = torch.zeros(3, dtype=torch.float64), fields[row, 1]
        for k in values[begin:end]:
            s = torch.cat([q, k, q - k, q * k])
            for linear, dice in ((unit[0], unit[1]), (unit[2], unit[3])):
                s = linear.weight @ s + linear.bias
                p = torch.sigmoid((s - dice.mean) / (dice.variance + 1e-8).sqrt())
                s = p * s + (1 - p) * dice.alpha * s
            expected = expected + (unit[4].weight @ s + unit[4].bias) * k
        torch.testing.assert_close(found[row, 0], expected)
    assert not found[1].any()
    empty = pooling.train()(1, some(0, 3), torch.zeros(5, dtype=torch.int64), fields)
    assert torch.equal(empty, torch.zeros(4, 1, 3, dtype=torch.float64))


def test_a_list_without_attention_is_the_mean_and_the_sum_may_be_a_second_vector() -> None:
    values, fields = some(6, 3), some(4, 2, 3)
    zero = torch.zeros(3, dtype=torch.float64)
    means = torch.stack([values[:2].mean(0), zero, values[2:5].mean(0), values[5]])
    sums = torch.stack([values[:2].sum(0), zero, values[2:5].sum(0), values[5]])
    for place in (0, 1):
        pooling, plain = (pooling_of_two(sums=has_sums).eval() for has_sums in (True, False))
        found = pooling(place, values, OFFSETS, fields)
        torch.testing.assert_close(found[:, :1], plain(place, values, OFFSETS, fields))
        torch.testing.assert_close(found[:, 1], sums)
    torch.testing.assert_close(pooling(0, values, OFFSETS, fields)[:, 0], means)


@pytest.mark.parametrize("training", [False, True])
def test_first_and_second_derivatives(training: bool) -> None:
    pooling = pooling_of_two().train(training)
    given = [some(6, 3).requires_grad_(), some(4, 2, 3).requires_grad_()]
    assert gradcheck(lambda values, fields: pooling(1, values, OFFSETS, fields), given)
    assert gradgradcheck(lambda values, fields: pooling(1, values, OFFSETS, fields), given)


def stream(count: int = 5) -> list[Batch]:
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(count):
        sizes = torch.randint(0, 4, (16,), generator=generator)
        offsets = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
        bag = Bags(torch.randint(20, 30, (int(offsets[-1]),), generator=generator), offsets)
        keys = torch.randint(20, (16, 2), generator=generator)
        labels = torch.randint(2, (16,), generator=generator).float()
        batches.append(Batch(keys, torch.empty(16, 0), labels, torch.arange(16), bags=(bag,)))
    return batches


def test_the_trainer_is_the_loop_that_one_would_write() -> None:
    def parts() -> tuple[WithPooling, HashEmbedding, torch.optim.Optimizer]:
        torch.manual_seed(1)
        network = WithPooling(ListPooling(4, {0: 1}), MLP(fields=3, dim=4, hidden=(5,)))
        table = HashEmbedding(4, seed=2)
        return network, table, GroupMomentum([*network.parameters(), *table.parameters()], lr=0.1, momentum=0)

    network, table, optimizer = parts()
    Trainer(table, network, optimizer).fit(stream())
    plain, plain_table, plain_optimizer = parts()
    for batch in stream():
        plain_optimizer.zero_grad()
        (bag,) = batch.bags
        fields = plain_table(batch.keys)
        pooled = plain.pooling(0, plain_table(bag.keys), bag.offsets, fields)
        logits = plain(torch.cat([fields, pooled], dim=1))
        torch.nn.functional.binary_cross_entropy_with_logits(logits, batch.labels).backward()
        plain_optimizer.step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(network.state_dict()[name], value)
    assert plain.pooling.units["0"].layers[0].weight.grad.any()
    (batch,) = stream(1)
    keys = torch.cat([batch.keys.flatten(), batch.bags[0].keys])
    looked_up = LookupModel(table, network).eval()(batch.keys, batch.numbers, batch.bags)
    vectors = by_field(table(keys), tuple(batch.keys.shape), batch.bags, network.pooling)
    assert torch.equal(looked_up, network(vectors))


def test_fields_that_it_cannot_have_are_named() -> None:
    for attention, message in (
        ({"site": "user"}, "attention: 'site' is no field of several values; those are tags, words"),
        ({"tags": "words"}, "attention: 'words' is no field of one value; those are site, user, hour"),
    ):
        with pytest.raises(SettingsError, match=message):
            plain(attention=attention).build_for(columns_of(lists=True))


@pytest.mark.parametrize(("kind", "least", "most"), [("list |", 0.4, 0.6), ("list | shares item", 0.95, 1.0)])
def test_an_item_of_histories_can_be_a_candidate_if_both_share_their_vectors(
    kind: str, least: float, most: float
) -> None:
    """A candidate is clicked if it is of the kind of the items in the history; the tested ones are new candidates."""
    draw, rows = np.random.default_rng(0), 3_000
    item = np.concatenate([draw.integers(30, size=rows), draw.integers(30, 60, size=500)])
    group = draw.integers(2, size=len(item))
    history = 2 * draw.integers(30, size=(len(item), 4)) + group[:, None]
    frame, labels = pl.DataFrame({"item": item, "history": history}), (item % 2 == group).astype(np.float32)
    train, test = (
        FrameLog(frame[part], labels[part], columns={"item": "category", "history": kind})
        for part in (slice(rows), slice(rows, None))
    )
    config = Config.of(model="mlp", attention={"history": "item"}, epochs=2, batch_size=64).resolved_for(train)
    model, optimizer = config.build(train)
    plan = config.training.plan(rows)
    config.trainer(model, optimizer, plan).fit_plan(plan, train)
    assert least <= predict(model, test.batches(0, 500, 500)).metrics().auc <= most
