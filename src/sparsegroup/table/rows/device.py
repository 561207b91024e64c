"""Rows of a table in a GPU's memory, read and written by Triton's kernels.

New pages are filled with new rows: each row that has not been written yet is zero in its weights and holds the initial
values in its other parts, so that inserting a key writes weights only.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.kernels.cpu.rows import WHOLE
from sparsegroup.kernels.gpu import launch
from sparsegroup.kernels.gpu.backend import compiles
from sparsegroup.kernels.gpu.transfer import Transfer, Watch
from sparsegroup.kernels.step import StepScalars
from sparsegroup.optim.step import GroupStep
from sparsegroup.rules import Rule
from sparsegroup.table.config import TableConfig
from sparsegroup.table.lookup import kernels
from sparsegroup.table.lookup.autograd import (
    OTHER_ROWS,
    GradientLines,
    Int64s,
    KeySearch,
    LookupInfo,
    SortedKeys,
)
from sparsegroup.table.rows.rows import WEIGHT, Floats, NewRowBuffer, RowGradient, Rows, RowStorage, pieces_of

Float32s = npt.NDArray[np.float32]

PAGE_BYTES = 32 << 20
"""The most that a page of several rows has; it has more than half of that. torch rounds sizes from 10 MiB on up to
multiples of 2 MiB, and would leave more of it unused with smaller ones."""

_PIECE_BYTES = 64 << 20
"""Of rows that are on their way to or from the host, or to another place, at a time."""


class DeviceRows(Rows):
    """Rows on a device: a GPU, or the CPU for Triton's interpreter.

    `dtype` is that of the weights in memory: float32, bfloat16 or float16; `state_dtype` is float32 or bfloat16. Both
    are read and written as float32. A page of several rows has at most `page_bytes`.
    """

    def __init__(
        self,
        dim: int,
        dtype: torch.dtype,
        device: torch.device,
        initial: Mapping[str, float],
        state_dtype: torch.dtype = torch.float32,
        page_bytes: int = PAGE_BYTES,
    ) -> None:
        super().__init__(dim, np.dtype(np.float32), initial)
        self.weight_dtype, self.state_dtype = dtype, state_dtype
        self.device = device
        self.page_bytes = page_bytes
        weights, state = dim * dtype.itemsize, dim * state_dtype.itemsize
        unit = 16 if max(weights, state if initial else 0) >= 16 else 4
        self._first_part = _rounded_up(weights, unit)
        self._part_bytes = _rounded_up(state, 16 if state >= 16 else 4)
        self._unit = unit
        self.row_bytes = self.bytes_of_row(1 + len(initial))
        self.shift = max(0, (page_bytes // self.row_bytes).bit_length() - 1)
        self._set_pages([])

    def reserve(self, count: int) -> None:
        missing = -(-count >> self.shift) - len(self._pages)
        if missing <= 0:
            return
        try:
            self._set_pages(self._pages + [self._new_page() for _ in range(missing)])
        except torch.OutOfMemoryError as error:
            size = self.row_bytes << self.shift
            raise MemoryError(
                f"no memory on {self.device} for {missing:,} more pages of {size:,} bytes of a table: {error}"
            ) from error

    def bytes(self, count: int) -> int:
        return -(-count >> self.shift) * (self.row_bytes << self.shift)

    def bytes_of_row(self, parts: int) -> int:
        return _rounded_up(self._first_part + (parts - 1) * self._part_bytes, self._unit)

    def layout(self) -> launch.Layout:
        """Where the rows are, for the kernels; it is valid until rows are reserved, compacted or laid out again."""
        return launch.Layout(
            self._addresses,
            self.shift,
            self.row_bytes,
            self._first_part,
            self._part_bytes,
            self.weight_dtype,
            self.state_dtype,
            self.dim,
        )

    def gather(self, rows: Tensor, part: str = WEIGHT) -> Tensor:
        """A part of some rows, `[n, dim]` as stored; zeros where one of `rows`, `[n]`, is negative."""
        return launch.gather(self.layout(), rows.contiguous(), *self._place(part))

    def scatter(self, rows: Tensor, values: Tensor, part: str = WEIGHT) -> None:
        """Set a part of distinct `rows`, `[n]`, to `values`, `[n, dim]` of any of the weights' dtypes."""
        launch.scatter(self.layout(), rows.contiguous(), values.contiguous(), *self._place(part))

    def read(self, part: str, rows: Int64s) -> Float32s:
        out = np.empty((len(rows), self.dim), np.float32)
        for piece in pieces_of(len(rows), 4 * self.dim, 0, _PIECE_BYTES):
            out[piece] = self.gather(self._on_device(rows[piece]), part).float().cpu().numpy()
        return out

    def write(self, part: str, rows: Int64s, values: npt.NDArray[Any]) -> None:
        for piece in pieces_of(len(rows), 4 * self.dim, 0, _PIECE_BYTES):
            self.scatter(self._on_device(rows[piece]), self._on_device(np.asarray(values[piece], np.float32)), part)

    def part_dtype(self, part: str) -> torch.dtype:
        return self._place(part)[0]

    def part_bytes(self, part: str) -> int:
        return self.dim * self._place(part)[0].itemsize

    def live(self, first: int, last: int) -> npt.NDArray[np.bool_]:
        spans = self._spans(first, last)
        found = [(self._view(self._pages[page], WEIGHT)[span] != 0).any(1) for page, span in spans]
        return torch.cat(found).cpu().numpy() if found else np.empty(0, np.bool_)

    def fill(self, part: str, first: int, last: int, value: float) -> None:
        for page, span in self._spans(first, last):
            self._view(self._pages[page], part)[span] = value

    def set_initial(self, initial: Mapping[str, float], count: int) -> None:
        for part, value in initial.items():
            if value != self.initial[part]:
                self.fill(part, count, len(self._pages) << self.shift, value)
        self.initial = {part: initial[part] for part in self.initial}

    def relaid(self, initial: Mapping[str, float], count: int, state_dtype: torch.dtype | None = None) -> "DeviceRows":
        state_dtype = state_dtype or self.state_dtype
        other = DeviceRows(self.dim, self.weight_dtype, self.device, initial, state_dtype, self.page_bytes)
        self._reserve_growth(other, count)
        kept = [part for part in other.parts if part in self.parts]
        pages = self._pages[: -(-count >> self.shift)][::-1]
        self._set_pages([])
        for first in range(0, count, 1 << self.shift):
            source = pages.pop()  # and with it, what was there before is given back
            last = min(first + (1 << self.shift), count)
            try:
                other.reserve(last)
            except MemoryError as error:
                raise MemoryError(
                    f"{error}. The table's rows are lost: other work took the memory they had left while they were "
                    "being moved. Load a checkpoint"
                ) from error
            begin = 0
            for page, span in other._spans(first, last):
                end = begin + span.stop - span.start
                for part in kept:
                    other._view(other._pages[page], part)[span] = self._view(source, part)[begin:end]
                begin = end
        return other

    def compact(self, surviving: npt.NDArray[np.bool_]) -> None:
        kept = np.flatnonzero(surviving)
        words = self.row_bytes // 4
        layout = launch.Layout(self._addresses, self.shift, self.row_bytes, 0, 0, torch.float32, torch.float32, words)
        first = int(np.searchsorted(kept - np.arange(len(kept)), 0, side="right"))  # those before stay where they are
        for piece in pieces_of(len(kept), self.row_bytes, first, _PIECE_BYTES):
            # A row comes from its own place or one behind it, so that no piece reads what one before has written.
            rows = launch.gather(layout, self._on_device(kept[piece]), torch.float32, 0)
            target = torch.arange(piece.start, piece.stop, dtype=torch.int64, device=self.device)
            launch.scatter(layout, target, rows, torch.float32, 0)
        pages = -(-len(kept) >> self.shift)
        self._set_pages(self._pages[:pages])
        for page, span in self._spans(len(kept), pages << self.shift):
            self._make_new(self._pages[page], span)

    def _reserve_growth(self, other: "DeviceRows", count: int) -> None:
        """Reserve what `other` needs beyond what `self` will give back, and a page more on either side."""
        size = other.row_bytes << other.shift
        released = self.bytes(count) - (self.row_bytes << self.shift)
        pages = 1 - (released - other.bytes(count)) // size
        other.reserve(min(max(pages, 1) << other.shift, count))

    def _on_device(self, array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.array(array, order="C")).to(self.device)

    def _place(self, part: str) -> tuple[torch.dtype, int]:
        """Dtype, and bytes from where a row begins."""
        if part == WEIGHT:
            return self.weight_dtype, 0
        return self.state_dtype, self._first_part + (self.parts.index(part) - 1) * self._part_bytes

    def _view(self, page: Tensor, part: str) -> Tensor:
        """A part of all rows of a page, `[2**shift, dim]`."""
        dtype, offset = self._place(part)
        end = offset + self.dim * dtype.itemsize
        return page.view(1 << self.shift, self.row_bytes)[:, offset:end].view(dtype)

    def _spans(self, first: int, last: int) -> Iterator[tuple[int, slice]]:
        """Where the rows first, …, last - 1 are: page by page, and in a page."""
        step = 1 << self.shift
        while first < last:
            page, begin = first >> self.shift, first & (step - 1)
            end = min(step, begin + last - first)
            yield page, slice(begin, end)
            first += end - begin

    def _new_page(self) -> Tensor:
        page = torch.empty(self.row_bytes << self.shift, dtype=torch.uint8, device=self.device)
        self._make_new(page, slice(0, 1 << self.shift))
        return page

    def _make_new(self, page: Tensor, span: slice) -> None:
        page.view(1 << self.shift, self.row_bytes)[span] = 0
        for part, value in self.initial.items():
            if value != 0:
                self._view(page, part)[span] = value

    def _set_pages(self, pages: list[Tensor]) -> None:
        # An address where there is none: kernels load it for negative rows, and do not follow it.
        addresses = torch.tensor([page.data_ptr() for page in pages] or [0], dtype=torch.int64, device="cpu")
        if self.device.type == "cuda":
            addresses = addresses.pin_memory().to(self.device, non_blocking=True)
        self._addresses = addresses
        self._pages = pages


def _rounded_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


class DeviceStorage(RowStorage):
    """Keys are found on the host, vectors gathered and rows stepped on the device, and no step waits for it.

    New rows get their start on the host and wait there until something is done on the device: so that another thread
    may look ahead, and insert, without the device.
    """

    _rows: DeviceRows
    is_on_device = True
    needs_each_row_once = False  # the step's kernel sums and checks lines, and nothing is waited for

    def __init__(self, config: TableConfig) -> None:
        super().__init__(DeviceRows(config.dim, config.weight_dtype, config.device, {}))
        self.config = config
        self.keeps_rounding = config.weight_dtype != torch.float32
        self._waiting: list[tuple[int, Floats]] = []
        self._transfer = Transfer(config.device)
        self._watch = Watch(config.device)

    @property
    def rows(self) -> DeviceRows:
        while self._waiting:
            first, starts = self._waiting[0]
            (values,) = self._transfer.send(starts)
            rows = torch.arange(first, first + len(starts), dtype=torch.int64, device=self.config.device)
            self._rows.scatter(rows, values)
            self._waiting.pop(0)
        return self._rows

    def num_live(self, num_rows: int) -> int:
        if self._live is None:
            self._watch.clear(0)
        return super().num_live(num_rows) + self._watch.now()[0]

    @property
    def skipped_rows(self) -> int:
        return self._skipped + self._watch.now()[1]

    def count_skipped(self, total: int) -> None:
        self._watch.clear(1)
        super().count_skipped(total)

    # Lookup

    def prepare(self, search: KeySearch) -> None:
        inverse, rows, n = search.inverse, search.row_array, len(search.inverse)
        of_keys, order, starts = np.empty(n, np.int64), np.empty(n, np.int32), np.empty(len(rows) + 1, np.int32)
        longest = int(kernels.sort_runs(inverse, rows, of_keys, order, starts))
        search.sorted_keys = SortedKeys(of_keys, order, starts, longest)

    def fetch(self, search: KeySearch) -> tuple[Tensor, LookupInfo]:
        """See `RowStorage`. If autograd is on, the keys are sorted by row for the step to come."""
        rows, lines = search.row_array, None
        if torch.is_grad_enabled():
            if search.sorted_keys is None:
                self.prepare(search)
            assert search.sorted_keys is not None
            of_keys, order, starts, longest = search.sorted_keys
            sent, sent_order, sent_starts = self._transfer.send(of_keys, order, starts)
            lines = GradientLines(sent_order, sent_starts, longest, rows.copy())
        else:
            (sent,) = self._transfer.send(rows[search.inverse])
        return self.rows.gather(sent), LookupInfo(search, sent, None, lines)

    def new_rows(self, first: int, count: int) -> NewRowBuffer:
        self._rows.reserve(first + count)  # before the index gets the keys: without memory for them none is inserted
        starts = np.empty((count, self.config.dim), self.config.dtype)
        self._waiting.append((first, starts))
        row_bytes = self.config.dim * starts.itemsize
        return NewRowBuffer(
            np.array([starts.ctypes.data - first * row_bytes]), 62, row_bytes, WHOLE, np.empty(0, starts.dtype)
        )

    # Step

    def check_step(self, rule: Rule, carries_u: bool, state_dtype: torch.dtype | None) -> None:
        if not compiles(rule):
            raise RuntimeError(f"a HashEmbedding needs a rule that can be compiled, {rule.name!r} cannot")

    def check_reports(self, describe: Callable[[Int64s], str], num_rows: Callable[[], int]) -> None:
        counts = None if self.config.skips_nonfinite else self._watch.arrived()
        if counts is not None and counts[1]:
            self._watch.clear(1)
            if not 0 <= counts[2] < num_rows():
                raise RuntimeError(f"the gradient of {counts[1]:,} rows in a step before is left out: it {OTHER_ROWS}")
            raise FloatingPointError(
                f"the gradient of {counts[1]:,} rows of a HashEmbedding was not finite in a step before, that of "
                f"{describe(np.array([counts[2]]))} for one; these rows have been left as they were, the others have "
                "been updated"
            )

    def dtype_of_state(self, requested: torch.dtype | None) -> torch.dtype:
        return requested or torch.float32

    def step(self, gradient: RowGradient, step: GroupStep, scalars: StepScalars, num_rows: Callable[[], int]) -> None:
        table_rows = self.rows
        launch.step_table(
            step.rule,
            "u" in table_rows.initial,
            table_rows.layout(),
            num_rows(),
            _runs_of(gradient),
            self._watch.counters,
            step.constants,
            scalars,
        )
        if not self.config.skips_nonfinite:  # else `num_live`, which waits, is first to ask
            self._watch.send()


def _runs_of(gradient: RowGradient) -> launch.GradientRuns:
    """The runs of a gradient; sorted on the device if the lookup has not sorted it."""
    values, rows, lines = gradient.values.resolve_neg().contiguous(), gradient.rows.contiguous(), gradient.lines
    if gradient.second_input is not None:
        return launch.GradientRuns(values, rows, gradient.second_input.resolve_neg().contiguous())
    if lines is None or lines.order is None:
        return launch.runs_of(values, rows)
    return launch.GradientRuns(values, rows, None, lines.order, lines.starts, lines.longest)
