"""Size and digest of a file: what a manifest records, to recognize the file by."""

import stat
from dataclasses import dataclass
from pathlib import Path

import xxhash

from sparsegroup.artifact.validation import Count

_BLOCK = 8 << 20


@dataclass(frozen=True)
class FileFacts:
    """Size of a file, and XXH3_64 of its bytes as 16 hexadecimal digits."""

    bytes: Count
    xxh3_64: str


def facts_of(path: Path) -> FileFacts:
    """The facts of a file as it is now."""
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
    digest, block = xxhash.xxh3_64(), bytearray(_BLOCK)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(memoryview(block)[:count])
    return digest.hexdigest()
