"""Every optimizer is Algorithm 1: it agrees with the oracle of `reference.py`, zeros included."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from family import FAMILY, Member
from fixed_gradients import Array, Step, relative_error, trajectory
from over import over
from reference import Algorithm1, Regularizer
from sparsegroup import MCP
from sparsegroup.groups import GroupSpec

TOLERANCE = 1e-11
# How far learning rates fall before they restart. Where NumPy has no float longer than float64, the oracle's rounding
# would show.
LOWEST_RATE = 1e-6 if np.finfo(np.longdouble).eps < 1e-18 else 1e-3
NORMS = ("s", "s_tilde", "metric")
PENALTIES = ("lasso", "mcp", "hard")

ROWS, SIZE = 6, 3
NEVER, LATE, HALF = 0, 1, 2  # rows that get no gradient, their first one late, or none in one coordinate until then


def constant(t: int, steps: int) -> float:
    return 1.0


def restarts(t: int, steps: int) -> float:
    """A cosine that falls from 1 to the lowest rate and restarts."""
    period = steps // 4
    return LOWEST_RATE + (1 - LOWEST_RATE) * (1 + math.cos(math.pi * (t % period) / (period - 1))) / 2


def pauses(t: int, steps: int) -> float:
    """A triangle wave that rests at 0, at the first steps too."""
    return max(0.0, 1 - abs((t % 20) / 10 - 1) - 0.2)


RATES = {"constant": constant, "restarts": restarts, "pauses": pauses}


def regularizer_of(name: str, norm: str, penalty: str, other: bool = False) -> str:
    """ "l21" or "all", in turns."""
    turn = list(FAMILY).index(name) + NORMS.index(norm) + PENALTIES.index(penalty) + other
    return ("l21", "all")[turn % 2]


def arguments_of(regularizer: Regularizer) -> dict[str, Any]:
    """The oracle's regularizer as the optimizers take it."""
    arguments = dict(vars(regularizer))
    gamma = arguments.pop("mcp_gamma")
    return {**arguments, "penalty": MCP(gamma)} if regularizer.penalty == "mcp" else arguments


def weights(
    rng: np.random.Generator, name: str, member: Member, norm: str = "s", size: float = 1.0
) -> dict[str, float]:
    """λ1, λ21, λ2 of which only `name` is positive, or all are; of a size that zeroes some rows and not all."""
    drawn = {"l1": size * rng.uniform(0.3, 2), "l21": size * rng.uniform(1, 5), "l2": rng.uniform(0.1, 3)}
    drawn["l1"] *= member.gain
    # λ21 is compared with (σ/2 + λ2)^p s: σ is around 20 here.
    drawn["l21"] *= member.gain * {"s": 1.0, "metric": 10**-0.5, "s_tilde": 10**-1.0}[norm]
    return {key: value if name in (key, "all") else 0.0 for key, value in drawn.items()}


def start(rng: np.random.Generator, shape: tuple[int, ...] = (ROWS, SIZE)) -> Array:
    """x_1, small enough for λ to reach although σ is not: the first step charges σ x_1 to z."""
    return np.array(rng.normal(size=shape) / 5)


def gradients(rng: np.random.Generator, steps: int, shape: tuple[int, ...], late: int) -> Array:
    """Noise, around a mean in every other row, with rows that are all zero now and then, at first or always."""
    g = rng.normal(size=(steps, *shape))
    rows = shape[0]
    g[:, ::2] += rng.normal(size=(1, *shape))[:, ::2] * 0.5
    g[rng.random((steps, rows)) < 0.3] = 0
    g[:, NEVER] = 0
    g[:late, LATE] = 0
    g[:late, HALF, 0] = 0
    return g


def hessians(rng: np.random.Generator, g: Array) -> Array:
    """A diagonal of any sign, 0 where the gradient is."""
    return np.where(g != 0, rng.normal(size=g.shape) + 1, 0.0)


def dense_steps(
    rng: np.random.Generator, member: Member, rate: str, shape: tuple[int, ...], steps: int = 48
) -> list[Step]:
    g = gradients(rng, steps, shape, late=steps * 3 // 4)
    h = hessians(rng, g) if member.second_order else [None] * steps
    return [Step(member.lr * RATES[rate](t, steps), g[t], hessian=h[t]) for t in range(steps)]


def sparse_steps(
    rng: np.random.Generator, member: Member, rate: str, late: int, steps: int, rows: int = 3
) -> Iterator[Step]:
    """Steps that hold some rows each, in any order; the row LATE is seen from step `late` on, NEVER never."""
    g = gradients(rng, steps, (ROWS, SIZE), late)
    h = hessians(rng, g)
    for t in range(steps):
        seen = [row for row in range(ROWS) if row != NEVER and (row != LATE or t >= late)]
        present = rng.choice(seen, size=rows, replace=False).tolist()
        if t == late:
            present[0] = LATE if LATE not in present else present[0]
        hessian = h[t, present] if member.second_order else None
        yield Step(member.lr * RATES[rate](t, steps), g[t, present], present, hessian)


def by_oracle(
    member: Member,
    x: Array,
    groups: Sequence[Sequence[int]],
    steps: Sequence[Step],
    regularizer: Regularizer,
    hyperparameters: Mapping[str, Any],
) -> Array:
    """The oracle's trajectory, `[steps, …]`."""
    oracle = Algorithm1(member.rule, x.ravel(), groups, regularizer, **hyperparameters)
    visited = []
    for step in steps:
        g, h = np.zeros_like(x), np.zeros_like(x)
        present = ... if step.rows is None else step.rows
        g[present] = step.gradient
        if step.hessian is not None:
            h[present] = step.hessian
        oracle.step(g.ravel(), step.lr, step.rows, h.ravel() if member.second_order else None)
        visited.append(oracle.x.reshape(x.shape).copy())
    return np.stack(visited)


def assert_agrees(
    member: Member,
    x: Array,
    steps: Sequence[Step],
    regularizer: Regularizer,
    groups: Sequence[Sequence[int]] | None = None,
    spec: GroupSpec = "rows",
    **hyperparameters: Any,
) -> None:
    """Assert that the optimizer visits the points that the oracle visits, with the same zeros."""
    if groups is None:
        groups = np.arange(x.size).reshape(len(x), -1).tolist()
    parameter = torch.nn.Parameter(torch.tensor(x))
    options = {**member.hyperparameters, **hyperparameters}
    optimizer = member.build(parameter, **{**hyperparameters, **arguments_of(regularizer), "groups": spec})
    ours = trajectory(optimizer, parameter, steps)
    oracle = by_oracle(member, x, groups, steps, regularizer, options)
    assert relative_error(ours, oracle) < TOLERANCE
    # Without λ1 only whole groups are zeroed; a coordinate may be 0 because rounding errors happen to cancel.
    parts = [[i] for i in range(x.size)] if regularizer.l1 > 0 else groups
    for part in parts:
        live, live_by_oracle = (path.reshape(len(steps), -1)[:, part].any(axis=1) for path in (ours, oracle))
        np.testing.assert_array_equal(live, live_by_oracle)


def seeded(*case: object) -> np.random.Generator:
    return np.random.default_rng(list("/".join(map(str, case)).encode()))


every_norm_and_penalty = over(("norm", "penalty"), itertools.product(NORMS, PENALTIES))


@pytest.mark.parametrize("name", FAMILY)
class TestAlgorithm1:
    """Every norm with every penalty: with λ21 alone for dense gradients and all λ for sparse ones, or the other way."""

    @every_norm_and_penalty
    def test_dense_gradients_with_rows_that_are_zero(self, name: str, norm: str, penalty: str) -> None:
        regularized_by = regularizer_of(name, norm, penalty)
        member, rng = FAMILY[name], seeded(name, norm, penalty, regularized_by)
        drawn = weights(rng, regularized_by, member, norm)
        regularizer = Regularizer(**drawn, norm=norm, penalty=penalty, mcp_gamma=2.5)
        steps = dense_steps(rng, member, str(rng.choice(list(RATES))), (ROWS, SIZE))
        assert_agrees(member, start(rng), steps, regularizer)

    @every_norm_and_penalty
    def test_sparse_gradients_touch_the_rows_they_hold(self, name: str, norm: str, penalty: str) -> None:
        regularized_by = regularizer_of(name, norm, penalty, other=True)
        member, rng = FAMILY[name], seeded(name, norm, penalty, regularized_by)
        drawn = weights(rng, regularized_by, member, norm)
        regularizer = Regularizer(**drawn, norm=norm, penalty=penalty)
        steps = list(sparse_steps(rng, member, str(rng.choice(list(RATES))), late=45, steps=60))
        assert_agrees(member, start(rng), steps, regularizer)


@over("rate", RATES)
@pytest.mark.parametrize("name", FAMILY)
def test_without_the_group_lasso(name: str, rate: str) -> None:
    for regularized_by in ("l1", "l2", "nothing"):
        member, rng = FAMILY[name], seeded(name, regularized_by, rate)
        regularizer = Regularizer(**weights(rng, regularized_by, member))
        steps = dense_steps(rng, member, rate, (ROWS, SIZE))
        assert_agrees(member, start(rng), steps, regularizer)


@pytest.mark.parametrize("name", FAMILY)
def test_a_row_first_seen_at_step_300(name: str) -> None:
    member, rng = FAMILY[name], seeded(name)
    regularizer = Regularizer(**weights(rng, "all", member))
    steps = list(sparse_steps(rng, member, "restarts", late=299, steps=320, rows=2))
    x = start(rng)
    assert [LATE in (step.rows or ()) for step in steps].index(True) == 299
    assert_agrees(member, x, steps, regularizer)


VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "nesterov": ("momentum", {"nesterov": True}),
    "no momentum": ("momentum", {"momentum": 0.0}),
    "adagrad with σ = 0": ("adagrad", {"eps": 0.0}),
    "adagrad with a start and decay": ("adagrad", {"initial_accumulator_value": 0.1, "lr_decay": 0.05}),
    "adam with σ = 0": ("adam", {"eps": 0.0}),
    "adam with other betas": ("adam", {"betas": (0.0, 0.7)}),
    "amsgrad with σ = 0 and a short memory": ("amsgrad", {"eps": 0.0, "betas": (0.9, 0.8)}),
    "adahessian with σ = 0": ("adahessian", {"eps": 0.0}),
    "ftrl with σ = 0": ("ftrl", {"beta": 0.0, "initial_accumulator_value": 0.0}),
}


@over("norm", NORMS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_other_hyperparameters(variant: str, norm: str) -> None:
    name, hyperparameters = VARIANTS[variant]
    for regularized_by in ("l21", "all") if norm != "s" else ("nothing", "l1", "l21", "l2", "all"):
        member, rng = FAMILY[name], seeded(variant, norm, regularized_by)
        regularizer = Regularizer(**weights(rng, regularized_by, member, norm), norm=norm)
        steps = dense_steps(rng, member, "constant", (ROWS, SIZE), steps=32)
        assert_agrees(member, start(rng), steps, regularizer, **hyperparameters)


@over("norm", NORMS)
def test_where_s_is_zero_the_group_lasso_zeroes_coordinates_without_sigma_too(norm: str) -> None:
    """k = 0, not 0 / 0: in row 0, z = g - σ x is 0 where σ = 1, and σ is 0 elsewhere."""
    steps = [Step(1.0, np.array([[1.0, 0.0], [1.0, 1.0]]))]
    regularizer = Regularizer(l21=1e-3, norm=norm)
    assert_agrees(FAMILY["adagrad"], np.array([[1.0, 0.5], [2.0, 3.0]]), steps, regularizer, eps=0.0)


@over("name", FAMILY)
def test_weight_decay_counts_as_gradient(name: str) -> None:
    member, rng = FAMILY[name], seeded(name)
    regularizer = Regularizer(**weights(rng, "all", member))
    steps = dense_steps(rng, member, "constant", (ROWS, SIZE))
    if member.second_order:
        # Weight decay moves every row but is not in the Hessian; without one σ is ε / α, and x explodes.
        steps = [replace(step, hessian=np.ones_like(step.gradient)) for step in steps]
    assert_agrees(member, start(rng), steps, regularizer, weight_decay=0.1)


CUBE = np.arange(4 * 3 * 2).reshape(4, 3, 2)
CUTS: Mapping[str, tuple[tuple[int, ...], GroupSpec, list[list[int]]]] = {
    "rows": ((4, 3, 2), "rows", [CUBE[i].ravel().tolist() for i in range(4)]),
    "columns": ((4, 3, 2), "columns", [CUBE[:, i].ravel().tolist() for i in range(3)]),
    "all": ((4, 3, 2), "all", [CUBE.ravel().tolist()]),
    "dimension 2": ((4, 3, 2), 2, [CUBE[:, :, i].ravel().tolist() for i in range(2)]),
    "index": ((4, 3, 2), torch.tensor([5, 0, 5, 2]), [CUBE[i].ravel().tolist() for i in ([1], [3], [0, 2])]),
    "index of a vector": ((5,), torch.tensor([1, 0, 1, 1, 0]), [[1, 4], [0, 2, 3]]),
    "scalar": ((), "rows", [[0]]),
}
"""Others are the same groups: see `test_groups`."""


@over(("name", "norm"), [("momentum", "s"), ("adam", "s_tilde"), ("adam", "metric")])
@pytest.mark.parametrize("cut", CUTS)
def test_groups_are_cut_as_named(cut: str, name: str, norm: str) -> None:
    shape, spec, groups = CUTS[cut]
    assert sorted(i for group in groups for i in group) == list(range(math.prod(shape)))
    member, rng = FAMILY[name], seeded(cut, name, norm)
    regularizer = Regularizer(**weights(rng, "all", member, norm, size=0.3), norm=norm)
    # `rng` gives a plain float for the shape (), hence the arrays.
    signal = np.array(rng.normal(size=shape) * (rng.random(size=shape) < 0.5))
    steps = [Step(member.lr, np.array(rng.normal(size=shape) + signal)) for _ in range(40)]
    assert_agrees(member, start(rng, shape), steps, regularizer, groups, spec)


@over("cut", ["columns", "all", "dimension 2", "index"])
def test_a_group_that_never_had_a_gradient_is_left_alone_however_it_is_cut(cut: str) -> None:
    shape, spec, groups = CUTS[cut]
    member, rng = FAMILY["adagrad"], seeded(cut)
    dead = groups[0]
    g = rng.normal(size=(30, math.prod(shape)))
    g[:, dead] = 0
    steps = [Step(member.lr, step.reshape(shape)) for step in g]
    x = start(rng, shape)
    assert_agrees(member, x, steps, Regularizer(l21=1.0), groups, spec)
    parameter = torch.nn.Parameter(torch.tensor(x))
    trajectory(member.build(parameter, l21=1.0, groups=spec), parameter, steps)
    np.testing.assert_array_equal(parameter.detach().numpy().ravel()[dead], x.ravel()[dead])
