"""The Triton kernels take the step of `eager.advance`, whatever way the groups and their gradients come."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from gpu_cases import (
    DEVICE,
    HYPERPARAMETERS,
    KINDS,
    REGULARIZER,
    RULES,
    SEED,
    Case,
    Parts,
    assert_same_bits,
    assert_step,
    by_many,
    by_rows,
    by_runs,
    by_table,
    by_tensor,
    case,
    every_rule,
    every_way,
    mapped,
    received,
    rules_and_ways,
    sent,
    with_float32_state,
)
from over import over
from sparsegroup.kernels import rounding
from sparsegroup.kernels.gpu import launch
from sparsegroup.kernels.rounding import was_updated
from sparsegroup.kernels.step import Regularizer, StepScalars
from sparsegroup.penalties import Norm, Penalty
from sparsegroup.rules import ADAGRAD, ADAM, FTRL, Rule

Way = Callable[[Case], Parts]
NORMS, PENALTIES = ("s", "s_tilde", "metric"), ("lasso", "mcp", "hard")


@pytest.fixture(autouse=True)
def _numpy_is_quiet() -> Iterator[None]:
    """Triton's interpreter computes with NumPy, which warns where a GPU gives infinity or NaN."""
    with np.errstate(all="ignore"):
        yield


@every_rule
def test_every_rule_norm_and_penalty(rule: Rule) -> None:
    """Each rule with each norm and each penalty; Adam with each pair of these."""
    turned = (PENALTIES * 2)[RULES.index(rule) % 3 :][:3]
    for norm, penalty in itertools.product(NORMS, PENALTIES) if rule is ADAM else zip(NORMS, turned, strict=True):
        one = case(rule, (13, 5), replace(REGULARIZER, norm=Norm.of(norm), penalty=Penalty.of(penalty)))
        expected = one.expected()
        assert {bool(row.any()) for row in expected.x} == {False, True}
        assert_step(one, by_tensor(one), expected)


TYPES = ((torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.bfloat16, torch.bfloat16))
TYPES += ((torch.float16, torch.float32),)


@rules_and_ways(KINDS)
def test_every_type_of_weights_and_gradients_with_penalties_and_without(rule: Rule, way: Way) -> None:
    for dtype, gradient_dtype in TYPES if rule is ADAM else TYPES[:1]:
        one = case(rule, (13, 5), dtype=dtype, gradient_dtype=gradient_dtype)
        assert_step(one, way(one))
        one = case(rule, (13, 5), Regularizer(), dtype=dtype, gradient_dtype=gradient_dtype, carries_u=False)
        assert_step(one, way(one))


@over("way", [by_tensor, by_table])
def test_each_lambda_alone_and_none(way: Way) -> None:
    for number, on in enumerate(((), ("l1",), ("l21",), ("l2",))):
        rule, dtype = ((ADAM, torch.bfloat16), (FTRL, torch.float32))[number % 2]
        one = case(rule, (9, 4), Regularizer(**{name: getattr(REGULARIZER, name) for name in on}), dtype=dtype)
        assert_step(one, way(one))


@rules_and_ways(KINDS)
def test_a_learning_rate_of_0_moves_the_states_alone(rule: Rule, way: Way) -> None:
    one = case(rule, (9, 5), dtype=torch.bfloat16, frozen=True)
    after, expected = way(one), one.expected()
    assert_same_bits((after.x, after.u), (one.parts.x, one.parts.u))
    for value, wanted in zip(after.state, expected.state, strict=True):
        torch.testing.assert_close(value, wanted)
    one = case(rule, (9, 5), Regularizer(), carries_u=False, frozen=True)
    assert torch.equal(way(one).x, one.parts.x)


@every_way
def test_elements_of_a_curvature_of_0(way: Way) -> None:
    """σ = 0 where an element of a group has had no gradient, without ε."""
    zero = {**HYPERPARAMETERS, "eps": 0.0, "initial_accumulator_value": 0.0}
    for l1, norm in zip((0.0, 0.05, 0.0), NORMS, strict=True):
        one = case(ADAGRAD, (9, 5), Regularizer(l1=l1, l21=0.02, norm=Norm.of(norm)), hyperparameters=zero)
        one.parts.g[:, 1] = 0
        one.parts.state[0][:, 1] = 0
        one.parts.u[:, 1] = 0
        assert_step(one, way(one))


@rules_and_ways(KINDS, without=by_table)
def test_infinities_and_nan_go_through(rule: Rule, way: Way) -> None:
    for dtype, norm in ((torch.float32, "s"), (torch.bfloat16, "metric")):
        one = case(rule, (9, 5), replace(REGULARIZER, norm=Norm.of(norm)), dtype=dtype)
        one.parts.g[0, 1], one.parts.g[1, 2], one.parts.g[2, 3], one.parts.g[3, 4] = math.nan, math.inf, -math.inf, 1e30
        expected = one.expected()
        assert not expected.x[0].isfinite().all()
        assert_step(one, way(one), expected)


@over("width", [1, 3, 16, 100, 4096])
def test_groups_of_any_width(width: int) -> None:
    """One more of them than a program takes."""
    height = max(1, launch.TILE // launch.padded(width)) + 1
    one = case(ADAM, (height, width))
    expected = one.expected()
    for way in (by_tensor, by_many, by_rows, by_runs, by_table, partial(by_table, alignment=4)):
        assert_step(one, way(one), expected)


@over("l21", [0.0, 0.5])
@rules_and_ways(KINDS)
def test_state_in_bfloat16_is_rounded_by_chance(rule: Rule, way: Way, l21: float) -> None:
    dtype = torch.bfloat16 if l21 else torch.float32
    one = case(rule, (13, 5), replace(REGULARIZER, l21=l21), dtype=dtype, state_dtype=torch.bfloat16)
    after, exact = way(one), way(with_float32_state(one))
    assert_step(with_float32_state(one), exact)
    elements = torch.arange(13 * 5, dtype=torch.int32).view(13, 5)
    for part, (value, precise) in enumerate(zip((after.u, *after.state), (exact.u, *exact.state), strict=True)):
        assert value.dtype == torch.bfloat16
        assert ((value.float() - precise).abs() <= 2**-7 * precise.abs()).all()
        assert torch.equal(was_updated(value), was_updated(precise))
        # Elsewhere a sum in another order may have another last bit.
        if l21 == 0 or DEVICE.type == "cpu":
            assert_same_bits(value, rounding.to_bfloat16(precise, elements, SEED, part))


@rules_and_ways(KINDS, without=by_many)
def test_numbers_on_the_device_are_those_on_the_host(rule: Rule, way: Way) -> None:
    for frozen in (False, True):
        one = case(rule, (9, 5), state_dtype=torch.bfloat16, frozen=frozen)
        host = one.numbers
        scalars, start = (
            tuple(torch.tensor(value, device=DEVICE) for value in values) for values in (host.scalars, host.start)
        )
        seed = torch.tensor(host.seed, dtype=torch.int32, device=DEVICE)
        after, expected = way(replace(one, numbers=StepScalars(scalars, start, seed))), way(one)
        assert_same_bits((after.x, after.u, *after.state), (expected.x, expected.u, *expected.state))


def displaced(tensor: Tensor) -> Tensor:
    """A copy that begins at an odd element of its memory."""
    return torch.cat([tensor.flatten()[:1], tensor.flatten()])[1:].view_as(tensor)


@every_way
def test_tensors_anywhere_in_memory(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        one = case(ADAM, (9, 16), dtype=dtype, state_dtype=dtype)
        expected = way(one)
        with monkeypatch.context() as patch:
            patch.setattr("gpu_cases.sent", lambda parts: mapped(sent(parts), displaced))
            after = way(one)
        assert_same_bits((after.x, after.u, *after.state), (expected.x, expected.u, *expected.state))


def test_many_tensors_in_one_launch() -> None:
    """Of different lengths, more than one program's or none, aligned and not."""
    for width, heights in ((1, (1025, 1, 3, 0, 7)), (16, (64, 65, 1, 0, 200, 9))):
        for move in (lambda tensor: tensor, displaced):
            cases = [case(ADAM, (height, width)) for height in heights]
            many = [mapped(sent(one.parts), move) for one in cases]
            launch.step_many(ADAM, [parts.with_numbers(cases[0].numbers) for parts in many], width, cases[0].settings)
            for one, parts in zip(cases, many, strict=True):
                assert_step(one, received(parts))
