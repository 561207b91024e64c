"""The live rows of a table, encoded: what an export holds, and the file it lies in."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from sparsegroup.artifact.tensor_file import read_tensors, write_tensors
from sparsegroup.serving.export_error import ExportError
from sparsegroup.serving.frozen_table import FrozenTable
from sparsegroup.serving.quantize import TORCH_DTYPES, QuantizedVectors, encode
from sparsegroup.settings.names import Dtype
from sparsegroup.table import HashEmbedding

_MOST_FIELDS = 1 << 16


@dataclass(frozen=True)
class Embeddings:
    """Keys and their vectors.

    Attributes:
        keys: `[n]` int64, ascending and distinct.
        vectors: The vectors of the keys; none is all zeros, unless there are fallback vectors.
        fallback: `[2**bits, dim]` float32, by the number in a key's top bits, the vectors of absent keys; None for
            zeros.
    """

    keys: Tensor
    vectors: QuantizedVectors
    fallback: Tensor | None = None

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, rows: Tensor) -> "Embeddings":
        return Embeddings(self.keys[rows], self.vectors[rows], self.fallback)

    @property
    def dim(self) -> int:
        """Length of a vector."""
        return self.vectors.vectors.shape[1]

    def tensors(self) -> dict[str, Tensor]:
        """As the file has them: `keys`, `vectors` and, if there are any, of int8 `scale`, and `fallback`."""
        more = {"scale": self.vectors.scale, "fallback": self.fallback}
        given = {name: tensor.contiguous() for name, tensor in more.items() if tensor is not None}
        return {"keys": self.keys.contiguous(), "vectors": self.vectors.vectors.contiguous(), **given}

    def save(self, path: Path) -> None:
        """Write the file; the same content gives the same bytes."""
        write_tensors(path, self.tensors())


def live_rows(table: HashEmbedding | FrozenTable, dtype: Dtype) -> Embeddings:
    """The live rows of a table or an export; those all zeros in the format are left out, for so are absent keys.

    With fallback vectors, which stand in for absent keys, they stay.

    Raises:
        ExportError: A vector that is not finite, or that the format cannot hold.
    """
    parts = list(table.items())
    keys = torch.cat([keys for keys, _ in parts]) if parts else torch.empty(0, dtype=torch.int64)
    vectors = torch.cat([vectors for _, vectors in parts]) if parts else torch.empty(0, table.dim)
    keys, order = keys.sort()
    encoded = encode(vectors[order], dtype)
    fallback = _fallback_of(table)
    if fallback is not None and not bool(fallback.isfinite().all()):
        raise ExportError("a fallback vector is not finite: training has diverged; there is nothing to serve")
    live = encoded.vectors.ne(0).any(1)
    found = Embeddings(keys, encoded, fallback)
    return found if fallback is not None or bool(live.all()) else found[live]


def _fallback_of(table: HashEmbedding | FrozenTable) -> Tensor | None:
    if isinstance(table, FrozenTable):
        return table.fallback_by_field
    return None if table.fallback is None else table.fallback.detach().cpu().float().clone()


def _is_fallback(vectors: Tensor, dim: int) -> bool:
    if vectors.dtype != torch.float32 or vectors.ndim != 2 or vectors.shape[1] != dim:
        return False
    return len(vectors).bit_count() == 1 and len(vectors) <= _MOST_FIELDS


def load_embeddings(path: Path, dim: int, dtype: Dtype) -> Embeddings:
    """What `save` has written.

    Raises:
        ExportError: It is not that, or of another dimension or format.
    """
    tensors = read_tensors(path, ExportError)
    names = {"keys", "vectors", "scale"} if dtype == "int8" else {"keys", "vectors"}
    fallback = tensors.pop("fallback", None)
    if set(tensors) != names:
        raise ExportError(f"{path}: damaged (it holds {', '.join(sorted(tensors))}, not {', '.join(sorted(names))})")
    keys, vectors, scale = tensors["keys"], tensors["vectors"], tensors.get("scale")
    if keys.dtype != torch.int64 or keys.ndim != 1 or not bool((keys[1:] > keys[:-1]).all()):
        raise ExportError(f"{path}: damaged (keys must be int64, ascending and distinct)")
    if vectors.dtype != TORCH_DTYPES[dtype] or vectors.shape != (len(keys), dim):
        raise ExportError(
            f"{path}: damaged (vectors must be {dtype} [{len(keys)}, {dim}], got {vectors.dtype} {list(vectors.shape)})"
        )
    if scale is not None and (scale.dtype != torch.float32 or scale.shape != keys.shape):
        raise ExportError(f"{path}: damaged (scale must be float32 [{len(keys)}])")
    if fallback is not None and not _is_fallback(fallback, dim):
        raise ExportError(f"{path}: damaged (fallback must be float32 [2**bits, {dim}])")
    return Embeddings(keys, QuantizedVectors(vectors, scale), fallback)
