"""A step over a table's rows that has been checked and not yet taken."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from sparsegroup.optim.stored import RowStep
from sparsegroup.table.row_storage import RowGradient, RowStorage


def check_layout(gradient: Tensor, where: str) -> None:
    """Raise ValueError unless a table's gradient is sparse COO."""
    if gradient.layout != torch.sparse_coo:
        raise ValueError(f"the gradient of a HashEmbedding must be sparse COO, got {gradient.layout} ({where})")


@dataclass(frozen=True)
class TablePlan:
    """See `sparsegroup.optim.stored.RowPlan`.

    Attributes:
        read: The gradient as the storage will take it.
        storage: Where the rows are.
        check_finite: Raises where lines that are not finite may not be left out.
        carry_out: Takes the step.
    """

    read: RowGradient
    storage: RowStorage
    check_finite: Callable[[RowGradient], None]
    carry_out: Callable[[RowGradient, RowStep], None]

    @property
    def gradient(self) -> Tensor:
        """`[n, dim]`, a line for each row, in the order in which a Hessian's diagonal must come."""
        return self.read.values

    def with_hessian(self, diagonal: Tensor) -> "TablePlan":
        """The same with the Hessian's diagonal, shaped as `gradient`."""
        read = self.read.with_hessian(diagonal, self.storage.finite(diagonal))
        self.check_finite(read)
        return replace(self, read=read)

    def apply(self, request: RowStep) -> None:
        """Take the step."""
        self.carry_out(self.read, request)
