"""Launching the Triton kernels over rows of a tensor or a table: how a gradient's lines go together, where rows lie."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sparsegroup.kernels.gpu import binding
from sparsegroup.kernels.gpu.launch import (
    OPTIONS,
    TILE,
    TYPES,
    Parts,
    kernels_of,
    on_device_of,
    padded,
    shared_arguments,
    tau_of,
)
from sparsegroup.kernels.numbers import StepScalars
from sparsegroup.kernels.regularizer import StepConstants
from sparsegroup.rules import Rule

ROW_TILE = 512
"""Elements that a program takes of rows, which come in small numbers."""

CHUNK = 32
"""Keys of one row that are summed apart, where a row has many."""


@dataclass(frozen=True)
class Runs:
    """The rows of a gradient's lines.

    Attributes:
        rows: `[lines]` int64, the row of each line of the gradient; -1 for none.
        order: `[lines]`, the lines sorted by row; None where each row comes once.
        starts: `[count + 1]`, where in `order` a row's lines begin; runs may be empty.
        count: Runs, or lines where there is no `order`.
    """

    rows: Tensor
    order: Tensor | None
    starts: Tensor | None
    count: int


def runs_of(rows: Tensor) -> Runs:
    """Sort the lines by row, without waiting for the device: so there are as many runs as lines, most of them empty."""
    count = len(rows)
    ordered, order = torch.sort(rows, stable=True)
    begins = torch.ones_like(rows, dtype=torch.bool)
    torch.ne(ordered[1:], ordered[:-1], out=begins[1:])
    run = begins.cumsum(0) - 1
    starts = torch.full((count + 2,), count, dtype=torch.int64, device=rows.device)
    lines = torch.arange(count, device=rows.device)
    starts.scatter_(0, torch.where(begins, run, count + 1), lines)  # the last place is for lines that begin none
    return Runs(rows, order, starts[: count + 1], count)


def _sums(g: Tensor, runs: Runs, width: int) -> Tensor:
    """Sums of whole chunks, for `rows.sum_of_run`."""
    assert runs.order is not None
    chunks = len(runs.order) // CHUNK
    sums = g.new_empty(max(chunks, 1), width, dtype=torch.float32)
    if chunks:
        tile = max(1, ROW_TILE // padded(width))
        binding.row_kernels().sum_chunks[(-(-chunks // tile),)](
            g,
            runs.rows,
            runs.order,
            sums,
            chunks,
            WIDTH=width,
            PADDED=padded(width),
            GROUPS=tile,
            CHUNK=CHUNK,
            **OPTIONS,
        )
    return sums


def _of_runs(parts: Parts, runs: Runs, width: int) -> dict[str, Any]:
    summed = runs.order is None
    tile = max(1, ROW_TILE // padded(width))
    return {
        "g": parts.g,
        "hessian": parts.g if parts.hessian is None else parts.hessian,
        "rows": runs.rows,
        "order": runs.rows if runs.order is None else runs.order,
        "starts": runs.rows if runs.starts is None else runs.starts,
        "sums": parts.g if summed else _sums(parts.g, runs, width),
        "count": runs.count,
        "WIDTH": width,
        "PADDED": padded(width),
        "GROUPS": tile,
        "CHUNK": CHUNK,
        "SUMMED": summed,
    }


def _grid(of_runs: dict[str, Any]) -> tuple[int]:
    return (-(-of_runs["count"] // of_runs["GROUPS"]),)


def advance_rows(
    rule: Rule, parts: Parts, runs: Runs, counters: Tensor, settings: StepConstants, numbers: StepScalars
) -> None:
    """The step over rows of one tensor.

    Args:
        rule: The base optimizer.
        parts: x, u and the states whole, `[height, …]`; the gradient one line per entry of `runs.rows`.
        runs: The lines' rows.
        counters: See `rows.tensor_rows`.
        settings: λ, and what else the rows share.
        numbers: What depends on the step.
    """
    height = parts.x.shape[0]
    width = parts.x.numel() // height
    x, u, state, *_ = parts.pointers
    with on_device_of(parts.x):
        of_runs = _of_runs(parts, runs, width)
        kernels_of(rule, parts.u is not None, settings).tensor_rows[_grid(of_runs)](
            x,
            u,
            state,
            height=height,
            counters=counters,
            tau=tau_of(width, settings),
            ON_DEVICE=numbers.on_device,
            **of_runs,
            **shared_arguments(settings, numbers),
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


def advance_table(
    rule: Rule,
    carries_u: bool,
    layout: Layout,
    height: int,
    g: Tensor,
    hessian: Tensor | None,
    runs: Runs,
    counters: Tensor,
    settings: StepConstants,
    numbers: StepScalars,
) -> None:
    """The step over rows of a table.

    Args:
        rule: The base optimizer.
        carries_u: Whether the rows carry u.
        layout: Where the rows lie.
        height: Rows that there are.
        g: `[lines, dim]`, the gradient.
        hessian: The Hessian's diagonal likewise; then each row comes once.
        runs: The lines' rows.
        counters: See `rows.table_rows`.
        settings: λ, and what else the rows share.
        numbers: What depends on the step.
    """
    parts = Parts(g, g, (), g, hessian)
    with on_device_of(g):
        of_runs = _of_runs(parts, runs, layout.dim)
        kernels_of(rule, carries_u, settings).table_rows[_grid(of_runs)](
            layout.pages,
            height=height,
            counters=counters,
            tau=tau_of(layout.dim, settings),
            X=TYPES[layout.dtype],
            STATE=TYPES[layout.state_dtype],
            SHIFT=layout.shift,
            ROW_BYTES=layout.row_bytes,
            FIRST_PART=layout.first_part,
            PART_BYTES=layout.part_bytes,
            STATE_PART=int(carries_u),
            ALIGNED=layout.aligned,
            ON_DEVICE=numbers.on_device,
            **of_runs,
            **shared_arguments(settings, numbers),
        )


def gather(layout: Layout, rows: Tensor, dtype: torch.dtype, offset: int) -> Tensor:
    """A part of some rows.

    Args:
        layout: Where the rows lie.
        rows: `[n]` int64; zeros come where it is negative.
        dtype: The dtype of the part.
        offset: Bytes from where a row begins to the part.

    Returns:
        `[n, dim]` of `dtype`.
    """
    out = torch.empty(len(rows), layout.dim, dtype=dtype, device=rows.device)
    _move(binding.row_kernels().gather, layout, rows, out, dtype, offset)
    return out


def scatter(layout: Layout, rows: Tensor, values: Tensor, dtype: torch.dtype, offset: int) -> None:
    """Set a part of distinct `rows` to `values` `[n, dim]`; see `gather`."""
    _move(binding.row_kernels().scatter, layout, rows, values, dtype, offset)


def _move(kernel: Any, layout: Layout, rows: Tensor, values: Tensor, dtype: torch.dtype, offset: int) -> None:
    if not len(rows):
        return
    tile = max(1, TILE // padded(layout.dim))
    with on_device_of(values):
        kernel[(-(-len(rows) // tile),)](
            layout.pages,
            rows,
            values,
            len(rows),
            X=TYPES[dtype],
            SHIFT=layout.shift,
            ROW_BYTES=layout.row_bytes,
            OFFSET=offset,
            ALIGNED=layout.aligned and offset % 16 == 0,
            WIDTH=layout.dim,
            PADDED=padded(layout.dim),
            GROUPS=tile,
            **OPTIONS,
        )
