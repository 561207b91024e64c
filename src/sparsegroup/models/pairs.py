"""Pairs of fields as features: each combination of two values has a key, and so a vector."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

_MULTIPLIERS = 0x9E3779B97F4A7C15 - (1 << 64), 0xC2B2AE3D27D4EB4F - (1 << 64)
"""Odd numbers without a pattern in their bits, modulo 2⁶⁴: 2⁶⁴ over the golden ratio, and a prime."""


class PairKeys(nn.Module):
    """Adds the keys of pairs of fields to the keys of the fields.

    The key of a pair of keys a, b is `field · 2⁵⁶ + (A a + B b mod 2⁵⁶)`, for 8 bits of the field, with odd constants A
    and B: two pairs of hashed values have the same key as rarely as two values have.

    Args:
        pairs: Places of each pair's fields among the columns of keys.
        first: The number of the first pair's field; that of each other is one more.
        field_bits: How many high bits of a key are its field.

    Examples:
        >>> import torch
        >>> from sparsegroup.models import PairKeys
        >>> keys = PairKeys([(0, 1)], first=2)(torch.tensor([[5, 1 << 56], [5, (1 << 56) + 1]]))
        >>> keys.shape, (keys[:, 2] >> 56).tolist(), bool(keys[0, 2] == keys[1, 2])
        (torch.Size([2, 3]), [2, 2], False)
    """

    left: Tensor
    right: Tensor
    fields: Tensor

    def __init__(self, pairs: Sequence[tuple[int, int]], first: int, field_bits: int = 8) -> None:
        super().__init__()
        self.value_bits = 64 - field_bits
        half = 1 << (field_bits - 1)
        numbers = [(first + place + half) % (2 * half) - half for place in range(len(pairs))]  # in two's complement
        self.register_buffer("left", torch.tensor([left for left, _ in pairs]), persistent=False)
        self.register_buffer("right", torch.tensor([right for _, right in pairs]), persistent=False)
        self.register_buffer("fields", torch.tensor(numbers) * (1 << self.value_bits), persistent=False)

    def __len__(self) -> int:
        return self.left.shape[0]

    def forward(self, keys: Tensor) -> Tensor:
        """Keys `[n, fields + pairs]` int64 of keys `[n, fields]` int64."""
        left, right = (keys.index_select(1, places.to(keys.device)) for places in (self.left, self.right))
        mixed = (left * _MULTIPLIERS[0] + right * _MULTIPLIERS[1]).remainder(1 << self.value_bits)
        return torch.cat([keys, mixed + self.fields.to(keys.device)], dim=1)


def pairs_of(network: nn.Module) -> PairKeys | None:
    """The pairs of a network, or None."""
    return network.pairs if isinstance(network, WithPairs) else None


class WithPairs(nn.Module):
    """A network, and the pairs of fields whose embeddings it takes after the fields' own.

    A `LookupModel` and a `Trainer` give the keys of `pairs` to the table.

    Args:
        pairs: Makes the keys.
        network: A network of `sparsegroup.models` or another.
    """

    def __init__(self, pairs: PairKeys, network: nn.Module) -> None:
        super().__init__()
        self.pairs, self.network = pairs, network

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        """Logits `[batch]` of embeddings `[batch, fields + pairs, dim]` and numbers, as the network."""
        logits: Tensor = self.network(embeddings, numbers)
        return logits
