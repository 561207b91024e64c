"""Live rows as a server has them: the formats of vectors, their file, and the lookup of keys in standard operators."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparsegroup.artifact.tensor_file import read_tensors, write_tensors
from sparsegroup.bags import BagMode, pool, pool_ragged
from sparsegroup.data.keys import Int64s, fields_of
from sparsegroup.settings.names import Dtype
from sparsegroup.table import FieldCount, HashEmbedding, TableMemory
from sparsegroup.table.rows.rows import WEIGHT
from sparsegroup.training import RunError


class ExportError(RunError):
    """An export that cannot be made, read or applied. The message names the file and what is wrong with it."""


TORCH_DTYPES: Mapping[Dtype, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
}
_LARGEST_INT8 = 127
_SMALLEST_SCALE = torch.finfo(torch.float32).tiny
_MOST_FIELDS = 1 << 16


@dataclass(frozen=True)
class Embeddings:
    """Keys and their vectors.

    Attributes:
        keys: `[n]` int64, ascending and distinct.
        vectors: `[n, dim]` of a format's dtype; without fallback vectors, none is all zeros.
        scale: `[n]` float32, only of int8: a vector is scale × integers.
        fallback: `[2**bits, dim]` float32, by the number in a key's top bits, the vectors of absent keys; None for
            zeros.
    """

    keys: Tensor
    vectors: Tensor
    scale: Tensor | None = None
    fallback: Tensor | None = None

    @classmethod
    def of(cls, keys: Tensor, vectors: Tensor, dtype: Dtype, fallback: Tensor | None = None) -> "Embeddings":
        """Vectors `[n, dim]` in a format; the same vectors give the same bits.

        float16 and bfloat16 round to nearest, ties to even. int8 has a scale for each row, max |x| / 127, so that each
        element is off by at most half of it. A vector whose elements all round to zero becomes zero: in float16 those
        below 3e-8, in int8 below 5.9e-39; bfloat16 has the range of float32.
        """
        vectors = vectors.detach().to(torch.float32)
        if not bool(torch.isfinite(vectors).all()):
            raise ExportError(
                "the table holds vectors that are not finite: training has diverged; there is nothing to serve"
            )
        if dtype == "int8":
            largest = vectors.abs().amax(1) if vectors.numel() else vectors.new_zeros(len(vectors))
            scale = (largest / _LARGEST_INT8).clamp(min=_SMALLEST_SCALE)
            rounded = (vectors / scale.unsqueeze(1)).round().clamp(-_LARGEST_INT8, _LARGEST_INT8)
            return cls(keys, rounded.to(torch.int8), scale, fallback)
        encoded = vectors.to(TORCH_DTYPES[dtype])
        if not bool(torch.isfinite(encoded).all()):
            largest_value = float(vectors.abs().max())
            raise ExportError(f"{dtype} has no {largest_value:g}, which the table holds; take float32 or int8")
        return cls(keys, encoded, None, fallback)

    def decode(self) -> Tensor:
        """The vectors as `[n, dim]` float32."""
        decoded = self.vectors.to(torch.float32)
        return decoded if self.scale is None else decoded * self.scale.unsqueeze(1)

    def tensors(self) -> dict[str, Tensor]:
        """The content of the file: the attributes that there are."""
        return {name: tensor.contiguous() for name, tensor in vars(self).items() if tensor is not None}

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, rows: Tensor) -> "Embeddings":
        scale = None if self.scale is None else self.scale[rows]
        return Embeddings(self.keys[rows], self.vectors[rows], scale, self.fallback)

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self.vectors.shape[1]

    def save(self, path: Path) -> None:
        """Write the file; the same content gives the same bytes."""
        write_tensors(path, self.tensors())


BLOCK = 16
"""Keys that are compared in one step. Reading 16 neighbours costs little more than reading one."""

_LEAST_REACH = 4
"""Blocks that are searched at least: hashed keys need 3 or 4, and only the number of steps changes the operators."""

_PER_FIELD = 2.0**-56
_FIELDS = 257  # 2^63 - 1 as a double is 2^63, whose field is one more than the last


class FrozenTable(nn.Module):
    """Key → vector; an absent key has zeros or the fallback vector of its field.

    The sorted keys are in blocks of 16. A directory narrows down a key's block, bisection over their
    first keys finds it, and a comparison with all 16 the key's place in it.

    The directory cuts the keys into buckets. A key's bucket is ⌊scale · key + offset⌋, computed in double precision
    with a scale and an offset for each value of the key's top byte, its field; a scale is a power of two, so that
    every implementation rounds the same way, fused or not. They fit the range of the field's keys, so that buckets
    ascend with the keys, and a bucket is a slice of them. Hashed keys fill the buckets evenly, 8 to 16 in each; other
    keys may crowd into few, which costs time but never an answer: there are as many steps of bisection as the fullest
    bucket needs, and 2 at least. A key that is not in the table ends in some block, and the comparison finds that it is
    not there.

    The number of rows is in the sizes of the tensors only: tables with as many steps, `halves`, of the same format are
    the same operators.

    Readers can use it as a `HashEmbedding` that holds only these rows.

    Args:
        rows: The keys with their vectors, and the fallback vectors. A key whose double is that of the next field's
            first key, one in 2⁴⁶ of 8 bits, gets that field's fallback vector.
        dtype: That of the vectors it gives.

    Raises:
        ExportError: More keys than an int32 can count.

    Attributes:
        dim: Length of a vector.
        fallback: `[2**bits + 1, dim]`, by the top bits as a signed number plus half of 2**bits, with the last row
            repeated; or None.
        num_live: Keys in it; `num_rows` and `num_seen` are the same.
        state_names: Parts of a row except its weights: none.
    """

    state_names: tuple[str, ...] = ()

    scale: Tensor
    offset: Tensor
    last: Tensor
    start: Tensor
    first: Tensor
    blocks: Tensor
    places: Tensor
    vectors: Tensor
    scales: Tensor
    fallback: Tensor | None

    def __init__(self, rows: Embeddings, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.dtype = dtype
        keys, vectors, scales, fallback = rows.keys, rows.vectors, rows.scale, rows.fallback
        self.num_live = self.num_rows = self.num_seen = count = len(keys)
        self.dim = rows.dim
        if count > (limit := torch.iinfo(torch.int32).max - 2 * BLOCK):
            raise ExportError(f"{count:,} live rows are more than a lookup can hold, {limit:,}")
        blocks = max(1, -(-count // BLOCK))
        scale, offset, start, most = _directory(keys)
        reach = max(_LEAST_REACH, 1 << (most - 1).bit_length())
        if reach > max(_LEAST_REACH, blocks):
            reach = most
        self.halves = _halves(reach)
        # Blocks before the first one, if there are too few to search. Only keys below all others end there.
        self.before = before = max(0, reach - blocks)
        # The last block is filled up with keys of the first one, which no key's bisection looks for there. If it is the
        # first one, the numbers of the places there are 0.
        padding = blocks * BLOCK - count
        first_key = keys[:1] if count else torch.zeros(1, dtype=torch.int64)
        filling = keys[:padding] if blocks > 1 else first_key.expand(padding)
        keys = torch.cat([first_key.expand(before * BLOCK), keys, filling]).view(before + blocks, BLOCK)
        first = keys[:, 0].clone()
        first[:before] = torch.iinfo(torch.int64).min
        places = torch.arange(1.0, BLOCK + 1)
        if blocks == 1:
            places[count:] = 0
        self.register_buffer("scale", scale)
        self.register_buffer("offset", offset)
        self.register_buffer("last", torch.tensor(len(start) - 1.0, dtype=torch.float64))
        # As many blocks are searched for every bucket: the last ones begin early enough.
        self.register_buffer("start", (start + before).clamp(max=before + blocks - reach).to(torch.int32))
        self.register_buffer("first", first)
        self.register_buffer("blocks", keys)
        self.register_buffer("places", places)
        self.register_buffer("vectors", self._placed(vectors))
        if fallback is not None:
            half = len(fallback) // 2
            by_sign = torch.cat([fallback[half:], fallback[:half]])
            fallback = torch.cat([by_sign, by_sign[-1:]]).to(torch.float32)
        self.register_buffer("fallback", fallback)
        self.is_scaled = scales is not None
        if scales is not None:
            self.register_buffer("scales", self._placed(scales.unsqueeze(1)))

    def _placed(self, values: Tensor) -> Tensor:
        """Values `[num_live, …]` by place: zeros for absent keys, then the places in the blocks, in order."""
        begin = 1 + self.before * BLOCK
        placed = values.new_zeros(1 + self.blocks.numel(), *values.shape[1:])
        placed[begin : begin + len(values)] = values
        return placed

    @property
    def structure(self) -> str:
        """What determines the operators of the lookup; the number of rows is not in it."""
        fields = 0 if self.fallback is None else len(self.fallback)
        return repr((self.dim, self.dtype, self.vectors.dtype, self.halves, fields, self._pooling()))

    def _pooling(self) -> tuple[Any, ...]:
        return ()

    @property
    def _keys(self) -> Tensor:
        return self.blocks[self.before :].flatten()[: self.num_live]

    @property
    def fallback_by_field(self) -> Tensor | None:
        """The fallback vectors `[2**bits, dim]` by the number in a key's top bits, as the argument had them."""
        if self.fallback is None:
            return None
        fields = len(self.fallback) - 1
        negative = fields - fields // 2
        return torch.cat([self.fallback[negative:fields], self.fallback[:negative]])

    def items(self, batch_size: int = 65_536) -> Iterator[tuple[Tensor, Tensor]]:
        """Keys `[n]` int64, ascending, and vectors `[n, dim]` float32, n ≤ `batch_size` at a time."""
        keys = self._keys
        for begin in range(0, self.num_live, batch_size):
            part = slice(begin, min(begin + batch_size, self.num_live))
            yield keys[part], self._decoded(part)

    def scan_rows(self, parts: Sequence[str], batch_size: int) -> Iterator[tuple[Int64s, list[npt.NDArray[Any]]]]:
        """`items` in the form that tables have for readers; `parts` can only be the weights."""
        if unknown := [part for part in parts if part != WEIGHT]:
            raise KeyError(f"an export's rows have no {unknown[0]}")
        for keys, vectors in self.items(batch_size):
            yield keys.numpy(), [vectors.numpy()] * len(parts)

    def field_counts(self) -> dict[int, FieldCount]:
        """Rows of each field, by the number in a key's top bits."""
        counts = np.bincount(fields_of(self._keys.numpy()))
        return {field: FieldCount(*[int(counts[field])] * 3) for field in np.flatnonzero(counts).tolist()}

    def memory(self) -> TableMemory:
        """Bytes that it takes."""
        index = (self.scale, self.offset, self.last, self.start, self.first, self.blocks, self.places)
        parts = {WEIGHT: self.vectors.nbytes} | ({"scale": self.scales.nbytes} if self.is_scaled else {})
        return TableMemory(sum(tensor.nbytes for tensor in index), sum(parts.values()), 0, parts)

    def forward(self, keys: Tensor) -> Tensor:
        """Vectors `[*keys.shape, dim]` of int64 keys of any shape."""
        return self._find(keys.flatten()).view(*keys.shape, self.dim).to(self.dtype)

    def _find(self, keys: Tensor) -> Tensor:
        approximate = keys.to(torch.float64)
        field = _field(approximate)
        scale, offset = self.scale.index_select(0, field), self.offset.index_select(0, field)
        bucket = (approximate * scale + offset).clamp(min=0).minimum(self.last).to(torch.int32)
        block = self.start.index_select(0, bucket)
        for half in self.halves:
            middle = block + half
            block = torch.where(self.first.index_select(0, middle) <= keys, middle, block)
        is_it = self.blocks.index_select(0, block) == keys.unsqueeze(1)
        # The place in the block, from 1, or 0: at most one of the places with a number is it.
        # No product of matrices: quantizers round the factors of one, and this is a place.
        place = (is_it.to(torch.float32) * self.places).sum(1).to(torch.int32)
        row = torch.where(place > 0, block * BLOCK + place, 0)
        vectors = self.vectors.index_select(0, row).to(torch.float32)
        if self.is_scaled:
            vectors = vectors * self.scales.index_select(0, row)
        if self.fallback is None:
            return vectors
        fields = self.fallback.shape[0] - 1
        if fields != 256:
            field = (approximate * (fields * 2.0**-64) + fields / 2).to(torch.int32)
        absent = self.fallback.index_select(0, field)
        return torch.where((place > 0).unsqueeze(1), vectors, absent)

    def _decoded(self, rows: slice) -> Tensor:
        begin = 1 + self.before * BLOCK
        part = slice(begin + rows.start, begin + rows.stop)
        vectors = self.vectors[part].to(torch.float32)
        return vectors * self.scales[part] if self.is_scaled else vectors


def _field(approximate: Tensor) -> Tensor:
    """The top byte of keys as doubles, plus 128. One that a double rounds up to the next field counts as that one's."""
    return (approximate * _PER_FIELD + 128).to(torch.int32)


def _directory(keys: Tensor) -> tuple[Tensor, Tensor, Tensor, int]:
    """Scale and offset by field, the first block of each bucket, and over how many blocks one stretches at most."""
    scale, offset = torch.zeros(_FIELDS, dtype=torch.float64), torch.zeros(_FIELDS, dtype=torch.float64)
    if not len(keys):
        return scale, offset, torch.zeros(1, dtype=torch.int64), 1
    approximate = keys.to(torch.float64)
    field = _field(approximate)
    present, sizes = torch.unique_consecutive(field, return_counts=True)
    last = sizes.cumsum(0) - 1
    first = last - sizes + 1
    buckets = 0
    for number, size, low, high in zip(
        present.tolist(), sizes.tolist(), approximate[first].tolist(), approximate[last].tolist(), strict=True
    ):
        power = _power(size, low, high)
        begin = math.floor(low * power)
        scale[number], offset[number] = power, buckets - begin
        buckets += math.floor(high * power) - begin + 1
    bucket = (approximate * scale[field] + offset[field]).to(torch.int32)
    sizes = torch.bincount(bucket, minlength=buckets)
    end = sizes.cumsum(0)
    start = (end - sizes) // BLOCK
    most = int(((end - 1) // BLOCK - start + 1)[sizes > 0].max())
    return scale, offset, start, most


def _power(size: int, low: float, high: float) -> float:
    """The power of two that makes `size` / 16 to `size` / 8 buckets of keys from `low` to `high`, or few.

    It is so small that buckets, before the offset is added, are integers that a double holds.
    """
    if size <= BLOCK or high <= low:
        return 2.0**-64
    _, exponent = math.frexp(max(abs(low), abs(high)))
    return min(1.0, 2.0 ** (52 - exponent), 2.0 ** math.ceil(math.log2(size / BLOCK / (high - low))))


def _halves(size: int) -> list[int]:
    """How far the bisection of `size` blocks jumps in each step."""
    halves = []
    while size > 1:
        halves.append(size // 2)
        size -= size // 2
    return halves


class FrozenBag(FrozenTable):
    """Sums or means over bags of keys, in operators that torch.export and ONNX know. It checks no offsets.

    Args:
        rows, dtype: See `FrozenTable`.
        mode, include_last_offset: See `HashEmbeddingBag`.
    """

    def __init__(self, rows: Embeddings, dtype: torch.dtype, mode: BagMode, include_last_offset: bool) -> None:
        super().__init__(rows, dtype)
        self.mode = mode
        self.include_last_offset = include_last_offset

    def _pooling(self) -> tuple[Any, ...]:
        return self.mode, self.include_last_offset

    def forward(self, keys: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """The bags' vectors `[bags, dim]`, zeros for an empty bag; the arguments are `HashEmbeddingBag`'s."""
        rows = super().forward(keys.reshape(-1))
        if per_sample_weights is not None:
            rows = rows * per_sample_weights.reshape(-1, 1).to(rows.dtype)
        if offsets is None:
            return pool(rows.view(*keys.shape, self.dim), self.mode)
        ends = offsets
        if not self.include_last_offset:
            ends = torch.cat([offsets, torch.full((1,), keys.shape[0], dtype=offsets.dtype, device=offsets.device)])
        return pool_ragged(rows, ends, ends.shape[0] - 1, self.mode)


def live_rows(table: HashEmbedding | FrozenTable, dtype: Dtype) -> Embeddings:
    """The live rows of a table or an export, without rows that round to zero unless there are fallback vectors."""
    parts = list(table.items())
    keys = torch.cat([keys for keys, _ in parts]) if parts else torch.empty(0, dtype=torch.int64)
    vectors = torch.cat([vectors for _, vectors in parts]) if parts else torch.empty(0, table.dim)
    keys, order = keys.sort()
    if isinstance(table, FrozenTable):
        fallback = table.fallback_by_field
    else:
        fallback = None if table.fallback is None else table.fallback.detach().cpu().float().clone()
    if fallback is not None and not bool(fallback.isfinite().all()):
        raise ExportError("a fallback vector is not finite: training has diverged; there is nothing to serve")
    found = Embeddings.of(keys, vectors[order], dtype, fallback)
    live = found.vectors.ne(0).any(1)
    return found if fallback is not None or bool(live.all()) else found[live]


def load_embeddings(path: Path, dim: int, dtype: Dtype) -> Embeddings:
    """The embeddings that `save` has written."""
    tensors = read_tensors(path, ExportError)
    names = {"keys", "vectors", "scale"} if dtype == "int8" else {"keys", "vectors"}
    if (found := set(tensors) - {"fallback"}) != names:
        raise ExportError(f"{path}: damaged (it holds {', '.join(sorted(found))}, not {', '.join(sorted(names))})")

    def check(name: str, what: str, holds: bool) -> None:
        if not holds:
            given = tensors[name]
            kind = str(given.dtype).removeprefix("torch.")
            raise ExportError(f"{path}: damaged ({name} must be {what}, got {kind} {list(given.shape)})")

    keys, vectors = tensors["keys"], tensors["vectors"]
    ascend = keys.dtype == torch.int64 and keys.ndim == 1 and bool((keys[1:] > keys[:-1]).all())
    check("keys", "int64, ascending and distinct", ascend)
    fits = vectors.dtype == TORCH_DTYPES[dtype] and vectors.shape == (len(keys), dim)
    check("vectors", f"{dtype} [{len(keys)}, {dim}]", fits)
    if (scale := tensors.get("scale")) is not None:
        check("scale", f"float32 [{len(keys)}]", scale.dtype == torch.float32 and scale.shape == keys.shape)
    if (fallback := tensors.get("fallback")) is not None:
        is_table = fallback.dtype == torch.float32 and fallback.ndim == 2 and fallback.shape[1] == dim
        fields = len(fallback) if is_table else 0
        check("fallback", f"float32 [2**bits, {dim}]", fields.bit_count() == 1 and fields <= _MOST_FIELDS)
    return Embeddings(**tensors)
