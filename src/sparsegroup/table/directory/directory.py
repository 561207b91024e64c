"""Which key has which row, which keys have been seen, who is let in, and which rows stay."""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import astuple, dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.table.directory.admission import (
    AdmissionPolicy,
    EveryKey,
    ExactOccurrences,
    OccurrenceSketch,
    checked_answer,
)
from sparsegroup.table.directory.buckets import ABSENT, BUCKET_BYTES, MOST_ROWS, SLACK
from sparsegroup.table.directory.eviction import BYTES, EvictionPolicy, RankingPolicy, RowBlock, RowUses, blocks
from sparsegroup.table.directory.index import KEYS_PER_BUCKET, Index, keep_rows
from sparsegroup.table.directory.seen import HyperLogLog, RememberedKeys
from sparsegroup.table.lookup.autograd import Int64s, RowNumbering
from sparsegroup.table.rows.rows import Rows, RowStorage

Bools = npt.NDArray[np.bool_]


_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Admission:
    """A decision about distinct keys that have no row, not yet carried out.

    Attributes:
        count: How many get one.
        keys: `[n]`, all of them; None where all are admitted and none has been seen before.
        admitted: `[n]`, which get one; None for all.
        counts: `[n]`, in how many lookups each has come; None if no policy was asked.
        refused: How many more would get one if there were room.
        again: Whether this lookup has been counted already.
    """

    count: int
    keys: Int64s | None = None
    admitted: Bools | None = None
    counts: Int64s | None = None
    refused: int = 0
    again: bool = False


@dataclass
class Counters:
    """What a directory counts.

    Attributes:
        steps: The optimizer's, where a policy or a limit goes by them.
        evicted: Rows dropped by a policy that is asked now and then, or for want of room.
        refused: How often a key would have got a row, had there been room.
        last_check: The time, in steps or seconds, at which the eviction policy was asked last.
    """

    steps: int = 0
    evicted: int = 0
    refused: int = 0
    last_check: int = 0


class Directory:
    """64-bit keys → row numbers 0, 1, …, and what is known of keys without a row.

    Args:
        max_rows: The most there may be.
        huge_pages: See `MappedPages`.
        buckets: How many the index begins with; None for few.
        field_bits: How many top bits of a key name its field.
        sketch_bytes: Size of the sketch that counts occurrences of keys without a row; distinct keys are then
            estimated. None: both are counted exactly.
        uses: Knows when rows were used; None where nobody asks.
        is_watched: Whether the table evicts rows by itself, see `RowNumbering`.

    Attributes:
        index: Key → row.
        occurrences: Counts of keys that were not admitted.
        seen: Counts distinct keys.
        numbering: The numbering of the rows.
    """

    def __init__(
        self,
        max_rows: int,
        huge_pages: bool,
        buckets: int | None = None,
        *,
        field_bits: int = 0,
        sketch_bytes: int | None = None,
        uses: RowUses | None = None,
        is_watched: bool = False,
    ) -> None:
        self.max_rows = max_rows
        self.index = Index(huge_pages) if buckets is None else Index(huge_pages, buckets)
        self.occurrences = ExactOccurrences(huge_pages) if sketch_bytes is None else OccurrenceSketch(sketch_bytes)
        self.seen = RememberedKeys() if sketch_bytes is None else HyperLogLog(field_bits)
        self.uses, self.counters = uses, Counters()
        self._is_watched = is_watched
        self.numbering = RowNumbering(is_watched)

    @property
    def num_rows(self) -> int:
        """Keys that have a row with a number, 0, 1, …"""
        return self.index.num_keys

    @property
    def num_seen(self) -> int:
        """Distinct keys that training has ever seen."""
        return self.seen.total(self.num_rows)

    @property
    def dropped(self) -> npt.NDArray[np.uint64]:
        """Keys that had a row and lost it, ascending, where they are remembered; some may have one again."""
        return self.seen.dropped

    @property
    def noted_bytes(self) -> int:
        """Memory of what is known in addition to key and row."""
        return self.occurrences.nbytes + self.seen.nbytes + (0 if self.uses is None else self.uses.nbytes)

    @property
    def time(self) -> int:
        """In steps, or in seconds where uses of rows are counted in these."""
        return self.counters.steps if self.uses is None or self.uses.by_steps else self.uses.now

    def find(self, keys: Int64s) -> Int64s:
        """Rows of `keys`, `ABSENT` where there is none."""
        return self.index.find(keys)

    def keys(self) -> Int64s:
        """The keys of rows 0, 1, …"""
        return self.index.keys_of_rows(0, self.num_rows)

    def blocks(self, memory: Rows) -> Iterator[tuple[int, RowBlock]]:
        """All rows as policies look at them, some at a time, each time with the number of the first one."""
        return blocks(memory, self.num_rows, cache(self.keys), self.uses)

    def described(self, rows: Int64s) -> str:
        """The keys of some rows in words, the first few of many."""
        if rows[0] >= self.num_rows:
            return "a key that is gone"
        keys = self.keys()[rows[:5]].tolist()
        more = f" and {len(rows) - 5:,} more" if len(rows) > 5 else ""
        return f"key{'s' if len(rows) > 1 else ''} {', '.join(map(str, keys))}{more}"

    def set_buckets(self, buckets: int) -> None:
        """Have an index of so many buckets, which must suffice."""
        if self.index.buckets != buckets:
            self.index = self.index.with_buckets(buckets)

    def give_back(self) -> None:
        """Give memory back that the index has no use for any more, if it is much."""
        self.index = self.index.shrunk()

    # New keys

    def decide(
        self,
        count: int,
        keys: Callable[[], Int64s],
        policy: AdmissionPolicy,
        room: Callable[[int], int] | None = None,
        *,
        again: bool = False,
    ) -> Admission:
        """Which of `count` distinct keys without a row are admitted. Nothing is changed.

        Args:
            count: How many keys.
            keys: Gives them.
            policy: Is asked.
            room: How many of so many rows that are wanted there is room for; None: all.
            again: Whether this lookup of them has been counted already.

        Raises:
            RuntimeError: `max_rows` would be exceeded.
            ValueError: The policy's answer has another shape or dtype.
        """
        if isinstance(policy, EveryKey) and not self.occurrences.has_candidates:
            decision = Admission(count, keys() if self.seen.needs_keys else None, again=again)
        else:
            decision = self._ask(keys(), policy, again)
        if self.num_rows + decision.count > self.max_rows:
            raise RuntimeError(
                f"the table is full: max_rows={self.max_rows:,}, it has {self.num_rows:,} rows and this lookup "
                f"brings {decision.count:,} new keys; none was inserted"
            )
        places = decision.count if room is None else room(decision.count)
        return decision if places == decision.count else _cut(decision, keys(), places)

    def _ask(self, keys: Int64s, policy: AdmissionPolicy, again: bool) -> Admission:
        counts = self.occurrences.counts(keys, draws=policy.draws, again=again)
        admitted = checked_answer(policy, "admits", policy.admits(keys, counts), len(keys), np.bool_)
        return Admission(int(admitted.sum()), keys, admitted, counts, again=again)

    def rows_added(self, count: int) -> None:
        """So many rows have been added to the index."""
        if self.uses is not None:
            self.uses.add(count)

    def note(self, decision: Admission) -> None:
        """Count the keys of a decision that has been carried out."""
        keys, again = decision.keys, decision.again
        if not again:
            self.counters.refused += decision.refused
        self.seen.add(decision.count if keys is None else len(keys), keys, self.occurrences.are_candidates)
        if keys is not None and decision.admitted is not None and decision.counts is not None:
            self.occurrences.note(keys, decision.counts, decision.admitted, again=again)

    # Time

    def set_time(self, seconds: int) -> None:
        """It is `seconds` now, where uses of rows are counted in these."""
        if self.uses is not None and not self.uses.by_steps:
            self.uses.now = seconds

    def tick(self) -> None:
        """The optimizer has taken a step."""
        self.counters.steps += 1
        if self.uses is not None and self.uses.by_steps:
            self.uses.now += 1

    # Rows that go

    def retain(self, surviving: Bools) -> tuple[Int64s, Int64s]:
        """Drop all rows but those of the mask `[num_rows]`, which are renumbered in their order.

        Returns:
            Keys and former rows of the others.
        """
        gone, rows = keep_rows(self.index, surviving)
        if self.uses is not None:
            self.uses.retain(surviving)
        self.renumber()
        self.seen.drop(gone)
        return gone, rows

    def masked_without(self, keys: Int64s) -> Bools:
        """`[num_rows]`, the rows but those of `keys`."""
        mask = np.ones(self.num_rows, np.bool_)
        rows = self.find(keys)
        mask[rows[rows != ABSENT]] = False
        return mask

    def renumber(self) -> None:
        """The rows have other numbers: what was looked up before is stale."""
        self.numbering.is_current = False
        self.numbering = RowNumbering(self._is_watched)

    # What is stored, beside keys and rows

    def state(self, rows: Int64s | None = None) -> dict[str, npt.NDArray[Any]]:
        """What is known in addition to key and row, by name; of some rows, or of all, what is known of rows."""
        result = self.occurrences.content() | self.seen.content()
        if self.uses is not None:
            result |= self.uses.content(rows)
        if any(counters := astuple(self.counters)):
            result["counters"] = np.array(counters, np.int64)
        return result

    def load_state(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Know of keys without a row what a checked `state` says."""
        self.occurrences.load(state)
        self.seen.load(state)
        self.counters = Counters(*map(int, state.get("counters", ())))

    def set_uses(self, state: Mapping[str, npt.NDArray[Any]], rows: Int64s) -> None:
        """Know of `rows` what a `state` says of rows, in that order."""
        if self.uses is not None:
            self.uses.load(state, rows)

    def count_seen(self, total: int | None = None) -> None:
        """Have seen `total` keys; None: those that are known."""
        self.seen.recount(lambda: np.concatenate([self.keys(), self.keys_without_row()]), total)

    def keys_without_row(self) -> Int64s:
        """Keys that training has seen and that have no row now, as far as they are known: dropped, or not admitted."""
        known = np.union1d(self.dropped, self.occurrences.keys().view(np.uint64)).view(np.int64)
        return known[self.find(known) == ABSENT] if len(known) else known


def _cut(decision: Admission, keys: Int64s, places: int) -> Admission:
    """The decision with the first `places` of those that are admitted; the others are refused."""
    admitted = np.ones(len(keys), np.bool_) if decision.admitted is None else decision.admitted.copy()
    admitted[np.flatnonzero(admitted)[places:]] = False
    return replace(decision, count=places, keys=keys, admitted=admitted, refused=decision.count - places)


_MARKS = 2.2
"""Bytes of a row that mark what survives an eviction, and what has changed since a checkpoint."""

_PARTS = 5
"""Parts to reserve per row before the optimizer is known: x, u and three moments."""

_FEWEST = 1000
"""Rows below which a table is of no use."""


class RowLimit:
    """How many rows there may be within `max_bytes`. The index has buckets for so many from the beginning.

    Args:
        max_bytes: That are never exceeded.
        other_bytes: The part of them for working memory, and for what is known of keys without a row.
        memory: Rows, which may get more parts later.

    Raises:
        ValueError: That is too little for 1,000 rows.
    """

    def __init__(self, max_bytes: int, other_bytes: int, memory: Rows) -> None:
        self.max_bytes = max_bytes
        self._left = max_bytes - other_bytes - SLACK * BUCKET_BYTES - memory.bytes(1)
        if self.most_rows(memory) < _FEWEST:
            least = max_bytes - self._left + int(_FEWEST * self._bytes_of_row(memory, _parts_to_come(memory))) + 1
            raise ValueError(f"max_bytes must be at least {least:,} for 1,000 rows of this table, got {max_bytes:,}")

    def most_rows(self, memory: Rows, parts: int | None = None) -> int:
        """How many rows there can be of so many parts; None: as many parts as they may get."""
        row_bytes = self._bytes_of_row(memory, _parts_to_come(memory) if parts is None else parts)
        return min(MOST_ROWS, max(0, int(self._left / row_bytes)))

    def _bytes_of_row(self, memory: Rows, parts: int) -> float:
        return memory.bytes_of_row(parts) + BYTES + _MARKS + BUCKET_BYTES / KEYS_PER_BUCKET

    def check_layout(self, parts: int, rows: int, memory: Rows) -> None:
        """Raise RuntimeError unless `rows` rows may get so many parts."""
        most = self.most_rows(memory, parts)
        if rows > most and parts > len(memory.parts):
            raise RuntimeError(
                f"with this optimizer's state, max_bytes={self.max_bytes:,} are enough for {most:,} rows, and the "
                f"table has {rows:,}: drop some by shrink(), or give it more; nothing has been changed"
            )

    def room(self, wanted: int, directory: Directory, memory: Rows) -> int:
        """How many of `wanted` more rows there is room for."""
        return max(0, min(wanted, self.most_rows(memory) - directory.num_rows))


def _parts_to_come(memory: Rows) -> int:
    parts = len(memory.parts)
    return _PARTS if parts == 1 else parts + ("u" not in memory.parts)  # so that λ21 can be set later


_FULL, _EVICTED = 0.02, 0.1
"""The share of the rows there is room for that shall be free, and the share that is evicted when it is not."""


class Evictor:
    """Decides which rows survive between two steps: asks the eviction policy, and makes room where little is left.

    Attributes:
        is_due: Whether a step has been taken, or rows were loaded, since `surviving` was asked.
    """

    def __init__(
        self,
        eviction: EvictionPolicy,
        ranking: RankingPolicy,
        limit: RowLimit | None,
        directory: Directory,
        storage: RowStorage,
    ) -> None:
        self._eviction, self._ranking, self._limit = eviction, ranking, limit
        self._directory, self._storage = directory, storage
        self._evicts = eviction.every is not None or limit is not None
        self.is_due = self._evicts

    def note_step(self) -> None:
        """A step has been taken."""
        if self._evicts or self._directory.uses is not None:
            self._directory.tick()
            self.is_due = self._evicts

    def note_load(self) -> None:
        """Rows have been loaded."""
        self.is_due = self._evicts

    def surviving(self) -> Bools | None:
        """Which rows survive, `[num_rows]`; None for all."""
        self.is_due = False
        surviving: Bools | None = None
        directory, every = self._directory, self._eviction.every
        if every is not None and directory.time - directory.counters.last_check >= every:
            directory.counters.last_check = directory.time
            surviving = self.surviving_policy()
        if self._limit is not None:
            most = self._limit.most_rows(self._storage.rows)
            staying = directory.num_rows if surviving is None else int(np.count_nonzero(surviving))
            if most - staying < _FULL * most:
                surviving = self._without_lowest(staying - int((1 - _EVICTED) * most), surviving)
        if surviving is not None and _logger.isEnabledFor(logging.DEBUG):
            gone = len(surviving) - int(np.count_nonzero(surviving))
            _logger.debug("%s of %s rows are evicted", f"{gone:,}", f"{len(surviving):,}")
        return surviving

    def surviving_policy(self) -> Bools:
        """Which rows the eviction policy leaves, `[num_rows]`. Raises ValueError if its answer has another shape."""
        policy, surviving = self._eviction, np.ones(self._directory.num_rows, np.bool_)
        for first, block in self._directory.blocks(self._storage.rows):
            evicted = checked_answer(policy, "evicts", policy.evicts(block), len(block), np.bool_)
            surviving[first : first + len(block)] = ~evicted
        return surviving

    def surviving_limit(self) -> Bools | None:
        """Which of rows that have been read, with the parts that they have, survive; None for all."""
        if self._limit is None:
            return None
        memory = self._storage.rows
        too_many = self._directory.num_rows - self._limit.most_rows(memory, len(memory.parts))
        return self._without_lowest(too_many) if too_many > 0 else None

    def _without_lowest(self, number: int, mask: Bools | None = None) -> Bools:
        """The mask without `number` of its rows: those of the lowest ranks, of equal ones the oldest."""
        mask = np.ones(self._directory.num_rows, np.bool_) if mask is None else mask
        lowest = self._lowest_ranks(number, mask)
        highest = lowest.max()
        ties = int(np.count_nonzero(lowest == highest))
        for first, ranks in self._ranks():
            span = mask[first : first + len(ranks)]
            tied = np.flatnonzero(span & (ranks == highest))[:ties]
            ties -= len(tied)
            span[ranks < highest] = False
            span[tied] = False
        return mask

    def _lowest_ranks(self, number: int, mask: Bools) -> Int64s:
        """The `number` lowest ranks of the rows of the mask, in no order. Few more are held at a time."""
        found: list[Int64s] = []
        highest: int | None = None
        for first, ranks in self._ranks():
            some = ranks[mask[first : first + len(ranks)]]
            found.append(some if highest is None else some[some < highest])
            if sum(map(len, found)) > 2 * number:
                found = [_lowest(found, number)]
                highest = int(found[0].max())
        return _lowest(found, number)

    def _ranks(self) -> Iterator[tuple[int, Int64s]]:
        policy = self._ranking
        for first, block in self._directory.blocks(self._storage.rows):
            yield first, checked_answer(policy, "ranks", policy.ranks(block), len(block), np.int64)

    def make_room(self, keys: Int64s, *, parts_may_come: bool) -> None:
        """Have an index for `keys`, too, under a limit, where they are about to be set.

        Raises:
            RuntimeError: There is no room for them, with the parts that rows have, or with those that they may get.
        """
        if self._limit is not None:
            new = int(np.count_nonzero(self._directory.find(keys) == ABSENT))
            self.check_room(new, self._directory.num_rows, parts_may_come=parts_may_come)
            self.fit_index(self._directory.num_rows + new)

    def check_room(self, new: int, present: int = 0, *, parts_may_come: bool = False) -> None:
        """Raise RuntimeError if a limit has no room for so many rows more than are `present`."""
        if self._limit is None:
            return
        limit, memory = self._limit, self._storage.rows
        room = limit.most_rows(memory, None if parts_may_come else len(memory.parts)) - present
        if new > room:
            raise RuntimeError(
                f"the table is full: within max_bytes={limit.max_bytes:,} there is room for {max(room, 0):,} more "
                f"rows, and {new:,} are to be set; none was"
            )

    def fit_index(self, num_rows: int | None = None) -> None:
        """Have an index that suits so many rows, or the present ones: as small as they allow, or as the limit says."""
        directory, limit, memory = self._directory, self._limit, self._storage.rows
        if limit is None:
            directory.give_back()
            return
        num_rows = directory.num_rows if num_rows is None else num_rows
        for most in (limit.most_rows(memory), limit.most_rows(memory, len(memory.parts))):
            if num_rows <= most:
                directory.set_buckets(int(most / KEYS_PER_BUCKET) + 1)
                return


def _lowest(ranks: list[Int64s], number: int) -> Int64s:
    return np.partition(np.concatenate(ranks), number - 1)[:number]
