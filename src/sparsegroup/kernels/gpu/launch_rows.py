"""Launching the Triton kernels over rows of a tensor or a table: how a gradient's lines go together, where rows lie."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparsegroup.kernels.gpu import binding
from sparsegroup.kernels.gpu.launch import TYPES, kernels_of, launch, pointers_of, state_dtype_of, step_arguments
from sparsegroup.kernels.numbers import StepScalars
from sparsegroup.kernels.regularizer import StepConstants
from sparsegroup.kernels.slot import Slot
from sparsegroup.rules import Rule

ROW_TILE = 512
"""Elements that a program takes of rows, which come in small numbers."""

CHUNK = 32
"""Keys of one row that are summed apart, where a row has many."""


@dataclass(frozen=True)
class GradientRuns:
    """The gradient of some rows, one line per key; the lines of one row are a run.

    Attributes:
        values: `[lines, width]`.
        rows: `[lines]` int64, the row of each line; a table leaves out negative ones.
        hessian: The Hessian's diagonal, shaped as `values`; then each row comes once.
        order: `[lines]`, the lines sorted by row; None where each row comes once.
        starts: `[runs + 1]`, where in `order` each run begins; runs may be empty.
    """

    values: Tensor
    rows: Tensor
    hessian: Tensor | None = None
    order: Tensor | None = None
    starts: Tensor | None = None

    @property
    def runs(self) -> int:
        """The number of runs."""
        return len(self.rows) if self.starts is None else len(self.starts) - 1


def runs_of(values: Tensor, rows: Tensor) -> GradientRuns:
    """Sort lines by row, without waiting for the device: so there are as many runs as lines, most of them empty."""
    count = len(rows)
    ordered, order = torch.sort(rows, stable=True)
    begins = torch.ones_like(rows, dtype=torch.bool)
    torch.ne(ordered[1:], ordered[:-1], out=begins[1:])
    run = begins.cumsum(0) - 1
    starts = torch.full((count + 2,), count, dtype=torch.int64, device=rows.device)
    lines = torch.arange(count, device=rows.device)
    starts.scatter_(0, torch.where(begins, run, count + 1), lines)  # the last place is for lines that begin none
    return GradientRuns(values, rows, None, order, starts[: count + 1])


def _launch_step(kernel: Any, gradient: GradientRuns, width: int, **arguments: Any) -> None:
    """Launch a step over rows; what there is not is another tensor, never looked at."""
    g, rows, order = gradient.values, gradient.rows, gradient.order
    sums = g
    if order is not None:
        chunks = len(order) // CHUNK
        sums = g.new_empty(max(chunks, 1), width, dtype=torch.float32)
        if chunks:
            of_chunks = {"g": g, "rows": rows, "order": order, "sums": sums, "count": chunks}
            launch(binding.row_kernels().sum_chunks, g, chunks, width, ROW_TILE, CHUNK=CHUNK, **of_chunks)
    launch(
        kernel,
        g,
        gradient.runs,
        width,
        ROW_TILE,
        g=g,
        hessian=g if gradient.hessian is None else gradient.hessian,
        rows=rows,
        order=rows if order is None else order,
        starts=rows if gradient.starts is None else gradient.starts,
        sums=sums,
        count=gradient.runs,
        CHUNK=CHUNK,
        SUMMED=order is None,
        **arguments,
    )


def step_rows(
    rule: Rule, slot: Slot, gradient: GradientRuns, counters: Tensor, settings: StepConstants, numbers: StepScalars
) -> None:
    """The step over rows of one tensor; for `counters` see `rows.tensor_rows`."""
    height = slot.shape[0]
    width = slot.x.numel() // height
    _launch_step(
        kernels_of(rule, slot.carries_u, settings).tensor_rows,
        gradient,
        width,
        **pointers_of(slot),
        height=height,
        counters=counters,
        **step_arguments(settings, numbers, width, state_dtype_of(slot)),
    )


@dataclass(frozen=True)
class Layout:
    """Where the rows of a table lie: in pages of 2**shift of them, x, then u and the states side by side.

    Attributes:
        pages: `[p]` int64 on the device, addresses.
        shift: See above.
        row_bytes: From row to row.
        first_part: Bytes from where a row begins to what follows x.
        part_bytes: From there to the next part.
        dtype: The dtype of x.
        state_dtype: The dtype of u and the states.
        dim: Elements of a part.
    """

    pages: Tensor
    shift: int
    row_bytes: int
    first_part: int
    part_bytes: int
    dtype: torch.dtype
    state_dtype: torch.dtype
    dim: int

    @property
    def aligned(self) -> bool:
        """Whether all parts begin at multiples of 16 bytes."""
        return (self.row_bytes | self.first_part | self.part_bytes) % 16 == 0


def step_table(
    rule: Rule,
    carries_u: bool,
    layout: Layout,
    height: int,
    gradient: GradientRuns,
    counters: Tensor,
    settings: StepConstants,
    numbers: StepScalars,
) -> None:
    """The step over rows of a table that has `height` of them; for `counters` see `rows.table_rows`."""
    _launch_step(
        kernels_of(rule, carries_u, settings).table_rows,
        gradient,
        layout.dim,
        pages=layout.pages,
        height=height,
        counters=counters,
        X=TYPES[layout.dtype],
        STATE=TYPES[layout.state_dtype],
        SHIFT=layout.shift,
        ROW_BYTES=layout.row_bytes,
        FIRST_PART=layout.first_part,
        PART_BYTES=layout.part_bytes,
        ALIGNED=layout.aligned,
        **step_arguments(settings, numbers, layout.dim, layout.state_dtype),
    )


def gather(layout: Layout, rows: Tensor, dtype: torch.dtype, offset: int) -> Tensor:
    """`[n, dim]` of `dtype`: the part `offset` bytes into each of `rows` `[n]` int64; zeros where one is negative."""
    values = torch.empty(len(rows), layout.dim, dtype=dtype, device=rows.device)
    _copy_part(binding.row_kernels().gather, layout, rows, values, dtype, offset)
    return values


def scatter(layout: Layout, rows: Tensor, values: Tensor, dtype: torch.dtype, offset: int) -> None:
    """Set a part of distinct `rows` to `values` `[n, dim]`; see `gather`."""
    _copy_part(binding.row_kernels().scatter, layout, rows, values, dtype, offset)


def _copy_part(kernel: Any, layout: Layout, rows: Tensor, values: Tensor, dtype: torch.dtype, offset: int) -> None:
    if len(rows):
        launch(
            kernel,
            values,
            len(rows),
            layout.dim,
            pages=layout.pages,
            rows=rows,
            values=values,
            count=len(rows),
            X=TYPES[dtype],
            SHIFT=layout.shift,
            ROW_BYTES=layout.row_bytes,
            OFFSET=offset,
            ALIGNED=layout.aligned and offset % 16 == 0,
        )
