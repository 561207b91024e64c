"""A frozen table, `requires_grad_(False)`, stays what it is in training mode, as a frozen `nn.Embedding` does."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from over import over
from sparsegroup import FieldTables, GroupAdagrad, HashEmbedding, HashEmbeddingBag
from sparsegroup.models import MLP
from sparsegroup.table import UnusedFor
from sparsegroup.training import Trainer
from table_cases import take_step

OLD, NEW = torch.arange(8), torch.arange(100, 108)


def pretrained(**options: object) -> HashEmbedding:
    """A table with rows of `OLD`."""
    table = HashEmbedding(3, std=0.1, **options)
    table.assign(OLD, torch.ones(8, 3))
    return table


@over(("only_weight", "fallback"), [(True, False), (False, False), (True, True)])
def test_it_looks_up_as_in_evaluation_mode(only_weight: bool, fallback: bool) -> None:
    """Fallback vectors still learn if only the weight is frozen."""
    table, other = pretrained(fallback=fallback), 7.0 if fallback else 0.0
    if fallback:
        nn.init.constant_(table.fallback, other)
    (table.weight if only_weight else table).requires_grad_(False)
    vectors = table(torch.cat([OLD, NEW]))
    assert torch.equal(vectors, torch.cat([torch.ones(8, 3), torch.full((8, 3), other)]))
    assert vectors.requires_grad == fallback
    if fallback:
        vectors.sum().backward()
        assert table.fallback.grad.tolist() == [[8.0] * 3]
        assert table.weight.grad is None
    assert (table.training, table.num_rows, table.num_seen) == (True, 8, 8)
    table.requires_grad_(True)
    table(NEW)
    assert torch.equal(table.lookup(NEW), table.initial(NEW))
    assert (table.num_rows, table.num_seen) == (16, 16)


@pytest.mark.usefixtures("two_threads")
def test_bags_tables_by_field_and_lookups_ahead_insert_nothing() -> None:
    bag = HashEmbeddingBag(3).requires_grad_(False)
    assert not bag(NEW, torch.tensor([0, 3])).any()
    assert bag.num_rows == 0
    tables = FieldTables(4, {0: 4, 1: 2}, field_bits=8).requires_grad_(False)
    keys = torch.tensor([[5, (1 << 56) + 5, (9 << 56) + 1]])
    assert not tables(keys).any(), "the field 9 has no size, and zeros, as in evaluation"
    tables.prefetch(keys)
    assert (tables.num_rows, tables.num_seen) == (0, 0)
    table, keys = pretrained().requires_grad_(False), torch.arange(100, 5_000)
    table.prefetch(keys)
    assert not table(keys).any()
    assert table.num_rows == 8
    table.prefetch(keys)
    table.requires_grad_(True)  # between the two, it is thawed
    assert torch.equal(table(keys), table.initial(keys))


def test_no_policy_drops_its_rows() -> None:
    table = pretrained(eviction=UnusedFor(1))
    optimizer = GroupAdagrad(table.parameters(), lr=0.1, l21=1e6)
    for keys in (OLD, NEW):
        take_step(optimizer, table(keys).sum())
    optimizer.zero_grad()
    frozen = copy.deepcopy(table).requires_grad_(False)
    table(NEW), frozen(NEW)
    assert not table.contains(OLD).any(), "it is time"
    assert frozen.contains(OLD).all()


@over("frozen", [False, True])
def test_what_a_sweep_with_a_larger_lambda_would_make_zero_stays(frozen: bool) -> None:
    def swept(parameter: nn.Parameter, vectors: Callable[[], Tensor]) -> None:
        optimizer = GroupAdagrad([parameter], lr=0.1, l21=1e-3)
        vectors().sum().backward()
        optimizer.step()
        optimizer.param_groups[0]["l21"] = 1e6
        parameter.requires_grad_(not frozen)
        optimizer.sweep()

    table, weight = pretrained(), nn.Parameter(torch.ones(2, 3))
    swept(table.weight, lambda: table(OLD))
    assert table.num_live == (8 if frozen else 0)
    swept(weight, lambda: weight)
    assert bool(weight.any()) == frozen


@over("after_first_epoch", ["train", "reset", "freeze"])
def test_a_trainer_trains_the_network_over_it(after_first_epoch: str) -> None:
    table, model = pretrained().requires_grad_(False), MLP(fields=2, dim=3, hidden=(4,))
    before = [parameter.detach().clone() for parameter in model.parameters()]
    stream = [(torch.stack([OLD, NEW], 1), torch.arange(8) % 2)] * 3
    trainer = Trainer(table, model, GroupAdagrad([*model.parameters(), *table.parameters()], lr=0.1))
    trainer.fit(stream, epochs=2, after_first_epoch=after_first_epoch)
    assert any(not torch.equal(now, was) for now, was in zip(model.parameters(), before, strict=True))
    assert torch.equal(table.lookup(OLD), torch.ones(8, 3))
    assert table.num_rows == 8
