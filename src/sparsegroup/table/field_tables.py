"""`FieldTables`: tables of several widths as one embedding, so that fields may have vectors of different sizes."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsegroup.table.config import check_int
from sparsegroup.table.hash_embedding import HashEmbedding, TableCounts
from sparsegroup.table.lookup.fallback import field_numbers
from sparsegroup.table.lookup.lookup import checked_keys
from sparsegroup.table.table import Table


def tables_in(model: nn.Module) -> dict[str, HashEmbedding]:
    """The tables of a module, by their names in `named_modules`."""
    return {name: module for name, module in model.named_modules() if isinstance(module, HashEmbedding)}


class FieldTables(TableCounts, nn.Module):
    """An embedding whose fields have vectors of different sizes: a `HashEmbedding` per size, and what joins them.

    A vector v of size d < `dim` becomes P v, with a learned P `[dim, d]` for each size, as in mixed dimension
    embeddings (Ginart et al. 2019, arXiv:1909.11810); those of size `dim` unchanged. P starts with orthonormal
    columns: P v is as long as v, and the gradient of v as long as its part in the subspace of P, so that λ21, which
    counts per √d, asks the same of every table. The rows hold the vectors v; it is v that lives, dies and takes memory.
    Frozen by `requires_grad_(False)`, the tables look up as in evaluation mode.

    Args:
        dim: Length of the vectors that it gives, ≥ 1.
        sizes: Field → size of its vectors, in [1, `dim`], by the number in the top bits of a key.
        field_bits: How many high bits of a key are its field, 1 to 16.
        **options: Arguments of each `HashEmbedding`.

    Raises:
        ValueError, TypeError: An argument out of range, or no field.

    Attributes:
        dim, sizes: See above.
        tables: Name, `dim_<size>`, of each submodule that is a table → the table, the smallest size first.
        up: The same name → the layer that multiplies by P, of sizes below `dim`.

    Examples:
        >>> import torch
        >>> from sparsegroup import FieldTables, GroupAdam, field_keys, param_groups
        >>> embedding = FieldTables(8, {0: 8, 1: 2, 2: 2}, field_bits=8)
        >>> optimizer = GroupAdam(param_groups(embedding, l21=1e-3))
        >>> keys = field_keys(torch.tensor([[5, 5, 7]]))  # one of each field
        >>> embedding(keys).shape, {name: table.num_rows for name, table in embedding.tables.items()}
        (torch.Size([1, 3, 8]), {'dim_2': 2, 'dim_8': 1})
    """

    place: Tensor

    def __init__(self, dim: int, sizes: Mapping[int, int], *, field_bits: int = 8, **options: Any) -> None:
        super().__init__()
        check_int("dim", dim, 1, 1 << 20)
        check_int("field_bits", field_bits, 1, 16)
        if not sizes:
            raise ValueError("sizes must name at least one field")
        for field, size in sizes.items():
            check_int("a field in sizes", field, 0, (1 << field_bits) - 1)
            check_int(f"the size of field {field}", size, 1, dim)
        self.dim, self.field_bits = dim, field_bits
        self.sizes = dict(sorted(sizes.items()))
        place = torch.full((1 << field_bits,), -1, dtype=torch.int64, device="cpu")
        self._names: list[str] = []
        self.up = nn.ModuleDict()
        for number, size in enumerate(sorted(set(sizes.values()))):
            name = f"dim_{size}"
            table = HashEmbedding(size, field_bits=field_bits, **options)
            self.add_module(name, table)
            self._names.append(name)
            if size < dim:
                layer = nn.Linear(size, dim, bias=False, device="cpu", dtype=torch.float64)
                nn.init.orthogonal_(layer.weight)
                self.up[name] = layer.to(table.table.device, table.weight.dtype)
            place[[field for field, own in sizes.items() if own == size]] = number
        self.register_buffer("place", place, persistent=False)

    def _counted(self) -> list[Table]:
        tables: Any = self.tables.values()  # an export's are frozen
        return [table.table if isinstance(table, HashEmbedding) else table for table in tables]

    @property
    def tables(self) -> dict[str, HashEmbedding]:
        """See above."""
        return {name: getattr(self, name) for name in self._names}

    def forward(self, keys: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """The vectors of `keys`.

        Args:
            keys: int64 or int32 of any shape.
            dtype: What the products, and the result, are in; None: the dtype of the tables.

        Returns:
            `[*keys.shape, dim]`, where the tables' rows are. Keys of fields without a size have zeros in evaluation.

        Raises:
            TypeError, ValueError, RuntimeError, MemoryError: As `HashEmbedding.forward`, or a key of a field without a
                size in training.
        """
        parts, order = [], []
        for (name, table), (at, own) in zip(self.tables.items(), self._by_table(keys), strict=True):
            vectors = table(own) if dtype is None else table(own).to(dtype)
            if name in self.up:
                layer = self.up[name]
                assert isinstance(layer, nn.Linear)
                vectors = functional.linear(vectors, layer.weight.to(vectors.dtype))
            parts.append(vectors)
            order.append(at)
        joined = torch.cat(parts)
        where = torch.cat(order).to(joined.device)
        return joined.new_zeros(keys.numel(), self.dim).index_copy(0, where, joined).view(*keys.shape, self.dim)

    def prefetch(self, keys: Tensor) -> None:
        """Let the tables look for keys ahead of their `forward`; see `HashEmbedding.prefetch`."""
        for table, (_, own) in zip(self.tables.values(), self._by_table(keys), strict=True):
            table.prefetch(own)

    def contains(self, keys: Tensor) -> Tensor:
        """Return which of `keys`, int64 of any shape, have a row: bool of the same shape."""
        found = torch.zeros(keys.numel(), dtype=torch.bool, device="cpu")
        for table, (at, own) in zip(self.tables.values(), self._by_table(keys), strict=True):
            found[at.cpu()] = table.contains(own.cpu())
        return found.view(keys.shape)

    def _by_table(self, keys: Tensor) -> list[tuple[Tensor, Tensor]]:
        """For each table its places among the flat keys, and the keys there."""
        flat = checked_keys(keys).flatten().to(self.place.device)
        place = self.place.index_select(0, field_numbers(flat, self.field_bits))
        if self.training and bool((place < 0).any()) and any(table.is_trained for table in self.tables.values()):
            field = int(field_numbers(flat[place < 0][:1], self.field_bits))
            known = ", ".join(map(str, self.sizes))
            raise ValueError(
                f"the field {field} has no size; there are sizes of the fields {known}: give one for it in `sizes`"
            )
        found = [(place == number).nonzero().squeeze(1) for number in range(len(self._names))]
        return [(at, flat.index_select(0, at)) for at in found]
