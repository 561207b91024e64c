"""A learned vector per field for keys without a live row: zero, evicted, not admitted, unknown in evaluation."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import Function

from sparsegroup.kernels.gpu.runtime import sent
from sparsegroup.kernels.step import array_of
from sparsegroup.table.directory.buckets import mixed
from sparsegroup.table.lookup import kernels
from sparsegroup.table.lookup.autograd import Int64s, KeySearch, _Sum
from sparsegroup.table.lookup.lookup import key_array
from sparsegroup.tensors import is_traced

_SALT = np.int64(0x5EED_F0A1_1BAC_0DE5)
"""Makes a key's draw here differ from the draws of its initial vector and its admission."""

_MOST = 1 - 2.0**-53
"""The largest share whose bound is below 2⁶⁴."""


def mask_new_rows(vectors: Tensor, search: KeySearch, places: Int64s, live: int, seen: int) -> None:
    """Set vectors of new keys to zero, as if their rows were zero: the share of them that is zero among all rows.

    Fallback vectors then replace them, and learn what to expect of new keys. Which keys these are depends on the key
    only. The rows themselves do not change, and get the gradient. `places` are the places of the new keys in `vectors`.
    """
    if not len(places) or not seen or live >= seen:
        return
    drawn = mixed((search.distinct if search.is_distinct else search.keys)[places] ^ _SALT)
    search.masked = places[drawn < np.uint64(min(1 - live / seen, _MOST) * 2.0**64)]
    search.mask(vectors)


def apply_fallback(vectors: Tensor, keys: Tensor, fallback: Tensor, field_bits: int) -> Tensor:
    """`vectors` with the fallback vector of its field for each key whose vector is zero.

    Its gradient reaches both: the fallback vector learns, and the row still receives its key's gradient. If no
    vector is zero, the gradient of the fallback vectors is zero, not None: as in a graph, and as DDP expects.
    """
    if is_traced() or vectors.device.type == "cuda":  # without a shape that depends on the vectors, or waiting
        is_zero = (vectors.detach() == 0).all(dim=-1, keepdim=True)
        fields = sent(field_numbers(keys, field_bits), fallback.device)
        return torch.where(is_zero, vectors + nn.functional.embedding(fields, fallback), vectors)
    if vectors._is_view() or not vectors.is_contiguous():  # autograd copies a view's gradient if it is changed in place
        vectors = vectors.clone(memory_format=torch.contiguous_format)
    replaced: Tensor = _Replaced.apply(vectors, fallback.to(vectors.dtype), keys, field_bits)  # type: ignore[no-untyped-call]
    return replaced


class _Replaced(Function):
    """Fallback vectors over zero ones, in place: the others keep their memory."""

    @staticmethod
    def forward(ctx: Any, vectors: Tensor, fallback: Tensor, keys: Tensor, field_bits: int) -> Tensor:
        array, (count, dim) = key_array(keys, may_be_on_device=False), (keys.numel(), fallback.shape[1])
        places, fields = np.empty(count + 1, np.int64), np.empty(count + 1, np.int32)
        shift, mask = min(64 - field_bits, 63), (1 << field_bits) - 1
        flat = array_of(vectors.detach()).reshape(count, dim)
        by_field = array_of(fallback.detach().resolve_neg().contiguous())
        replaced = kernels.replace_zeros(array, flat, by_field, shift, mask, places, fields)
        ctx.mark_dirty(vectors)
        ctx.places, ctx.fields = torch.from_numpy(places[:replaced]), fields[:replaced]
        ctx.count = len(fallback)
        return vectors

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        if not ctx.needs_input_grad[1]:
            return gradient, None, None, None
        values = gradient.reshape(-1, gradient.shape[-1]).index_select(0, ctx.places)
        return gradient, _Sum.apply(values, ctx.fields, ctx.count), None, None  # type: ignore[no-untyped-call]


def field_numbers(keys: Tensor, field_bits: int) -> Tensor:
    """The number in the top `field_bits` bits of int64 keys, from 0."""
    if not field_bits:
        return torch.zeros_like(keys)
    return (keys >> (64 - field_bits)) & ((1 << field_bits) - 1)


def check_fallback(
    fallback: nn.Parameter | None,
    name: str,
    state_dict: Mapping[str, Tensor],
    missing_keys: list[str],
    unexpected_keys: list[str],
    error_msgs: list[str],
) -> Tensor | None:
    """The fallback vectors that a state dict has under `name`, if they fit; see `nn.Module._load_from_state_dict`."""
    vectors = state_dict.get(name)
    if fallback is None:
        unexpected_keys.extend([] if vectors is None else [name])
    elif vectors is None:
        missing_keys.append(name)
    elif vectors.shape != fallback.shape:
        error_msgs.append(f"{name} must have shape {list(fallback.shape)}, got {list(vectors.shape)}")
    elif not vectors.isfinite().all():
        error_msgs.append(f"{name} has NaN or infinite elements")
    else:
        return vectors
    return None
