"""The directory of a table: rows of keys, keys seen, admission of keys, and eviction of rows."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.table.config import TableConfig
from sparsegroup.table.directory.admission import (
    AdmissionPolicy,
    Candidates,
    EveryKey,
    ExactOccurrences,
    OccurrenceSketch,
    answer,
)
from sparsegroup.table.directory.buckets import ABSENT, BUCKET_BYTES, MOST_ROWS, SLACK
from sparsegroup.table.directory.eviction import BYTES, ROWS_AT_A_TIME, EvictionPolicy, RankingPolicy, RowBlock, RowUses
from sparsegroup.table.directory.index import KEYS_PER_BUCKET, Index, Removal
from sparsegroup.table.directory.seen import HyperLogLog, RememberedKeys
from sparsegroup.table.lookup.autograd import Int64s, RowNumbering
from sparsegroup.table.rows.rows import Rows, RowStorage

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Admission:
    """A decision about distinct keys that have no row, not yet carried out."""

    count: int  # of keys that get one
    candidates: Candidates | None = None  # None where all keys are admitted and none has been seen before
    admitted: Bools | None = None  # [n], which get one; None for all
    was_asked: bool = False  # whether a policy has decided, for which occurrences are counted
    refused: int = 0  # how many more would get one if there were room


@dataclass
class Counters:
    """Counts of a directory."""

    steps: int = 0  # the optimizer's
    evicted: int = 0  # rows
    refused: int = 0  # keys for which there was no room
    last_check: int = 0  # when, in steps or seconds, the eviction policy was asked last


class Directory:
    """64-bit keys → row numbers 0, 1, …, and what is known of keys without a row.

    Without `sketch_bytes`, occurrences of keys that were not admitted and distinct keys are counted exactly; with them,
    in a sketch of this size, and by an estimate. The index begins with `buckets`, or few.
    """

    def __init__(self, config: TableConfig, buckets: int | None = None) -> None:
        huge_pages, sketch_bytes = config.huge_pages, config.sketch_bytes
        self.max_rows = config.max_rows
        self.index = Index(huge_pages) if buckets is None else Index(huge_pages, buckets)
        self.occurrences = ExactOccurrences(huge_pages) if sketch_bytes is None else OccurrenceSketch(sketch_bytes)
        self.seen = RememberedKeys() if sketch_bytes is None else HyperLogLog(config.field_bits)
        self.uses = None if config.unit is None else RowUses(config.unit == "steps")
        self.counters = Counters()
        self._is_watched = config.drops_rows
        self._dim = config.dim
        self.numbering = RowNumbering(config.dim, self._is_watched)
        # Whether `seen` has counted all keys, now and before the present insertion. False after an interrupt.
        self._is_counted = self._was_counted = True

    @property
    def num_rows(self) -> int:
        """Keys that have a row with a number, 0, 1, …"""
        return self.index.num_keys

    @property
    def num_seen(self) -> int:
        if not self._is_counted:
            self.count_seen(None if self.seen.is_exact else self.seen.total(self.num_rows))
        return self.seen.total(self.num_rows)

    @property
    def dropped(self) -> npt.NDArray[np.uint64]:
        """Keys that had a row and lost it, ascending, where they are remembered; some may have one again."""
        return self.seen.dropped

    @property
    def noted_bytes(self) -> int:
        """Memory of what is known in addition to key and row."""
        return self.occurrences.nbytes + self.seen.nbytes + (0 if self.uses is None else BYTES * self.num_rows)

    @property
    def time(self) -> int:
        """In steps, or in seconds where uses of rows are counted in these."""
        return self.counters.steps if self.uses is None or self.uses.by_steps else self.uses.now

    def find(self, keys: Int64s) -> Int64s:
        """Return the rows of `keys`, `ABSENT` for a key without a row."""
        return self.index.find(keys)

    def keys(self) -> Int64s:
        """Return the keys of rows 0, 1, …"""
        return self.index.keys_of_rows(0, self.num_rows)

    def blocks(self, memory: Rows) -> Iterator[tuple[int, RowBlock]]:
        """Yield all rows as policies look at them, some at a time, with the number of the first row."""
        keys, count = cache(self.keys), self.num_rows
        for first in range(0, count, ROWS_AT_A_TIME):
            yield first, RowBlock(memory, keys, self.uses, first, min(first + ROWS_AT_A_TIME, count))

    def described(self, rows: Int64s) -> str:
        """Return the keys of some rows in words, the first few of many."""
        if rows[0] >= self.num_rows:
            return "a key that is gone"
        keys = self.keys()[rows[:5]].tolist()
        more = f" and {len(rows) - 5:,} more" if len(rows) > 5 else ""
        return f"key{'s' if len(rows) > 1 else ''} {', '.join(map(str, keys))}{more}"

    # New keys

    def decide(
        self,
        count: int,
        keys: Callable[[], Int64s],
        policy: AdmissionPolicy,
        room: int | None = None,
        *,
        again: bool = False,
    ) -> Admission:
        """Decide which of `count` distinct `keys` without a row are admitted. Nothing is changed.

        `room` is the number of rows for which there is room, if it is limited. `again`: the lookup has been counted
        already. Raises RuntimeError if `max_rows` would be exceeded.
        """
        if isinstance(policy, EveryKey) and not self.occurrences.has_candidates:
            decision = Admission(count)
        else:
            candidates = Candidates(keys(), self.occurrences, is_counted=again)
            admitted = answer(policy.admits, np.bool_, candidates)
            decision = Admission(int(admitted.sum()), candidates, admitted, was_asked=True)
        if self.num_rows + decision.count > self.max_rows:
            raise RuntimeError(
                f"the table is full: max_rows={self.max_rows:,}, it has {self.num_rows:,} rows and this lookup "
                f"brings {decision.count:,} new keys; none was inserted"
            )
        places = decision.count if room is None else min(decision.count, room)
        if decision.candidates is None and (self.seen.needs_keys or places < decision.count):
            decision = replace(decision, candidates=Candidates(keys(), self.occurrences, is_counted=again))
        if places == decision.count:
            return decision
        admitted = np.ones(count, np.bool_) if decision.admitted is None else decision.admitted.copy()
        admitted[np.flatnonzero(admitted)[places:]] = False
        return replace(decision, count=places, admitted=admitted, refused=decision.count - places)

    def begin(self, count: int) -> None:
        """Reserve memory for `count` new rows, or raise MemoryError.

        After an interrupt before the end of `note`, only the number of keys seen is unknown. It is then counted again.
        """
        first = self.num_rows
        self.index.reserve(first + count)
        self.index.settle(count)
        if self.uses is not None:
            self.uses.begin(first, first + count)
        self._was_counted, self._is_counted = self._is_counted, False

    def note(self, decision: Admission) -> None:
        """Count the keys of a decision that has been carried out."""
        candidates, admitted = decision.candidates, decision.admitted
        is_counted = self._was_counted if decision.count else self._is_counted
        self._is_counted = False
        if candidates is None:
            self.seen.add(None, decision.count, self.occurrences.stored)
        else:
            self.seen.add(candidates.keys, len(candidates), self.occurrences.stored)
            if decision.was_asked and admitted is not None:
                self.occurrences.note(candidates.keys, candidates.counts, admitted, again=candidates.is_counted)
            self.counters.refused += 0 if candidates.is_counted else decision.refused
        self._is_counted = is_counted

    # Time

    def set_time(self, seconds: int) -> None:
        """Set the time, if uses of rows are counted in seconds."""
        if self.uses is not None and not self.uses.by_steps:
            self.uses.now = seconds

    def tick(self) -> None:
        """Count a step of the optimizer."""
        self.counters.steps += 1
        if self.uses is not None and self.uses.by_steps:
            self.uses.now += 1

    # Rows that go

    def removal(self, surviving: Bools) -> Removal:
        """Return the prepared removal of all rows outside a mask. All memory is allocated, and no row has changed."""
        removal = Removal(self.index, surviving)
        self.seen.drop(removal.keys)
        return removal

    def remove(self, removal: Removal, surviving: Bools) -> None:
        """Drop the rows outside the mask and renumber the other rows. Callers must defer signals."""
        removal.run()
        if self.uses is not None:
            self.uses.retain(surviving)
        self.renumber()

    def masked_without(self, keys: Int64s) -> Bools:
        """`[num_rows]`, a mask without the rows of `keys`."""
        mask = np.ones(self.num_rows, np.bool_)
        rows = self.find(keys)
        mask[rows[rows != ABSENT]] = False
        return mask

    def renumber(self) -> None:
        """Mark earlier lookups as stale, because the rows have other numbers."""
        self.numbering.is_current = False
        self.numbering = RowNumbering(self._dim, self._is_watched)

    # What is stored in addition to keys and rows

    def state(self, rows: Int64s | None = None) -> dict[str, npt.NDArray[Any]]:
        """Return what is stored in addition to keys and rows, by name; entries of rows for some rows, or for all."""
        result = self.occurrences.content() | self.seen.content()
        if self.uses is not None:
            result |= self.uses.content(slice(self.num_rows) if rows is None else rows)
        if any(counters := astuple(self.counters)):
            result["counters"] = np.array(counters, np.int64)
        return result

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Load the entries of a checked `state` that are not of rows."""
        self.occurrences.load(state)
        self.seen.load(state)
        self.counters = Counters(*map(int, state.get("counters", ())))

    def set_uses(self, state: Mapping[str, npt.NDArray[Any]], rows: Int64s) -> None:
        """Load the entries of a `state` that are of rows, for `rows` in their order."""
        if self.uses is not None:
            self.uses.load(state, rows)

    def count_seen(self, total: int | None = None) -> None:
        """Set the number of keys seen to `total`; None: count the known keys."""
        self.seen.recount(lambda: np.concatenate([self.keys(), self.keys_without_row()]), total)
        self._is_counted = True

    def keys_without_row(self) -> Int64s:
        """Return the known keys that training has seen and that have no row now: dropped or not admitted."""
        known = np.union1d(self.dropped, self.occurrences.keys().view(np.uint64)).view(np.int64)
        return known[self.find(known) == ABSENT] if len(known) else known


@dataclass(eq=False)
class TableContent:
    """Keys and rows that belong together. Loading a table replaces both, for all that hold its content."""

    directory: Directory
    storage: RowStorage


_MARKS = 2.2
"""Bytes of a row that mark what survives an eviction, and what has changed since a checkpoint."""

_PARTS = 5
"""Parts to reserve per row before the optimizer is known: x, u and three moments."""

_FEWEST = 1000
"""Rows below which a table is of no use."""


class RowLimit:
    """Limit of the number of rows within `max_bytes`. The index has buckets for that many from the beginning.

    `other_bytes` of them are for working memory and for what is known of keys without a row. Raises ValueError if that
    leaves too little for 1,000 rows.
    """

    def __init__(self, max_bytes: int, other_bytes: int, memory: Rows) -> None:
        self.max_bytes = max_bytes
        self._left = max_bytes - other_bytes - SLACK * BUCKET_BYTES - memory.bytes(1)
        if self.most_rows(memory) < _FEWEST:
            least = max_bytes - self._left + int(_FEWEST * self._bytes_of_row(memory)) + 1
            raise ValueError(f"max_bytes must be at least {least:,} for 1,000 rows of this table, got {max_bytes:,}")

    def _bytes_of_row(self, memory: Rows, parts: int | None = None) -> float:
        if parts is None:
            parts = len(memory.parts)
            parts = _PARTS if parts == 1 else parts + ("u" not in memory.parts)  # so that λ21 can be set later
        return memory.bytes_of_row(parts) + BYTES + _MARKS + BUCKET_BYTES / KEYS_PER_BUCKET

    def most_rows(self, memory: Rows, parts: int | None = None) -> int:
        """Return the most rows of this many parts; None: as many parts as they may get."""
        return min(MOST_ROWS, max(0, int(self._left / self._bytes_of_row(memory, parts))))

    def check_layout(self, parts: int, rows: int, memory: Rows) -> None:
        """Raise RuntimeError unless `rows` rows may get this many parts."""
        if parts > len(memory.parts) and rows > (most := self.most_rows(memory, parts)):
            raise RuntimeError(
                f"with this optimizer's state, max_bytes={self.max_bytes:,} are enough for {most:,} rows, and the "
                f"table has {rows:,}: drop some by shrink(), or give it more; nothing has been changed"
            )


_FULL, _EVICTED = 0.02, 0.1
"""The share of the rows there is room for that shall be free, and the share that is evicted when it is not."""


class Evictor:
    """Decides which rows survive between two steps: asks the eviction policy, and makes room where little is left.

    `is_due` says whether a step has been taken, or rows were loaded, since `note_eviction` was called.
    """

    def __init__(
        self, content: TableContent, eviction: EvictionPolicy, ranking: RankingPolicy, limit: RowLimit | None
    ) -> None:
        self._eviction, self._ranking, self._limit, self._content = eviction, ranking, limit, content
        self._evicts = eviction.every is not None or limit is not None
        self.is_due = self._evicts

    @property
    def notes_steps(self) -> bool:
        """Whether `note_step` must be called after each step."""
        return self._evicts or self._content.directory.uses is not None

    def note_step(self) -> None:
        self._content.directory.tick()
        self.is_due = self._evicts

    def note_load(self) -> None:
        self.is_due = self._evicts

    @property
    def _asks_policy(self) -> bool:
        directory, every = self._content.directory, self._eviction.every
        return every is not None and directory.time - directory.counters.last_check >= every

    def note_eviction(self) -> None:
        """Record that the rows which do not survive are removed. No eviction is due until the next step."""
        if self._asks_policy:
            self._content.directory.counters.last_check = self._content.directory.time
        self.is_due = False

    def surviving(self) -> Bools | None:
        """Return the rows that survive, a mask `[num_rows]`; None for all."""
        directory = self._content.directory
        mask = self.surviving_policy() if self._asks_policy else None
        if self._limit is not None:
            most = self._limit.most_rows(self._content.storage.rows)
            staying = directory.num_rows if mask is None else int(np.count_nonzero(mask))
            if most - staying < _FULL * most:
                mask = self._without_lowest(staying - int((1 - _EVICTED) * most), mask)
        return mask

    def surviving_policy(self) -> Bools:
        """Return the rows that the eviction policy leaves, a mask `[num_rows]`."""
        mask = np.ones(self._content.directory.num_rows, np.bool_)
        for span, evicted in self._answers(self._eviction.evicts, np.bool_):
            mask[span] = ~evicted
        return mask

    def surviving_limit(self) -> Bools | None:
        """Return the rows that survive of loaded rows, with their present parts; None for all."""
        if self._limit is None:
            return None
        memory = self._content.storage.rows
        too_many = self._content.directory.num_rows - self._limit.most_rows(memory, len(memory.parts))
        return self._without_lowest(too_many) if too_many > 0 else None

    def _answers(self, method: Callable[[RowBlock], object], dtype: type) -> Iterator[tuple[slice, npt.NDArray[Any]]]:
        for first, block in self._content.directory.blocks(self._content.storage.rows):
            yield slice(first, first + len(block)), answer(method, dtype, block)

    def _without_lowest(self, number: int, mask: Bools | None = None) -> Bools:
        """Return the mask without the `number` rows of the lowest ranks, of equal ranks without the oldest."""
        mask = np.ones(self._content.directory.num_rows, np.bool_) if mask is None else mask
        lowest = self._lowest_ranks(number, mask)
        highest = lowest.max()
        ties = int(np.count_nonzero(lowest == highest))
        for span, ranks in self._answers(self._ranking.ranks, np.int64):
            tied = np.flatnonzero(mask[span] & (ranks == highest))[:ties]
            ties -= len(tied)
            mask[span] &= ranks >= highest
            mask[span][tied] = False
        return mask

    def _lowest_ranks(self, number: int, mask: Bools) -> Int64s:
        """Return the `number` lowest ranks of the rows of the mask, in no order. Few more are held at a time."""
        found = [np.zeros(0, np.int64)]
        highest: int | None = None
        for span, ranks in self._answers(self._ranking.ranks, np.int64):
            ranks = ranks[mask[span]]
            found.append(ranks if highest is None else ranks[ranks < highest])
            if sum(map(len, found)) > 2 * number:
                found = [np.partition(np.concatenate(found), number - 1)[:number]]
                highest = int(found[0].max())
        return np.partition(np.concatenate(found), number - 1)[:number]

    def make_room(self, keys: Int64s, *, parts_may_come: bool) -> None:
        """Under a limit, have an index also for `keys` that are about to be set; see `check_room`."""
        if self._limit is not None:
            new = int(np.count_nonzero(self._content.directory.find(keys) == ABSENT))
            self.check_room(new, self._content.directory.num_rows, parts_may_come=parts_may_come)
            self.fit_index(self._content.directory.num_rows + new)

    def check_room(self, new: int, present: int = 0, *, parts_may_come: bool = False) -> None:
        """Raise RuntimeError unless a limit has room for this many more rows than `present`, of their size."""
        if self._limit is None:
            return
        limit, memory = self._limit, self._content.storage.rows
        room = limit.most_rows(memory, None if parts_may_come else len(memory.parts)) - present
        if new > room:
            raise RuntimeError(
                f"the table is full: within max_bytes={limit.max_bytes:,} there is room for {max(room, 0):,} more "
                f"rows, and {new:,} are to be set; none was"
            )

    def fit_index(self, num_rows: int | None = None) -> None:
        """Have an index that suits this many rows, or the present ones: as small as they allow, or at the limit."""
        directory, limit = self._content.directory, self._limit
        if limit is None:
            directory.index = directory.index.shrunk()
            return
        num_rows, memory = directory.num_rows if num_rows is None else num_rows, self._content.storage.rows
        for most in (limit.most_rows(memory), limit.most_rows(memory, len(memory.parts))):
            if num_rows <= most:
                directory.index = directory.index.with_buckets(int(most / KEYS_PER_BUCKET) + 1)
                return
