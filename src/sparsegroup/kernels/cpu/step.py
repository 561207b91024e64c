"""The compiled step and sweep of a rule, over tensors and over rows."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba import from_dtype, types
from numba.core.errors import NumbaError

from sparsegroup.kernels.cpu import block, jit, threads
from sparsegroup.kernels.cpu import rows as narrow_copies
from sparsegroup.kernels.cpu.block import (
    AT_M,
    AT_SIGMA,
    AT_W,
    AT_X,
    AT_Z,
    BLOCK,
    STRIDE,
    block_memory,
    part,
    s_memory,
    solve,
    spread_groups,
    sum_groups,
)
from sparsegroup.kernels.cpu.intrinsics import on_stack
from sparsegroup.kernels.cpu.jit import array_at, call
from sparsegroup.kernels.cpu.rows import find_rows, live_groups, to_nearest
from sparsegroup.kernels.cpu.threads import enter, leave, take
from sparsegroup.kernels.step import Regularizer, StepConstants, as_stored
from sparsegroup.rules import Rule

Int64s = npt.NDArray[np.int64]


def scalar_names(rule: Rule) -> tuple[str, ...]:
    """The names of what `rule.scalars` gives, as `update` takes it."""
    code = rule.update.__code__
    names = code.co_varnames[: code.co_argcount]
    return names[1 + int(rule.has_second_input) + len(rule.state) :]


def adapters(rule: Rule, first_state: int) -> dict[str, Any]:
    """Functions of as many arguments as the rule has states and scalars: name → what `block` calls by it.

    Args:
        rule: The base optimizer.
        first_state: The number of the first state among the parts of a row: 2 with u, else 1.
    """
    states, scalars = range(len(rule.state)), len(scalar_names(rule))
    names = {"update": jit.inline(rule.update), "array_at": jit.array_at}
    arguments = ["g[i]", *(["hessian[i]"] if rule.has_second_input else [])]
    arguments += [f"state[{k}][i]" for k in states] + [f"scalars[{k}]" for k in range(scalars)]
    results = ", ".join(["m", "sigma", *(f"s{k}" for k in states)])
    stores = "".join(f"    state[{k}][i] = s{k}\n" for k in states)
    inside = "array_at(at[{p}], count, zero)"

    def tuple_of(items: Sequence[str]) -> str:
        return "(" + "".join(f"{item}, " for item in items) + ")"

    u = first_state - 1
    hessian = "array_at(at[t, 1] + offset, count, zero)" if rule.has_second_input else "g"
    texts = {
        "update_at": f"def update_at(g, hessian, state, i, scalars):\n"
        f"    {results} = update({', '.join(arguments)})\n{stores}    return m, sigma\n",
        "unpack": f"def unpack(a, t):\n    return {tuple_of([f'a[t, {k}]' for k in range(scalars)])}\n",
        "parts_in": "def parts_in(at, count, zero):\n"
        f"    return {inside.format(p=0)}, {inside.format(p=u)}, "
        f"{tuple_of([inside.format(p=first_state + k) for k in states])}\n",
        "gradient_at": "def gradient_at(at, t, offset, count, zero):\n"
        f"    g = array_at(at[t, 0] + offset, count, zero)\n    return g, {hessian}\n",
        "is_initial": "def is_initial(state, initial, i):\n"
        f"    return {' and '.join(['True', *(f'state[{k}][i] == initial[{k}]' for k in states)])}\n",
        "parts_of": "def parts_of(state, start, count, zero):\n"
        f"    return {tuple_of([f'part(state[{k}], start, count, zero)' for k in states])}\n",
    }
    names["part"] = block.part
    memory = on_stack((first_state + len(rule.state)) * block.STRIDE * 8)
    return {name: jit.source(text, names) for name, text in texts.items()} | {"r_memory": memory}


PARTS: int = 0  # bound: weights, u, and the rule's state
ROUNDS_U: bool = False  # bound: whether u is stored as bfloat16
_unbound: Callable[..., Any] = lambda *arguments: None  # noqa: E731
update_at = unpack = parts_in = untouched = r_memory = _unbound  # bound
gather = scatter = _unbound  # bound: `narrow_copies.copiers`, of all parts, and of weights and u


def sweep(
    turns: Any, work: Any, count: int, d: int, base: Any, pages: Any, shift: int, stride: int, lines: Any, rows: Any,
    scalars: Any, tau: Any, initial: Any, constants: Any, penalty: Any, weigh_at: int, shrink_at: int,
    norms: Any, changed: Any, applies: bool, drops: bool,
) -> None:  # fmt: skip
    """The norms of rows, and with `applies` the closed form on them. Gives how many more are non-zero than before.

    u is rounded to the nearest bfloat16 where it is stored as such.

    Args:
        turns: See `sparsegroup.kernels.cpu.threads`; a piece is a line of `work`.
        work: `[k, 3]` int64: 0, first row, and one past the last, if there are this many.
        count: The number of rows.
        d: Elements of a part of a row, at most `BLOCK`.
        base: `[PARTS]` int64, bytes from where a row begins to each of its parts.
        pages, shift, stride, lines: See `block.step`.
        rows: `[count]` int64, distinct where `applies`; or empty: then they are the rows 0, …, count - 1.
        scalars, initial, constants, penalty, weigh_at, shrink_at: See `block.step`, of one tensor.
        tau: √d λ21 scaled to the norm.
        norms: `[count]`: set to ‖weigh(s)‖ of each row; infinite where it never had a non-zero gradient.
        changed: `[count]` bool, or empty where not `applies`: set to whether weights or u of a row have changed.
        applies: Whether they may.
        drops: Whether weights of rows that never had a non-zero gradient become zero; else these rows stay.
    """
    l1, two_l2, keep, zero, one = constants[0], constants[1], constants[2], constants[4], constants[5]
    parameters = np.int64(penalty.ctypes.data)
    size = constants.itemsize
    S_at, R_at, between = s_memory(), r_memory(), STRIDE * size
    S = array_at(S_at, 6 * STRIDE, zero)
    T = array_at(block_memory(), BLOCK, zero)
    G = array_at(block_memory(), BLOCK, zero)
    u_before = array_at(block_memory(), BLOCK, zero)
    quiet = array_at(block_memory(), BLOCK, np.int64(0))
    places = array_at(block_memory(), BLOCK, np.int64(0))
    at = array_at(block_memory(), PARTS, np.int64(0))
    for i in range(BLOCK):
        G[i] = zero
    for p in range(PARTS):
        at[p] = R_at + p * between
    x, u, state = parts_in(at, BLOCK, zero)
    per_block = BLOCK // d
    row_scalars = unpack(scalars, 0)
    born = 0
    thread = enter(turns)
    k = take(turns, 0, thread, len(work))
    while k >= 0:
        last = min(work[k, 2], count)
        for first in range(work[k, 1], last, per_block):
            groups = min(per_block, last - first)
            n = groups * d
            find_rows(rows, first, groups, per_block, last, pages, shift, stride, lines, places)
            gather(places, groups, base, R_at, between, d, size, zero)
            if applies:
                born -= live_groups(x, groups, d, zero)
            for i in range(groups):
                quiet[i] = untouched(u, state, G, i * d, d, initial, zero, one)
            for i in range(n):
                S[AT_X + i] = x[i]
                u_before[i] = u[i]
            for i in range(n):
                _, sigma = update_at(G, G, state, i, row_scalars)
                S[AT_M + i] = zero
                S[AT_SIGMA + i] = sigma
                S[AT_Z + i] = u[i] - sigma * x[i]
            call(weigh_at, (S_at, np.int64(n), l1, two_l2, zero))
            sum_groups(S, T, groups, d, zero)
            for i in range(groups):
                norms[first + i] = np.inf if quiet[i] else math.sqrt(S[AT_W + i])
            if applies:
                call(shrink_at, (S_at, np.int64(groups), tau, parameters, zero, one))
                spread_groups(S, groups, d, zero)
                solve(x, u, S, n, l1, two_l2, keep, zero, one)
                if ROUNDS_U:
                    to_nearest(at[1], n)
                for i in range(groups):
                    if quiet[i]:
                        for e in range(i * d, (i + 1) * d):
                            x[e] = zero if drops else S[AT_X + e]
                            u[e] = zero
                for i in range(n):
                    T[i] = one if (x[i] != S[AT_X + i]) | (u[i] != u_before[i]) else zero
                for i in range(groups):
                    changed[first + i] = live_groups(part(T, i * d, d, zero), 1, d, zero) > 0
                scatter(places, places, 0, groups, base, R_at, between, d, size, 0)  # rounds no more: u is rounded
                born += live_groups(x, groups, d, zero)
        k = take(turns, 0, thread, len(work))
    leave(turns, born)


Kinds = tuple[int, ...]

GRAIN = 1 << 15
"""Elements, some tens of microseconds of work, below which waking a thread costs more than it does."""

SMALLEST_PIECE, LARGEST_PIECE, PIECES = 1 << 12, 1 << 18, 64
"""Elements that a thread takes at a time: a share of the work, within bounds."""

_LINE = 64


@dataclass(frozen=True)
class RowLayout:
    """Where the parts of a row are.

    Attributes:
        stride: Bytes from row to row.
        offsets: `[1, parts]`, bytes from where a row begins to each of its parts.
        lines: `[l]`, bytes from there to each of its cache lines.
        kinds: The kind of each part, see `narrow_copies`.
    """

    stride: int
    offsets: Int64s
    lines: Int64s
    kinds: Kinds


@lru_cache(1024)
def row_layout(stride: int, offsets: tuple[int, ...], part_bytes: tuple[int, ...], kinds: Kinds) -> RowLayout:
    """The layout of rows whose parts begin at `offsets`, with this many bytes each; see `RowLayout`."""
    starts = sorted(zip(offsets, part_bytes, strict=True))
    lines = [start + at for start, size in starts for at in (*range(0, size, _LINE), size - 1)]
    apart = [line for line, before in zip(lines, [-_LINE, *lines], strict=False) if line // _LINE != before // _LINE]
    return RowLayout(stride, np.array([offsets], np.int64), np.array(apart, np.int64), kinds)


@dataclass(frozen=True)
class Pages:
    """Pages of 2**shift rows, at `addresses` `[p]`."""

    addresses: Int64s
    shift: int


ONE_PAGE = Pages(np.zeros(1, np.int64), 62)
"""For rows that are found without pages."""


@cache
def is_ready(rule: Rule, kinds: Kinds, is_wide: bool, dtype: np.dtype[Any]) -> bool:
    """Compile the step of a rule, see `step_kernel`; False, with a warning, for a rule that cannot be compiled."""
    settings = StepConstants(Regularizer(), (0.0,) * len(rule.state), 0.0, False)
    work, none = np.zeros((0, 3), np.int64), np.zeros(1, np.int64)
    where = (work, none, np.zeros((1, len(kinds)), np.int64), np.zeros((1, 2), np.int64), none, *_NO_ROWS)
    numbers = (np.zeros((1, len(scalar_names(rule))), dtype), np.zeros(1, dtype), *_constants(settings, dtype, kinds))
    try:
        step_kernel(rule, kinds, is_wide)(threads.new(), *where, *numbers)
    except NumbaError as error:
        reason = str(error).strip().splitlines()[0]
        warnings.warn(
            f"the rule {rule.name!r} cannot be compiled, its steps will be slow: {reason}", RuntimeWarning, stacklevel=2
        )
        return False
    return True


@cache
def step_kernel(rule: Rule, kinds: Kinds, is_wide: bool) -> Any:
    """`block.step` for a rule.

    Args:
        rule: The base optimizer.
        kinds: Those of the weights, of u if it is carried (else there is the base optimizer only), and of each state;
            see `narrow_copies`. Tensors need parts that are `WHOLE`.
        is_wide: Also for groups of more than `block.BLOCK` elements.
    """
    first_state = len(kinds) - len(rule.state)
    carries_u = first_state == 2
    bindings: dict[str, Any] = {
        "CARRIES_U": carries_u,
        "HAS_START": rule.sigma_0 is not None,
        "IS_WIDE": is_wide,
        "PARTS": len(kinds),
        **adapters(rule, first_state),
        **narrow_copies.copiers(kinds, carries_u),
    }
    for function in (
        block.charge_start,
        block.untouched,
        block.rule_only,
        block.base_only,
        block.rule_and_z,
        block.advance,
        block.advance_large,
    ):
        bindings[function.__name__] = jit.with_globals(function, bindings)
    name = f"the step of {rule.name}" + " with sparse group lasso" * carries_u + " on wide groups" * is_wide
    if narrow_copies.BFLOAT16 in kinds:
        name += " and state in bfloat16"
    elif narrow_copies.SCALAR in kinds:
        name += " in tables"
    return jit.kernel(block.step, name, bindings)


@cache
def weigh_address(weigh: Callable[..., Any], dtype: np.dtype[Any]) -> int:
    """The address of `block.weigh_elements` for a norm's `weigh` and arrays of `dtype`."""
    number = from_dtype(dtype)
    signature = types.void(types.int64, types.int64, number, number, number)
    bindings = {"weigh": jit.inline(weigh)}
    return jit.address_of(block.weigh_elements, signature, bindings, weigh.__qualname__)


@cache
def shrink_address(shrinkage: Callable[..., Any], scalars: int, dtype: np.dtype[Any]) -> int:
    """The address of `block.shrink_groups` for a penalty's `shrinkage` of this many scalars and arrays of `dtype`."""
    number = from_dtype(dtype)
    signature = types.void(types.int64, types.int64, number, types.int64, number, number)
    values = "".join(f", scalars[{k}]" for k in range(scalars))
    text = f"def shrink(norm, tau, zero, one, scalars):\n    return shrinkage(norm, tau, zero, one{values})\n"
    shrink = jit.source(text, {"shrinkage": jit.inline(shrinkage)})
    bindings = {"shrink": shrink, "PENALTY_SCALARS": scalars}
    return jit.address_of(block.shrink_groups, signature, bindings, shrinkage.__qualname__)


_NO_ROWS = (ONE_PAGE.addresses, ONE_PAGE.shift, 0, np.zeros(0, np.int64), np.zeros(0, np.int64), 0)


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
    dtype: np.dtype[Any],
    tensors: Tensors,
    gradients: Int64s,
    scalars: npt.NDArray[Any],
    settings: StepConstants,
) -> None:
    """The step over tensors of one dtype.

    Args:
        rule: The base optimizer.
        dtype: The dtype of all memory: float32 or float64.
        tensors: Where x, u if carried, and each state are.
        gradients: `[tensors, 2]`, address of the gradient and of the Hessian's diagonal, or 0.
        scalars: `[tensors, s]` of `dtype`, from `rule.host_scalars`.
        settings: λ, and what else the groups share.
    """
    widths, work = tensors.widths, tensors.work
    alone = len(work) == 1 or int(widths @ tensors.counts) < 2 * GRAIN
    taus = (np.sqrt(widths) * settings.regularizer.tau).astype(dtype)
    kinds = (narrow_copies.WHOLE,) * tensors.base.shape[1]
    threads.share(
        step_kernel(rule, kinds, tensors.is_wide),
        *(work, tensors.counts, tensors.base, gradients, widths, *_NO_ROWS, scalars, taus),
        *_constants(settings, dtype, kinds),
        alone=alone,
    )


def advance_rows(
    rule: Rule,
    dtype: np.dtype[Any],
    rows: Int64s,
    pages: Pages,
    layout: RowLayout,
    gradients: Int64s,
    width: int,
    scalars: npt.NDArray[Any],
    settings: StepConstants,
    seed: int = 0,
) -> int:
    """The step over some rows.

    Args:
        rule: The base optimizer.
        dtype: That of the arithmetic: float32 or float64.
        rows: `[n]`, distinct.
        pages: Where the rows are.
        layout: Where x, u if carried, and each state are in a row.
        gradients: `[1, 2]`, address of the gradient `[n, width]` and of the Hessian's diagonal, or 0.
        width: Elements of a row.
        scalars: `[1, s]` of `dtype`, from `rule.host_scalars`.
        settings: λ, and what else the groups share.
        seed: That of the rounding to bfloat16.

    Returns:
        How many more of the rows are non-zero than before.
    """
    where = (pages.addresses, pages.shift, layout.stride, layout.lines, rows, seed)
    work = _pieces_of_rows(width, -(-len(rows) // 256) * 256)
    taus = np.array([math.sqrt(width) * settings.regularizer.tau], dtype)
    return threads.share(
        step_kernel(rule, layout.kinds, width > block.BLOCK),
        *(work, np.array([len(rows)]), layout.offsets, gradients, np.array([width]), *where, scalars, taus),
        *_constants(settings, dtype, layout.kinds),
        alone=len(rows) * width < GRAIN,
    )


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
def _constants(settings: StepConstants, dtype: np.dtype[Any], kinds: Kinds) -> tuple[Any, ...]:
    r = settings.regularizer
    penalty = np.array(r.penalty.scalars(), dtype)
    weigh, shrink = block.NO_NORM, 0
    if r.l21 > 0:
        weigh, shrink = weigh_address(r.norm.weigh, dtype), shrink_address(r.penalty.shrinkage, len(penalty), dtype)
    return initial_of(settings, dtype, kinds), numbers_of(settings, dtype), penalty, weigh, shrink, settings.frozen


def initial_of(settings: StepConstants, dtype: np.dtype[Any], kinds: Kinds) -> npt.NDArray[Any]:
    """The rule's state before the first gradient, `[states]`, as parts of these kinds hold it."""
    kinds_of_states = kinds[len(kinds) - len(settings.initial) :]
    dtypes = (torch.bfloat16 if kind == narrow_copies.BFLOAT16 else torch.float64 for kind in kinds_of_states)
    return np.array(list(map(as_stored, settings.initial, dtypes)), dtype)


def numbers_of(settings: StepConstants, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The `constants` of `block.step`."""
    r = settings.regularizer
    return np.array([r.l1, 2 * r.l2, r.keep, settings.sigma_0 or 0.0, 0.0, 1.0], dtype)


WIDEST = block.BLOCK
"""Elements of a row that it takes at most."""


def sweep_rows(
    rule: Rule,
    dtype: np.dtype[Any],
    count: int,
    rows: Int64s | None,
    pages: Pages,
    layout: RowLayout,
    width: int,
    scalars: npt.NDArray[Any],
    settings: StepConstants,
    *,
    applies: bool,
    drops: bool = False,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_], int]:
    """The norms of rows that carry u, and with `applies` the closed form on them.

    Args:
        rule: The base optimizer.
        dtype: That of the arithmetic: float32 or float64.
        count: The number of rows.
        rows: `[count]`, distinct where `applies`; None for the first `count`.
        pages: Where the rows are.
        layout: Where x, u and each state are in a row.
        width: Elements of a row, at most `WIDEST`.
        scalars: `[s]` of `dtype`, from `rule.host_scalars`.
        settings: λ, and what else the groups share.
        applies: Whether weights and u change.
        drops: Whether rows that never had a non-zero gradient become zero; else they stay as they are.

    Returns:
        ‖weigh(s)‖ of each row, `[count]` of `dtype`, infinite where it never had a non-zero gradient; where `applies`,
        whether a row has changed, `[count]`; and how many more of the rows are non-zero than before.
    """
    r = settings.regularizer
    norms, changed = np.empty(count, dtype), np.empty(count if applies else 0, np.bool_)
    penalty = np.array(r.penalty.scalars(), dtype)
    born = threads.share(
        sweep_kernel(rule, layout.kinds),
        pieces(np.array([width]), np.array([count])),
        count,
        width,
        layout.offsets[0],
        pages.addresses,
        pages.shift,
        layout.stride,
        layout.lines,
        np.empty(0, np.int64) if rows is None else rows,
        scalars.reshape(1, -1),
        dtype.type(math.sqrt(width) * r.tau),
        initial_of(settings, dtype, layout.kinds),
        numbers_of(settings, dtype),
        penalty,
        weigh_address(r.norm.weigh, dtype),
        shrink_address(r.penalty.shrinkage, len(penalty), dtype),
        norms,
        changed,
        applies,
        drops,
        alone=count * width < GRAIN,
    )
    return norms, changed, born


@cache
def sweep_kernel(rule: Rule, kinds: Kinds) -> Any:
    """`row_sweep.sweep` for a rule and rows of parts of some kinds; see `narrow_copies`."""
    scatter = narrow_copies.copiers(kinds[:2], True)["scatter"]  # the state stays
    bindings: dict[str, Any] = {
        "PARTS": len(kinds),
        "ROUNDS_U": kinds[1] == narrow_copies.BFLOAT16,
        **adapters(rule, 2),
        **narrow_copies.copiers(kinds, True),
        "scatter": scatter,
    }
    bindings["untouched"] = jit.with_globals(block.untouched, bindings)
    return jit.kernel(sweep, f"the sweep of {rule.name}", bindings)
