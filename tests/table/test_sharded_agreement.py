"""What ranks do together; what one does otherwise, or what fails on it alone, raises on all of them."""

import copy
import gc
import re
import threading
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from distributed_cases import Ranks
from over import over
from sharded_cases import first_ranks
from sparsegroup import GroupAdaHessian, GroupAdam, HashEmbedding
from sparsegroup.table import EvictionPolicy, ExchangeError
from sparsegroup.table.sharded.exchange import Collectives

KEYS = torch.arange(20) * 0x9E3779B97F4A7C1


def table_of(**options: Any) -> HashEmbedding:
    return HashEmbedding(4, process_group=dist.group.WORLD, **options)


def raised(action: Callable[[], Any]) -> tuple[str, str]:
    """The error that an action ends in."""
    try:
        action()
    except Exception as error:
        return type(error).__name__, str(error)
    return "no error", ""


def usable(table: HashEmbedding) -> bool:
    """Whether the ranks still exchange."""
    return bool(table.train()(KEYS).shape == (20, 4))


Scene = Callable[[list[HashEmbedding], GroupAdam, bool], Any]


def lookups_in_another_order(tables: list[HashEmbedding], optimizer: GroupAdam, is_first: bool) -> None:
    for table in reversed(tables) if is_first else tables:
        table(KEYS)


def evaluated_on_one(tables: list[HashEmbedding], optimizer: GroupAdam, is_first: bool) -> None:
    tables[0].train(is_first)(KEYS)


def without_backward_on_one(tables: list[HashEmbedding], optimizer: GroupAdam, is_first: bool) -> None:
    loss = tables[0](KEYS).sum()
    if not is_first:
        loss.backward()
    optimizer.step()


def backward_in_another_order(tables: list[HashEmbedding], optimizer: GroupAdam, is_first: bool) -> None:
    losses = [tables[0](KEYS).sum(), tables[0](KEYS).sum()]
    for loss in reversed(losses) if is_first else losses:
        loss.backward()


def stepped_on_one(tables: list[HashEmbedding], optimizer: GroupAdam, is_first: bool) -> None:
    tables[0](KEYS).sum().backward()
    if not is_first:
        optimizer.step()
    tables[0](KEYS)


def made_otherwise(tables: list[HashEmbedding], optimizer: GroupAdam, is_first: bool) -> None:
    table_of(fallback=is_first)


def played(scene: Scene) -> Any:
    tables = [table_of(), table_of()]
    optimizer = GroupAdam(tables[0].parameters())
    return raised(lambda: scene(tables, optimizer, dist.get_rank() == 0)), usable(tables[0])


@over(
    ("scene", "zero", "one"),
    [
        (
            lookups_in_another_order,
            r"keys of a lookup in training, table \d+",
            r"keys of a lookup in training, table \d+",
        ),
        (evaluated_on_one, "keys of a lookup in training", "keys of a lookup in evaluation"),
        (without_backward_on_one, "a step", r"gradients of lookup 1 in table \d+"),
        (backward_in_another_order, "gradients of lookup 2", "gradients of lookup 1"),
        (stepped_on_one, "keys of a lookup in training", "a step"),
        (made_otherwise, ".*fallback=True", ".*fallback=False"),
    ],
)
def test_ranks_that_part_all_raise_the_same(scene: Any, zero: str, one: str, ranks: Ranks) -> None:
    (first, is_usable), (second, _) = ranks.call(played, scene)
    assert first == second
    kind, message = first
    assert kind == ExchangeError.__name__
    assert "different operations, or in different order" in message
    assert re.search(rf"rank 0 is in operation [\d,]+, '{zero}.*'; rank 1 is in operation [\d,]+, '{one}", message), (
        message
    )
    assert is_usable


def stepped_with(spoil: Callable[[Tensor], Tensor], options: dict[str, Any], optimizer_of: Any = GroupAdam) -> Any:
    """A step in which the gradient of one key is spoilt, and what it leaves of table and network on this rank."""
    table, layer = table_of(**options), nn.Linear(4, 1, bias=False)
    nn.init.ones_(layer.weight)
    optimizer = optimizer_of([*table.parameters(), *layer.parameters()])
    table(KEYS)
    before = table.lookup(KEYS)
    vectors = table(KEYS)
    vectors.register_hook(lambda gradient: spoil(gradient.clone()))
    layer(vectors).sum().backward(create_graph=optimizer.rule.second_order)
    error = raised(optimizer.step)
    changed = not torch.equal(table.lookup(KEYS), before) or not bool((layer.weight == 1).all())
    return error, changed, len(optimizer.state)


def spoilt_on_one(gradient: Tensor) -> Tensor:
    if dist.get_rank() == 0:
        gradient[7] = float("nan")
    return gradient


def large_on_one(gradient: Tensor) -> Tensor:
    """Finite, but not in float16."""
    if dist.get_rank() == 1:
        gradient[7] = 1e6
    return gradient


@over(
    ("spoil", "options", "optimizer_of"),
    [
        (spoilt_on_one, {}, GroupAdam),
        (spoilt_on_one, {}, GroupAdaHessian),
        (large_on_one, {"wire_dtype": torch.float16}, GroupAdam),
    ],
)
def test_a_gradient_that_is_not_finite_changes_nothing_on_any_rank(
    spoil: Any, options: Any, optimizer_of: Any, ranks: Ranks
) -> None:
    for (kind, message), changed, states in ranks.call(stepped_with, spoil, options, optimizer_of):
        assert kind == FloatingPointError.__name__
        assert "is not finite; nothing has been changed" in message
        assert not changed
        assert not states


def without_room_on_one() -> Any:
    table = table_of(max_rows=1 if dist.get_rank() else None)
    errors = [raised(lambda: table(KEYS))]
    table.prefetch(KEYS)
    errors.append(raised(lambda: table(KEYS)))
    return errors, bool(table.eval()(KEYS).shape == (20, 4))


class FailingOnOne(EvictionPolicy):
    """An eviction policy that fails on one rank."""

    every = 1

    def evicts(self, rows: Any) -> Any:
        if dist.get_rank():
            raise MemoryError("no room to think")
        return torch.zeros(len(rows), dtype=torch.bool).numpy()


def failing_eviction() -> Any:
    table = table_of(eviction=FailingOnOne())
    optimizer = GroupAdam(table.parameters())
    table(KEYS).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return raised(lambda: table(KEYS))


def test_a_lookup_that_fails_on_one_rank_fails_on_all(ranks: Ranks) -> None:
    (first, usable_first), (second, usable_second) = ranks.call(without_room_on_one)
    assert usable_first
    assert usable_second
    for (kind, message), (own_kind, own_message) in zip(first, second, strict=True):
        assert kind == own_kind == "RuntimeError"
        assert message == f"rank 1 of 2: RuntimeError: {own_message}"
        assert "max_rows" in message
    assert ranks.call(failing_eviction) == [
        ("MemoryError", "rank 1 of 2: MemoryError: no room to think"),
        ("MemoryError", "no room to think"),
    ]


def failing_before_an_exchange(text: str) -> Any:
    """Rank 0 fails in an action in which the other one exchanges; both continue."""
    table = table_of()
    shards = table.across.shards

    def action() -> None:
        if dist.get_rank() == 0:
            raise ValueError(text)
        shards.totals([1], "gradients " + 400 * "of a long name ")

    return raised(lambda: shards.do(action, "an action")), usable(table)


@over("text", ["bad row", "bad row 'a\x1fb'", 2_000 * "λ"])
def test_an_action_that_fails_before_it_exchanges_fails_on_all(text: str, ranks: Ranks) -> None:
    (own, usable_first), (other, usable_second) = ranks.call(failing_before_an_exchange, text)
    assert own == ("ValueError", text)
    expected = f"rank 0 of 2: ValueError: {text}".replace("\x1f", " ")
    assert other[0] == "ValueError"
    assert other[1] == expected or (len(other[1]) > 300 and expected.startswith(other[1]))
    assert usable_first
    assert usable_second


def copied_while_ahead() -> bool:
    table = table_of()
    table(KEYS)
    table.prefetch(KEYS[:5])
    other = copy.deepcopy(table)
    return torch.equal(table(KEYS[:5]), other(KEYS[:5]))


def test_a_table_is_copied_while_it_looks_ahead(ranks: Ranks) -> None:
    assert ranks.call(copied_while_ahead) == [True, True]


def threads_left() -> int:
    def count() -> int:
        return sum(thread.name.startswith("sparsegroup-ranks") for thread in threading.enumerate())

    before = count()
    group = dist.new_group()
    table = HashEmbedding(4, process_group=group)
    table.prefetch(KEYS)
    table(KEYS)
    assert count() == before + 1
    del table
    dist.destroy_process_group(group)
    del group
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith("sparsegroup-ranks") and count() > before:
            thread.join(5)
    return count() - before


def test_a_group_that_has_ended_leaves_no_thread(ranks: Ranks) -> None:
    assert ranks.call(threads_left) == [0, 0]


def done() -> tuple[Tensor, bool, list[Any], Any, Any]:
    first_ranks(1)
    group = dist.new_group([2, 3])  # the first of which is not that of the world
    first = Collectives(group, "Trainer").from_first(dist.get_rank(), "a rank") if dist.get_rank() > 1 else 2
    together, rank = Collectives(dist.group.WORLD, "Trainer"), dist.get_rank()
    own = torch.arange(6, dtype=torch.float64).view(2, 3).t() * (rank + 1)
    total = together.summed(own, "gradients")
    stays = torch.equal(own, torch.arange(6, dtype=torch.float64).view(2, 3).t() * (rank + 1))
    parts = together.of_all([rank, {"a": rank}][: rank % 3], "parts")
    return total, stays, parts, together.from_first({rank}, "a set"), first


def test_all_ranks_get_the_same(four_ranks: Ranks) -> None:
    for total, stays, parts, first, first_of_group in four_ranks.call(done):
        assert torch.equal(total, torch.arange(6, dtype=torch.float64).view(2, 3).t() * 10)
        assert stays
        assert parts == [1, 2, {"a": 2}]
        assert first == {0}
        assert first_of_group == 2
