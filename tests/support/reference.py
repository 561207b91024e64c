"""The oracle of every optimizer: Algorithm 1 of the paper, transcribed line by line in NumPy.

It stores z_t and, for every coordinate, the σ of its last update, as the paper does, where the library stores the dual
residual u = z + σ x. It shares no code with the library, loops where the library vectorizes, and is meant to be
compared with the paper by eye. It computes in NumPy's longest float: z loses digits to σ x when the learning rate falls
far and restarts (in float64 this transcription is off by 3e-10 after restarts from a millionth, not the library).

Where the paper is silent:

- ε is constant inside σ; AMSGrad keeps V and its running maximum apart.
- σ_0 = 0, so that the first sight of a row charges the whole of σ. FTRL alone charges nothing of its start: it has
  σ_0 = (√a₀ + β) / α with the α of that first sight, as in TensorFlow.
- A coordinate with σ = 0 becomes k x if λ1 = λ2 = 0, else 0, and counts 0 in the norms of s̃ and of the metric.
- A group that never had a non-zero gradient is left alone.
- Sparse gradients are lazy, with the global step in the bias correction.
- With α = 0 the moments advance, and x, z and σ stay.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.longdouble]
State = Mapping[str, Array]

# A base optimizer: (g_t, D_t, state, t, hyperparameters…) → (m_t, √V_t with ε inside, state), Table 1.
Moments = Callable[..., tuple[Array, Array, State]]


def sgd(g, hessian, state, t):
    return g, np.full_like(g, np.sqrt(np.longdouble(t))), {}


def momentum(g, hessian, state, t, momentum, nesterov):
    b = momentum * state["b"] + g
    m = g + momentum * b if nesterov else b
    return m, np.ones_like(g), {"b": b}


def adagrad(g, hessian, state, t, lr_decay, initial_accumulator_value, eps):
    V = state["V"] + g**2
    # α_t = α / (1 + (t - 1) lr_decay), as torch has it.
    return g, (np.sqrt(V) + eps) * (1 + (t - 1) * lr_decay), {"V": V}


def rowwise_adagrad(g, hessian, state, t, lr_decay, initial_accumulator_value, eps):
    V = state["V"] + np.mean(g**2)  # g is a group's
    return g, (np.sqrt(V) + eps) * (1 + (t - 1) * lr_decay), {"V": V}


def adam(g, hessian, state, t, betas, eps):
    beta1, beta2 = betas
    m_hat = beta1 * state["m_hat"] + (1 - beta1) * g
    V_hat = beta2 * state["V_hat"] + (1 - beta2) * g**2
    m = m_hat / (1 - beta1**t)
    V = V_hat / (1 - beta2**t)
    return m, np.sqrt(V) + eps, {"m_hat": m_hat, "V_hat": V_hat}


def amsgrad(g, hessian, state, t, betas, eps):
    beta1, beta2 = betas
    m_hat = beta1 * state["m_hat"] + (1 - beta1) * g
    V_hat = beta2 * state["V_hat"] + (1 - beta2) * g**2
    V_max = np.maximum(state["V_max"], V_hat)
    m = m_hat / (1 - beta1**t)
    V = V_max / (1 - beta2**t)
    return m, np.sqrt(V) + eps, {"m_hat": m_hat, "V_hat": V_hat, "V_max": V_max}


def adahessian(g, hessian, state, t, betas, eps):
    beta1, beta2 = betas
    m_hat = beta1 * state["m_hat"] + (1 - beta1) * g
    V_hat = beta2 * state["V_hat"] + (1 - beta2) * hessian**2
    m = m_hat / (1 - beta1**t)
    V = V_hat / (1 - beta2**t)
    return m, np.sqrt(V) + eps, {"m_hat": m_hat, "V_hat": V_hat}


def ftrl(g, hessian, state, t, beta, initial_accumulator_value):
    V = state["V"] + g**2
    return g, np.sqrt(V) + beta, {"V": V}


RULES: tuple[Moments, ...] = (sgd, momentum, adagrad, rowwise_adagrad, adam, amsgrad, adahessian, ftrl)
MOMENTS: Mapping[str, Moments] = {rule.__name__: rule for rule in RULES}
STATE: Mapping[str, tuple[str, ...]] = {
    **{"sgd": (), "momentum": ("b",), "adagrad": ("V",), "rowwise_adagrad": ("V",), "ftrl": ("V",)},
    **{"adam": ("m_hat", "V_hat"), "amsgrad": ("m_hat", "V_hat", "V_max"), "adahessian": ("m_hat", "V_hat")},
}


@dataclass(frozen=True)
class Regularizer:
    l1: float = 0.0
    l21: float = 0.0
    l2: float = 0.0
    norm: str = "s"
    penalty: str = "lasso"
    mcp_gamma: float = 3.0


class Algorithm1:
    """Algorithm 1 on a vector of coordinates.

    Args:
        rule: A name in `MOMENTS`.
        x: x_1 `[n]`.
        groups: For each group, the coordinates that form it.
        regularizer: λ1, λ21, λ2 and the shape of the group threshold; may be replaced between steps.
        weight_decay: Adds `weight_decay * x` to the gradient.
        **hyperparameters: The base optimizer's.
    """

    def __init__(
        self,
        rule: str,
        x: Array,
        groups: Sequence[Sequence[int]],
        regularizer: Regularizer,
        weight_decay: float = 0.0,
        **hyperparameters: Any,
    ) -> None:
        self.rule = rule
        self.x = np.array(x, dtype=np.longdouble)
        self.groups = [list(group) for group in groups]
        self.regularizer = regularizer
        self.weight_decay = weight_decay
        self.hyperparameters = hyperparameters
        self.t = 0
        self.start = float(hyperparameters.get("initial_accumulator_value", 0.0))
        self.state = {name: np.full_like(self.x, self.start) for name in STATE[rule]}
        self.z = np.zeros_like(self.x)
        self.sigma = np.zeros_like(self.x)  # of each coordinate's last update
        self.updated = np.zeros(self.x.shape, dtype=bool)

    def step(
        self, gradient: Array, lr: float, present: Sequence[int] | None = None, hessian: Array | None = None
    ) -> None:
        """One step.

        Args:
            gradient: `[n]`, read at the present groups only.
            lr: α_t ≥ 0.
            present: Which groups a sparse gradient holds; None for a dense one.
            hessian: `[n]`, the diagonal D_t that AdaHessian reads.
        """
        self.t += 1
        for index in range(len(self.groups)) if present is None else present:
            group = self.groups[index]
            g = gradient[group].astype(np.longdouble) + self.weight_decay * self.x[group]
            self._step_group(group, g, lr, None if hessian is None else hessian[group])

    def _sigma_0(self, lr: float) -> Any:
        return (np.sqrt(np.longdouble(self.start)) + self.hyperparameters["beta"]) / lr if self.rule == "ftrl" else 0.0

    def _step_group(self, group: list[int], g: Array, lr: float, hessian: Array | None) -> None:
        before = {name: values[group] for name, values in self.state.items()}
        untouched = (
            np.all(g == 0)
            and all(np.all(values == self.start) for values in before.values())
            and np.all(self.z[group] == 0)
        )
        m, root_V, after = MOMENTS[self.rule](g, hessian, before, self.t, **self.hyperparameters)
        for name, values in after.items():
            self.state[name][group] = values
        if untouched or lr == 0:
            return

        sigma = root_V / lr
        Q = sigma - np.where(self.updated[group], self.sigma[group], self._sigma_0(lr))
        z = self.z[group] + m - Q * self.x[group]
        s = np.array([self._s(z_i) for z_i in z])
        k = self._shrink(s, sigma)
        for i, coordinate in enumerate(group):
            self.x[coordinate] = self._x(self.x[coordinate], s[i], k, sigma[i])
        self.z[group] = z
        self.sigma[group] = sigma
        self.updated[group] = True

    def _s(self, z: np.longdouble) -> Any:
        l1 = self.regularizer.l1
        return 0.0 if abs(z) <= l1 else np.sign(z) * l1 - z

    def _x(self, x: np.longdouble, s: np.longdouble, k: Any, sigma: np.longdouble) -> Any:
        l1, l2 = self.regularizer.l1, self.regularizer.l2
        if sigma == 0:
            return k * x if l1 == 0 and l2 == 0 else 0.0
        return k * s / (sigma + 2 * l2)

    def _shrink(self, s: Array, sigma: Array) -> Any:
        r = self.regularizer
        if r.l21 == 0:
            return 1.0
        A = sigma / 2 + r.l2
        exponent = {"s": 0.0, "s_tilde": -1.0, "metric": -0.5}[r.norm]
        weighted = [0.0 if A_i == 0 and r.norm != "s" else A_i**exponent * s_i for A_i, s_i in zip(A, s, strict=True)]
        norm = np.sqrt(np.sum(np.square(weighted)))
        if norm == 0:
            return 0.0
        lasso = max(1 - np.sqrt(np.longdouble(len(s))) * r.l21 / norm, 0.0)
        if r.penalty == "mcp":
            return min(r.mcp_gamma / (r.mcp_gamma - 1) * lasso, 1.0)
        if r.penalty == "hard":
            return 1.0 if lasso > 0 else 0.0
        return lasso
