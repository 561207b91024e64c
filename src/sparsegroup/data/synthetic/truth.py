"""The truth of a synthetic log: which features have an effect on the label, and how large it is.

It follows from the key and the seed alone. A key is 64 bits: the field's number in the top 8, and below it 56 bits that
are a one-to-one mix of the value number. Value numbers count a field's values in the order in which the log introduces
them, so low ones are the frequent ones.
"""

from functools import cache
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from sparsegroup.data.keys import VALUE_BITS

Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]

EFFECT = 0.33
"""Standard deviation of an informative feature's effect on the logit."""

HEAD_CHANCE = 0.6
"""Chance of the most frequent value of a field to be informative."""

HEAD_VALUES = 1000
"""Value number v is informative with chance HEAD_CHANCE / sqrt(1 + v / HEAD_VALUES)."""

# A one-to-one mix of 56 bits: add, multiply, xor-shift, multiply, xor-shift. Odd factors have an inverse mod 2^56, and
# a xor-shift by half the width undoes itself.
_MASK = np.uint64((1 << VALUE_BITS) - 1)
_FIELD_SHIFT = np.uint64(VALUE_BITS)
_HALF_SHIFT = np.uint64(28)
_FACTORS = (0xA0761D6478BD642F, 0x9FB21C651E98DF25)
_MULTIPLY = tuple(np.uint64(factor) for factor in _FACTORS)
_DIVIDE = tuple(np.uint64(pow(factor, -1, 1 << VALUE_BITS)) for factor in _FACTORS)
_FIELD_OFFSET = 0x9E3779B97F4A7C15


def is_informative(keys: Int64s, seed: int) -> npt.NDArray[np.bool_]:
    """Which features have an effect on the label.

    Args:
        keys: int64, `[n]`.
        seed: The log's.

    Returns:
        `[n]` bool.

    Raises:
        ValueError: `seed` < 0.
    """
    informative: npt.NDArray[np.bool_] = effects(keys, seed) != 0
    return informative


def effects(keys: Int64s, seed: int) -> Float32s:
    """The features' effects on the logit: N(0, EFFECT²) where informative, else 0.

    Args:
        keys: int64, `[n]`.
        seed: The log's.

    Returns:
        `[n]` float32.

    Raises:
        ValueError: `seed` < 0.
    """
    check_seed(seed)
    keys = np.asarray(keys, dtype=np.int64)
    return effects_of_values(keys, _values(keys), salt_of(seed))


def check_seed(seed: int) -> None:
    """Raise ValueError unless `seed` is >= 0."""
    if seed < 0:
        raise ValueError(f"seed must be >= 0, got {seed}")


def keys_of_values(values: Int64s, field: int) -> Int64s:
    """Keys of value numbers."""
    mixed = values.view(np.uint64) + np.uint64((field + 1) * _FIELD_OFFSET & (1 << VALUE_BITS) - 1)
    for factor in _MULTIPLY:
        mixed *= factor
        mixed &= _MASK
        mixed ^= mixed >> _HALF_SHIFT
    mixed |= np.uint64(field) << _FIELD_SHIFT
    return mixed.view(np.int64)


def _values(keys: Int64s) -> Int64s:
    """Value numbers: the inverse of `keys_of_values`."""
    field = keys.view(np.uint64) >> _FIELD_SHIFT
    mixed = keys.view(np.uint64) & _MASK
    for factor in reversed(_DIVIDE):
        mixed ^= mixed >> _HALF_SHIFT
        mixed *= factor
        mixed &= _MASK
    mixed -= (field + np.uint64(1)) * np.uint64(_FIELD_OFFSET)
    mixed &= _MASK
    return mixed.view(np.int64)


def salt_of(seed: int) -> np.uint64:
    """A number that stands for the seed in `effects_of_values`."""
    salt: np.uint64 = np.random.SeedSequence(seed, spawn_key=(1,)).generate_state(1, np.uint64)[0]
    return salt


@cache
def _normal_quantiles() -> Float32s:
    count = 1 << 14
    normal = NormalDist(sigma=EFFECT)
    return np.array([normal.inv_cdf((step + 0.5) / count) for step in range(count)], dtype=np.float32)


def effects_of_values(keys: Int64s, values: Int64s, salt: np.uint64) -> Float32s:
    """`effects` of keys whose value numbers are known."""
    bits = keys.view(np.uint64) ^ salt
    bits *= np.uint64(0xBF58476D1CE4E5B9)
    bits ^= bits >> np.uint64(32)
    bits *= np.uint64(0x94D049BB133111EB)
    # The high 32 bits say whether there is an effect, 14 bits mixed from both halves which.
    # u 2^32 for a uniform u; u < HEAD_CHANCE / sqrt(1 + v / HEAD_VALUES), without its root and quotient.
    chance = (bits >> np.uint64(32)).astype(np.float64)
    chance *= chance
    chance *= values + float(HEAD_VALUES)
    informative = chance < HEAD_CHANCE**2 * HEAD_VALUES * 2.0**64
    quantiles = _normal_quantiles()
    bits >>= np.uint64(18)
    bits &= np.uint64(len(quantiles) - 1)
    effect: Float32s = quantiles.take(bits.view(np.int64))
    effect *= informative
    return effect
