"""Parameters whose rows lie in a store of their own, such as a table that grows: what an optimizer needs of them."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn, Protocol, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.kernels.numbers import Numbers
from sparsegroup.kernels.settings import Settings
from sparsegroup.rules import Rule

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[Any]

HEIGHT = 1 << 40
"""Rows that a stored parameter and its gradients have for autograd, which wants a fixed number."""


class Claim:
    """An optimizer's right to keep its state in a store: one holds at a time."""


class RowStore(Protocol):
    """Rows of weights, found by number, with an optimizer's state beside them."""

    claim: Claim | None
    skipped_rows: int

    @property
    def num_rows(self) -> int: ...
    @property
    def num_live(self) -> int: ...
    @property
    def num_seen(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def weight_dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def skips_nonfinite(self) -> bool: ...
    @property
    def sums_and_guards(self) -> bool:
        """Whether `step` itself adds up the gradients of repeated rows and leaves out what is not finite."""

    @property
    def keeps_rounding(self) -> bool:
        """Whether the weights are rounded, so that u is wanted without a regularizer, too."""

    @property
    def state_names(self) -> tuple[str, ...]: ...

    def check(self) -> None:
        """Raise what a step before has reported by now.

        Raises:
            FloatingPointError: Rows had a gradient that is not finite, and are not to be skipped.
        """

    def check_rule(self, rule: Rule, carries_u: bool) -> None:
        """Raise RuntimeError where the rows cannot be stepped by `rule`."""

    def lay_out(self, claim: Claim, initial: Mapping[str, float], state_dtype: torch.dtype | None) -> None:
        """Give the rows the parts `initial` beside the weights; another claim ends, and its state with it.

        Raises:
            ValueError: The store cannot keep its state in `state_dtype`.
        """

    def are_distinct(self, rows: Tensor) -> bool:
        """Whether `rows` is known to hold each row once."""

    def describe(self, rows: Int64s) -> str:
        """The rows in the user's terms, for messages."""

    def step(self, rule: Rule, rows: Tensor, gradients: Sequence[Tensor], numbers: Numbers, settings: Settings) -> None:
        """The optimizer's step over rows `[n]`, distinct unless the store `sums_and_guards`."""

    def scan(self, batch_size: int) -> Iterator[tuple[Int64s, Floats]]:
        """Keys `[n]` and vectors `[n, dim]` of the live rows."""

    def export(self) -> dict[str, npt.NDArray[Any]]:
        """The "keys" `[n]`, the "weight" and every part of the state, `[n, dim]`."""

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Set the parts of the state from what `export` gave; rows without an entry start afresh."""


class StoredParameter(Tensor):
    """A parameter without a tensor: its rows are in `store`.

    Autograd knows it as `[2**40, dim]` and gives it sparse (COO) gradients whose indices are row numbers. In Python
    it has the shape of the rows that there are. Arithmetic on it raises.
    """

    store: RowStore
    # As in nn.Parameter: what is done with it is met in __torch_dispatch__.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, store: RowStore, requires_grad: bool = True) -> Self:
        parameter: Self = Tensor._make_wrapper_subclass(
            cls,
            (HEIGHT, store.dim),
            dtype=store.weight_dtype,
            device=store.device,
            requires_grad=requires_grad,
        )
        parameter.store = store
        parameter._is_param = True  # what isinstance(…, nn.Parameter) looks at
        return parameter

    def __init__(self, store: RowStore, requires_grad: bool = True) -> None:
        pass

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        """`[rows, dim]` at this moment."""
        return torch.Size((self.store.num_rows, self.store.dim))

    def numel(self) -> int:
        """Rows × dim at this moment."""
        return self.store.num_rows * self.store.dim

    def __len__(self) -> int:
        return self.store.num_rows

    def numpy(self, **arguments: Any) -> NoReturn:
        _refuse("numpy()")

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
        _refuse(str(function))

    def __deepcopy__(self, memo: dict[int, Any]) -> "StoredParameter":
        if id(self) not in memo:
            memo[id(self)] = type(self)(copy.deepcopy(self.store, memo), self.requires_grad)
        result: StoredParameter = memo[id(self)]
        return result

    def __reduce_ex__(self, protocol: Any) -> Any:
        return type(self), (self.store, self.requires_grad)


def _refuse(operation: str) -> NoReturn:
    raise NotImplementedError(  # not TypeError, which Python would replace by its own words
        f"the weight of a HashEmbedding is not one tensor, so {operation} cannot be done on it. Train it with an "
        "optimizer of sparsegroup; read it with lookup(keys) or items()"
    )
