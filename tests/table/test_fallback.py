"""What replaces keys without a live row, also in training, where new keys begin zero in proportion."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from over import over
from sparsegroup import GroupAdam, HashEmbedding, HashEmbeddingBag, MinCount, TargetRate, param_groups
from table_cases import take_step


def in_field(field: int, values: list[int]) -> Tensor:
    """Keys whose top 8 bits are `field`."""
    return torch.tensor([((field << 56) + value + 2**63) % 2**64 - 2**63 for value in values])


LIVE, DEAD = in_field(0, [1, 2]), torch.cat([in_field(0, [3]), in_field(200, [1])])


def table_with_dead_rows() -> HashEmbedding:
    """A table of two fields, with its live and its zero keys."""
    table = HashEmbedding(3, std=1.0, field_bits=8, fallback=True)
    table.assign(LIVE, torch.ones(2, 3))
    table.assign(DEAD, torch.zeros(2, 3))
    with torch.no_grad():
        table.fallback[0] = torch.tensor([1.0, 2.0, 3.0])
        table.fallback[200] = torch.tensor([4.0, 5.0, 6.0])
    return table


def test_it_replaces_zero_rows_and_unknown_keys_and_nothing_else() -> None:
    table, unknown = table_with_dead_rows(), in_field(200, [77])
    table.eval()
    vectors = table(torch.cat([LIVE, DEAD, unknown]))
    expected = [[1.0, 1.0, 1.0]] * 2 + [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [4.0, 5.0, 6.0]]
    assert vectors.tolist() == expected
    assert not table.lookup(torch.cat([DEAD, unknown])).any()  # the rows as they are
    shaped = table(torch.cat([LIVE, DEAD]).view(2, 2))
    assert shaped.shape == (2, 2, 3)
    assert shaped.flatten(0, 1).tolist() == expected[:4]
    bag = HashEmbeddingBag(3, mode="sum", field_bits=8, fallback=True).eval()
    with torch.no_grad():
        bag.fallback[7] = 2.0
    assert bag(in_field(7, [1, 2, 3]), torch.tensor([0, 2])).tolist() == [[4.0] * 3, [2.0] * 3]


@over("fields", [1, 3])
def test_gradients_of_any_order_are_those_of_a_choice_between_row_and_fallback_vector(fields: int) -> None:
    """Also of keys in any layout and of none, where the vectors are frozen, and without gradients."""
    table = table_with_dead_rows()
    keys = torch.cat([LIVE, DEAD, in_field(200, [9])]).repeat(fields, 1).t()
    rows = table.lookup(keys).reshape(*keys.shape, 3)
    expected = torch.where(rows == 0, table.fallback[(keys >> 56) & 255], rows)
    assert torch.equal(table.eval()(keys), expected)
    orders = []
    for vectors in (table(keys), expected):
        (first,) = torch.autograd.grad(vectors.pow(3).sum(), table.fallback, create_graph=True)
        orders.append((first, *torch.autograd.grad(first.sum(), table.fallback)))
    for ours, theirs in zip(*orders, strict=True):
        torch.testing.assert_close(ours, theirs)
    table.weight.requires_grad_(False)
    (frozen,) = torch.autograd.grad(table(keys).pow(3).sum(), table.fallback)
    torch.testing.assert_close(frozen, orders[0][0])
    with torch.inference_mode():
        assert torch.equal(table(keys), expected)
        assert table(keys[:0]).shape == (0, fields, 3)


def test_it_learns_and_the_zero_row_goes_on_counting() -> None:
    with_it, without = table_with_dead_rows(), HashEmbedding(3, std=1.0, field_bits=8)
    without.assign(DEAD, torch.zeros(2, 3))
    gradient = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 0.0]])
    for table in (with_it, without):
        (table(DEAD) * gradient).sum().backward()
        rows, values = table.weight.grad.coalesce().indices()[0], table.weight.grad.coalesce().values()
        at = torch.from_numpy(table.table.find(DEAD.numpy())) + table.table.directory.numbering.base
        assert torch.equal(values[torch.searchsorted(rows, at)], gradient)
    expected = torch.zeros(256, 3)
    expected[[0, 200]] = gradient
    assert torch.equal(with_it.fallback.grad, expected)


@over("named", [True, False])
def test_a_group_that_regularizes_it_is_warned_of(named: bool) -> None:
    table = HashEmbedding(4, fallback=True, field_bits=2)
    parameters = list(table.named_parameters()) if named else list(table.parameters())
    for weight in ("l1", "l21", "l2"):
        with pytest.warns(RuntimeWarning, match="fallback vectors"):
            GroupAdam([{"params": parameters, weight: 0.1}])
    optimizer = GroupAdam(parameters)
    with pytest.warns(RuntimeWarning, match="fallback vectors.*"):
        TargetRate(optimizer, 0.1)
    with pytest.warns(RuntimeWarning, match="fallback vectors"):
        GroupAdam(copy.deepcopy(table).parameters(), l21=0.1)
    head = torch.nn.Linear(4, 1, bias=False)  # of the shape of a single fallback vector
    GroupAdam([HashEmbedding(4, fallback=True).weight, head.weight], l21=0.1)


@over("by_module", [True, False])
def test_it_is_trained_unregularized_and_a_target_counts_the_table_only(by_module: bool) -> None:
    torch.manual_seed(0)
    table = HashEmbedding(4, std=0.01, fallback=True)
    options = {"l21": 1e-3, "penalty": "hard"}
    if by_module:
        optimizer = GroupAdam(param_groups(torch.nn.ModuleDict({"table": table}), **options), lr=1e-2)
        assert optimizer.param_groups[1]["l21"] == 0
    else:
        apart = [{"params": [table.weight], **options}, {"params": [table.fallback]}]
        optimizer = GroupAdam(apart, lr=1e-2)
    target = TargetRate(optimizer, 0.05, steps=60)
    for _ in range(60):
        keys = torch.randint(500, (64,))
        vectors = table(keys)
        take_step(optimizer, (vectors - 1.0).square().mean() + ((keys % 50 == 0)[:, None] * vectors).sum() * 0.1)
        target.step()
    assert table.num_live == pytest.approx(0.05 * table.num_seen, abs=1)
    assert (table.fallback > 0.1).all()
    assert torch.equal(table.eval()(torch.tensor([10**9])), table.fallback)


# New keys


OLD, NEW = torch.arange(1_000), torch.arange(10_000, 14_000)


def table_at(rate: float, **options: Any) -> HashEmbedding:
    """A table of 1,000 rows, a share of which lives; its fallback vector is nobody's start."""
    table = HashEmbedding(3, std=0.1, fallback=True, **options)
    table.assign(OLD, torch.ones(1_000, 3))
    if dead := round((1 - rate) * 1_000):
        table.assign(OLD[:dead], torch.zeros(dead, 3))
    with torch.no_grad():
        table.fallback.fill_(7.0)
    return table


def begin_zero(table: HashEmbedding, keys: Tensor) -> Tensor:
    """Which of the keys were given the fallback vector in training, in order."""
    return (table(keys) == 7.0).all(dim=1)


@over(("rate", "options"), [(1.0, {}), (0.9, {"max_bytes": "8MB"}), (0.5, {}), (0.1, {"max_bytes": "8MB"})])
def test_as_many_new_keys_begin_zero_as_others_are(rate: float, options: dict[str, str]) -> None:
    table = table_at(rate, **options)
    starts = table.initial(NEW)
    hidden = begin_zero(table, NEW)
    expected = 1 - (rate * 1_000 + 4_000) / 5_000  # they count as live themselves
    assert hidden.double().mean() == pytest.approx(expected, abs=4 * (expected / 4_000) ** 0.5)
    assert torch.equal(table.lookup(NEW), starts)  # the rows are what they always are
    assert not begin_zero(table, NEW).any()  # their second batch
    table.eval()
    assert torch.equal(table(NEW), starts)
    assert (table(NEW + 10_000) == 7.0).all()


def test_which_ones_follows_from_the_key_alone() -> None:
    hidden = begin_zero(table_at(0.1), NEW)
    assert torch.equal(begin_zero(table_at(0.1, seed=1), NEW), hidden)
    order = torch.randperm(len(NEW), generator=torch.Generator().manual_seed(0))
    assert torch.equal(begin_zero(table_at(0.1), NEW[order]), hidden[order])
    assert torch.equal(begin_zero(table_at(0.1), NEW.repeat_interleave(3)), hidden.repeat_interleave(3))
    waiting = table_at(0.1, admission=MinCount(2))
    assert begin_zero(waiting, NEW).all()  # they have no row
    assert torch.equal(begin_zero(waiting, NEW), hidden)  # drawn when they get it
    few = torch.cat([begin_zero(table_at(0.1), part) for part in NEW.split(500)])
    assert not (hidden & ~few).any()  # among many live ones, fewer are zero: the ones drawn lowest


def test_the_fallback_vector_and_the_row_both_learn_from_them() -> None:
    table = table_at(0.1)
    vectors = table(NEW)
    hidden = (vectors == 7.0).all(dim=1)
    gradient = torch.randn(len(NEW), 3, generator=torch.Generator().manual_seed(1))
    (vectors * gradient).sum().backward()
    torch.testing.assert_close(table.fallback.grad[0], gradient[hidden].sum(dim=0))
    assert table.weight.grad._nnz() == len(NEW)
    torch.testing.assert_close(table.weight.grad._values(), gradient)


# Copies, checkpoints
