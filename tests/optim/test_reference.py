"""Every optimizer is Algorithm 1: it agrees with the oracle of `reference.py`, zeros included; what that implies."""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from family import FAMILY, SIX, Member
from fixed_gradients import Array, Step, relative_error, take, trajectory
from over import over
from reference import Algorithm1, Regularizer
from sparsegroup import MCP, GroupMomentum, GroupOptimizer, GroupSGD
from sparsegroup.groups import GroupSpec
from sparsegroup.penalties import Hard, Penalty

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


def steps_of(
    rng: np.random.Generator,
    member: Member,
    rate: str = "constant",
    shape: tuple[int, ...] = (ROWS, SIZE),
    steps: int = 48,
    rows: int = 0,
) -> list[Step]:
    """Noise, around a mean in every other row, with rows that are all zero now and then, at first or always.

    With `rows`, sparse gradients of this many rows each, in any order; LATE is seen from its first gradient on, NEVER
    never. A Hessian has a diagonal of any sign, 0 where the gradient is.
    """
    late, g = steps * 3 // 4, rng.normal(size=(steps, *shape))
    g[:, ::2] += rng.normal(size=(1, *shape))[:, ::2] * 0.5
    g[rng.random((steps, shape[0])) < 0.3] = 0
    g[:, NEVER] = g[:late, LATE] = g[:late, HALF, 0] = 0
    h = np.where(g != 0, rng.normal(size=g.shape) + 1, 0.0)
    made = []
    for t in range(steps):
        present = None
        if rows:
            seen = [row for row in range(ROWS) if row != NEVER and (row != LATE or t >= late)]
            present = rng.choice(seen, size=rows, replace=False).tolist()
            if t == late and LATE not in present:
                present[0] = LATE
        at = slice(None) if present is None else present
        lr = member.lr * RATES[rate](t, steps)
        made.append(Step(lr, g[t, at], present, h[t, at] if member.second_order else None))
    return made


Change = Mapping[int, dict[str, float]]
"""Step → the λ's from there on."""


def by_oracle(oracle: Algorithm1, shape: tuple[int, ...], steps: Sequence[Step], changes: Change) -> Array:
    """The oracle's trajectory, `[steps, …]`."""
    visited = []
    for t, step in enumerate(steps):
        if t in changes:
            oracle.regularizer = Regularizer(**changes[t])
        g, h = np.zeros(shape), np.zeros(shape)
        present = ... if step.rows is None else step.rows
        g[present] = step.gradient
        if step.hessian is not None:
            h[present] = step.hessian
        oracle.step(g.ravel(), step.lr, step.rows, None if step.hessian is None else h.ravel())
        visited.append(oracle.x.reshape(shape).copy())
    return np.stack(visited)


def assert_agrees(
    member: Member,
    x: Array,
    steps: Sequence[Step],
    regularizer: Regularizer,
    groups: Sequence[Sequence[int]] | None = None,
    spec: GroupSpec = "rows",
    changes: Change = {},  # noqa: B006
    **hyperparameters: Any,
) -> Array:
    """Assert that the optimizer visits the points that the oracle visits, with the same zeros; gives these points."""
    if groups is None:
        groups = np.arange(x.size).reshape(len(x), -1).tolist()
    parameter = torch.nn.Parameter(torch.tensor(x))
    optimizer = member.build(parameter, **{**hyperparameters, **arguments_of(regularizer), "groups": spec})
    ours: list[Array] = []
    for t, step in enumerate(steps):
        optimizer.param_groups[0].update(changes.get(t, {}))
        ours.extend(trajectory(optimizer, parameter, [step]))
    path = np.stack(ours)
    options = {**member.hyperparameters, **hyperparameters}
    oracle = by_oracle(Algorithm1(member.rule, x.ravel(), groups, regularizer, **options), x.shape, steps, changes)
    assert relative_error(path, oracle) < TOLERANCE
    # Without λ1 only whole groups are zeroed; a coordinate may be 0 because rounding errors happen to cancel.
    parts = [[i] for i in range(x.size)] if regularizer.l1 > 0 else groups
    for part in parts:
        live, live_by_oracle = (one.reshape(len(steps), -1)[:, part].any(axis=1) for one in (path, oracle))
        np.testing.assert_array_equal(live, live_by_oracle)
    return path


def seeded(*case: object) -> np.random.Generator:
    return np.random.default_rng(list("/".join(map(str, case)).encode()))


@pytest.mark.parametrize("name", FAMILY)
def test_every_norm_and_penalty_on_dense_gradients_with_rows_that_are_zero(name: str) -> None:
    member, returned = FAMILY[name], 0
    for norm, penalty in itertools.product(NORMS, PENALTIES):
        regularized_by = regularizer_of(name, norm, penalty)
        rng = seeded(name, norm, penalty, regularized_by)
        drawn = weights(rng, regularized_by, member, norm)
        regularizer = Regularizer(**drawn, norm=norm, penalty=penalty, mcp_gamma=2.5)
        steps = steps_of(rng, member, str(rng.choice(list(RATES))))
        live = assert_agrees(member, start(rng), steps, regularizer).any(axis=-1)
        returned += (live[1:] & ~live[:-1]).any(axis=0).sum()
    assert returned, "zero rows come back"


@pytest.mark.parametrize("name", FAMILY)
def test_sparse_gradients_touch_the_rows_they_hold(name: str) -> None:
    """Each norm and each penalty, with λ21 alone where dense gradients have all λ, or the other way."""
    member = FAMILY[name]
    for i, (norm, rate) in enumerate(zip(NORMS, RATES, strict=True)):
        penalty = PENALTIES[(i + list(FAMILY).index(name)) % 3]
        regularized_by = regularizer_of(name, norm, penalty, other=True)
        rng = seeded(name, norm, penalty, regularized_by)
        regularizer = Regularizer(**weights(rng, regularized_by, member, norm), norm=norm, penalty=penalty)
        steps = steps_of(rng, member, rate, steps=60, rows=3)
        assert_agrees(member, start(rng), steps, regularizer)


@over(("regularized_by", "rate"), [("l1", "restarts"), ("l2", "pauses")])
@over("name", FAMILY)
def test_without_the_group_lasso(name: str, regularized_by: str, rate: str) -> None:
    member, rng = FAMILY[name], seeded(name, regularized_by, rate)
    steps = steps_of(rng, member, rate)
    assert_agrees(member, start(rng), steps, Regularizer(**weights(rng, regularized_by, member)))


@over("name", FAMILY)
def test_a_changed_lambda_counts_from_its_step_on(name: str) -> None:
    """Also for a group whose gradient is zero then; except for SGD, which keeps no trace of it without λ."""
    member, rng = FAMILY[name], seeded("changes", name)
    plain = {"l1": 0.0, "l21": 0.0, "l2": 0.0}
    group_lasso, all_three = {**plain, "l21": 3 * member.gain}, {"l1": 0.5, "l21": member.gain, "l2": 0.2}
    g = rng.normal(size=(40, ROWS, SIZE)) + rng.normal(size=(ROWS, SIZE)) / 2
    g[8, 0] *= name == "sgd"
    h = np.where(g != 0, 1.0 + rng.random(g.shape), 0.0) if member.second_order else [None] * len(g)
    steps = [Step(member.lr * (1 + t % 3), g[t], hessian=h[t]) for t in range(len(g))]
    changes = dict(zip(range(0, 40, 8), [plain, group_lasso, all_three, plain, group_lasso], strict=True))
    path = assert_agrees(member, start(rng), steps, Regularizer(), changes=changes)
    assert (path == 0).any()


VARIANTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "nesterov": ("momentum", {"nesterov": True}),
    "no momentum": ("momentum", {"momentum": 0.0}),
    "adagrad with σ = 0": ("adagrad", {"eps": 0.0}),
    "adagrad with a start and decay": ("adagrad", {"initial_accumulator_value": 0.1, "lr_decay": 0.05}),
    "adam with σ = 0": ("adam", {"eps": 0.0}),
    "adam with weight decay": ("adam", {"weight_decay": 0.1}),
    "adam with other betas": ("adam", {"betas": (0.0, 0.7)}),
    "amsgrad with σ = 0 and a short memory": ("amsgrad", {"eps": 0.0, "betas": (0.9, 0.8)}),
    "adahessian with σ = 0": ("adahessian", {"eps": 0.0}),
    "ftrl with σ = 0": ("ftrl", {"beta": 0.0, "initial_accumulator_value": 0.0}),
}


@pytest.mark.parametrize("norm", NORMS)
@over("variant", VARIANTS)
def test_other_hyperparameters(variant: str, norm: str) -> None:
    name, hyperparameters = VARIANTS[variant]
    for regularized_by in ("l21", "all") if norm != "s" else ("l1", "l21", "l2", "all"):
        member, rng = FAMILY[name], seeded(variant, norm, regularized_by)
        regularizer = Regularizer(**weights(rng, regularized_by, member, norm), norm=norm)
        steps = steps_of(rng, member, steps=32)
        assert_agrees(member, start(rng), steps, regularizer, **hyperparameters)


@over("norm", NORMS)
def test_where_s_is_zero_the_group_lasso_zeroes_coordinates_without_sigma_too(norm: str) -> None:
    """k = 0, not 0 / 0: in row 0, z = g - σ x is 0 where σ = 1, and σ is 0 elsewhere."""
    steps = [Step(1.0, np.array([[1.0, 0.0], [1.0, 1.0]]))]
    regularizer = Regularizer(l21=1e-3, norm=norm)
    assert_agrees(FAMILY["adagrad"], np.array([[1.0, 0.5], [2.0, 3.0]]), steps, regularizer, eps=0.0)


@over("l1", [0.0, 0.4])
@over("member", SIX.values())
def test_from_zero_all_stays_zero_above_the_largest_lambda_and_not_below(member: Member, l1: float) -> None:
    steps = steps_of(seeded(member.rule), member, steps=30)
    # While x is 0, z is the sum of m whatever σ is.
    everything = [range(ROWS * SIZE)]
    oracle = Algorithm1(member.rule, np.zeros(ROWS * SIZE), everything, Regularizer(), **member.hyperparameters)
    largest = 0.0
    for step in steps:
        oracle.x[:] = 0
        by_oracle(oracle, (ROWS, SIZE), [step], {})
        s = np.maximum(np.abs(oracle.z) - l1, 0).reshape(ROWS, SIZE)
        largest = max(largest, float(np.linalg.norm(s, axis=1).max()) / math.sqrt(SIZE))
    for factor, lives in ((1 + 1e-9, False), (1 - 1e-9, True)):
        x = torch.nn.Parameter(torch.zeros(ROWS, SIZE, dtype=torch.float64))
        assert trajectory(member.build(x, l1=l1, l21=largest * factor), x, steps).any() == lives


# From x = 2 the step g = 1 at lr = 1 reaches x = 1 unshrunk, with u = 0. Two steps later, at lr = 10 and g = 0,
# ‖z‖ = σ x is √3/10 or 1/10, below τ = 0.5.
@over("penalty", [MCP(gamma=1.5), Hard()])
@over(("cls", "options"), [(GroupSGD, {}), (GroupMomentum, {"momentum": 0.0})])
def test_a_group_that_left_no_trace_in_u_takes_part_in_every_dense_step(
    cls: type[GroupOptimizer], options: dict[str, Any], penalty: Penalty
) -> None:
    x = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = cls([x], lr=1.0, l21=0.5, penalty=penalty, **options)
    for lr, gradient, expected in ((1.0, 1.0, 1.0), (1.0, 0.0, None), (10.0, 0.0, 0.0)):
        take(optimizer, x, Step(lr, np.array([gradient])))
        assert expected in (None, x.item())
