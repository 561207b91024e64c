"""A step by the kernels beside one call of `eager.advance`, from the same tensors."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from fixed_gradients import Step, gradient_of
from optimizer_cases import make
from sparsegroup import GroupAdaHessian, GroupOptimizer
from sparsegroup.groups import grouping, mean_square
from sparsegroup.kernels import eager
from sparsegroup.kernels.step import Regularizer

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


def expected_step(optimizer: GroupOptimizer, group: Mapping[str, Any], parameter: Tensor) -> dict[str, Tensor]:
    """The weights and the state that the next step should leave, by one call of `eager.advance`."""
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
    block = eager.Block(
        after["x"].to(dtype)[rows],
        after["u"][rows] if "u" in after else None,
        [after[name][rows] for name in rule.state],
    )
    second_input = [parameter.curvature.to(dtype).abs()] if rule.second_order else []
    if rule.mean_square:
        spec = "rows" if parameter.grad.is_sparse else group["groups"]
        second_input = [mean_square(gradient, grouping(spec, gradient.shape, gradient.device))]
    result = eager.advance(
        rule,
        block,
        [gradient, *second_input],
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
