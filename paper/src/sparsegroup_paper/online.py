"""Convex online problems, the best fixed point in hindsight, and an optimizer that plays them.

All runs of a problem are played side by side, as float64 `[runs, d]` arrays. No gradient element is larger than 1.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy.signal import lfilter
from scipy.special import expit

from sparsegroup.optim import GroupAdagrad, GroupOptimizer
from sparsegroup.rules import REQUIRED, Hyperparameter, Rule, at_least, from_to, learning_rate, xp

Array: TypeAlias = npt.NDArray[np.float64]

LABELS = (0.05, 0.95)
"""Labels of the logistic regression; between 0 and 1, so that a minimizer exists even of a few rounds."""


class Logistic:
    """Convex losses f_1, f_2, … of several runs; x_1 is `start`, `[runs, groups, size]`, d = groups × size.

    Logistic regression, f_t(x) = log(1 + exp(a_t·x)) - b_t a_t·x; half of the groups have no effect.

    Features are uniform in [-1, 1]; labels are drawn by the true model and smoothed, see `LABELS`. A problem serves one
    player at a time.
    """

    name = "logistic"

    def __init__(self, steps: int, runs: int, groups: int, size: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        d = groups * size
        truth = rng.normal(size=(runs, groups, size)) * (np.arange(groups) % 2 == 0)[:, None]
        self.features = rng.uniform(-1, 1, size=(steps, runs, d))
        rate = expit(np.einsum("trd,rd->tr", self.features, truth.reshape(runs, d)))
        self.labels = np.where(rng.random(rate.shape) < rate, LABELS[1], LABELS[0])
        self.start = np.zeros((runs, groups, size))

    def gradient(self, t: int, x: Array) -> Array:
        """A subgradient of f_t at x, `[runs, d]`; t from 0. Called once per round, in order."""
        a = self.features[t]
        return np.asarray((expit((a * x).sum(axis=1)) - self.labels[t])[:, None] * a)

    def losses(self, x: Array) -> Array:
        """f_t(x_t) `[T, runs]` of points `[T, runs, d]`, for the first T rounds."""
        T = len(x)
        logits = np.einsum("trd,trd->tr", self.features[:T], x)
        return np.asarray(np.logaddexp(0, logits) - self.labels[:T] * logits)

    def optimum(self, T: int) -> Array:
        """x* of the first T rounds, `[runs, d]`."""
        runs = range(self.features.shape[1])
        return np.stack([logistic_minimizer(self.features[:T, run], self.labels[:T, run]) for run in runs])


class Absolute:
    """Absolute loss, f_t(x) = ‖x - y_t‖₁; half of the groups have their median at exactly 0.

    In the other groups y_t scatters around a value of the coordinate's own.
    """

    name = "absolute"

    def __init__(self, steps: int, runs: int, groups: int, size: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        live = (np.arange(groups) % 2 == 0)[:, None]
        median = rng.uniform(-1, 1, size=(runs, groups, size)) * live
        noise = rng.laplace(scale=0.5, size=(steps, runs, groups, size))
        noise = np.where(live, noise, noise * (rng.random(noise.shape) < 0.5))  # at 0 half of the time
        self.targets = (median + noise).reshape(steps, runs, groups * size)
        self.start = np.zeros((runs, groups, size))

    def gradient(self, t: int, x: Array) -> Array:
        return np.asarray(np.sign(x - self.targets[t]))

    def losses(self, x: Array) -> Array:
        return np.asarray(np.abs(x - self.targets[: len(x)]).sum(axis=2))

    def optimum(self, T: int) -> Array:
        """The median of each coordinate; of a whole interval of medians its point nearest to 0."""
        ordered = np.partition(self.targets[:T], ((T - 1) // 2, T // 2), axis=0)
        return np.asarray(np.clip(0.0, ordered[(T - 1) // 2], ordered[T // 2]))


class Adversary(Absolute):
    """Absolute loss against an adversary: y_t is -1 or 1, in every coordinate the one that x_t is farther from.

    x_t = 0 gets a random one. The start x_1 is random in [-1, 1].
    """

    name = "adversary"

    def __init__(self, steps: int, runs: int, groups: int, size: int, seed: int) -> None:
        self._rng = np.random.default_rng(seed)
        self.targets = np.zeros((steps, runs, groups * size))
        self.start = self._rng.uniform(-1, 1, size=(runs, groups, size))

    def gradient(self, t: int, x: Array) -> Array:
        at_zero = self._rng.choice((-1.0, 1.0), size=x.shape)
        self.targets[t] = np.where(x == 0, at_zero, -np.sign(x))
        return super().gradient(t, x)


class Steady(Absolute):
    """f_t(x) = slope · |x - 1| in one dimension, from x_1 = 0, in every round; the slope is in (0, 1]."""

    name = "steady"

    def __init__(self, steps: int, slope: float) -> None:
        self.slope = slope
        self.targets = np.ones((steps, 1, 1))
        self.start = np.zeros((1, 1, 1))

    def gradient(self, t: int, x: Array) -> Array:
        return self.slope * super().gradient(t, x)

    def losses(self, x: Array) -> Array:
        return self.slope * super().losses(x)


Problem: TypeAlias = Logistic | Absolute


def logistic_minimizer(features: Array, labels: Array) -> Array:
    """argmin_x Σ_t log(1 + exp(a_t·x)) - b_t a_t·x by Newton's method; of several minimizers one of least norm."""
    x = np.zeros(features.shape[1])

    def value(x: Array) -> float:
        logits = features @ x
        return float((np.logaddexp(0, logits) - labels * logits).sum())

    for _ in range(100):
        rate = expit(features @ x)
        gradient = features.T @ (rate - labels)
        if np.abs(gradient).max() < 1e-10 * len(features):
            return x
        hessian = features.T @ ((rate * (1 - rate))[:, None] * features)
        # With fewer rows than weights the Hessian is singular; the steps stay in the span of the rows.
        hessian += 1e-8 * np.trace(hessian) / len(x) * np.eye(len(x))
        direction = np.linalg.solve(hessian, gradient)
        step, before = 1.0, value(x)
        while step > 1e-3 and value(x - step * direction) > before:
            step /= 2
        x = x - step * direction
    raise RuntimeError(f"no minimizer of {len(features)} logistic losses in 100 steps of Newton's method")


def _scalars(lr: float, gamma: float, eta: float, delta: float) -> tuple[float, ...]:
    return gamma, eta, delta * delta, 1 / lr


def _update(g: Any, m: Any, V: Any, gamma: Any, eta: Any, delta_squared: Any, inverse_alpha: Any) -> tuple[Any, ...]:
    """m_t = γ m_{t-1} + g_t, V_t = η V_{t-1} + g_t², σ_t = √(δ² + V_t) / α."""
    m = gamma * m + g
    V = eta * V + g * g
    return m, xp.sqrt(delta_squared + V) * inverse_alpha, m, V


class MomentOptimizer(GroupOptimizer):
    """The moments that Section 3 assumes, eq:mt and eq:vt, with sparse group lasso; δ² is added to V_t."""

    rule = Rule(
        "section-3 moments",
        _scalars,
        _update,
        state={"m": 0.0, "V": 0.0},
        hyperparameters=(
            learning_rate(),
            Hyperparameter("gamma", REQUIRED, from_to(0, 1)),
            Hyperparameter("eta", REQUIRED, at_least(0)),
            Hyperparameter("delta", REQUIRED, at_least(0)),
        ),
    )


@dataclass(frozen=True)
class Player:
    """An optimizer with its hyperparameters: m_t = γ m_{t-1} + g_t, V_t = η V_{t-1} + g_t², α_t = α.

    The square of δ is added to V_t. `weights` are l1, l21 and l2.
    """

    name: str
    gamma: float
    eta: float
    alpha: float
    delta: float
    weights: Mapping[str, float]

    def optimizer(self, parameter: torch.Tensor) -> GroupOptimizer:
        """The optimizer of `parameter`, whose rows are the groups: `GroupAdagrad` where γ = 0 and η = 1."""
        options: dict[str, Any] = {"norm": "metric", **self.weights}
        if self.gamma == 0 and self.eta == 1:
            start = self.delta**2
            return GroupAdagrad([parameter], self.alpha, initial_accumulator_value=start, eps=0.0, **options)
        moments = {"gamma": self.gamma, "eta": self.eta, "delta": self.delta}
        return MomentOptimizer([parameter], lr=self.alpha, **moments, **options)


@dataclass(frozen=True)
class Game:
    """A problem after a player played it: x_1 … x_{T+1}, `[T + 1, runs, d]`, and the gradients `[T, runs, d]` at them.

    m and V, without δ², are the moments as eq:mt and eq:vt give them from `g`.
    """

    problem: Problem
    player: Player
    x: Array
    g: Array
    m: Array
    V: Array

    @cached_property
    def sigma(self) -> Array:
        """√(δ² + V_t) / α, `[T, runs, d]`."""
        return np.sqrt(self.player.delta**2 + self.V) / self.player.alpha

    @cached_property
    def sigma_steps(self) -> Array:
        """Q_t / α_t = σ_t - σ_{t-1}, `[T, runs, d]`; σ_0 = 0."""
        return np.diff(self.sigma, axis=0, prepend=0.0)

    def in_groups(self, values: Array) -> Array:
        """`[runs, d]` as `[runs, groups, size]`."""
        return values.reshape(self.problem.start.shape)


def play(problem: Problem, player: Player, steps: int) -> Game:
    """Let `player` play `steps` rounds of `problem`."""
    runs, groups, size = problem.start.shape
    d = groups * size
    parameter = torch.nn.Parameter(torch.tensor(problem.start.reshape(runs * groups, size)))
    point = parameter.detach().numpy().reshape(runs, d)  # shares its memory
    optimizer = player.optimizer(parameter)
    x, g = np.empty((steps + 1, runs, d)), np.empty((steps, runs, d))
    for t in range(steps):
        x[t] = point
        g[t] = problem.gradient(t, x[t])
        parameter.grad = torch.from_numpy(g[t].reshape(runs * groups, size))
        optimizer.step()
    x[steps] = point
    m, V = (lfilter([1.0], [1.0, -decay], values, axis=0) for decay, values in ((player.gamma, g), (player.eta, g * g)))
    return Game(problem, player, x, g, m, V)
