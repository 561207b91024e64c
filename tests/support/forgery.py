"""Forged files: every field of a valid one changed in every way, with ids and checksums made right again."""

import copy
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from sparsegroup.artifact.manifest import digest, facts_of
from sparsegroup.serving.manifest import ExportManifest

Document = Any
Place = tuple[Any, ...]

NUMBERS = [-1, 0, 1, 1.5, 1 << 31, 1 << 63, 1 << 70, 1e308, float("nan"), float("inf")]
OTHERS = [None, True, "", "x", "../x", [], {}, [[1, [2]]], {"a": 1}, "y" * 100_000]
PLAIN = [
    {"__tensor__": "x"},
    {"__number__": "nan"},
    {"__tuple__": [1]},
    {"__items__": [[1, 2]]},
    {"__dtype__": "float32"},
]
"""What stands for something else in the state of a checkpoint."""

DTYPES = {"I64": "<i8", "I32": "<i4", "U8": "u1", "F64": "<f8", "F32": "<f4", "F16": "<f2", "BOOL": "?"}
FEW = 3
"""Items of a list that are forged, and as many of a mapping of many alike."""


def places(content: Document, path: Place = ()) -> Iterator[Place]:
    """Where something is in a document; of lists the first few items and the last."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(content, dict):
        inner = list(content.items())
    elif isinstance(content, list):
        inner = [(at, item) for at, item in enumerate(content) if at < FEW or at == len(content) - 1]
    for name, item in inner:
        yield (*path, name)
        yield from places(item, (*path, name))


def at(document: Document, place: Place) -> Any:
    for name in place:
        document = document[name]
    return document


def forged_documents(document: Document) -> Iterator[tuple[str, Callable[[], Document]]]:
    """What is forged, and what makes the forged document."""

    def replaced(place: Place, value: Any) -> Callable[[], Document]:
        def make() -> Document:
            whole = copy.deepcopy(document)
            at(whole, place[:-1])[place[-1]] = copy.deepcopy(value)
            return whole

        return make

    def deleted(place: Place) -> Callable[[], Document]:
        def make() -> Document:
            whole = copy.deepcopy(document)
            del at(whole, place[:-1])[place[-1]]
            return whole

        return make

    def added(place: Place) -> Callable[[], Document]:
        def make() -> Document:
            whole = copy.deepcopy(document)
            at(whole, place)["unknown"] = 1
            return whole

        return make

    for value in (None, 3, "x", [], {}, [1]):
        yield f"the whole = {value!r}", lambda value=value: value
    yield "the whole has more", added(())
    for place in places(document):
        name, value = ".".join(map(str, place)), at(document, place)
        yield f"{name} deleted", deleted(place)
        near = [value + 1, value - 1, value * 2] if type(value) in (int, float) else []
        more = [value * 2] if isinstance(value, list) and value else []
        for other in [*NUMBERS, *OTHERS, *PLAIN, *near, *more]:
            yield f"{name} = {repr(other)[:40]}", replaced(place, other)
        if isinstance(value, dict):
            yield f"{name} has more", added(place)


def write_sealed(path: Path, document: Document) -> None:
    """Write a manifest with the id, if it is an export's, and the checksum that its content asks for."""
    if isinstance(document, dict):
        document.pop("checksum", None)
        if document.get("format") == "export":
            document["id"] = _export_id(document)
        document["checksum"] = digest(document)
    path.write_text(json.dumps(document))


def _export_id(document: Document) -> Any:
    """The id that follows from the content, where it can be told."""
    content = {name: value for name, value in document.items() if name not in ("format", "version")}

    class Unchecked(ExportManifest):
        def check(self) -> None:
            pass

    try:
        return Unchecked.from_plain(content).expected_id()
    except (ValueError, KeyError, TypeError, AttributeError):
        return document.get("id")


def seal_file(manifest: Path, name: str) -> None:
    """Make a manifest's facts of a file, and what it says of it elsewhere, those of the file as it is now."""
    document = json.loads(manifest.read_text())
    before, facts = document["files"][name], vars(facts_of(manifest.parent / name))

    def renewed(content: Any) -> Any:
        if content == before:
            return facts
        if isinstance(content, dict):
            return {key: renewed(item) for key, item in content.items()}
        return [renewed(item) for item in content] if isinstance(content, list) else content

    write_sealed(manifest, renewed(document))


def split(path: Path) -> tuple[dict[str, Any], bytes]:
    """Header and data of a safetensors file."""
    raw = path.read_bytes()
    length = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8 : 8 + length]), raw[8 + length :]


def joined(header: Document, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def array_of(header: dict[str, Any], data: bytes, name: str) -> np.ndarray[Any, Any]:
    begin, end = header[name]["data_offsets"]
    return np.frombuffer(data[begin:end], DTYPES[header[name]["dtype"]]).reshape(header[name]["shape"]).copy()


def forged_tensors(path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """What is forged in a safetensors file, and what makes its bytes: headers, lengths, order, values."""
    header, data = split(path)
    for what, make in forged_documents(header):
        yield f"header: {what}", lambda make=make: joined(make(), data)
    for length in (0, 1 << 20, 1 << 40, (1 << 64) - 1):
        yield f"header of {length} bytes", lambda length=length: struct.pack("<Q", length) + path.read_bytes()[8:]
    for name in [name for name in header if name != "__metadata__"]:
        array = array_of(header, data, name)
        for what, other in forged_arrays(array):
            yield f"{name}: {what}", lambda name=name, other=other: with_array(header, data, name, other)


def forged_arrays(array: np.ndarray[Any, Any]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Arrays that may stand in the place of one."""
    yield "none", array[:0] if array.ndim else array.reshape(1)[:0]
    yield "flat", array.reshape(-1)
    yield "one dimension more", array[..., None]
    yield "another dtype", array.astype(np.float32 if array.dtype.kind != "f" else np.int64)
    for what, value in (
        ("zeros", 0),
        ("ones", 1),
        ("the largest", _limit(array, 1)),
        ("the smallest", _limit(array, 0)),
    ):
        yield what, np.full_like(array, value)
    if array.dtype.kind == "f":
        yield "NaN", np.full_like(array, np.nan)
        yield "infinite", np.full_like(array, np.inf)
        yield "negative", -np.abs(array) - 1
    if array.ndim and len(array) > 1:
        yield "fewer", array[:-1]
        yield "more", np.concatenate([array, array[-1:]])
        yield "reversed", array[::-1].copy()
        yield "the first twice", np.concatenate([array[:1], array[:1], array[2:]])


def _limit(array: np.ndarray[Any, Any], last: int) -> Any:
    if array.dtype.kind == "b":
        return bool(last)
    info = np.finfo(array.dtype) if array.dtype.kind == "f" else np.iinfo(array.dtype)
    return (info.min, info.max)[last]


def with_array(header: dict[str, Any], data: bytes, name: str, other: np.ndarray[Any, Any]) -> bytes:
    """A safetensors file with another array in the place of one."""
    names = {str(np.dtype(code)): name for name, code in DTYPES.items()}
    made: dict[str, Any] = {}
    pieces: list[bytes] = []
    end = 0
    order = sorted((key for key in header if key != "__metadata__"), key=lambda key: header[key]["data_offsets"])
    for key in order:
        begin, stop = header[key]["data_offsets"]
        piece = other.tobytes() if key == name else data[begin:stop]
        dtype = names[str(other.dtype)] if key == name else header[key]["dtype"]
        shape = list(other.shape) if key == name else header[key]["shape"]
        made[key] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(piece)]}
        end += len(piece)
        pieces.append(piece)
    if "__metadata__" in header:
        made["__metadata__"] = header["__metadata__"]
    return joined(made, b"".join(pieces))
