"""Jagged tensors with the methods of TorchRec's that a bag uses."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass
class OneFeature:
    """Its bags, as a `JaggedTensor` holds them."""

    all_values: Tensor
    all_lengths: Tensor
    all_weights: Tensor | None = None

    def values(self) -> Tensor:
        return self.all_values

    def lengths(self) -> Tensor:
        return self.all_lengths

    def weights_or_none(self) -> Tensor | None:
        return self.all_weights


@dataclass
class Features(OneFeature):
    """Those of several features, as a `KeyedJaggedTensor` holds them."""

    names: tuple[str, ...] = ()
    strides: tuple[int, ...] = ()

    def keys(self) -> list[str]:
        return list(self.names)

    def stride(self) -> int:
        return self.strides[0]

    def stride_per_key(self) -> list[int]:
        return list(self.strides)

    def variable_stride_per_key(self) -> bool:
        return len(set(self.strides)) > 1


Bags = dict[str, list[list[int]]]


def features_of(bags: Bags, weights: Tensor | None = None, dtype: Any = torch.int64) -> Features:
    """Feature → its bags."""
    flat = [bag for its in bags.values() for bag in its]
    return Features(
        torch.tensor([value for bag in flat for value in bag], dtype=dtype),
        torch.tensor([len(bag) for bag in flat], dtype=dtype),
        weights,
        tuple(bags),
        tuple(map(len, bags.values())),
    )
