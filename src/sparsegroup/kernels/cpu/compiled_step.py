"""The compiled step on CPU: a rule bound to the source in `block`, and tensors handed over as addresses."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from numba import from_dtype, types
from numba.core.errors import NumbaError

from sparsegroup.kernels.cpu import block, jit, narrow_copies, narrow_step, row_copies, threads, turns
from sparsegroup.kernels.cpu.rule_source import adapters, scalar_names
from sparsegroup.kernels.regularizer import Regularizer, StepConstants
from sparsegroup.rules import Rule

Int64s = npt.NDArray[np.int64]
Kinds = tuple[int, ...]

GRAIN = 1 << 15
"""Elements, some tens of microseconds of work, below which waking a thread costs more than it does."""

SMALLEST_PIECE, LARGEST_PIECE, PIECES = 1 << 12, 1 << 18, 64
"""Elements that a thread takes at a time: a share of the work, within bounds."""

_LINE = 64


@dataclass(frozen=True)
class RowLayout:
    """Where the parts of a row lie.

    Attributes:
        stride: Bytes from row to row.
        offsets: `[1, parts]`, bytes from where a row begins to each of its parts.
        lines: `[l]`, bytes from there to each of its cache lines.
        kinds: The kind of each part, see `narrow_copies`; None where all are of the dtype that is computed with.
    """

    stride: int
    offsets: Int64s
    lines: Int64s
    kinds: Kinds | None = None


def row_layout(stride: int, offsets: Sequence[int], part_bytes: int) -> RowLayout:
    """The layout of rows whose parts of `part_bytes` lie at `offsets`; see `RowLayout`."""
    starts = sorted(offsets)
    lines = [start + at for start in starts for at in (*range(0, part_bytes, _LINE), part_bytes - 1)]
    apart = [line for line, before in zip(lines, [-_LINE, *lines], strict=False) if line // _LINE != before // _LINE]
    return RowLayout(stride, np.array([offsets], np.int64), np.array(apart, np.int64))


@dataclass(frozen=True)
class Pages:
    """Pages of 2**shift rows, at `addresses` `[p]`."""

    addresses: Int64s
    shift: int


ONE_PAGE = Pages(np.zeros(1, np.int64), 62)
"""For rows that are found without pages."""


@cache
def is_ready(rule: Rule, carries_u: bool, is_wide: bool, dtype: np.dtype[Any], kinds: Kinds | None = None) -> bool:
    """Compile the step of a rule, see `step_kernel`; False, with a warning, for a rule that cannot be compiled."""
    parts = len(rule.state) + 1 + carries_u + (kinds is not None)
    settings = StepConstants(Regularizer(), (0.0,) * len(rule.state), 0.0, False)
    work, none = np.zeros((0, 3), np.int64), np.zeros(1, np.int64)
    where = (work, none, np.zeros((1, parts), np.int64), np.zeros((1, 2), np.int64), none, *_NO_ROWS)
    numbers = (np.zeros((1, len(scalar_names(rule))), dtype), np.zeros(1, dtype), *_constants(settings, dtype))
    try:
        step_kernel(rule, carries_u, is_wide, kinds)(turns.new(), *where, *numbers)
    except NumbaError as error:
        reason = str(error).strip().splitlines()[0]
        warnings.warn(
            f"the rule {rule.name!r} cannot be compiled, its steps will be slow: {reason}", RuntimeWarning, stacklevel=2
        )
        return False
    return True


@cache
def step_kernel(rule: Rule, carries_u: bool, is_wide: bool, kinds: Kinds | None) -> Any:
    """`block.step`, or `narrow_step.step_narrow`, for a rule.

    Args:
        rule: The base optimizer.
        carries_u: The closed form; without it, the base optimizer alone.
        is_wide: Also for groups of more than `block.BLOCK` elements.
        kinds: For rows of parts of these kinds, see `RowLayout`, and for no others.
    """
    first_state = 2 if carries_u else 1
    bindings: dict[str, Any] = {
        "CARRIES_U": carries_u,
        "HAS_START": rule.sigma_0 is not None,
        "IS_WIDE": is_wide,
        "PARTS": first_state + len(rule.state),
        **adapters(rule, first_state),
    }
    for function in (
        block.charge_start,
        block.untouched,
        block.rule_only,
        block.base_only,
        block.rule_and_z,
        row_copies.gather,
        row_copies.scatter,
        block.advance,
        block.advance_large,
    ):
        bindings[function.__name__] = jit.with_globals(function, bindings)
    name = f"the step of {rule.name}" + " with sparse group lasso" * carries_u + " on wide groups" * is_wide
    if kinds is None:
        return jit.kernel(block.step, name, bindings)
    bindings |= narrow_copies.copiers(kinds, carries_u)
    name += " and state in bfloat16" if narrow_copies.NARROW in kinds else " in tables"
    return jit.kernel(narrow_step.step_narrow, name, bindings)


@cache
def weigh_address(weigh: Callable[..., Any], dtype: np.dtype[Any]) -> int:
    """The address of `block.weigh_elements` for a norm's `weigh` and arrays of `dtype`."""
    number = from_dtype(dtype)
    signature = types.void(types.int64, types.int64, number, number, number)
    bindings = {"weigh": jit.inline(weigh)}
    return jit.address_of(block.weigh_elements, signature, bindings, weigh.__qualname__)


@cache
def shrink_address(shrinkage: Callable[..., Any], scalars: int, dtype: np.dtype[Any]) -> int:
    """The address of `block.shrink_groups` for a penalty's `shrinkage` of so many scalars and arrays of `dtype`."""
    number = from_dtype(dtype)
    signature = types.void(types.int64, types.int64, number, types.int64, number, number)
    values = "".join(f", scalars[{k}]" for k in range(scalars))
    text = f"def shrink(norm, tau, zero, one, scalars):\n    return shrinkage(norm, tau, zero, one{values})\n"
    shrink = jit.source(text, {"shrinkage": jit.inline(shrinkage)})
    bindings = {"shrink": shrink, "PENALTY_SCALARS": scalars}
    return jit.address_of(block.shrink_groups, signature, bindings, shrinkage.__qualname__)


_NO_ROWS = (ONE_PAGE.addresses, ONE_PAGE.shift, 0, np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True)
class Tensors:
    """Contiguous tensors, group after group.

    Attributes:
        widths: `[tensors]`, elements per group.
        counts: `[tensors]`, groups.
        base: `[tensors, parts]`, address of x, of u if carried, and of each state.
        work: How threads share them, from `pieces`.
        is_wide: Whether one of the groups needs a kernel for wide ones.
    """

    widths: Int64s
    counts: Int64s
    base: Int64s
    work: Int64s

    @cached_property
    def is_wide(self) -> bool:
        return bool((self.widths > block.BLOCK).any())


def advance_tensors(
    rule: Rule,
    carries_u: bool,
    dtype: np.dtype[Any],
    tensors: Tensors,
    gradients: Int64s,
    scalars: npt.NDArray[Any],
    settings: StepConstants,
) -> None:
    """The step over tensors of one dtype.

    Args:
        rule: The base optimizer.
        carries_u: Whether the tensors carry u.
        dtype: The dtype of all memory: float32 or float64.
        tensors: Where x, u if carried, and each state lie.
        gradients: `[tensors, 2]`, address of the gradient and of the Hessian's diagonal, or 0.
        scalars: `[tensors, s]` of `dtype`, from `rule.host_scalars`.
        settings: λ, and what else the groups share.
    """
    widths, work = tensors.widths, tensors.work
    alone = len(work) == 1 or int(widths @ tensors.counts) < 2 * GRAIN
    taus = np.sqrt(widths) * settings.regularizer.tau
    arguments = (work, tensors.counts, tensors.base, gradients, widths, *_NO_ROWS)
    _launch(rule, carries_u, dtype, arguments, taus.astype(dtype), scalars, settings, alone, tensors.is_wide)


def advance_rows(
    rule: Rule,
    carries_u: bool,
    dtype: np.dtype[Any],
    rows: Int64s,
    pages: Pages,
    layout: RowLayout,
    gradients: Int64s,
    width: int,
    scalars: npt.NDArray[Any],
    settings: StepConstants,
) -> int:
    """The step over some rows.

    Args:
        rule: The base optimizer.
        carries_u: Whether the rows carry u.
        dtype: That of the arithmetic: float32 or float64; of all memory where the layout has no `kinds`.
        rows: `[n]`, distinct.
        pages: Where the rows lie.
        layout: Where x, u if carried, and each state lie in a row; where it has `kinds`, then the rounding's seed.
        gradients: `[1, 2]`, address of the gradient `[n, width]` and of the Hessian's diagonal, or 0.
        width: Elements of a row.
        scalars: `[1, s]` of `dtype`, from `rule.host_scalars`.
        settings: λ, and what else the groups share.

    Returns:
        How many more of the rows are non-zero than before.
    """
    where = (pages.addresses, pages.shift, layout.stride, layout.lines, rows)
    alone, kind = len(rows) * width < GRAIN, (width > block.BLOCK, layout.kinds)
    work = _pieces_of_rows(width, -(-len(rows) // 256) * 256)
    arguments = (work, np.array([len(rows)]), layout.offsets, gradients, np.array([width]), *where)
    taus = np.array([math.sqrt(width) * settings.regularizer.tau], dtype)
    return _launch(rule, carries_u, dtype, arguments, taus, scalars, settings, alone, *kind)


def pieces(widths: Int64s, counts: Int64s) -> Int64s:
    """The work over tensors of `counts` groups of `widths` elements, cut up: `[k, 3]`, see `block.step`."""
    share = min(max(int(widths @ counts) // PIECES, SMALLEST_PIECE), LARGEST_PIECE)
    sizes = np.maximum(share // widths, 1)
    numbers = -(-counts // sizes)
    tensor = np.repeat(np.arange(len(counts)), numbers)
    first = (np.arange(len(tensor)) - np.repeat(np.cumsum(numbers) - numbers, numbers)) * sizes[tensor]
    return np.stack([tensor, first, first + sizes[tensor]], axis=1)


@lru_cache(1024)
def _pieces_of_rows(width: int, most: int) -> Int64s:
    return pieces(np.array([width]), np.array([most]))


@lru_cache(64)
def _constants(settings: StepConstants, dtype: np.dtype[Any]) -> tuple[Any, ...]:
    r = settings.regularizer
    penalty = np.array(r.penalty.scalars(), dtype)
    weigh, shrink = block.NO_NORM, 0
    if r.l21 > 0:
        weigh, shrink = weigh_address(r.norm.weigh, dtype), shrink_address(r.penalty.shrinkage, len(penalty), dtype)
    return (
        np.array(settings.initial, dtype),
        np.array([r.l1, 2 * r.l2, r.keep, settings.sigma_0 or 0.0, 0.0, 1.0], dtype),
        penalty,
        weigh,
        shrink,
        settings.frozen,
    )


def _launch(
    rule: Rule,
    carries_u: bool,
    dtype: np.dtype[Any],
    arguments: tuple[Any, ...],
    taus: npt.NDArray[Any],
    scalars: npt.NDArray[Any],
    settings: StepConstants,
    alone: bool,
    is_wide: bool,
    kinds: Kinds | None = None,
) -> int:
    kernel = step_kernel(rule, carries_u, is_wide, kinds)
    return threads.share(kernel, *arguments, scalars, taus, *_constants(settings, dtype), alone=alone)
