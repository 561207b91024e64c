"""A lookup over all ranks: distinct keys to those that have their rows, vectors back, gradients the other way."""

from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.optim.stored import StoredParameter
from sparsegroup.table.buckets import ABSENT
from sparsegroup.table.differentiable_lookup import for_autograd, spread_out
from sparsegroup.table.fallback import begin_dead, live_and_known
from sparsegroup.table.graph_lookup import is_recomputation
from sparsegroup.table.key_search import LookAhead
from sparsegroup.table.row_locations import Int64s
from sparsegroup.table.row_lookup import Found
from sparsegroup.table.sharded.shards import Asked, Shards
from sparsegroup.table.table import Table


@dataclass(frozen=True)
class _Ahead:
    """A lookup to come: its keys, what the ranks ask for in it, and what is found of that."""

    keys: Int64s
    insert: bool
    asked: "Future[Asked]"
    found: LookAhead


class ShardedLookup:
    """Looks keys up on all ranks of a table.

    Args:
        table: The rows of this rank.
        shards: The ranks.
        begins_dead: Whether fallback vectors learn from new keys, see `begin_dead`.
    """

    def __init__(self, table: Table, shards: Shards, *, begins_dead: bool) -> None:
        self.table, self.shards, self._begins_dead = table, shards, begins_dead
        self._ahead: _Ahead | None = None

    def vectors(self, weight: StoredParameter, keys: Int64s, insert: bool) -> Tensor:
        """The vectors of `keys`, `[n, dim]`, differentiable. All ranks have to call it, with keys or without.

        Args:
            weight: Gets the gradients of this rank's rows.
            keys: `[n]` of this rank's part of the batch.
            insert: Whether new keys are admitted or not; the same on all ranks.

        Raises:
            RuntimeError: Others were looked up ahead; or as `Table.look_up`: the other ranks then wait in vain.
            ExchangeError: The ranks do not come together.
        """
        shards = self.shards
        if insert and is_recomputation():
            with shards.waiting():
                asked = shards.ask(keys).result()
            found = self.table.look_up_again(asked.keys)
            mine = shards.answered(for_autograd(weight, found.locations, found.vectors), asked)
            return spread_out(mine, asked.own.inverse)
        asked, found = self._taken(keys, insert) or self._asked(keys, insert)
        if self._begins_dead and insert:
            begin_dead(found, *shards.totals(live_and_known(self.table), "its live rows"))
        mine = shards.answered(for_autograd(weight, found.locations, found.vectors), asked)
        return spread_out(mine, asked.own.inverse)

    def rows(self, keys: Int64s) -> Tensor:
        """The rows of `keys` as they are, `[n, dim]`, zeros for those without one. All ranks have to call it."""
        asked = self.shards.ask(keys).result()
        vectors = self.shards.answered(self.table.look_up(asked.keys, insert=False).vectors, asked)
        return spread_out(vectors, asked.own.inverse)

    def contains(self, keys: Int64s) -> npt.NDArray[np.bool_]:
        """Which of `keys` have a row, `[n]`. All ranks have to call it."""
        asked = self.shards.ask(keys).result()
        has_row = torch.from_numpy((self.table.find(asked.keys) != ABSENT).astype(np.uint8))
        found: npt.NDArray[np.bool_] = self.shards.told(has_row, asked).numpy().astype(np.bool_)[asked.own.inverse]
        return found

    def assign(self, keys: Int64s, vectors: Tensor) -> None:
        """Set the vectors `[n, dim]` of distinct keys, wherever their rows are. All ranks have to call it.

        Raises:
            ValueError: Two ranks give the same key; nothing is changed.
        """
        asked = self.shards.ask(keys).result()
        twice = len(asked.keys) - len(np.unique(asked.keys))
        come = self.shards.handed_over(vectors, asked)
        if self.shards.totals([twice], "keys that came twice")[0]:
            raise ValueError("keys must be distinct, also those that different ranks give")
        self.table.assign(asked.keys, come.numpy())

    def look_ahead(self, keys: Int64s, insert: bool) -> None:
        """Exchange and find the keys of a lookup to come while others compute; all ranks have to call it."""
        keys = keys.copy()
        asked = self.shards.ask(keys)

        def come() -> Int64s | None:
            with suppress(Exception):  # told by the lookup itself
                return asked.result().keys
            return None

        self._ahead = _Ahead(keys, insert, asked, self.table.look_ahead_for(come, insert))

    def _asked(self, keys: Int64s, insert: bool) -> tuple[Asked, Found]:
        with self.shards.waiting():
            asked = self.shards.ask(keys).result()
        return asked, self.table.look_up(asked.keys, insert)

    def _taken(self, keys: Int64s, insert: bool) -> tuple[Asked, Found] | None:
        """What was exchanged ahead of this lookup, if it was."""
        ahead, table = self._ahead, self.table
        if ahead is None or ahead.insert != insert:
            return None
        self._ahead = None
        if not np.array_equal(ahead.keys, keys):
            raise RuntimeError(
                "prefetch was given other keys than this lookup: the ranks of a sharded HashEmbedding have exchanged "
                "them already; look up what was prefetched"
            )
        with self.shards.waiting():
            asked = ahead.asked.result()
            table.keep_promises()
        is_found = ahead.found.is_for(asked.keys, insert)
        return asked, table.fetch(ahead.found) if is_found else table.look_up(asked.keys, insert)
