"""Parameters whose rows are in a table, and their gradients."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NoReturn, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[Any]


aten = torch.ops.aten

_IN_A_WORLD = """; let DistributedDataParallel leave it out: wrap the other modules, or name it by
DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["table.weight"])""".replace("\n", " ")


def refuse(operation: str) -> NoReturn:
    """Raise NotImplementedError: the weight of a table does not support the operation."""
    raise NotImplementedError(  # not TypeError, which Python would replace by its own words
        f"the weight of a HashEmbedding is not one tensor, so {operation} cannot be done on it. Train it with an "
        "optimizer of sparsegroup; read it with lookup(keys) or items(); average it with table.average_(other, rate), "
        "in torch's AveragedModel with multi_avg_fn=keep_zeros(get_ema_multi_avg_fn(decay))"
        f"{_IN_A_WORLD if dist.is_available() and dist.is_initialized() else ''}"
    )


def _zeros(like: Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    """Return a gradient of zero, which has no rows."""
    indices, dtype = torch.empty(1, 0, dtype=torch.int64, device=like.device), dtype or like.dtype
    values = torch.empty(0, like.size(1), dtype=dtype, device=like.device)
    size = like.size(0), like.size(1)
    return torch.sparse_coo_tensor(indices, values, size, device=values.device, check_invariants=False)


def _copy(target: Any, source: Any, non_blocking: bool = False) -> Any:
    """Copy the rows of a table with the optimizer's state in them."""
    _check_alike(target, source)
    target.store.become(source.store)
    return target


def _average(target: Any, towards: Any, rate: Any) -> Any:
    """Average the rows of a table with another table's, whose weight is `rate`; a tensor as `lerp_` does."""
    if not hasattr(target, "store") and not hasattr(towards, "store"):  # a dense parameter in the same list
        return target.lerp_(towards, float(rate))
    _check_alike(target, towards)
    target.store.average_(towards.store, float(rate))
    return target


def _check_alike(target: Any, source: Any) -> None:
    if not hasattr(target, "store") or not hasattr(source, "store"):
        refuse("copying between it and a tensor")
    if target.size() != source.size() or target.dtype != source.dtype:
        raise ValueError(
            f"the weight of a HashEmbedding with dim={source.size(1)} and {source.dtype} cannot be copied to one with "
            f"dim={target.size(1)} and {target.dtype}"
        )


def _average_each(targets: Sequence[Any], towards: Sequence[Any], rate: Any) -> None:
    for target, other in zip(targets, towards, strict=True):
        _average(target, other, rate)


_SUPPORTED: dict[Any, Callable[..., Any]] = {
    aten.zeros_like.default: _zeros,
    aten.copy_.default: _copy,
    aten.lerp_.Scalar: _average,
    aten._foreach_lerp_.Scalar: _average_each,
}
"""What autograd and torch's averaging functions (`get_ema_multi_avg_fn`, `get_swa_multi_avg_fn`) do with the weight."""


ROW_BITS = 34
"""Bits of a row number: a table has at most 10¹⁰ rows."""


def height_of(dim: int) -> int:
    """Return the rows that a table's parameter and gradients have for autograd: as many as dimensions allow."""
    return 1 << (62 - dim.bit_length())


KEYS = "keys"
"""The name that the rows' keys have in an optimizer's state."""


ROWS_LEFT_OUT: ContextVar[bool] = ContextVar("ROWS_LEFT_OUT", default=False)
"""Whether state dicts leave out the rows of stores."""


@contextmanager
def rows_left_out() -> Iterator[None]:
    """While it lasts, state dicts of modules and optimizers hold nothing of rows, which are kept elsewhere."""
    before = ROWS_LEFT_OUT.get()
    try:
        ROWS_LEFT_OUT.set(True)  # inside `try`: a signal's handler may raise right after this call
        yield
    finally:
        ROWS_LEFT_OUT.set(before)


class StateOwner:
    """An optimizer's right to keep its state in a table's rows: one optimizer has it at a time.

    In the optimizer's own `state` it has the names of the parts that are in the rows, `KEYS` first, so that
    what goes by these names, as `torch.distributed.checkpoint` does, finds the parts that `state_dict` has.
    """


class RowStore(Protocol):
    """Table that holds a parameter's rows, a `sparsegroup.table.table.Table`, as modules below `table` use it."""

    dim: int
    weight_dtype: torch.dtype
    device: torch.device
    stepper: Any  # a `sparsegroup.optim.step.Stepper`
    ranks: Any  # the ranks of the other rows, a `sparsegroup.table.sharded.exchange.Shards`; None if all rows are here

    @property
    def num_rows(self) -> int:
        """Rows on this rank."""

    @property
    def num_live(self) -> int:
        """Rows on this rank that are not zero."""

    @property
    def num_seen(self) -> int:
        """Distinct keys that training has ever seen on this rank."""

    def scan(self, batch_size: int) -> Iterator[tuple[Int64s, Floats]]:
        """Yield keys and vectors of the live rows, at most `batch_size` at a time."""

    def become(self, other: Any) -> None:
        """Become a copy of another table, with the optimizer's state."""

    def average_(self, other: Any, rate: float) -> None:
        """Average the rows with another table's, whose weight is `rate`."""


class StoredGradient(Tensor):
    """The sparse gradient of a `StoredParameter`: a plain tensor except in torch's clipping.

    PyTorch has no norms of sparse tensors by `torch.linalg.vector_norm`, nor can it clamp them. With this class,
    `torch.nn.utils.clip_grad_norm_` and `clip_grad_value_`, and the code that calls these, take tables' gradients. A
    result of any other operation is a plain tensor.
    """

    store: RowStore

    @classmethod
    def of(cls, gradient: Tensor, store: RowStore) -> "StoredGradient":
        """Return the memory of a sparse tensor as the gradient of a table."""
        stored = Tensor._make_subclass(cls, gradient)
        stored.store = store
        return stored

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, arguments: Sequence[Any] = (), keywords: Mapping[str, Any] | None = None
    ) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return _CLIPPING.get(function, function)(*arguments, **(keywords or {}))

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return memo.setdefault(id(self), self.clone())  # type: ignore[no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.clone().__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def _norm(gradient: Tensor, ord: float = 2.0, **options: Any) -> Tensor:
    if not isinstance(gradient, StoredGradient):
        return torch.linalg.vector_norm(gradient, ord, **options)  # type: ignore[no-any-return]
    store = gradient.store
    norm: Tensor = torch.linalg.vector_norm(store.stepper.summed(gradient)[1], ord, **options)
    return norm if store.ranks is None else store.ranks.norm(norm, ord)


def _scale(gradient: Tensor, factor: Any) -> Tensor:
    if not isinstance(gradient, StoredGradient) or (isinstance(factor, Tensor) and factor.ndim):
        return gradient.mul_(factor)
    gradient._values().mul_(factor)
    return gradient


def _clamp(gradient: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    if not isinstance(gradient, StoredGradient):
        return gradient.clamp_(min, max)
    if (min is not None and min > 0) or (max is not None and max < 0):  # rows without a line are zero
        raise ValueError(f"a sparse gradient cannot be clamped to [{min}, {max}], which leaves out zero")
    if len(gradient.store.stepper.summed(gradient)[0]) < gradient._nnz():
        gradient.data = gradient.coalesce()
    gradient._values().clamp_(min, max)
    return gradient


def _each(function: Callable[..., Tensor]) -> Callable[..., list[Tensor]]:
    """Return the function for lists, some of whose tensors are dense."""

    def of_all(gradients: Sequence[Tensor], *arguments: Any, **options: Any) -> list[Tensor]:
        return [function(gradient, *arguments, **options) for gradient in gradients]

    return of_all


_CLIPPING: dict[Any, Callable[..., Any]] = {
    torch.linalg.vector_norm: _norm,
    torch._foreach_norm: _each(_norm),
    Tensor.mul_: _scale,
    torch._foreach_mul_: _each(_scale),
    Tensor.clamp_: _clamp,
    torch._foreach_clamp_min_: _each(lambda gradient, least: _clamp(gradient, min=least)),
    torch._foreach_clamp_max_: _each(lambda gradient, largest: _clamp(gradient, max=largest)),
}


_GRAD: Any = Tensor.grad  # torch's own attribute

gradient_of: Callable[[Tensor], Tensor | None] = _GRAD.__get__
"""Return the gradient of a parameter as autograd left it. `StoredParameter.grad` is slower by the clipping's class."""


def _nothing() -> None:
    """Return None, as a weak reference to a freed tensor does."""


class StoredParameter(Tensor):
    """A parameter without a tensor: its rows are in `store`.

    Autograd knows it as `[height_of(dim), dim]` and gives it sparse (COO) gradients, whose indices are row numbers of a
    version, see `RowNumbering`. In Python it has the shape of the rows that there are. Arithmetic on
    it raises, except for `lerp_` with another table's weight.
    """

    store: RowStore
    pending: Callable[[], Tensor | None]
    """Return what the lookups since the last step depend on in autograd's graph. The reference is weak."""
    rowless: tuple[Tensor, ...] = ()
    """Of gradients without rows the values, whose graph torch drops: those of other ranks are differentiated by it."""
    # As in nn.Parameter: what is done with it is met in __torch_dispatch__.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, store: RowStore, requires_grad: bool = True) -> Self:
        parameter: Self = Tensor._make_wrapper_subclass(
            cls,
            (height_of(store.dim), store.dim),
            dtype=store.weight_dtype,
            device=store.device,
            requires_grad=requires_grad,
        )
        parameter.store, parameter.pending = store, _nothing
        parameter._is_param = True  # what isinstance(…, nn.Parameter) looks at
        return parameter

    def __init__(self, store: RowStore, requires_grad: bool = True) -> None:
        pass

    @property
    def stepper(self) -> Any:
        """What an optimizer does with the rows: a `sparsegroup.optim.step.Stepper`."""
        return self.store.stepper

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        """`[rows, dim]` at this moment."""
        return torch.Size((self.store.num_rows, self.store.dim))

    @property
    def grad(self) -> Tensor | None:
        """Sparse COO gradient. A gradient without a graph, which autograd or the user has set, can be clipped."""
        gradient = gradient_of(self)
        if type(gradient) is Tensor and gradient.layout is torch.sparse_coo and not gradient.requires_grad:
            gradient = self.grad = StoredGradient.of(gradient, self.store)
        return gradient

    @grad.setter
    def grad(self, gradient: Tensor | None) -> None:
        _GRAD.__set__(self, gradient)

    @grad.deleter
    def grad(self) -> None:
        _GRAD.__delete__(self)

    def numel(self) -> int:
        """Rows × dim at this moment."""
        return self.shape.numel()

    def __len__(self) -> int:
        return self.shape[0]

    def numpy(self, **arguments: Any) -> NoReturn:
        refuse("numpy()")

    def share_memory_(self) -> NoReturn:
        refuse("share_memory_()")

    def __bool__(self) -> bool:
        return True

    def __repr__(self, **arguments: Any) -> str:  # type: ignore[override]
        return f"StoredParameter(rows={self.store.num_rows}, dim={self.store.dim}, requires_grad={self.requires_grad})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, arguments: Sequence[Any] = (), keywords: Mapping[str, Any] | None = None
    ) -> Any:
        if function is torch.ops.aten.detach.default:
            return cls(arguments[0].store, requires_grad=False)
        if function is torch.ops.aten.clone.default:
            return cls(copy.copy(arguments[0].store), requires_grad=False)  # with separate rows: a store copies all
        if function not in _SUPPORTED:
            refuse(str(function))
        return _SUPPORTED[function](*arguments, **(keywords or {}))

    def __deepcopy__(self, memo: dict[int, Any]) -> "StoredParameter":
        if id(self) not in memo:
            memo[id(self)] = type(self)(copy.deepcopy(self.store, memo), self.requires_grad)
        result: StoredParameter = memo[id(self)]
        return result

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self), (self.store, self.requires_grad)


def store_of(parameter: Tensor) -> RowStore | None:
    """The store that holds the rows of a parameter; None for one that is a tensor."""
    return parameter.store if isinstance(parameter, StoredParameter) else None


def mark_fallback(vectors: Tensor) -> None:
    """Mark a parameter as the fallback vectors of a table, for `is_fallback`."""
    vectors.is_fallback = True  # type: ignore[attr-defined]


def is_fallback(parameter: Tensor) -> bool:
    """Return whether a parameter holds the fallback vectors of a table."""
    return getattr(parameter, "is_fallback", False)
