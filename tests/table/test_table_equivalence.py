"""The main test: a table trained by any optimizer is `nn.Embedding(sparse=True)` trained by the same one."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from family import FAMILY, Member, regularizer
from optimizer_cases import ALLOW_CREATE_GRAPH
from over import over
from rmsprop import GroupRMSprop
from sparsegroup import MCP, GroupAdagrad, GroupAdam, GroupMomentum, GroupOptimizer
from table_cases import INT64, Lookup, as_keys, keys_in, learn, random_keys, stream
from table_pairs import DTYPES, NORMS, PENALTIES, Pair, one_of_each_kind, same, table_of

pytestmark = ALLOW_CREATE_GRAPH

ADAM = FAMILY["adam"]
PAIRS = [
    pytest.param(member, norm, penalty, id=f"{name}-{norm}-{penalty}")
    for turn, (name, member) in enumerate(FAMILY.items())
    for i, norm in enumerate(NORMS)
    for j, penalty in enumerate(PENALTIES)
    if name == "adam" or (i + turn) % 3 == j
]
"""Each optimizer with each norm and each penalty, and Adam with each pair: those are compiled apart from the rule."""


@DTYPES
@pytest.mark.parametrize(("member", "norm", "penalty"), PAIRS)
def test_a_table_is_a_sparse_embedding(member: Member, norm: str, penalty: str, dtype: torch.dtype) -> None:
    pair = Pair(table_of(dtype), lambda weight: member.build(weight, **regularizer(member, norm, penalty)))
    path = pair.follow(stream())
    same(path)
    pair.assert_same_state()
    dead = float((path[0, -1] == 0).all(-1).double().mean())
    assert 0.02 < dead < 0.98
    assert pair.table.num_rows == len(pair.oracle.row_of)


@one_of_each_kind
def test_lambdas_that_are_turned_on_and_off_in_mid_run(member: Member) -> None:
    """On after rows that never felt one, off while rows carry a residual, on again: new rows are born in each part.

    Rows hold u from the first λ on; those of FTRL always do.
    """
    weights = regularizer(member)

    def change(t: int, optimizer: GroupOptimizer) -> None:
        if optimizer is pair.ours:
            assert ("u" in pair.table.memory().parts) == (t > 8 or (t > 0 and member.rule == "ftrl"))
        for name in ("l1", "l21", "l2"):
            optimizer.param_groups[0][name] = weights[name] if t // 8 % 2 else 0.0

    pair, steps = Pair(table_of(torch.float64), member.build), stream(steps=32, seed=2)
    path = pair.follow(steps, change)
    same(path)
    pair.assert_same_state()
    seen = torch.isin(keys_in(steps), keys_in(steps[:16]))
    assert (path[0, 15, seen] == 0).all(-1).any(), "some are zero while λ is on"
    assert (path[0, 23, seen] != 0).any(-1).sum() > (path[0, 15, seen] != 0).any(-1).sum(), "and return when it is off"


def test_hyperparameters_norm_and_penalty_may_change_in_mid_run() -> None:
    def change(t: int, optimizer: GroupOptimizer) -> None:
        norm, penalty = NORMS[t // 5 % 3], PENALTIES[t // 7 % 3]
        rate, beta = (0.0, 1e-6, 0.03, 0.06)[t % 4], 0.8 + 0.02 * (t % 6)
        optimizer.param_groups[0].update(regularizer(ADAM, norm, penalty), lr=rate, betas=(beta, 0.999))

    pair = Pair(table_of(torch.float64), ADAM.build)
    same(pair.follow(stream(seed=3), change))


OPTIONS: tuple[tuple[type[GroupOptimizer], int, Mapping[str, Any]], ...] = (
    *((GroupAdam, dim, {}) for dim in (1, 2, 3, 7, 8, 33)),
    (GroupAdam, 5, {"maximize": True}),
    (GroupAdam, 5, {"betas": (0.5, 0.9), "eps": 0.1}),
    (GroupAdam, 5, {"betas": (0.0, 0.99)}),
    (GroupMomentum, 5, {"momentum": 0.7, "nesterov": True}),
    (GroupMomentum, 5, {"momentum": 0.0}),
    (GroupAdagrad, 5, {"initial_accumulator_value": 0.2, "lr_decay": 0.1}),
    (GroupAdagrad, 5, {"eps": 0.0}),
    (GroupAdam, 5, {"groups": 0}),
    (GroupAdam, 5, {"penalty": MCP(gamma=1.2)}),
    (GroupAdam, 5, {"lr": torch.tensor(0.05)}),
    (GroupRMSprop, 5, {}),
)


@over(("cls", "dim", "options"), OPTIONS)
def test_rows_of_any_length_and_the_optimizers_other_arguments(
    cls: type[GroupOptimizer], dim: int, options: Mapping[str, Any]
) -> None:
    for dtype in (torch.float64,) if options or cls is GroupRMSprop else (torch.float64, torch.float32):
        options = {"lr": 0.05, "l1": 0.02, "l21": 0.5, **options}
        pair = Pair(table_of(dtype, dim), lambda weight: cls([weight], **options))  # noqa: B023
        same(pair.follow(stream(steps=12, dim=dim, seed=7)))
        pair.assert_same_state()


any_key = st.integers(INT64.min, INT64.max) | st.sampled_from([0, -1, INT64.min, INT64.max]) | st.integers(-3, 3)


@given(batches=st.lists(st.lists(any_key, max_size=9), max_size=7), seed=st.integers(0, 99))
@settings(max_examples=25)
def test_whatever_keys_come(batches: list[list[int]], seed: int) -> None:
    """Also batches of nothing, of one key many times, and steps after which no key is new."""
    pair = Pair(table_of(torch.float64), lambda weight: ADAM.build(weight, **regularizer(ADAM)))
    generator = torch.Generator().manual_seed(seed)
    for keys in map(as_keys, batches):
        gradient = torch.randn(*keys.shape, 5, generator=generator)
        for module, optimizer in pair.both:
            learn(module, optimizer, [Lookup(keys, gradient, torch.ones_like(gradient))])
    keys = as_keys(pair.oracle.row_of)
    torch.testing.assert_close(*pair.vectors(keys), rtol=1e-10, atol=1e-10)
    assert pair.table.num_rows == len(keys) == len({key for batch in batches for key in batch})


@over(("name", "dtype"), [("sgd", torch.float32), ("adam", torch.float32), ("adahessian", torch.float64)])
def test_thousands_of_keys_in_a_batch(name: str, dtype: torch.dtype) -> None:
    """Enough for the paths that large batches take; Zipf-like, so that some keys come a hundred times."""
    generator, member = torch.Generator().manual_seed(0), FAMILY[name]
    pool = random_keys(20_000, seed=1)
    pair = Pair(table_of(dtype), lambda weight: member.build(weight, **regularizer(member)), len(pool))
    for _ in range(3):
        ranks = (len(pool) ** torch.rand(12_000, generator=generator)).long()
        shape = (*ranks.shape, 5)
        g, h = torch.randn(shape, generator=generator), torch.rand(shape, generator=generator) + 0.5
        for module, optimizer in pair.both:
            learn(module, optimizer, [Lookup(pool[ranks], g.double(), h.double())])
    assert pair.table.num_rows > 4000
    same(pair.vectors(as_keys(pair.oracle.row_of))[:, None])
    pair.assert_same_state()
