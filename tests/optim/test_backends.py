"""`bind`: the rules and the closed form of the prox run on NumPy from the same source, with the same numbers."""

import inspect
import math

import numpy as np
import torch

from over import over
from sparsegroup import prox, rules
from sparsegroup.penalties import Norm, Penalty
from sparsegroup.rules import Rule, bind

RULES = [value for value in vars(rules).values() if isinstance(value, Rule)]
HYPERPARAMETERS = {
    "betas": (0.9, 0.999),
    "eps": 1e-8,
    "momentum": 0.9,
    "nesterov": True,
    "lr_decay": 0.01,
    "initial_accumulator_value": 0.1,
    "beta": 0.5,
}
KINDS = [*Norm.known.values(), *Penalty.known.values()]
PROX = [function for function in vars(prox).values() if inspect.isfunction(function)]
PROX += [vars(kind)[name].__func__ for kind in KINDS for name in ("weigh", "shrinkage") if name in vars(kind)]
PROX = [  # not those of other tests
    function
    for function in PROX
    if function.__module__.startswith("sparsegroup.") and not function.__name__.startswith("_")
]


def same(ours: torch.Tensor, theirs: np.ndarray) -> None:
    np.testing.assert_allclose(np.asarray(theirs), ours.numpy(), rtol=1e-15, atol=0)


@over("rule", RULES)
def test_a_rule_gives_the_same_numbers_on_numpy(rule):
    generator = torch.Generator().manual_seed(0)
    update = bind(rule.update, np)
    state = [torch.full((7, 3), value, dtype=torch.float64) for value in rule.initial_state(HYPERPARAMETERS).values()]
    state_np = [value.numpy().copy() for value in state]
    for t in range(1, 6):
        inputs = torch.randn(1 + rule.has_second_input, 7, 3, dtype=torch.float64, generator=generator).unbind()
        inputs = [inputs[0], *(value.abs() for value in inputs[1:])]
        scalars = rule.host_scalars(HYPERPARAMETERS, t, lr=0.01)
        m, sigma, *state = rule.update(*inputs, *state, *scalars)
        m_np, sigma_np, *state_np = update(*[value.numpy() for value in inputs], *state_np, *scalars)
        for ours, theirs in zip([m, sigma, *state], [m_np, sigma_np, *state_np], strict=True):
            same(ours, theirs)


@over("function", PROX)
def test_a_function_of_the_prox_gives_the_same_numbers_on_numpy(function):
    """Also where σ or a norm is 0, where NumPy says what it divides by and torch does not."""
    generator = torch.Generator().manual_seed(1)
    zero, one = torch.zeros((), dtype=torch.float64), torch.ones((), dtype=torch.float64)
    constants = {"zero": zero, "one": one, "keep": one, "ratio": 1.5 * one, "tau": 0.4 * one, "l1": 0.3}
    arguments = {}
    for name in inspect.signature(function).parameters:
        value = torch.randn(64, dtype=torch.float64, generator=generator)
        if name in ("sigma", "c", "norm"):
            value = value.clamp(min=0)  # half of them 0
        arguments[name] = constants.get(name, value)
    as_numpy = {name: v.numpy() if isinstance(v, torch.Tensor) else v for name, v in arguments.items()}
    with np.errstate(divide="ignore", invalid="ignore"):
        result = bind(function, np)(**as_numpy)
    same(function(**arguments), result)
    assert np.isfinite(result).all()


def test_bind_leaves_the_original_alone_and_keeps_defaults_and_closures():
    update, root = rules.ADAM.update, 2.0

    def function(x, scale=3.0, *, shift=1.0):
        return xp.sqrt(x) * scale + shift * root  # noqa: F821

    bound = bind(update, np)
    assert bound is not update
    assert (update.__globals__["xp"], bound.__globals__["xp"]) == (torch, np)
    assert (bound.__name__, bound.__code__) == (update.__name__, update.__code__)
    assert bind(function, math)(4.0) == 8.0


@over("rule", RULES)
def test_a_rule_holds_no_numeric_literal(rule):
    """Numba would promote float32 by one, and lose half its speed."""
    functions = [rule.update, *PROX]
    for function in functions:
        assert not [c for c in function.__code__.co_consts if isinstance(c, int | float) and not isinstance(c, bool)]
