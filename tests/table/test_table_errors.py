"""What a table refuses, in words that help, with nothing changed."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from family import Member
from optimizer_cases import ALL, ALLOW_CREATE_GRAPH, assert_identical, backward, make
from over import over
from sparsegroup import GroupOptimizer, HashEmbedding, HashEmbeddingBag
from table_cases import EDGES, REGULARIZED, as_keys, edges_trained, everything, learn, pull
from table_pairs import one_of_each_kind

pytestmark = ALLOW_CREATE_GRAPH

NAN, INF = math.nan, math.inf
DIM = 3


@contextmanager
def refused(
    table: HashEmbedding, optimizer: GroupOptimizer, error: type[Exception] | tuple[type[Exception], ...], match: str
) -> Iterator[None]:
    """The body raises `error`, nothing has changed, and training goes on."""
    before = everything(table, optimizer)
    with pytest.raises(error, match=match):
        yield
    assert_identical(everything(table, optimizer), before)
    optimizer.zero_grad()
    learn(table, optimizer, pull(as_keys([1, 99]), DIM))


@over(
    ("name", "value"),
    [
        *[("dim", value) for value in (0, -1, 2.5, "8", None, True)],
        *[("std", value) for value in (-0.1, NAN, INF, "0.1", None, True)],
        *[("init", value) for value in ("xavier", None, 1)],
        *[("seed", value) for value in (1.5, "0", None)],
        *[("max_rows", value) for value in (-1, 0, 2.5, "many")],
        *[("field_bits", value) for value in (-1, 65, 1.5, None)],
        *[("nonfinite", value) for value in ("ignore", None, True)],
        *[("dtype", value) for value in (torch.float16, torch.bfloat16, torch.int64, torch.complex64, "float32")],
        *[("device", value) for value in ("meta", "xpu", torch.device("meta"))],
    ],
)
@over("cls", [HashEmbedding, HashEmbeddingBag])
def test_a_bad_argument_is_named(cls: type[HashEmbedding], name: str, value: object) -> None:
    with pytest.raises((ValueError, TypeError), match=name):
        cls(**{"dim": DIM, name: value})


def test_good_ones_are_taken() -> None:
    for options in (
        {"device": "cpu"},
        {"device": torch.device("cpu"), "dtype": torch.float64},
        {"huge_pages": False, "max_rows": 1, "field_bits": 8, "seed": 2**63 - 1},
    ):
        assert HashEmbedding(1, **options)(as_keys([3])).shape == (1, 1)


@over("call", ["forward", "lookup", "contains", "initial"])
def test_keys_that_are_not_of_int64_on_the_cpu_are_refused_by_what_they_are(call: str) -> None:
    table, optimizer = edges_trained()
    for dtype in (torch.int16, torch.uint8, torch.float32, torch.bool, torch.uint64):
        with refused(table, optimizer, TypeError, f"int64.*{dtype}"):
            getattr(table, call)(torch.tensor([1, 0], dtype=dtype))
    for keys in ([1, 2], np.array([1, 2]), 5, None, "key"):
        with refused(table, optimizer, TypeError, f"int64.*{type(keys).__name__}|{type(keys).__name__}.*int64"):
            getattr(table, call)(keys)
    if call != "initial":
        with refused(table, optimizer, ValueError, "(?i)meta.*cpu|cpu.*meta"):
            getattr(table, call)(torch.empty(2, dtype=torch.int64, device="meta"))


def test_in_bags_must_fit_their_offsets_and_weights() -> None:
    table = HashEmbeddingBag(DIM, mode="sum", dtype=torch.float64)
    keys = as_keys([1, 2, 3])
    bad: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((keys,), {}, "offsets"),
        ((keys, as_keys([1, 2])), {}, "offsets"),
        ((keys, as_keys([0, 2, 1])), {}, "offsets"),
        ((keys, as_keys([0, 4])), {}, "offsets"),
        ((keys, as_keys([0, -1])), {}, "offsets"),
        ((keys, as_keys([[0, 1]])), {}, "offsets"),
        ((keys, torch.tensor([0.0, 1.0])), {}, "offsets"),
        ((keys.view(1, 3), as_keys([0])), {}, "offsets"),
        ((keys.view(1, 1, 3),), {}, "keys|dimension"),
        ((as_keys([1])[0],), {}, "keys|dimension"),
        ((keys, as_keys([0])), {"per_sample_weights": torch.ones(2, dtype=torch.float64)}, "per_sample_weights"),
        ((keys.view(1, 3),), {"per_sample_weights": torch.ones(3, dtype=torch.float64)}, "per_sample_weights"),
    ]
    for positional, named, match in bad:
        with pytest.raises((ValueError, TypeError), match=match):
            table(*positional, **named)
    assert table.num_seen == 0
    with pytest.raises(ValueError, match=r"per_sample_weights.*sum"):
        HashEmbeddingBag(DIM)(keys.view(1, 3), per_sample_weights=torch.ones(1, 3))
    for mode in ("max", None, 1):
        with pytest.raises((ValueError, TypeError), match="mode"):
            HashEmbeddingBag(DIM, mode=mode)


MOVES: tuple[Callable[[nn.Module], nn.Module], ...] = (
    lambda module: module.to("meta"),
    lambda module: module.float(),
    lambda module: module.half(),
    lambda module: module.to(torch.float16),
    lambda module: module.to_empty(device="meta"),
)


@over("move", MOVES)
def test_a_move_to_another_device_or_dtype_is_refused(move: Callable[[nn.Module], nn.Module]) -> None:
    table, optimizer = edges_trained()
    with refused(table, optimizer, (RuntimeError, ValueError, TypeError, NotImplementedError), "HashEmbedding|table"):
        move(nn.ModuleDict({"table": table}))


def test_a_move_to_where_it_is_changes_nothing() -> None:
    table, optimizer = edges_trained()
    before = everything(table, optimizer)
    assert table.cpu() is table
    assert table.to("cpu") is table
    assert table.double() is table
    assert table.to(torch.device("cpu"), torch.float64) is table
    assert_identical(everything(table, optimizer), before)
    assert optimizer.param_groups[0]["params"][0] is table.weight
    learn(table, optimizer, pull(as_keys([1, 99]), DIM))


@over("cls", ALL)
@over(
    ("options", "match"),
    [
        ({"groups": "columns"}, "groups='rows'"),
        ({"groups": "all"}, "groups='rows'"),
        ({"groups": 1}, "groups='rows'"),
        ({"groups": torch.zeros(11, dtype=torch.int64)}, "groups"),
        ({"weight_decay": 0.1}, "weight_decay"),
    ],
)
def test_other_groups_and_weight_decay_are_refused(
    cls: type[GroupOptimizer], options: dict[str, Any], match: str
) -> None:
    """By the constructor or by the step, and then before a dense parameter beside the table is updated."""
    table, first = edges_trained()
    dense = nn.Parameter(torch.ones(2, 2))
    before = everything(table, first)

    def train() -> None:
        optimizer = make(cls, [{"params": [dense]}, {"params": [table.weight], **options}])
        backward(optimizer, table(as_keys(EDGES)).square().sum() + dense.square().sum())
        optimizer.step()

    with pytest.raises(ValueError, match=match):
        train()
    assert_identical(dense.detach(), torch.ones(2, 2))
    assert_identical(everything(table, first), before)


@one_of_each_kind
def test_a_second_optimizer_starts_afresh_and_the_first_one_is_told(member: Member) -> None:
    table = HashEmbedding(DIM, std=0.5, dtype=torch.float64)
    first = member.build(table.weight, **REGULARIZED)
    for _ in range(3):
        learn(table, first, pull(as_keys(EDGES), DIM))
    start = table.lookup(as_keys(EDGES))

    second = member.build(table.weight, l21=0.05)
    learn(table, second, pull(as_keys(EDGES), DIM))
    embedding = nn.Embedding.from_pretrained(start, freeze=False, sparse=True)
    fresh = member.build(embedding.weight, l21=0.05)
    (lookup,) = pull(as_keys(EDGES), DIM)
    learn(embedding, fresh, [type(lookup)(torch.arange(len(EDGES)), lookup.gradient, lookup.hessian)])
    torch.testing.assert_close(table.lookup(as_keys(EDGES)), embedding.weight.detach(), rtol=1e-12, atol=1e-12)
    assert second.state_dict()["state"][0]["step"] == 1

    before = everything(table, second)
    with pytest.raises(RuntimeError, match="optimizer"):
        learn(table, first, pull(as_keys(EDGES), DIM))
    assert_identical(everything(table, second), before)
    learn(table, second, pull(as_keys(EDGES), DIM))
    assert second.state_dict()["state"][0]["step"] == 2


def test_an_argument_that_has_become_bad_stops_the_whole_step() -> None:
    table, optimizer = edges_trained()
    table(as_keys(EDGES)).sum().backward()
    before = everything(table, optimizer)
    for name, value in (("l21", -1.0), ("lr", NAN), ("betas", (1.0, 0.9)), ("norm", "t"), ("groups", "columns")):
        good = optimizer.param_groups[0][name]
        optimizer.param_groups[0][name] = value
        with pytest.raises((ValueError, TypeError), match=name):
            optimizer.step()
        optimizer.param_groups[0][name] = good
        assert_identical(everything(table, optimizer)["table"], before["table"])
    assert_identical(everything(table, optimizer), before)
    optimizer.step()


def test_inspection_needs_a_size_of_batches_and_fields() -> None:
    table, optimizer = edges_trained()
    for bad in (0, -1, 1.5):
        with pytest.raises((ValueError, TypeError), match="batch_size"):
            next(iter(table.items(bad)))
    with refused(table, optimizer, ValueError, "field_bits"):
        table.field_counts()
