"""`checkpoint.json`: what a checkpoint holds, and how to tell that it is whole."""

import json
import platform
import re
import stat
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import xxhash

from sparsegroup.artifact import disk
from sparsegroup.artifact.tensor_file import FileFacts
from sparsegroup.checkpoint.checkpoint_error import CheckpointError
from sparsegroup.table.table_file import TableFacts

MANIFEST = "checkpoint.json"
FORMAT = 1


@dataclass(frozen=True)
class CheckpointManifest:
    """What a checkpoint holds.

    Attributes:
        name: Of its folder.
        step: Of the training.
        written: Date and time, ISO 8601.
        versions: Of Python, this package and torch.
        parent: Name and id of the checkpoint whose tables' rows this one changes; None where it holds all of them.
        files: Name → what it must be.
        tables: Name of the file → where its table is in the model, and what is to be known of it.
        state: All the rest, as `as_plain` makes it.
        id: XXH3_64 of all of the above but the name; two checkpoints with the same one are the same.
        format: Of the folder.
    """

    name: str
    step: int
    written: str
    versions: Mapping[str, str]
    parent: tuple[str, str] | None
    files: Mapping[str, FileFacts]
    tables: Mapping[str, tuple[str, TableFacts]]
    state: Any
    id: str = ""
    format: int = FORMAT

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(facts.bytes for facts in self.files.values())


def versions() -> dict[str, str]:
    """Those that a checkpoint records."""
    return {"python": platform.python_version(), **{name: version(name) for name in ("sparsegroup", "torch")}}


def write_manifest(folder: Path, manifest: CheckpointManifest) -> CheckpointManifest:
    """Write it, and return it with its id."""
    content = asdict(manifest)
    del content["name"], content["id"]
    content = json.loads(json.dumps(content, allow_nan=False))  # tuples are lists when it is read
    id = _id(content)
    text = json.dumps({**content, "id": id}, indent=1) + "\n"
    with (folder / MANIFEST).open("wb", buffering=0) as file:
        disk.write(file, text.encode())
    disk.sync(folder / MANIFEST)
    return replace(manifest, id=id)


def _id(content: Mapping[str, Any]) -> str:
    return xxhash.xxh3_64_hexdigest(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


def read_manifest(folder: Path) -> CheckpointManifest:
    """The manifest of a checkpoint.

    Raises:
        CheckpointError: There is none, or a damaged one, or one of another version.
    """
    path = folder / MANIFEST
    if not path.is_file():
        raise CheckpointError(f"{folder}: no checkpoint ({MANIFEST} is missing)")
    try:
        content = json.loads(path.read_bytes())
        if content["format"] != FORMAT:
            raise CheckpointError(f"{path}: format {content['format']!r}; this version of sparsegroup reads {FORMAT}")
        id = content.pop("id")
        if id != _id(content):
            raise CheckpointError(f"{path}: damaged (its checksum does not match)")
        parent = content["parent"]
        return _checked(
            CheckpointManifest(
                name=folder.name,
                step=content["step"],
                written=content["written"],
                versions=content["versions"],
                parent=None if parent is None else (parent[0], parent[1]),
                files={name: FileFacts(**facts) for name, facts in content["files"].items()},
                tables={name: (where, TableFacts(**facts)) for name, (where, facts) in content["tables"].items()},
                state=content["state"],
                id=id,
            )
        )
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: damaged ({error})") from error


def _checked(manifest: CheckpointManifest) -> CheckpointManifest:
    """A manifest that names files of its own folder only, and counts what can be counted.

    Raises:
        ValueError: Another one.
    """
    parent = () if manifest.parent is None else manifest.parent
    _expect(all(isinstance(text, str) for text in (manifest.written, *parent)), "texts")
    _expect(all(isinstance(text, str) for item in manifest.versions.items() for text in item), "versions")
    _expect(_is_count(manifest.step), "step")
    for name in (*parent[:1], *manifest.files):
        _expect(_PLAIN.fullmatch(name), f"{name!r} as a name")
    for name, facts in manifest.files.items():
        _expect(_is_count(facts.bytes) and isinstance(facts.xxh3_64, str), f"facts of {name}")
    _expect(manifest.tables.keys() <= manifest.files.keys(), "tables without files")
    for name, (where, of_table) in manifest.tables.items():
        _expect(isinstance(where, str) and of_table.is_possible(), f"facts of {name}")
    return manifest


_PLAIN = re.compile(r"[^./\\\0][^/\\\0]*")


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def _expect(holds: object, what: str) -> None:
    if not holds:
        raise ValueError(f"impossible {what}")


def check_files(folder: Path, manifest: CheckpointManifest) -> None:
    """Compare every file with its size and checksum.

    Raises:
        CheckpointError: One is missing or differs.
    """
    for name, facts in manifest.files.items():
        path = folder / name
        try:
            about = path.stat()
            size = about.st_size
            if not stat.S_ISREG(about.st_mode):
                raise CheckpointError(f"{path}: damaged (no file)")
            if size != facts.bytes:
                raise CheckpointError(f"{path}: damaged ({size:,} bytes, {facts.bytes:,} were written)")
            if disk.checksum(path) != facts.xxh3_64:
                raise CheckpointError(f"{path}: damaged (its checksum does not match)")
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read ({error.strerror})") from error
