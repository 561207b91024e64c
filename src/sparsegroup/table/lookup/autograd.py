"""The lookup for autograd: what it finds, the numbering that keeps that valid, and sparse gradients for the table.

Lookups are differentiable any number of times.
"""

import os
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias
from weakref import WeakKeyDictionary, WeakSet, ref

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd import Function

from sparsegroup.kernels.step import array_of, compute_dtype
from sparsegroup.optim.table_parameter import ROW_BITS, StoredParameter, gradient_of, height_of
from sparsegroup.table.directory.buckets import ABSENT
from sparsegroup.table.lookup import kernels
from sparsegroup.table.lookup.kernels import BagPooling

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


_NONE: Int64s = np.empty(0, np.int64)

_MOST_REMEMBERED = 1 << 22
"""Keys of the lookups that are remembered between two steps, in 20 bytes each; the last lookup is always remembered."""


class SortedKeys(NamedTuple):
    """The keys of a batch by row, for rows on a device."""

    rows: Int64s  # `[n]`, each key's row
    order: Int32s  # `[n]`, the keys sorted by row
    starts: Int32s  # `[distinct + 1]`, where in `order` the keys of each row begin, and the last ones end
    longest: int  # the most keys of a row


class KeySearch:
    """The rows of a batch of `keys` `[n]`.

    Attributes:
        inverse: `[n]`, the place of each key among the distinct ones.
        rows: `[distinct]` int64, their rows, `ABSENT` for none.
        absent: How many of the distinct keys have no row.
        distinct: `[distinct]`, the distinct keys, if the lookup keeps them.
    """

    distinct: Int64s = _NONE
    is_distinct = False  # whether the vectors are those of the distinct keys

    num_rows = 0  # of the table after a search ahead of time: with more, absent keys may have one
    first_new: int = np.iinfo(np.int64).max  # rows from this number on belong to keys that are new
    stale: "KeySearch | None" = None  # a search of the same keys ahead of time whose rows are no longer valid
    masked: Int64s = _NONE  # the places of new keys whose vectors fallback vectors replace
    sorted_keys: SortedKeys | None = None  # if a search ahead of time has sorted them

    def __init__(self, keys: Int64s, inverse: Int32s, rows: Tensor, absent: int, numbering: "RowNumbering") -> None:
        self.keys, self.inverse, self.rows, self.absent, self.numbering = keys, inverse, rows, absent, numbering

    @property
    def row_array(self) -> Int64s:
        """The memory of `rows`."""
        return array_of(self.rows)

    def new_places(self, is_distinct: bool) -> Int64s:
        """The places of keys, or of distinct keys, that had no row before, ascending."""
        is_new = self.row_array >= self.first_new
        new = np.flatnonzero(is_new if is_distinct else is_new[self.inverse]) if is_new.any() else _NONE
        return new if self.stale is None else np.union1d(new, self.stale.new_places(is_distinct))

    def mask(self, vectors: Tensor) -> None:
        """Set the vectors at the places `masked` to zero."""
        vectors.index_fill_(0, torch.from_numpy(self.masked).to(vectors.device), 0)

    def info(self, bags: BagPooling | None) -> "LookupInfo":
        """Return what autograd must know of the lookup, for rows on the host."""
        return LookupInfo(self, self.rows, None if self.is_distinct else self.inverse, ONE_LINE_EACH, bags)

    def is_like(self, other: "KeySearch") -> bool:
        """Whether a search of the same keys gave each the same vector."""
        return np.array_equal(self.row_array, other.row_array) and np.array_equal(self.masked, other.masked)


@dataclass(frozen=True, eq=False)
class GradientLines:
    """Relation of the lines of a lookup's gradient to rows: one line for each row, or, on a device, sorted lines."""

    order: Tensor | None = None  # int32 `[lines]`, the lines sorted by row
    starts: Tensor | None = None  # int32 `[distinct + 1]`, where in `order` each row's lines begin, and the last end
    longest: int = 1  # the most lines of a row
    on_host: Int64s | None = None  # `[distinct]`, the rows


ONE_LINE_EACH = GradientLines()
"""Each row has exactly one line: nothing is left to sum."""


OTHER_ROWS = (
    "has rows of another table, or of this table before it was shrunk or loaded or has dropped rows by itself: call "
    "backward() and step() on the same table, with neither shrink() nor load_state_dict() between them"
)


class RowNumbering:
    """Version of the row numbers, with the gradients that have them. Renumbering rows starts a new version.

    A gradient's indices are row numbers plus `base`, which is drawn for each version. A copy of a gradient in any form
    carries the version, so that a step can refuse the rows of an earlier version or of another table. The registry
    knows the lookups' gradients by the memory of their indices: their rows need no sums. Other gradients are summed.

    `is_watched` is whether the table evicts rows between steps, so that it matters which gradients are pending.
    """

    def __init__(self, dim: int, is_watched: bool = False) -> None:
        self.is_watched = is_watched
        self.is_current = True
        self.height = height_of(dim)
        self.base = int.from_bytes(os.urandom(8), "little") % (self.height >> ROW_BITS) << ROW_BITS
        # By the memory of a gradient's indices: the rows of its lines, and how the lines belong to rows.
        self.gradients: WeakKeyDictionary[torch.UntypedStorage, tuple[Tensor, GradientLines]] = WeakKeyDictionary()
        self._awaited: WeakSet[LookupInfo] = WeakSet()
        self._has_gradient = False
        self._searches: deque[KeySearch] = deque()
        self._keys_remembered = 0

    @property
    def has_pending_gradient(self) -> bool:
        """Whether a step may still use a gradient whose rows have these numbers."""
        return self._has_gradient or len(self._awaited) > 0 or len(self.gradients) > 0

    def await_gradient(self, info: "LookupInfo") -> None:
        """Note a lookup whose gradient is pending as long as anybody holds `info`."""
        if self.is_watched:
            self._awaited.add(info)

    def note_backward(self, info: "LookupInfo") -> None:
        """Note that the lookup has its gradient."""
        if self.is_watched:
            self._awaited.discard(info)
            self._has_gradient = True

    def gradient(self, rows: Tensor, values: Tensor, lines: GradientLines | None) -> Tensor:
        """Return the gradient of `rows` `[n]`, whose lines are `values` `[n, dim]`; register the known `lines`."""
        indices = rows + self.base
        if lines is not None:
            self.gradients[indices.untyped_storage()] = rows, lines
        size = self.height, values.shape[1]
        indices = indices.unsqueeze(0)
        return torch.sparse_coo_tensor(indices, values, size, device=values.device, check_invariants=False)

    def remember(self, search: KeySearch) -> None:
        """Remember a training lookup until the next step."""
        search.keys = search.keys.copy()  # they are in the caller's memory, which may get other keys
        self._searches.append(search)
        self._keys_remembered += len(search.keys)
        while self._keys_remembered > _MOST_REMEMBERED and len(self._searches) > 1:
            self._keys_remembered -= len(self._searches.popleft().keys)

    def recall(self, keys: Int64s, is_distinct: bool) -> KeySearch:
        """The training lookup of `keys` since the last step, of the same kind."""
        alike = (search for search in self._searches if search.is_distinct == is_distinct)
        searches = [search for search in alike if np.array_equal(search.keys, keys)]
        if not searches:
            raise RuntimeError(
                "backward computes a lookup again (activation checkpointing) that is not known any more: call "
                "backward() before the table's next step() and before its rows are dropped or loaded. A lookup of "
                f"keys before it is remembered until then, up to {_MOST_REMEMBERED:,} keys in all"
            )
        if not all(searches[0].is_like(other) for other in searches[1:]):
            raise RuntimeError(
                "backward computes a lookup again (activation checkpointing), and the same keys were looked up "
                "several times since the last step with different results, because some were new or not admitted yet: "
                "look them up once, and pass the vectors on"
            )
        return searches[-1]

    def note_step(self, gradient: Tensor | None) -> None:
        """Note a step, which has used the pending gradient."""
        self._has_gradient = False
        self._searches.clear()
        self._keys_remembered = 0
        if gradient is not None:
            self.gradients.pop(gradient._indices().untyped_storage(), None)

    def check(self) -> None:
        """Raise RuntimeError if the rows have been renumbered since."""
        if not self.is_current:
            raise RuntimeError(
                "the table has been shrunk or loaded, or has dropped rows by itself, since this lookup, whose rows "
                "are no longer where they were; call shrink() between a step and the next forward, and backward() and "
                "step() once for each"
            )

    def check_rows(self, rows: Tensor, num_rows: int, where: object) -> None:
        """Raise IndexError for rows of a gradient that the table lacks, RuntimeError for another version's rows."""
        least, most = (int(one) for one in torch.aminmax(rows)) if len(rows) else (self.base, self.base)
        if least >> ROW_BITS != self.base >> ROW_BITS or most >> ROW_BITS != self.base >> ROW_BITS:
            raise RuntimeError(f"the gradient of a HashEmbedding ({where}) {OTHER_ROWS}")
        if most - self.base >= max(num_rows, 1):
            raise IndexError(
                f"the gradient of a HashEmbedding has row {most - self.base}, the table has {num_rows} rows ({where})"
            )


@dataclass(eq=False)
class LookupInfo:
    """Record of a lookup for autograd. The record holds no vectors."""

    search: KeySearch
    # `[lines]` int64, the row of each line of the gradient, `ABSENT` for none. A tensor, because torch may resize
    # what it makes of it (`zero_` on a sparse gradient does)
    rows: Tensor
    # `[keys]` int32, the line of each key, over which the gradient is summed; None where each key has a separate line
    inverse: Int32s | None
    lines: GradientLines | None  # how the gradient's lines belong to rows; None if there will be no gradient
    bags: BagPooling | None = None  # how the keys' vectors were pooled

    @property
    def numbering(self) -> RowNumbering:
        """Numbering of the rows."""
        return self.search.numbering

    @property
    def has_absent(self) -> bool:
        """Return whether any key has no row."""
        return self.search.absent > 0


def for_autograd(weight: StoredParameter, info: LookupInfo, vectors: Tensor) -> Tensor:
    """The `vectors` of a lookup, `[…, dim]`, with a graph if `weight` and autograd want one."""
    if not (torch.is_grad_enabled() and weight.requires_grad):
        return vectors
    gradient: Any = weight.pending()
    if gradient is None:
        pieces: _Pieces = {}
        # In a list, so that autograd takes `vectors` for no input. The node has no values: it only holds `pieces`.
        gradient = _Gradient.apply(weight, pieces, [vectors])  # type: ignore[no-untyped-call]
        gradient.pieces = pieces
        weight.pending = ref(gradient)
    result: Tensor = _Lookup.apply(gradient, info, [vectors])  # type: ignore[no-untyped-call]
    return result


def expand(vectors: Tensor, inverse: Int32s, bags: BagPooling | None = None) -> Tensor:
    """`vectors[inverse]`: the vector `[distinct, dim]` of each of the keys that share it, pooled with `bags`.

    Differentiable.
    """
    result: Tensor = _Gather.apply(vectors, inverse, len(vectors), bags)  # type: ignore[no-untyped-call]
    return result


_Pieces: TypeAlias = dict[int, list[tuple[LookupInfo, Tensor]]]
"""Lookups and the values of their gradients, by the number of the backward pass."""


class _Gradient(Function):
    """Node of the graph that makes one sparse gradient of the gradients of all lookups since the last step.

    Autograd itself would add sparse gradients one by one, and copy all of them for each.
    """

    @staticmethod
    def forward(ctx: Any, weight: StoredParameter, pieces: _Pieces, like: list[Tensor]) -> Tensor:
        ctx.weight, ctx.pieces = weight, pieces
        ctx.set_materialize_grads(False)
        return like[0].new_empty(0)

    @staticmethod
    def backward(ctx: Any, _: None) -> tuple[Tensor | None, None, None]:
        pieces = ctx.pieces.pop(torch._C._current_graph_task_id(), None)
        return None if pieces is None else _joined(ctx.weight, pieces), None, None


def _joined(weight: StoredParameter, pieces: Sequence[tuple[LookupInfo, Tensor]]) -> Tensor:
    """Return the gradient of the weight from the values of its lookups' gradients."""
    found: list[tuple[Tensor, Tensor]] = []
    for info, values in pieces:
        rows, lines = info.rows, info.lines
        if info.has_absent:
            present = rows != ABSENT
            rows, values = rows[present], values[present]
            lines = lines if lines is ONE_LINE_EACH else None
        found.append((rows, values))
    if len(found) > 1 and values.is_cpu and not any(values.requires_grad for _, values in found):
        rows, values = kernels.sum_of_pieces(found)
        lines = ONE_LINE_EACH
    elif len(found) > 1:
        rows, values, lines = *(torch.cat(parts) for parts in zip(*found, strict=True)), None
    values = values.to(weight.store.weight_dtype)
    if gradient_of(weight) is not None:
        values = _spaced(values)
    return info.numbering.gradient(rows, values, lines)


def _spaced(values: Tensor) -> Tensor:
    """Return the lines of a gradient in memory with a gap after each, for torch to add to an earlier gradient.

    Torch appends such lines on the CPU. It merges contiguous lines one by one, which takes 17 times as long, and does
    so for bfloat16, of which it appends none.
    """
    if values.requires_grad or not values.is_cpu or values.dtype == torch.bfloat16:
        return values
    return values.new_empty(len(values), values.shape[1] + 1)[:, :-1].copy_(values)


class _Lookup(Function):
    """Node of a lookup in the graph, which passes the values of its gradient to `_Gradient`."""

    @staticmethod
    def forward(ctx: Any, gradient: Any, info: LookupInfo, vectors: list[Tensor]) -> Tensor:
        ctx.gradient, ctx.pieces, ctx.info = gradient, gradient.pieces, info
        return vectors[0]  # in a list: of a tensor that is an argument autograd would return a view

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, None]:
        info = ctx.info
        info.numbering.check()
        if info.inverse is not None:  # sums are in the dtype of the arithmetic
            gradient = gradient.to(compute_dtype(gradient.dtype))
        if info.inverse is None:
            values = gradient.reshape(-1, gradient.shape[-1]).contiguous()
        elif torch.is_grad_enabled():  # create_graph=True
            gradient = gradient.reshape(-1, gradient.shape[-1])
            values = _Sum.apply(gradient, info.inverse, len(info.rows), info.bags)  # type: ignore[no-untyped-call]
        else:
            values = kernels.added_up(info.inverse, gradient, len(info.rows), info.bags)
        ctx.pieces.setdefault(torch._C._current_graph_task_id(), []).append((info, values))
        info.numbering.note_backward(info)
        return None, None, None


class _Sum(Function):
    """Sums over the keys that share a row: `[keys, dim]`, or `[bags, dim]` with `bags` → `[distinct, dim]`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, inverse: Int32s, distinct: int, bags: BagPooling | None = None) -> Tensor:
        ctx.given = inverse, distinct, bags
        return kernels.added_up(inverse, values, distinct, bags)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _Gather.apply(gradient, *ctx.given), None, None, None  # type: ignore[no-untyped-call]


class _Gather(Function):
    """A row's values for each of its keys, or their pools by `bags`: the adjoint of `_Sum`."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, inverse: Int32s, distinct: int, bags: BagPooling | None = None) -> Tensor:
        ctx.given = inverse, distinct, bags
        return kernels.expanded(inverse, values, bags)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return _Sum.apply(gradient, *ctx.given), None, None, None  # type: ignore[no-untyped-call]
