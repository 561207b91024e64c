"""An optimizer's work on a table's rows: ownership of the state in them, steps, sweeps, and tracking of changes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.kernels.cpu.jit import kernel
from sparsegroup.optim.stored import RowStep, StateOwner
from sparsegroup.rules import Rule
from sparsegroup.table.config import TableConfig
from sparsegroup.table.directory.directory import Directory, RowLimit
from sparsegroup.table.lookup.autograd import info_of_gradient
from sparsegroup.table.lookup.lookup import TableLock
from sparsegroup.table.rows.rows import Floats, RowGradient, RowStorage

Int64s = npt.NDArray[np.int64]


class Changes:
    """Rows changed and keys removed since a table had `count` rows.

    Args:
        count: Rows that there were. Later ones are new.
        since: What was written then.

    Attributes:
        known: How many of those rows are left; they are still the first ones, in the same order.
    """

    def __init__(self, count: int, since: str) -> None:
        self.known = count
        self.since = since
        self._changed = np.zeros(count, np.bool_)
        self._removed: list[Int64s] = []

    def mark(self, rows: Int64s) -> None:
        """Some rows change."""
        _mark(rows, self._changed)

    def keep(self, kept: npt.NDArray[np.bool_], keys: Int64s) -> None:
        """The rows of the mask `kept` stay and are renumbered in their order.

        Args:
            kept: `[rows]`.
            keys: Those of rows that do not stay, the `known` ones among them.
        """
        before = kept[: self.known]
        self._changed = self._changed[before]
        self.known = len(self._changed)
        self._removed.append(keys)

    @property
    def removed(self) -> Int64s:
        """Keys that had a row at some time since, and lost it; some may have one again."""
        return np.unique(np.concatenate(self._removed)) if self._removed else np.zeros(0, np.int64)

    def mask(self, count: int) -> npt.NDArray[np.bool_]:
        """`[count]`, which of the rows are changed or new."""
        return np.concatenate([self._changed, np.ones(count - self.known, np.bool_)])


def _mark_rows(rows: Any, changed: Any) -> None:
    for i in range(len(rows)):
        if rows[i] < len(changed):
            changed[rows[i]] = True


_mark = kernel(_mark_rows, "the table's changes")


def _check_layout(gradient: Tensor, where: object) -> None:
    """Raise ValueError unless a table's gradient is sparse COO."""
    if gradient.layout != torch.sparse_coo:
        raise ValueError(f"the gradient of a HashEmbedding must be sparse COO, got {gradient.layout} ({where})")


@dataclass(frozen=True)
class TablePlan:
    """See `sparsegroup.optim.stored.RowPlan`.

    Attributes:
        read: The gradient as the storage will take it.
        storage: Where the rows are.
        check_finite: Raises where lines that are not finite may not be left out.
        carry_out: Takes the step.
    """

    read: RowGradient
    storage: RowStorage
    check_finite: Callable[[RowGradient], None]
    carry_out: Callable[[RowGradient, RowStep], None]

    @property
    def gradient(self) -> Tensor:
        """`[n, dim]`, a line for each row, in the order in which a Hessian's diagonal must come."""
        return self.read.values

    def with_hessian(self, diagonal: Tensor) -> "TablePlan":
        """The same with the Hessian's diagonal, shaped as `gradient`."""
        read = self.read.with_hessian(diagonal, self.storage.finite(diagonal))
        self.check_finite(read)
        return replace(self, read=read)

    def apply(self, request: RowStep) -> None:
        """Take the step."""
        self.carry_out(self.read, request)


class RowSteps:
    """Steps over the rows of a table.

    Args:
        config: The table's.
        directory: Its keys.
        storage: Its rows.
        lock: The table's.
        on_step: Called when a step has been taken.
        budget: Limits the bytes, where they are limited.
        claim: Whose state the rows hold.

    Attributes:
        claim: Whose state the rows hold; None for nobody's.
        changes: What has changed since `track` was called; None if it was not, or all has.
    """

    def __init__(
        self,
        config: TableConfig,
        directory: Directory,
        storage: RowStorage,
        lock: TableLock,
        on_step: Callable[[], None],
        budget: RowLimit | None = None,
        claim: StateOwner | None = None,
    ) -> None:
        self.claim = claim
        self._budget = budget
        self._on_step = on_step
        self.changes: Changes | None = None
        self._config, self._directory, self._storage, self._lock = config, directory, storage, lock

    def plan(
        self,
        gradient: Tensor,
        rule: Rule,
        *,
        claim: StateOwner | None,
        maximize: bool,
        wants_u: bool,
        where: object,
        state_dtype: torch.dtype | None = None,
    ) -> TablePlan:
        """See `sparsegroup.optim.stored.RowStore`."""
        if claim is not None and self.claim is not claim:
            raise RuntimeError(
                f"another optimizer has trained this HashEmbedding since, and keeps its own state in the rows "
                f"({where}); one table, one optimizer"
            )
        _check_layout(gradient, where)
        storage = self._storage
        storage.check_reports(self._described)
        storage.check_step(rule, self._carries_u(claim, wants_u), state_dtype)
        if self._budget is not None:
            parts = 1 + self._carries_u(claim, wants_u) + len(rule.state)
            self._budget.check_layout(parts, self._num_rows(), storage.rows)
        lines = info_of_gradient(gradient._indices()[0], self._directory.numbering)
        read = storage.read_gradient(gradient, lines, self._num_rows, where, sums=rule.mean_square)
        self._lock.check_process("train the table")
        self._check_finite(read)
        return TablePlan(read.negated() if maximize else read, storage, self._check_finite, self._carry_out)

    def _num_rows(self) -> int:
        with self._lock.held, self._lock:
            return self._directory.num_rows

    def _check_finite(self, read: RowGradient) -> None:
        if read.finite is not None and not self._config.skips_nonfinite:
            rows = self._described(read.rows[~read.finite].numpy())
            raise FloatingPointError(
                f"the gradient of {rows} of a HashEmbedding is not finite; nothing has been changed"
            )

    def _carry_out(self, read: RowGradient, request: RowStep) -> None:
        with self._lock.held:
            self.lay_out(request.claim, request.initial, request.wants_u, request.state_dtype)
            storage = self._storage
            self._directory.numbering.note_step(read.lines)
            if read.finite is not None:
                storage.count_skipped(storage.skipped_rows + int((~read.finite).sum()))
                read = read.finite_lines()
            if len(read.rows):
                if self.changes is not None:
                    self.changes.mark(read.rows_on_host())
                storage.step(read, request, self._num_rows)
            self._on_step()

    def lay_out(
        self, claim: StateOwner, initial: Mapping[str, float], wants_u: bool, state_dtype: torch.dtype | None
    ) -> None:
        """Give the rows u, if it is carried, and the parts `initial`; another claim's state ends."""
        parts = {**({"u": 0.0} if self._carries_u(claim, wants_u) else {}), **initial}
        with self._lock.held, self._lock:
            count = self._directory.num_rows
            if self.claim is not claim:
                self.changes = None
                self._storage.lay_out({}, count, state_dtype)
                self.claim = claim
            if self._storage.lay_out(parts, count, state_dtype):
                self.changes = None

    def _carries_u(self, claim: StateOwner | None, wants_u: bool) -> bool:
        has_u = claim is not None and self.claim is claim and "u" in self._storage.state_names
        return has_u or wants_u or self._storage.keeps_rounding

    def _described(self, rows: Int64s) -> str:
        with self._lock.held, self._lock:
            return self._directory.described(rows)

    # Without a gradient

    def survival_l21(self, request: RowStep, rows: Int64s | None) -> Floats:
        """See `sparsegroup.optim.stored.RowStore`."""
        with self._lock.held, self._lock:
            if self.claim is not request.claim:
                return np.empty(0)
            self.lay_out(request.claim, request.initial, True, request.state_dtype)
            return self._storage.survival_l21(rows, self._directory.num_rows, request)

    def sweep(self, request: RowStep, *, drops: bool) -> None:
        """See `sparsegroup.optim.stored.RowStore`."""
        with self._lock.held, self._lock:
            if self.claim is request.claim:
                self._lock.check_process("sweep the table")
                self.lay_out(request.claim, request.initial, True, request.state_dtype)
                self.mark(self._storage.sweep(self._directory.num_rows, request, drops=drops))

    # What has changed

    def track(self, since: str | None) -> None:
        """Note from now on what changes since `since`, by which it will be known; None: stop."""
        self.changes = None if since is None else Changes(self._directory.num_rows, since)

    def mark(self, rows: Int64s) -> None:
        """Some rows have changed."""
        if self.changes is not None:
            self.changes.mark(rows)

    def keep(self, kept: npt.NDArray[np.bool_], gone: Int64s, rows: Int64s) -> None:
        """The rows of the mask stay, the keys `gone` of the former `rows` do not."""
        if self.changes is not None:  # with exact keys, changes must also have the keys that were added and dropped
            recorded = rows < self.changes.known if not self._directory.seen.is_exact else slice(None)
            self.changes.keep(kept, gone[recorded])
