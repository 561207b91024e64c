"""Whatever carries out a step, it is `kernels.eager.advance`: one step from the same tensors gives the same numbers."""

import copy
import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from family import FAMILY
from fixed_gradients import Step, gradient_of
from optimizer_cases import assert_identical, make
from rmsprop import GroupRMSprop
from sparsegroup import GroupAdagrad, GroupAdaHessian, GroupAdam, GroupFTRL, GroupMomentum, GroupOptimizer, GroupSGD
from sparsegroup.groups import GroupSpec, grouping
from sparsegroup.kernels.eager import eager_step
from sparsegroup.kernels.regularizer import Regularizer
from sparsegroup.penalties import MCP

CLASSES = (*(member.optimizer for member in FAMILY.values()), GroupRMSprop)
DTYPES = (torch.float64, torch.float32, torch.bfloat16)
REGULARIZED = {"l1": 0.02, "l21": 0.5, "l2": 0.03}
every_class = pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def build(cls: type[GroupOptimizer], params: Any, **options: Any) -> GroupOptimizer:
    averaging = {"spatial_average_block_size": (1, 1, 1, 1)} if cls is GroupAdaHessian else {}
    return make(cls, params, **averaging, **options)


def compute_dtype(parameter: Tensor) -> torch.dtype:
    return torch.float64 if parameter.dtype == torch.float64 else torch.float32


def tensors_of(optimizer: GroupOptimizer, parameter: Tensor) -> dict[str, Tensor]:
    """Copies of the weights and of all state but the step count."""
    state = {name: value for name, value in optimizer.state.get(parameter, {}).items() if name != "step"}
    return {name: value.detach().clone() for name, value in {"x": parameter, **state}.items()}


def expected_step(optimizer: GroupOptimizer, group: Mapping[str, Any], parameter: Tensor) -> dict[str, Tensor]:
    """The weights and the state that the next step should leave, by one call of `eager_step.advance`."""
    rule, dtype = optimizer.rule, compute_dtype(parameter)
    gradient = parameter.grad.detach().to(dtype)
    rows = slice(None)
    if gradient.is_sparse:
        gradient = gradient.coalesce()
        rows, gradient = gradient.indices()[0], gradient.values()
    elif parameter.ndim == 0:
        rows = ()
    gradient = -gradient if group["maximize"] else gradient
    if group.get("weight_decay"):
        gradient = gradient + group["weight_decay"] * parameter.detach().to(dtype)[rows]

    initial = rule.initial_state(group)
    after = tensors_of(optimizer, parameter)
    for name, value in initial.items():
        after.setdefault(name, torch.full_like(parameter.detach(), value, dtype=dtype))
    regularizer = Regularizer.of(group)
    if regularizer.active or dtype != parameter.dtype or rule.sigma_0 is not None:
        after.setdefault("u", torch.zeros_like(parameter.detach(), dtype=dtype))

    lr = float(group["lr"])
    frozen = lr < 2.0**-50
    rate = 1.0 if frozen else lr
    t = int(optimizer.state[parameter]["step"]) + 1 if parameter in optimizer.state else 1
    block = eager_step.Block(
        after["x"].to(dtype)[rows],
        after["u"][rows] if "u" in after else None,
        [after[name][rows] for name in rule.state],
    )
    result = eager_step.advance(
        rule,
        block,
        [gradient, *([parameter.curvature.to(dtype).abs()] if rule.second_order else [])],
        rule.host_scalars(group, t, rate),
        list(initial.values()),
        None if rule.sigma_0 is None else rule.host_sigma_0(group, rate),
        regularizer,
        grouping(group["groups"], block.x.shape, parameter.device),
        parameter.dtype,
    )
    moved = {} if frozen else {"x": result.x, **({} if result.u is None else {"u": result.u})}
    for name, value in {**moved, **dict(zip(rule.state, result.state, strict=True))}.items():
        after[name][rows] = value.to(after[name].dtype)
    return after


def assert_step(optimizer: GroupOptimizer) -> None:
    """Takes a step, which must be the eager one to a few roundings; zeros, and their signs in u, must be the same."""
    planned = [
        (p, tensors_of(optimizer, p), expected_step(optimizer, group, p))
        for group in optimizer.param_groups
        for p in group["params"]
        if p.grad is not None
    ]
    optimizer.step()
    for parameter, before, expected in planned:
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
    parameter.grad = gradient_of(parameter, Step(0.0, g.numpy(), rows, h.numpy() if second_order else None))
    # In the order in which `expected_step` has the rows.
    parameter.curvature = (h if rows is None else h[torch.tensor(rows).argsort()]).to(parameter.dtype)


def follow(optimizer: GroupOptimizer, steps: int = 4, rows: Callable[[int], list[int] | None] = lambda t: None) -> None:
    for t in range(steps):
        for group in optimizer.param_groups:
            for index, parameter in enumerate(group["params"]):
                give_gradient(optimizer, parameter, t + 10 * index, rows(t))
        assert_step(optimizer)


SOME_ROWS = ([0, 3, 8], [8, 2, 3, 7], [1], [0, 1, 2, 3, 4, 5, 6, 7, 8])


@every_dtype
@pytest.mark.parametrize("penalty", ["lasso", "mcp", "hard"])
@pytest.mark.parametrize("norm", ["s", "s_tilde", "metric"])
@every_class
def test_every_rule_norm_and_penalty(cls: type[GroupOptimizer], norm: str, penalty: str, dtype: torch.dtype) -> None:
    options = {**REGULARIZED, "l21": 0.5 if norm == "s" else 0.2, "norm": norm, "penalty": penalty}
    for rows in (lambda t: None, lambda t: SOME_ROWS[t]):
        x = parameter_of(9, 5, dtype=dtype)
        follow(build(cls, [x], **options), rows=rows)
        assert x.any()


@every_dtype
@pytest.mark.parametrize("on", [(), ("l1",), ("l21",), ("l2",)], ids=lambda on: "+".join(on) or "none")
@every_class
def test_each_lambda_alone_and_none(cls: type[GroupOptimizer], on: tuple[str, ...], dtype: torch.dtype) -> None:
    options = {name: value for name, value in REGULARIZED.items() if name in on}
    for rows in (lambda t: None, lambda t: SOME_ROWS[t]):
        follow(build(cls, [parameter_of(9, 4, dtype=dtype)], **options), rows=rows)


SPECS: tuple[GroupSpec, ...] = ("rows", "columns", "channels", "all", 0, 1, -1, 2, "index")
SHAPES = ((), (1,), (7,), (300,), (1, 1), (5, 3), (13, 17), (64, 40), (3, 5, 2), (4, 3, 3, 2), (2, 3, 1, 2, 2))
EMPTY = ((0,), (0, 3), (3, 0), (0, 0, 2), (2, 0, 3))


def fits(spec: GroupSpec, shape: Sequence[int]) -> bool:
    if not shape:
        return spec != "index"
    return spec in ("rows", "channels", "all", "index", 0, -1) or len(shape) > (spec if isinstance(spec, int) else 1)


@pytest.mark.parametrize(
    ("shape", "spec"), [(shape, spec) for shape in (*SHAPES, *EMPTY) for spec in SPECS if fits(spec, shape)], ids=str
)
def test_every_shape_and_grouping(shape: tuple[int, ...], spec: GroupSpec) -> None:
    for cls in (GroupAdam, GroupSGD, GroupFTRL, GroupAdaHessian):
        for dtype in (torch.float64, torch.float32):
            groups = torch.arange(shape[0]) % 3 if spec == "index" else spec
            follow(build(cls, [parameter_of(*shape, dtype=dtype)], groups=groups, **REGULARIZED), steps=3)


WIDTHS = (
    1,
    2,
    3,
    4,
    5,
    7,
    8,
    9,
    15,
    16,
    17,
    31,
    33,
    63,
    64,
    65,
    127,
    129,
    255,
    256,
    257,
    271,
    272,
    273,
    511,
    513,
    1025,
)


@pytest.mark.parametrize("norm", ["s", "s_tilde", "metric"])
@pytest.mark.parametrize("width", [*WIDTHS, 4095, 4096, 4097, 10_001])
def test_rows_of_any_width(width: int, norm: str) -> None:
    """Also such as fill a cache or a block exactly, or by one element too few or too many."""
    for dtype in (torch.float64, torch.float32):
        for rows in (lambda t: None, lambda t: SOME_ROWS[t]):
            optimizer = GroupAdam([parameter_of(9, width, dtype=dtype)], lr=0.1, norm=norm, l1=0.02, l21=0.3)
            follow(optimizer, steps=3, rows=rows)


@pytest.mark.parametrize("shape", [(20_011,), (9001, 2), (1, 20_003), (40, 701), (700, 7, 7)], ids=str)
@pytest.mark.parametrize("spec", ["rows", "all", -1])
def test_tensors_of_many_blocks(shape: tuple[int, ...], spec: GroupSpec) -> None:
    for dtype in DTYPES:
        follow(GroupAdam([parameter_of(*shape, dtype=dtype)], lr=0.1, groups=spec, **REGULARIZED), steps=2)


@pytest.mark.parametrize("cls", [GroupSGD, GroupAdam])
@pytest.mark.parametrize("shape", [(9,), (9, 2, 3), (9, 3, 1, 2)], ids=str)
def test_sparse_gradients_of_any_dimension(cls: type[GroupOptimizer], shape: tuple[int, ...]) -> None:
    for dtype in DTYPES:
        follow(make(cls, [parameter_of(*shape, dtype=dtype)], **REGULARIZED), rows=lambda t: SOME_ROWS[t])


def test_a_sparse_gradient_with_rows_that_come_twice_or_not_at_all() -> None:
    for dtype in DTYPES:
        x = parameter_of(9, 5, dtype=dtype)
        optimizer = GroupAdam([x], lr=0.1, **REGULARIZED)
        for t, rows in enumerate(([3, 1, 3, 3], [], [8, 8], [])):
            values = normal((len(rows), 5), t).to(dtype)
            at = torch.tensor([rows], dtype=torch.int64)
            x.grad = torch.sparse_coo_tensor(at, values, x.shape, check_invariants=True)
            assert_step(optimizer)
        assert optimizer.state[x]["step"] == 4


def test_a_million_rows_with_a_gradient_for_a_few() -> None:
    x = parameter_of(1_000_000, 2, dtype=torch.float32)
    optimizer = GroupAdam([x], lr=0.1, **REGULARIZED)
    for t in range(2):
        give_gradient(optimizer, x, t, [0, 17, 999_999, 500_000])
        assert_step(optimizer)


def layouts(dtype: torch.dtype) -> dict[str, nn.Parameter]:
    """Parameters of shape [6, 4, 3, 5] in memory of different order."""
    values = (0.3 * normal((6, 4, 3, 5), 0)).to(dtype)
    spacious = torch.full((12, 5, 3, 10), 9.0, dtype=dtype)
    spacious[::2, 1:, :, ::2] = values
    return {
        "transposed": nn.Parameter(values.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)),
        "channels last": nn.Parameter(values.contiguous(memory_format=torch.channels_last)),
        "sliced": nn.Parameter(spacious[::2, 1:, :, ::2]),
        "rows sliced": nn.Parameter(torch.cat([values, values])[1::2]),
        "an odd start": nn.Parameter(torch.cat([values.flatten()[:1], values.flatten()])[1:].view_as(values)),
    }


@every_dtype
@pytest.mark.parametrize("layout", layouts(torch.float64))
@pytest.mark.parametrize("spec", ["rows", "columns", "all", 2, torch.tensor([1, 0, 1, 4, 0, 1])], ids=str)
def test_parameters_in_any_memory_layout(layout: str, spec: GroupSpec, dtype: torch.dtype) -> None:
    for cls in (GroupAdam, GroupSGD):
        x = layouts(dtype)[layout]
        stride = x.stride()
        follow(make(cls, [x], groups=spec, **REGULARIZED), steps=3)
        assert x.stride() == stride


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


@every_dtype
@pytest.mark.parametrize("layout", gradient_layouts(torch.zeros(2, 2)))
@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_in_any_memory_layout(layout: str, transposed: bool, dtype: torch.dtype) -> None:
    x = parameter_of(6, 10, dtype=dtype)
    if transposed:
        x = nn.Parameter(x.detach().t().contiguous().t())
    optimizer = GroupAdam([x], lr=0.1, maximize=True, weight_decay=0.1, **REGULARIZED)
    for t in range(3):
        x.grad = gradient_layouts(normal((6, 10), t).to(dtype))[layout]
        before = x.grad.clone()
        assert_step(optimizer)
        assert_identical(x.grad, before)


def test_memory_that_moves_between_steps() -> None:
    """Weights, state and gradients may lie elsewhere at each step, and a state may be replaced."""
    x = parameter_of(7, 7)
    optimizer = GroupAdam([x], lr=0.1, **REGULARIZED)
    follow(optimizer, 2)
    x.data = x.data.t()  # the same address and shape, and other strides
    follow(optimizer, 1)
    x.data = x.data.t()
    follow(optimizer, 1)
    optimizer.state[x]["u"].data = optimizer.state[x]["u"].data.clone()
    follow(optimizer, 1)
    x.data = x.data.clone() + 0.5
    follow(optimizer, 1)
    optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    follow(optimizer, 1)
    optimizer.state[x]["exp_avg"] = optimizer.state[x]["exp_avg"] * 2
    x.data = x.data.t().contiguous().t()
    follow(optimizer, 2)


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


@every_class
@every_dtype
def test_hyperparameters_that_change_between_steps(cls: type[GroupOptimizer], dtype: torch.dtype) -> None:
    x = parameter_of(9, 5, dtype=dtype)
    optimizer = build(cls, [x])
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
    for t, change in enumerate(changes):
        optimizer.param_groups[0].update(change)
        give_gradient(optimizer, x, t)
        assert_step(optimizer)


@pytest.mark.parametrize(
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
    ids=str,
)
@pytest.mark.parametrize("regularizer", [{}, REGULARIZED, {"l21": 0.4}], ids=["none", "all", "l21"])
def test_other_arguments(cls: type[GroupOptimizer], options: dict[str, Any], regularizer: dict[str, Any]) -> None:
    """With ε = 0 there are coordinates with σ = 0."""
    for dtype in DTYPES:
        follow(make(cls, [parameter_of(9, 5, dtype=dtype)], **options, **regularizer))


@every_class
@pytest.mark.parametrize("regularizer", [{}, {"l1": 0.1}, {"l21": 0.3}, {"l21": 0.3, "penalty": "hard"}], ids=str)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_shows_in_the_same_places(
    cls: type[GroupOptimizer], regularizer: dict[str, Any], bad: float
) -> None:
    for dtype in DTYPES:
        x = parameter_of(9, 5, dtype=dtype)
        optimizer = build(cls, [x], **regularizer)
        follow(optimizer, 1)
        give_gradient(optimizer, x, 1)
        x.grad = x.grad + torch.zeros(9, 5, dtype=dtype).index_put_(
            (torch.tensor(4), torch.tensor(2)), torch.tensor(bad, dtype=dtype)
        )
        assert_step(optimizer)
        assert not x[4].isfinite().all()


@every_class
@pytest.mark.parametrize("magnitude", [1e-30, 1e-12, 1e12])
def test_gradients_of_extreme_size(cls: type[GroupOptimizer], magnitude: float) -> None:
    for dtype in (torch.float64, torch.float32):
        for options in ({}, {"l1": 0.1 * magnitude, "l21": 0.5 * magnitude}):
            x = parameter_of(9, 5, dtype=dtype)
            optimizer = build(cls, [x], **options)
            for t in range(3):
                give_gradient(optimizer, x, t, times=magnitude)
                assert_step(optimizer)


@every_class
@every_dtype
def test_groups_that_never_had_a_gradient_are_left_alone(cls: type[GroupOptimizer], dtype: torch.dtype) -> None:
    x = parameter_of(9, 5, dtype=dtype)
    optimizer = build(cls, [x], **REGULARIZED)
    before = x.detach().clone()
    untouched = [0, 4, 8]
    for t in range(3):
        mask = torch.ones(9, 1)
        mask[untouched] = 0.0 if t % 2 else -0.0
        give_gradient(optimizer, x, t, times=mask)
        assert_step(optimizer)
        assert_identical(x[untouched], before[untouched])
        u = optimizer.state[x]["u"][untouched]
        assert not u.any()
        assert not u.signbit().any()


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@every_class
@pytest.mark.parametrize("shape", [(9001, 11), (9, 20_000), (100_003,)], ids=str)
def test_one_and_two_threads_give_the_same_bits(cls: type[GroupOptimizer], shape: tuple[int, ...]) -> None:
    def run(count: int) -> list[dict[str, Tensor]]:
        xs = [parameter_of(*shape, dtype=torch.float32), parameter_of(5, 5), parameter_of(*shape, dtype=torch.float32)]
        optimizer = build(cls, xs, **REGULARIZED)
        with threads(count):
            for t in range(2):
                for x in xs[:2]:
                    give_gradient(optimizer, x, t)
                give_gradient(optimizer, xs[2], t, list(range(1, 9)) if len(shape) == 2 else None)
                optimizer.step()
        return [tensors_of(optimizer, x) for x in xs]

    assert_identical(run(2), run(1))


@given(
    shape=st.lists(st.integers(0, 6), max_size=4),
    seed=st.integers(0, 1000),
    cls=st.sampled_from(CLASSES),
    dtype=st.sampled_from(DTYPES),
    l1=st.sampled_from([0.0, 0.1]),
    l21=st.sampled_from([0.0, 0.3]),
    order=st.randoms(use_true_random=False),
)
@settings(derandomize=True, deadline=None, max_examples=150, database=None)
def test_any_shape_in_any_order_of_memory(
    shape: list[int], seed: int, cls: type[GroupOptimizer], dtype: torch.dtype, l1: float, l21: float, order: Any
) -> None:
    permutation = list(range(len(shape)))
    order.shuffle(permutation)
    inverse = [permutation.index(d) for d in range(len(shape))]
    values = (0.3 * normal([shape[d] for d in permutation], seed)).to(dtype)
    x = nn.Parameter(values.permute(inverse))
    assert list(x.shape) == shape
    dimension = order.randrange(len(shape)) if shape else "rows"
    follow(build(cls, [x], groups=order.choice(["rows", "all", dimension]), l1=l1, l21=l21), steps=3)


@pytest.mark.parametrize("row", [-1, 5])
def test_a_row_that_does_not_exist_is_refused_before_anything_is_written(row: int) -> None:
    x = parameter_of(5, 2)
    before = x.detach().clone()
    with torch.sparse.check_sparse_tensor_invariants(False):
        x.grad = torch.sparse_coo_tensor([[row, 1]], torch.ones(2, 2, dtype=x.dtype), (5, 2))
    optimizer = GroupAdam([x], lr=0.1)
    with pytest.raises(IndexError, match=r"a sparse gradient has rows .* the parameter has 5"):
        optimizer.step()
    torch.testing.assert_close(x.detach(), before, rtol=0, atol=0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_steps_with_threads_of_its_own() -> None:
    script = """
import os
import torch
from sparsegroup import GroupAdam

torch.set_num_threads(2)
x = torch.nn.Parameter(torch.ones(1 << 16, 8))
x.grad = torch.ones_like(x)
optimizer = GroupAdam([x], lr=0.1, l21=1e-3)
optimizer.step()
child = os.fork()
if child == 0:
    optimizer.step()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=120)
