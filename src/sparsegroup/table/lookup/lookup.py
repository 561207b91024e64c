"""The lookup: from keys to rows and vectors, now or ahead of time; new keys get a row on the way."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils.data import get_worker_info

from sparsegroup.kernels.cpu import threads
from sparsegroup.kernels.step import TORCH_DTYPES, array_of
from sparsegroup.signals import signals_deferred
from sparsegroup.table.config import check_int
from sparsegroup.table.directory.admission import SET_KEYS, AdmissionPolicy
from sparsegroup.table.directory.buckets import ABSENT
from sparsegroup.table.directory.directory import Admission, RowLimit, TableContent
from sparsegroup.table.lookup import kernels
from sparsegroup.table.lookup.autograd import KeySearch, LookupInfo
from sparsegroup.table.lookup.kernels import GRAIN, NOT_POOLED, BagPooling, RowStarts
from sparsegroup.table.rows.rows import WEIGHT

Int64s = npt.NDArray[np.int64]


def check_world(per_rank: bool) -> None:
    """Raise RuntimeError if several ranks would train tables without `per_rank`, which says it is meant so."""
    if per_rank or not dist.is_available() or not dist.is_initialized():
        return
    world = dist.get_world_size()
    if world > 1:
        raise RuntimeError(
            f"a HashEmbedding is trained on rank {dist.get_rank()} of {world}: each rank would train a table of its "
            "own, and these would diverge without a word, because DistributedDataParallel leaves tables alone and row "
            "numbers of different ranks mean different keys. One table on all ranks: HashEmbedding(..., "
            "process_group=torch.distributed.group.WORLD). If each rank should have a separate table (it trains a "
            "separate model, or has keys that no other has), use HashEmbedding(..., per_rank=True), or "
            "table.per_rank = True"
        )


def as_int64(ids: Tensor) -> Tensor:
    """int32 as int64, as `nn.Embedding` takes both; other dtypes unchanged."""
    return ids.to(torch.int64) if ids.dtype == torch.int32 else ids


def checked_keys(keys: Tensor) -> Tensor:
    """`keys` as int64. Raises TypeError unless they are a tensor of int64 or int32."""
    if not isinstance(keys, Tensor):
        hint = ": give its values(), or pool it in a HashEmbeddingBag" if hasattr(keys, "lengths") else ""
        raise TypeError(f"keys must be an int64 or int32 tensor, got {type(keys).__name__}{hint}")
    keys = as_int64(keys)
    if keys.dtype != torch.int64:
        raise TypeError(f"keys must be int64 or int32, got {keys.dtype}")
    return keys


def key_array(keys: Tensor, *, may_be_on_device: bool) -> Int64s:
    """Checked keys of any shape as a contiguous array `[n]` on the host. Raises ValueError on another device."""
    keys = checked_keys(keys)
    if not keys.is_cpu:
        if not may_be_on_device or not keys.is_cuda:
            raise ValueError(f"keys must be on cpu, where the table's index is, got {keys.device}")
        keys = keys.cpu()
    flat: Int64s = keys.numpy().reshape(-1)
    return flat if flat.flags.c_contiguous else np.ascontiguousarray(flat)


def field_keys(ids: Tensor, field: int | None = None, *, field_bits: int = 8) -> Tensor:
    """Keys that hold a field's number in their top bits and an id in the others: one table then serves all fields.

    The same id gets another row in each field, and `fallback`, `field_counts` and `FieldTables` know the fields. The
    keys of click logs have this form, with 8 `field_bits`.

    Args:
        ids: int64 or int32, of any shape. Only the low 64 - `field_bits` bits count.
        field: The number of the field that all ids belong to, in [0, 2**`field_bits`). None: the ids are
            `[..., fields]`, and the last dimension's index is the number.
        field_bits: How many high bits of a key hold the field, 1 to 16: those of the table.

    Returns:
        int64, shaped as `ids`.

    Raises:
        TypeError: `ids` of another dtype.
        ValueError: A field, or more fields, than `field_bits` can hold, or ids without a dimension and no `field`.

    Examples:
        >>> import torch
        >>> from sparsegroup import HashEmbedding, field_keys
        >>> table = HashEmbedding(4, field_bits=8)
        >>> ids = torch.tensor([[7, 7, 9], [7, 8, 9]])  # [batch, fields]
        >>> table(field_keys(ids)).shape, {field: count.rows for field, count in table.field_counts().items()}
        (torch.Size([2, 3, 4]), {0: 1, 1: 2, 2: 1})
        >>> torch.equal(field_keys(ids[:, 2], 2), field_keys(ids)[:, 2])
        True
    """
    check_int("field_bits", field_bits, 1, 16)
    ids, shift, most = checked_keys(ids), 64 - field_bits, 1 << field_bits
    if field is not None:
        check_int(f"field (field_bits={field_bits})", field, 0, most - 1)
        top: Tensor | int = (field if 2 * field < most else field - most) << shift  # in two's complement
    else:
        if not ids.ndim or ids.shape[-1] > most:
            raise ValueError(
                f"ids must be [..., fields] with at most {most:,} fields for field_bits={field_bits}, got shape "
                f"{list(ids.shape)}; or give the field of all of them"
            )
        top = torch.arange(ids.shape[-1], dtype=torch.int64, device=ids.device) << shift
    return ids & (1 << shift) - 1 | top


class TableLock:
    """Lock of a table, and a job for the thread that takes the lock next. `with lock.at_rest():` takes the lock.

    No process is forked while another thread holds the lock, or while a job waits.

    Attributes:
        mutex: The lock without the job. No signal leaves the mutex locked, because `with` acquires and releases in C.
    """

    def __init__(self) -> None:
        self.mutex: Any = threading.RLock()
        self._job: Callable[[], None] | None = None
        self._process = os.getpid()
        with _forking:
            _all.add(self)

    def at_rest(self) -> AbstractContextManager[bool]:
        """Return the lock for a `with` statement, after the scheduled job.

        A job that is scheduled from now on waits for the end of the statement.
        """
        if self._job is not None and not self.mutex._is_owned():
            self.run_scheduled()
        mutex: AbstractContextManager[bool] = self.mutex
        return mutex

    def schedule(self, job: Callable[[], None]) -> None:
        """Have `job`, which must not raise, run by the thread that takes the lock next; an earlier one runs now."""
        with self.mutex:
            self.run_scheduled()
            self._job = job

    def run_scheduled(self) -> None:
        """Run the job if no thread has run it yet, else wait for it."""
        with self.mutex:
            job, self._job = self._job, None
            if job is not None:
                job()

    def check_process(self, what: str) -> None:
        """Raise RuntimeError in a process other than the table's."""
        if os.getpid() != self._process:
            raise RuntimeError(
                f"a forked process cannot {what}: its copy of the table would part from the parent's unnoticed. "
                "Look keys up in the main process, or in its threads"
            )

    def check_inserts(self) -> None:
        """Raise RuntimeError in a process whose insertions would be lost: a forked one, or a DataLoader's worker."""
        if (worker := get_worker_info()) is not None:
            raise RuntimeError(
                f"worker {worker.id} of a DataLoader cannot insert keys: its table is a copy, and what it inserts "
                "never reaches the main process. Have the workers give the keys, and look them up in the main process; "
                "or look up in evaluation mode, table.eval(), which inserts nothing"
            )
        self.check_process("insert keys")


_all: "WeakSet[TableLock]" = WeakSet()
_held: list[ExitStack] = []
"""Locks that the forking thread holds."""
_forking = threading.RLock()
"""Held by the thread that forks, and by one that makes a table: the fork would not know of that."""


def _every_lock() -> Iterator[Any]:
    yield _forking
    yield from [lock.mutex for lock in list(_all)]


def _take_all() -> None:
    """Acquire all locks. Wait for a lock only while holding no other lock, to avoid a deadlock with other threads."""
    with ExitStack() as stack:
        stack.enter_context(signals_deferred())  # until `_release_all`
        awaited: Any = _forking
        while awaited is not None:
            with ExitStack() as taken:
                taken.enter_context(awaited)
                awaited = next((lock for lock in _every_lock() if not _take_free(lock, taken)), None)
                if awaited is None:
                    stack.enter_context(taken.pop_all())
        for lock in list(_all):
            lock.run_scheduled()
        _held.append(stack.pop_all())


def _take_free(lock: Any, taken: ExitStack) -> bool:
    """Acquire a lock unless another thread holds the lock. Return whether the lock was acquired."""
    is_free: bool = lock.acquire(blocking=False)
    if is_free:
        taken.callback(lock.release)
    return is_free


def _release_all() -> None:
    while _held:
        _held.pop().close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_take_all, after_in_parent=_release_all, after_in_child=_release_all)


_STARTS_AT_A_TIME = 1 << 21
"""Rows whose initial weights are computed at a time."""


def is_recomputation() -> bool:
    """Return whether a backward pass is running, in which activation checkpointing computes a forward again."""
    return bool(torch._C._current_graph_task_id() != -1)


def pays_ahead(count: int) -> bool:
    """Return whether it pays to let another thread find this many keys ahead of their lookup."""
    return count >= GRAIN and threads.get_num_threads() > 1


class RowLookup:
    """Looks keys up in a table's content. Called by one thread at a time.

    `on_used` is called with the used rows, negative for keys without a row. At most `scratch_bytes` of working memory
    remain for the next lookup. `keeps_distinct`: results know the distinct keys.
    """

    def __init__(
        self,
        content: TableContent,
        starts: RowStarts,
        on_used: Callable[[Int64s], None],
        limit: RowLimit | None = None,
        *,
        scratch_bytes: int,
        keeps_distinct: bool,
    ) -> None:
        self._keeps_distinct = keeps_distinct
        self._content, self._starts = content, starts
        self._on_used, self._limit = on_used, limit
        self._scratch_bytes = scratch_bytes
        self._scratch = kernels.Scratch(0, starts.dim, starts.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of working memory that is kept for the next lookup."""
        return self._scratch.nbytes

    def look_up(
        self,
        keys: Int64s,
        admission: AdmissionPolicy | None,
        ahead: KeySearch | None = None,
        bags: BagPooling | None = None,
        *,
        is_distinct: bool = False,
        is_counted: bool = False,
    ) -> tuple[Tensor, LookupInfo]:
        """Look `keys` up; a key without a row gets one if `admission` admits it. None: nothing is inserted.

        For rows on the host: with `bags`, the result has their pools, and no vector for each key is made; with
        `is_distinct`, it has the vectors of the distinct keys.

        `ahead` is the same search, made ahead of time; if it is stale, the keys are looked up again. `is_counted`: the
        same lookup has been counted already. Raises RuntimeError if `max_rows` would be exceeded, and MemoryError if
        the system has no more; nothing has changed then.
        """
        if ahead is not None and self._is_current(ahead, admission):
            ahead.is_distinct = is_distinct
            return self.fetch(ahead, bags)
        # The kernel that finds rows also fetches, except for rows on a device and distinct keys of unknown number.
        out = None if is_distinct else self._new_vectors(len(keys) if bags is None else bags.num_bags)
        search = self._find_or_insert(keys, admission, out, bags, is_counted=is_counted or ahead is not None)
        search.stale, search.is_distinct = ahead, is_distinct
        return self.fetch(search, bags) if out is None else (out, search.info(bags))

    def search(self, keys: Int64s, admission: AdmissionPolicy | None) -> KeySearch:
        """Do the first half of `look_up` ahead of time.

        On several threads for rows on a device, else in this thread only: the others compute.
        """
        search = self._find_or_insert(keys, admission, None, alone=not self._content.storage.is_on_device)
        search.num_rows = self._content.directory.num_rows
        self._content.storage.prepare(search)
        return search

    def _is_current(self, ahead: KeySearch, admission: AdmissionPolicy | None) -> bool:
        directory = self._content.directory
        may_be_there = ahead.absent and admission is None and ahead.num_rows != directory.num_rows
        return ahead.numbering is directory.numbering and not may_be_there

    def fetch(self, search: KeySearch, bags: BagPooling | None = None) -> tuple[Tensor, LookupInfo]:
        """Fetch the vectors of a search whose rows still have their numbers; see `look_up`."""
        distinct, vectors = len(search.rows), self._scratch.vectors
        out = self._new_vectors(distinct if search.is_distinct else len(search.keys) if bags is None else bags.num_bags)
        if out is None:
            return self._content.storage.fetch(search)
        if search.is_distinct:
            vectors = array_of(out)
        elif distinct > len(vectors):
            vectors = np.empty((distinct, self._starts.dim), vectors.dtype)
        self._run(search.keys, search.inverse, np.array([distinct]), search.rows, vectors, out, bags, finds=False)
        return out, search.info(bags)

    def _new_vectors(self, count: int) -> Tensor | None:
        """Memory for some vectors; None for rows that are not on the host."""
        if self._content.storage.is_on_device:
            return None
        try:
            return torch.empty(count, self._starts.dim, dtype=TORCH_DTYPES[self._starts.dtype], device="cpu")
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
        bags: BagPooling | None,
        *,
        finds: bool,
        alone: bool = False,
    ) -> int:
        """Run the lookup's kernel, which fetches into `out` unless that is None. Return the number of absent keys."""
        index = self._content.directory.index
        target = 0 if out is None or vectors.ctypes.data == out.data_ptr() else out.data_ptr()
        return threads.share(
            kernels.look_up_kernel,
            finds,
            out is not None,
            keys,
            (inverse, count, rows.data_ptr()),
            self._scratch.arrays,
            (index.state, index.pages),
            self._content.storage.for_lookup,
            (vectors, target, *(bags or NOT_POOLED)),
            alone=alone or len(keys) < GRAIN,
        )

    def _find_or_insert(
        self,
        keys: Int64s,
        admission: AdmissionPolicy | None,
        out: Tensor | None,
        bags: BagPooling | None = None,
        *,
        alone: bool = False,
        is_counted: bool = False,
    ) -> KeySearch:
        """Find the rows of keys, insert the admitted keys, and fetch the vectors, or their pools, into `out`."""
        n, directory = len(keys), self._content.directory
        if self._scratch.size < n:
            self._scratch = kernels.Scratch(n, self._starts.dim, self._starts.dtype)
        scratch = self._scratch
        try:
            inverse, rows = np.empty(n, np.int32), torch.empty(n, dtype=torch.int64, device="cpu")
            count = np.array([int(scratch.share * n) + 1])
            absent = self._run(keys, inverse, count, rows, scratch.vectors, out, bags, finds=True, alone=alone)
            distinct = count.item()
            scratch.share = distinct / max(n, 1)
            search = KeySearch(keys, inverse, rows.resize_(distinct), absent, directory.numbering)
            if self._keeps_distinct:
                search.distinct = scratch.distinct[:distinct].copy()
            if absent and admission is not None:
                self._insert(search, admission, is_counted=is_counted)
                if out is not None and search.absent < absent:  # the kernel has given zeros to the keys now inserted
                    kernels.expand_into(inverse, scratch.vectors, out, bags)
        finally:
            if scratch.nbytes > self._scratch_bytes:
                self._scratch = kernels.Scratch(0, self._starts.dim, self._starts.dtype)
        uses = directory.uses
        if uses is not None and not (admission is None or is_counted or admission is SET_KEYS):
            uses.mark(search.row_array)
            self._on_used(search.row_array)
        return search

    def append(self, keys: Int64s, decision: Admission, write: Callable[[Int64s], None]) -> None:
        """Append a row for each of the distinct `keys`, which have no rows. `write(numbers)` writes the weights.

        All memory is allocated and all rows are written before one kernel inserts the keys.
        """
        directory = self._content.directory
        first = directory.num_rows
        numbers = np.arange(first, first + len(keys))
        directory.begin(len(keys))
        self._content.storage.rows.begin(first, first + len(keys))
        write(numbers)
        self._content.storage.forget_live()
        directory.index.insert(keys, numbers)
        directory.note(decision)

    def write_starts(self, numbers: Int64s, keys: Int64s) -> None:
        """Write the initial weights of `keys` into the rows of these numbers."""
        for first in range(0, len(keys), _STARTS_AT_A_TIME):
            some = slice(first, first + _STARTS_AT_A_TIME)
            self._content.storage.rows.write(WEIGHT, numbers[some], self._starts.of(keys[some]))

    def _room_for(self, admission: AdmissionPolicy) -> int | None:
        """Return the number of new rows for which there is room; None if it is not limited, or has been checked."""
        if self._limit is None or admission is SET_KEYS:
            return None
        return max(0, self._limit.most_rows(self._content.storage.rows) - self._content.directory.num_rows)

    def _insert(self, search: KeySearch, admission: AdmissionPolicy, *, is_counted: bool) -> None:
        """Give rows to the search's keys that have none and are admitted."""
        rows, directory = search.row_array, self._content.directory
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
        index, before = self._content.directory.index, self._content.directory.num_rows
        self._content.directory.begin(count)
        space = self._content.storage.new_rows(before, count)
        new = *np.empty((2, count), np.int64), np.empty(count * starts.dim, starts.dtype)
        while (inserted := index.num_keys - before) < count:
            insert = partial(
                kernels.insert_rows,
                (scratch.distinct[places], scratch.hashes[places], some),
                (index.state, index.pages),
                tuple(space),
                before + inserted,
                starts.kernel_arguments,
                vectors,
                new,
            )
            self._content.storage.change(insert)
            if index.num_keys < before + count:
                index.extend()
        if not isinstance(places, slice):
            rows[places], scratch.vectors[places] = some, vectors
        search.absent -= count
        search.first_new = before
