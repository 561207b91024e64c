"""Live rows as exports hold them: the formats of vectors and of keys, and their file."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sparsegroup.artifact.tensor_file import read_tensors, write_tensors
from sparsegroup.data.keys import MOST_FIELDS, VALUE_BITS
from sparsegroup.settings.names import Dtype, KeyFormat
from sparsegroup.training import RunError


class ExportError(RunError):
    """An export that cannot be made, read or applied. The message names the file and what is wrong with it."""


TORCH_DTYPES: Mapping[Dtype, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
    "int4": torch.uint8,
}
LARGEST_INTEGER: Mapping[Dtype, int] = {"int8": 127, "int4": 7}
"""The formats with a scale per row → the largest of their integers; the smallest is its negative."""

_LARGEST_SCALE = 5
SCALES = (2.0 ** (_LARGEST_SCALE + (torch.arange(256, dtype=torch.float64) - 255) / 8)).to(torch.float32)
"""The scales that a row can have, `[256]` float32, by its byte: 2^((byte - 215) / 8), from 8e-9 to 32."""

FINGERPRINT_BITS = 16
"""Bits that are stored of a key without its bucket."""

BUCKET_CAPACITY = 25
"""Rows of a bucket, at most."""

_LOAD = 11
"""Rows per bucket of a field, at most, in a new export: between half of it and it, from 12 rows on."""

_GROWN_LOAD = 16
"""Rows per bucket up to which deltas keep the bits of the export that they follow."""

_MOST_BITS = 41
_MOST_BUCKETS = 1 << 26
_MOST_FALLBACKS = 1 << 16


@dataclass(frozen=True)
class Embeddings:
    """Keys and their vectors.

    Attributes:
        keys: `[n]` int64, ascending and distinct; of fingerprints, with the bits cleared that are not kept.
        vectors: `[n, dim]` of a format's dtype; of int4 `[n, ⌈dim / 2⌉]` uint8, two elements plus 8 in a byte: in the
            upper half of byte i element i + ⌈dim / 2⌉, or a zero. Without fallback vectors, none is all zeros.
        scale: `[n]` uint8, only of int8 and int4: a vector is `SCALES[scale]` × integers.
        fallback: `[2**bits, dim]` float32, rounded to what the format has, by the number in a key's top bits, the
            vectors of absent keys; None for zeros.
        bits: `[256]` uint8, only of fingerprints: how many bits of the hash are kept of the keys of each field.
        is_odd: Whether int4 has half a byte more than elements.
        merged: Rows that were left out because another one has the same fingerprint, or their bucket is full.
    """

    keys: Tensor
    vectors: Tensor
    scale: Tensor | None = None
    fallback: Tensor | None = None
    bits: Tensor | None = None
    is_odd: bool = False
    merged: int = 0

    @classmethod
    def of(
        cls,
        keys: Tensor,
        vectors: Tensor,
        dtype: Dtype,
        fallback: Tensor | None = None,
        bits: Tensor | None = None,
    ) -> "Embeddings":
        """Vectors `[n, dim]` of ascending keys in a format; the same vectors give the same bits.

        float16 and bfloat16 round to nearest, ties to even. int8 and int4 have a scale for each row, the smallest of
        `SCALES` by which the elements round to integers up to 127 or 7, so that each element is off by at most half of
        it. A vector whose elements all round to zero becomes zero: in float16 below 3e-8, in int8 and int4 below
        4e-9; bfloat16 has the range of float32. What is decoded encodes to the same.

        Raises:
            ExportError: Vectors that are not finite, or that the format does not have; with `bits`, keys that are no
                hashes, see `bits_for`.
        """
        vectors = vectors.detach().to(torch.float32)
        if not bool(torch.isfinite(vectors).all()):
            raise ExportError(
                "the table holds vectors that are not finite: training has diverged; there is nothing to serve"
            )
        merged = 0
        if bits is not None:
            kept = truncated(keys, bits)
            remains = _distinct(kept, bucket_of(kept, bits), vectors.norm(dim=1))
            merged = len(keys) - int(remains.sum())
            if merged > max(2, len(keys) // 100):
                raise ExportError(
                    f"{merged:,} of {len(keys):,} rows have keys that agree in the bits of their fingerprints: these "
                    "are for keys that are hashes of values; export with `keys` full"
                )
            keys, vectors = kept[remains], vectors[remains]
        dim = vectors.shape[1]
        if fallback is not None:
            fallback = decoded(*_encoded(fallback.detach().to(torch.float32), dtype), dim)
        return cls(keys, *_encoded(vectors, dtype), fallback, bits, dtype == "int4" and dim % 2 == 1, merged)

    def decode(self) -> Tensor:
        """The vectors as `[n, dim]` float32."""
        return decoded(self.vectors, self.scale, self.dim)

    def is_live(self) -> Tensor:
        """Whether each vector has an element that is not zero, `[n]` bool."""
        return self.vectors.ne(TWO_ZEROS if self.vectors.dtype == torch.uint8 else 0).any(1)

    def tensors(self) -> dict[str, Tensor]:
        """The content of the file.

        The attributes that there are, except: fallback vectors are in the format of the vectors, with their
        `fallback_scale` and their number, `fallback_rows`, and the last ones are left out if they are all zeros; of
        fingerprints, `fingerprints` `[n]` int16 and the number of rows in each bucket, `sizes` uint8, replace `keys`
        where that is smaller.
        """
        found = {"vectors": self.vectors, "scale": self.scale, "bits": self.bits}
        if self.bits is not None and 2 * len(self) + (buckets := buckets_in(self.bits)) < 8 * len(self):
            sizes = torch.bincount(bucket_of(self.keys, self.bits), minlength=buckets)
            found |= {"fingerprints": fingerprints_of(self.keys, self.bits), "sizes": sizes.to(torch.uint8)}
        else:
            found["keys"] = self.keys
        if self.fallback is not None:
            used = self.fallback.ne(0).any(1).nonzero()
            written = self.fallback[: int(used.max()) + 1 if len(used) else 0]
            found["fallback"], found["fallback_scale"] = _encoded(written, self.dtype)
            found["fallback_rows"] = torch.tensor([len(self.fallback)])
        return {name: tensor.contiguous() for name, tensor in found.items() if tensor is not None}

    def clone(self) -> "Embeddings":
        """The same, not mapped from a file."""
        copies: dict[str, Any] = {
            name: value.clone() for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **copies)

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, rows: Tensor) -> "Embeddings":
        scale = None if self.scale is None else self.scale[rows]
        return replace(self, keys=self.keys[rows], vectors=self.vectors[rows], scale=scale)

    @property
    def dim(self) -> int:
        """Length of a vector."""
        width = self.vectors.shape[1]
        return 2 * width - self.is_odd if self.vectors.dtype == torch.uint8 else width

    @property
    def dtype(self) -> Dtype:
        """The format of the vectors."""
        return next(name for name, dtype in TORCH_DTYPES.items() if dtype == self.vectors.dtype)

    @property
    def false_hits(self) -> float:
        """The share of absent hashed keys of a field that get the vector of another key, in the field with the most."""
        if self.bits is None or not len(self):
            return 0.0
        counts = torch.bincount(fields_in(self.keys), minlength=MOST_FIELDS).to(torch.float64)
        return float((counts * 2.0 ** -self.bits.to(torch.float64)).max())

    def save(self, path: Path) -> None:
        """Write the file; the same content gives the same bytes."""
        write_tensors(path, self.tensors())


TWO_ZEROS = 0x88
"""A byte of int4 with two zeros."""


def integers(vectors: Tensor, dim: int) -> Tensor:
    """Stored vectors `[n, …]` as `[n, dim]` float32, without their scales."""
    numbers = vectors.to(torch.float32)
    if vectors.dtype != torch.uint8:
        return numbers
    upper = (numbers * (1 / 16)).floor()
    return torch.cat([numbers - upper * 16, upper], 1)[:, :dim] - 8


def decoded(vectors: Tensor, scale: Tensor | None, dim: int) -> Tensor:
    """Stored vectors `[n, …]` and their scales `[n]` uint8, if they have any, as `[n, dim]` float32."""
    numbers = integers(vectors, dim)
    return numbers if scale is None else numbers * SCALES[scale.to(torch.int32)].unsqueeze(1)


def _encoded(vectors: Tensor, dtype: Dtype) -> tuple[Tensor, Tensor | None]:
    """Vectors `[n, dim]` float32 as stored, and their scales `[n]`, if the format has any."""
    largest = float(vectors.abs().max()) if vectors.numel() else 0.0
    if (most := LARGEST_INTEGER.get(dtype)) is None:
        encoded = vectors.to(TORCH_DTYPES[dtype])
        if not bool(torch.isfinite(encoded).all()):
            raise ExportError(f"{dtype} has no {largest:g}, which the table holds; take float32")
        return encoded, None
    if largest > (limit := float(SCALES[-1]) * (most + 0.5)):
        raise ExportError(f"{dtype} has no numbers above {limit:g}; the table holds {largest:g}, take float32")
    rounded, scale = _rounded(vectors, most)
    if dtype == "int8":
        return rounded.to(torch.int8), scale
    halves = torch.nn.functional.pad(rounded, (0, vectors.shape[1] % 2)).to(torch.int16) + 8
    width = halves.shape[1] // 2
    return (halves[:, :width] + 16 * halves[:, width:]).to(torch.uint8), scale


def _rounded(vectors: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Integers `[n, dim]` from -`most` to `most`, as floats, and bytes of scales `[n]`."""
    largest = vectors.abs().amax(1) if vectors.numel() else vectors.new_zeros(len(vectors))
    wanted = largest / (most + 0.5)
    place = torch.searchsorted(SCALES, wanted).clamp(max=len(SCALES) - 1)
    return (vectors / SCALES[place].unsqueeze(1)).round().clamp(-most, most), place.to(torch.uint8)


# Fingerprints: the field, and as many bits of the hash as tell a field's rows apart


def fields_in(keys: Tensor) -> Tensor:
    """The field of each key, `[n]` int64."""
    return (keys >> VALUE_BITS) & (MOST_FIELDS - 1)


def truncated(keys: Tensor, bits: Tensor) -> Tensor:
    """Keys with only their field and the first `bits[field]` bits of the hash; the order remains."""
    dropped = VALUE_BITS - bits.to(torch.int64)
    return keys & (-1 << dropped)[fields_in(keys)]


def bits_for(keys: Tensor, base: Tensor | None = None) -> Tensor:
    """How many bits of the hash to keep for each field, `[256]` uint8.

    16 and, for a field of n rows, the number of its buckets in bits: 5.5 to 11 rows are in a bucket, in the mean, from
    12 rows on. So a key of the field that is absent is taken for one that is there once in 5,900 to 12,000 times.

    Args:
        keys: All rows' keys `[n]`.
        base: The bits of an earlier export, which are returned unless a field's buckets would be too full: above 16.
    """
    counts = torch.bincount(fields_in(keys), minlength=MOST_FIELDS).tolist()
    if base is not None and all(
        count <= max(_LOAD, _GROWN_LOAD << (bits - FINGERPRINT_BITS))
        for count, bits in zip(counts, base.tolist(), strict=True)
    ):
        return base
    most = _MOST_BITS - FINGERPRINT_BITS
    needed = [math.ceil(math.log2(max(1, count / _LOAD))) for count in counts]
    return torch.tensor([FINGERPRINT_BITS + min(most, power) for power in needed], dtype=torch.uint8)


def first_buckets(bits: Tensor) -> Tensor:
    """The number of the first bucket of each field, and of all buckets, `[257]` int64; fields 128 to 255 come first."""
    sizes = 1 << (bits.to(torch.int64) - FINGERPRINT_BITS)
    half = len(bits) // 2
    return torch.cat([torch.zeros(1, dtype=torch.int64), torch.cat([sizes[half:], sizes[:half]]).cumsum(0)])


def buckets_in(bits: Tensor) -> int:
    """Number of buckets of all fields."""
    return sum(1 << (one - FINGERPRINT_BITS) for one in bits.tolist())


def bucket_of(keys: Tensor, bits: Tensor) -> Tensor:
    """The bucket of each key, `[n]` int64; buckets ascend with the keys."""
    field = fields_in(keys)
    inside = (keys & ((1 << VALUE_BITS) - 1)) >> (VALUE_BITS + FINGERPRINT_BITS - bits.to(torch.int64))[field]
    return first_buckets(bits)[(field + MOST_FIELDS // 2) % MOST_FIELDS] + inside


def fingerprints_of(keys: Tensor, bits: Tensor) -> Tensor:
    """The last 16 of the kept bits, `[n]` int16."""
    return (keys >> (VALUE_BITS - bits.to(torch.int64))[fields_in(keys)]).to(torch.int16)


def keys_of_fingerprints(fingerprints: Tensor, sizes: Tensor, bits: Tensor) -> Tensor:
    """The truncated keys of what `tensors` has made of them."""
    bucket = torch.arange(len(sizes)).repeat_interleave(sizes.to(torch.int64))
    first = first_buckets(bits)
    place = torch.searchsorted(first, bucket, right=True) - 1
    field = (place + MOST_FIELDS // 2) % MOST_FIELDS
    value = ((bucket - first[place]) << FINGERPRINT_BITS) | (fingerprints.to(torch.int64) & 0xFFFF)
    return (field << VALUE_BITS) | (value << (VALUE_BITS - bits.to(torch.int64))[field])


def _distinct(keys: Tensor, buckets: Tensor, norms: Tensor) -> Tensor:
    """Which rows remain, `[n]` bool: of equal keys that of the largest norm, then the 25 largest of each bucket.

    `keys` and `buckets` ascend.
    """
    remains = torch.ones(len(keys), dtype=torch.bool)
    for groups, most in ((keys, 1), (buckets, BUCKET_CAPACITY)):
        crowded = _crowded(groups, most, remains)
        if not len(crowded):
            continue
        order = crowded[norms[crowded].argsort(descending=True, stable=True)]
        order = order[groups[order].argsort(stable=True)]
        _, counts = torch.unique_consecutive(groups[order], return_counts=True)
        rank = torch.arange(len(order)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
        remains[order[rank >= most]] = False
    return remains


def _crowded(groups: Tensor, most: int, remains: Tensor) -> Tensor:
    """The places of rows that remain and whose group has more than `most` of them."""
    places = remains.nonzero().squeeze(1)
    _, counts = torch.unique_consecutive(groups[places], return_counts=True)
    return places[(counts > most).repeat_interleave(counts)]


def load_embeddings(path: Path, dim: int, dtype: Dtype, keys: KeyFormat = "full") -> Embeddings:
    """The embeddings that `save` has written."""
    tensors = read_tensors(path, ExportError)
    names = {"vectors", *(["scale"] if dtype in LARGEST_INTEGER else []), *(["bits"] if keys == "fingerprints" else [])}
    names |= {"fingerprints", "sizes"} if keys == "fingerprints" and "keys" not in tensors else {"keys"}
    if "fallback" in tensors:
        names |= {"fallback", "fallback_rows", *(["fallback_scale"] if dtype in LARGEST_INTEGER else [])}
    if (found := set(tensors)) != names:
        raise ExportError(f"{path}: damaged (it holds {', '.join(sorted(found))}, not {', '.join(sorted(names))})")

    def check(name: str, what: str, holds: bool) -> None:
        if not holds:
            given = tensors[name]
            kind = str(given.dtype).removeprefix("torch.")
            raise ExportError(f"{path}: damaged ({name} must be {what}, got {kind} {list(given.shape)})")

    def is_list(name: str, dtype: torch.dtype, length: int | None = None) -> bool:
        given = tensors[name]
        return given.dtype == dtype and given.ndim == 1 and (length is None or len(given) == length)

    if (bits := tensors.get("bits")) is not None:
        in_range = is_list("bits", torch.uint8, MOST_FIELDS) and int(bits.min()) >= FINGERPRINT_BITS
        fits = in_range and int(bits.max()) <= _MOST_BITS and buckets_in(bits) <= _MOST_BUCKETS
        check("bits", f"uint8 [{MOST_FIELDS}], {FINGERPRINT_BITS} to {_MOST_BITS}", fits)
        if "sizes" in tensors:
            buckets, sizes = buckets_in(bits), tensors["sizes"]
            fits = is_list("sizes", torch.uint8, buckets) and bool((sizes <= BUCKET_CAPACITY).all())
            check("sizes", f"uint8 [{buckets}] up to {BUCKET_CAPACITY}", fits)
            count = int(sizes.sum())
            check("fingerprints", f"int16 [{count}]", is_list("fingerprints", torch.int16, count))
            tensors["keys"] = keys_of_fingerprints(tensors.pop("fingerprints"), sizes, bits)
    rows, vectors = tensors["keys"], tensors["vectors"]
    check("keys", "int64, ascending and distinct", is_list("keys", torch.int64) and bool((rows[1:] > rows[:-1]).all()))
    if bits is not None:
        _, counts = torch.unique_consecutive(bucket_of(rows, bits), return_counts=True)
        fits = bool((truncated(rows, bits) == rows).all()) and bool((counts <= BUCKET_CAPACITY).all())
        check("keys", "fingerprints with the bits of their fields, up to 25 in a bucket", fits)
    width = -(-dim // 2) if dtype == "int4" else dim

    def check_vectors(name: str, scale: str, length: int) -> None:
        fits = tensors[name].dtype == TORCH_DTYPES[dtype] and tensors[name].shape == (length, width)
        check(name, f"{str(TORCH_DTYPES[dtype]).removeprefix('torch.')} [{length}, {width}]", fits)
        if not all_finite(tensors[name]):
            raise ExportError(f"{path}: {name} holds values that are not finite; export an earlier checkpoint")
        if scale in tensors:
            check(scale, f"uint8 [{length}]", is_list(scale, torch.uint8, length))

    check_vectors("vectors", "scale", len(rows))
    fallback = tensors.get("fallback")
    if fallback is not None:
        check("fallback_rows", "int64 [1]", is_list("fallback_rows", torch.int64, 1))
        count = int(tensors["fallback_rows"])
        fits = count.bit_count() == 1 and len(fallback) <= count <= _MOST_FALLBACKS
        check("fallback", f"vectors of up to 2**bits fields, here {count}", fits)
        check_vectors("fallback", "fallback_scale", len(fallback))
        fallback = decoded(fallback, tensors.get("fallback_scale"), dim)
        fallback = torch.cat([fallback, fallback.new_zeros(count - len(fallback), dim)])
    return Embeddings(rows, vectors, tensors.get("scale"), fallback, bits, dtype == "int4" and dim % 2 == 1)


# Changes from one export to another


@dataclass(frozen=True)
class Difference:
    """The way from old embeddings to new ones: keys to set, with the new fallback vectors, and keys `[k]` to remove."""

    upserts: Embeddings
    tombstones: Tensor


def difference(old: Embeddings, new: Embeddings) -> Difference:
    """From `old` to `new`, which have one format. Vectors are compared by their bits."""
    if not len(old):
        return Difference(new, old.keys)
    place, is_there = _find(old.keys, new.keys)
    remains = torch.zeros(len(old), dtype=torch.bool)
    remains[place[is_there]] = True
    changed = ~is_there
    for ours, theirs in zip(_words(old), _words(new), strict=True):
        for column in range(ours.shape[1]):  # one column after the other: no copy of both tables
            changed |= ours[:, column].index_select(0, place) != theirs[:, column]
    return Difference(new[changed], old.keys[~remains])


def _words(rows: Embeddings) -> list[Tensor]:
    """The bits of vectors and scales as integers, `[n, words]`, of as many bytes as divide a row's."""
    parts = [rows.vectors] if rows.scale is None else [rows.vectors, rows.scale.unsqueeze(1)]
    found = []
    for part in (part.contiguous() for part in parts):
        row_bytes = part.shape[1] * part.element_size()
        size = next(
            size for size in (torch.int64, torch.int32, torch.int16, torch.int8) if row_bytes % size.itemsize == 0
        )
        found.append(part.view(size))
    return found


def _find(keys: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The place of each of `wanted` among ascending keys, and whether it is there; if not, the place is any."""
    if not len(keys):
        return torch.zeros(len(wanted), dtype=torch.int64), torch.zeros(len(wanted), dtype=torch.bool)
    place = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
    return place, keys[place] == wanted


def merge(old: Embeddings, change: Difference) -> Embeddings:
    """`old` with the tombstones removed and the upserts set; tombstones of absent keys have no effect."""
    upserts = change.upserts
    remains = torch.ones(len(old), dtype=torch.bool)
    for keys in (change.tombstones, upserts.keys):
        place, is_there = _find(old.keys, keys)
        remains[place[is_there]] = False
    rows = old[remains]
    # In the result, a row comes after the upserts below its key, and an upsert after the rows below its.
    at = torch.searchsorted(rows.keys, upserts.keys) + torch.arange(len(upserts))
    is_new = torch.zeros(len(rows) + len(upserts), dtype=torch.bool)
    is_new[at] = True

    def joined(kept: Tensor, new: Tensor) -> Tensor:
        result = kept.new_empty(len(is_new), *kept.shape[1:])
        result[~is_new], result[is_new] = kept, new
        return result

    scale = None
    if rows.scale is not None and upserts.scale is not None:
        scale = joined(rows.scale, upserts.scale)
    keys, vectors = joined(rows.keys, upserts.keys), joined(rows.vectors, upserts.vectors)
    return replace(upserts, keys=keys, vectors=vectors, scale=scale)


def all_finite(values: Tensor) -> bool:
    """Return whether no element is NaN or infinite, without a copy of the tensor."""
    return not values.numel() or bool(torch.stack(values.aminmax()).isfinite().all())


def has_same_bits(one: Embeddings, other: Embeddings) -> bool:
    """Whether the keys of both are whole, or fingerprints of as many bits."""
    if one.bits is None or other.bits is None:
        return one.bits is other.bits
    return torch.equal(one.bits, other.bits)
