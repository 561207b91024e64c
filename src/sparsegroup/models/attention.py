"""Fields of several values as vectors: their mean, or what a candidate's attention to them gives (DIN); their sum."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from sparsegroup.bags import bag_of_each, means_of, pool_ragged
from sparsegroup.models.layers import RunningStatistics


class Dice(RunningStatistics):
    """p(s) s + (1 - p(s)) α s with p(s) = sigmoid((s - E[s]) / √(Var[s] + ε)) (eq. 3 of DIN), α learned for each unit.

    Training takes E and Var of the batch; evaluation, and a batch of fewer than two vectors, the running ones. On
    several ranks the batch is the rank's own, and the running statistics are of all ranks.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self.alpha = nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("variance", torch.ones(width))

    def forward(self, s: Tensor) -> Tensor:
        """The same shape `[m, width]`."""
        in_batch = self.training and s.shape[0] > 1
        mean, variance = (None, None) if in_batch and self.is_shared else (self.mean, self.variance)
        p = nn.functional.batch_norm(s, mean, variance, training=in_batch, eps=1e-8).sigmoid()
        if self.training and self.is_shared:
            self._note(s.detach().double())
        return p * s + (1 - p) * self.alpha * s

    @torch.no_grad()
    def _note(self, s: Tensor) -> None:
        """Leave the moments of a batch in `of_batch`."""
        count = s.new_full((s.shape[1],), s.shape[0])
        mean = s.sum(0) / count.clamp(min=1)
        self.of_batch.copy_(torch.stack([count, mean, (s - mean).square().sum(0)]))

    @torch.no_grad()
    def follow(self, count: Tensor, mean: Tensor, m2: Tensor) -> None:
        """See `RunningStatistics`; with the momentum and the unbiased variance of torch's batch normalization."""
        if count.max() > 1:
            self.mean.lerp_(mean.to(self.mean), 0.1)
            self.variance.lerp_((m2 / (count - 1)).to(self.variance), 0.1)


class ActivationUnit(nn.Module):
    """a(k, q), how much a value k of a list matters to the candidate q: a network over k, q, k - q, k ∘ q (fig. 2)."""

    def __init__(self, dim: int, hidden: Sequence[int] = (36,)) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        width = 4 * dim
        for size in hidden:
            layers += [nn.Linear(width, size), Dice(size)]
            width = size
        self.layers = nn.Sequential(*layers, nn.Linear(width, 1))

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Weights `[m, 1]` of queries and keys `[m, dim]`."""
        weights: Tensor = self.layers(torch.cat([queries, keys, queries - keys, queries * keys], dim=1))
        return weights


class ListPooling(nn.Module):
    """A vector for each list: v = Σ_j a(e_j, q) e_j over its values' embeddings e_j (eq. 2 of DIN), or their mean.

    The weights a are not normalized, as published: their sum says how much of the list matters to the candidate q, the
    embedding of another field of the same row. An empty list's vector is zero.

    With `sums` a list has a second vector, Σ_j e_j: a mean does not show how many values there are.

    Args:
        dim: Embedding dimension.
        queries: Place of a list → place of the field that gives its q, each among its kind; other lists have their
            mean.
        hidden: Sizes of the hidden layers of each list's `ActivationUnit`.
        sums: Whether each list has its sum as a second vector.

    Attributes:
        vectors: How many vectors a list has: 1 or 2.

    Examples:
        >>> import torch
        >>> from sparsegroup.models import ListPooling
        >>> pooling = ListPooling(4, {0: 2})  # the first list, seen from the third field
        >>> values, offsets, fields = torch.randn(5, 4), torch.tensor([0, 2, 2, 5]), torch.randn(3, 3, 4)
        >>> pooling(0, values, offsets, fields).shape
        torch.Size([3, 1, 4])
    """

    def __init__(
        self, dim: int, queries: Mapping[int, int], hidden: Sequence[int] = (36,), *, sums: bool = False
    ) -> None:
        super().__init__()
        self.vectors = 2 if sums else 1
        self.queries = dict(queries)
        self.units = nn.ModuleDict({str(place): ActivationUnit(dim, hidden) for place in queries})

    def forward(self, place: int, values: Tensor, offsets: Tensor, fields: Tensor) -> Tensor:
        """Vectors `[batch, vectors, dim]` of a list.

        Args:
            place: Which of the lists.
            values: `[m, dim]`, its values' embeddings, the first row's first.
            offsets: `[batch + 1]` int64: row i has `values[offsets[i] : offsets[i + 1]]`.
            fields: `[batch, fields, dim]`, the embeddings of the fields of one value.
        """
        rows = fields.shape[0]
        sums = pool_ragged(values, offsets, rows, "sum")
        if place in self.queries:
            queries = fields[:, self.queries[place]].index_select(0, bag_of_each(offsets, rows, values))
            pooled = pool_ragged(self.units[str(place)](queries, values) * values, offsets, rows, "sum")
        else:
            pooled = means_of(sums, offsets)
        return torch.stack([pooled, sums][: self.vectors], dim=1)


class WithPooling(nn.Module):
    """A network, and how lists become the vectors that it takes, which a `LookupModel` and a `Trainer` look for.

    Args:
        pooling: Makes the vectors.
        network: A network of `sparsegroup.models` or another.
    """

    def __init__(self, pooling: ListPooling, network: nn.Module) -> None:
        super().__init__()
        self.pooling, self.network = pooling, network

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Logits `[batch]` of embeddings `[batch, fields, dim]`, of lists among them, and numbers, as the network."""
        logits: Tensor = self.network(embeddings, numbers)
        return logits
