"""Which keys get a row: the policies to choose from, and what one of your own derives from."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


class AdmissionPolicy(ABC):
    """Decides which keys that have no row get one: derive from it, and give it as `HashEmbedding(admission=policy)`.

    It is asked in training mode, once per lookup that brings such keys. A key that is not admitted gives zeros and gets
    no gradient; it counts as seen all the same. The policy is copied and pickled with its table.

    Attributes:
        sketch_bytes: Count occurrences in a sketch of so many bytes, ≥ 4,096. None: exactly, or, in a table with
            `max_bytes`, in a sketch of a sixteenth of these.
        k: The highest count that it tells from the next; a sketch counts to 255.
        draws: Whether it admits by chance: instead of counts, which stop at 255 and are halved, a sketch gives it the
            number of the lookup.
    """

    sketch_bytes: int | None = None
    k: int = 1
    draws: bool = False

    @abstractmethod
    def admits(self, keys: Int64s, counts: Int64s) -> npt.NDArray[np.bool_]:
        """Which of some keys get a row now.

        Args:
            keys: `[n]`, distinct; none has a row.
            counts: `[n]`, in how many lookups of training mode each has come since it last had a row, this one
                included: ≥ 1.

        Returns:
            `[n]` bool.
        """


class EveryKey(AdmissionPolicy):
    """Every key gets a row when training first sees it."""

    def admits(self, keys: Int64s, counts: Int64s) -> npt.NDArray[np.bool_]:
        """All of them. A table knows that, and does not ask."""
        return np.ones(len(keys), np.bool_)


class SetKeys(EveryKey):
    """Keys whose vectors are set from outside get a row, and room has been found for them."""


SET_KEYS = SetKeys()


@dataclass(frozen=True)
class MinCount(AdmissionPolicy):
    """A key gets a row when it comes for the k-th time.

    Args:
        k: In so many lookups of training mode, ≥ 1; twice in one lookup counts once.
        sketch_bytes: Count in so many bytes, ≥ 4,096, and no more: a key may then get its row early; k is 255 at most.
            None: exactly, in some 40 bytes for each key that waits (with `max_bytes`: in a sketch of a sixteenth of
            these).

    Raises:
        ValueError: A number out of range.

    Examples:
        >>> import torch
        >>> from sparsegroup import HashEmbedding, MinCount
        >>> table = HashEmbedding(4, admission=MinCount(2))
        >>> bool(table(torch.tensor([7])).any()), table.num_rows, table.num_seen
        (False, 0, 1)
        >>> bool(table(torch.tensor([7])).any()), table.num_rows
        (True, 1)
    """

    k: int = field()
    sketch_bytes: int | None = None

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k must be >= 1, got {self.k}")
        if self.sketch_bytes is not None and self.sketch_bytes < 4096:
            raise ValueError(f"sketch_bytes must be >= 4,096, got {self.sketch_bytes:,}")
        if self.sketch_bytes is not None and self.k > 255:
            raise ValueError(f"a sketch counts to 255: k must be <= 255 with sketch_bytes, got {self.k}")

    def admits(self, keys: Int64s, counts: Int64s) -> npt.NDArray[np.bool_]:
        """See `AdmissionPolicy`."""
        return counts >= self.k


@dataclass(frozen=True)
class Probabilistic(AdmissionPolicy):
    """A key gets a row at each occurrence with a probability: after 1 / p of them on average.

    Whether it does is a function of key, count and seed, so that a resumed training decides alike. (In a table of
    limited bytes, of key, number of the lookup, and seed.)

    Args:
        p: In (0, 1].
        seed: In [0, 2⁶³).

    Raises:
        ValueError: p is out of range.
    """

    p: float
    seed: int = 0
    draws = True

    def __post_init__(self) -> None:
        if not 0 < self.p <= 1:
            raise ValueError(f"p must be in (0, 1], got {self.p}")

    def admits(self, keys: Int64s, counts: Int64s) -> npt.NDArray[np.bool_]:
        """See `AdmissionPolicy`."""
        drawn = _mixed(keys.view(np.uint64) ^ _mixed(counts.view(np.uint64) ^ _mixed(np.uint64(self.seed))))
        admitted: npt.NDArray[np.bool_] = (drawn >> np.uint64(11)) * 2.0**-53 < self.p
        return admitted


def _mixed(value: Any) -> Any:
    """SplitMix64's output function (Steele et al., 2014): uint64 → uint64."""
    with np.errstate(over="ignore"):
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))
