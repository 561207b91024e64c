"""A lookup over all ranks: distinct keys to those that have their rows, vectors back, gradients the other way."""

from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

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
from sparsegroup.table.sharded.exchange import KeyExchange, Shards, attempt
from sparsegroup.table.table import Table


@dataclass(frozen=True)
class _Ahead:
    """A later lookup: its keys, what the ranks exchange for it, and what is found of that."""

    keys: Int64s
    insert: bool
    exchange: "Future[KeyExchange]"
    found: LookAhead


class ShardedLookup:
    """Looks keys up on all ranks of a table. All of them have to call each method, in the same order.

    An error of one rank, such as a lack of memory, is reported to the others before they wait for that rank, and raised
    on all. `begins_dead`: whether fallback vectors learn from new keys, see `begin_dead`.
    """

    def __init__(self, table: Table, shards: Shards, *, begins_dead: bool) -> None:
        self.table, self.shards, self._begins_dead = table, shards, begins_dead
        self._ahead: _Ahead | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ahead": None}  # a copy has not looked ahead

    def vectors(self, weight: StoredParameter, keys: Int64s, insert: bool) -> Tensor:
        """The vectors of `keys`, `[n, dim]`, this rank's part of the batch, which may be empty.

        `weight` gets the gradients of this rank's rows. With `insert`, the same on all ranks, new keys are admitted or
        not. Raises RuntimeError if other keys were looked up ahead, and what `Table.look_up` raises.
        """
        shards, table = self.shards, self.table
        is_again = insert and is_recomputation()
        _, error = attempt(table.keep_up) if insert and not is_again else (None, None)
        if self._ahead is not None and self._ahead.insert == insert and not is_again:
            ahead, self._ahead = self._ahead, None
            with shards.waiting():
                exchange = ahead.exchange.result()
            found, failure = attempt(partial(self._fetched, ahead, exchange, keys))
            error = error or failure
        else:
            exchange = shards.exchange_keys(keys, "a recomputation" if is_again else _purpose(insert), error)
            look_up = table.look_up_again if is_again else partial(table.look_up, insert=insert)
            found, error = attempt(lambda: look_up(exchange.keys))
        begins_dead = self._begins_dead and insert and not is_again
        counts = shards.agree(exchange, live_and_known(table) if begins_dead else (), error)
        assert found is not None
        if begins_dead:
            begin_dead(found, *counts)
        mine = shards.vectors(for_autograd(weight, found.locations, found.vectors), exchange)
        return spread_out(mine, exchange.own.inverse)

    def rows(self, keys: Int64s) -> Tensor:
        """The rows of `keys` as they are, `[n, dim]`, zeros for those without one."""
        exchange = self.shards.exchange_keys(keys, "lookup()")
        found, error = attempt(lambda: self.table.look_up(exchange.keys, insert=False).vectors)
        self.shards.agree(exchange, (), error)
        assert found is not None
        return spread_out(self.shards.vectors(found, exchange), exchange.own.inverse)

    def contains(self, keys: Int64s) -> npt.NDArray[np.bool_]:
        """Which of `keys` have a row, `[n]`."""
        exchange = self.shards.exchange_keys(keys, "contains()")
        has_row = torch.from_numpy((self.table.find(exchange.keys) != ABSENT).astype(np.uint8))
        found: npt.NDArray[np.bool_] = self.shards.answers(has_row, exchange).numpy().astype(np.bool_)
        return found[exchange.own.inverse]

    def assign(self, keys: Int64s, vectors: Tensor) -> None:
        """Set the vectors `[n, dim]` of distinct keys, wherever their rows are; see `Table.assign`.

        Raises ValueError if two ranks give the same key; nothing is changed then.
        """
        shards = self.shards
        exchange = shards.exchange_keys(keys, "assign()")
        twice = len(exchange.keys) - len(np.unique(exchange.keys))
        received = shards.values(vectors, exchange)
        if shards.totals([twice], "keys that came twice")[0]:
            raise ValueError("keys must be distinct, also those that different ranks give")
        shards.do(lambda: self.table.assign(exchange.keys, received.numpy()), "assigning vectors")

    def look_ahead(self, keys: Int64s, insert: bool) -> None:
        """Exchange and find the keys of a later lookup while others compute."""
        keys = keys.copy()
        exchange = self.shards.begin_exchange_of_keys(keys, _purpose(insert))

        def received() -> Int64s | None:
            with suppress(Exception):  # raised by the lookup itself
                return exchange.result().keys
            return None

        self._ahead = _Ahead(keys, insert, exchange, self.table.look_ahead_for(received, insert))

    def _fetched(self, ahead: _Ahead, exchange: KeyExchange, keys: Int64s) -> Found:
        """What was found ahead of a lookup of `keys`, or is found now."""
        table = self.table
        with self.shards.waiting():
            table.keep_promises()
        if not np.array_equal(ahead.keys, keys):
            raise RuntimeError(
                "prefetch was given other keys than this lookup: the ranks of a sharded HashEmbedding have exchanged "
                "them already; look up what was prefetched"
            )
        is_found = ahead.found.is_for(exchange.keys, ahead.insert)
        return table.fetch(ahead.found) if is_found else table.look_up(exchange.keys, ahead.insert)


def _purpose(insert: bool) -> str:
    return "a lookup in training" if insert else "a lookup in evaluation"
