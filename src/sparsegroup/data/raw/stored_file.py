"""Where the bytes of a raw file lie: on a disk, or in any store that pyarrow or fsspec opens."""

import errno
import lzma
import posixpath
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as fs

from sparsegroup.data.local_files import LOCAL, on_disk
from sparsegroup.data.log_errors import ClickLogError

_CODECS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".lz4": "lz4"}
COMPRESSED = (*_CODECS, ".xz")
"""What the names of compressed texts end with."""


@dataclass(frozen=True)
class StoredFile:
    """A file of a file system.

    Attributes:
        filesystem: The file system.
        path: The file's path in it.
        source: The file as the user would name it, for messages.
    """

    filesystem: fs.FileSystem
    path: str
    source: str

    @classmethod
    def at(cls, path: "StoredFile | str | Path") -> "StoredFile":
        """A file of this machine, or one that is known already."""
        return path if isinstance(path, StoredFile) else cls(LOCAL, on_disk(path), str(path))

    @classmethod
    def of_info(cls, filesystem: fs.FileSystem, info: fs.FileInfo, source: str) -> "StoredFile":
        """A file that has been found, whose `facts` are known then."""
        stored = cls(filesystem, info.path, source)
        stored.__dict__["facts"] = _facts(info, source)
        return stored

    def __str__(self) -> str:
        return self.source

    @property
    def name(self) -> str:
        """The last part of the path."""
        return posixpath.basename(self.path)

    @property
    def suffix(self) -> str:
        """What the name ends with, from the last dot on."""
        return posixpath.splitext(self.path)[1]

    @property
    def is_compressed(self) -> bool:
        """Whether the bytes are those of a compressed text."""
        return self.suffix in COMPRESSED

    @cached_property
    def facts(self) -> tuple[int, int]:
        """Size in bytes and time of the last change in ns since 1970 (0 where none is known), when first asked.

        Raises:
            FileNotFoundError, IsADirectoryError: There is no such file.
            ClickLogError: It is a pipe or a device.
        """
        return _facts(self.filesystem.get_file_info(self.path), self.source)

    def size_now(self) -> int:
        """Size in bytes.

        Raises:
            FileNotFoundError, IsADirectoryError: There is no such file.
        """
        return _facts(self.filesystem.get_file_info(self.path), self.source)[0]

    def open_bytes(self) -> Any:
        """A stream of the bytes as they lie there; it can seek.

        Raises:
            FileNotFoundError, IsADirectoryError: There is no such file.
            ClickLogError: It is a pipe or a device.
        """
        _ = self.facts  # opening a pipe would wait for whoever writes into it
        try:
            return self.filesystem.open_input_file(self.path)
        except OSError:
            self.size_now()  # says it better, if there is no such file
            raise

    def open_text(self) -> Any:
        """A binary stream of the text, uncompressed; it can seek unless the file `is_compressed`.

        Raises:
            FileNotFoundError, IsADirectoryError: There is no such file.
        """
        stream = self.open_bytes()
        if self.suffix == ".xz":  # the one compression that Arrow does not know
            return lzma.open(stream, "rb")
        return pa.CompressedInputStream(stream, _CODECS[self.suffix]) if self.is_compressed else stream


def _facts(info: fs.FileInfo, source: str) -> tuple[int, int]:
    if info.type == fs.FileType.Directory:
        raise IsADirectoryError(errno.EISDIR, "is a directory, not a click log", source)
    if info.type == fs.FileType.NotFound:
        raise FileNotFoundError(errno.ENOENT, "no such file", source)
    if info.type != fs.FileType.File:
        raise ClickLogError(f"{source}: is a pipe or a device, and a log is read more than once; write a file first")
    return info.size or 0, info.mtime_ns or 0


@contextmanager
def named(uri: str) -> Iterator[None]:
    """What a store says is wrong, with the URI before it."""
    try:
        yield
    except ClickLogError:
        raise
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "no such file", uri) from error
    except (OSError, ValueError, ImportError) as error:
        raise ClickLogError(f"{uri}: {error}") from error


def open_filesystem(scheme: str, place: str, query: str) -> tuple[fs.FileSystem, str]:
    """The file system of a URI and the path of its root in it: pyarrow's own, or else fsspec's.

    Args:
        scheme: Such as "s3".
        place: What follows `://` up to the next slash, such as a bucket.
        query: What follows the question mark, pyarrow's options: `region=…&endpoint_override=…`.

    Raises:
        ImportError: A package is missing, which the message names.
        OSError, ValueError: None opens it.
    """
    uri = f"{scheme}://{place}"
    try:
        filesystem, root = fs.FileSystem.from_uri(f"{uri}?{query}" if query else uri)
        return filesystem, root.rstrip("/")
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        if "filesystem type" not in str(error) and "built" not in str(error):  # neither unknown nor left out
            raise
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise ImportError(
            f"pyarrow does not open {scheme}://; fsspec may, with its package for it: pip install fsspec"
        ) from error
    filesystem, root = url_to_fs(uri)  # its ImportError names the package to install
    return fs.PyFileSystem(fs.FSSpecHandler(filesystem)), root.rstrip("/")
