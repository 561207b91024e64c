"""The lookup of keys in standard operators, as a server has it: two indexes, and the tables that use them."""

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from sparsegroup.bags import BagMode, pool, pool_ragged, without_padding
from sparsegroup.data.keys import MOST_FIELDS, VALUE_BITS, Int64s, fields_of
from sparsegroup.kernels.cpu import threads
from sparsegroup.kernels.step import compute_dtype
from sparsegroup.serving.rows import (
    BUCKET_CAPACITY,
    FINGERPRINT_BITS,
    SCALES,
    TWO_ZEROS,
    Embeddings,
    ExportError,
    bits_for,
    bucket_of,
    buckets_in,
    decoded,
    fingerprints_of,
    first_buckets,
    integers,
    keys_of_fingerprints,
    truncated,
)
from sparsegroup.settings.names import Dtype, KeyFormat
from sparsegroup.table import FieldCount, HashEmbedding, TableMemory
from sparsegroup.table.directory.index import Index
from sparsegroup.table.lookup.lookup import pays_ahead
from sparsegroup.table.rows.rows import WEIGHT

BLOCK = 16
"""Keys that are compared in one step. Reading 16 neighbours costs little more than reading one."""

_LEAST_REACH = 4
"""Blocks that are searched at least: hashed keys need 3 or 4, and only the number of steps changes the operators."""

_PER_FIELD = 2.0**-VALUE_BITS
_FIELDS = 257  # 2^63 - 1 as a double is 2^63, whose field is one more than the last


class SortedKeys(nn.Module):
    """Whole keys → numbers of rows. A key that is not there is never taken for another one.

    The sorted keys are in blocks of 16. A directory narrows down a key's block, bisection over their
    first keys finds it, and a comparison with all 16 the key's place in it.

    The directory cuts the keys into buckets. A key's bucket is ⌊scale · key + offset⌋, computed in double precision
    with a scale and an offset for each value of the key's top byte, its field; a scale is a power of two, so that
    every implementation rounds the same way, fused or not. They fit the range of the field's keys, so that buckets
    ascend with the keys, and a bucket is a slice of them. Hashed keys fill the buckets evenly, 8 to 16 in each; other
    keys may crowd into few, which costs time but never an answer: there are as many steps of bisection as the fullest
    bucket needs, and 2 at least. A key that is not in the table ends in some block, and the comparison finds that it is
    not there.

    Args:
        keys: `[n]`, ascending and distinct.

    Attributes:
        first_row: The number of the first key's row; the numbers of the others follow.
        rows: How many numbers of rows there are; 0 is that of absent keys.
        halves: How far bisection jumps in each step.
    """

    scale: Tensor
    offset: Tensor
    last: Tensor
    start: Tensor
    first: Tensor
    blocks: Tensor
    places: Tensor

    def __init__(self, keys: Tensor) -> None:
        super().__init__()
        self.count = count = len(keys)
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
        self.first_row, self.rows = 1 + before * BLOCK, 1 + (before + blocks) * BLOCK
        self.register_buffer("scale", scale)
        self.register_buffer("offset", offset)
        self.register_buffer("last", torch.tensor(len(start) - 1.0, dtype=torch.float64))
        # As many blocks are searched for every bucket: the last ones begin early enough.
        self.register_buffer("start", (start + before).clamp(max=before + blocks - reach).to(torch.int32))
        self.register_buffer("first", first)
        self.register_buffer("blocks", keys)
        self.register_buffer("places", places)

    @property
    def structure(self) -> list[int]:
        """What determines the operators."""
        return self.halves

    @property
    def keys(self) -> Tensor:
        """The keys `[n]`, ascending."""
        return self.blocks[self.before :].flatten()[: self.count]

    def forward(self, keys: Tensor) -> Tensor:
        """The number of each key's row `[m]` int32, 0 of an absent one."""
        approximate = self.rounded(keys)
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
        return torch.where(place > 0, block * BLOCK + place, 0)

    @staticmethod
    def rounded(keys: Tensor) -> Tensor:
        """Keys as doubles, of which `_field` takes the field."""
        return keys.to(torch.float64)


NARROW = 8
"""Fingerprints in a block."""

_WINDOW = 4
"""Blocks that are compared: a bucket begins anywhere in the first one, and has up to 25 rows."""

_PLACES = _WINDOW * NARROW
assert NARROW - 1 + BUCKET_CAPACITY <= _PLACES


class Fingerprints(nn.Module):
    """Fingerprints of keys → numbers of rows. A few absent keys are taken for one that is there, see `bits_for`.

    The first bits of a key's hash are the number of its bucket, the next 16 its fingerprint. A field has as many
    buckets as give each 5 to 11 rows, in the mean. The fingerprints are stored in the order of the keys, and where each
    bucket begins. The four blocks of 8 from there on hold the whole bucket; they are compared with the key's
    fingerprint, and of the places from the bucket's beginning on, the first that is equal is the key's if it is in the
    bucket.

    Args:
        keys: `[n]`, ascending and distinct, with the bits cleared that are not kept.
        bits: How many are kept, by field, `[256]` uint8.

    Attributes:
        first_row, rows: See `SortedKeys`.
        bits: As given.
    """

    scale: Tensor
    offset: Tensor
    bucket: Tensor
    start: Tensor
    blocks: Tensor
    rest: Tensor

    def __init__(self, keys: Tensor, bits: Tensor) -> None:
        super().__init__()
        self.count = count = len(keys)
        self.first_row, self.rows = 1, 1 + count
        self.bits = bits
        signed = torch.arange(MOST_FIELDS, dtype=torch.float64) - MOST_FIELDS // 2
        half = MOST_FIELDS // 2
        power = bits.roll(half).to(torch.float64) - FINGERPRINT_BITS
        sizes = torch.bincount(bucket_of(keys, bits), minlength=buckets_in(bits))
        blocks = torch.zeros((count // NARROW + _WINDOW) * NARROW, dtype=torch.int16)
        blocks[:count] = fingerprints_of(keys, bits)
        place = torch.arange(_PLACES)
        begins = torch.arange(NARROW).unsqueeze(1)
        # 2^power · (key / 2^56 - field) is exact in double precision.
        self.register_buffer("scale", 2.0 ** (power - VALUE_BITS))
        self.register_buffer("offset", -signed * 2.0**power)
        self.register_buffer("bucket", first_buckets(bits)[:-1].to(torch.int32))
        self.register_buffer("start", torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]).to(torch.int32))
        self.register_buffer("blocks", blocks.view(-1, NARROW))
        # By where a bucket begins in its block: how many places come from one on; 0 of those before the bucket.
        self.register_buffer("rest", torch.where(place >= begins, _PLACES - place, 0).to(torch.float32))

    @property
    def structure(self) -> str:
        """What determines the operators."""
        return "fingerprints"

    @property
    def keys(self) -> Tensor:
        """The keys `[n]`, ascending, with the bits cleared that are not kept."""
        return keys_of_fingerprints(self.blocks.flatten()[: self.count], self.start.diff(), self.bits)

    def forward(self, keys: Tensor) -> Tensor:
        """The number of each key's row `[m]` int32, 0 of an absent one."""
        approximate = self.rounded(keys)
        field = _field(approximate)
        inside = approximate * self.scale.index_select(0, field) + self.offset.index_select(0, field)
        bucket = inside.to(torch.int32) + self.bucket.index_select(0, field)
        fingerprint = (inside * 2.0**FINGERPRINT_BITS).to(torch.int64).to(torch.int16).to(torch.int32)
        begin, end = self.start.index_select(0, bucket), self.start.index_select(0, bucket + 1)
        skipped = begin & (NARROW - 1)
        block = (begin.to(torch.float64) * (1 / NARROW)).to(torch.int32)
        window = torch.stack([block + place for place in range(_WINDOW)], 1).flatten()
        found = self.blocks.index_select(0, window).view(-1, _PLACES).to(torch.int32)
        is_it = found == fingerprint.unsqueeze(1)
        rest = (is_it.to(torch.float32) * self.rest.index_select(0, skipped)).amax(1).to(torch.int32)
        row = begin - skipped + (_PLACES + 1) - rest
        return torch.where(row <= end, row, 0)

    @staticmethod
    def rounded(keys: Tensor) -> Tensor:
        """Keys without their last 12 bits as doubles, which have 53."""
        return (keys & -4096).to(torch.float64)


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


class FrozenTable(nn.Module):
    """Key → vector; an absent key has zeros or the fallback vector of its field.

    The number of rows is in the sizes of the tensors only: tables of the same format, with as many steps in the
    index, are the same operators.

    Readers can use it as a `HashEmbedding` that holds only these rows.

    Args:
        rows: The keys with their vectors, and the fallback vectors. A whole key whose double is that of the next
            field's first key, one in 2⁴⁶ of 8 bits, gets that field's fallback vector.
        dtype: That of the vectors it gives.
        padding_idx: A key whose vector is zero; None for none.

    Raises:
        ExportError: More keys than an int32 can count.

    Attributes:
        dim: Length of a vector.
        index: Keys to numbers of rows.
        fallback: `[2**bits + 2, dim]`, by the top bits as a signed number plus half of 2**bits, with the last row
            repeated, and zeros, for keys that are there; or None.
        num_live: Keys in it; `num_rows` and `num_seen` are the same.
        state_names: Parts of a row except its weights: none.
    """

    state_names: tuple[str, ...] = ()

    vectors: Tensor
    scales: Tensor
    steps: Tensor
    fallback: Tensor | None

    def __init__(self, rows: Embeddings, dtype: torch.dtype = torch.float32, *, padding_idx: int | None = None) -> None:
        super().__init__()
        self.dtype, self.padding_idx = dtype, padding_idx
        self.num_live = self.num_rows = self.num_seen = count = len(rows)
        self.dim = rows.dim
        if count > (limit := torch.iinfo(torch.int32).max - 2 * BLOCK):
            raise ExportError(f"{count:,} live rows are more than a lookup can hold, {limit:,}")
        self.index = SortedKeys(rows.keys) if rows.bits is None else Fingerprints(rows.keys, rows.bits)
        zero = TWO_ZEROS if rows.vectors.dtype == torch.uint8 else 0
        self.register_buffer("vectors", self._placed(rows.vectors, zero))
        fallback = rows.fallback
        if fallback is not None:
            half = len(fallback) // 2
            by_sign = torch.cat([fallback[half:], fallback[:half]])
            fallback = torch.cat([by_sign, by_sign[-1:], torch.zeros_like(by_sign[-1:])]).to(torch.float32)
        self.register_buffer("fallback", fallback)
        self._compiled: Index | None = None
        self._ahead: tuple[Tensor, Future[Tensor]] | None = None
        self.is_scaled = rows.scale is not None
        if rows.scale is not None:
            self.register_buffer("scales", self._placed(rows.scale))
            # Short rows are multiplied faster by as many numbers than by one.
            self.register_buffer("steps", SCALES.unsqueeze(1).repeat(1, self.dim if self.dim <= BLOCK else 1))

    def _placed(self, values: Tensor, absent: int = 0) -> Tensor:
        """Values `[num_live, …]` by the number of the row: `absent` for absent keys, then the rows, in order."""
        placed = values.new_full((self.index.rows, *values.shape[1:]), absent)
        placed[self.index.first_row : self.index.first_row + len(values)] = values
        return placed

    @property
    def structure(self) -> str:
        """What determines the operators of the lookup; the number of rows is not in it."""
        fields = None if self.fallback is None else len(self.fallback)
        parts = (self.dim, self.dtype, self.vectors.dtype, self.index.structure, fields, self._pooling())
        return repr(parts if self.padding_idx is None else (*parts, self.padding_idx))

    def _pooling(self) -> tuple[Any, ...]:
        return ()

    @property
    def bits(self) -> Tensor | None:
        """How many bits are kept of the keys of each field; None of whole keys."""
        return None if isinstance(self.index, SortedKeys) else self.index.bits

    @property
    def fallback_by_field(self) -> Tensor | None:
        """The fallback vectors `[2**bits, dim]` by the number in a key's top bits, as the argument had them."""
        if self.fallback is None:
            return None
        fields = len(self.fallback) - 2
        negative = fields - fields // 2
        return torch.cat([self.fallback[negative:fields], self.fallback[:negative]])

    def items(self, batch_size: int = 65_536) -> Iterator[tuple[Tensor, Tensor]]:
        """Keys `[n]` int64, ascending, and vectors `[n, dim]` float32, n ≤ `batch_size` at a time."""
        keys = self.index.keys
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
        counts = np.bincount(fields_of(self.index.keys.numpy()))
        return {field: FieldCount(*[int(counts[field])] * 3) for field in np.flatnonzero(counts).tolist()}

    def memory(self) -> TableMemory:
        """Bytes that it takes."""
        parts = {WEIGHT: self.vectors.nbytes} | ({"scale": self.scales.nbytes} if self.is_scaled else {})
        index = sum(tensor.nbytes for tensor in self.index.buffers())
        index += 0 if self._compiled is None else self._compiled.bytes
        return TableMemory(index, sum(parts.values()), 0, parts)

    def forward(self, keys: Tensor) -> Tensor:
        """Vectors `[*keys.shape, dim]` of int64 keys of any shape."""
        return self._find(keys.flatten()).view(*keys.shape, self.dim).to(self.dtype)

    def prefetch(self, keys: Tensor) -> None:
        """Let another thread look up keys that the next `forward` will be given; its result is the same.

        It finds them by the index of a `HashEmbedding`, which is built for it, many times as fast as the operators do.
        Nothing happens where it would not pay, see `HashEmbedding.prefetch`.
        """
        self._ahead = None
        if keys.device.type != "cpu" or not pays_ahead(keys.numel()):
            return
        copied = keys.flatten().clone()
        vectors: Future[Tensor] = Future()

        def search() -> None:
            try:
                vectors.set_result(self._vectors_of(copied, self._rows_of(copied)))
            except Exception as error:
                vectors.set_exception(error)

        self._ahead = copied, vectors
        threads.submit(search)

    def _rows_of(self, keys: Tensor) -> Tensor:
        """As `index`, by compiled code."""
        if self._compiled is None:
            index = Index(huge_pages=False, buckets=Index.buckets_for(self.num_live))
            index.insert(self.index.keys.numpy(), self.index.first_row + np.arange(self.num_live))
            self._compiled = index
        if self.bits is not None:
            keys = truncated(keys, self.bits)
        return torch.from_numpy(self._compiled.find(keys.numpy())).clamp_(min=0)

    def contains(self, keys: Tensor) -> Tensor:
        """Return which of `keys`, int64 of any shape, have a row: bool of the same shape."""
        flat = keys.flatten()
        rows = self.index(flat) if self._compiled is None else self._rows_of(flat)
        return (rows >= self.index.first_row).view(keys.shape)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_compiled": None, "_ahead": None}

    def _find(self, keys: Tensor) -> Tensor:
        if self._ahead is not None:
            (ahead, found), self._ahead = self._ahead, None
            if torch.equal(ahead, keys):
                return found.result()
        return self._vectors_of(keys, self.index(keys))

    def _vectors_of(self, keys: Tensor, row: Tensor) -> Tensor:
        vectors = integers(self.vectors.index_select(0, row), self.dim)
        if self.is_scaled:
            vectors = vectors * self.steps.index_select(0, self.scales.index_select(0, row).to(torch.int32))
        if self.fallback is not None:
            vectors = vectors + self._absent(keys, row)
        return vectors if self.padding_idx is None else vectors.masked_fill((keys == self.padding_idx).unsqueeze(1), 0)

    def _absent(self, keys: Tensor, row: Tensor) -> Tensor:
        """The fallback vectors `[m, dim]` of keys `[m]`; zeros where a key has a row."""
        assert self.fallback is not None
        fields = self.fallback.shape[0] - 2
        field = (self.index.rounded(keys) * (fields * 2.0**-64) + fields / 2).to(torch.int32)
        return self.fallback.index_select(0, torch.where(row > 0, fields + 1, field))

    def _decoded(self, rows: slice) -> Tensor:
        begin = self.index.first_row
        part = slice(begin + rows.start, begin + rows.stop)
        return decoded(self.vectors[part], self.scales[part] if self.is_scaled else None, self.dim)


class FrozenBag(FrozenTable):
    """Sums, means or maxima over bags of keys, in operators that torch.export and ONNX know. It checks no offsets.

    Args:
        rows, dtype, padding_idx: See `FrozenTable`.
        mode, include_last_offset: See `HashEmbeddingBag`.
    """

    def __init__(
        self,
        rows: Embeddings,
        dtype: torch.dtype,
        mode: BagMode,
        include_last_offset: bool,
        *,
        padding_idx: int | None = None,
    ) -> None:
        super().__init__(rows, dtype, padding_idx=padding_idx)
        self.mode = mode
        self.include_last_offset = include_last_offset

    def _pooling(self) -> tuple[Any, ...]:
        return self.mode, self.include_last_offset

    def forward(self, keys: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """The bags' vectors `[bags, dim]`, zeros for an empty bag; the arguments are `HashEmbeddingBag`'s."""
        ids, weights = keys.reshape(-1), None if per_sample_weights is None else per_sample_weights.reshape(-1)
        if offsets is None:
            if self.padding_idx is None:
                return pool(self._weighted(ids, weights).view(*keys.shape, self.dim), self.mode).to(self.dtype)
            ends = torch.arange(keys.shape[0] + 1, dtype=torch.int64, device=keys.device) * keys.shape[1]
        else:
            ends = offsets
            if not self.include_last_offset:
                ends = torch.cat([offsets, torch.full((1,), keys.shape[0], dtype=offsets.dtype, device=offsets.device)])
        if self.padding_idx is not None:
            ids, ends, weights = without_padding(ids, ends, weights, self.padding_idx)
        return pool_ragged(self._weighted(ids, weights), ends, ends.shape[0] - 1, self.mode).to(self.dtype)

    def _weighted(self, keys: Tensor, weights: Tensor | None) -> Tensor:
        vectors = self._find(keys).to(compute_dtype(self.dtype))
        return vectors if weights is None else vectors * weights.unsqueeze(1).to(vectors.dtype)


def sorted_rows(table: HashEmbedding | FrozenTable) -> tuple[Tensor, Tensor]:
    """Return the ascending keys `[n]` and the vectors `[n, dim]` float32, within `max_norm`, of the live rows."""
    parts = list(table.items())
    keys = torch.cat([keys for keys, _ in parts]) if parts else torch.empty(0, dtype=torch.int64)
    vectors = torch.cat([vectors for _, vectors in parts]) if parts else torch.empty(0, table.dim)
    if isinstance(table, HashEmbedding):
        vectors = table.table.config.renormalized(vectors)
    keys, order = keys.sort()
    return keys, vectors[order]


def live_rows(
    table: HashEmbedding | FrozenTable,
    dtype: Dtype,
    keys: KeyFormat = "full",
    base: Embeddings | None = None,
    kept: Tensor | None = None,
) -> Embeddings:
    """The live rows of a table or an export, without rows that round to zero unless there are fallback vectors.

    `kept`, `[n]` bool, says which of its `sorted_rows` to take; None: all.
    With fingerprints, they have as many bits as in an export, or in `base`, earlier rows of the table, as long as
    its buckets have room.

    Raises:
        ExportError: As `Embeddings.of`; whole keys of an export that has none; a fallback vector that is not finite.
    """
    found, vectors = sorted_rows(table)
    if kept is not None:
        found, vectors = found[kept], vectors[kept]
    bits = table.bits if isinstance(table, FrozenTable) else None
    if keys == "full" and bits is not None:
        raise ExportError("an export with fingerprints has no keys, so it can only be exported with fingerprints")
    if keys == "fingerprints" and bits is None:
        bits = bits_for(found, None if base is None else base.bits)
    if isinstance(table, FrozenTable):
        fallback = table.fallback_by_field
    else:
        fallback = None if table.fallback is None else table.fallback.detach().cpu().float().clone()
    if fallback is not None and not bool(fallback.isfinite().all()):
        raise ExportError("a fallback vector is not finite: training has diverged; there is nothing to serve")
    rows = Embeddings.of(found, vectors, dtype, fallback, bits)
    live = rows.is_live()
    return rows if fallback is not None or bool(live.all()) else rows[live]
