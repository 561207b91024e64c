"""Bags of several features in one batch, as TorchRec's jagged tensors hold them, as keys of a table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from sparsegroup.table.key_array import as_int64, field_keys
from sparsegroup.table.table_config import check_int


@runtime_checkable
class Jagged(Protocol):
    """A `torchrec.JaggedTensor`, or a `KeyedJaggedTensor`, which has `keys` and `stride`, too."""

    def values(self) -> Tensor:
        """`[n]`, the values of all bags, those of the first feature first."""

    def lengths(self) -> Tensor:
        """`[features * batch]`, how many values each bag has."""

    def weights_or_none(self) -> Tensor | None:
        """`[n]`, what each value counts for."""


@dataclass(frozen=True)
class JaggedKeys:
    """The keys of a batch.

    Attributes:
        keys: `[n]` int64.
        ends: `[bags + 1]` int64: bag i is `keys[ends[i] : ends[i + 1]]`; those of the first feature come first.
        weights: `[n]`, or None.
        features: How many there are, of as many bags each; None: one, without a name.
    """

    keys: Tensor
    ends: Tensor
    weights: Tensor | None
    features: int | None

    @classmethod
    def of(cls, batch: Jagged, fields: Mapping[str, int] | None, field_bits: int) -> "JaggedKeys":
        """The keys of a batch.

        Args:
            batch: A `JaggedTensor`, or a `KeyedJaggedTensor`.
            fields: The features to take from it, in this order, each with the number of its field, which takes the
                place of the top bits of its values. None: all features, whose values are the keys.
            field_bits: How many bits that are.

        Raises:
            TypeError: Values that are no int64 or int32.
            ValueError: A feature is missing, features have batches of different sizes, or lengths don't fit.
        """
        values, lengths, weights = as_int64(batch.values()), as_int64(batch.lengths()), batch.weights_or_none()
        if values.dtype != torch.int64:
            raise TypeError(f"the values of a {type(batch).__name__} must be int64 or int32, got {values.dtype}")
        if bool((lengths < 0).any()) or int(lengths.sum()) != len(values):
            raise ValueError(
                f"the lengths of a {type(batch).__name__} must be ≥ 0 and add up to its {len(values)} values, "
                f"got {lengths.tolist()}"
            )
        names = _names_of(batch)
        if names is None:
            if fields is not None:
                raise ValueError(
                    "a JaggedTensor does not say which of this bag's features it is: give a KeyedJaggedTensor"
                )
            return cls(values, _ends_of(lengths), weights, None)
        lengths = lengths.view(len(names), _stride_of(batch, lengths, len(names)))
        if fields is None:
            return cls(values, _ends_of(lengths), weights, len(names))
        if missing := [name for name in fields if name not in names]:
            raise ValueError(f"the batch has no feature {missing[0]!r}; it has {', '.join(map(repr, names))}")
        chosen = [names.index(name) for name in fields]
        sizes = lengths.sum(1).tolist()
        parts = torch.split(values, sizes)
        own = [parts[at] for at in chosen]
        if field_bits:
            numbered = zip(own, fields.values(), strict=True)
            own = [field_keys(some, field, field_bits=field_bits) for some, field in numbered]
        keys = torch.cat(own)
        if weights is not None:
            of_each = torch.split(weights, sizes)
            weights = torch.cat([of_each[at] for at in chosen])
        return cls(keys, _ends_of(lengths[chosen]), weights, len(chosen))


def check_features(features: Mapping[str, int], field_bits: int) -> dict[str, int]:
    """A feature's name → its field, as given.

    Raises:
        ValueError, TypeError: There is none, or a field has no room in `field_bits`.
    """
    if not isinstance(features, Mapping):
        raise TypeError(f"features must be a mapping of names to fields, got {features!r}")
    if not features:
        raise ValueError("features must name at least one feature")
    for name, field in features.items():
        check_int(f"the field of the feature {name!r} (field_bits={field_bits})", field, 0, (1 << field_bits) - 1)
    return dict(features)


def _names_of(batch: Any) -> list[str] | None:
    return list(batch.keys()) if hasattr(batch, "keys") else None


def _stride_of(batch: Any, lengths: Tensor, features: int) -> int:
    """How many bags each feature has."""
    if batch.variable_stride_per_key():
        raise ValueError(
            "the features of a KeyedJaggedTensor must have batches of one size, this one's have "
            f"{batch.stride_per_key()}: expand them to the batch by their inverse indices, or look each up on its own"
        )
    stride = int(batch.stride())
    if stride * features != len(lengths):
        raise ValueError(f"{features} features of {stride} bags need {stride * features} lengths, got {len(lengths)}")
    return stride


def _ends_of(lengths: Tensor) -> Tensor:
    return torch.nn.functional.pad(lengths.flatten().cumsum(0), (1, 0))
