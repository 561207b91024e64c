"""Vectors in the number formats of an export, and back."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sparsegroup.serving.export_error import ExportError
from sparsegroup.settings.names import Dtype

TORCH_DTYPES: Mapping[Dtype, torch.dtype] = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int8": torch.int8,
}
_LARGEST_INT8 = 127
_SMALLEST_SCALE = torch.finfo(torch.float32).tiny


@dataclass(frozen=True)
class QuantizedVectors:
    """Vectors in one of the formats.

    Attributes:
        vectors: `[n, dim]`, of the format's dtype.
        scale: `[n]` float32, of int8 only: vector = scale × vectors.
    """

    vectors: Tensor
    scale: Tensor | None = None

    def decode(self) -> Tensor:
        """The vectors that they stand for, `[n, dim]` float32."""
        decoded = self.vectors.to(torch.float32)
        return decoded if self.scale is None else decoded * self.scale.unsqueeze(1)

    def __getitem__(self, rows: Tensor) -> "QuantizedVectors":
        return QuantizedVectors(self.vectors[rows], None if self.scale is None else self.scale[rows])


def encode(vectors: Tensor, dtype: Dtype) -> QuantizedVectors:
    """Vectors `[n, dim]` in a format; the same vectors give the same bits.

    float16 and bfloat16 round to nearest, ties to even. int8 has a scale for each row, max |x| / 127, so that each
    element is off by at most half of it. A vector whose elements all round to zero becomes zero: in float16 those below
    3e-8, in int8 below 5.9e-39; bfloat16 has the range of float32.

    Raises:
        ExportError: An element that is not finite, or too large for float16.
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
        return QuantizedVectors(rounded.to(torch.int8), scale)
    encoded = vectors.to(TORCH_DTYPES[dtype])
    if not bool(torch.isfinite(encoded).all()):
        largest_value = float(vectors.abs().max())
        raise ExportError(f"{dtype} has no {largest_value:g}, which the table holds; take float32 or int8")
    return QuantizedVectors(encoded)
