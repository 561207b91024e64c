"""Which key has which row, which keys have been seen, and who is let in."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.table.admission import AdmissionPolicy, EveryKey
from sparsegroup.table.buckets import ABSENT
from sparsegroup.table.distinct_count import DistinctCount
from sparsegroup.table.index import Index
from sparsegroup.table.index_filter import keep_rows
from sparsegroup.table.policy_answer import checked_answer
from sparsegroup.table.row_locations import Generation, Int64s
from sparsegroup.table.row_uses import RowUses
from sparsegroup.table.sighting_sketch import SightingSketch
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
        refused: How many more would get one if there were room.
        again: Whether this lookup has been counted already.
    """

    count: int
    keys: Int64s | None = None
    admitted: Bools | None = None
    sights: Int64s | None = None
    refused: int = 0
    again: bool = False


class Directory:
    """64-bit keys → row numbers 0, 1, …, and what is known of keys without a row.

    Args:
        max_rows: The most there may be.
        huge_pages: See `MappedPages`.
        buckets: How many the index begins with; None for few.
        sketch_bytes: The size of a sketch that counts the sightings of keys without a row; None: each is known.
        estimate: Estimates how many keys have been seen; None: those that lost their row are remembered, so that they
            are not counted twice.
        uses: Knows when rows were used; None where nobody asks.
        is_watched: Whether rows go by themselves, see `Generation`.

    Attributes:
        index: Key → row.
        dropped: Keys that had a row and lost it, ascending as uint64; some may have one again.
        waiting: Keys that were not admitted.
        estimate, uses: As above.
        evicted: Rows that were dropped by themselves, by a policy that is asked now and then or for want of room.
        refused: How often a key would have got a row, had there been room.
        steps: The optimizer's, as far as anybody counts them.
        asked: The moment at which the eviction policy was asked last.
        lookups: In how many a policy was asked, where sightings are counted in a sketch; one that draws is told that.
        generation: The numbering of the rows.
    """

    def __init__(
        self,
        max_rows: int,
        huge_pages: bool,
        buckets: int | None = None,
        *,
        sketch_bytes: int | None = None,
        estimate: DistinctCount | None = None,
        uses: RowUses | None = None,
        is_watched: bool = False,
    ) -> None:
        self.max_rows = max_rows
        self._huge_pages = huge_pages
        self.index = Index(huge_pages) if buckets is None else Index(huge_pages, buckets)
        self.dropped: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        self.waiting = WaitingKeys(huge_pages) if sketch_bytes is None else SightingSketch(sketch_bytes)
        self.estimate, self.uses = estimate, uses
        self.evicted = self.refused = self.steps = self.asked = self.lookups = 0
        self._is_watched = is_watched
        self.generation = Generation(is_watched)
        self._num_seen = 0

    @property
    def num_rows(self) -> int:
        """Keys that have a row with a number, 0, 1, …"""
        return self.index.num_keys

    @property
    def num_seen(self) -> int:
        """Distinct keys that training has ever seen."""
        if self.estimate is not None:  # which may be below a number that was known
            self._num_seen = max(self._num_seen, self.num_rows, self.estimate.total)
        return self._num_seen

    @property
    def fixed_bytes(self) -> int:
        """Memory of what is known of keys without a row, where it does not grow."""
        return self.waiting.nbytes + (0 if self.estimate is None else self.estimate.nbytes)

    @property
    def noted_bytes(self) -> int:
        """Memory of what is known beside key and row."""
        return self.fixed_bytes + self.dropped.nbytes + (0 if self.uses is None else self.uses.nbytes)

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

    def set_buckets(self, buckets: int) -> None:
        """Have an index of so many buckets, which must suffice."""
        if self.index.buckets != buckets:
            self.index = self.index.with_buckets(buckets)

    def keys_without_row(self) -> Int64s:
        """Keys that training has seen and that have no row now, as far as they are known: dropped, or not admitted."""
        known = np.union1d(self.dropped, self.waiting.keys().view(np.uint64)).view(np.int64)
        return known[self.find(known) == ABSENT] if len(known) else known

    # Coming

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
            room: Tells how many of so many rows that are wanted can be had; None: all.
            again: Whether this lookup of them has been counted already.

        Raises:
            RuntimeError: `max_rows` would be exceeded.
            ValueError: The policy's answer has another shape or dtype.
        """
        if not isinstance(policy, EveryKey) or self.waiting.nbytes:
            decision = self._ask(keys(), policy, again)
        else:
            known = len(self.dropped) or self.estimate is not None
            decision = Admission(count, keys() if known else None, again=again)
        if self.num_rows + decision.count > self.max_rows:
            raise RuntimeError(
                f"the table is full: max_rows={self.max_rows:,}, it has {self.num_rows:,} rows and this lookup "
                f"brings {decision.count:,} new keys; none was inserted"
            )
        places = decision.count if room is None else room(decision.count)
        return decision if places == decision.count else _cut(decision, keys(), places)

    def _ask(self, keys: Int64s, policy: AdmissionPolicy, again: bool) -> Admission:
        sights = np.maximum(self.waiting.sights(keys)[0] + (not again), 1)
        if isinstance(self.waiting, SightingSketch) and getattr(policy, "draws", False):
            sights = np.full(len(keys), self.lookups + (not again))
        admitted = checked_answer(policy, "admits", policy.admits(keys, sights), len(keys), np.bool_)
        return Admission(int(admitted.sum()), keys, admitted, sights, again=again)

    def note_asked(self, moment: int) -> None:
        """The eviction policy is asked at a moment: after so many steps, or as the log's clock says."""
        self.asked = moment

    def count_evicted(self, count: int) -> None:
        """So many rows more have been dropped by themselves."""
        self.evicted += count

    def set_time(self, seconds: int) -> None:
        """It is `seconds` now, where rows' uses are told in these."""
        if self.uses is not None and not self.uses.by_steps:
            self.uses.advance_to(seconds)

    def tick(self) -> None:
        """The optimizer has taken a step."""
        self.steps += 1
        if self.uses is not None and self.uses.by_steps:
            self.uses.advance_to(self.uses.now + 1)

    def came(self, count: int) -> None:
        """So many rows have been added to the index."""
        if self.uses is not None:
            self.uses.add(count)

    def note(self, decision: Admission) -> None:
        """Count the keys of a decision that has been carried out."""
        keys = decision.keys
        if not decision.again:
            self.refused += decision.refused
            self.lookups += decision.sights is not None and isinstance(self.waiting, SightingSketch)
        if keys is None:
            self._num_seen += decision.count
            return
        known = self._was_dropped(keys)
        if decision.admitted is not None and decision.sights is not None:
            known |= self.waiting.sights(keys)[1]
            self.waiting.note(keys, np.where(decision.admitted, 0, decision.sights))
        if self.estimate is not None:
            self.estimate.add(keys)
            return
        self._num_seen += len(keys) - int(np.count_nonzero(known))

    def _was_dropped(self, keys: Int64s) -> Bools:
        if not len(self.dropped):
            return np.zeros(len(keys), np.bool_)
        values = keys.view(np.uint64)
        at = np.minimum(np.searchsorted(self.dropped, values), len(self.dropped) - 1)
        found: Bools = self.dropped[at] == values
        return found

    # Going

    def keep(self, kept: Bools) -> tuple[Int64s, Int64s]:
        """Keep the rows of the mask `[num_rows]`, renumbered in their order; the keys of the others count as dropped.

        Returns:
            Keys and former rows of the others.
        """
        gone, rows = keep_rows(self.index, kept)
        if self.uses is not None:
            self.uses.keep(kept)
        self.renumber()
        self._drop(gone)
        return gone, rows

    def give_back(self) -> None:
        """Give memory back that the index has no use for any more, if it is much."""
        least = Index.buckets_for(self.num_rows)
        if 2 * least <= self.index.buckets:
            self.index = self.index.with_buckets(least)

    def _drop(self, keys: Int64s) -> None:
        if len(keys) and self.estimate is None:
            new = np.sort(keys[~self._was_dropped(keys)].view(np.uint64))
            self.dropped = np.concatenate([self.dropped, new])
            self.dropped.sort(kind="stable")  # two ascending runs: a merge

    def masked_without(self, keys: Int64s) -> Bools:
        """`[num_rows]`, the rows but those of `keys`."""
        kept = np.ones(self.num_rows, np.bool_)
        rows = self.find(keys)
        kept[rows[rows != ABSENT]] = False
        return kept

    def renumber(self) -> None:
        """The rows have other numbers: what was looked up before is stale."""
        self.generation.end()
        self.generation = Generation(self._is_watched)

    # What is known of keys, to be kept

    def notes(self, rows: Int64s | None = None) -> dict[str, npt.NDArray[Any]]:
        """What is known beside key and row, by name; of some rows, or of all, what is known of rows."""
        result = self.waiting.content()
        if self.estimate is not None:
            result |= self.estimate.content()
        if self.uses is not None:
            result |= self.uses.content(rows)
        if self.steps or self.evicted or self.refused or self.lookups:
            turnover = [self.steps, self.evicted, self.refused, self.asked, self.lookups]
            result["turnover"] = np.array(turnover, np.int64)
        return result

    def set_dropped(self, dropped: Int64s) -> None:
        """Have these keys and no others for dropped."""
        if self.estimate is None:
            self.dropped = np.unique(dropped.view(np.uint64))
        else:
            self.estimate.add(dropped)

    def set_notes(self, notes: Mapping[str, npt.NDArray[Any]]) -> None:
        """Know what another one knew of keys.

        Raises:
            ValueError: That cannot be; the message begins with the name of what cannot.
        """
        if self.estimate is None:
            self.waiting.load(notes)
        else:  # and no keys are remembered one by one
            self.estimate.load(notes)
            self.estimate.add(notes.get("waiting", np.zeros(0, np.int64)))
            if isinstance(self.waiting, SightingSketch):
                self.waiting.load(notes)
        turnover = map(int, notes.get("turnover", (0, 0, 0, 0, 0)))
        self.steps, self.evicted, self.refused, self.asked, self.lookups = turnover

    def set_uses(self, notes: Mapping[str, npt.NDArray[Any]], rows: Int64s) -> None:
        """Know of `rows` what another one knew of its rows, in that order.

        Raises:
            ValueError: It knew of more rows, or fewer.
        """
        if self.uses is not None:
            self.uses.load(notes, rows)

    def count_seen(self, total: int | None = None) -> None:
        """Set how many distinct keys have ever been seen; None counts those that are known."""
        if self.estimate is None:
            self._num_seen = self.num_rows + len(self.keys_without_row()) if total is None else total
        else:
            self.estimate.add(self.keys())
            self._num_seen = total or 0

    def forget(self) -> None:
        """Know nothing any more of keys that have been seen."""
        self._num_seen = 0
        if self.estimate is not None:
            self.estimate.clear()


def _cut(decision: Admission, keys: Int64s, places: int) -> Admission:
    """The decision with the first `places` of those that are admitted; the others are refused."""
    admitted = np.ones(len(keys), np.bool_) if decision.admitted is None else decision.admitted.copy()
    admitted[np.flatnonzero(admitted)[places:]] = False
    return replace(decision, count=places, keys=keys, admitted=admitted, refused=decision.count - places)
