"""The lookup for autograd: differentiable any number of times, with sparse gradients for the table."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from sparsegroup.optim.stored import HEIGHT, StoredParameter
from sparsegroup.table import batch
from sparsegroup.table.index import ABSENT
from sparsegroup.table.row_locations import RowLocations
from sparsegroup.table.table import Table


def for_autograd(weight: StoredParameter, table: Table, located: Any, vectors: Tensor) -> Tensor:
    """The vectors of a lookup, `[keys, dim]`, with a graph if `weight` and autograd want one."""
    if torch.is_grad_enabled() and weight.requires_grad:
        lookup = _Lookup if isinstance(located, RowLocations) else _DeviceLookup
        result: Tensor = lookup.apply(weight, table, located, [vectors])  # type: ignore[no-untyped-call]
        return result
    return vectors


class _Lookup(Function):
    @staticmethod
    def forward(
        ctx: Any, weight: StoredParameter, table: Table, located: RowLocations, vectors: list[Tensor]
    ) -> Tensor:
        ctx.table, ctx.located = table, located
        return vectors[0]  # in a list: of a tensor that is an argument autograd would return a view

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        table, located = ctx.table, ctx.located
        table.check_generation(located)
        rows = located.rows_tensor
        if torch.is_grad_enabled():  # create_graph=True
            values: Tensor = _AddUp.apply(gradient, located)  # type: ignore[no-untyped-call]
        else:
            values = batch.added_up(located.inverse, gradient, len(rows))
        return _sparse(table, located, rows, values), None, None, None


class _DeviceLookup(Function):
    """The lookup in a device's rows: the gradient is that of each key, to be added up by the step's kernel."""

    @staticmethod
    def forward(ctx: Any, weight: StoredParameter, table: Table, located: Any, vectors: list[Tensor]) -> Tensor:
        ctx.table, ctx.located = table, located
        return vectors[0]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        table, located = ctx.table, ctx.located
        table.check_generation(located)
        rows, gradient = located.runs.rows, gradient.contiguous()  # or autograd would copy both
        return _sparse(table, located, rows, gradient), None, None, None


def _sparse(table: Table, located: Any, rows: Tensor, values: Tensor) -> Tensor:
    """The gradient for the table, without what has no row."""
    if located.has_absent:
        present = rows != ABSENT
        rows, values = rows[present], values[present]
    else:
        table.know_distinct(located)
    return torch.sparse_coo_tensor(rows.unsqueeze(0), values, (HEIGHT, values.shape[1]), check_invariants=False)


class _AddUp(Function):
    """Sums over the keys that share a row: `[keys, dim]` → `[distinct, dim]`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, located: RowLocations) -> Tensor:
        ctx.located = located
        return batch.added_up(located.inverse, values, len(located.rows_tensor))

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Gather.apply(gradient, ctx.located), None  # type: ignore[no-untyped-call]


class _Gather(Function):
    """A row's values for each of its keys: `[distinct, dim]` → `[keys, dim]`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, located: RowLocations) -> Tensor:
        ctx.located = located
        return batch.expanded(located.inverse, values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _AddUp.apply(gradient, ctx.located), None  # type: ignore[no-untyped-call]
