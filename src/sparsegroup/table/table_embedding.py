"""`TableEmbedding` and `TableEmbeddingBag`: tables that are called as `nn.Embedding` and `nn.EmbeddingBag` are."""

import torch
from torch import Tensor, nn

from sparsegroup.bags import BagMode
from sparsegroup.optim.stored import StoredParameter
from sparsegroup.table.bag import HashEmbeddingBag
from sparsegroup.table.hash_embedding import HashEmbedding
from sparsegroup.table.key_array import as_int64


class TableEmbedding(nn.Module):
    """What `convert` puts in the place of an `nn.Embedding`: a `HashEmbedding` with its arguments and attributes.

    Ids are the table's keys. One that is not below `num_embeddings` is no error: it is a key like any other.

    Args:
        table: Holds the rows.
        num_embeddings: How many rows the `nn.Embedding` had.
        padding_idx: An id that has no row, but a vector that is not trained; None for none.
        padding: That vector, `[dim]`; None for zeros.
        sparse: What the `nn.Embedding` had, for `to_embeddings`. A table's gradients are sparse in any case.

    Attributes:
        table, num_embeddings, padding_idx, sparse: See above.

    Examples:
        >>> import torch
        >>> from sparsegroup import HashEmbedding
        >>> embedding = TableEmbedding(HashEmbedding(4), 10, padding_idx=0)
        >>> embedding(input=torch.tensor([[0, 3], [0, 9]])).shape, embedding.table.num_rows
        (torch.Size([2, 2, 4]), 2)
    """

    max_norm, norm_type, scale_grad_by_freq = None, 2.0, False
    padding: Tensor | None

    def __init__(
        self,
        table: HashEmbedding,
        num_embeddings: int,
        *,
        padding_idx: int | None = None,
        padding: Tensor | None = None,
        sparse: bool = False,
    ) -> None:
        super().__init__()
        self.table = table
        self.num_embeddings, self.padding_idx, self.sparse = num_embeddings, padding_idx, sparse
        if padding_idx is not None and padding is None:
            padding = torch.zeros(table.dim)
        own = None if padding is None else padding.detach().clone().to(table.table.device, table.weight.dtype)
        self.register_buffer("padding", own)

    @property
    def embedding_dim(self) -> int:
        """Length of a vector."""
        return self.table.dim

    @property
    def weight(self) -> StoredParameter:
        """The table's parameter, which is no tensor that one can compute with; see `HashEmbedding.lookup`."""
        return self.table.weight

    def forward(self, input: Tensor) -> Tensor:
        """The vectors of ids.

        Args:
            input: int64 or int32 of any shape, see `HashEmbedding.forward`.

        Returns:
            `[*input.shape, embedding_dim]`.

        Raises:
            TypeError, ValueError, RuntimeError, MemoryError: As `HashEmbedding.forward`.
        """
        ids = as_int64(input)
        if self.padding is None or self.padding_idx is None:
            return self.table(ids)  # type: ignore[no-any-return]
        padded = ids.eq(self.padding_idx)
        if not self.training:  # nothing is inserted
            return torch.where(padded.unsqueeze(-1).to(self.padding.device), self.padding, self.table(ids))
        at = (~padded).flatten().nonzero().squeeze(1)
        vectors = self.table(ids.flatten().index_select(0, at))
        places = self.padding.expand(ids.numel(), -1)
        return places.index_copy(0, at.to(vectors.device), vectors).view(*ids.shape, -1)

    def extra_repr(self) -> str:
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}{padding}"


class TableEmbeddingBag(TableEmbedding):
    """What `convert` puts in the place of an `nn.EmbeddingBag`: a `HashEmbeddingBag` with its arguments and attributes.

    Args:
        table: Holds the rows.
        num_embeddings, padding_idx, padding, sparse: As of `TableEmbedding`; ids of padding are in no sum and no mean.

    Examples:
        >>> import torch
        >>> from sparsegroup import HashEmbeddingBag
        >>> bag = TableEmbeddingBag(HashEmbeddingBag(4, mode="sum"), 10, padding_idx=0)
        >>> bag(torch.tensor([7, 0, 8, 0]), torch.tensor([0, 3])).shape, bag.table.num_rows
        (torch.Size([2, 4]), 2)
    """

    table: HashEmbeddingBag

    @property
    def mode(self) -> BagMode:
        """What is done with a bag's vectors."""
        return self.table.mode

    @property
    def include_last_offset(self) -> bool:
        """Whether `offsets` has one entry more, the number of ids."""
        return self.table.include_last_offset

    def forward(self, input: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """The bags' vectors.

        Args:
            input: int64 or int32 `[bags, ids per bag]`, or `[n]` with `offsets`.
            offsets: int64 or int32 `[bags]`, where each bag begins.
            per_sample_weights: Shaped as `input`; only with mode "sum".

        Returns:
            `[bags, embedding_dim]`; zeros for an empty bag.

        Raises:
            TypeError, ValueError, RuntimeError, MemoryError: As `HashEmbeddingBag.forward`.
        """
        ids, offsets = as_int64(input), None if offsets is None else as_int64(offsets)
        fits = (ids.ndim == 2) == (offsets is None) and getattr(per_sample_weights, "shape", ids.shape) == ids.shape
        if self.padding_idx is not None and fits:  # else the table says what is wrong
            kept = ids.ne(self.padding_idx).flatten()
            if offsets is None:
                bags = ids.shape[0] + self.include_last_offset
                offsets = torch.arange(bags, device=ids.device) * ids.shape[1]
            before = nn.functional.pad(kept.cumsum(0), (1, 0))  # kept ids before each
            ids, offsets = ids.flatten()[kept], before[offsets.to(before.device)]
            if per_sample_weights is not None:
                per_sample_weights = per_sample_weights.flatten()[kept.to(per_sample_weights.device)]
        return self.table(ids, offsets, per_sample_weights)  # type: ignore[no-any-return]
