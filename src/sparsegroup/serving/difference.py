"""From one set of embeddings to another: what to set and what to remove."""

from dataclasses import dataclass

import torch
from torch import Tensor

from sparsegroup.serving.embeddings import Embeddings
from sparsegroup.serving.quantize import QuantizedVectors


@dataclass(frozen=True)
class Difference:
    """What makes the new embeddings of the old ones.

    Attributes:
        upserts: Keys that are new, or whose encoded vector is another, with what it is now; and the fallback vectors.
        tombstones: `[k]` int64, ascending: keys that are no longer there.
    """

    upserts: Embeddings
    tombstones: Tensor


def difference(old: Embeddings, new: Embeddings) -> Difference:
    """From `old` to `new`, which have one format. Vectors are compared by their bits."""
    place, known = _find(old.keys, new.keys)
    same = torch.zeros(len(new), dtype=torch.bool)
    before, after = old[place[known]], new[known]
    same[known] = torch.stack(
        [a.eq(b).all(1) for a, b in zip(_bits(before), _bits(after), strict=True)],
    ).all(0)
    return Difference(new[~same], old.keys[~_find(new.keys, old.keys)[1]])


def merge(old: Embeddings, change: Difference) -> Embeddings:
    """`old` with the tombstones removed and the upserts set. A tombstone of a key that is not there does nothing."""
    gone = torch.unique(torch.cat([change.tombstones, change.upserts.keys]))
    kept = old[~_find(gone, old.keys)[1]]
    keys, order = torch.cat([kept.keys, change.upserts.keys]).sort()
    vectors = torch.cat([kept.vectors.vectors, change.upserts.vectors.vectors])[order]
    scales, scale = (kept.vectors.scale, change.upserts.vectors.scale), None
    if scales[0] is not None and scales[1] is not None:
        scale = torch.cat([scales[0], scales[1]])[order]
    return Embeddings(keys, QuantizedVectors(vectors, scale), change.upserts.fallback)


def _find(keys: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Where each of `wanted` is in the ascending `keys`, and whether it is there."""
    if not len(keys):
        return torch.zeros_like(wanted), torch.zeros(len(wanted), dtype=torch.bool)
    place = torch.searchsorted(keys, wanted).clamp(max=len(keys) - 1)
    return place, keys[place] == wanted


def _bits(embeddings: Embeddings) -> list[Tensor]:
    vectors, scale = embeddings.vectors.vectors, embeddings.vectors.scale
    parts = [vectors] if scale is None else [vectors, scale.unsqueeze(1)]
    return [part.contiguous().view(torch.uint8) for part in parts]
