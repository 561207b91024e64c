"""The file of a folder that says what the folder holds: the same header in all formats, then what a format adds.

A manifest is a JSON object. Its header:

- `format`: name of the format, such as "checkpoint".
- `version`: of the format.
- `written_by`: the package that wrote it, with its version.
- `id`: names this folder in those that build on it.
- `parent`: `id` and `path` of the folder that this one builds on, the path as seen from this one; or null.
- `files`: name of each other file → its size and XXH3_64.
- `checksum`: XXH3_64 of all the rest as JSON with sorted keys, no spaces, and letters beyond ASCII escaped.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Self, TypeVar

import xxhash
from pydantic import AfterValidator

from sparsegroup.artifact import disk
from sparsegroup.artifact.file_facts import FileFacts, check_file, facts_of
from sparsegroup.artifact.validation import STRICT, validated

Plain = dict[str, Any]
"""What JSON has: texts, numbers, None, and lists and mappings of them."""

Migration = Callable[[Plain], Plain]
"""Makes the content of a manifest of one version that of the next; raises ValueError, KeyError or TypeError."""

_PLAIN_NAME = re.compile(r"[^./\\\0][^/\\\0]*")


def _plain_name(name: str) -> str:
    if not _PLAIN_NAME.fullmatch(name):
        raise ValueError(f"impossible {name!r} as a name")
    return name


FileName = Annotated[str, AfterValidator(_plain_name)]
"""Name of a file in the folder, and nowhere else."""


@dataclass(frozen=True)
class Parent:
    """The folder that another one builds on.

    Attributes:
        id: The id in its manifest.
        path: Where it is, as seen from the other one; "/" separates.
    """

    id: str
    path: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What every folder says of itself. A format is a subclass with more attributes, which JSON can hold.

    Their annotations say what is taken for a folder of the format; `check` compares them with one another.

    Attributes:
        id: Names this folder in those that build on it; "" until it is written, then a digest of all the rest unless
            the format gives another.
        parent: The folder that this one builds on, or None.
        files: Name of each other file → what it must be.
        written_by: The package that wrote it, with its version.
    """

    id: str = ""
    parent: Parent | None = None
    files: Mapping[FileName, FileFacts] = field(default_factory=dict)
    written_by: str = field(default_factory=lambda: f"sparsegroup {version('sparsegroup')}")

    HEADER: ClassVar = ("id", "parent", "files", "written_by")
    __pydantic_config__: ClassVar = STRICT

    @property
    def bytes(self) -> int:
        """Size of all files together."""
        return sum(facts.bytes for facts in self.files.values())

    def as_plain(self) -> Plain:
        """What the format adds to the header, as JSON has it."""
        return {name: value for name, value in asdict(self).items() if name not in self.HEADER}

    @classmethod
    def from_plain(cls, content: Plain) -> Self:
        """The manifest with this content: the header's, and what `as_plain` gave.

        Raises:
            ValueError: The content is not of this format; the message names the field.
        """
        manifest = validated(cls, content)
        manifest.check()
        return manifest

    def check(self) -> None:
        """Raise ValueError, which names the field, unless all that it says goes together."""

    def check_parent(self, parent: Self) -> None:
        """Raise ValueError unless a folder with this manifest can build on one with that manifest."""

    def check_files(self, folder: Path, error: type[ValueError], *names: str) -> None:
        """Compare files with their size and digest: those of the names, or all.

        Raises:
            error: One is missing or differs. The message names the file.
        """
        for name in names or self.files:
            if name in self.files:
                check_file(folder / name, self.files[name], error)


AnyManifest = TypeVar("AnyManifest", bound=Manifest)


@dataclass(frozen=True)
class FolderFormat(Generic[AnyManifest]):
    """A format of folders. A folder is one of it when the manifest's file is there, which is written last.

    To change a format: raise `version`, and give `migrations` a function from the last version's content to the new
    one's. All older folders are then read through the functions between.

    Attributes:
        name: What the manifest calls it.
        file: Name of the manifest's file.
        version: The one that is written.
        manifest: Class of the manifest.
        error: Class of the errors.
        missing: Says, given a folder without a manifest, what the folder is instead.
        migrations: Version → what makes its content that of the next.
    """

    name: str
    file: str
    version: int
    manifest: type[AnyManifest]
    error: type[ValueError]
    missing: Callable[[Path], str]
    migrations: Mapping[int, Migration] = field(default_factory=dict)

    def is_in(self, folder: Path) -> bool:
        """Whether the folder has a manifest."""
        return (folder / self.file).is_file()

    def write(self, folder: Path, manifest: AnyManifest) -> AnyManifest:
        """Complete a folder.

        Returns:
            The manifest as it is read again: with its id.

        Raises:
            OSError: The disk is full, say. No manifest is there then.
        """
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
        disk.write_atomically(folder / self.file, partial(_write, text=text))
        return manifest

    def read(self, folder: Path) -> AnyManifest:
        """The manifest of a folder; one of an older version as this one has it.

        Raises:
            error: There is none, it is damaged, or a newer version has written it. The message names the file.
        """
        path = folder / self.file
        if not path.is_file():
            raise self.error(f"{folder}: {self.missing(folder)} ({self.file} is missing)")
        try:
            return self._parsed(path, json.loads(path.read_bytes()))
        except OSError as error:
            raise self.error(f"{path}: cannot be read ({error.strerror})") from error
        except KeyError as error:
            raise self.error(f"{path}: damaged ({error.args[0]} is missing)") from error
        except (ValueError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
            if isinstance(error, self.error):
                raise
            raise self.error(f"{path}: damaged ({error})") from error

    def _parsed(self, path: Path, document: Any) -> AnyManifest:
        if not isinstance(document, dict):
            raise ValueError(f"it is no JSON object, but {type(document).__name__}")
        version = self._version(path, document)
        if document.pop("checksum") != digest(document):
            raise ValueError("its checksum is not that of its content")
        for earlier in range(version, self.version):
            document = self.migrations[earlier](document)
        for name in ("format", "version"):
            document.pop(name, None)
        if missing := [name for name in self.manifest.HEADER if name not in document]:
            raise ValueError(f"{missing[0]} is missing")
        return self.manifest.from_plain(document)

    def _version(self, path: Path, document: Plain) -> int:
        """The version of the format that wrote a manifest.

        Raises:
            error: Another format's, or one that this package does not read.
        """
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
        return version


def digest(content: Any) -> str:
    """XXH3_64 of content as JSON with sorted keys and no spaces; 16 hexadecimal digits."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_64_hexdigest(text.encode())


def facts_of_files(folder: Path) -> dict[str, FileFacts]:
    """The facts of all files in a folder, by name."""
    return {path.name: facts_of(path) for path in sorted(folder.iterdir())}


def _write(path: Path, text: str) -> None:
    with path.open("wb", buffering=0) as file:
        disk.write(file, text.encode())
