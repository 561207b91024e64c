"""How the parts of a row in the host's memory are stored.

All are of one dtype, but beside weights of float32 two kinds take less: u and the state as bfloat16, where that is
asked for, and the state of groups, which is the same for all elements, as one float32. NumPy has no bfloat16: its bits
are uint16 here.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparsegroup.kernels.cpu.narrow_copies import NARROW, SINGLE, WHOLE
from sparsegroup.kernels.rounding import narrowed, widened
from sparsegroup.kernels.views import TORCH_DTYPES
from sparsegroup.rules import is_of_group
from sparsegroup.table.row_storage import WEIGHT

Floats = npt.NDArray[Any]

_BITS = np.dtype(np.uint16)
_ALIGNED = 4


@cache
def kinds_of(parts: tuple[str, ...], dtype: np.dtype[Any], is_narrow: bool) -> tuple[int, ...] | None:
    """The kinds of parts, see `narrow_copies`, of rows with weights of `dtype`; None where all are of that dtype."""
    kinds = tuple(_kind(part, dtype, is_narrow) for part in parts)
    return kinds if any(kind != WHOLE for kind in kinds) else None


def _kind(part: str, dtype: np.dtype[Any], is_narrow: bool) -> int:
    if part == WEIGHT or dtype != np.float32:
        return WHOLE
    return SINGLE if is_of_group(part) else NARROW if is_narrow else WHOLE


class RowParts:
    """The parts of a row, and the arrays that they are stored as.

    Args:
        dim: Elements of a part.
        dtype: That of the weights, and of what is read.
        states: Names of the parts after the weights.
        is_narrow: Whether these are bfloat16, beside weights of float32.

    Attributes:
        names: The weights, then the states, in the order of a row.
        record: A row as NumPy has it, a field for each part by its place.
        is_plain: Whether all parts are of `dtype`, with all elements.
    """

    def __init__(self, dim: int, dtype: np.dtype[Any], states: Sequence[str], is_narrow: bool) -> None:
        assert not is_narrow or dtype == np.float32
        self.names = (WEIGHT, *states)
        self.is_plain = kinds_of(self.names, dtype, is_narrow) is None
        self._dim, self._dtype = dim, dtype
        self._kinds = {part: _kind(part, dtype, is_narrow) for part in self.names}
        offsets = np.cumsum([0, *(self._aligned_bytes(part) for part in self.names)]).tolist()
        self._offsets: dict[str, int] = dict(zip(self.names, offsets, strict=False))
        self.record = np.dtype(
            {
                "names": [str(place) for place in range(len(self.names))],
                "formats": [self._format(part) for part in self.names],
                "offsets": offsets[:-1],
                "itemsize": offsets[-1],
            }
        )

    def _format(self, part: str) -> tuple[np.dtype[Any], tuple[int]]:
        kind = self._kinds[part]
        return _BITS if kind == NARROW else self._dtype, (1 if kind == SINGLE else self._dim,)

    def _aligned_bytes(self, part: str) -> int:
        size = self.bytes(part)
        return size + (-size % _ALIGNED if self._kinds[part] == NARROW else 0)

    def bytes(self, part: str) -> int:
        """What a part takes."""
        kind, (count,) = self._format(part)
        return count * int(kind.itemsize)

    def dtype(self, part: str) -> torch.dtype:
        """In which a part is stored."""
        return torch.bfloat16 if self._kinds[part] == NARROW else TORCH_DTYPES[self._dtype]

    def offset(self, part: str) -> int:
        """Bytes from where a row begins to a part."""
        return self._offsets[part]

    def place(self, part: str) -> str:
        """The field of a part."""
        return str(self.names.index(part))

    def empty(self, part: str, count: int) -> npt.NDArray[Any]:
        """An array for a part of so many rows, as it is stored."""
        kind, shape = self._format(part)
        return np.empty((count, *shape), kind)

    def stored(self, part: str, values: npt.ArrayLike) -> npt.NDArray[Any]:
        """Values `[…, dim]` of a part, or one for all elements, as they are stored: bfloat16 to the nearest."""
        numbers = np.asarray(values, self._dtype)
        if self._kinds[part] == SINGLE:
            numbers = numbers[..., :1]
        numbers = np.ascontiguousarray(numbers)
        return narrowed(numbers) if self._kinds[part] == NARROW else numbers

    def numbers(self, part: str, stored: npt.NDArray[Any]) -> Floats:
        """The values `[n, dim]` of a part, as it is stored."""
        if self._kinds[part] == SINGLE:
            return np.repeat(stored, self._dim, axis=1)
        return widened(stored) if self._kinds[part] == NARROW else stored

    def words(self, rows: npt.NDArray[Any]) -> Floats:
        """Whole rows of `record` as numbers of `dtype`, whatever they are."""
        return rows.view(self._dtype).reshape(len(rows), self.record.itemsize // self._dtype.itemsize)

    def joined(self, rows: npt.NDArray[Any]) -> Floats:
        """`[n, parts · dim]` of whole rows of `record`."""
        if self.is_plain:
            return self.words(rows)
        return np.concatenate([self.numbers(part, rows[str(k)]) for k, part in enumerate(self.names)], axis=1)

    def split(self, values: Floats) -> npt.NDArray[Any]:
        """Whole rows of `record` of `[n, parts · dim]`."""
        rows = np.zeros(len(values), self.record)
        for k, part in enumerate(self.names):
            rows[str(k)] = self.stored(part, values[:, k * self._dim : (k + 1) * self._dim])
        return rows
