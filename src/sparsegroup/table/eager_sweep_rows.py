"""The closed form without a gradient over rows of any storage, by PyTorch on the host, some rows at a time."""

from collections.abc import Iterator

import numpy as np
import torch

from sparsegroup.groups import grouping
from sparsegroup.kernels.eager import eager_sweep
from sparsegroup.kernels.eager.eager_step import Block
from sparsegroup.kernels.numbers import as_stored
from sparsegroup.kernels.views import TORCH_DTYPES
from sparsegroup.optim.stored import RowStep
from sparsegroup.table.row_locations import Int64s
from sparsegroup.table.row_storage import WEIGHT, Floats, RowMemory

_AT_A_TIME = 1 << 16


def critical_l21(memory: RowMemory, rows: Int64s, request: RowStep, state_dtype: torch.dtype) -> Floats:
    """The critical λ21 of `rows` `[n]`, float64; see `sparsegroup.kernels.eager.eager_sweep`.

    Args:
        memory: Rows that carry u.
        rows: Their numbers.
        request: The step that has no gradient.
        state_dtype: In which u and the state are stored.
    """
    found = [
        eager_sweep.critical_l21(
            request.rule,
            block,
            request.numbers.scalars,
            _initial(request, state_dtype),
            request.settings.regularizer,
            grouping("rows", block.x.shape, block.x.device),
        )
        for _, block in _blocks(memory, rows, request)
    ]
    return torch.cat([torch.empty(0, 1), *found]).flatten().double().numpy()


def sweep(
    memory: RowMemory,
    rows: Int64s,
    request: RowStep,
    weight_dtype: torch.dtype,
    state_dtype: torch.dtype,
    *,
    drops: bool,
) -> Int64s:
    """The closed form on `rows` `[n]`, distinct; see `critical_l21`. The live rows are to be counted anew.

    Args:
        memory, rows, request: See `critical_l21`.
        weight_dtype, state_dtype: In which weights, and u and the state, are stored.
        drops: See `RowStorage.sweep`.

    Returns:
        The rows that have changed.
    """
    changed = [np.empty(0, np.int64)]
    for some, block in _blocks(memory, rows, request):
        x, u, touched = eager_sweep.swept(
            request.rule,
            block,
            request.numbers.scalars,
            _initial(request, state_dtype),
            request.settings.regularizer,
            grouping("rows", block.x.shape, block.x.device),
            weight_dtype,
        )
        if drops:
            x = torch.where(touched, x, torch.zeros_like(x))
        after = x.to(block.x.dtype)
        memory.write(WEIGHT, some, after.numpy())
        memory.write("u", some, u.numpy())
        assert block.u is not None
        changed.append(some[((after != block.x) | (u != block.u)).any(1).numpy()])
    return np.concatenate(changed)


def _initial(request: RowStep, state_dtype: torch.dtype) -> list[float]:
    return [as_stored(value, state_dtype) for value in request.settings.initial]


def _blocks(memory: RowMemory, rows: Int64s, request: RowStep) -> Iterator[tuple[Int64s, Block]]:
    for first in range(0, len(rows), _AT_A_TIME):
        some = np.ascontiguousarray(rows[first : first + _AT_A_TIME])
        x, u, *state = (
            torch.from_numpy(memory.read(part, some)).to(TORCH_DTYPES[memory.dtype])
            for part in (WEIGHT, "u", *request.rule.state)
        )
        yield some, Block(x, u, state)
