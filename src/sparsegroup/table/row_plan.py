"""A step over a table's rows that has been checked and not yet taken."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from sparsegroup.optim.stored import RowStep
from sparsegroup.table.row_storage import RowGradient


@dataclass(frozen=True)
class TablePlan:
    """See `sparsegroup.optim.stored.RowPlan`.

    Attributes:
        read: The gradient as the storage will take it.
        guard: Gives the gradient with a Hessian's diagonal, or raises.
        carry_out: Takes the step.
    """

    read: RowGradient
    guard: Callable[[RowGradient, Tensor], RowGradient]
    carry_out: Callable[[RowGradient, RowStep], None]

    @property
    def gradient(self) -> Tensor:
        """`[n, dim]`, a line for each row, in the order in which a Hessian's diagonal must come."""
        return self.read.values

    def with_hessian(self, diagonal: Tensor) -> "TablePlan":
        """The same with the Hessian's diagonal, shaped as `gradient`."""
        return replace(self, read=self.guard(self.read, diagonal))

    def apply(self, request: RowStep) -> None:
        """Take the step."""
        self.carry_out(self.read, request)
