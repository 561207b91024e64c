"""How the keys of a step fall on ranks: drawn batches, routed as the library routes them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ranks.ctr_training import SHAPE
from sparsegroup.table.sharded.routing import Routing

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class KeyLoad:
    """What a step asks of the busiest rank.

    Attributes:
        distinct: Most distinct keys of a rank's batch.
        asked: Most keys that are asked of a rank, once for each rank that asks.
        rows: Most rows that a rank steps: distinct ones of those.
        out: Most keys that a rank asks of others.
        into: Most keys that others ask of a rank.
        mean: Mean number of keys that are asked of a rank.
    """

    distinct: float
    asked: float
    rows: float
    out: float
    into: float
    mean: float

    @classmethod
    def of(cls, batches: Int64s, replicated: Int64s | None = None) -> "KeyLoad":
        """Of one step.

        Args:
            batches: `[ranks, batch, fields]`.
            replicated: Keys whose rows are on all ranks, ascending: these are not asked for.
        """
        ranks = len(batches)
        routing = Routing(ranks)
        asked = np.zeros((ranks, ranks), np.int64)  # by whom, of whom
        distinct, all_keys = np.zeros(ranks, np.int64), []
        for rank, keys in enumerate(batches):
            own = np.unique(keys)
            distinct[rank] = len(own)
            if replicated is not None:
                own = np.setdiff1d(own, replicated, assume_unique=True)
            asked[rank] = np.bincount(routing.ranks_of(own), minlength=ranks)
            all_keys.append(own)
        of_each = asked.sum(0)
        rows = np.bincount(routing.ranks_of(np.unique(np.concatenate(all_keys))), minlength=ranks)
        stay = asked.diagonal()
        counts: list[Any] = [
            *(distinct.max(), of_each.max(), rows.max()),
            *((asked.sum(1) - stay).max(), (of_each - stay).max(), of_each.mean()),
        ]
        return cls(*map(float, counts))


@dataclass(frozen=True)
class KeyDraws:
    """Batches of keys of Criteo's fields.

    Attributes:
        log: `[rows, fields]`, of a log whose keys are skewed; None: each of a field's values is as likely.
        rows: How many rows can be drawn.
    """

    log: Int64s | None
    rows: int

    @classmethod
    def of(cls, folder: Path) -> "KeyDraws":
        """Those of a log that `write_log` has written."""
        keys = np.load(folder / "keys.npy")
        return cls(keys, len(keys))

    def batches(self, ranks: int, batch: int, step: int) -> Int64s:
        """`[ranks, batch, fields]`, of a step."""
        count = ranks * batch
        if self.log is not None:
            begin = step % max(1, len(self.log) // count) * count
            return self.log[begin : begin + count].reshape(ranks, batch, -1)
        draw = np.random.default_rng(step)
        values = [draw.integers(0, field.cardinality, count) for field in SHAPE.fields]
        keys = [(number << 56) | value for number, value in enumerate(values)]
        return np.stack(keys, 1).reshape(ranks, batch, -1)

    def load(self, ranks: int, batch: int, replicated: Int64s | None = None, steps: int = 1) -> KeyLoad:
        """The mean load of some steps."""
        loads = [KeyLoad.of(self.batches(ranks, batch, step), replicated) for step in range(steps)]
        return KeyLoad(*np.mean([list(vars(one).values()) for one in loads], axis=0).tolist())

    def hottest(self, count: int, batch: int) -> Int64s:
        """The keys that are in most batches of that size, ascending."""
        rows = self.batches(max(1, min(512, self.rows // batch)), batch, 0)
        keys, found = np.unique(np.concatenate([np.unique(one) for one in rows]), return_counts=True)
        return np.sort(keys[np.argsort(-found, kind="stable")[:count]])
