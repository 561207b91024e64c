"""Forged files: every field of a valid one changed in every way, with ids and checksums made right again."""

import copy
import json
import struct
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open
from safetensors.numpy import load_file, save

from sparsegroup.artifact.manifest import digest, facts_of
from sparsegroup.data.prepared_log import spans_of
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

    def changed(place: Place, change: Callable[[Any], object]) -> Callable[[], Document]:
        def make() -> Document:
            whole = copy.deepcopy(document)
            change(at(whole, place))
            return whole

        return make

    for value in (None, 3, "x", [], {}, [1]):
        yield f"the whole = {value!r}", lambda value=value: value
    yield "the whole has more", changed((), lambda inner: inner.update(unknown=1))
    for place in places(document):
        name, value = ".".join(map(str, place)), at(document, place)
        *outer, key = place
        yield f"{name} deleted", changed((*outer,), lambda inner, key=key: inner.__delitem__(key))
        near = [value + 1, value - 1, value * 2] if type(value) in (int, float) else []
        more = [value * 2] if isinstance(value, list) and value else []
        for other in [*NUMBERS, *OTHERS, *PLAIN, *near, *more]:
            put = partial(_put, key=key, value=other)
            yield f"{name} = {repr(other)[:40]}", changed((*outer,), put)
        if isinstance(value, dict):
            yield f"{name} has more", changed(place, lambda inner: inner.update(unknown=1))


def _put(inner: Any, key: Any, value: Any) -> None:
    inner[key] = copy.deepcopy(value)


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

    spans = document.get("spans", {})
    if name in spans:  # of a part of a prepared log: as many as before, that end as these if they can
        size = facts["bytes"]
        ends = [*(min(span["end"], size) for span in spans[name][:-1]), size]
        spans[name] = [vars(span) for span in spans_of(manifest.parent / name, ends)]
    write_sealed(manifest, renewed(document))


def forged_tensors(path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """What is forged in a safetensors file, and what makes its bytes: headers, lengths, order, values."""
    raw = path.read_bytes()
    end = 8 + struct.unpack("<Q", raw[:8])[0]

    def with_header(make: Callable[[], Document]) -> bytes:
        text = json.dumps(make()).encode()
        return struct.pack("<Q", len(text)) + text + raw[end:]

    for what, make in forged_documents(json.loads(raw[8:end])):
        yield f"header: {what}", partial(with_header, make)
    for length in (0, 1 << 20, 1 << 40, (1 << 64) - 1):
        yield f"header of {length} bytes", lambda length=length: struct.pack("<Q", length) + raw[8:]
    for name, array in load_file(path).items():
        for what, other in forged_arrays(array):
            yield f"{name}: {what}", partial(with_array, path, name, other)


def with_array(path: Path, name: str, array: np.ndarray[Any, Any] | None) -> bytes:
    """The bytes of a safetensors file with another array in the place of one, or without it."""
    with safe_open(path, "numpy") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    del tensors[name]
    return save(tensors if array is None else {**tensors, name: np.ascontiguousarray(array)}, metadata)


def forged_arrays(array: np.ndarray[Any, Any]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Arrays that may stand in the place of one; those of another form first."""
    yield "none", array[:0] if array.ndim else array.reshape(1)[:0]
    yield "flat", array.reshape(-1)
    yield "one dimension more", array[..., None]
    yield "another dtype", array.astype(np.float32 if array.dtype.kind != "f" else np.int64)
    if array.ndim and len(array) > 1:
        yield "fewer", array[:-1]
        yield "more", np.concatenate([array, array[-1:]])
        yield "reversed", array[::-1]
        yield "the first twice", np.concatenate([array[:1], array[:1], array[2:]])
    values: list[Any] = [0, 1]
    if array.dtype.kind == "f":
        yield "negative", -np.abs(array) - 1
        values += [np.finfo(array.dtype).max, np.finfo(array.dtype).min, np.nan, np.inf]
    elif array.dtype.kind != "b":
        values += [np.iinfo(array.dtype).max, np.iinfo(array.dtype).min]
    for value in values:
        yield f"all {value}", np.full_like(array, value)
