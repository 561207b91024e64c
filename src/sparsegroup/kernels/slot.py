"""Where a parameter and its state lie, as every backend is told of it."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sparsegroup.groups import Grouping, GroupSpec, contiguous_groups, grouping


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of arithmetic, and of state unless another is asked for: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(frozen=True)
class Execution:
    """How a param group wants to be stepped: its groups, and torch's arguments of the same names."""

    groups: GroupSpec
    foreach: bool | None
    fused: bool | None
    capturable: bool

    @property
    def wants_kernels(self) -> bool:
        """Whether compiled kernels may be taken: neither `foreach=True` nor `fused=False`."""
        return not self.foreach and self.fused is not False

    def is_same(self, other: "Execution") -> bool:
        """Whether nothing differs; `groups` is compared by identity, for it may be a tensor."""
        return (
            self.groups is other.groups
            and self.foreach is other.foreach
            and self.fused is other.fused
            and self.capturable is other.capturable
        )


class Slot:
    """The memory of one parameter: its weights, u and the rule's state.

    Args:
        x: The parameter, of any shape.
        u: The dual residual, shaped as `x`; None for a parameter that carries none.
        state: The rule's state in the order of `rule.state`, each shaped as `x`.
        execution: How its param group wants it to be stepped.

    Attributes:
        x, u, state, execution: See above.
        shape, dtype, is_empty: The parameter's; it is empty where it has no element.
        carries_u: Whether there is a u.
        parts: x, u where it is carried, and the state.
        addresses: Where the parts begin in memory.
        width: The number of elements of a group, where groups lie one after the other; else 0.
        count: The number of groups, where they lie one after the other; else 0.
        fits: All parts have memory (a subclass that wraps other tensors has none), are contiguous, shaped as `x` and
            on its device, so that one address per part says it all.
    """

    def __init__(self, x: Tensor, u: Tensor | None, state: tuple[Tensor, ...], execution: Execution) -> None:
        self.x, self.u, self.state, self.execution = x, u, state, execution
        self.shape, self.dtype, self.is_empty = x.shape, x.dtype, not x.numel()
        self.carries_u = u is not None
        self.parts: tuple[Tensor, ...] = (x, *state) if u is None else (x, u, *state)
        self.addresses = [part.data_ptr() for part in self.parts]
        self.fits = (all(self.addresses) or self.is_empty) and all(
            p.shape == x.shape and p.is_contiguous() and p.device == x.device for p in self.parts
        )
        layout = contiguous_groups(execution.groups, x.shape)
        self.is_contiguous_in_groups = layout is not None
        self.width, self.count = layout or (0, 0)

    @cached_property
    def state_dtypes(self) -> frozenset[torch.dtype]:
        """The dtypes of u and the state."""
        return frozenset(part.dtype for part in self.parts[1:])

    @cached_property
    def groups(self) -> Grouping:
        """The groups of the parameter."""
        return grouping(self.execution.groups, self.shape, self.x.device)
