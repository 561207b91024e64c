"""The compiled step on tensors of any shape, grouping, width and layout in memory is `eager.advance`."""

import math
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from compiled_step_cases import (
    DTYPES,
    REGULARIZED,
    SOME_ROWS,
    assert_step,
    build,
    follow,
    give_gradient,
    normal,
    parameter_of,
)
from optimizer_cases import KINDS, assert_identical
from over import over
from sparsegroup import GroupAdam, GroupFTRL, GroupOptimizer, GroupSGD


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
@settings(max_examples=100)
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


AROUND = (16, 64, 256, 272, 1024)
WIDTHS = (*range(1, 10), *(size + more for size in AROUND for more in (-1, 0, 1)), 10_001)


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
        optimizer = GroupAdam([x], lr=0.1, **REGULARIZED)
        for t, rows in enumerate(([3, 1, 3, 3], [], [8, 8], [])):
            values, at = normal((len(rows), 5), t).to(dtype), torch.tensor([rows], dtype=torch.int64)
            x.grad = torch.sparse_coo_tensor(at, values, x.shape, check_invariants=True)
            assert_step(optimizer)
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
            before = x.grad.clone()
            assert_step(optimizer)
            assert_identical(x.grad, before)


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
