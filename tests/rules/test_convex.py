"""norm="metric" solves the paper's convex problem eq. 6, as a numerical solver does, and -u is its subgradient."""

import math
from collections.abc import Iterator, Mapping

import cvxpy
import numpy as np
import pytest
import torch

from family import SIX, Member
from fixed_gradients import Array, Step, take
from over import over
from reference import MOMENTS, STATE

ROWS, SIZE = 4, 3
WEIGHTS: Mapping[str, dict[str, float]] = {
    "l21": {"l1": 0.0, "l21": 2.0, "l2": 0.0},
    "l1 and l21": {"l1": 0.8, "l21": 1.5, "l2": 0.0},
    "all": {"l1": 0.8, "l21": 1.5, "l2": 0.7},
}


def steps_of(member: Member, seed: int, steps: int = 12) -> Iterator[Step]:
    """Noisy gradients around means of different size, at a rate that falls and rises again, with σ around 1 to 10."""
    rng = np.random.default_rng(seed)
    mean = rng.normal(size=(ROWS, SIZE)) * np.array([[2.0], [0.0], [1.0], [0.2]])
    for t in range(steps):
        h = rng.uniform(0.5, 2, size=(ROWS, SIZE)) if member.second_order else None
        yield Step(0.4 + 0.3 * math.cos(t), (mean + rng.normal(size=(ROWS, SIZE))) / member.gain, hessian=h)


def minimizer(m: Array, Q: Array, x: Array, l1: float, l21: float, l2: float) -> Array:
    """eq. 6 by Clarabel: argmin m_{1:t}·y + Σ_s ½‖y - x_s‖²_{Q_s/α_s} + Ψ_t(y), each row a group.

    Args:
        m, Q, x: m_s, Q_s/α_s and x_s of all steps, `[t, rows, size]`.
    """
    # A single Q_s may be negative, which no solver takes; expanded, only their sum counts, and it is positive.
    linear, A = (m - Q * x).sum(axis=0), Q.sum(axis=0) / 2 + l2
    solution = np.empty_like(A)
    for row in range(len(A)):
        y = cvxpy.Variable(A.shape[1])
        root_A_y = cvxpy.multiply(np.sqrt(A[row]), y)
        lasso = l1 * cvxpy.norm1(y) + math.sqrt(A.shape[1]) * l21 * cvxpy.norm2(root_A_y)
        problem = cvxpy.Problem(cvxpy.Minimize(linear[row] @ y + cvxpy.sum_squares(root_A_y) + lasso))
        # More than double precision can give: the solver stops, with a warning, when it gets no further.
        problem.solve(solver=cvxpy.CLARABEL, tol_gap_abs=1e-14, tol_gap_rel=1e-14, tol_feas=1e-14)
        solution[row] = y.value
    return solution


class History:
    """m_s, Q_s/α_s and x_s of a run, by the oracle's moments."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.state = {name: np.zeros((ROWS, SIZE)) for name in STATE[member.rule]}
        self.sigma = np.zeros((ROWS, SIZE))
        self.m: list[Array] = []
        self.Q: list[Array] = []
        self.x: list[Array] = []

    def append(self, x: Array, step: Step) -> None:
        moments = MOMENTS[self.member.rule]
        t = len(self.m) + 1
        m, root_V, state = moments(step.gradient, step.hessian, self.state, t, **self.member.hyperparameters)
        self.state = dict(state)
        self.m.append(m)
        self.Q.append(root_V / step.lr - self.sigma)
        self.x.append(x)
        self.sigma = root_V / step.lr


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate:UserWarning")
@over(("name", "weights"), [*zip(SIX, [*WEIGHTS] * 2, strict=True), ("adam", "l21"), ("adam", "l1 and l21")])
def test_the_metric_norm_minimizes_the_papers_objective(name: str, weights: str) -> None:
    member = SIX[name]
    parameter = torch.nn.Parameter(torch.tensor(np.random.default_rng(1).normal(size=(ROWS, SIZE))))
    optimizer = member.build(parameter, **WEIGHTS[weights], norm="metric")
    history = History(member)
    live = []
    for t, step in enumerate(steps_of(member, seed=2), start=1):
        history.append(parameter.detach().numpy().copy(), step)
        take(optimizer, parameter, step)
        if t in (1, 5, 12):
            x = parameter.detach().numpy()
            expected = minimizer(np.array(history.m), np.array(history.Q), np.array(history.x), **WEIGHTS[weights])
            # Relative to where the run has been, for the solution may be 0.
            assert np.abs(x - expected).max() < 1e-6 * np.abs(history.x).max()
            live += x.any(axis=1).tolist()
    assert any(live)
    assert not all(live)
    assert any((Q < 0).any() for Q in history.Q)


def stationarity(x: Array, minus_u: Array, A: Array, l1: float, l21: float, l2: float) -> float:
    """How far -u is from the subgradients of λ1‖x‖₁ + √d λ21 ‖A^½ x‖₂ + λ2‖x‖² of one group at x."""
    if not x.any():
        # λ1 takes up to λ1 of every coordinate, λ21 what is left within an ellipsoid.
        left = np.sign(minus_u) * np.maximum(np.abs(minus_u) - l1, 0)
        return max(0.0, float(np.linalg.norm(left / np.sqrt(A))) - math.sqrt(len(x)) * l21)
    smooth = math.sqrt(len(x)) * l21 * A * x / np.linalg.norm(np.sqrt(A) * x) + 2 * l2 * x
    rest = minus_u - smooth
    return float(np.where(x != 0, np.abs(rest - l1 * np.sign(x)), np.maximum(np.abs(rest) - l1, 0)).max())


@over("weights", WEIGHTS)
@over(("name", "norm"), [*((name, "metric") for name in SIX), ("sgd", "s"), ("momentum", "s")])
def test_minus_u_is_a_subgradient_of_the_penalty(name: str, norm: str, weights: str) -> None:
    """Of the metric one, and of the plain norm where σ is equal in all elements."""
    member = SIX[name]
    parameter = torch.nn.Parameter(torch.tensor(np.random.default_rng(3).normal(size=(ROWS, SIZE))))
    optimizer = member.build(parameter, **WEIGHTS[weights], norm=norm)
    history = History(member)
    seen = set()
    for step in steps_of(member, seed=4, steps=40):
        history.append(parameter.detach().numpy().copy(), step)
        take(optimizer, parameter, step)
        x, minus_u = parameter.detach().numpy(), -optimizer.state[parameter]["u"].numpy()
        A = history.sigma / 2 + WEIGHTS[weights]["l2"] if norm == "metric" else np.ones((ROWS, SIZE))
        for row in range(ROWS):
            residual = stationarity(x[row], minus_u[row], A[row], **WEIGHTS[weights])
            assert residual < 1e-12 * (1 + np.abs(history.sigma[row] * x[row]).max())
            seen.add(bool(x[row].any()))
    assert seen == {True, False}
