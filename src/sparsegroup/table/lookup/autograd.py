"""The lookup for autograd: what it finds, the numbering that keeps that valid, and sparse gradients for the table.

Lookups are differentiable any number of times.
"""

from collections import deque
from dataclasses import dataclass, replace
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd import Function

from sparsegroup.kernels.step import array_of
from sparsegroup.optim.table_parameter import HEIGHT, StoredParameter, attach
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

    def result(self, vectors: Tensor, bags: BagPooling | None) -> "LookupResult":
        """A lookup of rows on the host that has found `vectors`, as `LookupResult` has them."""
        lines, inverse = GradientLines(self.numbering, len(self.rows)), None if self.is_distinct else self.inverse
        info = LookupInfo(self.numbering, self.rows, inverse, self.absent > 0, lines, bags)
        return LookupResult(info, vectors, self)

    def is_like(self, other: "KeySearch") -> bool:
        """Whether a search of the same keys gave each the same vector."""
        return np.array_equal(self.row_array, other.row_array) and np.array_equal(self.masked, other.masked)


class RowNumbering:
    """A version of the row numbers. Renumbering rows starts a new version and makes earlier lookups stale.

    `is_watched` is whether the table evicts rows between steps, so that it matters which gradients are pending.
    """

    def __init__(self, is_watched: bool = False) -> None:
        self.is_watched = is_watched
        self.is_current = True
        self._awaited: WeakSet[LookupInfo | GradientLines] = WeakSet()
        self._has_gradient = False
        self._searches: deque[KeySearch] = deque()
        self._keys_remembered = 0

    @property
    def has_pending_gradient(self) -> bool:
        """Whether a step may still use a gradient whose rows have these numbers."""
        return self._has_gradient or len(self._awaited) > 0

    def await_gradient(self, info: "LookupInfo") -> None:
        """Note a lookup whose gradient is pending as long as anybody holds `info`."""
        if self.is_watched:
            self._awaited.add(info)

    def note_gradient(self, info: "LookupInfo", lines: "GradientLines | None") -> None:
        """Note that the lookup has its gradient, which is pending as long as anybody holds `lines`."""
        if self.is_watched:
            self._awaited.discard(info)
            self._has_gradient = True
            if lines is not None:
                self._awaited.add(lines)

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

    def note_step(self, lines: "GradientLines | None") -> None:
        """Note a step, which has used the pending gradient, `lines` too."""
        self._has_gradient = False
        self._searches.clear()
        self._keys_remembered = 0
        if lines is not None:
            self._awaited.discard(lines)

    def check(self) -> None:
        """Raise RuntimeError if the rows have been renumbered since."""
        if not self.is_current:
            raise RuntimeError(
                "the table has been shrunk or loaded, or has dropped rows by itself, since this lookup, whose rows "
                "are no longer where they were; call shrink() between a step and the next forward, and backward() and "
                "step() once for each"
            )


@dataclass(eq=False)
class GradientLines:
    """How the lines of a lookup's gradient belong to rows.

    Stored as an attribute of the storage of the gradient's indices. It must not hold a tensor with that storage: that
    would be a reference cycle.
    """

    numbering: RowNumbering  # that of the rows
    count: int  # lines
    # where in the indices' storage, in elements, the lines sorted by row begin, int32 `[count]`. None where each row
    # has one line
    order: int | None = None
    starts: int = 0  # where in it the beginnings of the rows' runs in that order are, int32 `[distinct + 1]`
    longest: int = 0  # the most lines of a row, if they are sorted
    on_host: Int64s | None = None  # `[distinct]`, the rows, where the host knows them

    @property
    def are_distinct(self) -> bool:
        """Whether each row has one line."""
        return self.order is None

    def without_absent(self, count: int) -> "GradientLines | None":
        """The lines of `count` that have a row; None if unknown."""
        return replace(self, count=count) if self.order is None else None


@dataclass(eq=False)
class LookupInfo:
    """What autograd must know of a lookup."""

    numbering: RowNumbering  # that of the rows
    # `[lines]` int64, the row of each line of the gradient, `ABSENT` for none. A tensor, because torch may resize
    # what it makes of it (`zero_` on a sparse gradient does)
    rows: Tensor
    # `[keys]` int32, the line of each key, over which the gradient is summed; None where each key has a separate line
    inverse: Int32s | None
    has_absent: bool  # whether some key has no row
    lines: GradientLines | None  # how the gradient's lines belong to rows; None if there will be no gradient
    bags: BagPooling | None = None  # how the keys' vectors were pooled


class LookupResult(NamedTuple):
    """A lookup of `[n]` keys.

    `vectors` belong to the caller: `[n, dim]`, or `[bags, dim]` if they were pooled, or `[distinct, dim]`.
    """

    info: LookupInfo
    vectors: Tensor
    search: KeySearch

    def mask(self) -> None:
        """Set the vectors at the places `search.masked` to zero."""
        self.vectors.index_fill_(0, torch.from_numpy(self.search.masked).to(self.vectors.device), 0)


def for_autograd(weight: StoredParameter, info: LookupInfo, vectors: Tensor) -> Tensor:
    """The `vectors` of a lookup, `[…, dim]`, with a graph if `weight` and autograd want one."""
    if torch.is_grad_enabled() and weight.requires_grad:
        result: Tensor = _Lookup.apply(weight, info, [vectors])  # type: ignore[no-untyped-call]
        return result
    return vectors


def expand(vectors: Tensor, inverse: Int32s, bags: BagPooling | None = None) -> Tensor:
    """`vectors[inverse]`: the vector `[distinct, dim]` of each of the keys that share it, pooled with `bags`.

    Differentiable.
    """
    result: Tensor = _Gather.apply(vectors, inverse, len(vectors), bags)  # type: ignore[no-untyped-call]
    return result


class _Lookup(Function):
    @staticmethod
    def forward(ctx: Any, weight: StoredParameter, info: LookupInfo, vectors: list[Tensor]) -> Tensor:
        ctx.info, ctx.weight = info, weight
        return vectors[0]  # in a list: of a tensor that is an argument autograd would return a view

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        info = ctx.info
        info.numbering.check()
        if info.inverse is None:  # contiguous, or autograd would copy it, and the rows with it
            values = gradient.reshape(-1, gradient.shape[-1]).contiguous()
        elif torch.is_grad_enabled():  # create_graph=True
            gradient = gradient.reshape(-1, gradient.shape[-1])
            values = _Sum.apply(gradient, info.inverse, len(info.rows), info.bags)  # type: ignore[no-untyped-call]
        else:
            values = kernels.added_up(info.inverse, gradient, len(info.rows), info.bags)
        if values.requires_grad and not len(values) and ctx.weight.store.ranks is not None:
            ctx.weight.rowless += (values,)
        return _sparse(info, values), None, None


def _sparse(info: LookupInfo, values: Tensor) -> Tensor:
    """The gradient for the table, without what has no row."""
    rows, lines = info.rows, info.lines
    if info.has_absent:
        present = rows != ABSENT
        rows, values = rows[present], values[present]
        lines = lines and lines.without_absent(len(rows))
    if info.numbering.is_watched and lines is not None and lines.order is None:
        rows = rows.clone()  # so that what is attached to them lives as long as the gradient, not as the graph
        lines = replace(lines)
    info.numbering.note_gradient(info, lines)
    if lines is not None:
        attach(rows, lines)
    size = HEIGHT, values.shape[1]
    return torch.sparse_coo_tensor(rows.unsqueeze(0), values, size, device=values.device, check_invariants=False)


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
