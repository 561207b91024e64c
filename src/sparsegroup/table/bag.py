"""`HashEmbeddingBag`: the table followed by sums, means or maxima over bags of keys."""

from collections.abc import Mapping
from typing import Any, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor

from sparsegroup.bags import BagMode, pool
from sparsegroup.table.config import check_int, with_argument_hints
from sparsegroup.table.hash_embedding import HashEmbedding
from sparsegroup.table.lookup.lookup import as_int64, checked_keys, field_keys


@runtime_checkable
class Jagged(Protocol):
    """A `torchrec.JaggedTensor`, or a `KeyedJaggedTensor`, which also has `keys` and `stride`."""

    def values(self) -> Tensor: ...  # [n], of all bags, the first feature's first
    def lengths(self) -> Tensor: ...  # [features * batch], how many values each bag has
    def weights_or_none(self) -> Tensor | None: ...  # [n]


def _jagged_keys(
    batch: Any, fields: Mapping[str, int] | None, field_bits: int
) -> tuple[Tensor, Tensor, Tensor | None, int | None]:
    """The keys of a jagged batch, the first feature's first, or of the first of `fields`.

    Returns:
        Keys `[n]` int64; ends `[bags + 1]` int64, bag i being `keys[ends[i] : ends[i + 1]]`; weights `[n]` or None; and
        the number of features, of as many bags each, or None of a `JaggedTensor`.
    """
    values, lengths, weights = as_int64(batch.values()), as_int64(batch.lengths()), batch.weights_or_none()
    kind = type(batch).__name__
    if values.dtype != torch.int64:
        raise TypeError(f"the values of a {kind} must be int64 or int32, got {values.dtype}")
    if bool((lengths < 0).any()) or int(lengths.sum()) != len(values):
        raise ValueError(
            f"the lengths of a {kind} must be ≥ 0 and add up to its {len(values)} values, got {lengths.tolist()}"
        )
    if not hasattr(batch, "keys"):
        if fields is not None:
            raise ValueError("a JaggedTensor does not say which of this bag's features it is: give a KeyedJaggedTensor")
        return values, _ends_of(lengths), weights, None
    names = list(batch.keys())
    lengths = lengths.view(len(names), _stride_of(batch, lengths, len(names)))
    if fields is None:
        return values, _ends_of(lengths), weights, len(names)
    if missing := [name for name in fields if name not in names]:
        raise ValueError(f"the batch has no feature {missing[0]!r}; it has {', '.join(map(repr, names))}")
    chosen, sizes = [names.index(name) for name in fields], lengths.sum(1).tolist()

    def chosen_of(tensor: Tensor) -> list[Tensor]:
        parts = torch.split(tensor, sizes)
        return [parts[at] for at in chosen]

    keys = chosen_of(values)
    if field_bits:
        numbered = zip(keys, fields.values(), strict=True)
        keys = [field_keys(ids, field, field_bits=field_bits) for ids, field in numbered]
    weights = None if weights is None else torch.cat(chosen_of(weights))
    return torch.cat(keys), _ends_of(lengths[chosen]), weights, len(chosen)


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


class HashEmbeddingBag(HashEmbedding):
    """`HashEmbedding` followed by the sum, mean or maximum over bags of keys: `nn.EmbeddingBag` without a vocabulary.

    It also takes TorchRec's `KeyedJaggedTensor`, without needing TorchRec.

    Args:
        dim: Length of a vector.
        mode: "mean" (default, as in torch), "sum" or "max". The gradient of a maximum goes to the first of the bag's
            keys that have it; second derivatives need another mode.
        include_last_offset: `offsets` has one entry more, the number of keys.
        features: The features to take from a `KeyedJaggedTensor`, in this order, each with the number of its field,
            in [0, 2**`field_bits`), which becomes the top `field_bits` bits of its keys; the other bits are those of
            its values. Features of the same field share their rows. None: all features of a batch, whose values are the
            keys, as they are.
        **arguments: See `HashEmbedding`. Keys that are `padding_idx` are in no sum, mean or maximum.

    Raises:
        ValueError, TypeError: An argument out of range.

    Attributes:
        mode, include_last_offset, features: See above.

    Examples:
        >>> import torch
        >>> from sparsegroup import HashEmbeddingBag
        >>> bag = HashEmbeddingBag(4, mode="sum")
        >>> bag(torch.tensor([3, 14, 15]), torch.tensor([0, 2])).shape, bag.num_rows
        (torch.Size([2, 4]), 3)
    """

    features: Mapping[str, int] | None

    @with_argument_hints
    def __init__(
        self,
        dim: int,
        *,
        mode: BagMode = "mean",
        include_last_offset: bool = False,
        features: Mapping[str, int] | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__(dim, **arguments)
        if mode not in get_args(BagMode):
            raise ValueError(f"mode must be 'sum', 'mean' or 'max', got {mode!r}")
        self.mode = mode
        self.include_last_offset = include_last_offset
        self.features = None
        if features is None:
            return
        if not isinstance(features, Mapping):
            raise TypeError(f"features must be a mapping of names to fields, got {features!r}")
        if not features:
            raise ValueError("features must name at least one feature")
        bits = self._field_bits
        for feature, field in features.items():
            check_int(f"the field of the feature {feature!r} (field_bits={bits})", field, 0, (1 << bits) - 1)
        self.features = dict(features)

    def forward(
        self, keys: Tensor | Jagged, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """The bags' vectors.

        Args:
            keys: int64 or int32 `[bags, keys per bag]`, or `[n]` with `offsets`. Or a `KeyedJaggedTensor` or
                `JaggedTensor` of TorchRec, whose weights, if it has any, are the `per_sample_weights`.
            offsets: int64 or int32 `[bags]`, where each bag begins, ascending from 0; only with 1-d keys.
            per_sample_weights: Shaped as `keys`; only with mode "sum".

        Returns:
            `[bags, dim]`; zeros for an empty bag, or one of padding only. Of a `KeyedJaggedTensor`
            `[batch, features, dim]`; flattened by `flatten(1)`, these are the values of the `KeyedTensor` that an
            `EmbeddingBagCollection` gives.

        Raises:
            TypeError, ValueError, RuntimeError, MemoryError: As `HashEmbedding`, and for offsets, weights and jagged
                tensors that do not fit; nothing is inserted.
            NotImplementedError: Weights with another mode than "sum", as in torch.
        """
        if not isinstance(keys, Tensor):
            values, ends, weights, features = self._keys_of(keys)
            if offsets is not None or per_sample_weights is not None:
                raise ValueError(f"offsets and per_sample_weights are for tensors, not for a {type(keys).__name__}")
            pooled = self._pooled_bags(values, ends, self.mode, weights)
            if features is None:
                return pooled
            return pooled.view(features, len(pooled) // max(features, 1), self.dim).transpose(0, 1)
        keys = checked_keys(keys)
        weights = per_sample_weights
        if weights is not None:
            if weights.shape != keys.shape:
                raise ValueError(
                    f"per_sample_weights must have the shape of the keys, {list(keys.shape)}, got {list(weights.shape)}"
                )
            self._check_weights()
            weights = weights.reshape(-1)
        if keys.ndim == 2:
            if offsets is not None:
                raise ValueError("offsets are for 1-d keys; each row of 2-d keys is a bag")
            count, size = keys.shape
            if self.padding_idx is not None or (self.can_pool and weights is None and self.mode != "max"):
                ends = torch.arange(count + 1, dtype=torch.int64, device="cpu") * size
                return self._pooled_bags(keys.reshape(-1), ends, self.mode, weights)
            vectors = self._weighted(keys.reshape(-1), weights).view(count, size, self.dim)
            return pool(vectors, self.mode).to(self.table.weight_dtype)
        if keys.ndim != 1:
            raise ValueError(f"keys must be 1-d with offsets, or 2-d, got shape {list(keys.shape)}")
        ends = self._bag_ends(len(keys), None if offsets is None else as_int64(offsets).cpu())
        return self._pooled_bags(keys, ends, self.mode, weights)

    def prefetch(self, keys: Tensor | Jagged) -> None:
        """See `HashEmbedding.prefetch`; it takes what `forward` does."""
        super().prefetch(keys if isinstance(keys, Tensor) else self._keys_of(keys)[0])

    def _keys_of(self, batch: Jagged) -> tuple[Tensor, Tensor, Tensor | None, int | None]:
        if not isinstance(batch, Jagged):
            raise TypeError(f"keys must be an int64 tensor or a jagged tensor of TorchRec, got {type(batch).__name__}")
        found = _jagged_keys(batch, self.features, self._field_bits)
        if found[2] is not None:
            self._check_weights()
        return found

    def _check_weights(self) -> None:
        if self.mode != "sum":
            raise NotImplementedError(f"per_sample_weights need mode='sum', this bag has mode={self.mode!r}")

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, mode={self.mode!r}"

    def _bag_ends(self, count: int, offsets: Tensor | None) -> Tensor:
        """Where the bags begin and, last, end: `[bags + 1]`."""
        if offsets is None:
            raise ValueError("1-d keys need offsets")
        if offsets.dtype != torch.int64 or offsets.ndim != 1:
            raise TypeError(f"offsets must be 1-d int64, got {offsets.dtype} of shape {list(offsets.shape)}")
        ends = offsets if self.include_last_offset else torch.cat([offsets, offsets.new_tensor([count])])
        sizes = ends.diff()
        if len(ends) and (int(ends[0]) != 0 or int(ends[-1]) != count or bool((sizes < 0).any())):
            raise ValueError(
                f"offsets must ascend from 0 to at most {count}, the number of keys, got {offsets.tolist()}"
            )
        if not len(ends) or (count and not len(sizes)):
            raise ValueError(f"{count} keys need at least one bag")
        return ends
