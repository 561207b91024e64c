"""The compiled step and sweep of a rule, over tensors and over rows: the source in `block`, bound and called."""

import warnings
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from numba import from_dtype, types
from numba.core.errors import NumbaError

from sparsegroup.kernels.cpu import block, jit, threads
from sparsegroup.kernels.cpu.intrinsics import on_stack
from sparsegroup.kernels.cpu.rows import BFLOAT16, SCALAR, copiers
from sparsegroup.kernels.step import Regularizer, StepConstants, as_stored
from sparsegroup.penalties import Hard
from sparsegroup.rules import Rule

Int64s = npt.NDArray[np.int64]
Kinds = tuple[int, ...]

GRAIN = 1 << 15
"""Elements of rows below which waking a thread costs more than the thread saves; for tensors twice as many: with Adam
an element of a row takes 2.5 ns, of a tensor .8 ns (groups of 8, one core of an AMD EPYC)."""

SMALLEST_PIECE, LARGEST_PIECE, PIECES = 1 << 12, 1 << 18, 64
"""Elements that a thread takes at a time: a share of the work, within bounds."""

_LINE = 64


class RowLayout(NamedTuple):
    """Where the parts of a row are."""

    stride: int  # bytes from row to row
    offsets: Int64s  # `[1, parts]`, bytes from where a row begins to each of its parts
    cache_lines: Int64s  # `[l]`, bytes from there to each of its cache lines
    kinds: Kinds  # the kind of each part, see `rows.copiers`


@lru_cache(1024)
def row_layout(stride: int, offsets: tuple[int, ...], part_bytes: tuple[int, ...], kinds: Kinds) -> RowLayout:
    """The layout of rows whose parts begin at `offsets`, with this many bytes each."""
    starts = sorted(zip(offsets, part_bytes, strict=True))
    lines = [start + at for start, size in starts for at in (*range(0, size, _LINE), size - 1)]
    apart = [line for line, before in zip(lines, [-_LINE, *lines], strict=False) if line // _LINE != before // _LINE]
    return RowLayout(stride, np.array([offsets], np.int64), np.array(apart, np.int64), kinds)


class Pages(NamedTuple):
    """Pages of 2**shift rows, at `addresses` `[p]`."""

    addresses: Int64s
    shift: int


ONE_PAGE = Pages(np.zeros(1, np.int64), 62)
"""For rows that are found without pages."""

NO_ROWS = (0, *ONE_PAGE, 0, np.zeros(0, np.int64), 0)
"""The rows of `block.step` for whole tensors."""


def advance_rows(
    rule: Rule,
    dtype: np.dtype[Any],
    rows_at: int,
    count: int,
    pages: Pages,
    layout: RowLayout,
    gradients: Int64s,
    width: int,
    scalars: npt.NDArray[Any],
    constants: StepConstants,
    seed: int = 0,
) -> int:
    """The step over `count` distinct rows of `width` elements; gives how many more of them are non-zero than before.

    The arithmetic is in `dtype`, float32 or float64. `rows_at`, `gradients`, `scalars` and `seed` are `block.step`'s.
    """
    kernel = step_kernel(rule, layout.kinds, width > block.BLOCK)
    rows = rows_at, *pages, layout.stride, layout.cache_lines, seed
    taus, terms = taus_of(constants, dtype, (width,)), terms_of(constants, dtype, layout.kinds)
    groups, alone = _groups_of_rows(layout, width, count), count * width < GRAIN
    return threads.share(kernel, groups, rows, gradients, scalars, taus, terms, alone=alone)


def sweep_rows(
    rule: Rule,
    dtype: np.dtype[Any],
    count: int,
    rows: Int64s | None,
    pages: Pages,
    layout: RowLayout,
    width: int,
    scalars: npt.NDArray[Any],
    constants: StepConstants,
    *,
    applies: bool,
    drops: bool = False,
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_], int]:
    """`block.sweep` over `count` rows of at most `block.BLOCK` elements, the first ones if `rows` is None.

    Gives the norm of each row; if it `applies`, whether each has changed; and how many more of them are non-zero.
    """
    norms, changed = np.empty(count, dtype), np.empty(count if applies else 0, np.bool_)
    numbers = None if rows is None else np.ascontiguousarray(rows)
    live_change = threads.share(
        sweep_kernel(rule, layout.kinds),
        _groups_of_rows(layout, width, count),
        (0 if numbers is None else numbers.ctypes.data, *pages, layout.stride, layout.cache_lines, 0),
        scalars.reshape(1, -1),
        taus_of(constants, dtype, (width,)),
        terms_of(constants, dtype, layout.kinds, weighs=True),
        norms,
        changed,
        applies,
        drops,
        alone=count * width < GRAIN,
    )
    return norms, changed, live_change


def pieces(widths: Int64s, counts: Int64s) -> Int64s:
    """The work over tensors of `counts` groups of `widths` elements, cut up: `[k, 3]`, see `block.step`."""
    share = min(max(int(widths @ counts) // PIECES, SMALLEST_PIECE), LARGEST_PIECE)
    sizes = np.maximum(share // widths, 1)
    per_tensor = -(-counts // sizes)
    tensor = np.repeat(np.arange(len(counts)), per_tensor)
    first = (np.arange(len(tensor)) - np.repeat(np.cumsum(per_tensor) - per_tensor, per_tensor)) * sizes[tensor]
    return np.stack([tensor, first, first + sizes[tensor]], axis=1)


@lru_cache(1024)
def _pieces_of_rows(width: int, most: int) -> Int64s:
    return pieces(np.array([width]), np.array([most]))


def _groups_of_rows(layout: RowLayout, width: int, count: int) -> tuple[Int64s, ...]:
    work = _pieces_of_rows(width, -(-count // 256) * 256)
    return work, np.array([count]), layout.offsets, np.array([width])


@lru_cache(64)
def taus_of(constants: StepConstants, dtype: np.dtype[Any], widths: tuple[int, ...]) -> npt.NDArray[Any]:
    """The threshold of groups of each width, `[tensors]`."""
    return (np.sqrt(np.array(widths, np.int64)) * constants.regularizer.tau).astype(dtype)


@lru_cache(64)
def terms_of(constants: StepConstants, dtype: np.dtype[Any], kinds: Kinds, weighs: bool = False) -> tuple[Any, ...]:
    """Return the `terms` of `block`; norms are computed if λ21 > 0, or it `weighs`."""
    r = constants.regularizer
    dtypes = (
        torch.bfloat16 if kind == BFLOAT16 else torch.float64 for kind in kinds[len(kinds) - len(constants.initial) :]
    )
    initial = np.array(list(map(as_stored, constants.initial, dtypes)), dtype)
    l1, two_l2, keep, sigma_0, zero, one = map(dtype.type, (r.l1, 2 * r.l2, r.keep, constants.sigma_0 or 0.0, 0.0, 1.0))
    penalty = np.array(r.penalty.scalars(), dtype)
    weigh_at, shrink_at = block.NO_NORM, 0
    if weighs or r.l21 != 0:
        weigh_at = weigh_address(r.norm.weigh, dtype)
        shrink_at = shrink_address(r.penalty.shrinkage, len(penalty), dtype)
    lambdas = l1, two_l2, keep, sigma_0, zero, one
    return initial, lambdas, penalty, weigh_at, shrink_at, constants.frozen


@cache
def compiles(rule: Rule, kinds: Kinds, is_wide: bool, dtype: np.dtype[Any]) -> bool:
    """Compile the step of a rule, see `step_kernel`; False, with a warning, for a rule that cannot be compiled.

    A run over zero rows compiles it: one signature serves tensors and rows.
    """
    constants = StepConstants(Regularizer(), (0.0,) * len(rule.state), 0.0, False)
    layout = row_layout(0, (0,) * len(kinds), (1,) * len(kinds), kinds)
    scalars, width = np.zeros((1, len(scalar_names(rule))), dtype), block.BLOCK + 1 if is_wide else 1
    try:
        advance_rows(rule, dtype, 0, 0, ONE_PAGE, layout, np.zeros((1, 2), np.int64), width, scalars, constants)
    except NumbaError as error:
        reason = str(error).strip().splitlines()[0]
        warnings.warn(
            f"the rule {rule.name!r} cannot be compiled, its steps will be slow: {reason}", RuntimeWarning, stacklevel=2
        )
        return False
    return True


def compile_sweep(rule: Rule, kinds: Kinds, dtype: np.dtype[Any]) -> None:
    """Compile the sweep of a rule that can be compiled, by the hard threshold and the practical norm."""
    constants = StepConstants(Regularizer(penalty=Hard()), (0.0,) * len(rule.state), 0.0, False)
    layout = row_layout(0, (0,) * len(kinds), (1,) * len(kinds), kinds)
    scalars = np.zeros(len(scalar_names(rule)), dtype)
    sweep_rows(rule, dtype, 0, None, ONE_PAGE, layout, 1, scalars, constants, applies=True)


@cache
def step_kernel(rule: Rule, kinds: Kinds, is_wide: bool) -> Any:
    """`block.step` for a rule, also for groups of more than `block.BLOCK` elements if it `is_wide`.

    `kinds` are of the weights, of u if it is carried (else there is the base optimizer only), and of each state;
    see `rows.copiers`. Tensors need parts that are `WHOLE`.
    """
    first_state = len(kinds) - len(rule.state)
    carries_u = first_state == 2
    bindings: dict[str, Any] = {
        "CARRIES_U": carries_u,
        "HAS_START": rule.sigma_0 is not None,
        "IS_WIDE": is_wide,
        "PARTS": len(kinds),
        "WEIGHTS": kinds[0],
        **adapters(rule, first_state),
        **copiers(kinds, carries_u),
    }
    for function in (  # in this order: each function sees the ones bound before it
        block.round_weights,
        block.charge_start,
        block.is_untouched,
        block.rule_only,
        block.base_only,
        block.rule_and_z,
        block.advance,
        block.advance_large,
    ):
        bindings[function.__name__] = jit.with_globals(function, bindings)
    name = f"the step of {rule.name}" + " with sparse group lasso" * carries_u + " on wide groups" * is_wide
    if BFLOAT16 in kinds:
        name += " and state in bfloat16"
    elif SCALAR in kinds:
        name += " in tables"
    return jit.kernel(block.step, name, bindings)


@cache
def sweep_kernel(rule: Rule, kinds: Kinds) -> Any:
    """`block.sweep` for a rule and rows of parts of some kinds; see `rows.copiers`."""
    bindings: dict[str, Any] = {
        "PARTS": len(kinds),
        "WEIGHTS": kinds[0],
        "ROUNDS_U": kinds[1] == BFLOAT16,
        **adapters(rule, 2),
        "gather": copiers(kinds, True)["gather"],
        "scatter": copiers(kinds[:2], True)["scatter"],  # the state stays
    }
    for function in (block.is_untouched, block.round_weights):
        bindings[function.__name__] = jit.with_globals(function, bindings)
    return jit.kernel(block.sweep, f"the sweep of {rule.name}", bindings)


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


def scalar_names(rule: Rule) -> tuple[str, ...]:
    """The names of what `rule.scalars` gives, as `update` takes it."""
    code = rule.update.__code__
    names = code.co_varnames[: code.co_argcount]
    return names[1 + int(rule.has_second_input) + len(rule.state) :]


def adapters(rule: Rule, first_state: int) -> dict[str, Any]:
    """Functions of as many arguments as the rule has states and scalars: name → what `block` calls by it.

    `first_state` is the number of the first state among the parts: 2 with u, else 1. For Adam, `update_at` is

        def update_at(inputs, state, i, scalars):
            m, sigma, s0, s1 = update(inputs[0][i], state[0][i], state[1][i], scalars[0], …, scalars[7])
            state[0][i] = s0
            state[1][i] = s1
            return m, sigma
    """
    states, scalars = range(len(rule.state)), len(scalar_names(rule))
    names = {"update": jit.inline(rule.update), "array_at": jit.array_at, "part": block.part}
    arguments = ["inputs[0][i]", *(["inputs[1][i]"] if rule.has_second_input else [])]
    arguments += [f"state[{k}][i]" for k in states] + [f"scalars[{k}]" for k in range(scalars)]
    results = ", ".join(["m", "sigma", *(f"s{k}" for k in states)])
    stores = "".join(f"    state[{k}][i] = s{k}\n" for k in states)

    def tuple_of(items: Sequence[str]) -> str:
        return "(" + "".join(f"{item}, " for item in items) + ")"

    def parts(x: str, u: str, state: str) -> str:
        return f"{x}, {u}, {tuple_of([state.format(k=k, p=first_state + k) for k in states])}"

    inside = "array_at(at[{p}], count, zero)"
    second_input = "array_at(at[t, 1] + offset, count, zero)" if rule.has_second_input else "g"
    texts = {
        "update_at": f"def update_at(inputs, state, i, scalars):\n"
        f"    {results} = update({', '.join(arguments)})\n{stores}    return m, sigma\n",
        "unpack": f"def unpack(a, t):\n    return {tuple_of([f'a[t, {k}]' for k in range(scalars)])}\n",
        "parts_in": "def parts_in(at, count, zero):\n"
        f"    return {parts(inside.format(p=0), inside.format(p=first_state - 1), inside)}\n",
        "parts_of": "def parts_of(parts, start, count, zero):\n    x, u, state = parts\n    return "
        f"{parts(*(f'part({a}, start, count, zero)' for a in ('x', 'u', 'state[{k}]')))}\n",
        "inputs_at": "def inputs_at(at, t, offset, count, zero):\n"
        f"    g = array_at(at[t, 0] + offset, count, zero)\n    return g, {second_input}\n",
        "is_initial": "def is_initial(state, initial, i):\n"
        f"    return {' and '.join(['True', *(f'state[{k}][i] == initial[{k}]' for k in states)])}\n",
    }
    memory = on_stack((first_state + len(rule.state)) * block.STRIDE * 8)
    return {name: jit.source(text, names) for name, text in texts.items()} | {"r_memory": memory}
