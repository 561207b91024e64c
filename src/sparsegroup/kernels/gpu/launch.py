"""Launching the Triton kernels over tensors: tiles, grids, and what a step's kernels share."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from sparsegroup.kernels.gpu import binding
from sparsegroup.kernels.numbers import Numbers
from sparsegroup.kernels.settings import Settings
from sparsegroup.rules import Rule

WIDEST = 1024
"""Elements of a group beyond which it takes two passes."""

TILE, ROW_TILE = 1024, 512
"""Elements that a program takes: of tensors, and of rows, which come in small numbers."""

CHUNK = 32
"""Keys of one row that are summed apart, where a row has many."""

OPTIONS = {"num_warps": 4, "enable_fp_fusion": False}
"""Without fused multiply-add the numbers are those of the CPU; the kernels wait for memory in any case."""

MOST_TENSORS = 256
"""Of one launch."""

_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16, torch.float16: tl.float16}


@dataclass(frozen=True)
class Parts:
    """A tensor on its way through a step: contiguous, shaped alike, on one device.

    Attributes:
        x: float32, bfloat16 or float16.
        u: float32 or bfloat16; None for one that carries none.
        state: As u, in the order of `rule.state`.
        g: The gradient, of any of these types.
        hessian: The Hessian's diagonal, of a second-order rule.
    """

    x: Tensor
    u: Tensor | None
    state: tuple[Tensor, ...]
    g: Tensor
    hessian: Tensor | None

    @property
    def pointers(self) -> tuple[Any, ...]:
        """As the kernels take them; what there is not is another tensor, never looked at."""
        x, g = self.x, self.g
        return x, x if self.u is None else self.u, self.state, g, g if self.hessian is None else self.hessian


@dataclass(frozen=True)
class Geometry:
    """Groups anywhere in a contiguous tensor seen as `[outer, groups, inner]`: group j is `[:, j, :]`."""

    outer: int
    groups: int
    inner: int

    @property
    def width(self) -> int:
        """Elements of a group."""
        return self.outer * self.inner


@contextmanager
def on_device_of(tensor: Tensor) -> Iterator[None]:
    """Launches go to the device of `tensor`."""
    if tensor.device.type == "cuda":
        with torch.cuda.device(tensor.device):
            yield
    else:
        yield


def padded(width: int) -> int:
    """The lanes of a tile of groups of `width` elements."""
    return int(triton.next_power_of_2(width))


def _shared(settings: Settings, numbers: Numbers) -> dict[str, Any]:
    r = settings.regularizer
    scalars, start = numbers.scalars, numbers.start
    if not numbers.on_device:  # Triton makes another kernel for ints, and none for NumPy's numbers
        scalars, start = _floats(*scalars), _floats(*start)
    return {
        "scalars": scalars,
        "start": start,
        "initial": _floats(*settings.initial),
        "lambdas": _floats(r.l1, 2 * r.l2, r.mcp_ratio, r.keep, -0.0),
        "seed": numbers.seed,
        **OPTIONS,
    }


def _tau(width: int, settings: Settings) -> float:
    return math.sqrt(width) * float(settings.regularizer.tau)


def _floats(*numbers: Any) -> tuple[Any, ...]:
    return tuple(float(number) for number in numbers)


def _kernels(rule: Rule, carries_u: bool, settings: Settings) -> binding.StepKernels:
    r = settings.regularizer
    return binding.step_kernels(rule, carries_u, r.norm if r.l21 > 0 else None, r.penalty)


def advance_tensor(rule: Rule, parts: Parts, width: int, settings: Settings, numbers: Numbers) -> None:
    """The step over one tensor of groups of `width` ≤ `WIDEST` elements, group after group."""
    groups = parts.x.numel() // width
    tile = max(1, TILE // padded(width))
    with on_device_of(parts.x):
        _kernels(rule, parts.u is not None, settings).dense[(-(-groups // tile),)](
            *parts.pointers,
            groups,
            tau=_tau(width, settings),
            WIDTH=width,
            PADDED=padded(width),
            GROUPS=tile,
            ON_DEVICE=numbers.on_device,
            **_shared(settings, numbers),
        )


@dataclass(frozen=True, eq=False)
class Together:
    """Tensors that are stepped in one launch, as the kernel is told of them.

    Attributes:
        lines: The content of `table`.
        table: See `tensors.dense_many`.
        firsts: Likewise.
        programs: Of the launch.
    """

    lines: list[list[int]]
    table: Tensor
    firsts: Tensor
    programs: int


def lines_of(tensors: Sequence[Parts], width: int) -> list[list[int]]:
    """What `together` is made of: where the tensors lie."""
    lines = []
    for parts in tensors:
        x, u, state, g, hessian = parts.pointers
        addresses = [t.data_ptr() for t in (x, u, g, hessian, *state)]
        lines.append([parts.x.numel() // width, *addresses])
    return lines


def together(lines: list[list[int]], width: int, device: torch.device) -> Together:
    """Tell the device where tensors of groups of `width` elements lie; at most `MOST_TENSORS`."""
    tile = max(1, TILE // padded(width))
    programs = [-(-line[0] // tile) for line in lines]
    firsts = [sum(programs[:i]) for i in range(len(lines))]
    beyond = [1 << 62] * (padded(len(lines)) - len(lines))
    flat = torch.tensor([*firsts, *beyond, *(number for line in lines for number in line)], dtype=torch.int64)
    if device.type == "cuda":
        flat = flat.pin_memory().to(device, non_blocking=True)
    begun = len(firsts) + len(beyond)
    return Together(lines, flat[begun:], flat[:begun], sum(programs))


def advance_together(
    rule: Rule, like: Parts, known: Together, width: int, settings: Settings, numbers: Numbers
) -> None:
    """The step over tensors that have the types of `like`, in one launch."""
    addresses = (address for line in known.lines for address in line[1:])
    state = like.state[0] if like.state else like.x if like.u is None else like.u
    with on_device_of(like.x):
        _kernels(rule, like.u is not None, settings).dense_many[(known.programs,)](
            known.table,
            known.firsts,
            tau=_tau(width, settings),
            X=_TYPES[like.x.dtype],
            STATE=_TYPES[state.dtype],
            GRADIENT=_TYPES[like.g.dtype],
            ALIGNED=all(address % 16 == 0 for address in addresses),
            TENSORS=len(known.firsts),
            WIDTH=width,
            PADDED=padded(width),
            GROUPS=max(1, TILE // padded(width)),
            **_shared(settings, numbers),
        )


def tile_of(geometry: Geometry) -> tuple[int, int]:
    """Groups and elements of a program's tile, so that lanes side by side are side by side in memory."""
    if geometry.inner >= 64:
        return 1, TILE
    groups = min(padded(geometry.groups), 32)
    return groups, TILE // groups


def _tiles(geometry: Geometry) -> tuple[int]:
    groups, elements = tile_of(geometry)
    return (-(-geometry.width // elements) * -(-geometry.groups // groups),)


def _in_chunks(geometry: Geometry) -> dict[str, Any]:
    groups, elements = tile_of(geometry)
    return {
        "groups": geometry.groups,
        "inner": geometry.inner,
        "width": geometry.width,
        "INNER_ONE": geometry.inner == 1,
        "GROUPS": groups,
        "ELEMENTS": elements,
    }


def measure(
    rule: Rule, parts: Parts, geometry: Geometry, updated: Tensor | None, settings: Settings, numbers: Numbers
) -> tuple[Tensor, Tensor]:
    """The first pass over groups of any size.

    Args:
        rule: The base optimizer.
        parts: Carry u.
        geometry: Of the groups.
        updated: `[groups]` int8, whether a group was ever updated, for a rule with σ₀.
        settings: The rest.
        numbers: Likewise.

    Returns:
        Of each group `[groups]`: the sum of squares, float32, and how many chunks were touched, int64.
    """
    chunks = -(-geometry.width // tile_of(geometry)[1])
    totals = parts.x.new_zeros(chunks, geometry.groups, dtype=torch.float32)
    touched = parts.x.new_empty(chunks, geometry.groups, dtype=torch.int8)
    with on_device_of(parts.x):
        shared = _shared(settings, numbers)
        del shared["seed"]
        _kernels(rule, True, settings).measure[_tiles(geometry)](
            *parts.pointers,
            updated=touched if updated is None else updated,
            totals=totals,
            touched=touched,
            ON_DEVICE=numbers.on_device,
            **_in_chunks(geometry),
            **shared,
        )
    return totals.sum(0), touched.sum(0)


def apply(
    rule: Rule,
    parts: Parts,
    geometry: Geometry,
    updated: Tensor | None,
    totals: Tensor,
    touched: Tensor,
    taus: float | Tensor,
    settings: Settings,
    numbers: Numbers,
) -> None:
    """The second pass over groups of any size.

    Args:
        rule: The base optimizer.
        parts: Carry u.
        geometry: Of the groups.
        updated: As of `measure`.
        totals: `[groups]` float32, sums of squares.
        touched: `[groups]`, not 0 where a gradient has ever touched the group.
        taus: √d λ21, scaled to the norm; a number, or `[groups]` float32.
        settings: The rest.
        numbers: Likewise.
    """
    with on_device_of(parts.x):
        _kernels(rule, True, settings).apply[_tiles(geometry)](
            *parts.pointers,
            updated=touched if updated is None else updated,
            totals=totals,
            touched=touched,
            taus=taus,
            ON_DEVICE=numbers.on_device,
            **_in_chunks(geometry),
            TAU_OF_EACH=isinstance(taus, Tensor),
            **_shared(settings, numbers),
        )


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


def advance_rows(rule: Rule, parts: Parts, runs: Runs, counters: Tensor, settings: Settings, numbers: Numbers) -> None:
    """The step over rows of one tensor.

    Args:
        rule: The base optimizer.
        parts: x, u and the states whole, `[height, …]`; the gradient one line per entry of `runs.rows`.
        runs: The lines' rows.
        counters: See `rows.tensor_rows`.
        settings: The rest.
        numbers: Likewise.
    """
    height = parts.x.shape[0]
    width = parts.x.numel() // height
    x, u, state, *_ = parts.pointers
    with on_device_of(parts.x):
        of_runs = _of_runs(parts, runs, width)
        _kernels(rule, parts.u is not None, settings).tensor_rows[_grid(of_runs)](
            x,
            u,
            state,
            height=height,
            counters=counters,
            tau=_tau(width, settings),
            ON_DEVICE=numbers.on_device,
            **of_runs,
            **_shared(settings, numbers),
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
        dtype: Of x.
        state_dtype: Of u and the states.
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
    settings: Settings,
    numbers: Numbers,
) -> None:
    """The step over rows of a table.

    Args:
        rule: The base optimizer.
        carries_u: Whether the rows carry u.
        layout: Of the rows.
        height: Rows that there are.
        g: `[lines, dim]`, the gradient.
        hessian: The Hessian's diagonal likewise; then each row comes once.
        runs: The lines' rows.
        counters: See `rows.table_rows`.
        settings: The rest.
        numbers: Likewise.
    """
    parts = Parts(g, g, (), g, hessian)
    with on_device_of(g):
        of_runs = _of_runs(parts, runs, layout.dim)
        _kernels(rule, carries_u, settings).table_rows[_grid(of_runs)](
            layout.pages,
            height=height,
            counters=counters,
            tau=_tau(layout.dim, settings),
            X=_TYPES[layout.dtype],
            STATE=_TYPES[layout.state_dtype],
            SHIFT=layout.shift,
            ROW_BYTES=layout.row_bytes,
            FIRST_PART=layout.first_part,
            PART_BYTES=layout.part_bytes,
            STATE_PART=int(carries_u),
            ALIGNED=layout.aligned,
            ON_DEVICE=numbers.on_device,
            **of_runs,
            **_shared(settings, numbers),
        )


def gather(layout: Layout, rows: Tensor, dtype: torch.dtype, offset: int) -> Tensor:
    """A part of some rows.

    Args:
        layout: Of the rows.
        rows: `[n]` int64; zeros come where it is negative.
        dtype: Of the part.
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
            X=_TYPES[dtype],
            SHIFT=layout.shift,
            ROW_BYTES=layout.row_bytes,
            OFFSET=offset,
            ALIGNED=layout.aligned and offset % 16 == 0,
            WIDTH=layout.dim,
            PADDED=padded(layout.dim),
            GROUPS=tile,
            **OPTIONS,
        )
