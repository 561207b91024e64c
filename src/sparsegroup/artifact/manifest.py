"""The file of a folder that says what the folder holds: the same header in all formats, then what a format adds.

A manifest is a JSON object. Its header:

- `format`: name of the format, such as "checkpoint".
- `version`: of the format.
- `written_by`: the package that wrote it, with its version.
- `id`: names this folder in folders that build on it.
- `parent`: `id` and `path` of the folder that this one builds on, the path as seen from this one; or null.
- `files`: name of each other file → its size and XXH3_64.
- `checksum`: XXH3_64 of all the rest as JSON with sorted keys, no spaces, and letters beyond ASCII escaped.
"""

import hashlib
import json
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

import xxhash
from pydantic import AfterValidator

from sparsegroup.artifact import folder as disk
from sparsegroup.artifact.validation import STRICT, Count, shortened, validated


@cache
def version(package: str) -> str:
    """The version of an installed package, which takes milliseconds to read from disk."""
    return metadata.version(package)


@dataclass(frozen=True)
class FileFacts:
    """Size of a file, and XXH3_64 of its bytes as 16 hexadecimal digits."""

    bytes: Count
    xxh3_64: str


def facts_of(path: Path) -> FileFacts:
    """The facts of a file at this moment."""
    return FileFacts(path.stat().st_size, _checksum(path))


def facts_of_files(folder: Path) -> dict[str, FileFacts]:
    """The facts of all files in a folder, by name."""
    return {path.name: facts_of(path) for path in sorted(folder.iterdir())}


def check_size(path: Path, expected: FileFacts, error: type[ValueError]) -> None:
    """Raise `error`, which names the file, if it is missing or has another size; its bytes are not read."""
    try:
        about = path.stat()
    except OSError as cause:
        raise error(f"{path}: missing or unreadable ({cause.strerror})") from cause
    if not stat.S_ISREG(about.st_mode):
        raise error(f"{path}: damaged (it is no file)")
    if about.st_size != expected.bytes:
        raise error(f"{path}: damaged ({about.st_size:,} bytes, {expected.bytes:,} were written)")


def check_file(path: Path, expected: FileFacts, error: type[ValueError]) -> None:
    """Raise `error`, which names the file, if it is missing or differs in size or digest."""
    check_size(path, expected, error)
    try:
        found = _checksum(path)
    except OSError as cause:
        raise error(f"{path}: missing or unreadable ({cause.strerror})") from cause
    if found != expected.xxh3_64:
        raise error(f"{path}: damaged (its checksum is {found}, {expected.xxh3_64} was written)")


def _checksum(path: Path) -> str:
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, xxhash.xxh3_64).hexdigest()


Plain = dict[str, Any]
"""JSON: texts, numbers, None, and lists and mappings of them."""

Migration = Callable[[Plain], Plain]
"""Turns a manifest's content of one version into that of the next; raises ValueError, KeyError or TypeError."""

_PLAIN_NAME = re.compile(r"[^./\\\0][^/\\\0]*")


def _plain_name(name: str) -> str:
    if not _PLAIN_NAME.fullmatch(name):
        raise ValueError(f"impossible {name!r} as a name")
    return name


FileName = Annotated[str, AfterValidator(_plain_name)]
"""Name of a file in the folder, and nowhere else."""


@dataclass(frozen=True)
class Parent:
    """The folder that another one builds on: the id in its manifest, and its path as seen from the other one."""

    id: str
    path: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What every folder says of itself. A format is a subclass with more attributes, which JSON can hold.

    Their annotations say which values are valid; `check` compares them with one another.
    """

    # names this folder in folders that build on it; "" until it is written, then a digest of all the rest unless the
    # format gives another
    id: str = ""
    parent: Parent | None = None  # the folder that this one builds on, or None
    files: Mapping[FileName, FileFacts] = field(default_factory=dict)  # name of each other file → its size and digest
    # the package that wrote it, with its version
    written_by: str = field(default_factory=lambda: f"sparsegroup {version('sparsegroup')}")

    HEADER: ClassVar = ("id", "parent", "files", "written_by")
    __pydantic_config__: ClassVar = STRICT

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(facts.bytes for facts in self.files.values())

    def as_plain(self) -> Plain:
        """What the format adds to the header, as JSON."""
        return {name: value for name, value in asdict(self).items() if name not in self.HEADER}

    @classmethod
    def from_plain(cls, content: Plain) -> Self:
        """The manifest with the header and the result of `as_plain`; ValueError, which names the field, if invalid."""
        manifest = validated(cls, content)
        manifest.check()
        return manifest

    def check(self) -> None:
        """Raise ValueError, which names the field, if attributes contradict each other."""

    def check_parent(self, parent: Self) -> None:
        """Raise ValueError if a folder with this manifest cannot build on one with that manifest."""

    def check_files(self, folder: Path, error: type[ValueError], *names: str) -> None:
        """Raise `error`, which names the file, if one (of `names`, if any are given) is missing or differs."""
        for name in names or self.files:
            if name in self.files:
                check_file(folder / name, self.files[name], error)


AnyManifest = TypeVar("AnyManifest", bound=Manifest)


@dataclass(frozen=True)
class FolderFormat(Generic[AnyManifest]):
    """A format of folders. A folder is of the format when the manifest's file is there, which is written last.

    To change a format: raise `version`, and give `migrations` a function from the last version's content to the new
    one's. All older folders are then read through the functions between.
    """

    name: str  # the format's name in the manifest
    file: str  # name of the manifest's file
    version: int  # the one that is written
    manifest: type[AnyManifest]  # class of the manifest
    error: type[ValueError]  # class of the errors
    missing: str  # what a folder without a manifest is called in messages, such as "no checkpoint"
    # version → what turns its content into that of the next
    migrations: Mapping[int, Migration] = field(default_factory=dict)

    def is_in(self, folder: Path) -> bool:
        """Whether the folder has a manifest."""
        return (folder / self.file).is_file()

    def write(self, folder: Path, manifest: AnyManifest) -> AnyManifest:
        """Complete a folder; returns the manifest as it will be read, with its id. An OSError leaves no manifest."""
        manifest, text = self.encoded(manifest)

        def write_text(path: Path) -> None:
            with path.open("wb", buffering=0) as file:
                disk.write(file, text)

        disk.write_atomically(folder / self.file, write_text)
        return manifest

    def encoded(self, manifest: AnyManifest) -> tuple[AnyManifest, bytes]:
        """The manifest as it will be read, with its id, and the content of its file."""
        document: Plain = {
            "format": self.name,
            "version": self.version,
            "written_by": manifest.written_by,
            "parent": None if manifest.parent is None else asdict(manifest.parent),
            "files": {name: asdict(facts) for name, facts in manifest.files.items()},
            **manifest.as_plain(),
        }
        document = json.loads(json.dumps(document, allow_nan=False))  # tuples are lists when it is read
        manifest = replace(manifest, id=manifest.id or digest(document))
        document["id"] = manifest.id
        text = json.dumps({**document, "checksum": digest(document)}, indent=1, allow_nan=False) + "\n"
        return manifest, text.encode()

    def read(self, folder: Path) -> AnyManifest:
        """The manifest of a folder, migrated to this version.

        Raises the format's `error`, which names the file, if there is none, or it is damaged or of a newer version.
        """
        path = folder / self.file
        if not path.is_file():
            raise self.error(f"{folder}: {self.missing} ({self.file} is missing)")
        try:
            content = path.read_bytes()
        except OSError as error:
            raise self.error(f"{path}: cannot be read ({error.strerror})") from error
        return self.decoded(path, content)

    def decoded(self, path: object, content: bytes) -> AnyManifest:
        """The manifest in the content of a file; `path` is its name in errors."""
        try:
            return self._parsed(path, json.loads(content))
        except KeyError as error:
            raise self.error(f"{path}: damaged ({error.args[0]} is missing)") from error
        except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            if isinstance(error, self.error):
                raise
            raise self.error(f"{path}: damaged ({error})") from error

    def _parsed(self, path: object, document: Any) -> AnyManifest:
        if not isinstance(document, dict):
            raise ValueError(f"it is no JSON object, but {type(document).__name__}")
        self._check_version(path, document)
        if document.pop("checksum") != digest(document):
            raise ValueError("its checksum is not that of its content")
        for earlier in range(document["version"], self.version):
            document = self.migrations[earlier](document)
        for name in ("format", "version"):
            document.pop(name, None)
        if missing := [name for name in self.manifest.HEADER if name not in document]:
            raise ValueError(f"{missing[0]} is missing")
        return self.manifest.from_plain(document)

    def _check_version(self, path: object, document: Plain) -> None:
        """Raise unless the manifest is of this format, in a version that can be read."""
        name, version = document.get("format"), document.get("version")
        if not isinstance(name, str):
            raise ValueError(f"impossible format {name!r}")
        if name != self.name:
            raise self.error(f"{path}: of a folder of the format {name!r}, {self.name!r} is expected")
        if type(version) is not int or version < 1:
            raise ValueError(f"impossible version {version!r}")
        if version > self.version:
            raise self.error(
                f"{path}: written by a newer version ({document.get('written_by')}) in version {version} of the "
                f"format, this sparsegroup reads up to version {self.version}: update sparsegroup"
            )


def digest(content: Any) -> str:
    """XXH3_64 of content as JSON with sorted keys and no spaces; 16 hexadecimal digits."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_64_hexdigest(text.encode())


def chain_of(folder: Path, of: FolderFormat[AnyManifest]) -> list[tuple[Path, AnyManifest]]:
    """All that a folder builds on, the first of which builds on none, and the folder last.

    Raises the format's error if a folder is missing, its manifest is damaged, or it is not the one that was built on.
    """
    chain = [(folder, of.read(folder))]
    places = {folder.resolve()}
    while (parent := chain[0][1].parent) is not None:
        after = chain[0][0]
        who = str(folder) if after == folder else f"{folder}: {after}"
        try:
            before = (after / parent.path).resolve()
            manifest = of.read(before)
        except of.error as error:
            raise of.error(f"{who}: builds on {before.name}, which cannot be read: {error}") from error
        except (OSError, ValueError) as error:  # too long, or characters that no name has
            why = error.strerror if isinstance(error, OSError) else error
            raise of.error(f"{after / of.file}: damaged (parent.path: {why}, got {shortened(parent.path)})") from error
        if manifest.id != parent.id:
            raise of.error(f"{who}: builds on {of.name} {parent.id}, but in {before} there is {manifest.id}")
        if before in places:
            raise of.error(f"{who}: builds on {before.name}, which builds on it")
        try:
            chain[0][1].check_parent(manifest)
        except ValueError as error:
            raise of.error(f"{who}: does not fit {before.name}, which it builds on: {error}") from error
        places.add(before)
        chain.insert(0, (before, manifest))
    return chain


def verified_chain(folder: Path, of: FolderFormat[AnyManifest]) -> list[tuple[Path, AnyManifest]]:
    """`chain_of` a folder; also raises if a file of one of them is missing or damaged."""
    chain = chain_of(folder, of)
    for path, manifest in chain:
        manifest.check_files(path, of.error)
    return chain
