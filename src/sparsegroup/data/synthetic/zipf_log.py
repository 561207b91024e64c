"""A synthetic click log: Zipf-distributed values, of which a known few are informative."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsegroup.data.keys import VALUE_BITS
from sparsegroup.data.memory_log import MemoryLog


@dataclass(frozen=True)
class SyntheticConfig:
    """Shape of a synthetic click log.

    Attributes:
        rows: Number of rows; the last tenth is the test set.
        cardinalities: Number of possible values of each field.
        exponent: a of the Zipf law, P(rank r) ∝ about r^-a; not 1.
        informative: Share of the values of a field that have an effect.
        effect: Standard deviation of the effects on the logit.
        bias: Logit of a row without informative values.
    """

    rows: int = 200_000
    cardinalities: Sequence[int] = (10, 50, 200, 1_000, 5_000, 20_000, 50_000, 100_000)
    exponent: float = 1.1
    informative: float = 0.1
    effect: float = 1.5
    bias: float = -1.5


def bounded_zipf(uniform: npt.NDArray[np.float64], cardinality: int, exponent: float) -> npt.NDArray[np.int64]:
    """Ranks in [0, cardinality) by inverting the distribution function of r^-exponent on [1, cardinality]."""
    power = 1 - exponent
    ranks = np.floor(((float(cardinality) ** power - 1) * uniform + 1) ** (1 / power)) - 1
    clipped: npt.NDArray[np.int64] = np.clip(ranks, 0, cardinality - 1).astype(np.int64)
    return clipped


def synthetic_log(config: SyntheticConfig = SyntheticConfig(), seed: int = 0) -> MemoryLog:
    """Draw a log whose label is Bernoulli(sigmoid(bias + Σ effect of the row's values)).

    A value is informative with probability `informative`, whatever its frequency; its effect is N(0, effect²). All
    other values have effect 0. The key of value v of field f is f · 2⁵⁶ + v.

    Args:
        config: Shape of the log.
        seed: The same seed gives the same log.
    """
    generator = np.random.default_rng(seed)
    logits = np.full(config.rows, config.bias)
    columns, truths = [], []
    for number, cardinality in enumerate(config.cardinalities):
        informative = generator.random(cardinality) < config.informative
        effects = np.where(informative, generator.normal(0, config.effect, cardinality), 0.0)
        # Ranks are scattered over the values, so that a value's name says nothing of its frequency.
        values = generator.permutation(cardinality)[
            bounded_zipf(generator.random(config.rows), cardinality, config.exponent)
        ]
        logits += effects[values]
        first = number << VALUE_BITS
        columns.append(first + values)
        truths.append(first + np.flatnonzero(informative))
    labels = (generator.random(config.rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return MemoryLog(
        "synthetic",
        tuple(f"field_{number}" for number in range(len(columns))),
        np.stack(columns, axis=1),
        labels,
        config.rows - config.rows // 10,
        np.concatenate(truths),
    )
