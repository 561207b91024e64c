"""The gradient of rows in a store, as functions of torch that clip gradients meet it, and what travels with it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor


class RowLines(Protocol):
    """What is known of the lines of a sparse gradient: it travels with it, attached to the memory of its row numbers.

    Attributes:
        count: Lines.
    """

    @property
    def count(self) -> int: ...
    @property
    def are_distinct(self) -> bool:
        """Whether each row has one line."""


class Ranks(Protocol):
    """The ranks that rows lie on, see `sparsegroup.optim.stored.StoreRanks`."""

    def norm(self, own: Tensor, order: float) -> Tensor: ...


def attach(rows: Tensor, lines: RowLines) -> None:
    """Let `lines` travel with the gradient whose row numbers are `rows`.

    They stay with it through autograd's accumulation of a single contribution; a sum, `coalesce` or `zero_` makes row
    numbers of its own, with which they are not.
    """
    storage: Any = rows.untyped_storage()
    storage.sparsegroup_lines = lines


def lines_of(rows: Tensor) -> Any:
    """What came with a gradient whose row numbers are `rows`, `RowLines`; None if nothing did."""
    return getattr(rows.untyped_storage(), "sparsegroup_lines", None)


def summed(gradient: Tensor) -> Tensor:
    """A sparse gradient with a line for each row: itself if that is so already."""
    lines = lines_of(gradient._indices())
    if lines is not None and lines.are_distinct and lines.count == gradient._nnz():
        return gradient
    return gradient.coalesce()


class StoredGradient(Tensor):
    """The sparse gradient of a `StoredParameter`: a plain tensor but for what torch's clipping does with it.

    PyTorch has no norms of sparse tensors by `torch.linalg.vector_norm`, nor can it clamp them; and what it multiplies
    in place gets row numbers of its own, with which what the lookup knew of them would be lost. So
    `torch.nn.utils.clip_grad_norm_` and `clip_grad_value_`, and what calls them, take tables' gradients too.
    """

    @classmethod
    def of(cls, gradient: Tensor | None, ranks: Ranks | None = None) -> Tensor | None:
        """The same object, as one of this class if it is a sparse tensor that has no graph.

        Args:
            gradient: This rank's rows'.
            ranks: On which others are.
        """
        if type(gradient) is Tensor and gradient.layout is torch.sparse_coo and not gradient.requires_grad:
            gradient.__class__ = cls
            if ranks is not None:
                gradient.sparsegroup_ranks = ranks  # type: ignore[attr-defined]
        return gradient

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: Sequence[Any] = (), keywords: Mapping[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return _OWN.get(function, function)(*arguments, **(keywords or {}))

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return memo.setdefault(id(self), self.clone())  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.clone().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def _norm(gradient: Tensor, ord: float = 2.0, **options: Any) -> Tensor:
    values = summed(gradient)._values() if gradient.layout is torch.sparse_coo else gradient
    norm: Tensor = torch.linalg.vector_norm(values, ord, **options)
    ranks: Ranks | None = getattr(gradient, "sparsegroup_ranks", None)
    return norm if ranks is None else ranks.norm(norm, ord)


def _scale(gradient: Tensor, factor: Any) -> Tensor:
    if gradient.layout is not torch.sparse_coo or (isinstance(factor, Tensor) and factor.ndim):
        return gradient.mul_(factor)
    gradient._values().mul_(factor)
    return gradient


def _clamp(gradient: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    if gradient.layout is not torch.sparse_coo:
        return gradient.clamp_(min, max)
    if (min is not None and min > 0) or (max is not None and max < 0):  # as the rows that the gradient has not are zero
        raise ValueError(f"a sparse gradient cannot be clamped to [{min}, {max}], which leaves out zero")
    whole = summed(gradient)
    if whole is not gradient:
        gradient.data = whole
    gradient._values().clamp_(min, max)
    return gradient


def _each(function: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    """The function for lists, some of whose tensors are dense."""

    def of_all(gradients: Sequence[Tensor], *arguments: Any, **options: Any) -> list[Tensor]:
        return [function(gradient, *arguments, **options) for gradient in gradients]

    return of_all


_OWN: dict[Any, Callable[..., Any]] = {
    torch.linalg.vector_norm: _norm,
    torch._foreach_norm: _each(_norm),
    Tensor.mul_: _scale,
    torch._foreach_mul_: _each(_scale),
    Tensor.clamp_: _clamp,
    torch._foreach_clamp_min_: _each(lambda gradient, least: _clamp(gradient, min=least)),
    torch._foreach_clamp_max_: _each(lambda gradient, largest: _clamp(gradient, max=largest)),
}
