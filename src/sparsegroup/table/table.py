"""The table without autograd: a directory of keys, a storage of rows, lookups in them, and an optimizer's steps."""

import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.kernels.cpu import threads
from sparsegroup.kernels.step import array_of
from sparsegroup.optim.averaging import with_zeros_of
from sparsegroup.optim.table_parameter import ROWS_LEFT_OUT, StateOwner
from sparsegroup.signals import signals_deferred
from sparsegroup.table.config import TableConfig
from sparsegroup.table.directory.admission import SET_KEYS
from sparsegroup.table.directory.buckets import ABSENT
from sparsegroup.table.directory.directory import Directory, Evictor, RowLimit, TableContent
from sparsegroup.table.directory.eviction import LFU, ROWS_AT_A_TIME
from sparsegroup.table.files.snapshot import TableSnapshot
from sparsegroup.table.lookup.autograd import KeySearch, LookupInfo
from sparsegroup.table.lookup.fallback import mask_new_rows
from sparsegroup.table.lookup.kernels import BagPooling, RowStarts
from sparsegroup.table.lookup.lookup import RowLookup, TableLock, check_world, is_recomputation, key_array, pays_ahead
from sparsegroup.table.rows.host import new_storage
from sparsegroup.table.rows.rows import WEIGHT, Floats, Rows, RowStorage
from sparsegroup.table.rows.step import Changes, RowStepper
from sparsegroup.table.sharded.exchange import Shards
from sparsegroup.table.sharded.rank_parts import RankShard

Int64s = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TableMemory:
    """Bytes of a table.

    Attributes:
        index: What the index's slots take.
        rows: What the rows take, in whole pages of the system's (2 MiB where they are huge).
        dropped: What is remembered of keys without a row, dropped or not admitted, to count them and their occurrences;
            and of rows, when they were used, if a policy needs that.
        scratch: Working memory of lookups that is kept for the next one: 256 MiB at most
            (twice that on several ranks), and 1/32 of `max_bytes` at most.
        parts: What the rows hold: "weight", "u" and the optimizer's state → rows × what such a part takes.
    """

    index: int
    rows: int
    dropped: int
    parts: Mapping[str, int]
    scratch: int = 0

    @property
    def total(self) -> int:
        """All that is allocated."""
        return self.content + self.dropped + self.scratch

    @property
    def content(self) -> int:
        """Index and rows: the bytes that follow from the rows only, however the table got them."""
        return self.index + self.rows

    @classmethod
    def total_of(cls, memories: Iterable["TableMemory"]) -> "TableMemory":
        """Return the sum over several tables."""
        each = list(memories)
        parts: Counter[str] = sum((Counter(memory.parts) for memory in each), Counter())
        index, rows, dropped, scratch = (
            sum(getattr(memory, name) for memory in each) for name in ("index", "rows", "dropped", "scratch")
        )
        return cls(index, rows, dropped, dict(parts), scratch)


@dataclass(frozen=True)
class FieldCount:
    """One field: distinct keys ever seen, rows, and rows with a non-zero vector."""

    seen: int
    rows: int
    live: int


_KEYS_AT_A_TIME, _MOST_PASSES = 1 << 20, 16
"""At least this many keys are found by their row at a time, and the index is walked at most this often for it."""

_ROWS_AT_A_TIME = 1 << 16
"""Rows that are read at a time, at least, to find the live ones."""


class Table:
    """Keys, their rows, and the optimizer's state in them. All methods may be called from any thread.

    `ranks` are the ranks of the table's other rows, None where all are here; with `per_rank` each rank trains a
    separate table.
    """

    def __init__(
        self,
        config: TableConfig,
        directory: Directory | None = None,
        storage: RowStorage | None = None,
        ranks: Shards | None = None,
        *,
        per_rank: bool = False,
    ) -> None:
        self.config, self.ranks, self.per_rank = config, ranks, per_rank
        self.dim, self.weight_dtype, self.device = config.dim, config.weight_dtype, config.device
        self.starts = RowStarts(config.init, config.std, config.seed, config.dim, config.dtype)
        self._content = TableContent(directory or Directory(config), storage or new_storage(config))
        self._lock, self._limit = TableLock(), self._limit_of(config)
        self._evictor = Evictor(self._content, config.eviction, config.ranking or LFU(), self._limit)
        on_step = self._evictor.note_step if self._evictor.notes_steps else None
        self.stepper = RowStepper(self._content, config, self._lock, self._limit, on_step)
        self._lookup = RowLookup(
            *(self._content, self.starts, self.stepper.mark, self._limit),
            scratch_bytes=config.scratch_bytes,
            keeps_distinct=config.has_fallback and not config.on_device and ranks is None,
        )
        self._prefetched: tuple[bool, Future[KeySearch]] | None = None
        self._is_repeatable = config.is_repeatable
        self._evictor.fit_index()

    def _limit_of(self, config: TableConfig) -> RowLimit | None:
        if config.max_bytes is None:
            return None
        other_bytes = 2 * config.scratch_bytes + self.directory.occurrences.nbytes + self.directory.seen.nbytes
        return RowLimit(config.max_bytes, other_bytes, self.rows)

    @property
    def directory(self) -> Directory:
        """Keys; to be read at rest."""
        return self._content.directory

    @property
    def storage(self) -> RowStorage:
        """Storage of the rows; to be read at rest."""
        return self._content.storage

    # Lookup

    def look_up(
        self, keys: Tensor, insert: bool, bags: BagPooling | None = None, *, is_distinct: bool = False
    ) -> tuple[Tensor, LookupInfo]:
        """Look `keys` up. Return their vectors, which belong to the caller, and the lookup for autograd.

        With `insert`, as in training, new keys get rows if they are admitted. The vectors are `[n, dim]`. For a table
        on the host, they are pooled with `bags`, `[bags, dim]`; with `is_distinct`, which needs fallback vectors, each
        distinct key has one vector.

        Inside a backward pass, where activation checkpointing computes a forward again, it gives what that forward got,
        and counts nothing. Before other training lookups, rows are evicted if that is due.

        Raises as `key_array` and `RowNumbering.recall`; RuntimeError if `max_rows` would be exceeded, the table is of a
        parent process, or several ranks train tables that nothing keeps equal; MemoryError. Nothing has changed then.
        """
        array, is_recomputed = key_array(keys, may_be_on_device=self.config.on_device), insert and is_recomputation()
        if insert and not is_recomputed:
            check_world(self.per_rank or self.ranks is not None)
            if self._evictor.is_due:
                self._evict_due()
        with self._lock.at_rest():
            admission = None
            if insert:
                self._lock.check_inserts()
                admission = self.config.admission
            if is_recomputed and not self._is_repeatable:
                vectors, info = self._recalled(array, bags, is_distinct)
            else:
                ahead = None if self._prefetched is None or is_recomputed else self._ahead_for(array, insert)
                vectors, info = self._lookup.look_up(
                    array, admission, ahead, bags, is_distinct=is_distinct, is_counted=is_recomputed
                )
            if self.config.max_norm is not None and self._renormalize(info.search):
                vectors, info = self._lookup.fetch(info.search, bags)
            info.numbering.await_gradient(info)
            if insert and not is_recomputed and not self._is_repeatable:
                self._remember(info.search, vectors)
            return vectors, info

    def _recalled(self, keys: Int64s, bags: BagPooling | None, is_distinct: bool) -> tuple[Tensor, LookupInfo]:
        """Return what the training lookup of `keys` since the last step gave, for activation checkpointing."""
        search = self.directory.numbering.recall(keys, is_distinct)
        vectors, info = self._lookup.fetch(search, bags)
        if len(search.masked):
            search.mask(vectors)
        return vectors, info

    def _remember(self, search: KeySearch, vectors: Tensor) -> None:
        """Remember a training lookup for `_recalled`, and mask the vectors of new keys for fallback vectors."""
        search.numbering.remember(search)
        if self.config.has_fallback and self.ranks is None:
            places = search.new_places(search.is_distinct)
            if len(places):  # otherwise no GPU is waited for
                mask_new_rows(vectors, search, places, *self.live_and_seen())

    def _renormalize(self, search: KeySearch) -> bool:
        """Scale the rows of a search that are longer than `max_norm`, in place. Return whether there were any.

        u stays: the subgradients of λ1 and λ21 that it holds do not depend on the length of a vector.
        """
        rows = search.row_array[search.row_array != ABSENT]
        vectors = torch.from_numpy(self.rows.read(WEIGHT, rows))
        scaled = self.config.renormalized(vectors)
        differs = (scaled != vectors).any(1).numpy()
        if not differs.any():
            return False
        self.stepper.mark(rows[differs])
        self.rows.write(WEIGHT, rows[differs], scaled.numpy()[differs])
        return True

    def live_and_seen(self) -> tuple[int, int]:
        """Return the number of live rows and the number of keys that training has seen.

        If keys are counted by an estimate, which takes time, these are the rows that there ever were.
        """
        with self._lock.at_rest():
            directory = self.directory
            seen = directory.num_seen if directory.seen.is_exact else directory.num_rows + directory.counters.evicted
            return self.storage.num_live(directory.num_rows), seen

    def prefetch(self, keys: Int64s, insert: bool) -> None:
        """Let another thread find `keys` for a later `look_up`; any thread that uses the table finds that done.

        Nothing happens for so few keys that it would not pay.
        """
        self._prefetched = None
        if insert:
            check_world(self.per_rank or self.ranks is not None)
        if pays_ahead(len(keys)):
            copied = keys.copy()
            self._schedule(lambda: copied, insert)
            threads.submit(self._lock.run_scheduled)

    def prefetch_received(self, keys: Callable[[], Int64s], insert: bool) -> None:
        """Let another thread find any number of keys, which `keys` waits for; see `prefetch`."""
        self._schedule(keys, insert)
        threading.Thread(target=self._lock.run_scheduled, name="sparsegroup-prefetch", daemon=True).start()

    def _schedule(self, keys: Callable[[], Int64s], insert: bool) -> None:
        if insert:
            self._lock.check_inserts()
        admission = self.config.admission if insert else None
        result: Future[KeySearch] = Future()

        def search() -> None:
            try:
                result.set_result(self._lookup.search(keys(), admission))
            except Exception as error:  # which the lookup will meet too, if it still holds
                result.set_exception(error)

        self._lock.schedule(search)
        self._prefetched = insert, result

    def _ahead_for(self, keys: Int64s, insert: bool) -> KeySearch | None:
        """Return the result of a prefetch of the same lookup, once; None if it was another lookup, or failed."""
        assert self._prefetched is not None
        was_inserting, search = self._prefetched
        if not search.done():  # a signal has interrupted the search
            self._prefetched = None
            return None
        if was_inserting != insert or search.exception() is not None or not np.array_equal(search.result().keys, keys):
            return None
        self._prefetched = None
        return search.result()

    # The optimizer's state

    @property
    def part(self) -> RankShard:
        """Whose rows these are."""
        return RankShard() if self.ranks is None else self.ranks.part

    def export_state(self, owner: StateOwner) -> dict[str, npt.NDArray[Any]] | None:
        """Return the keys (`KEYS`) `[n]` and the parts of the state, `[n, dim]`; None if the rows hold another's."""
        with self._lock.at_rest():
            if self.stepper.owner is not owner:
                return None
            return {} if ROWS_LEFT_OUT.get() else self.snapshot(self.state_names).arrays()

    def restore_state(
        self, state: Mapping[str, npt.NDArray[Any]], initial: Mapping[str, float], state_dtype: torch.dtype | None
    ) -> StateOwner:
        """Load a state of `export_state`. Rows without an entry get `initial`. Return the state's owner."""
        owner = StateOwner()
        with self._lock.at_rest():
            self._lock.check_process("load a table")
            own = slice(None) if self.ranks is None else self.ranks.routing.ranks_of(state["keys"]) == self.ranks.rank
            state = {name: array[own] for name, array in state.items()}
            self._evictor.check_room(len(state["keys"]))

            def write(rows: Int64s, new: Int64s, numbers: Int64s) -> None:
                self._lookup.write_starts(numbers, new)
                self.stepper.lay_out(owner, initial, "u" in state, state_dtype, len(new))
                for part in self.rows.initial.keys() & state.keys():
                    self.rows.write(part, rows, state[part])

            self._set(state["keys"], write, as_they_are=True)
            self._evictor.note_load()
        return owner

    # Content and counts

    def at_rest(self) -> AbstractContextManager[bool]:
        """Return a context in which no other thread uses the table, and no scheduled job runs."""
        return self._lock.at_rest()

    @property
    def num_rows(self) -> int:
        """Rows, live or not."""
        with self._lock.at_rest():
            return self.directory.num_rows

    @property
    def num_live(self) -> int:
        """Rows that are not zero."""
        with self._lock.at_rest():
            return self.storage.num_live(self.directory.num_rows)

    @property
    def num_seen(self) -> int:
        """Distinct keys that training has ever seen."""
        with self._lock.at_rest():
            return self.directory.num_seen

    @property
    def skipped_rows(self) -> int:
        """Row updates omitted because of a non-finite gradient."""
        return self.storage.skipped_rows

    @property
    def rows(self) -> Rows:
        """The rows; to be read at rest."""
        return self.storage.rows

    @property
    def state_names(self) -> tuple[str, ...]:
        """The parts of a row after its weights."""
        return self.storage.state_names

    def find(self, keys: Int64s) -> Int64s:
        """Return the rows of `keys`, `ABSENT` for a key without a row."""
        with self._lock.at_rest():
            return self.directory.find(keys)

    def field_counts(self) -> dict[int, FieldCount]:
        """Return counts by the field in a key's top `field_bits` bits, of the fields ever seen."""
        if not self.config.field_bits:
            raise ValueError("field_counts needs keys that carry their field: give HashEmbedding field_bits > 0")
        with self._lock.at_rest():
            directory, bits = self.directory, self.config.field_bits
            is_live = self.rows.live(0, directory.num_rows)
            rows, live = np.zeros((2, 1 << bits), np.int64)
            for keys, numbers in directory.index.scan():
                fields = (keys.view(np.uint64) >> np.uint64(64 - bits)).astype(np.uint16)
                rows += np.bincount(fields, minlength=len(rows))
                live += np.bincount(fields[is_live[numbers]], minlength=len(live))
            seen = directory.seen.by_field(rows, directory.keys_without_row)
            counts = np.stack([seen, rows, live], axis=1)
            return {field: FieldCount(*counts[field].tolist()) for field in np.flatnonzero(seen).tolist()}

    def scan(self, batch_size: int) -> Iterator[tuple[Int64s, Floats]]:
        """Yield keys and vectors of the live rows, at most `batch_size` at a time. Raises as `scan_rows`."""
        for keys, (vectors,) in self.scan_rows((WEIGHT,), max(batch_size, _ROWS_AT_A_TIME)):
            live = (vectors != 0).any(axis=1)
            keys, vectors = keys[live], vectors[live]
            for first in range(0, len(keys), batch_size):
                yield keys[first : first + batch_size], vectors[first : first + batch_size]

    def scan_rows(
        self, parts: Sequence[str], batch_size: int = ROWS_AT_A_TIME
    ) -> Iterator[tuple[Int64s, list[Floats]]]:
        """Yield keys `[n]` of all rows and some of their parts, `[n, dim]` each, at most `batch_size` ≥ 4 at a time.

        Raises RuntimeError if rows were added or dropped while this ran.
        """
        with self.at_rest():
            numbering, count = self.directory.numbering, self.directory.num_rows
        at_a_time, known = max(_KEYS_AT_A_TIME, count // _MOST_PASSES), np.empty(0, np.int64)
        begin = end = 0
        while begin < count:
            with self.at_rest():
                if self.directory.numbering is not numbering or self.directory.num_rows != count:
                    raise RuntimeError("rows came or went while the table was iterated over")
                if begin == end:
                    end = min(begin + at_a_time, count)
                    known, start = self.directory.index.keys_of_rows(begin, end), begin
                rows = np.arange(begin, min(begin + batch_size, end))
                batch = known[rows - start], [self.rows.read(part, rows) for part in parts]
            begin += len(rows)
            yield batch

    # Maintenance

    def assign(self, keys: Int64s, weights: Floats, *, as_they_are: bool = False) -> None:
        """Set the vectors `[n, dim]` of distinct keys, which get a row where they have none, admitted or not.

        Under a limit there must be room for what training will add to rows, unless they stay `as_they_are`.
        """

        def write(rows: Int64s, new: Int64s, numbers: Int64s) -> None:
            self.storage.forget_live()
            self.stepper.mark(rows)
            self.rows.write(WEIGHT, rows, weights)

        with self._lock.at_rest():
            self._set(keys, write, as_they_are=as_they_are)

    def _set(self, keys: Int64s, write: Callable[[Int64s, Int64s, Int64s], None], *, as_they_are: bool) -> None:
        """Insert distinct `keys`, as `assign`. All memory is reserved when `write` is called.

        `write` gets the rows of the keys, the new keys, and the new rows, whose weights it must write.
        """
        self._lock.check_process("insert keys")
        self._evictor.make_room(keys, parts_may_come=not as_they_are)
        directory, rows = self.directory, self.directory.find(keys)
        new = keys[rows == ABSENT]
        decision = directory.decide(len(new), lambda: new, SET_KEYS)
        rows[rows == ABSENT] = np.arange(directory.num_rows, directory.num_rows + len(new))
        with signals_deferred():
            self._lookup.append(new, decision, lambda numbers: write(rows, new, numbers))

    def shrink(self) -> int:
        """Drop the rows that the policy evicts. Return their number."""
        with self._lock.at_rest():
            self._lock.check_process("shrink the table")
            return self._retain(self._evictor.surviving_policy())

    def _evict_due(self) -> None:
        """Drop the rows that the policy or the limit of bytes drops by now, unless a gradient of them is pending."""
        with self._lock.at_rest():
            if not self.directory.numbering.has_pending_gradient:
                self._lock.check_process("drop rows")
                self._evict(self._evictor.surviving())
                self._evictor.note_eviction()

    def _evict(self, surviving: npt.NDArray[np.bool_] | None) -> None:
        if surviving is not None:
            with signals_deferred():
                self.directory.counters.evicted += self._retain(surviving)
        self._evictor.fit_index()

    def _retain(self, surviving: npt.NDArray[np.bool_]) -> int:
        """Remove the rows outside the mask `[num_rows]`. Return their number. MemoryError changes nothing."""
        if surviving.all():
            return 0
        removal = self.directory.removal(surviving)
        changes = self.stepper.changes_without(surviving, removal.keys, removal.rows)
        with signals_deferred():
            self.directory.remove(removal, surviving)
            self.storage.compact(surviving)
            self.stepper.changes = changes
        with suppress(MemoryError):  # the index then remains larger than necessary
            self._evictor.fit_index()
        return len(removal.keys)

    def reset_rows(self) -> None:
        """Give all rows the vectors that they started from. No gradient may be pending.

        Which keys have rows, and which have been seen and when, does not change. Nor does the optimizer's state in the
        rows, until one that has dropped its state of the table takes a step: it starts afresh.
        """
        with self._lock.at_rest():
            self.track(None)
            self.storage.forget_live()
            count = self.directory.num_rows
            for first in range(0, count, ROWS_AT_A_TIME):
                last = min(first + ROWS_AT_A_TIME, count)
                starts = self.starts.of(self.directory.index.keys_of_rows(first, last))
                self.rows.write(WEIGHT, np.arange(first, last), starts)

    # Checkpoints, copies and averages

    @property
    def changes(self) -> Changes | None:
        """Changes since `track` was called; None if it was not called, or all has changed. To be read at rest."""
        return self.stepper.changes

    def track(self, since: str | None) -> None:
        """Note changes from now on, under the name `since`; None: stop."""
        with self._lock.at_rest():
            self.stepper.track(since)

    def cut_to_limit(self) -> None:
        """Drop rows that have been read beyond `max_bytes`, and fit the index: all of `adopt` that takes memory."""
        with self._lock.at_rest():
            self._evict(self._evictor.surviving_limit())

    def adopt(self, other: "Table", owner: StateOwner | None) -> None:
        """Take over what another table of the same config holds, which must not be used any more."""
        other.cut_to_limit()
        with self._lock.at_rest():
            self._lock.check_process("load a table")
            self._replace(other.directory, other.storage, owner)

    def _replace(self, directory: Directory, storage: RowStorage, owner: StateOwner | None) -> None:
        with signals_deferred():
            self.directory.renumber()
            self._content.directory, self._content.storage = directory, storage
            self.stepper.reset(owner)
            self._evictor.note_load()

    def become(self, other: "Table") -> None:
        """Become a copy of another table: rows, the optimizer's state and its owner."""
        self.adopt(copy.copy(other), other.stepper.owner)

    def average_(self, other: "Table", rate: float) -> None:
        """Average the rows with another table's, whose weight is `rate`; see `HashEmbedding.average_`."""
        content = other.snapshot((WEIGHT,))
        vectors = content.parts[WEIGHT]
        for first in range(0, len(content.keys), ROWS_AT_A_TIME):
            some = slice(first, first + ROWS_AT_A_TIME)
            before = self.look_up(torch.from_numpy(content.keys[some]), insert=False)[0].cpu()
            now = torch.from_numpy(vectors[some]).to(before.dtype)
            mean = with_zeros_of(now, before, torch.lerp(before, now, rate))
            vectors[some] = array_of(mean.to(torch.from_numpy(vectors[some]).dtype))
        average = Table(self.config) if self.state_names else self  # it needs no state
        average.load(replace(content, parts={WEIGHT: vectors}))
        if average is not self:
            self.adopt(average, None)

    def memory(self) -> TableMemory:
        """Return the bytes of index, rows, dropped keys and working memory."""
        with self._lock.at_rest():
            directory, rows, count = self.directory, self.rows, self.directory.num_rows
            scratch = self._lookup.nbytes + (0 if self.ranks is None else self.ranks.nbytes)
            parts = {part: count * rows.part_bytes(part) for part in rows.parts}
            return TableMemory(directory.index.bytes, rows.bytes(count), directory.noted_bytes, parts, scratch)

    def snapshot(self, parts: Sequence[str] | None = None) -> TableSnapshot:
        """Return a copy of the content, with some or all parts of the rows."""
        with self._lock.at_rest():
            return TableSnapshot.taken(self.directory, self.rows, parts, self.skipped_rows)

    def load(self, snapshot: TableSnapshot) -> None:
        """Replace the content by the rows of a snapshot with weights, see `_loaded`. An error changes nothing."""
        with self._lock.at_rest():
            self._lock.check_process("load a table")
            self._evictor.check_room(len(snapshot.keys))
            self._replace(*self._loaded(snapshot), self.stepper.owner)
            self._evictor.fit_index()

    def _loaded(self, snapshot: TableSnapshot) -> tuple[Directory, RowStorage]:
        """Return a directory and a storage with the rows of a snapshot.

        A row has the optimizer's state of the snapshot, else of the key's present row, else the initial state.
        """
        keys, table_rows = snapshot.keys, self.rows
        buckets = None if self._limit is None else self.directory.index.buckets
        directory, storage = Directory(self.config, buckets), new_storage(self.config)
        storage.lay_out(table_rows.initial, 0, table_rows.state_dtype)
        directory.load_state(snapshot.directory)
        directory.seen.drop(snapshot.dropped)
        directory.begin(len(keys))
        storage.rows.begin(0, len(keys))
        for first in range(0, len(keys), ROWS_AT_A_TIME):
            some = slice(first, min(first + ROWS_AT_A_TIME, len(keys)))
            rows, present = np.arange(some.start, some.stop), self.directory.find(keys[some])
            is_present = present != ABSENT
            for part in (WEIGHT, *table_rows.initial):
                if part in snapshot.parts:
                    storage.rows.write(part, rows, snapshot.parts[part][some])
                elif is_present.any():
                    storage.rows.write(part, rows[is_present], table_rows.read(part, present[is_present]))
        directory.index.insert(keys, np.arange(len(keys)))
        directory.set_uses(snapshot.directory, np.arange(len(keys)))
        directory.count_seen(snapshot.num_seen)
        storage.forget_live()
        storage.count_skipped(self.skipped_rows if snapshot.skipped_rows is None else snapshot.skipped_rows)
        return directory, storage

    def __getstate__(self) -> dict[str, Any]:
        with self._lock.at_rest():
            return {
                "config": self.config,
                "initial": dict(self.rows.initial),
                "state_dtype": self.rows.state_dtype,
                "snapshot": self.snapshot(),
                "owner": self.stepper.owner,
                "ranks": self.ranks,
                "per_rank": self.per_rank,
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        type(self).__init__(self, state["config"], ranks=state["ranks"], per_rank=state["per_rank"])
        self.storage.lay_out(state["initial"], 0, state["state_dtype"])
        self.load(state["snapshot"])
        self.stepper.reset(state["owner"])


@contextmanager
def tables_at_rest(tables: Iterable[Table]) -> Iterator[None]:
    """Lock several tables, see `Table.at_rest`. All threads lock tables in one order, so that no deadlock occurs."""
    with ExitStack() as stack:
        for table in sorted(tables, key=id):
            stack.enter_context(table.at_rest())
        yield
