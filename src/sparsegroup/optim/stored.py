"""Parameters whose rows lie in a store of their own, such as a table that grows: what an optimizer needs of them."""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.kernels.step import StepConstants, StepScalars
from sparsegroup.optim.stored_arithmetic import computed, refuse
from sparsegroup.optim.stored_gradient import StoredGradient
from sparsegroup.rules import Rule

Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[Any]
Result = TypeVar("Result")

HEIGHT = 1 << 40
"""Rows that a stored parameter and its gradients have for autograd, which wants a fixed number."""


KEYS = "keys"
"""The name that the rows' keys have in an optimizer's state."""


ROWS_LEFT_OUT: ContextVar[bool] = ContextVar("ROWS_LEFT_OUT", default=False)
"""Whether state dicts leave out what lies in stores."""


@contextmanager
def rows_left_out() -> Iterator[None]:
    """While it lasts, state dicts of modules and optimizers hold nothing of rows, which are kept elsewhere."""
    token = ROWS_LEFT_OUT.set(True)
    try:
        yield
    finally:
        ROWS_LEFT_OUT.reset(token)


class StateOwner:
    """An optimizer's right to keep its state in a store: one holds at a time.

    In the optimizer's own `state` it stands under the names of the parts that lie in the rows, `KEYS` first, so that
    whoever goes by these names, as `torch.distributed.checkpoint` does, finds those that `state_dict` has.
    """


@dataclass(frozen=True)
class RowStep:
    """What an optimizer asks of a step over a store's rows.

    Attributes:
        rule: The base optimizer.
        claim: The optimizer's; another's state in the rows ends with the step.
        initial: The rule's state of a row that no gradient has touched: name → value.
        state_dtype: The dtype of u and the rule's state; None for the store's own.
        wants_u: Whether there is a regularizer to carry u for.
        numbers: What depends on the step.
        settings: λ and what else the kernels need.
    """

    rule: Rule
    claim: StateOwner
    initial: Mapping[str, float]
    state_dtype: torch.dtype | None
    wants_u: bool
    numbers: StepScalars
    settings: StepConstants


class RowPlan(Protocol):
    """A step over a store's rows that has been checked. Nothing has changed so far."""

    @property
    def gradient(self) -> Tensor:
        """`[n, dim]`, in the order in which a Hessian's diagonal must come: that of the coalesced gradient."""

    def with_hessian(self, diagonal: Tensor) -> "RowPlan":
        """The same with the Hessian's diagonal, shaped as `gradient`.

        Raises:
            FloatingPointError: It is not finite, and the store does not skip such rows; nothing has changed.
        """

    def apply(self, request: RowStep) -> None:
        """Take the step: lay out u and the rule's state, count skipped rows, run the kernel."""


class StoreRanks(Protocol):
    """The ranks that a store's rows lie on. Whatever is asked, all of them have to ask it.

    Attributes:
        rank: The number of this one among them.
        group: What distinguishes these ranks from those of other stores.
    """

    rank: int
    group: Any

    def do(self, action: Callable[[], Result], what: str) -> Result:
        """What an action gives, which all ranks carry out; it raises on all of them or on none. `what` names it."""

    def norm(self, own: Tensor, order: float) -> Tensor:
        """The p-norm of what lies on all ranks, p being `order`, by that of this rank's part; 0-d as it is."""

    def of_all(self, own: list[Any], what: str) -> list[Any]:
        """The lists of all ranks as one, in the order of ranks; `what` is in them, in messages, can be pickled."""


class RowStore(Protocol):
    """Rows of weights, found by number, with an optimizer's state beside them."""

    @property
    def ranks(self) -> StoreRanks | None:
        """The ranks that rows of the same parameter lie on; None where all are here."""

    def own_name(self, entry: str) -> str:
        """What an entry of the rows is called in state dicts; on several ranks, each has names of its own."""

    def entry_of(self, name: str) -> str:
        """The entry that is called so, of all rows or of this rank's.

        Raises:
            ValueError: It is of another rank's rows.
        """

    @property
    def num_rows(self) -> int: ...
    @property
    def num_live(self) -> int: ...
    @property
    def num_seen(self) -> int: ...
    @property
    def dim(self) -> int: ...
    @property
    def weight_dtype(self) -> torch.dtype: ...
    @property
    def device(self) -> torch.device: ...

    def plan(
        self,
        gradient: Tensor,
        rule: Rule,
        *,
        claim: StateOwner | None,
        maximize: bool,
        wants_u: bool,
        where: object,
        state_dtype: torch.dtype | None = None,
    ) -> RowPlan:
        """All of a step that can fail. Nothing is changed.

        Args:
            gradient: As backward left it.
            rule: The base optimizer.
            claim: The optimizer's; None before its first step.
            maximize: Step with the negative of the gradient.
            wants_u: See `RowStep`.
            where: For messages.
            state_dtype: See `RowStep`.

        Raises:
            RuntimeError: Another optimizer has trained the rows since, or the rule cannot be compiled.
            ValueError: The gradient is not sparse COO, or state cannot be kept in `state_dtype`.
            IndexError: The gradient has rows that the store has not.
            FloatingPointError: The gradient, or one of a step before, is not finite, and such rows are not skipped.
        """

    def survival_l21(self, request: RowStep, rows: Int64s | None = None) -> Floats:
        """The largest λ21 at which each row is zero, by the closed form without a gradient.

        Args:
            request: The step that has no gradient; λ21 and the penalty are of no account.
            rows: `[n]`, their numbers; None for all.

        Returns:
            `[n]` float64, infinite where a row never had a non-zero gradient; empty if the rows hold another's state.
        """

    def sweep(self, request: RowStep, *, drops: bool) -> None:
        """Apply the closed form to all rows without a gradient, if they hold the state of the step's claim.

        Args:
            request: The step.
            drops: Whether rows that never had a non-zero gradient become zero; else they stay as they are.
        """

    def export_state(self, claim: StateOwner) -> dict[str, npt.NDArray[Any]] | None:
        """The keys (`KEYS`) `[n]` and every part of the state, `[n, dim]`; None if the rows hold another's."""

    def restore_state(
        self, state: Mapping[str, npt.NDArray[Any]], initial: Mapping[str, float], state_dtype: torch.dtype | None
    ) -> StateOwner:
        """Have what `export_state` gave, of the rule's state and perhaps u; rows without an entry start afresh.

        Args:
            state: The keys and the parts.
            initial: The rule's state of a row that no gradient has touched.
            state_dtype: See `RowStep`.

        Returns:
            By what the rows hold it.
        """

    def become(self, other: Any) -> None:
        """Have what another store of the same kind holds, a copy of it, with the optimizer's state and its claim."""

    def move_towards(self, other: Any, weight: float) -> None:
        """Have the rows of another store of the same kind, without an optimizer's state, with averaged vectors.

        Args:
            other: The store; it stays as it is.
            weight: Its share; 1 - weight is that of the vectors that are here. What is zero in the other becomes zero,
                and what has been zero here becomes what it is in the other.
        """

    def scan(self, batch_size: int) -> Iterator[tuple[Int64s, Floats]]:
        """Keys `[n]` and vectors `[n, dim]` of the live rows."""


_GRAD: Any = Tensor.grad  # torch's own attribute


class StoredParameter(Tensor):
    """A parameter without a tensor: its rows are in `store`.

    Autograd knows it as `[2**40, dim]` and gives it sparse (COO) gradients whose indices are row numbers. In Python
    it has the shape of the rows that there are. Arithmetic on it raises, but for what averaging needs.
    """

    store: RowStore
    rowless: tuple[Tensor, ...] = ()
    """Of gradients without rows the values, whose graph torch drops: those of other ranks are differentiated by it."""
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

    @property  # not cached: autograd sets it behind Python's back
    def grad(self) -> Tensor | None:
        """What backward has left, a `StoredGradient`: sparse COO, whose indices are row numbers."""
        return StoredGradient.of(_GRAD.__get__(self), self.store.ranks)

    @grad.setter
    def grad(self, gradient: Tensor | None) -> None:
        _GRAD.__set__(self, gradient)

    @grad.deleter
    def grad(self) -> None:
        _GRAD.__delete__(self)

    def numel(self) -> int:
        """Rows × dim at this moment."""
        return self.store.num_rows * self.store.dim

    def __len__(self) -> int:
        return self.store.num_rows

    def numpy(self, **arguments: Any) -> NoReturn:
        refuse("numpy()")

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
            return cls(copy.copy(arguments[0].store), requires_grad=False)  # with rows of its own: a store copies all
        return computed(function, arguments, keywords or {})

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
