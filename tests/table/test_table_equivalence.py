"""The main test: a table trained by any optimizer is `nn.Embedding(sparse=True)` trained by the same one."""

from collections.abc import Mapping
from typing import Any

import torch

from family import FAMILY, Member, regularizer
from optimizer_cases import ALLOW_CREATE_GRAPH
from over import over
from rmsprop import GroupRMSprop
from sparsegroup import MCP, GroupAdagrad, GroupAdam, GroupOptimizer
from table_cases import Lookup, as_keys, keys_in, learn, random_keys, stream
from table_pairs import NORMS, PENALTIES, Pair, same, table_of

pytestmark = ALLOW_CREATE_GRAPH

ADAM = FAMILY["adam"]
PAIRS = [
    *((name, NORMS[turn % 3], PENALTIES[turn // 3], torch.float64) for turn, name in enumerate(FAMILY)),
    *((name, "s", "lasso", torch.float32) for name in ("adam", "rowwise_adagrad")),
]
"""Each optimizer once, with each norm and each penalty among them: those are compiled apart from the rule."""


@over(("name", "norm", "penalty", "dtype"), PAIRS)
def test_a_table_is_a_sparse_embedding(name: str, norm: str, penalty: str, dtype: torch.dtype) -> None:
    member = FAMILY[name]
    pair = Pair(table_of(dtype), lambda weight: member.build(weight, **regularizer(member, norm, penalty)))
    path = pair.follow(stream())
    same(path)
    pair.assert_same_state()
    dead = float((path[0, -1] == 0).all(-1).double().mean())
    assert 0.02 < dead < 0.98
    assert pair.table.num_rows == len(pair.oracle.row_of)


@over("member", [ADAM, FAMILY["ftrl"]])
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
    *((GroupAdam, dim, {}) for dim in (1, 3, 8, 33, 300)),
    (GroupAdam, 5, {"maximize": True}),
    (GroupAdagrad, 5, {"initial_accumulator_value": 0.2, "lr_decay": 0.1}),
    (GroupAdam, 5, {"groups": 0}),
    (GroupAdam, 5, {"penalty": MCP(gamma=1.2)}),
    (GroupAdam, 5, {"lr": torch.tensor(0.05)}),
    (GroupRMSprop, 5, {}),
)


@over(("cls", "dim", "options"), OPTIONS)
def test_rows_of_any_length_and_the_optimizers_other_arguments(
    cls: type[GroupOptimizer], dim: int, options: Mapping[str, Any]
) -> None:
    dtype = torch.float32 if dim in (3, 8) else torch.float64
    options = {"lr": 0.05, "l1": 0.02, "l21": 0.5, **options}
    pair = Pair(table_of(dtype, dim), lambda weight: cls([weight], **options))
    same(pair.follow(stream(steps=12, dim=dim, seed=7)))
    pair.assert_same_state()


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
