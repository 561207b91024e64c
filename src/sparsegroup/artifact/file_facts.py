"""What is written down of a file, to know it again."""

import stat
from dataclasses import dataclass
from pathlib import Path

import xxhash

from sparsegroup.artifact.validation import Count

_BLOCK = 8 << 20


@dataclass(frozen=True)
class FileFacts:
    """Size and digest of a file.

    Attributes:
        bytes: Its size.
        xxh3_64: XXH3_64 of its bytes, 16 hexadecimal digits.
    """

    bytes: Count
    xxh3_64: str


def checksum(path: Path) -> str:
    """XXH3_64 of a file's bytes, 16 hexadecimal digits.

    Raises:
        OSError: The file cannot be read.
    """
    digest, block = xxhash.xxh3_64(), bytearray(_BLOCK)
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            digest.update(memoryview(block)[:count])
    return digest.hexdigest()


def facts_of(path: Path) -> FileFacts:
    """The facts of a file as it is now.

    Raises:
        OSError: The file cannot be read.
    """
    return FileFacts(path.stat().st_size, checksum(path))


def check_size(path: Path, expected: FileFacts, error: type[ValueError]) -> None:
    """Compare a file's size with what was written; nothing of it is read.

    Args:
        path: The file.
        expected: Its facts when it was written.
        error: The class of the error to raise.

    Raises:
        error: The file is missing, is no file, or has another size. The message names the file.
    """
    try:
        about = path.stat()
    except OSError as cause:
        raise error(f"{path}: missing or unreadable ({cause.strerror})") from cause
    if not stat.S_ISREG(about.st_mode):
        raise error(f"{path}: damaged (it is no file)")
    if about.st_size != expected.bytes:
        raise error(f"{path}: damaged ({about.st_size:,} bytes, {expected.bytes:,} were written)")


def check_file(path: Path, expected: FileFacts, error: type[ValueError]) -> None:
    """Compare a file's size and digest with what was written.

    Args:
        path: The file.
        expected: Its facts when it was written.
        error: The class of the error to raise.

    Raises:
        error: The file is missing or differs. The message names the file.
    """
    check_size(path, expected, error)
    try:
        found = checksum(path)
    except OSError as cause:
        raise error(f"{path}: missing or unreadable ({cause.strerror})") from cause
    if found != expected.xxh3_64:
        raise error(f"{path}: damaged (its checksum is {found}, {expected.xxh3_64} was written)")
