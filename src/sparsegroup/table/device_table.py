"""The table with its rows in a GPU's memory: index and new rows on the host, vectors and the step on the device."""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.kernels.gpu import launch_rows
from sparsegroup.kernels.gpu.gpu_backend import is_ready
from sparsegroup.kernels.gpu.transfer import Transfer
from sparsegroup.kernels.gpu.watch import Watch
from sparsegroup.kernels.numbers import Numbers, as_stored
from sparsegroup.kernels.settings import Settings
from sparsegroup.kernels.views import array_of
from sparsegroup.optim.stored import Claim
from sparsegroup.rules import Rule
from sparsegroup.table import batch
from sparsegroup.table.device_rows import DeviceRows
from sparsegroup.table.host_rows import HostRows
from sparsegroup.table.index import ABSENT
from sparsegroup.table.key_search import KeySearch, LookAhead, RowSpace
from sparsegroup.table.table import CHUNK, Table
from sparsegroup.table.table_config import TableConfig

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[Any]


@dataclass(frozen=True)
class DeviceLocated:
    """Where the keys of one lookup are.

    Attributes:
        runs: The keys' rows on the device, `ABSENT` for a key without one; sorted by row, if a step may want them.
        rows: `[distinct]` int64 on the host.
        generation: Of the table: a `shrink` renumbers the rows.
        has_absent: Whether some key has no row.
    """

    runs: launch_rows.Runs
    rows: Int64s
    generation: int
    has_absent: bool


class DeviceTable(Table):
    """Keys on the host, and their rows, with the optimizer's state in them, on a device.

    New rows get their start on the host, as in any table, and wait there until something is done on the device: so
    that another thread may look ahead, and insert, without the device.

    Args:
        config: See `HashEmbedding`.
    """

    def __init__(self, config: TableConfig) -> None:
        self._waiting: list[tuple[int, Floats]] = []
        self._transfer = Transfer(config.device)
        self._watch = Watch(config.device)
        self._recent: deque[DeviceLocated] = deque(maxlen=8)
        self._skipped_before = 0
        super().__init__(config)

    def _no_rows(self) -> HostRows:
        config = self.config
        # A HostRows in all that a table asks of it.
        return cast(HostRows, DeviceRows(config.dim, config.weight_dtype, config.device, {}))

    @property
    def rows(self) -> Any:
        """The rows, with those that have been waiting for it."""
        while self._waiting:
            first, starts = self._waiting[0]
            self._rows.reserve(first + len(starts))
            (values,) = self._transfer.send(starts)
            self._rows.set_weights(torch.arange(first, first + len(starts), device=self.device), values)
            self._waiting.pop(0)
        return self._rows

    @rows.setter
    def rows(self, rows: Any) -> None:
        self._waiting.clear()
        self._rows: DeviceRows = rows

    @property
    def num_live(self) -> int:
        """Rows that are not zero; waits for the device."""
        with self.lock, self.pending:
            return self._num_live + self._watch.now()[0]

    def _set_live(self, count: int) -> None:
        self._watch.clear(0)
        self._num_live = count

    @property
    def skipped_rows(self) -> int:
        """See `HashEmbedding`; waits for the device."""
        return self._skipped_before + self._watch.now()[1]

    @skipped_rows.setter
    def skipped_rows(self, count: int) -> None:
        self._watch.clear(1)
        self._skipped_before = count

    # Lookup

    def look_up(self, keys: Int64s, insert: bool) -> tuple[DeviceLocated, Tensor]:  # type: ignore[override]
        """Where `keys` `[n]` are, and their vectors `[n, dim]` on the device; with `insert`, a new key gets a row.

        Raises:
            RuntimeError, MemoryError: As `Table.look_up`.
        """
        with self.lock, self.pending:
            if insert:
                self._check_process("insert keys")
            if len(keys) <= CHUNK:
                places = self._find(keys, insert)
                return self._fetch(array_of(places.rows)[: int(places.count[0])], places.inverse)
            distinct, inverse = batch.distinct_of_many(keys)
            if insert:
                self._check_room(int((self.index.find(distinct) == ABSENT).sum()))
            chunks = [self._find(distinct[i : i + CHUNK], insert) for i in range(0, len(distinct), CHUNK)]
            return self._fetch(np.concatenate([array_of(places.rows) for places in chunks]), inverse)

    def _find(self, keys: Int64s, insert: bool) -> KeySearch:
        places = KeySearch(keys)
        absent = self._share(places, None, finds=True)
        if absent and insert:
            self._insert(places, absent)
        return places

    def _fetch(self, rows: Int64s, inverse: Int32s) -> tuple[DeviceLocated, Tensor]:
        """The vectors of distinct `rows`, one for each of `inverse`."""
        of_keys = rows[inverse]
        if torch.is_grad_enabled():
            order, starts = np.empty(len(inverse), np.int32), np.empty(len(rows) + 1, np.int32)
            batch.sort_runs(inverse, order, starts)
            sent, *sorted_ones = self._transfer.send(of_keys, order, starts)
            runs = launch_rows.Runs(sent, sorted_ones[0], sorted_ones[1], len(rows))
        else:
            runs = launch_rows.Runs(self._transfer.send(of_keys)[0], None, None, len(of_keys))
        located = DeviceLocated(runs, rows.copy(), self.generation, bool((rows == ABSENT).any()))
        vectors: Tensor = self.rows.gather(runs.rows)
        return located, vectors

    def fetch(self, ahead: LookAhead) -> tuple[DeviceLocated, Tensor]:  # type: ignore[override]
        """What `look_up` gives, of keys that have been looked up ahead."""
        with self.lock, self.pending:
            located = ahead.located
            if located is None or located.has_absent or located.generation != self.generation:
                return self.look_up(ahead.places.keys, ahead.insert)
            if ahead.insert:
                self._check_process("insert keys")
            return self._fetch(located.rows, located.inverse)

    def _rows_in_memory(self) -> tuple[int, int, int]:
        return _NOWHERE.ctypes.data, 62, 0  # so that the kernel, which would ask for the rows, asks for nothing

    def _reserve(self, first: int, count: int) -> RowSpace:
        starts = np.empty((count, self.dim), self.config.dtype)
        self._waiting.append((first, starts))
        row_bytes = self.dim * starts.itemsize
        return RowSpace(np.array([starts.ctypes.data - first * row_bytes]), 62, row_bytes, ())

    # What an optimizer does

    @property
    def sums_and_guards(self) -> bool:
        """The step's kernel adds up, and leaves out what is not finite."""
        return True

    @property
    def keeps_rounding(self) -> bool:
        """Whether weights are rounded when they are stored."""
        return self.weight_dtype != torch.float32

    def know_distinct(self, located: Any) -> None:
        """Remember a lookup, whose rows its gradient will bring back."""
        self._recent.append(located)

    def check(self) -> None:
        """Raise what a step before has reported by now.

        Raises:
            FloatingPointError: Rows had a gradient that is not finite, and are not to be skipped.
        """
        counts = None if self.skips_nonfinite else self._watch.arrived()
        if counts is not None and counts[1]:
            self._watch.clear(1)
            row = np.array([counts[2]])
            which = self.describe(row) if counts[2] < self.num_rows else "a key that is gone"
            raise FloatingPointError(
                f"the gradient of {counts[1]:,} rows of a HashEmbedding was not finite in a step before, that of "
                f"{which} for one; these rows have been left as they were, the others have been updated"
            )

    def check_rule(self, rule: Rule, carries_u: bool) -> None:
        """Raise RuntimeError if `rule` cannot be compiled."""
        if not is_ready(rule):
            raise RuntimeError(f"a HashEmbedding needs a rule that can be compiled, {rule.name!r} cannot")

    def lay_out(self, claim: Claim, initial: Mapping[str, float], state_dtype: torch.dtype | None) -> None:
        """As `Table.lay_out`, with the parts in `state_dtype`: float32 (None) or bfloat16."""
        with self.lock, self.pending:
            wanted = state_dtype or torch.float32
            if self.rows.state_dtype != wanted:
                self.changes = None
                self.rows = self.rows.relaid(self.rows.initial, self.num_rows, wanted)
            super().lay_out(claim, initial, None)

    def step(self, rule: Rule, rows: Tensor, gradients: Sequence[Tensor], numbers: Numbers, settings: Settings) -> None:
        """The optimizer's step.

        Args:
            rule: The base optimizer.
            rows: `[n]` int64 on the device; distinct for a second-order rule.
            gradients: `[n, dim]` each: the gradient, and the Hessian's diagonal for a second-order rule.
            numbers: What depends on the step.
            settings: λ and what else the step needs.
        """
        with self.lock, self.pending:
            self._check_process("train the table")
            if not len(rows):
                return
            g, *rest = (gradient.contiguous() for gradient in gradients)
            hessian = rest[0] if rest else None
            runs, on_host = self._runs_of(rows.contiguous(), hessian is not None)
            if self.changes is not None:
                self.changes.mark(rows.cpu().numpy() if on_host is None else on_host)
            kept, carries_u = self.rows, "u" in self._rows.initial
            initial = tuple(as_stored(value, kept.state_dtype) for value in settings.initial)
            launch_rows.advance_table(
                rule,
                carries_u,
                kept.layout(),
                self.num_rows,
                g,
                hessian,
                runs,
                self._watch.counters,
                replace(settings, initial=initial),
                numbers,
            )
            self._watch.send()

    def _runs_of(self, rows: Tensor, distinct: bool) -> tuple[launch_rows.Runs, Int64s | None]:
        """How the lines of a gradient go together, and their rows on the host where these are known."""
        if distinct:
            return launch_rows.Runs(rows, None, None, len(rows)), None
        for known in reversed(self._recent):
            mine = known.runs.rows
            if mine.data_ptr() == rows.data_ptr() and len(mine) == len(rows) and known.runs.order is not None:
                return replace(known.runs, rows=rows), known.rows
        return launch_rows.runs_of(rows), None


_NOWHERE = np.zeros(1, np.int64)
