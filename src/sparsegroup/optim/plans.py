"""What a step will do to one parameter, when all that can fail has been checked and nothing is changed yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from torch import Tensor

from sparsegroup.groups import GroupSpec, mean_square
from sparsegroup.kernels.step import compute_dtype
from sparsegroup.optim.stored import RowPlan

if TYPE_CHECKING:
    from sparsegroup.optim.executor import StepBatch


class ParameterSite(NamedTuple):
    """Which parameter an error is about; its text is for messages.

    Attributes:
        group: The number of the param group.
        number: The parameter's number in it.
        names: The names of the group's parameters, or None.
    """

    group: int
    number: int
    names: Sequence[str] | None = None

    @classmethod
    def of(cls, group: Mapping[str, Any], numbers: tuple[int, int]) -> "ParameterSite":
        """The site of a parameter by the numbers of its param group and in it."""
        return cls(*numbers, group.get("param_names"))

    def __str__(self) -> str:
        return f"param group {self.group}, {self.names[self.number] if self.names else f'parameter {self.number}'}"


class ParameterPlan(Protocol):
    """One parameter's part of a step.

    Attributes:
        parameter: The parameter.
    """

    @property
    def parameter(self) -> Tensor: ...

    @property
    def gradient(self) -> Tensor:
        """Shaped as the parameter, or `[n, …]` where a sparse gradient has n rows."""

    def with_hessian(self, diagonal: Tensor) -> Self:
        """The same with the Hessian's diagonal, shaped as the gradient; for second-order rules.

        Raises:
            FloatingPointError: It is not finite, and the parameter wants to know.
        """

    def with_mean_square(self, groups: GroupSpec) -> Self:
        """The same with the mean of g² over each element's group; for rules that take it.

        Raises:
            FloatingPointError: As `with_hessian`.
        """

    def join(self, batch: "StepBatch") -> None:
        """Take part in a step, which may change the parameter now or when the batch is run."""


@dataclass(slots=True)
class TensorPlan:
    """The part of a parameter that is a tensor.

    Attributes:
        parameter: The parameter.
        gradient: Shaped as the parameter or as its `rows`; in the compute dtype, for kernels on a device as it came.
        hessian: See `TensorStep`.
        rows, repeats, unchecked: See `TensorStep`.
    """

    parameter: Tensor
    gradient: Tensor
    hessian: Tensor | None = None
    rows: Tensor | None = None
    repeats: bool = False
    unchecked: bool = False

    def with_gradient(self, gradient: Tensor) -> "TensorPlan":
        """The same with another gradient of the same shape."""
        return replace(self, gradient=gradient)

    def with_hessian(self, diagonal: Tensor) -> "TensorPlan":
        """See `ParameterPlan.with_hessian`; a tensor takes any numbers."""
        return replace(self, hessian=diagonal.to(self.gradient.dtype))

    def with_mean_square(self, groups: GroupSpec) -> "TensorPlan":
        """See `ParameterPlan.with_mean_square`."""
        gradient = self.gradient.to(compute_dtype(self.gradient.dtype))
        squares = mean_square(gradient, groups if self.rows is None else "rows")
        return replace(self, gradient=gradient, hessian=squares)

    def join(self, batch: "StepBatch") -> None:
        """Wait for the other tensors of the batch: many of them are stepped together."""
        batch.add(self)


@dataclass(slots=True)
class ShardPlan:
    """The part of a parameter that is spread over ranks: what this rank does.

    Attributes:
        parameter: The parameter, a DTensor.
        local: The plan of what lies here of it.
    """

    parameter: Tensor
    local: TensorPlan

    @property
    def gradient(self) -> Tensor:
        """That of the part that lies here."""
        return self.local.gradient

    def with_hessian(self, diagonal: Tensor) -> "ShardPlan":
        """See `ParameterPlan.with_hessian`."""
        return replace(self, local=self.local.with_hessian(diagonal))

    def with_mean_square(self, groups: GroupSpec) -> "ShardPlan":
        """See `ParameterPlan.with_mean_square`; the groups are whole on each rank."""
        return replace(self, local=self.local.with_mean_square(groups))

    def join(self, batch: "StepBatch") -> None:
        """Let what lies here be stepped as a tensor."""
        batch.add(self.local, batch.local_state(self.parameter))


@dataclass(slots=True)
class StorePlan:
    """The part of a parameter whose rows lie in a store of their own.

    Attributes:
        parameter: The parameter.
        rows: What the store will do.
    """

    parameter: Tensor
    rows: RowPlan

    @property
    def gradient(self) -> Tensor:
        """`[n, dim]`, the gradients of the rows."""
        return self.rows.gradient

    def with_hessian(self, diagonal: Tensor) -> "StorePlan":
        """See `ParameterPlan.with_hessian`."""
        return replace(self, rows=self.rows.with_hessian(diagonal.to(self.gradient.dtype)))

    def with_mean_square(self, groups: GroupSpec) -> "StorePlan":
        """See `ParameterPlan.with_mean_square`; the groups of a store are its rows."""
        from sparsegroup.kernels.cpu.rows import mean_squares_of_rows  # needs Numba, as a store does

        gradient = self.gradient
        return self.with_hessian(mean_squares_of_rows(gradient.to(compute_dtype(gradient.dtype))))

    def join(self, batch: "StepBatch") -> None:
        """Let the store carry it out at once."""
        self.rows.apply(batch.row_step(self.parameter))
