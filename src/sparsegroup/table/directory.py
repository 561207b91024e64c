"""Which key has which row, which keys have been seen, and who is let in."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sparsegroup.table.admission import AdmissionPolicy, EveryKey
from sparsegroup.table.index import ABSENT, Index
from sparsegroup.table.row_fields import RowFields, fields_of
from sparsegroup.table.row_locations import Generation, Int64s
from sparsegroup.table.waiting_keys import WaitingKeys

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Admission:
    """A decision about distinct keys that have no row, not yet carried out.

    Attributes:
        count: How many get one.
        keys: `[n]`, all of them; None where all are admitted and none has been seen before.
        admitted: `[n]`, which get one; None for all.
        sights: `[n]`, what the policy was told of them; None if none was asked.
    """

    count: int
    keys: Int64s | None = None
    admitted: Bools | None = None
    sights: Int64s | None = None


class Directory:
    """64-bit keys → row numbers 0, 1, …, and what is known of keys without a row.

    Args:
        max_rows: The most there may be.
        huge_pages: See `MappedPages`.
        buckets: How many the index begins with; None for few.

    Attributes:
        index: Key → row.
        dropped: Keys that had a row and lost it, ascending as uint64; some may have one again.
        waiting: Keys that were not admitted.
        num_seen: Distinct keys that training has ever seen.
        generation: The numbering of the rows.
        row_fields: The fields of rows, once they have been asked for.
    """

    def __init__(self, max_rows: int, huge_pages: bool, buckets: int | None = None) -> None:
        self.max_rows = max_rows
        self._huge_pages = huge_pages
        self.index = Index(huge_pages) if buckets is None else Index(huge_pages, buckets)
        self.dropped: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        self.waiting = WaitingKeys(huge_pages)
        self.num_seen = 0
        self.generation = Generation()
        self.row_fields: RowFields | None = None

    @property
    def num_rows(self) -> int:
        """Keys that have a row."""
        return self.index.num_keys

    def find(self, keys: Int64s) -> Int64s:
        """Rows of `keys`, `ABSENT` where there is none."""
        return self.index.find(keys)

    def keys(self) -> Int64s:
        """The keys of rows 0, 1, …"""
        return self.index.keys_of_rows(0, self.num_rows)

    def described(self, rows: Int64s) -> str:
        """The keys of some rows in words, the first few of many."""
        if rows[0] >= self.num_rows:
            return "a key that is gone"
        keys = self.keys()[rows[:5]].tolist()
        more = f" and {len(rows) - 5:,} more" if len(rows) > 5 else ""
        return f"key{'s' if len(rows) > 1 else ''} {', '.join(map(str, keys))}{more}"

    def fields(self, bits: int) -> RowFields:
        """The fields of all rows, in the top `bits` bits of their keys; noted from now on as rows come and go."""
        known = self.row_fields
        if known is None or known.bits != bits or known.num_rows != self.num_rows:
            known = self.row_fields = RowFields.of_index(self.index, bits)
        return known

    def seen_without_row(self, bits: int) -> Int64s:
        """`[2**bits]`: of how many keys without a row training has seen each field."""
        keys = self.keys_without_row() if len(self.dropped) else self.waiting.content()[0]
        return np.bincount(fields_of(keys, bits), minlength=1 << bits)

    def set_buckets(self, buckets: int) -> None:
        """Have an index of so many buckets, which must suffice."""
        if self.index.buckets != buckets:
            self.index = self.index.with_buckets(buckets)

    def keys_without_row(self) -> Int64s:
        """Keys that training has seen and that have no row now: dropped, or never admitted."""
        known = np.union1d(self.dropped, self.waiting.content()[0].view(np.uint64)).view(np.int64)
        return known[self.find(known) == ABSENT] if len(known) else known

    # Coming

    def decide(self, count: int, keys: Callable[[], Int64s], policy: AdmissionPolicy) -> Admission:
        """Which of `count` distinct keys without a row are admitted. Nothing is changed.

        Raises:
            RuntimeError: `max_rows` would be exceeded.
            ValueError: The policy's answer has another shape or dtype.
        """
        if not isinstance(policy, EveryKey) or self.waiting.nbytes:
            decision = self._ask(keys(), policy)
        else:
            decision = Admission(count, keys() if len(self.dropped) else None)
        if self.num_rows + decision.count > self.max_rows:
            raise RuntimeError(
                f"the table is full: max_rows={self.max_rows:,}, it has {self.num_rows:,} rows and this lookup "
                f"brings {decision.count:,} new keys; none was inserted"
            )
        return decision

    def _ask(self, keys: Int64s, policy: AdmissionPolicy) -> Admission:
        sights = self.waiting.sights(keys)[0] + 1
        admitted = np.asarray(policy.admits(keys, sights))
        if admitted.dtype != np.bool_ or admitted.shape != keys.shape:
            raise ValueError(
                f"{type(policy).__name__}.admits must give bool {[len(keys)]}, got {admitted.dtype} "
                f"{list(admitted.shape)}"
            )
        return Admission(int(admitted.sum()), keys, admitted, sights)

    def note(self, decision: Admission) -> None:
        """Count the keys of a decision that has been carried out."""
        keys = decision.keys
        if keys is None:
            self.num_seen += decision.count
            return
        known = self._was_dropped(keys)
        if decision.admitted is not None and decision.sights is not None:
            known |= self.waiting.sights(keys)[1]
            self.waiting.note(keys, np.where(decision.admitted, 0, decision.sights))
        self.num_seen += len(keys) - int(np.count_nonzero(known))

    def _was_dropped(self, keys: Int64s) -> Bools:
        if not len(self.dropped):
            return np.zeros(len(keys), np.bool_)
        values = keys.view(np.uint64)
        at = np.minimum(np.searchsorted(self.dropped, values), len(self.dropped) - 1)
        found: Bools = self.dropped[at] == values
        return found

    # Going

    def keep(self, kept: Bools) -> Int64s:
        """Keep the rows of the mask `[num_rows]`, renumbered in their order; gives the keys of the others, dropped."""
        keys = self.keys()
        remaining, gone = keys[kept], keys[~kept]
        index = Index(self._huge_pages)
        index.reserve(len(remaining))
        index.insert(remaining, np.arange(len(remaining)))
        self.drop(gone)
        self.index = index
        if self.row_fields is not None:
            self.row_fields.keep(kept)
        self.renumber()
        return gone

    def drop(self, keys: Int64s) -> None:
        """Remember keys without a row as dropped."""
        if len(keys):
            self.dropped = np.union1d(self.dropped, keys.view(np.uint64))

    def set_seen(self, dropped: Int64s, waiting: Int64s, sights: Int64s) -> None:
        """Have these keys and no others for dropped, and for waiting, each with its sights."""
        self.dropped = np.unique(dropped.view(np.uint64))
        self.waiting = WaitingKeys(self._huge_pages)
        self.waiting.note(waiting, sights)

    def count_seen(self, total: int | None = None) -> None:
        """Set how many distinct keys have ever been seen; None counts those that are known."""
        self.num_seen = self.num_rows + len(self.keys_without_row()) if total is None else total

    def masked_without(self, keys: Int64s) -> Bools:
        """`[num_rows]`, the rows but those of `keys`."""
        kept = np.ones(self.num_rows, np.bool_)
        rows = self.find(keys)
        kept[rows[rows != ABSENT]] = False
        return kept

    def renumber(self) -> None:
        """The rows have other numbers: what was looked up before is stale."""
        self.generation.end()
        self.generation = Generation()
