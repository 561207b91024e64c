"""The table without autograd: index and rows, what has been seen, and what an optimizer may do to it."""

import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.kernels.cpu import compiled_step, threads
from sparsegroup.kernels.numbers import Numbers
from sparsegroup.kernels.settings import Settings
from sparsegroup.kernels.views import TORCH_DTYPES, array_of
from sparsegroup.optim.stored import Claim
from sparsegroup.rules import Rule
from sparsegroup.table import batch
from sparsegroup.table.changes import Changes
from sparsegroup.table.host_rows import WEIGHT, HostRows
from sparsegroup.table.index import ABSENT, Index
from sparsegroup.table.key_search import KeySearch, LookAhead, RowSpace
from sparsegroup.table.pending import Pending, free_at_fork
from sparsegroup.table.row_locations import RowLocations
from sparsegroup.table.row_start import INITS, mixed_seed, start_rows
from sparsegroup.table.table_config import TableConfig
from sparsegroup.table.table_report import FieldCount, TableMemory, count_fields, memory_of

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[Any]

CHUNK = 1 << 18
"""Keys that are looked up at a time: an index that must grow does so between them."""

_GRAIN = 1 << 12
"""Keys, some tens of microseconds of work, below which waking a thread costs more than it does."""


class Table:
    """Keys, their rows, and the optimizer's state in them. All methods may be called from any thread.

    Args:
        config: See `HashEmbedding`.

    Attributes:
        index: Key → row.
        rows: The rows.
        dropped: Keys that `shrink` has dropped, ascending as uint64.
        changes: What has changed since a checkpoint; None where nobody asks, or all has.
        claim: Of the optimizer whose state is in the rows.
        generation: How often the rows have been renumbered.
        skipped_rows: See `HashEmbedding`.
    """

    def __init__(self, config: TableConfig) -> None:
        self.config = config
        self.lock = threading.RLock()
        self.pending = Pending()
        self.generation = 0
        self.skipped_rows = 0
        self.claim: Claim | None = None
        self._distinct: deque[RowLocations] = deque(maxlen=8)
        self._process = os.getpid()
        self._seed = mixed_seed(config.seed)
        self._scratch = batch.Scratch(0, config.dim, config.dtype)
        self.changes: Changes | None = None
        self.index = Index(self.config.huge_pages)
        self.rows = self._no_rows()
        self.dropped: npt.NDArray[np.uint64] = np.zeros(0, np.uint64)
        self._num_seen = 0
        self._num_live = 0
        free_at_fork(self)

    def _no_rows(self) -> HostRows:
        return HostRows(self.config.dim, self.config.dtype, self.config.huge_pages, {})

    @property
    def num_rows(self) -> int:
        """Rows, live or not."""
        with self.lock, self.pending:
            return self.index.num_keys

    @property
    def num_live(self) -> int:
        """Rows that are not zero."""
        with self.lock, self.pending:
            return self._num_live

    @property
    def num_seen(self) -> int:
        """Distinct keys that have ever been inserted."""
        with self.lock, self.pending:
            return self._num_seen

    # Lookup

    def look_up(self, keys: Int64s, insert: bool) -> tuple[RowLocations, Tensor]:
        """Where `keys` `[n]` are, and their vectors `[n, dim]`; with `insert`, a new key gets a row.

        Raises:
            RuntimeError: `max_rows` would be exceeded, or the table belongs to a parent process; nothing has changed.
            MemoryError: The system has no more; nothing has changed.
        """
        with self.lock, self.pending:
            if insert:
                self._check_process("insert keys")
            if len(keys) <= CHUNK:
                return self._look_up(keys, insert)
            return self._look_up_many(keys, insert)

    def _look_up(self, keys: Int64s, insert: bool) -> tuple[RowLocations, Tensor]:
        places, out = KeySearch(keys), self._empty(len(keys))
        absent = self._share(places, out, finds=True)
        if absent and insert:
            self._insert(places, absent)
            batch.expand(places.inverse, self._scratch.vectors, array_of(out))
        return places.located(self.generation, bool(absent) and not insert), out

    def _empty(self, n: int) -> Tensor:
        try:
            return torch.empty(n, self.config.dim, dtype=TORCH_DTYPES[self.config.dtype])
        except RuntimeError as error:  # as torch says that there is no memory
            raise MemoryError(str(error)) from error

    def _share(self, places: KeySearch, out: Tensor | None, *, finds: bool, alone: bool = False) -> int:
        """Find the rows, or fetch the vectors into `out`, or both; the number of distinct keys without a row."""
        n, index = len(places.keys), self.index
        if len(self._scratch.distinct) < n:
            self._scratch = batch.Scratch(n, self.config.dim, self.config.dtype)
        scratch = self._scratch
        return threads.share(
            batch.look_up,
            finds,
            out is not None,
            places.keys,
            scratch.seen,
            scratch.distinct,
            scratch.hashes,
            places.inverse,
            places.count,
            array_of(places.rows),
            index.state,
            index.pages,
            *self._rows_in_memory(),
            scratch.vectors,
            scratch.vectors if out is None else array_of(out),
            self.config.dtype.type(0),
            alone=alone or n < _GRAIN,
        )

    def _rows_in_memory(self) -> tuple[int, int, int]:
        """For the lookup's kernel: address of the pages' addresses, log2 of the rows of a page, bytes of a row."""
        return self.rows.pages.addresses.ctypes.data, self.rows.shift, self.rows.row_bytes

    def _look_up_many(self, keys: Int64s, insert: bool) -> tuple[RowLocations, Tensor]:
        distinct, inverse = batch.distinct_of_many(keys)
        if insert:
            new = int((self.index.find(distinct) == ABSENT).sum())
            self._check_room(new)
        chunks = [distinct[i : i + CHUNK] for i in range(0, len(distinct), CHUNK)]
        located, vectors = zip(*(self._look_up(chunk, insert) for chunk in chunks), strict=True)
        rows = torch.cat([part.rows_tensor for part in located])
        has_absent = any(part.has_absent for part in located)
        everything = RowLocations(rows, inverse, self.generation, has_absent)
        return everything, batch.expanded(everything.inverse, torch.cat(vectors))

    def look_ahead(self, keys: Int64s, insert: bool) -> LookAhead | None:
        """Let another thread find `keys` for a lookup to come, if there is one; with `insert`, a new key gets a row.

        Whoever looks at the table meanwhile finds that done. Nothing is done for so few keys that it would not pay, or
        more than are looked up at a time.
        """
        if not _GRAIN <= len(keys) <= CHUNK or threads.get_num_threads() == 1:
            return None
        if insert:
            self._check_process("insert keys")
        ahead = LookAhead(KeySearch(keys.copy()), insert)
        with self.lock, self.pending:
            self.pending.job = partial(self._locate, ahead)
        threads.submit(self._do_pending)
        return ahead

    def _do_pending(self) -> None:
        with self.lock, self.pending:
            pass

    def _locate(self, ahead: LookAhead) -> None:
        with suppress(Exception):  # which the lookup itself runs into, if it still holds
            absent = self._share(ahead.places, None, finds=True, alone=True)
            if absent and ahead.insert:
                self._insert(ahead.places, absent)
            ahead.located = ahead.places.located(self.generation, bool(absent) and not ahead.insert)

    def fetch(self, ahead: LookAhead) -> tuple[RowLocations, Tensor]:
        """What `look_up` gives, of keys that have been looked up ahead.

        Raises:
            RuntimeError, MemoryError: As `look_up`.
        """
        with self.lock, self.pending:
            if ahead.insert:
                self._check_process("insert keys")
            located = ahead.located
            if located is None or located.has_absent or located.generation != self.generation:
                return self._look_up(ahead.places.keys, ahead.insert)
            out = self._empty(len(ahead.places.keys))
            self._share(ahead.places, out, finds=False)
            return located, out

    def _insert(self, places: KeySearch, absent: int) -> None:
        """Give rows to the `absent` keys that have none, and put their vectors with the others."""
        found = int(places.count[0])
        rows, scratch = array_of(places.rows)[:found], self._scratch
        distinct, hashes = scratch.distinct[:found], scratch.hashes[:found]
        before, index = self.num_rows, self.index
        self._check_room(absent)
        index.reserve(before + absent)
        space = self._reserve(before, absent)
        while (inserted := index.num_keys - before) < absent:
            self._num_live += batch.insert_rows(
                distinct,
                hashes,
                rows,
                index.state,
                index.pages,
                space.addresses,
                space.shift,
                space.row_bytes,
                before + inserted,
                self._seed,
                INITS.index(self.config.init),
                self.config.std,
                np.array([0.0, *space.initial], self.config.dtype),
                scratch.vectors,
            )
            if index.num_keys < before + absent:
                index.extend()
        index.settle(absent)
        self._num_seen += absent
        if len(self.dropped):
            self._num_seen -= int(self._was_dropped(distinct[rows >= before]).sum())

    def _reserve(self, first: int, count: int) -> RowSpace:
        """Memory for `count` new rows from `first` on."""
        rows = self.rows
        rows.reserve(first + count)
        return RowSpace(rows.pages.addresses, rows.shift, rows.row_bytes, tuple(rows.initial.values()))

    def _check_room(self, new: int) -> None:
        if self.num_rows + new > self.config.max_rows:
            raise RuntimeError(
                f"the table is full: max_rows={self.config.max_rows:,}, it has {self.num_rows:,} rows and this lookup "
                f"brings {new:,} new keys; none was inserted"
            )

    def _check_process(self, what: str) -> None:
        if os.getpid() != self._process:
            raise RuntimeError(
                f"a forked process cannot {what}: its copy of the table would part from the parent's unnoticed. "
                "Look keys up in the main process, or in its threads"
            )

    def _was_dropped(self, keys: Int64s) -> npt.NDArray[np.bool_]:
        values = keys.view(np.uint64)
        at = np.minimum(np.searchsorted(self.dropped, values), len(self.dropped) - 1)
        found: npt.NDArray[np.bool_] = self.dropped[at] == values
        return found

    def check_generation(self, located: RowLocations) -> None:
        """Raise RuntimeError if the table's rows have been renumbered since."""
        if located.generation != self.generation:
            raise RuntimeError(
                "the table has been shrunk or loaded since this lookup, whose rows are no longer where they were; "
                "call shrink() between a step and the next forward"
            )

    def start(self, keys: Int64s) -> Floats:
        """The vectors that rows of `keys` start from, `[n, dim]`."""
        out = np.empty((len(keys), self.config.dim), self.config.dtype)
        start_rows(keys, self._seed, INITS.index(self.config.init), self.config.std, out)
        return out

    # What an optimizer does

    def lay_out(self, claim: Claim, initial: Mapping[str, float], state_dtype: torch.dtype | None) -> None:
        """Give the rows the parts `initial` beside their weights; parts that they have already are kept.

        Another optimizer's claim ends, and with it the state that it kept in the rows.

        Raises:
            ValueError: `state_dtype` is not the weights'.
        """
        if state_dtype not in (None, self.weight_dtype):
            raise ValueError(
                f"state_dtype={state_dtype} needs a HashEmbedding on a GPU; on the CPU its state is {self.weight_dtype}"
            )
        with self.lock, self.pending:
            if self.claim is not claim:
                self.changes = None
                self.rows = self.rows.relaid({}, self.num_rows)
                self.claim = claim
            if tuple(self.rows.initial) != tuple(initial):
                self.changes = None
                self.rows = self.rows.relaid(initial, self.num_rows)
            self.rows.set_initial(initial, self.num_rows)

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self.config.dim

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the vectors."""
        return self.config.dtype

    @property
    def weight_dtype(self) -> torch.dtype:
        """Of the vectors, as torch names it."""
        return self.config.weight_dtype

    @property
    def device(self) -> torch.device:
        """Where the vectors are."""
        return self.config.device

    @property
    def sums_and_guards(self) -> bool:
        """A step wants distinct rows and finite gradients."""
        return False

    @property
    def keeps_rounding(self) -> bool:
        """The weights are as precise as the arithmetic."""
        return False

    @property
    def skips_nonfinite(self) -> bool:
        """Whether a step leaves out rows with a non-finite gradient instead of raising."""
        return self.config.skips_nonfinite

    def know_distinct(self, located: RowLocations) -> None:
        """Remember that the rows of a lookup, which its gradient will bring back, are distinct."""
        self._distinct.append(located)

    def are_distinct(self, rows: Tensor) -> bool:
        """Whether `rows` is the very memory of a recent lookup's rows."""
        address, count = rows.data_ptr(), len(rows)
        return any(
            known.rows_tensor.data_ptr() == address and len(known.rows_tensor) == count
            for known in reversed(self._distinct)
        )

    def describe(self, rows: Int64s) -> str:
        """The keys of some rows, the first few of many."""
        keys = self.keys()[rows[:5]].tolist()
        more = f" and {len(rows) - 5:,} more" if len(rows) > 5 else ""
        return f"key{'s' if len(rows) > 1 else ''} {', '.join(map(str, keys))}{more}"

    @property
    def state_names(self) -> tuple[str, ...]:
        """The parts of a row beside its weights."""
        return tuple(self.rows.initial)

    def check(self) -> None:
        """Nothing is left to be reported: a step on the host has raised before it changed anything."""

    def check_rule(self, rule: Rule, carries_u: bool) -> None:
        """Raise RuntimeError if `rule` cannot be compiled."""
        if not compiled_step.is_ready(rule, carries_u, self.config.dtype):
            raise RuntimeError(f"a HashEmbedding needs a rule that can be compiled, {rule.name!r} cannot")

    def step(self, rule: Rule, rows: Tensor, gradients: Sequence[Tensor], numbers: Numbers, settings: Settings) -> None:
        """The optimizer's step over distinct `rows` `[n]`.

        Args:
            rule: The base optimizer.
            rows: int64, distinct.
            gradients: `[n, dim]` each: the gradient, and the Hessian's diagonal for a second-order rule.
            numbers: What depends on the step.
            settings: λ and what else the step needs.
        """
        with self.lock:  # rows that a pending lookup may add are none of these
            self._check_process("train the table")
            if not len(rows):
                return
            carries_u = "u" in self.rows.initial
            parts = (WEIGHT, *(("u",) if carries_u else ()), *rule.state)
            numbers_of_rows = array_of(rows.contiguous())
            if self.changes is not None:
                self.changes.mark(numbers_of_rows)
            contiguous = [gradient.contiguous() for gradient in gradients]
            addresses = [gradient.data_ptr() for gradient in contiguous] + [0]
            self._num_live += compiled_step.advance_rows(
                rule,
                carries_u,
                self.config.dtype,
                numbers_of_rows,
                compiled_step.Pages(self.rows.pages.addresses, self.rows.shift),
                self.rows.layout(parts),
                np.array([addresses[:2]], np.int64),
                self.config.dim,
                np.array([numbers.scalars], self.config.dtype),
                settings,
            )

    # Inspection and maintenance

    def find(self, keys: Int64s) -> Int64s:
        """Rows of `keys`, `ABSENT` where there is none."""
        with self.lock, self.pending:
            return self.index.find(keys)

    def write_weights(self, keys: Int64s, weights: Floats) -> None:
        """Set the vectors `[n, dim]` of distinct keys, which get a row where they have none."""
        with self.lock, self.pending:
            self.look_up(keys, insert=True)
            rows = self.index.find(keys)
            if self.changes is not None:
                self.changes.mark(rows)
            self.rows.write(WEIGHT, rows, weights)
            self._set_live(int(self.rows.live(0, self.num_rows).sum()))

    def keys(self) -> Int64s:
        """The keys of rows 0, 1, …"""
        with self.lock, self.pending:
            return self.index.keys_of_rows(0, self.num_rows)

    def scan(self, batch_size: int) -> Iterator[tuple[Int64s, Floats]]:
        """Keys and vectors of the live rows, at most `batch_size` at a time."""
        for keys, (vectors,) in self.scan_rows((WEIGHT,), max(batch_size, CHUNK)):
            live = (vectors != 0).any(axis=1)
            for first in range(0, int(live.sum()), batch_size):
                yield keys[live][first : first + batch_size], vectors[live][first : first + batch_size]

    def scan_rows(self, parts: Sequence[str], batch_size: int = CHUNK) -> Iterator[tuple[Int64s, list[Floats]]]:
        """Keys `[n]` of all rows and some of their parts, `[n, dim]` each, at most `batch_size` ≥ 4 at a time.

        Raises:
            RuntimeError: Rows came or went meanwhile.
        """
        generation, count = self.generation, self.num_rows
        batches = self.index.scan(batch_size)
        while True:
            with self.lock, self.pending:
                if (generation, count) != (self.generation, self.num_rows):
                    raise RuntimeError("rows came or went while the table was iterated over")
                keys, rows = next(batches, (None, None))
                if keys is None or rows is None:
                    return
                values = [self.rows.read(part, rows) for part in parts]
            yield keys, values

    def field_counts(self) -> dict[int, FieldCount]:
        """Counts by the field that a key's top `field_bits` bits hold, of the fields ever seen."""
        with self.lock, self.pending:
            alive = self.rows.live(0, self.num_rows)
            return count_fields(self.index, alive, self.dropped.view(np.int64), self.config.field_bits)

    def memory(self) -> TableMemory:
        """Bytes of index, rows and dropped keys."""
        with self.lock, self.pending:
            return memory_of(self.index, self.rows, self.dropped.nbytes)

    def shrink(self) -> int:
        """Drop the rows that are zero; returns how many."""
        with self.lock, self.pending:
            self._check_process("shrink the table")
            return self._keep(self.rows.live(0, self.num_rows))

    def _keep(self, kept: npt.NDArray[np.bool_]) -> int:
        """Keep the rows of the mask `[num_rows]`; the keys of the others count as dropped."""
        dropped = len(kept) - int(kept.sum())
        if not dropped:
            return 0
        keys = self.keys()
        index = Index(self.config.huge_pages)
        index.reserve(len(kept) - dropped)
        remaining = keys[kept]
        index.insert(remaining, np.arange(len(remaining)))
        gone = np.union1d(self.dropped, keys[~kept].view(np.uint64))
        if self.changes is not None:
            self.changes.keep(kept, keys[~kept])
        self.rows.compact(np.flatnonzero(kept))
        self.index, self.dropped = index, gone
        self.generation += 1
        return dropped

    def drop(self, keys: Int64s) -> None:
        """Remember `keys` as dropped, and drop the rows of those that have one."""
        with self.lock, self.pending:
            kept = np.ones(self.num_rows, np.bool_)
            rows = self.index.find(keys)
            kept[rows[rows != ABSENT]] = False
            self._keep(kept)
            self.dropped = np.union1d(self.dropped, keys.view(np.uint64))

    # State

    def note(self, *, seen: int, skipped_rows: int) -> None:
        """Set the counts that rows read from elsewhere come with, and count the live ones."""
        with self.lock, self.pending:
            self._num_seen, self.skipped_rows = seen, skipped_rows
            live = (
                int(self.rows.live(first, min(first + CHUNK, self.num_rows)).sum())
                for first in range(0, self.num_rows, CHUNK)
            )
            self._set_live(sum(live))

    def _set_live(self, count: int) -> None:
        self._num_live = count

    def become(self, other: "Table", claim: Claim | None) -> None:
        """Take over what another table of the same config holds, which is not to be used any more."""
        with self.lock, self.pending:
            self._check_process("load a table")
            self.index, self.rows, self.dropped = other.index, other.rows, other.dropped
            self._num_seen, self.skipped_rows = other.num_seen, other.skipped_rows
            self._set_live(other.num_live)
            self.changes, self.claim = None, claim
            self.generation += 1

    def export(self) -> dict[str, npt.NDArray[Any]]:
        """Keys `[n]` and every part `[n, dim]`, in the order of the rows."""
        with self.lock, self.pending:
            rows = np.arange(self.num_rows)
            return {"keys": self.keys(), **{part: self.rows.read(part, rows) for part in self.rows.parts}}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set the parts of the state from what `export` gave.

        Keys that have no row yet get one; rows of keys that are not in it start afresh.
        """
        with self.lock, self.pending:
            keys = state["keys"]
            self.changes = None
            self.look_up(keys, insert=True)
            rows = self.index.find(keys)
            for part in self.state_names:
                self.rows.fill(part, self.num_rows, self.rows.initial[part])
                if part in state:
                    self.rows.write(part, rows, state[part])

    def replace(self, keys: Int64s, weight: Floats, dropped: Int64s) -> None:
        """Have exactly the rows of `keys` with these weights; the optimizer's state of rows that were there is kept.

        Args:
            keys: `[n]`, distinct.
            weight: `[n, dim]`.
            dropped: Keys that have been seen and dropped.
        """
        with self.lock, self.pending:
            self._check_process("load a table")
            staying = np.zeros(self.num_rows, np.bool_)
            rows = self.index.find(keys)
            staying[rows[rows != ABSENT]] = True
            self._keep(staying)
            self.generation += 1
            self.changes = None
            self.dropped = np.unique(dropped.view(np.uint64))
            self.write_weights(keys, weight)
            self._num_seen = len(np.union1d(self.dropped, keys.view(np.uint64)))

    def __getstate__(self) -> dict[str, Any]:
        with self.lock, self.pending:
            return {
                "config": self.config,
                "rows": self.export(),
                "initial": self.rows.initial,
                "dropped": self.dropped,
                "num_seen": self.num_seen,
                "skipped_rows": self.skipped_rows,
                "claim": self.claim,
            }

    def __setstate__(self, state: dict[str, Any]) -> None:
        type(self).__init__(self, state["config"])
        parts = state["rows"]
        self.rows = self.rows.relaid(state["initial"], 0)
        self.replace(parts["keys"], parts[WEIGHT], state["dropped"].view(np.int64))
        rows = self.index.find(parts["keys"])
        for part in self.state_names:
            self.rows.write(part, rows, parts[part])
        self._num_seen, self.skipped_rows, self.claim = state["num_seen"], state["skipped_rows"], state["claim"]
        self.generation = 0
