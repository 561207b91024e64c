"""The lookup for autograd: differentiable any number of times, with sparse gradients for the table."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from sparsegroup.kernels.views import array_of
from sparsegroup.optim.stored import HEIGHT, StoredParameter
from sparsegroup.table import batch
from sparsegroup.table.index import ABSENT
from sparsegroup.table.records import Located
from sparsegroup.table.table import Table


def vectors(weight: StoredParameter, table: Table, located: Located) -> Tensor:
    """The vectors of a lookup, `[keys, dim]`, with a graph if `weight` and autograd want one."""
    if torch.is_grad_enabled() and weight.requires_grad:
        result: Tensor = _Lookup.apply(weight, table, located)  # type: ignore[no-untyped-call]
        return result
    return torch.from_numpy(table.expand(located))


class _Lookup(Function):
    @staticmethod
    def forward(ctx: Any, weight: StoredParameter, table: Table, located: Located) -> Tensor:
        ctx.table, ctx.located = table, located
        return torch.from_numpy(table.expand(located))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        table, located = ctx.table, ctx.located
        table.check_generation(located)
        rows = located.rows_tensor
        values = _AddUp.apply(gradient, located)  # type: ignore[no-untyped-call]
        if located.has_absent:
            present = rows != ABSENT
            rows, values = rows[present], values[present]
        else:
            table.know_distinct(located)
        size = (HEIGHT, values.shape[1])
        return torch.sparse_coo_tensor(rows.unsqueeze(0), values, size, check_invariants=False), None, None


class _AddUp(Function):
    """Sums over the keys that share a row: `[keys, dim]` → `[distinct, dim]`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, located: Located) -> Tensor:
        ctx.located = located
        out = values.new_zeros(len(located.rows), values.shape[1])
        batch.add_up(located.inverse, array_of(values.contiguous()), array_of(out))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Gather.apply(gradient, ctx.located), None  # type: ignore[no-untyped-call]


class _Gather(Function):
    """A row's values for each of its keys: `[distinct, dim]` → `[keys, dim]`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, located: Located) -> Tensor:
        ctx.located = located
        out = values.new_empty(len(located.inverse), values.shape[1])
        batch.expand(located.inverse, array_of(values.contiguous()), array_of(out))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _AddUp.apply(gradient, ctx.located), None  # type: ignore[no-untyped-call]
