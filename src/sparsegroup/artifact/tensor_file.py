"""safetensors files, which the library reads; tensors that are never whole in memory are written piece by piece."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import xxhash
from safetensors import SafetensorError
from safetensors.torch import load_file, save, save_file
from torch import Tensor

from sparsegroup.artifact import folder
from sparsegroup.artifact.manifest import FileFacts, facts_of

NAMES = {
    np.dtype(np.int64): "I64",
    np.dtype(np.int32): "I32",
    np.dtype(np.uint8): "U8",
    np.dtype(np.float64): "F64",
    np.dtype(np.float32): "F32",
}
"""safetensors' names of dtypes."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileFacts:
    """Write contiguous tensors on the CPU, which may share memory."""
    try:
        with folder.name_errors(path):
            save_file(_separate(tensors), path)
    except SafetensorError as error:
        raise OSError(f"{path}: cannot be written ({error})") from error
    return facts_of(path)


def facts_of_tensors(tensors: Mapping[str, Tensor]) -> FileFacts:
    """The facts of the file that `write_tensors` would write; it is in memory for a moment."""
    content = save(_separate(tensors))
    return FileFacts(len(content), xxhash.xxh3_64_hexdigest(content))


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        at = tensor.untyped_storage().data_ptr()
        separate[name] = tensor.clone() if at in seen else tensor
        seen.add(at)
    return separate


def read_tensors(path: Path, error: type[ValueError]) -> dict[str, Tensor]:
    """The tensors of a file, by name, on the CPU; raises `error`, which names the file, if it is damaged."""
    try:
        tensors: dict[str, Tensor] = load_file(path)
    except (OSError, SafetensorError) as cause:
        raise error(f"{path}: damaged ({cause})") from cause
    return tensors


class TensorWriter:
    """Writes one file; leaving the `with` block raises if fewer or more bytes were written than announced.

    `tensors` are name → dtype and shape, in the order of writing; wide dtypes first, so that all are aligned.
    """

    def __init__(
        self,
        path: Path,
        tensors: Mapping[str, tuple[np.dtype[Any], Sequence[int]]],
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self._path = path
        header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
        end = 0
        for name, (dtype, shape) in tensors.items():
            begin, end = end, end + math.prod(shape) * dtype.itemsize
            header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self._expected = 8 + len(text) + end
        self._digest = xxhash.xxh3_64()
        self._bytes = 0
        self._file = path.open("wb", buffering=0)
        try:
            self.write(len(text).to_bytes(8, "little") + text)
        except OSError:
            self._file.close()
            raise

    def write(self, data: Any) -> None:
        """Write the next bytes of the tensors, from anything with a buffer."""
        view = memoryview(data).cast("B") if len(memoryview(data)) else memoryview(b"")
        folder.write(self._file, view)
        self._digest.update(view)
        self._bytes += len(view)

    @property
    def facts(self) -> FileFacts:
        """The facts of the file as written."""
        return FileFacts(self._bytes, self._digest.hexdigest())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._file.close()
        if kind is None and self._bytes != self._expected:
            raise RuntimeError(f"{self._path}: {self._bytes:,} bytes written, {self._expected:,} announced")
