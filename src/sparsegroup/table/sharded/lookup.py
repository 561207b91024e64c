"""A lookup over all ranks: distinct keys travel to the ranks of their rows, vectors back, gradients there again."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.optim.table_parameter import StoredParameter
from sparsegroup.table.directory.buckets import ABSENT
from sparsegroup.table.lookup.autograd import Int64s, LookupInfo, expand, for_autograd
from sparsegroup.table.lookup.fallback import mask_new_rows
from sparsegroup.table.lookup.kernels import BagPooling
from sparsegroup.table.lookup.lookup import is_recomputation
from sparsegroup.table.sharded.exchange import KeyExchange, Shards, attempt
from sparsegroup.table.table import Table


@dataclass(frozen=True)
class _Prefetched:
    """A later lookup: its keys, and what the ranks exchange for it."""

    keys: Int64s
    insert: bool
    exchange: "Future[KeyExchange]"


class ShardedLookup:
    """Looks keys up on all ranks of a table. All of them must call each method, in the same order.

    An error of one rank, such as a lack of memory, is reported to the others before they wait for that rank, and raised
    on all.
    """

    def __init__(self, table: Table, shards: Shards) -> None:
        self.table, self.shards = table, shards
        self._prefetched: _Prefetched | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_prefetched": None}

    def vectors(
        self,
        weight: StoredParameter,
        keys: Int64s,
        insert: bool,
        bags: BagPooling | None = None,
        *,
        replaced: Callable[[Tensor, Int64s], Tensor],
    ) -> Tensor:
        """The vectors of `keys`, `[n, dim]`, this rank's part of the batch, which may be empty; with `bags`, pooled.

        `replaced` gives, for the vectors `[distinct, dim]` of distinct keys, those to take, such as fallback vectors.

        `weight` gets the gradients of this rank's rows. With `insert`, the same on all ranks, new keys are admitted or
        not. Raises RuntimeError if other keys were prefetched, and what `Table.look_up` raises.
        """
        shards, table = self.shards, self.table
        is_recomputed, prefetched = insert and is_recomputation(), self._prefetched
        if prefetched is not None and prefetched.insert == insert and not is_recomputed:
            self._prefetched = None
            with shards.waiting():
                exchange = prefetched.exchange.result()
                with table.at_rest():
                    pass
        else:
            prefetched = None
            exchange = shards.exchange_keys(keys, "a recomputation" if is_recomputed else _purpose(insert))

        def look_up() -> tuple[Tensor, LookupInfo]:
            if prefetched is not None and not np.array_equal(prefetched.keys, keys):
                raise RuntimeError(
                    "prefetch was given other keys than this lookup: the ranks of a sharded HashEmbedding have "
                    "exchanged them already; look up what was prefetched"
                )
            return table.look_up(torch.from_numpy(exchange.keys), insert)

        result, error = attempt(look_up)
        masks = table.config.has_fallback and insert and not is_recomputed
        counts = shards.agree(exchange, table.live_and_seen() if masks else (), error)
        assert result is not None
        vectors, info = result
        if masks:
            mask_new_rows(vectors, info.search, info.search.new_places(is_distinct=False), *counts)
        mine = shards.vectors(for_autograd(weight, info, vectors), exchange)
        return expand(replaced(mine, exchange.own.keys), exchange.own.inverse, bags)

    def rows(self, keys: Int64s) -> Tensor:
        """The rows of `keys`, `[n, dim]`, zeros for keys without one."""
        exchange = self.shards.exchange_keys(keys, "lookup()")
        found, error = attempt(lambda: self.table.look_up(torch.from_numpy(exchange.keys), insert=False)[0])
        self.shards.agree(exchange, (), error)
        assert found is not None
        return expand(self.shards.vectors(found, exchange), exchange.own.inverse)

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
            raise ValueError("keys must be distinct, also among different ranks")
        shards.do(lambda: self.table.assign(exchange.keys, received.numpy()), "assigning vectors")

    def prefetch(self, keys: Int64s, insert: bool) -> None:
        """Exchange and find the keys of a later lookup while others compute."""
        exchange = self.shards.begin_exchange_of_keys(keys.copy(), _purpose(insert))
        self._prefetched = _Prefetched(keys.copy(), insert, exchange)
        self.table.prefetch_received(lambda: exchange.result().keys, insert)


def _purpose(insert: bool) -> str:
    return "a lookup in training" if insert else "a lookup in evaluation"
