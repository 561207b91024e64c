"""The table without autograd: a directory of keys, a storage of rows, lookups in them, and an optimizer's steps."""

import copy
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.kernels.cpu import threads
from sparsegroup.optim.stored import ROWS_LEFT_OUT, RowStep, StateOwner
from sparsegroup.rules import Rule
from sparsegroup.table import key_search, table_average
from sparsegroup.table.admission import SET_KEYS, AdmissionPolicy
from sparsegroup.table.changes import Changes
from sparsegroup.table.directory import Directory, Evictor, RowLimit
from sparsegroup.table.key_search import KeySearch, LookAhead
from sparsegroup.table.pending import Pending
from sparsegroup.table.row_locations import Int64s
from sparsegroup.table.row_lookup import CHUNK, Found, RowLookup
from sparsegroup.table.row_start import RowStarts
from sparsegroup.table.row_steps import RowSteps, TablePlan
from sparsegroup.table.row_storage import WEIGHT, Floats, RowStorage
from sparsegroup.table.sharded.exchange import Shards
from sparsegroup.table.sharded.rank_parts import RankShard
from sparsegroup.table.storage_kinds import new_directory, new_storage
from sparsegroup.table.table_config import TableConfig
from sparsegroup.table.table_inspection import TableInspection
from sparsegroup.table.table_report import TableMemory, memory_of
from sparsegroup.table.table_snapshot import TableSnapshot


class Table(TableInspection):
    """Keys, their rows, and the optimizer's state in them. All methods may be called from any thread.

    Args:
        config: See `HashEmbedding`.
        directory: The keys that there are; None for none.
        storage: Their rows.
        ranks: See below.

    Attributes:
        directory: Key → row; to be read at rest.
        storage: The rows and what is done where they are, likewise.
        starts: Where rows start.
        ranks: The ranks that other rows of the same table are on; None where all are here.
    """

    def __init__(
        self,
        config: TableConfig,
        directory: Directory | None = None,
        storage: RowStorage | None = None,
        ranks: Shards | None = None,
    ) -> None:
        self.config, self.ranks = config, ranks
        self.starts = RowStarts(config.init, config.std, config.seed, config.dim, config.dtype)
        self._pending = Pending()
        directory, storage = directory or new_directory(config), storage or new_storage(config)
        self._limit: RowLimit | None = None
        if config.max_bytes is not None:
            other_bytes = 2 * config.scratch_bytes + directory.occurrences.nbytes + directory.seen.nbytes
            self._limit = RowLimit(config.max_bytes, other_bytes, storage.rows)
        self._compose(directory, storage)
        self._evictor.fit_index()

    def _compose(self, directory: Directory, storage: RowStorage, claim: StateOwner | None = None) -> None:
        self.directory, self.storage = directory, storage
        self._evictor = Evictor(self.config.eviction, self.config.ranking, self._limit, directory, storage)
        self._steps = RowSteps(
            self.config, directory, storage, self._pending, self._evictor.note_step, self._limit, claim
        )
        self._lookup = RowLookup(
            directory, storage, self.starts, self._steps.mark, self._limit, scratch_bytes=self.config.scratch_bytes
        )

    # Lookup

    def look_up(self, keys: Int64s, insert: bool) -> Found:
        """Where `keys` `[n]` are, and their vectors `[n, dim]`; with `insert`, new keys are admitted or not.

        Raises:
            RuntimeError: `max_rows` would be exceeded, or the table belongs to a parent process; nothing has changed.
            MemoryError: The system has no more; nothing has changed.
        """
        with self._pending.lock, self._pending:
            return self._awaited(self._lookup.look_up(keys, self._admission(insert)), insert)

    def look_up_again(self, keys: Int64s) -> Found:
        """What a training lookup of `keys` since the last step gave: backward recomputes it. Nothing is counted.

        Raises:
            RuntimeError: See `Generation.recall`.
        """
        with self._pending.lock, self._pending:
            if self.config.is_repeatable:
                return self._awaited(self._lookup.look_up(keys, self._admission(True), again=True), False)
            return self._awaited(self._lookup.fetch_again(self.directory.generation.recall(keys)), False)

    def _awaited(self, found: Found, insert: bool) -> Found:
        generation = self.directory.generation
        generation.await_gradient(found.locations)
        if insert and not self.config.is_repeatable:
            generation.remember(found.search)
        return found

    def look_ahead(self, keys: Int64s, insert: bool) -> LookAhead | None:
        """Let another thread find `keys` for a lookup to come, if there is one; with `insert`, as `look_up`.

        Whoever looks at the table meanwhile finds that done. Nothing is done for so few keys that it would not pay, or
        more than are looked up at a time.
        """
        if not key_search.GRAIN <= len(keys) <= CHUNK or threads.get_num_threads() == 1:
            return None
        admission = self._admission(insert)
        ahead = LookAhead(KeySearch(keys.copy()), insert)
        self._pending.promise(partial(self._lookup.run_ahead, ahead, admission))
        threads.submit(self._pending.keep)
        return ahead

    def look_ahead_for(self, keys: Callable[[], Int64s | None], insert: bool) -> LookAhead:
        """Let another thread find keys for a lookup to come, when they are there; with `insert`, as `look_up`.

        Args:
            keys: Waits for them and gives them, `[n]`, and must not raise; None if there are none to be had.
            insert: Whether new ones are admitted or not.
        """
        admission = self._admission(insert)
        ahead = LookAhead(KeySearch(np.empty(0, np.int64)), insert)

        def run() -> None:
            found = keys()
            if found is not None and len(found) <= CHUNK:
                ahead.search = KeySearch(found)
                self._lookup.run_ahead(ahead, admission)

        self._pending.promise(run)
        threading.Thread(target=self._pending.keep, name="sparsegroup-ahead", daemon=True).start()
        return ahead

    def keep_promises(self) -> None:
        """Wait for what another thread does ahead."""
        self._pending.keep()

    def fetch(self, ahead: LookAhead) -> Found:
        """What `look_up` gives, and raises, of keys that have been looked up ahead."""
        with self._pending.lock, self._pending:
            return self._awaited(self._lookup.fetch(ahead, self._admission(ahead.insert)), ahead.insert)

    def _admission(self, insert: bool) -> AdmissionPolicy | None:
        if not insert:
            return None
        self._pending.check_inserts()
        return self.config.admission

    # The optimizer's steps and state; see `sparsegroup.optim.stored.RowStore`

    def plan(
        self,
        gradient: Tensor,
        rule: Rule,
        *,
        claim: StateOwner | None,
        maximize: bool,
        wants_u: bool,
        where: object,
        state_dtype: torch.dtype | None = None,
    ) -> TablePlan:
        """See `sparsegroup.optim.stored.RowStore`."""
        return self._steps.plan(
            gradient, rule, claim=claim, maximize=maximize, wants_u=wants_u, where=where, state_dtype=state_dtype
        )

    def survival_l21(self, request: RowStep, rows: Int64s | None = None) -> Floats:
        """See `RowStore`."""
        return self._steps.survival_l21(request, rows)

    def sweep(self, request: RowStep, *, drops: bool) -> None:
        """See `sparsegroup.optim.stored.RowStore`."""
        self._steps.sweep(request, drops=drops)

    @property
    def part(self) -> RankShard:
        """Whose rows these are."""
        return RankShard() if self.ranks is None else self.ranks.part

    def own_name(self, entry: str) -> str:
        """See `sparsegroup.optim.stored.RowStore`."""
        return self.part.named(entry)

    def entry_of(self, name: str) -> str:
        """See `sparsegroup.optim.stored.RowStore`."""
        return self.part.entry_of(name)

    def export_state(self, claim: StateOwner) -> dict[str, npt.NDArray[Any]] | None:
        """See `sparsegroup.optim.stored.RowStore`."""
        with self._pending.lock, self._pending:
            if self._steps.claim is not claim:
                return None
            return {} if ROWS_LEFT_OUT.get() else self.snapshot(self.state_names).arrays()

    def restore_state(
        self, state: Mapping[str, npt.NDArray[Any]], initial: Mapping[str, float], state_dtype: torch.dtype | None
    ) -> StateOwner:
        """See `sparsegroup.optim.stored.RowStore`."""
        claim = StateOwner()
        with self._pending.lock, self._pending:
            self._steps.lay_out(claim, initial, "u" in state, state_dtype)
            keys = state["keys"]
            own = slice(None) if self.ranks is None else self.ranks.routing.ranks_of(keys) == self.ranks.rank
            self.load(TableSnapshot(keys[own], {name: part[own] for name, part in state.items() if name != "keys"}))
        return claim

    # Maintenance

    def assign(self, keys: Int64s, weights: Floats, *, as_they_are: bool = False) -> None:
        """Set the vectors `[n, dim]` of distinct keys, which get a row where they have none, admitted or not.

        Under a limit there must be room for what training will add to rows, unless they stay `as_they_are`.
        """
        with self._pending.lock, self._pending:
            rows = self._rows_for(keys, as_they_are=as_they_are)
            self._steps.mark(rows)
            self.rows.write(WEIGHT, rows, weights)
            self.storage.recount(self.directory.num_rows)

    def _rows_for(self, keys: Int64s, *, as_they_are: bool) -> Int64s:
        self._pending.check_process("insert keys")
        self._evictor.make_room(keys, parts_may_come=not as_they_are)
        self._lookup.look_up(keys, SET_KEYS)
        return self.directory.find(keys)

    def shrink(self) -> int:
        """Drop the rows that the policy evicts; gives how many."""
        with self._pending.lock, self._pending:
            self._pending.check_process("shrink the table")
            return self._retain(self._evictor.surviving_policy())

    def set_time(self, seconds: int) -> None:
        """See `HashEmbedding`."""
        with self._pending.lock, self._pending:
            self.directory.set_time(seconds)

    def keep_up(self) -> None:
        """Drop what its policies want dropped by now, and make room, if no gradient may come for rows as they are."""
        if not self._evictor.is_due:
            return
        with self._pending.lock, self._pending:
            if not self.directory.generation.is_awaited:
                self._pending.check_process("drop rows")
                self._evict(self._evictor.surviving())

    def _evict(self, surviving: npt.NDArray[np.bool_] | None) -> None:
        if surviving is not None:
            self.directory.counters.evicted += self._retain(surviving)
        self._evictor.fit_index()

    def _retain(self, surviving: npt.NDArray[np.bool_]) -> int:
        """Drop the rows that are not in the mask `[num_rows]`; gives how many."""
        if surviving.all():
            return 0
        gone, rows = self.directory.retain(surviving)
        self._steps.keep(surviving, gone, rows)
        self.rows.compact(surviving)
        self._evictor.fit_index()
        self.storage.recount(self.directory.num_rows)
        return len(gone)

    # Content

    @property
    def changes(self) -> Changes | None:
        """What has changed since `track` was called; None if it was not, or all has. To be read at rest."""
        return self._steps.changes

    def track(self, since: str | None) -> None:
        """Note from now on what changes since `since`, by which it will be known; None: stop."""
        with self._pending.lock, self._pending:
            self._steps.track(since)

    def cut_to_limit(self) -> None:
        """Drop rows that have been read beyond `max_bytes`, and fit the index: all of `adopt` that takes memory."""
        with self._pending.lock, self._pending:
            self._evict(self._evictor.surviving_limit())

    def adopt(self, other: "Table", claim: StateOwner | None) -> None:
        """Take over what another table of the same config holds, which must not be used any more."""
        other.cut_to_limit()
        with self._pending.lock, self._pending:
            self._pending.check_process("load a table")
            self.directory.renumber()
            self._compose(other.directory, other.storage, claim)

    def become(self, other: "Table") -> None:
        """See `sparsegroup.optim.stored.RowStore`."""
        self.adopt(copy.copy(other), other._steps.claim)

    def move_towards(self, other: "Table", weight: float) -> None:
        """See `sparsegroup.optim.stored.RowStore`."""
        average = Table(self.config) if self.state_names else self  # it needs no state
        average.load(table_average.averaged(self, other, weight))
        if average is not self:
            self.adopt(average, None)

    def memory(self) -> TableMemory:
        """Bytes of index, rows, dropped keys and working memory."""
        with self._pending.lock, self._pending:
            scratch = self._lookup.nbytes + (0 if self.ranks is None else self.ranks.nbytes)
            return memory_of(self.directory, self.rows, scratch)

    def snapshot(self, parts: Sequence[str] | None = None) -> TableSnapshot:
        """A copy of the content: with some parts of the rows, or all of them."""
        with self._pending.lock, self._pending:
            return TableSnapshot.taken(self.directory, self.rows, parts, self.skipped_rows)

    def load(self, snapshot: TableSnapshot) -> None:
        """Have what a snapshot holds.

        With weights in it, the table has exactly its rows from now on; the optimizer's state of rows that were there is
        kept. With an optimizer's state in it, rows that it does not name start afresh in that.
        """
        with self._pending.lock, self._pending:
            self._pending.check_process("load a table")
            self._steps.track(None)
            parts = dict(snapshot.parts)
            weight = parts.pop(WEIGHT, None)
            self._evictor.check_room(len(snapshot.keys))
            if weight is not None:
                self._replace(snapshot, weight)
            if parts:
                rows = self._rows_for(snapshot.keys, as_they_are=True)
                for part, initial in self.rows.initial.items():
                    self.rows.fill(part, 0, self.directory.num_rows, initial)
                    if part in parts:
                        self.rows.write(part, rows, parts[part])
            if snapshot.skipped_rows is not None:
                self.storage.count_skipped(snapshot.skipped_rows)
            self._evictor.note_load()

    def _replace(self, snapshot: TableSnapshot, weight: Floats) -> None:
        staying = ~self.directory.masked_without(snapshot.keys)
        self._retain(staying)
        self.directory.renumber()
        self.directory.seen.clear()
        self.directory.load_state(snapshot.directory)
        self.directory.seen.drop(snapshot.dropped)
        self.assign(snapshot.keys, weight, as_they_are=True)
        self.directory.set_uses(snapshot.directory, self.directory.find(snapshot.keys))
        self.directory.count_seen(snapshot.num_seen)

    def __getstate__(self) -> dict[str, Any]:
        with self._pending.lock, self._pending:
            return {
                "config": self.config,
                "initial": dict(self.rows.initial),
                "state_dtype": self.rows.state_dtype,
                "snapshot": self.snapshot(),
                "claim": self._steps.claim,
                "ranks": self.ranks,
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        type(self).__init__(self, state["config"], ranks=state["ranks"])
        self.storage.lay_out(state["initial"], 0, state["state_dtype"])
        self.load(state["snapshot"])
        self._compose(self.directory, self.storage, state["claim"])
