"""Whatever carries out a step, it is `eager.advance`: one step from the same tensors gives the same numbers."""

import itertools
import math
from typing import Any

import pytest
import torch

from compiled_step_cases import (
    DTYPES,
    REGULARIZED,
    SOME_ROWS,
    assert_step,
    build,
    follow,
    give_gradient,
    parameter_of,
)
from optimizer_cases import ALL, KINDS, assert_identical, make
from over import over
from rmsprop import GroupRMSprop
from sparsegroup import GroupAdagrad, GroupAdam, GroupFTRL, GroupMomentum, GroupOptimizer
from sparsegroup.penalties import MCP

NORMS, PENALTIES = ("s", "s_tilde", "metric"), ("lasso", "mcp", "hard")
CROSSED = [
    (cls, norm, penalty)
    for turn, cls in enumerate((*ALL, GroupRMSprop))
    for i, norm in enumerate(NORMS)
    for j, penalty in enumerate(PENALTIES)
    if cls is GroupAdam or (i + turn) % 3 == j
]
"""Each rule with each norm and with each penalty, and Adam with each pair: those are compiled apart from the rule."""


@over(("cls", "norm", "penalty"), CROSSED)
def test_every_rule_norm_and_penalty(cls: type[GroupOptimizer], norm: str, penalty: str) -> None:
    options = {**REGULARIZED, "l21": 0.5 if norm == "s" else 0.2, "norm": norm, "penalty": penalty}
    dtypes = DTYPES if cls is not GroupRMSprop else (torch.float64,)
    for dtype, rows in itertools.product(dtypes, (lambda t: None, lambda t: SOME_ROWS[t])):
        x = parameter_of(9, 5, dtype=dtype)
        follow(build(cls, [x], **options), rows=rows)
        assert x.any()


@over("cls", ALL)
def test_hyperparameters_that_change_between_steps(cls: type[GroupOptimizer]) -> None:
    changes: list[dict[str, Any]] = [
        {},
        {"l21": 0.3},
        {"l1": 0.1, "lr": 0.0},
        {"lr": 1e-20},
        {"lr": torch.tensor(0.3)},
        {"l1": 0.0, "l21": 0.0},
        {"l2": 0.2, "norm": "metric", "penalty": "hard"},
        {"l21": 1e6},
        {"l21": 0.0, "lr": 1e-6},
        {"lr": 0.5},
    ]
    for dtype in DTYPES:
        x = parameter_of(9, 5, dtype=dtype)
        optimizer = build(cls, [x])
        for t, change in enumerate(changes):
            optimizer.param_groups[0].update(change)
            give_gradient(optimizer, x, t)
            assert_step(optimizer)


@over(
    ("cls", "options"),
    [
        (GroupMomentum, {"nesterov": True, "momentum": 0.7}),
        (GroupMomentum, {"momentum": 0.0}),
        (GroupAdagrad, {"eps": 0.0}),
        (GroupAdagrad, {"initial_accumulator_value": 0.1, "lr_decay": 0.3}),
        (GroupAdam, {"betas": (0.0, 0.0), "eps": 0.0}),
        (GroupAdam, {"eps": 1.0, "maximize": True, "weight_decay": 0.2}),
        (GroupAdam, {"penalty": MCP(gamma=1.01)}),
        (GroupFTRL, {"initial_accumulator_value": 0.0, "beta": 0.0}),
        (GroupFTRL, {"beta": 2.0, "weight_decay": 0.1}),
    ],
)
def test_other_arguments(cls: type[GroupOptimizer], options: dict[str, Any]) -> None:
    """With ε = 0 there are coordinates with σ = 0."""
    for dtype, regularizer in zip(DTYPES, ({"l21": 0.4}, {}, REGULARIZED), strict=True):
        follow(make(cls, [parameter_of(9, 5, dtype=dtype)], **options, **regularizer))


@over("cls", KINDS)
@over("regularizer", [{}, {"l1": 0.1}, {"l21": 0.3}, {"l21": 0.3, "penalty": "hard"}])
def test_what_is_not_finite_shows_in_the_same_places(cls: type[GroupOptimizer], regularizer: dict[str, Any]) -> None:
    """As in torch: a training run that diverged must not end as one with conveniently many zeros."""
    for bad, dtype in itertools.product((math.nan, math.inf, -math.inf), DTYPES):
        x = parameter_of(9, 5, dtype=dtype)
        optimizer = build(cls, [x], **regularizer)
        follow(optimizer, 1)
        give_gradient(optimizer, x, 1)
        x.grad = x.grad + torch.zeros(9, 5, dtype=dtype).index_put_(
            (torch.tensor(4), torch.tensor(2)), torch.tensor(bad, dtype=dtype)
        )
        assert_step(optimizer)
        assert not x[4].isfinite().all()
        assert x[:4].isfinite().all(), "other groups"
        give_gradient(optimizer, x, 2)
        assert_step(optimizer)
        assert not x[4].isfinite().all(), "nor does the next step hide it"


@over("cls", KINDS)
def test_gradients_of_extreme_size(cls: type[GroupOptimizer]) -> None:
    for magnitude, dtype in itertools.product((1e-30, 1e12), (torch.float64, torch.float32)):
        for options in ({}, {"l1": 0.1 * magnitude, "l21": 0.5 * magnitude}):
            x = parameter_of(9, 5, dtype=dtype)
            optimizer = build(cls, [x], **options)
            for t in range(3):
                give_gradient(optimizer, x, t, times=magnitude)
                assert_step(optimizer)


@over("cls", ALL)
def test_groups_that_never_had_a_gradient_are_left_alone(cls: type[GroupOptimizer]) -> None:
    untouched = [0, 4, 8]
    for dtype in DTYPES:
        x = parameter_of(9, 5, dtype=dtype)
        optimizer = build(cls, [x], **REGULARIZED)
        before = x.detach().clone()
        for t in range(3):
            mask = torch.ones(9, 1)
            mask[untouched] = 0.0 if t % 2 else -0.0
            give_gradient(optimizer, x, t, times=mask)
            assert_step(optimizer)
            assert_identical(x[untouched], before[untouched])
            u = optimizer.state[x]["u"][untouched]
            assert not u.any()
            assert not u.signbit().any()


@over("row", [-1, 5])
def test_a_row_that_does_not_exist_is_refused_before_anything_is_written(row: int) -> None:
    x = parameter_of(5, 2)
    before = x.detach().clone()
    with torch.sparse.check_sparse_tensor_invariants(False):
        x.grad = torch.sparse_coo_tensor([[row, 1]], torch.ones(2, 2, dtype=x.dtype), (5, 2))
    optimizer = GroupAdam([x], lr=0.1)
    with pytest.raises(IndexError, match=r"a sparse gradient has rows .* the parameter has 5"):
        optimizer.step()
    torch.testing.assert_close(x.detach(), before, rtol=0, atol=0)
