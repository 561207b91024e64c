"""The compiled step on CPU: a rule bound to the source in `block`, and tensors handed over as addresses."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numba.core.errors import NumbaError

from sparsegroup import prox
from sparsegroup.kernels import block, jit, threads
from sparsegroup.kernels.eager import Regularizer
from sparsegroup.rules import Rule

Int64s = npt.NDArray[np.int64]

_NORMS: Mapping[prox.Norm, int] = {"s": block.NORM_S, "s_tilde": block.NORM_S_TILDE, "metric": block.NORM_METRIC}
_PENALTIES: Mapping[prox.Penalty, int] = {"lasso": block.LASSO, "mcp": block.MCP, "hard": block.HARD}

GRAIN = 1 << 17
"""Elements, about a tenth of a millisecond of work, below which a thread of its own costs more than it does."""

_CONTIGUOUS = np.zeros(0, np.int64)
_ONE_PAGE = np.zeros(1, np.int64)
_WHOLE = 62
"""`shift` that leaves every row in the first page."""


@dataclass(frozen=True)
class Settings:
    """What the groups of a launch share.

    Attributes:
        regularizer: λ1, λ21, λ2, norm and penalty.
        initial: Of the rule's states, in their order.
        sigma_0: From `rule.host_sigma_0`, for a rule that has it.
        frozen: The learning rate is 0: only the states advance.
    """

    regularizer: Regularizer
    initial: Sequence[float]
    sigma_0: float | None
    frozen: bool


@dataclass(frozen=True)
class Paged:
    """Rows whose parts lie side by side in pages of 2**shift rows.

    Attributes:
        pages: `[p]`, addresses.
        shift: log2 of the rows of a page.
        strides: `[parts]`, bytes from row to row.
        offsets: `[parts]`, bytes from the page's start to the part of its first row.
    """

    pages: Int64s
    shift: int
    strides: Int64s
    offsets: Int64s


def apart(addresses: Int64s, row_bytes: int) -> Paged:
    """Rows of tensors of their own at `addresses` `[parts]`, each row of `row_bytes`."""
    return Paged(_ONE_PAGE, _WHOLE, np.full(len(addresses), row_bytes, np.int64), addresses)


@cache
def is_ready(rule: Rule, carries_u: bool, dtype: np.dtype[Any]) -> bool:
    """Compile the step of a rule; False, with a warning, for a rule that cannot be compiled."""
    parts = len(rule.state) + 1 + carries_u
    nothing = np.zeros((0, 3), np.int64)
    settings = Settings(Regularizer(), [0.0] * len(rule.state), 0.0, False)
    arguments = (
        np.zeros((0, parts), np.int64),
        np.zeros((0, 2), np.int64),
        np.zeros(0, np.int64),
        _ONE_PAGE,
        _WHOLE,
        np.zeros(parts, np.int64),
        _CONTIGUOUS,
    )
    try:
        scalars = np.zeros((0, len(_scalar_names(rule))))
        _launch(rule, carries_u, dtype, [nothing], arguments, np.zeros(0, np.int64), scalars, settings)
    except NumbaError as error:
        reason = str(error).strip().splitlines()[0]
        warnings.warn(
            f"the rule {rule.name!r} cannot be compiled, its steps will be slow: {reason}", RuntimeWarning, stacklevel=2
        )
        return False
    return True


@cache
def step_kernel(rule: Rule, carries_u: bool) -> Any:
    """`block.step` for a rule; with `carries_u` the closed form, without it the base optimizer alone."""
    first_state = 2 if carries_u else 1
    scalars = len(_scalar_names(rule))
    bindings: dict[str, Any] = {
        "CARRIES_U": carries_u,
        "HAS_START": rule.sigma_0 is not None,
        "PARTS": first_state + len(rule.state),
        **_adapters(rule, first_state, scalars),
    }
    for function in (
        block.charge_start,
        block.untouched,
        block.rule_only,
        block.base_only,
        block.rule_and_weights,
        block.advance,
        block.advance_large,
    ):
        bindings[function.__name__] = jit.with_globals(function, bindings)
    name = f"the step of {rule.name}" + (" with sparse group lasso" if carries_u else "")
    return jit.kernel(block.step, name, bindings, digest=f"{jit.code_digest(rule.update)} {carries_u} {rule.state}")


def _scalar_names(rule: Rule) -> tuple[str, ...]:
    code = rule.update.__code__
    names = code.co_varnames[: code.co_argcount]
    return names[1 + int(rule.second_order) + len(rule.state) :]


def _adapters(rule: Rule, first_state: int, scalars: int) -> dict[str, Any]:
    """Functions of as many arguments as the rule has states and scalars."""
    states = range(len(rule.state))
    names = {"update": jit.inline(rule.update), "array_at": jit.array_at}
    arguments = ["g[i]", *(["hessian[i]"] if rule.second_order else [])]
    arguments += [f"state[{k}][i]" for k in states] + [f"scalars[{k}]" for k in range(scalars)]
    results = ", ".join(["m", "sigma", *(f"s{k}" for k in states)])
    stores = "".join(f"    state[{k}][i] = s{k}\n" for k in states)
    part = "array_at(base[{p}] + page + slot * strides[{p}], count, zero)"
    scratch = "R[{p} * STRIDE : {p} * STRIDE + STRIDE]"

    def tuple_of(items: Sequence[str]) -> str:
        return "(" + "".join(f"{item}, " for item in items) + ")"

    u = first_state - 1
    hessian = "array_at(at[1] + offset, count, zero)" if rule.second_order else "g"
    texts = {
        "update_at": f"def update_at(g, hessian, state, i, scalars):\n"
        f"    {results} = update({', '.join(arguments)})\n{stores}    return m, sigma\n",
        "unpack": f"def unpack(a):\n    return {tuple_of([f'a[{k}]' for k in range(scalars)])}\n",
        "parts_at": "def parts_at(base, page, slot, strides, count, zero):\n"
        f"    return {part.format(p=0)}, {part.format(p=u)}, "
        f"{tuple_of([part.format(p=first_state + k) for k in states])}\n",
        "scratch_parts": "def scratch_parts(R):\n"
        f"    return {scratch.format(p=0)}, {scratch.format(p=u)}, "
        f"{tuple_of([scratch.format(p=first_state + k) for k in states])}\n",
        "gradient_at": "def gradient_at(at, offset, count, zero):\n"
        f"    g = array_at(at[0] + offset, count, zero)\n    return g, {hessian}\n",
        "is_initial": "def is_initial(state, initial, i):\n"
        f"    return {' and '.join(['True', *(f'state[{k}][i] == initial[{k}]' for k in states)])}\n",
        "part_of": "def part_of(state, start, end):\n"
        f"    return {tuple_of([f'state[{k}][start:end]' for k in states])}\n",
    }
    names["STRIDE"] = block.STRIDE
    return {name: jit.source(text, names) for name, text in texts.items()}


def advance_tensors(
    rule: Rule,
    carries_u: bool,
    dtype: npt.DTypeLike,
    base: Int64s,
    gradients: Int64s,
    widths: Int64s,
    counts: Int64s,
    scalars: npt.NDArray[Any],
    settings: Settings,
) -> None:
    """The step over contiguous tensors of one dtype, group after group.

    Args:
        rule: The base optimizer.
        carries_u: Whether the tensors carry u.
        dtype: Of all memory: float32 or float64.
        base: `[tensors, parts]`, address of x, of u if carried, and of each state.
        gradients: `[tensors, 2]`, address of the gradient and of the Hessian's diagonal, or 0.
        widths: `[tensors]`, elements per group.
        counts: `[tensors]`, groups.
        scalars: `[tensors, s]`, from `rule.host_scalars`.
        settings: The rest.
    """
    strides = np.zeros(base.shape[1], np.int64)
    parts = _split(widths, counts)
    arguments = (base, gradients, widths, _ONE_PAGE, _WHOLE, strides, _CONTIGUOUS)
    _launch(rule, carries_u, dtype, parts, arguments, widths, scalars, settings)


def advance_rows(
    rule: Rule,
    carries_u: bool,
    dtype: npt.DTypeLike,
    rows: Int64s,
    memory: Paged,
    gradients: Int64s,
    width: int,
    scalars: npt.NDArray[Any],
    settings: Settings,
) -> int:
    """The step over some rows.

    Args:
        rule: The base optimizer.
        carries_u: Whether the rows carry u.
        dtype: Of all memory: float32 or float64.
        rows: `[n]`, distinct.
        memory: Where x, u if carried, and each state lie.
        gradients: `[1, 2]`, address of the gradient `[n, width]` and of the Hessian's diagonal, or 0.
        width: Elements of a row.
        scalars: `[1, s]`, from `rule.host_scalars`.
        settings: The rest.

    Returns:
        How many more of the rows are non-zero than before.
    """
    widths = np.array([width], np.int64)
    parts = _split(widths, np.array([len(rows)], np.int64))
    base = memory.offsets.reshape(1, -1)
    arguments = (base, gradients, widths, memory.pages, memory.shift, memory.strides, rows)
    return sum(_launch(rule, carries_u, dtype, parts, arguments, widths, scalars, settings))


def _launch(
    rule: Rule,
    carries_u: bool,
    dtype: npt.DTypeLike,
    parts: Sequence[Int64s],
    arguments: tuple[Any, ...],
    widths: Int64s,
    scalars: npt.NDArray[Any],
    settings: Settings,
) -> list[int]:
    r = settings.regularizer
    norm = _NORMS[r.norm] if r.l21 > 0 else block.NO_NORM
    taus = np.sqrt(widths) * (r.l21 * prox.TAU_SCALE[r.norm])
    ratio = r.mcp_gamma / (r.mcp_gamma - 1)
    keep = 1.0 if r.l1 == 0 else 0.0
    constants = np.array([r.l1, 2 * r.l2, ratio, keep, settings.sigma_0 or 0.0, 0.0, 1.0], dtype)
    rest = (
        scalars.astype(dtype),
        taus.astype(dtype),
        np.array(settings.initial, dtype),
        constants,
        norm,
        _PENALTIES[r.penalty],
        settings.frozen,
    )
    kernel = step_kernel(rule, carries_u)
    if len(parts) == 1:
        return [kernel(parts[0], *arguments, *rest)]
    return threads.run([partial(kernel, part, *arguments, *rest) for part in parts])


def _split(widths: Int64s, counts: Int64s) -> list[Int64s]:
    """Pieces of work `[k, 3]`, about equal in elements, one list per thread."""
    elements = int(widths @ counts)
    workers = max(1, min(torch.get_num_threads(), elements // GRAIN))
    everything = np.stack([np.arange(len(counts)), np.zeros_like(counts), counts], axis=1)
    if workers == 1:
        return [everything]
    parts: list[list[tuple[int, int, int]]] = [[]]
    room = share = elements / workers
    for tensor, (width, count) in enumerate(zip(widths.tolist(), counts.tolist(), strict=True)):
        first = 0
        while first < count:
            if room < width and len(parts) < workers:
                parts.append([])
                room += share
            fitting = count if len(parts) == workers else max(1, int(room // width))
            last = min(count, first + fitting)
            parts[-1].append((tensor, first, last))
            room -= (last - first) * width
            first = last
    return [np.array(part, np.int64).reshape(-1, 3) for part in parts if part]
