"""The main test: a table trained by any optimizer is `nn.Embedding(sparse=True)` trained by the same one."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from family import FAMILY, Member, regularizer
from optimizer_cases import ALLOW_CREATE_GRAPH
from over import over
from rmsprop import GroupRMSprop
from sparsegroup import MCP, GroupAdagrad, GroupAdam, GroupMomentum, GroupOptimizer
from table_cases import INT64, Lookup, as_keys, keys_in, learn, random_keys, stream
from table_pairs import DTYPES, TOLERANCE, Pair, every_member, every_pair, one_of_each_kind, same, table_of

pytestmark = ALLOW_CREATE_GRAPH


def dead_share(path: Tensor) -> float:
    """The share of zero rows at the end."""
    return float((path[0, -1] == 0).all(-1).double().mean())


@DTYPES
@every_pair
def test_a_table_is_a_sparse_embedding(member: Member, norm: str, penalty: str, dtype: torch.dtype) -> None:
    pair = Pair(table_of(dtype), lambda weight: member.build(weight, **regularizer(member, norm, penalty)))
    path = pair.follow(stream())
    same(path)
    pair.assert_same_state()
    assert 0.02 < dead_share(path) < 0.98
    assert pair.table.num_rows == len(pair.oracle.row_of)


@over("on", [(), ("l1",), ("l21",), ("l2",)])
def test_each_lambda_alone_and_none(on: tuple[str, ...]) -> None:
    options = {name: value for name, value in regularizer(FAMILY["adam"]).items() if name in on}
    pair = Pair(table_of(torch.float64), lambda weight: FAMILY["adam"].build(weight, **options))
    same(pair.follow(stream(steps=12, seed=1)))
    pair.assert_same_state()
    assert ("u" in pair.table.memory().parts) == bool(on)


@DTYPES
@every_member
def test_lambdas_that_are_turned_on_and_off_in_mid_run(member: Member, dtype: torch.dtype) -> None:
    """On after rows that never felt one, off while rows carry a residual, on again: new rows are born in each part."""
    weights = regularizer(member)

    def change(t: int, optimizer: GroupOptimizer) -> None:
        for name in ("l1", "l21", "l2"):
            optimizer.param_groups[0][name] = weights[name] if t // 8 % 2 else 0.0

    pair, steps = Pair(table_of(dtype), member.build), stream(steps=40, seed=2)
    path = pair.follow(steps, change)
    same(path)
    pair.assert_same_state()
    seen = torch.isin(keys_in(steps), keys_in(steps[:16]))
    assert (path[0, 15, seen] == 0).all(-1).any(), "some are zero while λ is on"
    assert (path[0, 23, seen] != 0).any(-1).sum() > (path[0, 15, seen] != 0).any(-1).sum(), "and return when it is off"


@one_of_each_kind
@over("norm", ["s_tilde", "metric"])
def test_norm_and_penalty_may_change_in_mid_run(member: Member, norm: str) -> None:
    def change(t: int, optimizer: GroupOptimizer) -> None:
        optimizer.param_groups[0].update(regularizer(member, "s" if t < 10 else norm, "mcp" if t < 15 else "hard"))

    pair = Pair(table_of(torch.float64), member.build)
    same(pair.follow(stream(seed=3), change))


@over(("dtype", "regularized"), [(torch.float64, False), (torch.float32, True)])
@every_member
def test_under_warm_restarts_of_rate_and_momentum_with_rests(
    member: Member, regularized: bool, dtype: torch.dtype
) -> None:
    def change(t: int, optimizer: GroupOptimizer) -> None:
        rest = 0.0 if t == 0 or t % 12 == 11 else 1e-6 if t % 12 == 10 else 1.0
        group, cosine = optimizer.param_groups[0], math.cos(math.pi * (t % 12) / 12)
        group["lr"] = member.lr * rest * (1 + cosine)
        if "betas" in group:
            group["betas"] = (0.85 + 0.05 * cosine, group["betas"][1])
        elif "momentum" in group:
            group["momentum"] = 0.85 + 0.05 * cosine

    options = regularizer(member) if regularized else {}
    pair = Pair(table_of(dtype), lambda weight: member.build(weight, **options))
    same(pair.follow(stream(steps=36, seed=5), change))
    pair.assert_same_state()


@over("dim", [1, 2, 3, 7, 8, 33])
@over("cls", [GroupAdam, GroupMomentum])
def test_rows_of_any_length(cls: type[GroupOptimizer], dim: int) -> None:
    for dtype in TOLERANCE:
        pair = Pair(table_of(dtype, dim), lambda weight: cls([weight], lr=0.03, l1=0.02, l21=0.8, l2=0.05))
        same(pair.follow(stream(steps=12, dim=dim, seed=6)))
        pair.assert_same_state()


OPTIONS: Mapping[str, tuple[type[GroupOptimizer], Mapping[str, Any]]] = {
    "maximize": (GroupAdam, {"maximize": True}),
    "betas and eps": (GroupAdam, {"betas": (0.5, 0.9), "eps": 0.1}),
    "no first moment": (GroupAdam, {"betas": (0.0, 0.99)}),
    "nesterov": (GroupMomentum, {"momentum": 0.7, "nesterov": True}),
    "no momentum": (GroupMomentum, {"momentum": 0.0}),
    "start and decay": (GroupAdagrad, {"initial_accumulator_value": 0.2, "lr_decay": 0.1}),
    "sigma 0": (GroupAdagrad, {"eps": 0.0}),
    "groups=0": (GroupAdam, {"groups": 0}),
    "mcp": (GroupAdam, {"penalty": MCP(gamma=1.2)}),
    "tensor lr": (GroupAdam, {"lr": torch.tensor(0.05)}),
    "a rule from outside": (GroupRMSprop, {}),
}


@over(("cls", "options"), OPTIONS.values())
def test_the_optimizers_other_arguments_mean_the_same(cls: type[GroupOptimizer], options: Mapping[str, Any]) -> None:
    for dtype in TOLERANCE:
        pair = Pair(table_of(dtype), lambda weight: cls([weight], **{"lr": 0.05, "l1": 0.02, "l21": 0.5, **options}))
        same(pair.follow(stream(steps=16, seed=7)))
        pair.assert_same_state()


any_key = st.integers(INT64.min, INT64.max) | st.sampled_from([0, -1, INT64.min, INT64.max]) | st.integers(-3, 3)


@one_of_each_kind
@given(batches=st.lists(st.lists(any_key, max_size=9), max_size=7), seed=st.integers(0, 99))
@settings(max_examples=12)
def test_whatever_keys_come(member: Member, batches: list[list[int]], seed: int) -> None:
    """Also batches of nothing, of one key many times, and steps after which no key is new."""
    if member.second_order:
        batches = [keys for keys in batches if keys]  # torch gives the lookup of nothing no graph
    pair = Pair(table_of(torch.float64), lambda weight: member.build(weight, **regularizer(member)))
    generator = torch.Generator().manual_seed(seed)
    for keys in map(as_keys, batches):
        shape = (*keys.shape, 5)
        lookup = Lookup(keys, torch.randn(shape, generator=generator), torch.rand(shape, generator=generator) + 0.1)
        for module, optimizer in pair.both:
            learn(module, optimizer, [lookup])
    keys = as_keys(pair.oracle.row_of)
    torch.testing.assert_close(*pair.vectors(keys), rtol=1e-10, atol=1e-10)
    assert pair.table.num_rows == len(keys) == len({key for batch in batches for key in batch})


@one_of_each_kind
def test_thousands_of_keys_in_a_batch(member: Member) -> None:
    """Enough for the paths that large batches take; Zipf-like, so that some keys come a hundred times."""
    generator = torch.Generator().manual_seed(0)
    pool = random_keys(20_000, seed=1)
    for dtype in TOLERANCE:
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
