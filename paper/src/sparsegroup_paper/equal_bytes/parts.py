"""What embeddings are made of in the contest: rows, layers, keys, hashes, and how fields share a budget.

An embedding is a module from keys `[rows, fields]` to vectors `[rows, fields, dim]`. It is trained in float32. `freeze`
turns it into what is served, in float32 or int8, and `served_bytes` counts that: vectors, scales, keys, bitmaps,
pointers and the layers of a hash network, and nothing that can be drawn again.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from sparsegroup.data import VALUE_BITS

Precision = Literal["float32", "int8"]

KEY_BYTES, SCALE_BYTES = 8, 2
"""A key is an int64, a scale of int8 numbers a float16."""

BLOCK = 64
"""Numbers that share a scale in int8, where they are not the vector of a row."""

STD = 0.01
"""Standard deviation of a vector's elements before training: `HashEmbedding`'s."""

Forget = Callable[[nn.Parameter, Tensor], None]
"""Sets the optimizer's state of some rows of a parameter to zero."""


class TooSmallError(ValueError):
    """A method has no table of so few bytes."""


def row_bytes(width: int, precision: Precision) -> int:
    """Bytes of a row of `width` numbers, with its scale."""
    return 4 * width if precision == "float32" else width + SCALE_BYTES


def number_bytes(precision: Precision) -> float:
    """Bytes of a number, with its part of the scale of a block."""
    return 4.0 if precision == "float32" else 1 + SCALE_BYTES / BLOCK


def hashed(keys: Tensor, salt: int) -> Tensor:
    """Hashes of int64 keys in [0, 2⁶²), by the finalizer of splitmix64; another `salt` gives another function."""
    mixed = keys ^ _signed((salt + 1) * 0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> 30)) * _signed(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> 27)) * _signed(0x94D049BB133111EB)
    return (mixed ^ (mixed >> 31)) & ((1 << 62) - 1)


def _signed(number: int) -> int:
    number &= (1 << 64) - 1
    return number - (1 << 64) if number >> 63 else number


def fields_in(keys: Tensor) -> Tensor:
    """The field of each key."""
    return (keys >> VALUE_BITS) & ((1 << 64 - VALUE_BITS) - 1)


def distinct(keys: Tensor) -> tuple[Tensor, Tensor]:
    """The distinct keys, ascending, and the place of each key among them."""
    found, place = torch.unique(keys, return_inverse=True)
    return found, place


def divisor(number: int, most: float) -> int:
    """The largest divisor of `number` that is at most `most`, or 1."""
    return max(one for one in range(1, number + 1) if number % one == 0 and (one <= most or one == 1))


def quantized(weight: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """int8 codes of `weight` `[n, width]`, and a float16 scale for each `rows` of its rows: max |x| / 127."""
    parts = -(-len(weight) // rows)
    padded = functional.pad(weight, (0, 0, 0, parts * rows - len(weight))).reshape(parts, -1)
    scale = (padded.abs().amax(1) / 127).to(torch.float16)
    divided = weight / scale.float().clamp(min=1e-30).repeat_interleave(rows)[: len(weight), None]
    return divided.round().clamp(-127, 127).to(torch.int8), scale


class Part(nn.Module):
    """A part of an embedding that has something to serve."""

    def freeze(self, precision: Precision) -> None:
        """Become what is served."""

    @property
    def own_bytes(self) -> int:
        """Bytes that are served of this module, without its children."""
        return 0

    def after_step(self, done: float, forget: Forget) -> None:
        """What a method does between two steps; `done` is the share of the training that is over."""


def freeze(embedding: nn.Module, precision: Precision) -> None:
    """Make an embedding, and all of its parts, what is served."""
    for module in list(embedding.modules()):
        if isinstance(module, Part):
            module.freeze(precision)


def served_bytes(embedding: nn.Module) -> int:
    """Bytes that are served of an embedding."""
    return sum(module.own_bytes for module in embedding.modules() if isinstance(module, Part))


class Rows(Part):
    """`count` rows of `width` numbers; the row of number `count` is zeros, and no part of what is served.

    The first values are normal, drawn from torch's generator; in int8, `rows_per_scale` share a scale. Gradients may be
    `sparse`.
    """

    codes: Tensor
    scale: Tensor

    def __init__(
        self, count: int, width: int, std: float = STD, mean: float = 0.0, rows_per_scale: int = 1, sparse: bool = True
    ) -> None:
        super().__init__()
        self.count, self.width, self.rows_per_scale, self.sparse = count, width, rows_per_scale, sparse
        self.weight = nn.Parameter(mean + std * torch.randn(count + 1, width))
        self.weight.data[count] = 0
        self.mask: Tensor | None = None
        self.is_int8 = False

    def keep(self, mask: Tensor) -> None:
        """Serve only the elements of a mask `[count, width]`, which is a bitmap of each row; the others become zero."""
        self.mask = torch.cat([mask, torch.zeros(1, self.width, dtype=torch.bool)])
        self.weight.data *= self.mask

    def after_step(self, done: float, forget: Forget) -> None:
        if self.mask is not None:
            self.weight.data *= self.mask

    def freeze(self, precision: Precision) -> None:
        if precision == "int8":
            codes, scale = quantized(self.weight.data, self.rows_per_scale)
            self.register_buffer("codes", codes)
            self.register_buffer("scale", scale)
            self.is_int8 = True
            del self.weight

    @property
    def own_bytes(self) -> int:
        scales = SCALE_BYTES * -(-self.count // self.rows_per_scale) if self.is_int8 else 0
        numbers, bitmaps = self.count * self.width, 0
        if self.mask is not None:
            numbers, bitmaps = int(self.mask.sum()), self.count * -(-self.width // 8)
        return numbers * (1 if self.is_int8 else 4) + scales + bitmaps

    def forward(self, rows: Tensor) -> Tensor:
        """Rows `[*rows.shape, width]`."""
        if self.is_int8:
            return functional.embedding(rows, self.codes).float() * self.scale[rows // self.rows_per_scale][..., None]
        return functional.embedding(rows, self.weight, padding_idx=self.count, sparse=self.sparse)


class Layer(Part):
    """A linear layer whose weights are served as rows, with a scale each in int8, and whose bias in float32."""

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__()
        self.rows = Rows(outputs, inputs, sparse=False)
        self.rows.weight.data[:outputs] = nn.Linear(inputs, outputs).weight.data
        self.bias = nn.Parameter(torch.zeros(outputs)) if bias else None

    @staticmethod
    def bytes_of(inputs: int, outputs: int, precision: Precision, bias: bool = True) -> int:
        """Bytes of such a layer."""
        return outputs * (row_bytes(inputs, precision) + 4 * bias)

    @property
    def own_bytes(self) -> int:
        return 0 if self.bias is None else 4 * len(self.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """Outputs `[*, outputs]`."""
        rows = self.rows
        weight = rows.codes.float() * rows.scale[:, None] if rows.is_int8 else rows.weight
        return functional.linear(inputs, weight[: rows.count], self.bias)


class Keyed(Part):
    """A row for each of some keys, ascending; absent keys have zeros, or the vector of their field, of `fields`."""

    keys: Tensor

    def __init__(self, keys: Tensor, dim: int, fields: int = 0) -> None:
        super().__init__()
        self.register_buffer("keys", keys)
        self.rows, self.fields = Rows(len(keys) + fields, dim), fields

    @property
    def own_bytes(self) -> int:
        return KEY_BYTES * len(self.keys)

    def places(self, keys: Tensor) -> Tensor:
        """The row of each key."""
        absent = len(self.keys) + (fields_in(keys) if self.fields else keys.new_zeros(()))
        if not len(self.keys):
            return absent.expand(keys.shape)
        place = torch.searchsorted(self.keys, keys).clamp(max=len(self.keys) - 1)
        return torch.where(self.keys[place] == keys, place, absent)

    def forward(self, keys: Tensor) -> Tensor:
        return cast(Tensor, self.rows(self.places(keys)))

    def vectors(self) -> Tensor:
        """The keys' vectors `[n, dim]`."""
        return self.rows.weight.detach()[: len(self.keys)]

    def kept(self, rows: Tensor, mask: Tensor | None = None) -> "Keyed":
        """A table of some rows, by their numbers, ascending; with `mask` `[n, dim]` only those elements."""
        kept = Keyed(self.keys[rows], self.rows.width)
        kept.rows.weight.data[: len(rows)] = self.vectors()[rows]
        if mask is not None:
            kept.rows.keep(mask[rows])
        return kept


# How the fields share the bytes


@dataclass(frozen=True)
class Shares:
    """How a budget is shared: `exact` columns have a row for each key, `columns` share `size` bytes for `features`."""

    exact: tuple[int, ...]
    columns: tuple[int, ...]
    features: int
    size: int


def shares_of(features: Sequence[int], budget: int, exact_row: int, least: int) -> Shares:
    """Exact tables for fields that need no more than the same part of the bytes; all other fields share the rest.

    `features` are the distinct keys of each field, `exact_row` the bytes of a row and its key, and `least` the fewest
    bytes that the others can share; TooSmallError where the budget is less.
    """
    if budget < least:
        raise TooSmallError(f"{budget} bytes are less than {least}")
    exact, left, order = list[int](), budget, sorted(range(len(features)), key=lambda field: features[field])
    for place, field in enumerate(order):
        if features[field] * exact_row > left // (len(order) - place):
            break
        exact.append(field)
        left -= features[field] * exact_row
    if len(exact) < len(order) and left < least:
        exact, left = [], budget
    others = sorted(set(order) - set(exact))
    return Shares(tuple(exact), tuple(others), sum(features[field] for field in others), left)


class ByField(Part):
    """Small fields in an exact table of `keys`, ascending, all others in `rest`; None if all fields are exact."""

    def __init__(self, shares: Shares, keys: Tensor, dim: int, rest: Part | None) -> None:
        super().__init__()
        self.exact, self.rest = Keyed(keys, dim), rest
        self.columns = [list(shares.exact), list(shares.columns)]
        self.order = torch.tensor([*shares.exact, *shares.columns]).argsort()

    def forward(self, keys: Tensor) -> Tensor:
        """Vectors `[rows, fields, dim]` of keys `[rows, fields]`."""
        exact, others = self.columns
        if self.rest is None:
            return cast(Tensor, self.exact(keys))
        rest = cast(Tensor, self.rest(keys[:, others]))
        return torch.cat([self.exact(keys[:, exact]), rest], 1)[:, self.order] if exact else rest


def digits(keys: Tensor, salt: int, sizes: Sequence[int]) -> list[Tensor]:
    """A hash of each key, chosen by `salt`, cut into a number below each of `sizes`."""
    left, found = hashed(keys, salt), []
    for size in sizes:
        found.append(left % size)
        left = left // size
    return found


def factors(number: float) -> tuple[int, int, int]:
    """Three numbers about as large as each other, whose product is `number` at least."""
    first = max(1, math.ceil(number ** (1 / 3) - 1e-9))
    second = max(1, math.ceil(math.sqrt(number / first) - 1e-9))
    return first, second, max(1, math.ceil(number / first / second - 1e-9))


def pointer_bytes(rows: int) -> int:
    """Bytes of a pointer to one of `rows` rows."""
    return 1 if rows <= 1 << 8 else 2 if rows <= 1 << 16 else 4
