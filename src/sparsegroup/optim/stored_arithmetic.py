"""What torch's averaging functions compute with parameters in stores: linear combinations, until they are copied."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Self

import torch
import torch.distributed as dist
from torch import Tensor

aten = torch.ops.aten

_IN_A_WORLD = """; let DistributedDataParallel leave it out: wrap the modules beside the table, or name it by
DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["table.weight"])""".replace("\n", " ")


class RowCombination(Tensor):
    """Σ factor · rows of stores, not computed before it is copied to one of them.

    Attributes:
        terms: By the `id` of a store, it and its factor.
    """

    terms: dict[int, tuple[Any, float]]
    # As in nn.Parameter: what is done with it is met in __torch_dispatch__.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, like: Tensor, terms: dict[int, tuple[Any, float]]) -> Self:
        size = torch.Size((like.size(0), like.size(1)))
        made: Self = Tensor._make_wrapper_subclass(cls, size, dtype=like.dtype, device=like.device)
        made.terms = terms
        return made

    def __init__(self, like: Tensor, terms: dict[int, tuple[Any, float]]) -> None:
        pass

    def __repr__(self, **arguments: Any) -> str:  # type: ignore[override]
        return f"RowCombination(factors={[factor for _, factor in self.terms.values()]})"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Any, arguments: Sequence[Any] = (), keywords: Mapping[str, Any] | None = None
    ) -> Any:
        return computed(function, arguments, keywords or {})


def computed(function: Any, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
    """The result of an operation on stored parameters and combinations.

    Raises:
        NotImplementedError: It is none that averaging needs.
    """
    own = _OPERATIONS.get(function)
    if own is None:
        refuse(str(function))
    return own(*arguments, **keywords)


def refuse(operation: str) -> NoReturn:
    """Raise NotImplementedError: the weight of a table cannot do that."""
    raise NotImplementedError(  # not TypeError, which Python would replace by its own words
        f"the weight of a HashEmbedding is not one tensor, so {operation} cannot be done on it. Train it with an "
        "optimizer of sparsegroup; read it with lookup(keys) or items(); average it with AveragedModel and torch's "
        f"averaging functions{_IN_A_WORLD if dist.is_available() and dist.is_initialized() else ''}"
    )


def _zeros(like: Tensor, *, dtype: torch.dtype | None = None, **_: Any) -> Tensor:
    """A gradient of zero, which touches no row."""
    indices, dtype = torch.empty(1, 0, dtype=torch.int64, device=like.device), dtype or like.dtype
    values = torch.empty(0, like.size(1), dtype=dtype, device=like.device)
    return torch.sparse_coo_tensor(indices, values, (like.size(0), like.size(1)), check_invariants=False)


def _terms(tensor: Any) -> dict[int, tuple[Any, float]]:
    if isinstance(tensor, RowCombination):
        return tensor.terms
    store = getattr(tensor, "store", None)
    if store is None:
        refuse("adding a tensor")
    if tensor.requires_grad:  # averages are of what `detach` gives
        refuse("arithmetic")
    return {id(store): (store, 1.0)}


def _scaled(one: Any, factor: Any) -> RowCombination:
    if isinstance(factor, RowCombination) or hasattr(factor, "store"):
        one, factor = factor, one
    if isinstance(factor, Tensor) and (factor.ndim or hasattr(factor, "store")):
        refuse("multiplying by a tensor")
    return RowCombination(one, {key: (store, its * float(factor)) for key, (store, its) in _terms(one).items()})


def _sum(one: Any, other: Any, *, alpha: float = 1.0) -> RowCombination:
    terms = dict(_terms(one))
    for key, (store, factor) in _terms(other).items():
        terms[key] = store, terms.get(key, (store, 0.0))[1] + alpha * factor
    return RowCombination(one, terms)


def _copy(target: Any, source: Any, non_blocking: bool = False) -> Any:
    """Copy a parameter with all that its store holds, the optimizer's state too; or take a step towards another."""
    _check_alike(target, source)
    if not isinstance(source, RowCombination):
        target.store.become(source.store)
        return target
    factors = {store: factor for store, factor in source.terms.values() if factor != 0}
    others = factors.keys() - {target.store}
    if len(others) != 1 or not math.isclose(sum(factors.values()), 1.0, rel_tol=1e-5):
        refuse(f"setting it to a combination with the factors {[factor for _, factor in source.terms.values()]}")
    (other,) = others
    target.store.move_towards(other, factors[other])
    return target


def _lerp(target: Any, towards: Any, weight: Any) -> Any:
    if not hasattr(target, "store") and not hasattr(towards, "store"):  # a dense one among them
        return target.lerp_(towards, float(weight))
    _check_alike(target, towards)
    if isinstance(towards, RowCombination):
        refuse("moving it towards a combination")
    target.store.move_towards(towards.store, float(weight))
    return target


def _check_alike(target: Any, source: Any) -> None:
    if not hasattr(target, "store") or not (hasattr(source, "store") or isinstance(source, RowCombination)):
        refuse("copying between it and a tensor")
    if target.size() != source.size() or target.dtype != source.dtype:
        raise ValueError(
            f"the weight of a HashEmbedding with dim={source.size(1)} and {source.dtype} cannot be copied to one with "
            f"dim={target.size(1)} and {target.dtype}"
        )


def _lerp_each(targets: Sequence[Any], towards: Sequence[Any], weight: Any) -> None:
    for target, other in zip(targets, towards, strict=True):
        _lerp(target, other, weight)


_OPERATIONS: dict[Any, Callable[..., Any]] = {
    aten.zeros_like.default: _zeros,
    aten.mul.Tensor: _scaled,
    aten.mul.Scalar: _scaled,
    aten.div.Tensor: lambda one, by: _scaled(one, 1.0 / float(by)),
    aten.add.Tensor: _sum,
    aten.sub.Tensor: lambda one, other, *, alpha=1.0: _sum(one, other, alpha=-alpha),
    aten.copy_.default: _copy,
    aten.lerp_.Scalar: _lerp,
    aten._foreach_lerp_.Scalar: _lerp_each,
}
