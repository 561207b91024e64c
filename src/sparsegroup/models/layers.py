"""What the models share: the input they agree on, a stack of hidden layers, and statistics that follow training."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Network(nn.Module):
    """Network over embeddings `[batch, fields, dim]` and numbers `[batch, numbers]`, whose last layer is `output`.

    Where it has an argument `outputs`, it gives as many logits of a row as that: `[batch]` of one, otherwise
    `[batch, outputs]`.
    """

    output: nn.Linear

    def __init__(self, fields: int, dim: int, numbers: int) -> None:
        super().__init__()
        self.fields, self.dim, self.numbers = fields, dim, numbers

    @property
    def logit_bias(self) -> nn.Parameter:
        """What is added to every logit, `[outputs]`; training may start it at the log's base rate."""
        return self.output.bias

    def logits(self, last: Tensor) -> Tensor:
        """Logits of what the last layer takes, `[batch, width]`."""
        return by_row(self.output(last))

    def flatten(self, embeddings: Tensor, numbers: Tensor | None) -> Tensor:
        """Checked embeddings and numbers as one `[batch, fields * dim + numbers]`."""
        check_inputs(embeddings, numbers, self.fields, self.dim, self.numbers)
        return joined(embeddings, numbers)


def by_row(logits: Tensor) -> Tensor:
    """Logits `[batch, outputs]`; of one output `[batch]`."""
    return logits.squeeze(1) if logits.shape[1] == 1 else logits


def check_inputs(embeddings: Tensor, numbers: Tensor | None, fields: int, dim: int, n_numbers: int) -> None:
    """Raise ValueError unless embeddings are `[batch, fields, dim]` and numbers `[batch, n_numbers]`, or None for 0."""
    if embeddings.ndim != 3 or embeddings.shape[1:] != (fields, dim):
        raise ValueError(f"embeddings must be [batch, {fields}, {dim}], got {list(embeddings.shape)}")
    given = None if numbers is None else list(numbers.shape)
    if (numbers is None) != (n_numbers == 0) or (numbers is not None and given != [embeddings.shape[0], n_numbers]):
        expected = f"[{len(embeddings)}, {n_numbers}]" if n_numbers else "None"
        raise ValueError(f"numbers must be {expected}, got {given}")


def joined(vectors: Tensor, numbers: Tensor | None) -> Tensor:
    """Vectors `[batch, n, k]` and numbers as one `[batch, n * k + numbers]`."""
    flat = vectors.flatten(1)
    return flat if numbers is None else torch.cat([flat, numbers], dim=1)


def hidden_layers(width: int, hidden: Sequence[int], dropout: float = 0.0) -> nn.Sequential:
    """Linear → ReLU (→ dropout) for each size in `hidden`, from inputs of size `width`."""
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(width, size), nn.ReLU()]
        if dropout:
            layers.append(nn.Dropout(dropout))
        width = size
    return nn.Sequential(*layers)


class WithHeads(nn.Module):
    """Several networks with one output each, side by side, each over a part of every embedding.

    For networks that use a coordinate of an embedding as a feature's weight: each output has another weight.

    Args:
        heads: The networks; of `dim` coordinates each, in their order.
    """

    def __init__(self, heads: Sequence[Network]) -> None:
        super().__init__()
        self.heads = nn.ModuleList(heads)
        self.logit_bias = nn.Parameter(torch.zeros(len(heads)))
        for head in heads:  # whose place it takes
            nn.init.zeros_(head.logit_bias).requires_grad_(False)

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Logits `[batch, heads]` of embeddings `[batch, fields, heads * dim]` and numbers `[batch, numbers]`."""
        parts = embeddings.chunk(len(self.heads), dim=2)
        logits = [head(part, numbers) for head, part in zip(self.heads, parts, strict=True)]
        return torch.stack(logits, dim=1) + self.logit_bias


class RunningStatistics(nn.Module, ABC):
    """A layer that follows the moments of its inputs `[batch, n]` in training: of its batches, or of several ranks'.

    Attributes:
        is_shared: Whether a batch in training leaves its moments in `of_batch`, to be merged with
            the other ranks' and then passed to `follow`. If not, the layer follows its own batch.
        of_batch: Counts, means and sums of squared distances from the mean, `[3, n]` float64.
    """

    of_batch: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.is_shared = False
        self.register_buffer("of_batch", torch.zeros(3, width, dtype=torch.float64), persistent=False)

    @abstractmethod
    def follow(self, count: Tensor, mean: Tensor, m2: Tensor) -> None:
        """Let the statistics follow a batch of these moments, `[n]` float64 each."""


def merged_moments(parts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Count, mean and sum of squared distances `[n]` of all rows whose parts have these, `[parts, 3, n]` float64.

    A part without rows counts nothing, with any mean (Chan, Golub and LeVeque 1983).

    Examples:
        >>> import torch
        >>> parts = torch.tensor([[[2.0], [1.0], [2.0]], [[1.0], [4.0], [0.0]]])  # of 0, 2 and of 4
        >>> [moment.item() for moment in merged_moments(parts)]
        [3.0, 2.0, 8.0]
    """
    counts, means, m2s = parts.unbind(1)
    count = counts.sum(0)
    mean = (counts * means).sum(0) / count.clamp(min=1)
    return count, mean, (m2s + counts * (means - mean).square()).sum(0)
