"""The closed form without a gradient on CPU: a rule bound to the source in `row_sweep`."""

import math
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu import block, jit, row_sweep, threads
from sparsegroup.kernels.cpu.compiled_step import GRAIN, Pages, RowLayout, pieces, shrink_address, weigh_address
from sparsegroup.kernels.cpu.rule_source import adapters
from sparsegroup.kernels.regularizer import StepConstants
from sparsegroup.rules import Rule

Int64s = npt.NDArray[np.int64]

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
        dtype: The dtype of all memory: float32 or float64.
        count: The number of rows.
        rows: `[count]`, distinct where `applies`; None for the first `count`.
        pages: Where the rows lie.
        layout: Where x, u and each state lie in a row.
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
        sweep_kernel(rule),
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
        np.array(settings.initial, dtype),
        np.array([r.l1, 2 * r.l2, r.keep, settings.sigma_0 or 0.0, 0.0, 1.0], dtype),
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
def sweep_kernel(rule: Rule) -> Any:
    """`row_sweep.sweep` for a rule."""
    bindings: dict[str, Any] = {"PARTS": 2 + len(rule.state), **adapters(rule, 2)}
    bindings["untouched"] = jit.with_globals(block.untouched, bindings)
    return jit.kernel(row_sweep.sweep, f"the sweep of {rule.name}", bindings)
