"""The lookup: from keys to rows and vectors, at once or ahead of time; new keys get a row on the way."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from sparsegroup.kernels.views import array_of
from sparsegroup.table import batch
from sparsegroup.table.admission import AdmissionPolicy, SetKeys
from sparsegroup.table.buckets import ABSENT
from sparsegroup.table.directory import Directory, RowLimit
from sparsegroup.table.key_search import KeySearch, LookAhead
from sparsegroup.table.row_locations import Int64s, RowLocations
from sparsegroup.table.row_start import RowStarts
from sparsegroup.table.row_storage import RowStorage

CHUNK = 1 << 21
"""Keys that are looked up at a time; of more, the distinct ones are found by sorting, which takes times as long. Each
takes some 30 bytes and a vector."""


@dataclass(frozen=True)
class Found:
    """What a lookup of keys `[n]` gives.

    Attributes:
        locations: Where they are.
        vectors: `[n, dim]`, theirs alone: whoever looks them up may change them.
        search: How they were found.
    """

    locations: RowLocations
    vectors: Tensor
    search: KeySearch

    def zero(self) -> None:
        """Set the vectors of the keys at `search.zeroed` to zero."""
        self.vectors.index_fill_(0, torch.from_numpy(self.search.zeroed).to(self.vectors.device), 0)


class RowLookup:
    """Looks keys up in a directory and a storage that belong together. Called by one thread at a time.

    Args:
        directory: Key → row.
        storage: The rows.
        starts: Where new rows start.
        on_used: Called with rows when it is noted that they were used.
        budget: Limits the bytes, where they are limited.
        scratch_bytes: Working memory that is kept for the next lookup, at most.
    """

    def __init__(
        self,
        directory: Directory,
        storage: RowStorage,
        starts: RowStarts,
        on_used: Callable[[Int64s], None],
        budget: RowLimit | None = None,
        *,
        scratch_bytes: int,
    ) -> None:
        self._scratch_bytes = scratch_bytes
        self._on_used = on_used
        self._directory = directory
        self._storage = storage
        self._starts = starts
        self._budget = budget
        self._scratch = batch.Scratch(0, starts.dim, starts.dtype)

    def look_up(self, keys: Int64s, admission: AdmissionPolicy | None, *, again: bool = False) -> Found:
        """Look `keys` up; those that `admission` admits get a row where they have none. None: nothing is inserted.

        With `again` this is a lookup that has been counted already.

        Raises:
            RuntimeError: `max_rows` would be exceeded; nothing has changed.
            MemoryError: The system has no more; nothing has changed.
        """
        try:
            if len(keys) <= CHUNK:
                search = KeySearch(keys)
                self._find(search, admission, fetch=True, again=again)
            else:
                search = self._search_many(keys, admission, again=again)
            return self._vectors(search)
        finally:
            self._drop_scratch()

    @property
    def nbytes(self) -> int:
        """Working memory that is kept for the next lookup."""
        return self._scratch.nbytes

    def _drop_scratch(self) -> None:
        if self._scratch.nbytes > self._scratch_bytes:
            self._scratch = batch.Scratch(0, self._starts.dim, self._starts.dtype)

    def run_ahead(self, ahead: LookAhead, admission: AdmissionPolicy | None) -> None:
        """Find what `ahead` looks for. An error is left for the lookup itself to run into, if it still holds."""
        with suppress(Exception):
            self._find(ahead.search, admission, fetch=False, alone=True)
            ahead.end(self._directory.generation, self._directory.num_rows)
        self._drop_scratch()

    def fetch(self, ahead: LookAhead, admission: AdmissionPolicy | None) -> Found:
        """What `look_up` gives, of keys that have been looked up ahead."""
        directory = self._directory
        stale = ahead.generation is not directory.generation
        if stale or (ahead.search.absent and not ahead.insert and ahead.rows != directory.num_rows):
            found = self.look_up(ahead.search.keys, admission, again=ahead.generation is not None)
            found.search.earlier = ahead.search if ahead.generation is not None else None
            return found
        return self._vectors(ahead.search)

    def fetch_again(self, search: KeySearch) -> Found:
        """What a lookup gave, from its search; the rows still have their numbers."""
        found = self._vectors(search)
        if len(search.zeroed):
            found.zero()
        return found

    def _room_for(self, admission: AdmissionPolicy) -> Callable[[int], int] | None:
        return None if self._budget is None or isinstance(admission, SetKeys) else self._room

    def _room(self, wanted: int) -> int:
        """How many of `wanted` new rows can be had."""
        assert self._budget is not None
        return self._budget.room(wanted, self._directory, self._storage.rows)

    def _vectors(self, search: KeySearch) -> Found:
        directory = self._directory
        found = Found(*self._storage.vectors(search, directory.index, self._scratch, directory.generation), search)
        search.fetch_into(None)  # so that who remembers the search does not hold the vectors
        return found

    def _note_use(self, rows: Int64s, admission: AdmissionPolicy | None, again: bool) -> None:
        if self._directory.uses is not None and not (admission is None or again or isinstance(admission, SetKeys)):
            self._directory.uses.mark(rows)
            self._on_used(rows[rows != ABSENT])

    def _find(
        self,
        search: KeySearch,
        admission: AdmissionPolicy | None,
        *,
        fetch: bool,
        alone: bool = False,
        again: bool = False,
    ) -> None:
        n, starts = len(search.keys), self._starts
        if len(self._scratch.distinct) < n:
            self._scratch = batch.Scratch(n, starts.dim, starts.dtype)
        self._storage.find(search, self._directory.index, self._scratch, fetch=fetch, alone=alone)
        if search.absent and admission is not None:
            self._insert(search, admission, again)
        self._note_use(array_of(search.distinct_rows), admission, again)

    def _search_many(self, keys: Int64s, admission: AdmissionPolicy | None, *, again: bool) -> KeySearch:
        directory = self._directory
        distinct, inverse = batch.distinct_of_many(keys)
        rows = directory.find(distinct)
        new, before = distinct[rows == ABSENT], directory.num_rows
        if admission is not None and len(new):
            decision = directory.decide(len(new), lambda: new, admission, self._room_for(admission), again=again)
            coming = new if decision.admitted is None else new[decision.admitted]
            for first in range(0, len(coming), CHUNK):
                search = KeySearch(coming[first : first + CHUNK])
                self._find(search, None, fetch=False)
                self._give_rows(search, slice(0, search.absent))
            directory.note(decision)
            rows = directory.find(distinct)
        self._note_use(rows, admission, again)
        search = KeySearch.with_rows(keys, inverse, rows)
        search.note_new(before)
        return search

    def _insert(self, search: KeySearch, admission: AdmissionPolicy, again: bool) -> None:
        """Give rows to those of the search's keys that have none and are admitted."""
        rows = array_of(search.distinct_rows)
        directory, distinct = self._directory, self._scratch.distinct[: len(rows)]
        decision = directory.decide(
            search.absent, lambda: distinct[rows == ABSENT], admission, self._room_for(admission), again=again
        )
        if decision.admitted is None or decision.count == search.absent:
            self._give_rows(search, slice(0, len(rows)))
        elif decision.count:
            self._give_rows(search, np.flatnonzero(rows == ABSENT)[decision.admitted])
        directory.note(decision)

    def _give_rows(self, search: KeySearch, places: slice | Int64s) -> None:
        """Give rows to the absent ones of the distinct keys at `places`, and put their vectors with the others."""
        rows, scratch, starts = array_of(search.distinct_rows), self._scratch, self._starts
        some, vectors = rows[places], scratch.vectors[places]  # views of a slice, copies of single places
        count = search.absent if isinstance(places, slice) else len(places)
        index, before = self._directory.index, self._directory.num_rows
        index.reserve(before + count)
        space = self._storage.new_rows(before, count)
        while (inserted := index.num_keys - before) < count:
            live = batch.insert_rows(
                scratch.distinct[places],
                scratch.hashes[places],
                some,
                index.state,
                index.pages,
                space.addresses,
                space.shift,
                space.row_bytes,
                before + inserted,
                starts.seed,
                starts.init,
                starts.std,
                np.array([0.0, *space.initial], starts.dtype),
                vectors,
            )
            self._storage.count_new(live)
            if index.num_keys < before + count:
                index.extend()
        index.settle(count)
        self._directory.rows_added(count)
        if not isinstance(places, slice):
            rows[places], scratch.vectors[places] = some, vectors
        search.count_given(count)
        search.note_new(before)
