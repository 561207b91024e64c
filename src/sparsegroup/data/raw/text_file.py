"""A text log of any size, plain or compressed, in chunks of whole lines."""

import errno
import lzma
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa

from sparsegroup.data.log_errors import ClickLogError

CHUNK_BYTES = 16 << 20
LONGEST_LINE = 1 << 20
"""Bytes. A longer line is a bad row: it is not kept in memory."""

_OPAQUE = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".parquet", ".arrow", ".feather")


@dataclass(frozen=True)
class Chunk:
    """Whole lines of a log.

    Attributes:
        line: Number of the first one, from 1.
        data: The bytes, ending with a newline.
        end_offset: Bytes of the uncompressed log up to the end of the chunk; of a columnar log, rows.
        end_line: Number of the line after the last one.
        frame: The rows of a columnar log, as `encode` takes them; then there are no bytes.
        too_long: The begin of a line of more than `LONGEST_LINE` bytes; then there are no others.
    """

    line: int
    data: bytes
    end_offset: int
    end_line: int
    frame: pl.DataFrame | None = None
    too_long: str | None = None


def open_stream(path: Path) -> Any:
    """A binary stream of the log, uncompressed (.gz, .bz2, .xz, .zst, .lz4, or none).

    Raises:
        FileNotFoundError, IsADirectoryError: No such file.
    """
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a directory, not a click log", str(path))
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, "no such file", str(path))
    if path.suffix == ".xz":  # the one compression that Arrow does not know
        return lzma.open(path, "rb")
    return pa.input_stream(str(path), compression="detect")


def uncompressed_size(paths: Sequence[Path]) -> int | None:
    """Bytes of all logs, or None if one is compressed (or columnar), so that only reading it would tell."""
    plain = [path for path in paths if path.suffix not in _OPAQUE]
    return sum(path.stat().st_size for path in plain if path.is_file()) if len(plain) == len(paths) else None


def first_line(path: Path) -> str:
    """The first line, without its end.

    Raises:
        ClickLogError: There is none.
    """
    with open_stream(path) as stream:
        begin = _read(stream, 1 << 16, path, 1)
    if not begin:
        raise ClickLogError(f"{path}: the file is empty")
    return begin.split(b"\n")[0].rstrip(b"\r").decode("utf-8", "replace").removeprefix("\ufeff")


def read_chunks(path: Path, offset: int = 0, line: int = 1, chunk_bytes: int = CHUNK_BYTES) -> Iterator[Chunk]:
    """The log from byte `offset`, where line `line` begins.

    Where a chunk ends depends only on where it begins, so that reading can go on after any chunk. A line of more than
    `LONGEST_LINE` bytes is a chunk by itself, without its bytes.

    Args:
        path: The file.
        offset: Bytes of the uncompressed log to leave out.
        line: Number of the line that begins there.
        chunk_bytes: About how many bytes a chunk has.

    Raises:
        ClickLogError: The compressed file is damaged or truncated, with the line up to which it could be read.
    """
    rest = b""
    with open_stream(path) as stream:
        _skip(stream, offset, path)
        while True:
            block = _read(stream, chunk_bytes - len(rest) % chunk_bytes, path, line)
            data = rest + block
            if not data:
                return
            size = offset + len(data)
            long = _first_long_line(data)
            if not block and long is None and b"\n" not in data:  # a last line without a newline
                data += b"\n"
            end = data.rfind(b"\n") + 1 if long is None else long
            if end:
                lines = data.count(b"\n", 0, end)
                yield Chunk(line, data[:end], min(offset + end, size), line + lines)
                offset, line = offset + end, line + lines
            rest = data[end:]
            if long is not None:
                begin = rest[:80].decode("utf-8", "replace")
                length, rest = _past_line(stream, rest, chunk_bytes, path, line)
                yield Chunk(line, b"", offset + length, line + 1, too_long=begin)
                offset, line = offset + length, line + 1


def _first_long_line(data: bytes) -> int | None:
    """Where the first line of more than `LONGEST_LINE` bytes begins, if there is one."""
    begin = 0
    while len(data) - begin > LONGEST_LINE:
        newline = data.rfind(b"\n", begin, begin + LONGEST_LINE + 1)
        if newline < 0:
            return begin
        begin = newline + 1
    return None


def _past_line(stream: Any, rest: bytes, size: int, path: Path, line: int) -> tuple[int, bytes]:
    """Bytes of the line that begins with `rest`, which are read and forgotten, and what follows it."""
    length = 0
    while (end := rest.find(b"\n") + 1) == 0 and rest:
        length += len(rest)
        rest = _read(stream, size, path, line)
    return length + end, rest[end:]


def _skip(stream: Any, offset: int, path: Path) -> None:
    if path.suffix in _OPAQUE:
        position = 0
        while position < offset and (block := _read(stream, min(offset - position, CHUNK_BYTES), path, 0)):
            position += len(block)
    else:
        position = min(path.stat().st_size, offset)
        stream.seek(position)
    if position < offset:
        raise ClickLogError(f"{path}: ends at byte {position:,}, before byte {offset:,} where to go on")


def _read(stream: Any, size: int, path: Path, line: int) -> bytes:
    try:
        data: bytes = stream.read(size)
        return data
    except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
        raise ClickLogError(f"{path}:{line}: damaged or truncated compressed file ({error})") from error
