"""The lookup: from keys to rows and vectors, now or ahead of time; new keys get a row on the way."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.kernels.cpu import threads
from sparsegroup.kernels.views import TORCH_DTYPES, array_of
from sparsegroup.table import batch
from sparsegroup.table.admission import AdmissionPolicy, SetKeys
from sparsegroup.table.buckets import ABSENT
from sparsegroup.table.differentiable_lookup import Int64s, KeySearch, LookupResult
from sparsegroup.table.directory import Directory, RowLimit
from sparsegroup.table.row_start import RowStarts
from sparsegroup.table.row_storage import RowStorage

GRAIN = 1 << 12
"""Keys, some tens of microseconds of work, below which waking a thread costs more than it does."""

CHUNK = 1 << 21
"""Keys that are looked up at a time; of more, the distinct ones are found by sorting, which takes times as long. Each
takes some 30 bytes and a vector."""


def is_recomputation() -> bool:
    """Whether this is inside a backward pass, where activation checkpointing computes a forward again."""
    return bool(torch._C._current_graph_task_id() != -1)


def pays_ahead(count: int) -> bool:
    """Whether it pays to let another thread find so many keys ahead of their lookup."""
    return GRAIN <= count <= CHUNK and threads.get_num_threads() > 1


class RowLookup:
    """Looks keys up in a directory and a storage that belong together. Called by one thread at a time.

    Args:
        directory: Key → row.
        storage: The rows.
        starts: Where new rows start.
        on_used: Called with rows when it is noted that they were used.
        budget: The limit of bytes, if there is one.
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
        self._directory, self._storage, self._starts = directory, storage, starts
        self._on_used, self._budget = on_used, budget
        self._scratch_bytes = scratch_bytes
        self._scratch = batch.Scratch(0, starts.dim, starts.dtype)

    @property
    def nbytes(self) -> int:
        """Working memory that is kept for the next lookup."""
        return self._scratch.nbytes

    def look_up(
        self,
        keys: Int64s,
        admission: AdmissionPolicy | None,
        ahead: KeySearch | None = None,
        *,
        is_counted: bool = False,
    ) -> LookupResult:
        """Look `keys` up; those that `admission` admits get a row if they have none. None: nothing is inserted.

        Args:
            keys: `[n]`.
            admission: Decides about new keys.
            ahead: The same search, made ahead of time. If it is stale, the keys are looked up again.
            is_counted: The same lookup has been counted already.

        Raises:
            RuntimeError: `max_rows` would be exceeded; nothing has changed.
            MemoryError: The system has no more; nothing has changed.
        """
        out = None
        try:
            if ahead is not None and self._is_current(ahead, admission):
                search = ahead
            elif len(keys) <= CHUNK:
                out = self._new_vectors(len(keys))
                search = self._find(keys, admission, out, is_counted=is_counted or ahead is not None)
                search.stale = ahead
            else:
                search = self._find_many(keys, admission, is_counted=is_counted)
            return self.fetch(search) if out is None else search.result(out)
        finally:
            if self._scratch.nbytes > self._scratch_bytes:
                self._scratch = batch.Scratch(0, self._starts.dim, self._starts.dtype)

    def search(self, keys: Int64s, admission: AdmissionPolicy | None) -> KeySearch:
        """The first half of `look_up`, ahead of time, in this thread only; of at most `CHUNK` keys."""
        if len(keys) > CHUNK:
            raise ValueError(f"{len(keys):,} keys are not looked up ahead of time")
        search = self._find(keys, admission, None, alone=True)
        search.num_rows = self._directory.num_rows
        return search

    def _is_current(self, ahead: KeySearch, admission: AdmissionPolicy | None) -> bool:
        directory = self._directory
        may_be_there = ahead.absent and admission is None and ahead.num_rows != directory.num_rows
        return ahead.numbering is directory.numbering and not may_be_there

    def fetch(self, search: KeySearch) -> LookupResult:
        """The vectors of a search whose rows still have their numbers."""
        out = self._new_vectors(len(search.keys))
        if out is None:
            return self._storage.fetch(search)
        distinct, vectors = len(search.rows), self._scratch.vectors
        if distinct > len(vectors):
            vectors = np.empty((distinct, self._starts.dim), vectors.dtype)
        count = np.array([distinct])
        self._run(search.keys, search.inverse, count, search.rows, vectors, out, finds=False)
        return search.result(out)

    def _new_vectors(self, n: int) -> Tensor | None:
        """Memory for the vectors of `n` keys; None for rows that are not on the host."""
        if self._storage.is_on_device:
            return None
        try:
            return torch.empty(n, self._starts.dim, dtype=TORCH_DTYPES[self._starts.dtype])
        except RuntimeError as error:  # as torch says that there is no memory
            raise MemoryError(str(error)) from error

    def _run(
        self,
        keys: Int64s,
        inverse: Any,
        count: Any,
        rows: Tensor,
        vectors: Any,
        out: Tensor | None,
        *,
        finds: bool,
        alone: bool = False,
    ) -> tuple[int, Int64s]:
        """Run the lookup's kernel, which fetches into `out` unless that is None.

        Returns:
            The number of absent keys, and the memory of `rows`.
        """
        row_array, target = array_of(rows), vectors if out is None else array_of(out)
        scratch, index, storage = self._scratch, self._directory.index, self._storage
        absent = threads.share(
            batch.look_up,
            finds,
            out is not None,
            keys,
            scratch.seen,
            scratch.distinct,
            scratch.hashes,
            inverse,
            count,
            row_array,
            index.state,
            index.pages,
            *storage.addresses,
            vectors,
            target,
            vectors.dtype.type(0),
            alone=alone or len(keys) < GRAIN,
        )
        return absent, row_array

    def _find(
        self,
        keys: Int64s,
        admission: AdmissionPolicy | None,
        out: Tensor | None,
        *,
        alone: bool = False,
        is_counted: bool = False,
    ) -> KeySearch:
        """Find the rows of keys, insert those that are admitted, and fetch the vectors into `out`."""
        n, directory = len(keys), self._directory
        if len(self._scratch.distinct) < n:
            self._scratch = batch.Scratch(n, self._starts.dim, self._starts.dtype)
        inverse, count, rows = np.empty(n, np.int32), np.zeros(1, np.int64), torch.empty(n, dtype=torch.int64)
        vectors = self._scratch.vectors
        absent, row_array = self._run(keys, inverse, count, rows, vectors, out, finds=True, alone=alone)
        distinct = int(count[0])
        search = KeySearch(keys, inverse, rows[:distinct], row_array[:distinct], absent, directory.numbering)
        if absent and admission is not None:
            self._insert(search, admission, is_counted=is_counted)
            if out is not None and search.absent < absent:
                batch.expand(inverse, vectors, array_of(out))
        if directory.uses is not None:
            self._note_use(search.row_array, admission, is_counted=is_counted)
        return search

    def _find_many(self, keys: Int64s, admission: AdmissionPolicy | None, *, is_counted: bool) -> KeySearch:
        directory = self._directory
        distinct, inverse = batch.distinct_of_many(keys)
        rows, before = directory.find(distinct), directory.num_rows
        new = distinct[rows == ABSENT]
        if admission is not None and len(new):
            decision = directory.decide(len(new), lambda: new, admission, self._room_for(admission), again=is_counted)
            admitted = new if decision.admitted is None else new[decision.admitted]
            for first in range(0, len(admitted), CHUNK):
                search = self._find(admitted[first : first + CHUNK], None, None)
                self._give_rows(search, slice(0, search.absent))
            directory.note(decision)
            rows = directory.find(distinct)
        if directory.uses is not None:
            self._note_use(rows, admission, is_counted=is_counted)
        absent = int(np.count_nonzero(rows == ABSENT))
        search = KeySearch(keys, inverse, torch.from_numpy(rows), rows, absent, directory.numbering)
        search.first_new = before
        return search

    def _note_use(self, rows: Int64s, admission: AdmissionPolicy | None, *, is_counted: bool) -> None:
        uses = self._directory.uses
        if uses is not None and not (admission is None or is_counted or isinstance(admission, SetKeys)):
            uses.mark(rows)
            self._on_used(rows[rows != ABSENT])

    def _room_for(self, admission: AdmissionPolicy) -> Callable[[int], int] | None:
        """How many of some new rows there is room for, unless there is room for all."""
        budget = self._budget
        if budget is None or isinstance(admission, SetKeys):
            return None
        return lambda wanted: budget.room(wanted, self._directory, self._storage.rows)

    def _insert(self, search: KeySearch, admission: AdmissionPolicy, *, is_counted: bool) -> None:
        """Give rows to those of the search's keys that have none and are admitted."""
        rows, directory = search.row_array, self._directory
        distinct = self._scratch.distinct[: len(rows)]
        decision = directory.decide(
            search.absent, lambda: distinct[rows == ABSENT], admission, self._room_for(admission), again=is_counted
        )
        if decision.admitted is None or decision.count == search.absent:
            self._give_rows(search, slice(0, len(rows)))
        elif decision.count:
            self._give_rows(search, np.flatnonzero(rows == ABSENT)[decision.admitted])
        directory.note(decision)

    def _give_rows(self, search: KeySearch, places: slice | npt.NDArray[np.intp]) -> None:
        """Give rows to the absent ones of the distinct keys at `places`, and put their vectors with the others."""
        rows, scratch, starts = search.row_array, self._scratch, self._starts
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
        search.absent -= count
        search.first_new = before
