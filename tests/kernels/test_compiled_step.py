"""Compiled kernels take the step that PyTorch's operations take: from the same tensors come the same numbers.

For rules of each kind, and for tensors of any shape, grouping, width and layout in memory, on any number of threads.
"""

import copy
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fixed_gradients import Step, gradient_of
from optimizer_cases import KINDS, assert_identical, make, parameters_of
from over import over
from rmsprop import GroupRMSprop
from sparsegroup import (
    GroupAdaHessian,
    GroupAdam,
    GroupFTRL,
    GroupOptimizer,
    GroupSGD,
)
from table_cases import threads

DTYPES = (torch.float64, torch.float32, torch.bfloat16)
REGULARIZED = {"l1": 0.02, "l21": 0.5, "l2": 0.03}


def build(cls: type[GroupOptimizer], params: Any, **options: Any) -> GroupOptimizer:
    averaging = {"spatial_average_block_size": (1, 1, 1, 1)} if cls is GroupAdaHessian else {}
    return make(cls, params, **averaging, **options)


def compute_dtype(parameter: Tensor) -> torch.dtype:
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32


def tensors_of(optimizer: GroupOptimizer, parameter: Tensor) -> dict[str, Tensor]:
    """Copies of the weights and of all state but the step count."""
    state = {name: value for name, value in optimizer.state.get(parameter, {}).items() if name != "step"}
    return {name: value.detach().clone() for name, value in {"x": parameter, **state}.items()}


def by_pytorch(optimizer: GroupOptimizer) -> tuple[GroupOptimizer, list[Tensor]]:
    """A copy that takes PyTorch's operations, and its parameters, with the same gradients."""
    given = parameters_of(optimizer)
    params, copied = copy.deepcopy((given, optimizer))
    for group in copied.param_groups:
        group["foreach"] = True
    for x, its in zip(params, given, strict=True):
        if its.grad is not None:
            x.grad = gradient_of(x, its.given) if optimizer.rule.second_order else its.grad
    return copied, params


def assert_step(optimizer: GroupOptimizer) -> None:
    """Takes a step, which must be PyTorch's to a few roundings; zeros, and their signs in u, must be the same."""
    theirs, params = by_pytorch(optimizer)
    held = [tensors_of(optimizer, parameter) for parameter in parameters_of(optimizer)]
    optimizer.step()
    theirs.step()
    for parameter, before, other in zip(parameters_of(optimizer), held, params, strict=True):
        expected = tensors_of(theirs, other)
        after = tensors_of(optimizer, parameter)
        assert after.keys() == expected.keys()
        low_precision = parameter.dtype != compute_dtype(parameter)
        # A last bit in float32 decides now and then to which side a weight is rounded; u holds what that lost.
        other_side = low_precision & (after["x"] != expected["x"]) & expected["x"].isfinite()
        assert other_side.sum() <= 1 + 0.01 * parameter.numel()
        ulp = torch.finfo(parameter.dtype).eps
        torch.testing.assert_close(after["x"][other_side], expected["x"][other_side], rtol=ulp, atol=0)
        for name, value in after.items():
            where = ~other_side
            assert value.dtype == (parameter.dtype if name == "x" else compute_dtype(parameter))
            sizes = [tensor[tensor.isfinite()].abs() for tensor in (expected[name], before.get(name, expected[name]))]
            largest = max([float(size.max()) for size in sizes if size.numel()], default=0.0)
            tolerance = 64 * torch.finfo(compute_dtype(parameter)).eps * largest
            torch.testing.assert_close(
                value[where], expected[name][where], rtol=0, atol=tolerance, equal_nan=True, msg=lambda m, n=name: n + m
            )
            zero = (expected[name] == 0) & where
            torch.testing.assert_close(value[zero], expected[name][zero], rtol=0, atol=0)
            if name == "u":
                torch.testing.assert_close(value[zero].signbit(), expected[name][zero].signbit())


def normal(shape: Sequence[int], seed: int) -> Tensor:
    return torch.randn(tuple(shape), dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def parameter_of(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Parameter:
    return nn.Parameter((0.3 * normal(shape, seed)).to(dtype))


def give_gradient(
    optimizer: GroupOptimizer, parameter: Tensor, t: int, rows: list[int] | None = None, times: Tensor | float = 1.0
) -> None:
    """Some groups hard and some hardly pulled, some exactly 0, all of it `times`; a known Hessian for AdaHessian."""
    shape = parameter.shape if rows is None else (len(rows), *parameter.shape[1:])
    g, h = normal(shape, 100 + t), normal(shape, 200 + t).abs() + 0.1
    if shape and math.prod(shape):
        at = torch.arange(shape[0]) if rows is None else torch.tensor(rows)
        strength = torch.tensor([1.0, 0.05, 0.0])[(at + (t > 1)) % 3]
        g = g * strength.view(-1, *[1] * (len(shape) - 1))
    g, h = g * times, h * abs(times)
    second_order = optimizer.rule.second_order
    parameter.given = Step(0.0, g.numpy(), rows, h.numpy() if second_order else None)
    parameter.grad = gradient_of(parameter, parameter.given)


def follow(optimizer: GroupOptimizer, steps: int = 4, rows: Callable[[int], list[int] | None] = lambda t: None) -> None:
    for t in range(steps):
        for group in optimizer.param_groups:
            for index, parameter in enumerate(group["params"]):
                give_gradient(optimizer, parameter, t + 10 * index, rows(t))
        assert_step(optimizer)


SOME_ROWS = ([0, 3, 8], [8, 2, 3, 7], [1], [0, 1, 2, 3, 4, 5, 6, 7, 8])


# Rules and their arguments

NORMS, PENALTIES = ("s", "s_tilde", "metric"), ("lasso", "mcp", "hard")
CROSSED = [
    (cls, norm, penalty)
    for turn, cls in enumerate((*KINDS, GroupRMSprop))
    for i, norm in enumerate(NORMS)
    for j, penalty in enumerate(PENALTIES)
    if (i + turn) % 3 == j
]
"""Each norm and each penalty with a rule of each kind and one from another package; of all rules, in float64, see
`test_reference.py`."""


@over(("cls", "norm", "penalty"), CROSSED)
def test_every_norm_and_penalty(cls: type[GroupOptimizer], norm: str, penalty: str) -> None:
    options = {**REGULARIZED, "l21": 0.5 if norm == "s" else 0.2, "norm": norm, "penalty": penalty}
    dtypes = DTYPES[1:] if cls in KINDS else DTYPES[:1]
    for dtype, rows in itertools.product(dtypes, (lambda t: None, lambda t: SOME_ROWS[t])):
        x = parameter_of(9, 5, dtype=dtype)
        follow(build(cls, [x], **options), rows=rows)
        assert x.any()


@over("cls", KINDS)
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


@over("cls", KINDS)
@over("regularizer", [{}, {"l1": 0.1}, {"l21": 0.3}, {"l21": 0.3, "penalty": "hard"}])
def test_what_is_not_finite_shows_in_the_same_places(cls: type[GroupOptimizer], regularizer: dict[str, Any]) -> None:
    """As in torch: a training run that diverged must not end as one with conveniently many zeros."""
    for bad, dtype in itertools.product((math.nan, math.inf, -math.inf), DTYPES):
        x = parameter_of(9, 5, dtype=dtype)
        optimizer = build(cls, [x], **regularizer)
        follow(optimizer, 1)
        give_gradient(optimizer, x, 1)
        x.given.gradient[4, 2] = bad
        x.grad = gradient_of(x, x.given)
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


# Shapes, groups and layouts in memory


def in_memory(values: Tensor, how: str) -> nn.Parameter:
    """A parameter with these values: among others, at an odd start, or as they are."""
    if how == "sliced":
        among = torch.full([2 * size + 1 for size in values.shape], 9.0, dtype=values.dtype)
        view = among[tuple(slice(1, None, 2) for _ in values.shape)]
        view[...] = values
        return nn.Parameter(view)
    if how == "an odd start" and values.numel():
        strides = values.stride()
        memory = torch.zeros(2 + sum((n - 1) * stride for n, stride in zip(values.shape, strides, strict=True)))
        view = memory.to(values.dtype).as_strided(values.shape, strides, 1)
        view.copy_(values)
        return nn.Parameter(view)
    return nn.Parameter(values)


@given(
    shape=st.lists(st.integers(0, 5), max_size=4),
    seed=st.integers(0, 1000),
    cls=st.sampled_from(KINDS),
    dtype=st.sampled_from(DTYPES),
    l1=st.sampled_from([0.0, 0.1]),
    l21=st.sampled_from([0.0, 0.3]),
    how=st.sampled_from(["plain", "sliced", "an odd start"]),
    order=st.randoms(use_true_random=False),
)
@settings(max_examples=60)
def test_any_shape_and_grouping_in_any_order_of_memory(
    shape: list[int],
    seed: int,
    cls: type[GroupOptimizer],
    dtype: torch.dtype,
    l1: float,
    l21: float,
    how: str,
    order: Any,
) -> None:
    permutation = list(range(len(shape)))
    order.shuffle(permutation)
    inverse = [permutation.index(d) for d in range(len(shape))]
    values = (0.3 * normal([shape[d] for d in permutation], seed)).to(dtype)
    x = in_memory(values.permute(inverse), how)
    assert list(x.shape) == shape
    stride = x.stride()
    specs: list[Any] = ["rows", "channels", "all"]
    if shape:
        specs += [torch.tensor([(3 * row) % 4 for row in range(shape[0])], dtype=torch.int64)]
        specs += [order.randrange(len(shape)), -1, *(["columns"] if len(shape) > 1 else [])]
    follow(build(cls, [x], groups=order.choice(specs), l1=l1, l21=l21), steps=3)
    assert x.stride() == stride


WIDTHS = (1, 2, 3, 8, *(size + more for size in (16, 256, 272) for more in (-1, 0, 1)), 1024, 10_001)


@over("width", WIDTHS)
def test_rows_of_any_width(width: int) -> None:
    """Also such as fill a cache or a block exactly, or by one element too few or too many."""
    for norm, dtype in (("s", torch.float64), ("metric", torch.float32)):
        for rows in (lambda t: None, lambda t: SOME_ROWS[t]):
            optimizer = GroupAdam([parameter_of(9, width, dtype=dtype)], lr=0.1, norm=norm, l1=0.02, l21=0.3)
            follow(optimizer, steps=3, rows=rows)


@over("shape", [(20_011,), (9001, 2), (1, 20_003), (700, 7, 7)])
@over("spec", ["rows", "all", -1])
def test_tensors_of_many_blocks(shape: tuple[int, ...], spec: str | int) -> None:
    for dtype in DTYPES:
        follow(GroupAdam([parameter_of(*shape, dtype=dtype)], lr=0.1, groups=spec, **REGULARIZED), steps=2)


@over(("cls", "shape"), [(GroupSGD, (9,)), (GroupFTRL, (9, 3, 1, 2))])
def test_sparse_gradients_of_any_dimension(cls: type[GroupOptimizer], shape: tuple[int, ...]) -> None:
    for dtype in DTYPES:
        follow(build(cls, [parameter_of(*shape, dtype=dtype)], **REGULARIZED), rows=lambda t: SOME_ROWS[t])


def test_a_sparse_gradient_with_rows_that_come_twice_or_not_at_all() -> None:
    for dtype in DTYPES:
        x = parameter_of(9, 5, dtype=dtype)
        optimizer = GroupAdam([x], lr=0.1, maximize=True, **REGULARIZED)
        for t, rows in enumerate(([3, 1, 3, 3], [], [8, 8], [2, 5])):
            values, at = normal((len(rows), 5), t).to(dtype), torch.tensor([rows], dtype=torch.int64)
            gradient = torch.sparse_coo_tensor(at, values, x.shape, check_invariants=True)
            x.grad = gradient if t < 3 else gradient.coalesce()
            before = x.grad.to_dense()
            assert_step(optimizer)
            assert_identical(x.grad.to_dense(), before)
            if t == 0:  # rows that come twice are summed in the dtype that is computed in
                summed = gradient.to(compute_dtype(x)).to_dense()
                torch.testing.assert_close(optimizer.state[x]["exp_avg"], -0.1 * summed)
        assert optimizer.state[x]["step"] == 4


def gradient_layouts(g: Tensor) -> dict[str, Tensor]:
    wide = torch.full((*g.shape[:-1], 2 * g.shape[-1]), math.nan, dtype=g.dtype)
    wide[..., ::2] = g
    return {
        "transposed": g.t().contiguous().t(),
        "sliced": wide[..., ::2],
        "an odd start": torch.cat([g.flatten()[:1], g.flatten()])[1:].view_as(g),
        "stride 0": g[:1].expand_as(g),
        "one element": g[:1, :1].expand_as(g),
    }


@over("layout", gradient_layouts(torch.zeros(2, 2)))
@over("transposed", [False, True])
def test_gradients_in_any_memory_layout(layout: str, transposed: bool) -> None:
    for dtype in DTYPES:
        x = parameter_of(6, 10, dtype=dtype)
        if transposed:
            x = nn.Parameter(x.detach().t().contiguous().t())
        optimizer = GroupAdam([x], lr=0.1, maximize=True, weight_decay=0.1, **REGULARIZED)
        for t in range(3):
            x.grad = gradient_layouts(normal((6, 10), t).to(dtype))[layout]
            before, start = x.grad.clone(), x.detach().clone().to(compute_dtype(x))
            assert_step(optimizer)
            assert_identical(x.grad, before)
            if t == 0:  # the gradient is of the other sign, and weights decay in the dtype that is computed in
                torch.testing.assert_close(optimizer.state[x]["exp_avg"], 0.1 * (0.1 * start - before.to(start.dtype)))


def test_many_parameters_of_all_kinds_in_one_step() -> None:
    """Of different dtypes, sizes, groups, rates and λ's, dense and sparse, with and without u."""
    shapes = [(), (3,), (40, 3), (17,), (5, 5, 2), (1000, 8), (2, 3000), (0, 3), (1,)]
    groups: list[dict[str, Any]] = [
        {"params": [parameter_of(*shape, dtype=dtype, seed=i) for i, shape in enumerate(shapes)], **options}
        for dtype in DTYPES
        for options in (
            {"lr": 0.2},
            {"l21": 0.3, "norm": "metric"},
            {"l1": 0.1, "groups": "all", "lr": 0.0},
            {"l2": 0.1, "l21": 0.4, "penalty": "mcp", "betas": (0.5, 0.9), "maximize": True},
        )
    ]
    tables = [parameter_of(9, 4, dtype=dtype) for dtype in DTYPES]
    optimizer = GroupAdam([*groups, {"params": tables, "l21": 0.2}], lr=0.1)
    for t in range(3):
        for index, parameter in enumerate(p for group in groups for p in group["params"]):
            if (index + t) % 5:
                give_gradient(optimizer, parameter, t + index)
            else:
                parameter.grad = None
        for parameter in tables:
            give_gradient(optimizer, parameter, t, SOME_ROWS[t])
        assert_step(optimizer)


@over(("shape", "classes"), [((9001, 11), KINDS), ((9, 20_000), [GroupAdam]), ((100_003,), [GroupAdam])])
def test_one_and_two_threads_give_the_same_bits(
    shape: tuple[int, ...], classes: Sequence[type[GroupOptimizer]]
) -> None:
    def run(cls: type[GroupOptimizer], count: int) -> list[dict[str, Tensor]]:
        xs = [parameter_of(*shape, dtype=torch.float32), parameter_of(5, 5), parameter_of(*shape, dtype=torch.float32)]
        optimizer = build(cls, xs, **REGULARIZED)
        with threads(count):
            for t in range(2):
                for x in xs[:2]:
                    give_gradient(optimizer, x, t)
                give_gradient(optimizer, xs[2], t, list(range(1, 9)) if len(shape) == 2 else None)
                optimizer.step()
        return [tensors_of(optimizer, x) for x in xs]

    for cls in classes:
        assert_identical(run(cls, 2), run(cls, 1))
