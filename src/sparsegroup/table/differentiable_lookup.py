"""The lookup for autograd: differentiable any number of times, with sparse gradients for the table."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from sparsegroup.optim.stored import HEIGHT, StoredParameter
from sparsegroup.optim.stored_gradient import attach
from sparsegroup.table import batch
from sparsegroup.table.buckets import ABSENT
from sparsegroup.table.row_locations import Int32s, RowLocations


def for_autograd(weight: StoredParameter, locations: RowLocations, vectors: Tensor) -> Tensor:
    """The vectors of a lookup, `[keys, dim]`, with a graph if `weight` and autograd want one."""
    if torch.is_grad_enabled() and weight.requires_grad:
        result: Tensor = _Lookup.apply(weight, locations, [vectors])  # type: ignore[no-untyped-call]
        return result
    return vectors


def spread_out(vectors: Tensor, inverse: Int32s) -> Tensor:
    """The vector `[distinct, dim]` of each of the keys that share it, `[keys, dim]`; differentiable as `for_autograd`.

    Args:
        vectors: Those of distinct keys.
        inverse: `[keys]`, which of them each key has.
    """
    result: Tensor = _Gather.apply(vectors, inverse, len(vectors))  # type: ignore[no-untyped-call]
    return result


class _Lookup(Function):
    @staticmethod
    def forward(ctx: Any, weight: StoredParameter, locations: RowLocations, vectors: list[Tensor]) -> Tensor:
        ctx.locations, ctx.weight = locations, weight
        return vectors[0]  # in a list: of a tensor that is an argument autograd would return a view

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        locations = ctx.locations
        locations.generation.check()
        if locations.inverse is None:
            values = gradient.contiguous()  # or autograd would copy it, and the rows with it
        elif torch.is_grad_enabled():  # create_graph=True
            values = _Sum.apply(gradient, locations.inverse, len(locations.rows))  # type: ignore[no-untyped-call]
        else:
            values = batch.added_up(locations.inverse, gradient, len(locations.rows))
        if values.requires_grad and not len(values) and ctx.weight.store.ranks is not None:
            ctx.weight.rowless += (values,)
        return _sparse(locations, values), None, None


def _sparse(locations: RowLocations, values: Tensor) -> Tensor:
    """The gradient for the table, without what has no row."""
    rows, lines = locations.rows, locations.lines
    if locations.has_absent:
        present = rows != ABSENT
        rows, values = rows[present], values[present]
        lines = lines and lines.without_absent(len(rows))
    if locations.generation.is_watched and lines is not None and lines.order is None:
        rows = rows.clone()  # so that what is attached to them lives as long as the gradient, not as the graph
        lines = replace(lines)
    locations.generation.note_gradient(locations, lines)
    if lines is not None:
        attach(rows, lines)
    return torch.sparse_coo_tensor(rows.unsqueeze(0), values, (HEIGHT, values.shape[1]), check_invariants=False)


class _Sum(Function):
    """Sums over the keys that share a row: `[keys, dim]` → `[distinct, dim]`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, inverse: Int32s, distinct: int) -> Tensor:
        ctx.inverse, ctx.distinct = inverse, distinct
        return batch.added_up(inverse, values, distinct)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Gather.apply(gradient, ctx.inverse, ctx.distinct), None, None  # type: ignore[no-untyped-call]


class _Gather(Function):
    """A row's values for each of its keys: `[distinct, dim]` → `[keys, dim]`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, inverse: Int32s, distinct: int) -> Tensor:
        ctx.inverse, ctx.distinct = inverse, distinct
        return batch.expanded(inverse, values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Sum.apply(gradient, ctx.inverse, ctx.distinct), None, None  # type: ignore[no-untyped-call]
