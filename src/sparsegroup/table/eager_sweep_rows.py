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


def survival_l21(memory: RowMemory, rows: Int64s, request: RowStep) -> Floats:
    """The critical λ21 of `rows` `[n]`, float64; see `sparsegroup.kernels.eager.eager_sweep`.

    Args:
        memory: Rows that carry u.
        rows: Their numbers.
        request: The step that has no gradient.
    """
    found = [
        eager_sweep.survival_l21(
            request.rule,
            block,
            request.numbers.scalars,
            _initial(request, memory),
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
    *,
    drops: bool,
) -> Int64s:
    """The closed form on `rows` `[n]`, distinct; see `survival_l21`. The live rows are to be counted anew.

    Args:
        memory, rows, request: See `survival_l21`.
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
            _initial(request, memory),
            request.settings.regularizer,
            grouping("rows", block.x.shape, block.x.device),
            memory.part_dtype(WEIGHT),
        )
        if drops:
            x = torch.where(touched, x, torch.zeros_like(x))
        after = x.to(block.x.dtype)
        memory.write(WEIGHT, some, after.numpy())
        memory.write("u", some, u.numpy())
        assert block.u is not None
        changed.append(some[((after != block.x) | (u != block.u)).any(1).numpy()])
    return np.concatenate(changed)


def _initial(request: RowStep, memory: RowMemory) -> list[float]:
    values = zip(request.rule.state, request.settings.initial, strict=True)
    return [as_stored(value, memory.part_dtype(name)) for name, value in values]


def _blocks(memory: RowMemory, rows: Int64s, request: RowStep) -> Iterator[tuple[Int64s, Block]]:
    for first in range(0, len(rows), _AT_A_TIME):
        some = np.ascontiguousarray(rows[first : first + _AT_A_TIME])
        x, u, *state = (
            torch.from_numpy(memory.read(part, some)).to(TORCH_DTYPES[memory.dtype])
            for part in (WEIGHT, "u", *request.rule.state)
        )
        yield some, Block(x, u, state)
