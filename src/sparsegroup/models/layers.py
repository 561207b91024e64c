"""What the models share: the input they agree on and a stack of hidden layers."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def check_inputs(embeddings: Tensor, numbers: Tensor | None, fields: int, dim: int, n_numbers: int) -> None:
    """Whether embeddings are `[batch, fields, dim]`, and numbers `[batch, n_numbers]`, or None where there are none.

    Raises:
        ValueError: Another shape, numbers where none were announced, or none where they were.
    """
    if embeddings.ndim != 3 or embeddings.shape[1:] != (fields, dim):
        raise ValueError(f"embeddings must be [batch, {fields}, {dim}], got {list(embeddings.shape)}")
    given = None if numbers is None else list(numbers.shape)
    if (numbers is None) != (n_numbers == 0) or (numbers is not None and given != [embeddings.shape[0], n_numbers]):
        expected = f"[{len(embeddings)}, {n_numbers}]" if n_numbers else "None"
        raise ValueError(f"numbers must be {expected}, got {given}")


def flatten_inputs(embeddings: Tensor, numbers: Tensor | None, fields: int, dim: int, n_numbers: int) -> Tensor:
    """`[batch, fields, dim]` and optional `[batch, n_numbers]` as one `[batch, fields * dim + n_numbers]`.

    Raises:
        ValueError: As `check_inputs`.
    """
    check_inputs(embeddings, numbers, fields, dim, n_numbers)
    flat = embeddings.flatten(1)
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
