"""Rules: values of other implementations, and what a rule must declare."""

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from over import over
from rmsprop import GroupRMSprop, update
from rmsprop import scalars as rmsprop_scalars
from sparsegroup import GroupFTRL, GroupRowWiseAdagrad, prox, rules
from sparsegroup.penalties import Norm, Penalty
from sparsegroup.rules import ROWWISE_ADAGRAD, Hyperparameter, Rule, from_to, learning_rate

# FTRL: options, steps, and (x_1, g, expected x) of two variables; learning rate 3 and initial accumulator 0.1.
# From tensorflow/python/keras/optimizer_v2/ftrl_test.py; computed in float32.
PUBLISHED: Mapping[str, tuple[Mapping[str, Any], int, list[tuple[list[float], ...]]]] = {
    "from zero": (
        {},
        3,
        [([0, 0], [0.1, 0.2], [-2.60260963, -4.29698515]), ([0, 0], [0.01, 0.02], [-0.28432083, -0.56694895])],
    ),
    "from elsewhere": (
        {},
        3,
        [([1, 2], [0.1, 0.2], [-2.55607247, -3.98729396]), ([4, 3], [0.01, 0.02], [-0.28232238, -0.56096673])],
    ),
    "l1": (
        {"l1": 0.001},
        10,
        [([1, 2], [0.1, 0.2], [-7.66718769, -10.91273689]), ([4, 3], [0.01, 0.02], [-0.93460727, -1.86147261])],
    ),
    "l1 and l2": (
        {"l1": 0.001, "l2": 2.0},
        10,
        [([1, 2], [0.1, 0.2], [-0.24059935, -0.46829352]), ([4, 3], [0.01, 0.02], [-0.02406147, -0.04830509])],
    ),
}


@over("dtype", [torch.float32, torch.float64])
@over("case", PUBLISHED)
def test_ftrl_has_the_values_that_tensorflows_own_tests_publish(case: str, dtype: torch.dtype) -> None:
    options, steps, variables = PUBLISHED[case]
    parameters = [torch.nn.Parameter(torch.tensor(x, dtype=dtype)) for x, _, _ in variables]
    optimizer = GroupFTRL(parameters, lr=3.0, initial_accumulator_value=0.1, **options)
    for _ in range(steps):
        for parameter, (_, g, _) in zip(parameters, variables, strict=True):
            parameter.grad = torch.tensor(g, dtype=dtype)
        optimizer.step()
    for parameter, (_, _, expected) in zip(parameters, variables, strict=True):
        torch.testing.assert_close(parameter.detach(), torch.tensor(expected, dtype=dtype), rtol=1e-6, atol=0)


@over("options", [{}, {"lr_decay": 0.1, "initial_accumulator_value": 0.3, "eps": 1e-3}])
@over("sparse", [False, True])
@over("fused", [None, False])
def test_row_wise_adagrad_is_what_fbgemm_and_torchrec_write_down(
    options: dict[str, float], sparse: bool, fused: bool | None
) -> None:
    """x ← x - α_t g / (√sum + ε), sum ← sum + ‖g‖² / d."""
    rng = np.random.default_rng(0)
    start, gradients = rng.normal(size=(6, 5)), rng.normal(size=(20, 6, 5))
    x = torch.nn.Parameter(torch.from_numpy(start.copy()))
    optimizer = GroupRowWiseAdagrad([x], lr=0.1, fused=fused, **options)
    total = np.full((len(start), 1), options.get("initial_accumulator_value", 0.0))
    for t, g in enumerate(gradients):
        x.grad = torch.from_numpy(g).to_sparse(1) if sparse else torch.from_numpy(g)
        optimizer.step()
        total += (g * g).sum(axis=1, keepdims=True) / g.shape[1]
        start -= 0.1 / (1 + t * options.get("lr_decay", 0.0)) * g / (np.sqrt(total) + options.get("eps", 1e-10))
    np.testing.assert_allclose(x.detach().numpy(), start, rtol=1e-12)


def rmsprop(scalars: Any = rmsprop_scalars, state: Any = {"square_avg": 0.0}, names: Any = ("lr",)) -> Rule:  # noqa: B006
    return Rule("rmsprop", scalars, update, state, [learning_rate(0.1) for _ in names])


def like_rowwise(**changes: Any) -> Rule:
    like = ROWWISE_ADAGRAD
    fields = {"state": like.state, "hyperparameters": like.hyperparameters, "mean_square": True, **changes}
    return Rule("mine", like.scalars, like.update, **fields)


@over(
    ("make", "message"),
    [
        (rmsprop, "the rule 'rmsprop' reads 'alpha', which it does not declare"),
        (
            lambda: rmsprop(lambda lr: (lr,), {"a": "start"}),
            "the rule 'rmsprop' reads 'start', which it does not declare",
        ),
        (lambda: rmsprop(lambda lr: (lr,), {}, "ab"), "the rule 'rmsprop' declares a hyperparameter twice"),
        (lambda: Hyperparameter("alpha", 1, from_to(0, 1)), r"alpha must be in \[0, 1\), got 1 \(its default\)"),
        (lambda: like_rowwise(mean_square=False), "needs mean_square=True"),
        (lambda: like_rowwise(state={"group_sum": 0.0, "other": 0.0}), "must come after that of elements"),
        (lambda: like_rowwise(second_order=True), "both second_order and mean_square"),
        (lambda: GroupRMSprop([torch.ones(2)], l21=-1), r"l21 must be >= 0, got -1 \(param group 0\)"),
        (lambda: GroupRMSprop([torch.ones(2)], alpha=5), r"alpha must be in \[0, 1\), got 5 \(param group 0\)"),
    ],
)
def test_a_rule_that_cannot_be_is_refused_and_a_bad_argument_by_its_declaration(make: Any, message: str) -> None:
    """Also of a rule from another package."""
    with pytest.raises(ValueError, match=message):
        make()


def test_rules_norms_penalties_and_prox_hold_no_numeric_literal() -> None:
    """Numba would promote float32 by one, and lose half its speed."""
    functions = [rule.update for rule in vars(rules).values() if isinstance(rule, Rule)]
    functions += [one for one in vars(prox).values() if inspect.isfunction(one)]
    for kind in (*Norm.known.values(), *Penalty.known.values()):
        functions += [vars(kind)[name].__func__ for name in ("weigh", "shrinkage") if name in vars(kind)]
    for function in functions:
        assert not [c for c in function.__code__.co_consts if isinstance(c, int | float) and not isinstance(c, bool)]
