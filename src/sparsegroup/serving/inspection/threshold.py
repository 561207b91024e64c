"""How far a table's rows are from the threshold of λ."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup import prox
from sparsegroup.kernels.rounding import array_was_updated
from sparsegroup.kernels.step import Regularizer
from sparsegroup.optim.step import VANISHING_LR
from sparsegroup.penalties import PracticalNorm
from sparsegroup.rules import Rule, bind

Float64s = npt.NDArray[np.float64]

_soft_threshold = bind(prox.soft_threshold, np)


@dataclass(frozen=True)
class Sigma:
    """σ of rows, as a step without a gradient would find it: the optimizer's next, its moments as they are stored.

    For a rule that does not decay its moments, σ is that of the row's last update.

    Attributes:
        rule: The base optimizer.
        scalars: The scalars of its next step.
    """

    rule: Rule
    scalars: tuple[float, ...]

    def __call__(self, state: Sequence[Float64s], shape: tuple[int, ...]) -> Float64s:
        """σ of rows `[n, dim]` whose state is `state`, in the order of the rule's."""
        nothing = np.zeros(shape)
        gradients = [nothing, nothing] if self.rule.has_second_input else [nothing]
        _, sigma, *_ = bind(self.rule.update, np)(*gradients, *state, *self.scalars)
        return np.broadcast_to(np.asarray(sigma, np.float64), shape)


def sigma_of(rule: Rule, hyperparameters: Mapping[str, Any], steps: int | None) -> Sigma | None:
    """σ of a table's rows after so many steps of its optimizer; None where it cannot be told.

    Args:
        rule: The base optimizer.
        hyperparameters: The values in the table's param group.
        steps: None if they are not known, which matters to rules that count them.
    """
    lr = float(hyperparameters["lr"])
    if lr < VANISHING_LR or (steps is None and rule.counts_steps):
        return None
    return Sigma(rule, rule.host_scalars(hyperparameters, (steps or 0) + 1, lr))


@dataclass(frozen=True)
class Threshold:
    """What decides whether a row is zero: it is, where its measure is at most 1.

    With z = u - σ x and s = -sign(z) max(|z| - λ1, 0), the measure is ‖s‖ / (√d λ21), or max |z| / λ1 where λ21 = 0.
    A zero row's z is u, which needs no σ.

    Attributes:
        regularizer: The table's regularizer; λ1 or λ21 is positive, the norm "s" unless λ21 = 0.
        sigma: σ of rows that are not zero, or None.
    """

    regularizer: Regularizer
    sigma: Sigma | None

    @classmethod
    def of(cls, regularizer: Regularizer, sigma: Sigma | None) -> "Threshold | None":
        """None where the measure would need a σ that is not kept, or there is no threshold."""
        has_one = regularizer.l1 > 0 if regularizer.l21 == 0 else isinstance(regularizer.norm, PracticalNorm)
        return cls(regularizer, sigma) if has_one else None

    @property
    def measure(self) -> str:
        """In the paper's letters."""
        return "‖s‖ / (√d λ21)" if self.regularizer.l21 > 0 else "max |z| / λ1"

    def measured(self, z: Float64s) -> Float64s:
        """The measure `[n]` of rows with `z` `[n, dim]`."""
        l1, l21 = self.regularizer.l1, self.regularizer.l21
        if l21 == 0:
            largest: Float64s = np.abs(z).max(axis=1) / l1
            return largest
        norms: Float64s = np.sqrt(np.square(_soft_threshold(z, l1, 0.0)).sum(axis=1))
        return norms / (math.sqrt(z.shape[1]) * l21)

    def kept(self, measure: float) -> float:
        """k, the factor in [0, 1] that a live row of this measure is shrunk by; 0 where λ has grown since."""
        if self.regularizer.l21 == 0 or math.isnan(measure):
            return math.nan
        if measure <= 1:
            return 0.0
        penalty = self.regularizer.penalty
        return 1 - float(bind(penalty.shrinkage, np)(measure, 1.0, 0.0, 1.0, *penalty.scalars()))


def ever_updated(u: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Which rows `[n]` a step has been taken on, told from u `[n, dim]`: those never updated have +0 throughout."""
    return np.asarray(array_was_updated(u).any(axis=1))
