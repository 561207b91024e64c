"""How sparse a model is: the feature rate of a table, and a report over an optimizer's groups."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsegroup.groups import GroupSpec, grouping
from sparsegroup.notebook import html_table
from sparsegroup.optim.dtensor import has_whole_groups, is_sharded, local_part, summed_over_shards, whole
from sparsegroup.optim.optimizer import GroupOptimizer
from sparsegroup.optim.table_parameter import RowStore, store_of


@torch.no_grad()
def feature_rate(weight: Tensor, seen: Tensor | int | GroupOptimizer | None = None) -> float:
    """Return the paper's "sparsity": rows with a non-zero vector over distinct features ever seen in training.

    Args:
        weight: `[rows, …]`, an embedding table; or the weight of a `HashEmbedding`, which knows the features seen. For
            a DTensor or a sharded table the rate is over all ranks, and all ranks must call this function.
        seen: The rows of a tensor that training has seen: a mask `[rows]` of bool (other rows, still random, do not
            count); or the optimizer, for the rows that had a non-zero gradient; or the number of features ever seen.
            None counts all rows as seen, including untrained rows.

    Returns:
        A number in [0, 1]; 0 if nothing was seen.

    Raises:
        ValueError: `seen` is a mask of another length, fewer than the live rows, or an optimizer of other parameters.

    Examples:
        >>> import torch
        >>> from sparsegroup import GroupAdam, feature_rate
        >>> feature_rate(torch.tensor([[0.0, 0.0], [0.0, 1.0], [2.0, 1.0], [0.0, 0.0]]))
        0.5
        >>> embedding = torch.nn.Embedding.from_pretrained(torch.full((100, 4), 0.05), freeze=False)
        >>> optimizer = GroupAdam(embedding.parameters(), lr=0.1, l21=0.1)
        >>> (embedding(torch.arange(4)) * torch.tensor([[1.0], [1.0], [1.0], [0.01]])).sum().backward()
        >>> optimizer.step()
        >>> feature_rate(embedding.weight, optimizer), feature_rate(embedding.weight)
        (0.75, 0.99)
    """
    store = store_of(weight)
    if store is not None and (seen is None or isinstance(seen, GroupOptimizer)):
        known, alive = _on_all_ranks(store, store.num_seen, store.num_live)
        return alive / known if known else 0.0
    if isinstance(seen, GroupOptimizer):
        censuses = seen.census_of(weight)
        count = sum(one.seen for one in censuses)
        return sum(one.live for one in censuses) / count if count else 0.0
    live = whole((weight != 0).flatten(1).any(dim=1) if weight.ndim > 1 else weight != 0)
    if isinstance(seen, Tensor):
        if seen.shape != live.shape or seen.dtype != torch.bool:
            raise ValueError(
                f"seen must be a bool mask of shape {list(live.shape)}, got {seen.dtype} {list(seen.shape)}"
            )
        live, count = live & seen, int(seen.sum())
    else:
        count = len(live) if seen is None else seen
        if count < int(live.sum()):
            raise ValueError(f"seen must be at least the number of live rows, {int(live.sum())}, got {count}")
    return int(live.sum()) / count if count else 0.0


@dataclass(frozen=True)
class ParameterSparsity:
    """How many groups and elements of one parameter are exactly zero.

    Attributes:
        name: The parameter's name, or its place in the optimizer if it has none.
        shape: The parameter's shape.
        groups: Number of groups.
        zero_groups: Number of groups whose elements are all exactly 0.
        zero_elements: Number of elements that are exactly 0.
    """

    name: str
    shape: tuple[int, ...]
    groups: int
    zero_groups: int
    zero_elements: int

    @property
    def live_rate(self) -> float:
        """The share of groups that are not zero."""
        return 1 - self.zero_groups / self.groups if self.groups else 0.0


class SparsityReport(tuple[ParameterSparsity, ...]):
    """One entry per parameter; `str()` gives an aligned table, and notebooks show a table."""

    _columns = ("parameter", "shape", "groups", "zero groups", "live")

    def _rows(self) -> Iterator[tuple[str, str, int, int, str]]:
        for one in self:
            shape = "×".join(map(str, one.shape)) or "scalar"
            yield one.name, shape, one.groups, one.zero_groups, f"{one.live_rate:.2%}"

    def _repr_html_(self) -> str:
        return html_table("Zero groups", self._columns, self._rows())

    def __str__(self) -> str:
        rows = [self._columns, *((*row[:2], f"{row[2]:,}", f"{row[3]:,}", row[4]) for row in self._rows())]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = []
        for row in rows:
            words, numbers = row[:2], row[2:]
            cells = [*map(str.ljust, words, widths), *map(str.rjust, numbers, widths[2:])]
            lines.append("  ".join(cells))
        return "\n".join(lines)


@torch.no_grad()
def sparsity_report(optimizer: GroupOptimizer) -> SparsityReport:
    """How many groups of each parameter of `optimizer` are exactly zero, by the groups it regularizes.

    The groups of a `HashEmbedding` are its rows. Give the optimizer named parameters (`model.named_parameters()` or
    `param_groups`) to see their names. With DTensors or sharded tables the report counts the groups of all ranks, each
    of which must call this.
    """
    entries = []
    for group_index, group in enumerate(optimizer.param_groups):
        names = group.get("param_names")
        for index, parameter in enumerate(group["params"]):
            name = names[index] if names else f"param_groups[{group_index}][{index}]"
            store = store_of(parameter)
            if store is not None:
                entries.append(_store_sparsity(name, store))
                continue
            live, total, elements = _counts(parameter, group["groups"])
            zeros = parameter.numel() - elements
            entries.append(ParameterSparsity(name, tuple(parameter.shape), total, total - live, zeros))
    return SparsityReport(entries)


def _counts(parameter: Tensor, spec: GroupSpec) -> tuple[int, int, int]:
    """Groups with a non-zero element, groups, and non-zero elements."""
    if is_sharded(type(parameter)):
        if not has_whole_groups(parameter, spec):
            return _counts(whole(parameter), spec)
        live, total, elements = summed_over_shards(parameter, _counts(local_part(parameter), spec))
        return live, total, elements
    live, total = grouping(spec, parameter.shape, parameter.device).count_nonzero(parameter)
    return live, total, int(torch.count_nonzero(parameter))


def _store_sparsity(name: str, store: RowStore) -> ParameterSparsity:
    own = sum(int((vectors == 0).sum()) for _, vectors in store.scan(1 << 16))
    rows, live, in_live_rows = _on_all_ranks(store, store.num_rows, store.num_live, own)
    dead = rows - live
    return ParameterSparsity(name, (rows, store.dim), rows, dead, in_live_rows + dead * store.dim)


def _on_all_ranks(store: RowStore, *counts: int) -> list[int]:
    """The sums of counts of a table's rows over its ranks."""
    return [*counts] if store.ranks is None else store.ranks.totals(counts, "counts of rows")
