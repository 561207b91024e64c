"""Which keys get a row: the policy of a table, and the one it has unless another is given."""

from typing import Protocol

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]


class AdmissionPolicy(Protocol):
    """Decides which keys that have no row get one. Give it as `HashEmbedding(..., admission=policy)`.

    It is asked in training mode, once per lookup that brings such keys. A key that is not admitted gives zeros and gets
    no gradient; it counts as seen all the same. It is copied and pickled with its table.
    """

    def admits(self, keys: Int64s, sights: Int64s) -> npt.NDArray[np.bool_]:
        """Which of some keys get a row now.

        Args:
            keys: `[n]`, distinct; none has a row.
            sights: `[n]`, in how many lookups of training mode each has come since it last had a row, this one
                included: ≥ 1.

        Returns:
            `[n]` bool.
        """


class EveryKey:
    """Every key gets a row when training first sees it."""

    def admits(self, keys: Int64s, sights: Int64s) -> npt.NDArray[np.bool_]:
        """All of them. A table knows that, and does not ask."""
        return np.ones(len(keys), np.bool_)


EVERY_KEY = EveryKey()
