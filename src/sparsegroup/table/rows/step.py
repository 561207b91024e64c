"""An optimizer's work on a table's rows: ownership of the state in them, steps, sweeps, and tracking of changes."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import ref

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.groups import check_groups, is_rows
from sparsegroup.kernels.cpu.jit import kernel
from sparsegroup.kernels.cpu.rows import mean_squares_of_rows
from sparsegroup.kernels.step import NUMPY_DTYPES, StepScalars, compute_dtype
from sparsegroup.optim.arguments import check_device
from sparsegroup.optim.census import KEY_BYTES, GroupCensus
from sparsegroup.optim.state import UncastTensor, as_count, check_names
from sparsegroup.optim.step import Entry, GroupStep, ParameterSite
from sparsegroup.optim.table_parameter import KEYS, StateOwner
from sparsegroup.rules import Rule
from sparsegroup.signals import signals_deferred
from sparsegroup.table.config import TableConfig
from sparsegroup.table.directory.directory import Directory, RowLimit, TableContent
from sparsegroup.table.lookup.autograd import ONE_LINE_EACH, GradientLines
from sparsegroup.table.lookup.kernels import sum_of_pieces
from sparsegroup.table.lookup.lookup import TableLock
from sparsegroup.table.rows.rows import Floats, RowGradient, RowStorage

Int64s = npt.NDArray[np.int64]


class Changes:
    """Rows changed and keys removed since a table had `count` rows."""

    def __init__(self, changed: npt.NDArray[np.bool_], since: str, removed: tuple[Int64s, ...] = ()) -> None:
        self.known = len(changed)  # number of the remaining rows, which are still the first rows, in the same order
        self.since = since
        self._changed, self._removed = changed, removed

    def mark(self, rows: Int64s) -> None:
        """Mark rows as changed. Negative numbers stand for keys without a row."""
        _mark(rows, self._changed)

    def without(self, kept: npt.NDArray[np.bool_], keys: Int64s) -> "Changes":
        """Return the changes after only the rows of the mask `kept` remain, renumbered. `keys`: of the removed rows."""
        return Changes(self._changed[kept[: self.known]], self.since, (*self._removed, keys))

    @property
    def removed(self) -> Int64s:
        """Keys that had a row at some time since, and lost it; some may have one again."""
        return np.unique(np.concatenate(self._removed)) if self._removed else np.zeros(0, np.int64)

    def mask(self, count: int) -> npt.NDArray[np.bool_]:
        """`[count]`, which of the rows are changed or new."""
        return np.concatenate([self._changed, np.ones(count - self.known, np.bool_)])


def _mark_rows(rows: Any, changed: Any) -> None:
    for i in range(len(rows)):
        if 0 <= rows[i] < len(changed):
            changed[rows[i]] = True


_mark = kernel(_mark_rows, "the table's changes")


@dataclass(slots=True, eq=False)
class TableRowsPlan(RowGradient):
    """A step over a table's rows that has been checked. Nothing has changed so far."""

    parameter: Tensor  # the table's parameter
    stepper: "RowStepper"
    weight_gradient: Tensor  # sparse, as autograd gave it to the parameter

    @property
    def gradient(self) -> Tensor:
        """Return `values` `[n, dim]`, a line for each row, in the order in which a second input must come."""
        return self.values

    def with_second_input(self, second_input: Tensor) -> "TableRowsPlan":
        """Return the plan with the rule's second input, shaped as `gradient`. FloatingPointError: not finite."""
        self.second_input = second_input.to(self.values.dtype)
        self.stepper.check_finite(self, self.second_input)
        return self

    def run(self, step: GroupStep, scalars: StepScalars, entry: Entry) -> None:
        """Take the step."""
        self.stepper.run(self, step, scalars, entry[KEYS])


def _no_step() -> None:
    """Return None, as a weak reference to a freed step does."""


def _table_of(parameter: Any) -> Any:
    """Return the `Table` of a parameter, whose module imports this one."""
    return parameter.store


class RowStepper:
    """The stepper of a table's rows, see `sparsegroup.optim.step.Stepper`.

    The rows hold the state of `owner`. `changes` are those since `track` was called; None if it was not, or all has.
    """

    def __init__(
        self,
        content: TableContent,
        config: TableConfig,
        lock: TableLock,
        limit: RowLimit | None,
        on_step: Callable[[], None] | None,
    ) -> None:
        self._content, self._config, self._lock, self._limit, self._on_step = content, config, lock, limit, on_step
        self._process = os.getpid()
        self.reset(None)

    def reset(self, owner: StateOwner | None) -> None:
        """Step other rows from now on, with the state of `owner`."""
        self.owner = owner
        self.changes: Changes | None = None
        self._laid_out_for: Callable[[], GroupStep | None] = _no_step
        """Return the step for which the rows are checked and laid out. The reference is weak to avoid a cycle."""

    @property
    def _directory(self) -> Directory:
        return self._content.directory

    @property
    def _storage(self) -> RowStorage:
        return self._content.storage

    def check(self, parameter: Tensor, group: Mapping[str, Any], where: str) -> None:
        """See `Stepper.check`."""
        check_groups(group["groups"], parameter.shape, where)
        if not is_rows(group["groups"]):
            raise ValueError(f"a HashEmbedding needs groups='rows', got {group['groups']!r} ({where})")
        if group["weight_decay"]:
            raise ValueError(
                f"weight_decay={group['weight_decay']:g} cannot be applied to a HashEmbedding's rows ({where}); use l2"
            )
        if group["capturable"]:
            raise ValueError(
                f"capturable=True cannot be for a HashEmbedding, whose rows differ from step to step ({where}); give "
                "it a separate param group"
            )
        check_device(parameter, group, where)

    # The step

    def plan(
        self, parameter: Tensor, gradient: Tensor, step: GroupStep, states: Mapping[Tensor, Entry], number: int
    ) -> TableRowsPlan:
        """See `Stepper.plan`."""
        entry = states.get(parameter)
        owner = entry.get(KEYS) if entry else None
        with torch._C.DisableTorchFunctionSubclass():  # a StoredGradient is read as the plain tensor that it is
            if gradient.layout != torch.sparse_coo:
                where = step.site(number)
                raise ValueError(f"the gradient of a HashEmbedding must be sparse COO, got {gradient.layout} ({where})")
            storage = self._storage
            if storage.is_on_device:
                storage.check_reports(self._described, self._num_rows)
            if self._laid_out_for() is not step or self.owner is not owner:
                self._check(step, owner, step.site(number))
            plan = self._read(parameter, gradient, step, number)
            if os.getpid() != self._process:
                self._lock.check_process("train the table")
            self.check_finite(plan, plan.values)
            if step.group["maximize"]:
                plan.values = -plan.values
            if step.rule.mean_square:
                values = plan.values.to(compute_dtype(plan.values.dtype))
                plan = plan.with_second_input(mean_squares_of_rows(values))
        return plan

    def _check(self, step: GroupStep, owner: StateOwner | None, where: ParameterSite) -> None:
        """Check what holds until the param group or the rows' layout changes."""
        group, storage = step.group, self._storage
        if owner is not None and self.owner is not owner:
            raise RuntimeError(
                f"another optimizer now owns the state of this HashEmbedding ({where}); use one optimizer per table"
            )
        carries_u = self._carries_u(owner, step.wants_u)
        storage.check_step(step.rule, carries_u, group["state_dtype"])
        if self._limit is not None:
            self._limit.check_layout(1 + carries_u + len(step.rule.state), self._num_rows(), storage.rows)

    def _read(self, parameter: Tensor, gradient: Tensor, step: GroupStep, number: int) -> TableRowsPlan:
        """Return the gradient as the storage takes it."""
        lines: GradientLines | None = None
        known = self._known(gradient)
        needs_each_row_once = self._storage.needs_each_row_once or step.rule.mean_square
        if known is not None and (known[1] is ONE_LINE_EACH or not needs_each_row_once):
            (rows, lines), values = known, gradient._values()
        elif needs_each_row_once or gradient.requires_grad:
            rows, values = self._summed(gradient, step.site(number))
        else:  # nothing is waited for: the kernel sums lines and reports rows of other versions, which this makes large
            rows, values = gradient._indices()[0] ^ self._directory.numbering.base, gradient._values()
        if values.requires_grad:
            values = values.detach()
        if values.dtype not in NUMPY_DTYPES and not self._storage.is_on_device:
            values = values.float()
        return TableRowsPlan(rows, values, None, None, lines, parameter, self, gradient)

    def _known(self, gradient: Tensor) -> tuple[Tensor, GradientLines] | None:
        """Return the rows of a gradient that backward made, and how its lines belong to them.

        `RowNumbering.gradient` registers such a gradient by the memory of its indices. None: any other gradient, a
        changed one, or one with a graph.
        """
        indices = gradient._indices()
        known = self._directory.numbering.gradients.get(indices.untyped_storage())
        is_unchanged = known is not None and len(known[0]) == indices.shape[1] and not gradient.requires_grad
        return known if is_unchanged else None

    def summed(self, gradient: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of a gradient, each once, and the sums of their lines, `[n, dim]`."""
        known = self._known(gradient)
        if known is not None and known[1] is ONE_LINE_EACH:
            return known[0], gradient._values()
        return self._summed(gradient, "torch.nn.utils.clip_grad_norm_")

    def _summed(self, gradient: Tensor, where: object) -> tuple[Tensor, Tensor]:
        """See `summed`. The rows of a gradient with a graph are ascending.

        Raises IndexError for rows that the table does not have, RuntimeError for rows of another version or table.
        """
        numbering = self._directory.numbering
        numbering.check_rows(gradient._indices()[0], self._num_rows(), where)
        if gradient.requires_grad or not gradient.is_cpu:
            gradient = gradient.coalesce()
            return gradient._indices()[0] - numbering.base, gradient._values()
        values = gradient._values().to(compute_dtype(gradient.dtype))
        return sum_of_pieces([(gradient._indices()[0] - numbering.base, values)])

    def check_finite(self, plan: TableRowsPlan, values: Tensor) -> None:
        """Leave out lines of `values` that are not finite, or raise FloatingPointError; on a device the kernel does."""
        if self._storage.are_finite(values):
            return
        finite = torch.isfinite(values).all(dim=1)
        if not self._config.skips_nonfinite:
            rows = self._described(plan.rows[~finite].numpy())
            raise FloatingPointError(
                f"the gradient of {rows} of a HashEmbedding is not finite; nothing has been changed"
            )
        plan.finite = finite if plan.finite is None else plan.finite & finite

    def run(self, plan: TableRowsPlan, step: GroupStep, scalars: StepScalars, owner: StateOwner) -> None:
        """Take a planned step: lay out u and the rule's state, count skipped rows, run the kernel."""
        with self._lock.mutex:
            if self._laid_out_for() is not step or self.owner is not owner:
                self.lay_out(owner, step.initial, step.wants_u, step.group["state_dtype"])
                self._laid_out_for = ref(step)
            storage, gradient = self._storage, plan.finite_lines()
            if plan.finite is not None:
                storage.count_skipped(storage.skipped_rows + int((~plan.finite).sum()))
            if gradient.rows.shape[0]:
                if self.changes is not None:
                    self.changes.mark(gradient.rows_on_host())
                storage.step(gradient, step, scalars, self._num_rows)
            if self._on_step is not None:
                self._lock.run_scheduled()  # uses that a prefetch notes are of the time before, however its thread runs
                self._on_step()
            self._content.directory.numbering.note_step(plan.weight_gradient)

    def lay_out(
        self,
        owner: StateOwner,
        initial: Mapping[str, float],
        wants_u: bool,
        state_dtype: torch.dtype | None,
        new: int = 0,
    ) -> None:
        """Give the rows, and `new` rows after them, u, if it is carried, and the parts `initial`.

        Another owner's state ends.
        """
        parts = {**({"u": 0.0} if self._carries_u(owner, wants_u) else {}), **initial}
        self._laid_out_for = _no_step
        with self._lock.at_rest():
            count, changes = self._directory.num_rows + new, self.changes
            self.changes = None  # unless no row moves
            if self.owner is owner:
                if not self._storage.lay_out(parts, count, state_dtype):
                    self.changes = changes
                return
            with signals_deferred():
                self._storage.lay_out(parts, count, state_dtype, keeps_state=False)
                self.owner = owner

    def _carries_u(self, owner: StateOwner | None, wants_u: bool) -> bool:
        """Return whether the rows carry u. `GroupStep._carries_u` only decides whether the entry names "u"."""
        has_u = owner is not None and self.owner is owner and "u" in self._storage.state_names
        return has_u or wants_u or self._storage.keeps_rounding

    def _num_rows(self) -> int:
        with self._lock.at_rest():
            return self._directory.num_rows

    def _described(self, rows: Int64s) -> str:
        with self._lock.at_rest():
            return self._directory.described(rows)

    # Without a gradient

    def census(
        self, parameter: Tensor, step: GroupStep, entry: Entry, sample: int, draw: np.random.Generator
    ) -> list[GroupCensus]:
        """See `Stepper.census`. Rows that never had a gradient survive no λ21 > 0."""
        store = _table_of(parameter)
        live_bytes = store.dim * store.weight_dtype.itemsize + KEY_BYTES
        count = store.num_rows
        rows = draw.integers(0, count, sample) if 0 < sample < count else None
        critical = self._survival_l21(step, entry, rows)
        critical[np.isinf(critical)] = 0.0
        weight = count / len(critical) if len(critical) else 0.0
        here = [GroupCensus(critical, weight, store.num_live, store.num_seen, live_bytes)]
        return here if store.ranks is None else store.ranks.of_all(here, "the census of rows")

    def _survival_l21(self, step: GroupStep, entry: Entry, rows: Int64s | None) -> Floats:
        with self._lock.at_rest():
            if self.owner is not entry[KEYS]:
                return np.empty(0)
            self.lay_out(entry[KEYS], step.initial, True, step.group["state_dtype"])
            scalars = step.scalars(float(entry["step"]))
            return self._storage.survival_l21(rows, self._directory.num_rows, step, scalars)

    def sweep(self, parameter: Tensor, step: GroupStep, entry: Entry, *, zero_untrained: bool) -> None:
        """See `Stepper.sweep`."""
        with self._lock.at_rest():
            if self.owner is not entry[KEYS]:
                return
            self._lock.check_process("sweep the table")
            self.lay_out(entry[KEYS], step.initial, True, step.group["state_dtype"])
            scalars = step.scalars(float(entry["step"]))
            zeroes = zero_untrained and step.regularizer.l21 > 0
            changes, self.changes = self.changes, None  # an interrupt may leave any row changed
            swept = self._storage.sweep(self._directory.num_rows, step, scalars, drops=zeroes)
            self.changes = changes
            self.mark(swept)

    # The optimizer's state

    def exported(self, parameter: Tensor, entry: Entry) -> Entry:
        """The step, the keys, and copies of u and the state as tensors; nothing if the rows hold another's state."""
        store = _table_of(parameter)
        content = store.export_state(entry[KEYS])
        if content is None:
            return {}
        own = {store.part.named(name): torch.from_numpy(array) for name, array in content.items()}
        return {"step": entry["step"], **own}

    def adapted(self, parameter: Tensor, entry: Entry, rule: Rule, where: str) -> Entry:
        """See `Stepper.adapted`. Entries are of all rows, or of this rank's."""
        named: Entry = {}
        for name, value in entry.items():
            try:
                named[_table_of(parameter).part.entry_of(name)] = value
            except ValueError as error:
                raise ValueError(f"state {name!r} {error} ({where})") from error
        if KEYS not in named:
            named = self._of_embedding(named)
        check_names(named, rule, (KEYS,), where)
        for name, value in named.items():
            if name == KEYS:
                if value.dtype != torch.int64 or value.ndim != 1 or len(torch.unique(value)) != len(value):
                    raise ValueError(
                        f"state 'keys' must be distinct int64 [n], got {value.dtype} {list(value.shape)} ({where})"
                    )
            elif name != "step":
                expected = [len(named[KEYS]), parameter.shape[1]]
                if list(value.shape) != expected:
                    raise ValueError(f"state {name!r} has shape {list(value.shape)}, expected is {expected} ({where})")
        return named

    def _of_embedding(self, entry: Entry) -> Entry:
        """Add keys to a state of an `nn.Embedding`, if all keys of the table are numbers of the embedding's rows.

        After `convert`, the key of row i is i. Rows of the embedding that the table does not have are left out.
        """
        tensors = {name: value for name, value in entry.items() if isinstance(value, Tensor) and value.ndim}
        lengths = set(map(len, tensors.values()))
        with self._lock.at_rest():
            keys = torch.from_numpy(self._directory.keys())
        if len(lengths) != 1 or not len(keys) or keys.min() < 0 or keys.max() >= lengths.pop():
            return entry
        return {**entry, **{name: value[keys.to(value.device)] for name, value in tensors.items()}, KEYS: keys}

    def restore(self, parameter: Tensor, entry: Entry, rule: Rule, group: Mapping[str, Any]) -> None:
        """See `Stepper.restore`. An entry that has its owner is there already (a copied optimizer's)."""
        if "step" in entry:
            entry["step"] = as_count(entry["step"], "cpu")
        if not entry or isinstance(entry[KEYS], StateOwner):
            return
        loaded = {name: value for name, value in entry.items() if isinstance(value, UncastTensor)}
        state = {name: value.tensor.detach().cpu().numpy() for name, value in loaded.items()}
        owner = _table_of(parameter).restore_state(state, rule.initial_state(group), group["state_dtype"])
        entry.update(dict.fromkeys(loaded, owner))

    # What has changed

    def track(self, since: str | None) -> None:
        """Note from now on what changes since `since`, by which it will be known; None: stop."""
        self.changes = None if since is None else Changes(np.zeros(self._directory.num_rows, np.bool_), since)

    def mark(self, rows: Int64s) -> None:
        """Some rows have changed."""
        if self.changes is not None:
            self.changes.mark(rows)

    def changes_without(self, kept: npt.NDArray[np.bool_], removed: Int64s, rows: Int64s) -> Changes | None:
        """Return the changes after only the rows of the mask `kept` remain. `removed`: keys of the removed `rows`."""
        if self.changes is None:
            return None
        # With exact keys, the changes must also include keys that were added and removed since.
        recorded = rows < self.changes.known if not self._directory.seen.is_exact else slice(None)
        return self.changes.without(kept, removed[recorded])
