"""Launching the Triton kernels: how memory, scalars and the grid are described, and the step over tensors of groups."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsegroup.kernels.gpu import bind
from sparsegroup.kernels.step import ParameterMemory, StepConstants, StepScalars, TensorPlan, as_stored
from sparsegroup.rules import Rule

TILE = 512
"""Elements that a program takes."""

LANES = 128
"""Elements of a program for each of its warps, of which there are at most four."""

MOST_TENSORS = 256
"""How many tensors one launch steps at most."""

TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


def padded(width: int) -> int:
    """Return the number of lanes of a tile for each group of `width` elements."""
    return int(triton.next_power_of_2(width))


def groups_of_program(width: int, tile: int = TILE) -> int:
    """Return the number of groups of `width` elements that a program takes."""
    return max(1, tile // padded(width))


def run_kernel(kernel: Any, on: Tensor, count: int, width: int, tile: int = TILE, /, **arguments: Any) -> None:
    """Run a kernel on the device of `on`, with a grid for `count` groups (or rows) of `width` elements."""
    taken, lanes = groups_of_program(width, tile), padded(width)
    # Without fused multiply-add the numbers are the CPU's; the kernels wait for memory in any case.
    options = {"num_warps": min(max(taken * lanes // LANES, 1), 4), "enable_fp_fusion": False}
    with torch.cuda.device_of(on):  # type: ignore[no-untyped-call]
        kernel[(-(-count // taken),)](WIDTH=width, PADDED=lanes, GROUPS=taken, **arguments, **options)


def kernels_of(rule: Rule, carries_u: bool, constants: StepConstants) -> SimpleNamespace:
    """Return the kernels for a rule, and the norm and penalty of a step."""
    r = constants.regularizer
    return bind.step_kernels(rule, carries_u, r.norm.weigh if r.l21 > 0 else None, r.penalty.shrinkage)


def step_arguments(
    constants: StepConstants, scalars: StepScalars, width: int, state_dtype: torch.dtype | None
) -> dict[str, Any]:
    """Return the arguments of `source.step_tile` that all elements share; u and the state are of `state_dtype`."""
    r, of_rule, start = constants.regularizer, scalars.of_rule, (scalars.sigma_0, scalars.moves)
    if not scalars.on_device:  # Triton makes another kernel for ints, and none for NumPy's numbers
        of_rule, start = _floats(*of_rule), _floats(*start)
    return {
        "scalars": of_rule,
        "start": start,
        "initial": tuple(as_stored(value, state_dtype or torch.float32) for value in constants.initial),
        "lambdas": _floats(r.l1, 2 * r.l2, r.keep, -0.0),
        "penalty": _floats(*r.penalty.scalars()),
        "tau": math.sqrt(width) * float(r.tau),
        "seed": scalars.seed,
        "ON_DEVICE": scalars.on_device,
    }


def _floats(*numbers: Any) -> tuple[Any, ...]:
    return tuple(float(number) for number in numbers)


def state_dtype_of(memory: ParameterMemory) -> torch.dtype | None:
    """Return the common dtype of u and the states; None without u and states."""
    return next(iter(memory.state_dtypes), None)


def pointers_of(memory: ParameterMemory) -> dict[str, Any]:
    """Return x, u and the states as arguments of a kernel; x in place of a u that is not carried, never read."""
    return {"x": memory.x, "u": memory.x if memory.u is None else memory.u, "state": memory.state}


def step_tensors(
    rule: Rule,
    tensors: Sequence[TensorPlan],
    constants: StepConstants,
    tables: dict[ParameterMemory, "TensorTable"],
) -> None:
    """Step the tensors of a `Launch` by contiguous gradients, and keep a table for each first tensor of a kernel."""
    # A launch has tensors of one device and dtype, which all carry u or all do not; one kernel needs the rest in common
    # too. On the device each tensor has scalars of its own, so it is stepped alone: in a graph, launches cost little.
    alike: dict[tuple[Any, ...], list[TensorPlan]] = {}
    for tensor in tensors:
        memory = tensor.memory
        width = memory.width if memory.carries_u else 1
        kind = width, state_dtype_of(memory), tensor.gradient.dtype, id(tensor.scalars)
        alike.setdefault(kind, []).append(tensor)
    for (width, *_), several in alike.items():
        if len(several) == 1:
            step_tensor(rule, several[0], width, constants)
            continue
        for first in range(0, len(several), MOST_TENSORS):
            some = several[first : first + MOST_TENSORS]
            key = some[0].memory
            tables[key] = step_many(rule, some, width, constants, tables.get(key))


def step_tensor(rule: Rule, tensor: TensorPlan, width: int, constants: StepConstants) -> None:
    """Step one tensor of contiguous groups of `width` ≤ `runtime.WIDEST_GROUP` elements."""
    memory, g = tensor.memory, tensor.gradient
    groups = memory.x.numel() // width
    run_kernel(
        kernels_of(rule, memory.carries_u, constants).dense,
        memory.x,
        groups,  # for the grid; the kernel is passed `groups` below
        width,
        **pointers_of(memory),
        g=g,
        second_input=g if tensor.second_input is None else tensor.second_input,
        groups=groups,
        **step_arguments(constants, tensor.scalars, width, state_dtype_of(memory)),
    )


class TensorTable:
    """Places of at most `MOST_TENSORS` tensors, on the device: `table` and `firsts` of `source.dense_many`.

    `lines` has for each tensor the number of groups of `width` elements, and addresses.
    """

    def __init__(self, lines: list[list[int]], width: int, device: torch.device) -> None:
        self.lines = lines
        programs = [-(-line[0] // groups_of_program(width)) for line in lines]
        firsts = [sum(programs[:i]) for i in range(len(lines))]
        firsts += [1 << 62] * (padded(len(lines)) - len(lines))
        flat = torch.tensor([*firsts, *(n for line in lines for n in line)], dtype=torch.int64, device="cpu")
        if device.type == "cuda":
            flat = flat.pin_memory().to(device, non_blocking=True)
        self.firsts, self.table = flat[: len(firsts)], flat[len(firsts) :]
        self.programs = sum(programs)
        self.is_aligned = all(address % 16 == 0 for line in lines for address in line[1:])


def step_many(
    rule: Rule, tensors: Sequence[TensorPlan], width: int, constants: StepConstants, table: TensorTable | None = None
) -> TensorTable:
    """Step at most `MOST_TENSORS` tensors of the same dtypes and scalars by one kernel.

    Takes the table of the last step, if any. Returns the table for the next step: the same until a tensor moves.
    """
    memory, g = tensors[0].memory, tensors[0].gradient
    lines = [_line_of(tensor, width) for tensor in tensors]
    if table is None or table.lines != lines:
        table = TensorTable(lines, width, memory.x.device)
    dtype = state_dtype_of(memory)
    run_kernel(
        kernels_of(rule, memory.carries_u, constants).dense_many,
        memory.x,
        table.programs * groups_of_program(width),
        width,
        table=table.table,
        firsts=table.firsts,
        X=TYPES[memory.dtype],
        STATE=TYPES[dtype or memory.dtype],
        GRADIENT=TYPES[g.dtype],
        ALIGNED=table.is_aligned,
        TENSORS=len(table.firsts),
        **step_arguments(constants, tensors[0].scalars, width, dtype),
    )
    return table


def _line_of(tensor: TensorPlan, width: int) -> list[int]:
    memory, g = tensor.memory, tensor.gradient.data_ptr()
    second_input = g if tensor.second_input is None else tensor.second_input.data_ptr()
    return [memory.x.numel() // width, g, second_input, *memory.addresses]


ROW_TILE = 128
"""Elements that a program takes of rows, which come in small numbers."""

CHUNK = 32
"""Keys of one row that are summed apart, where a row has many; and of these sums again as many."""


@dataclass(frozen=True)
class GradientRuns:
    """The gradient of some rows, one line per key; the lines of one row are a run."""

    values: Tensor  # `[lines, width]`
    rows: Tensor  # `[lines]` int64; a table leaves out negative ones
    second_input: Tensor | None = None  # of the rule, shaped as `values`; then each row comes once
    order: Tensor | None = None  # `[lines]`, the lines sorted by row; None where each row comes once
    starts: Tensor | None = None  # `[runs + 1]`, where in `order` each run begins; runs may be empty
    longest: int | None = None  # no run has more lines; None if the host does not know

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
    lines = torch.arange(count, dtype=torch.int64, device=rows.device)
    starts.scatter_(0, torch.where(begins, run, count + 1), lines)  # the last place is for lines that begin none
    return GradientRuns(values, rows, None, order, starts[: count + 1])


def _run_over_rows(kernel: Any, gradient: GradientRuns, width: int, **arguments: Any) -> None:
    """Sum long runs by chunks, then run a step's kernel over the rows; the kernel reads no tensor passed for a None."""
    g, rows, order = gradient.values, gradient.rows, gradient.order
    sums, chunks, blocks = g, 0, 0
    if order is not None:
        longest = len(order) if gradient.longest is None else gradient.longest
        chunks = len(order) // CHUNK if longest >= CHUNK else 0
        blocks = chunks // CHUNK if longest >= CHUNK * CHUNK else 0
        sums = g.new_empty(max(chunks + blocks, 1), width, dtype=torch.float32)
        kernel_of_sums = bind.row_kernels().sum_chunks
        of_chunks = {"g": g, "rows": rows, "order": order, "sums": sums, "chunks": chunks, "CHUNK": CHUNK}
        for level, count in ((1, chunks), (2, blocks)):
            if count:
                run_kernel(kernel_of_sums, g, count, width, ROW_TILE, count=count, LEVEL=level, **of_chunks)
    run_kernel(
        kernel,
        g,
        gradient.runs,
        width,
        ROW_TILE,
        g=g,
        second_input=g if gradient.second_input is None else gradient.second_input,
        rows=rows,
        order=rows if order is None else order,
        starts=rows if gradient.starts is None else gradient.starts,
        sums=sums,
        chunks=chunks,
        blocks=blocks,
        count=gradient.runs,
        CHUNK=CHUNK,
        SUMMED=order is None,
        **arguments,
    )


def step_rows(
    rule: Rule,
    memory: ParameterMemory,
    gradient: GradientRuns,
    counters: Tensor,
    constants: StepConstants,
    scalars: StepScalars,
) -> None:
    """Step rows of one tensor; for `counters` see `source.tensor_rows`."""
    height = memory.shape[0]
    width = memory.x.numel() // height
    _run_over_rows(
        kernels_of(rule, memory.carries_u, constants).tensor_rows,
        gradient,
        width,
        **pointers_of(memory),
        height=height,
        counters=counters,
        **step_arguments(constants, scalars, width, state_dtype_of(memory)),
    )


@dataclass(frozen=True)
class Layout:
    """Where the rows of a table are: in pages of 2**shift of them, x, then u and the states side by side."""

    pages: Tensor  # `[p]` int64 on the device, addresses
    shift: int
    row_bytes: int  # from row to row
    first_part: int  # bytes from where a row begins to what follows x
    part_bytes: int  # from there to the next part
    dtype: torch.dtype  # that of x
    state_dtype: torch.dtype  # that of u and the states
    dim: int  # elements of a part

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
    constants: StepConstants,
    scalars: StepScalars,
) -> None:
    """Step rows of a table that has `height` rows; for `counters` see `source.table_rows`."""
    _run_over_rows(
        kernels_of(rule, carries_u, constants).table_rows,
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
        **step_arguments(constants, scalars, layout.dim, layout.state_dtype),
    )


def gather(layout: Layout, rows: Tensor, dtype: torch.dtype, offset: int) -> Tensor:
    """`[n, dim]` of `dtype`: the part `offset` bytes into each of `rows` `[n]` int64; zeros where one is negative."""
    values = torch.empty(len(rows), layout.dim, dtype=dtype, device=rows.device)
    _copy_part(bind.row_kernels().gather, layout, rows, values, dtype, offset)
    return values


def scatter(layout: Layout, rows: Tensor, values: Tensor, dtype: torch.dtype, offset: int) -> None:
    """Set a part of distinct `rows` to `values` `[n, dim]`; see `gather`."""
    _copy_part(bind.row_kernels().scatter, layout, rows, values, dtype, offset)


def _copy_part(kernel: Any, layout: Layout, rows: Tensor, values: Tensor, dtype: torch.dtype, offset: int) -> None:
    if len(rows):
        run_kernel(
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
