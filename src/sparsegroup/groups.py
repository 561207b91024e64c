"""How a tensor is cut into groups: rows, columns, channels, all, a dimension, or an index over rows."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

GroupSpec = Literal["rows", "columns", "channels", "all"] | int | Tensor


@dataclass(frozen=True)
class Along:
    """The groups of a tensor of `shape`: one per index of the non-negative dimension `dim`; if None, one in all.

    The methods are those of `ByIndex`; results broadcast against the tensor unless said otherwise.
    """

    shape: torch.Size
    dim: int | None

    @property
    def count(self) -> int:
        """The number of groups, with empty ones."""
        return 1 if self.dim is None else self.shape[self.dim]

    def of_each(self, values: Tensor) -> Tensor:
        """`[groups]` from a result of `norm`, `any` or `sqrt_size`; empty groups are left out."""
        return values.flatten()

    @property
    def sqrt_size(self) -> float:
        """√d, with d the number of elements of a group."""
        return math.sqrt(self.shape.numel() / self.count) if self.count else 0.0

    @property
    def _others(self) -> tuple[int, ...]:
        return tuple(d for d in range(len(self.shape)) if d != self.dim)

    def norm(self, x: Tensor) -> Tensor:
        """‖x‖₂ of each group."""
        # An empty `dim` would mean all dimensions to torch.
        return torch.linalg.vector_norm(x, dim=self._others, keepdim=True) if self._others else x.abs()

    def any(self, mask: Tensor) -> Tensor:
        """Whether any element of the group is True."""
        return mask.any(dim=self._others, keepdim=True) if self._others else mask

    def count_nonzero(self, x: Tensor) -> tuple[int, int]:
        """The number of groups with a non-zero element, and of all groups that are not empty."""
        live = self.any(x != 0)
        return int(live.sum()), live.numel()


@dataclass(frozen=True)
class ByIndex:
    """Groups of rows with the same id: `ids` is `[shape[0]]` int64, on the tensor's device, in [0, count)."""

    shape: torch.Size
    ids: Tensor
    count: int

    def of_each(self, values: Tensor) -> Tensor:
        per_row = values.reshape(self.shape[0])
        first = per_row.new_zeros(self.count).index_copy_(0, self.ids, per_row)  # all of a group are equal
        return first[self._per_group(torch.ones_like(self.ids)) > 0]

    def _per_group(self, per_row: Tensor) -> Tensor:
        return per_row.new_zeros(self.count).index_add_(0, self.ids, per_row)

    def sums(self, per_row: Tensor) -> Tensor:
        """Σ over its group for each row: `[rows]` → `[rows]`."""
        return self._per_group(per_row)[self.ids]

    def _to_rows(self, per_group: Tensor) -> Tensor:
        return per_group[self.ids].view(-1, *[1] * (len(self.shape) - 1))

    def _as_matrix(self, x: Tensor) -> Tensor:
        return x.reshape(self.shape[0], self.shape[1:].numel())

    @property
    def sqrt_size(self) -> Tensor:
        row_size = self.shape[1:].numel()
        return self._to_rows(torch.sqrt(self._per_group(torch.full_like(self.ids, row_size)).double()))

    def norm(self, x: Tensor) -> Tensor:
        return self._to_rows(torch.sqrt(self._per_group(self._as_matrix(x).square().sum(1))))

    def any(self, mask: Tensor) -> Tensor:
        return self._to_rows(self._per_group(self._as_matrix(mask).any(1).long()) > 0)

    def count_nonzero(self, x: Tensor) -> tuple[int, int]:
        live = self._per_group(self._as_matrix(x != 0).any(1).long())
        present = self._per_group(torch.ones_like(self.ids))
        return int((live > 0).sum()), int((present > 0).sum())


Grouping = Along | ByIndex


def check_groups(spec: object, shape: torch.Size, where: str) -> None:
    """Raise ValueError or TypeError unless `spec` can cut a tensor of `shape` into groups; `where` names it."""
    if isinstance(spec, Tensor):
        if spec.dtype != torch.int64:
            raise TypeError(f"groups: an index must be int64, got {spec.dtype} ({where})")
        if not shape or spec.shape != shape[:1]:
            expected = f"shape [{shape[0]}]" if shape else "which a 0-d parameter has not"
            raise ValueError(
                f"groups: an index needs one id per row, {expected} for a parameter of shape {list(shape)}, "
                f"got shape {list(spec.shape)} ({where})"
            )
        if spec.numel() and int(spec.min()) < 0:
            raise ValueError(f"groups: ids must be >= 0, got {int(spec.min())} ({where})")
    elif isinstance(spec, bool) or not isinstance(spec, str | int):
        raise TypeError(
            "groups must be 'rows', 'columns', 'channels', 'all', an int dimension or an int64 tensor of ids, "
            f"got {spec!r} ({where})"
        )
    elif isinstance(spec, int) and shape and not -len(shape) <= spec < len(shape):
        raise ValueError(f"groups={spec} is no dimension of a parameter of shape {list(shape)} ({where})")
    elif isinstance(spec, str) and spec not in ("rows", "columns", "channels", "all"):
        raise ValueError(f"groups must be 'rows', 'columns', 'channels' or 'all', got {spec!r} ({where})")
    elif spec == "columns" and len(shape) == 1:
        raise ValueError(
            f"groups='columns' needs a parameter with at least 2 dimensions, got shape {list(shape)} ({where}); "
            "put biases in a separate param group with groups='rows' or 'all'"
        )


def is_rows(spec: GroupSpec) -> bool:
    """Whether `spec` makes each index of dimension 0 a group, which is what sparse gradients need."""
    return not isinstance(spec, Tensor) and (spec == "rows" or (isinstance(spec, int) and spec == 0))


def grouping(spec: GroupSpec, shape: torch.Size, device: torch.device) -> Grouping:
    """The groups that a checked `spec` makes of a tensor of `shape`.

    A 0-d tensor is one group; the rows of a 1-d tensor are its elements.
    """
    if isinstance(spec, Tensor):
        return ByIndex(shape, *_compact(spec.to(device)))
    if not shape or spec == "all":
        return Along(shape, None)
    if isinstance(spec, int):
        return Along(shape, spec % len(shape))
    return Along(shape, 1 if spec == "columns" else 0)


def mean_square(x: Tensor, groups: Grouping) -> Tensor:
    """The mean of x² over the group of each element, shaped as `x`."""
    size = groups.sqrt_size
    root = groups.norm(x) / (size.to(x.dtype) if isinstance(size, Tensor) else size)
    return (root * root).expand_as(x).contiguous()


def contiguous_groups(spec: GroupSpec, shape: torch.Size) -> tuple[int, int] | None:
    """Elements of a group and number of groups, if each group of a contiguous tensor is contiguous; else None."""
    if isinstance(spec, Tensor):
        return None
    if not shape or spec == "all":
        return (shape.numel(), 1)
    dim = spec % len(shape) if isinstance(spec, int) else 1 if spec == "columns" else 0
    if shape[:dim].numel() != 1:
        return None
    return (shape[dim + 1 :].numel(), shape[dim])


def _compact(ids: Tensor) -> tuple[Tensor, int]:
    """The same groups with ids not much larger than their number (they may be hashes), and 1 + the largest."""
    count = int(ids.max()) + 1 if ids.numel() else 0
    if count > 4 * ids.numel():
        distinct, compact = torch.unique(ids, return_inverse=True)
        return compact, len(distinct)
    return ids, count
