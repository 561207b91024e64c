"""A copy of a table's content in memory: what a state dict, an optimizer's state and a pickle are made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


def _none() -> Int64s:
    return np.zeros(0, np.int64)


@dataclass(frozen=True)
class TableSnapshot:
    """Content of a table, or some of it.

    Attributes:
        keys: `[n]`, in the order of the rows.
        parts: "weight", "u" and the optimizer's state, as far as they are in it → `[n, dim]`.
        dropped: `[k]`, keys that had a row and lost it; some may have one again.
        waiting: `[w]`, keys that were seen and not admitted.
        sights: `[w]`, in how many lookups each of these has come.
        num_seen: Distinct keys ever seen; None if it is to be counted.
        skipped_rows: Row updates left out; None if that is not in it.
    """

    keys: Int64s
    parts: Mapping[str, npt.NDArray[Any]]
    dropped: Int64s = field(default_factory=_none)
    waiting: Int64s = field(default_factory=_none)
    sights: Int64s = field(default_factory=_none)
    num_seen: int | None = None
    skipped_rows: int | None = None

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The keys and the parts by name."""
        return {"keys": self.keys, **self.parts}
