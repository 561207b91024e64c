"""Rows of files that grow and appear: a file, a folder, a pattern or a bucket's prefix."""

import logging
import os
import posixpath
import threading
import time
import zlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from sparsegroup.artifact.folder import name_errors
from sparsegroup.data.local_files import LOCAL, on_disk
from sparsegroup.data.raw.columnar import ColumnarFile
from sparsegroup.data.raw.files import (
    LINE,
    SAMPLE,
    BadRow,
    Chunk,
    LogPaths,
    RawFile,
    identified,
    listed,
    paths_of,
    shown,
)
from sparsegroup.data.raw.text import TextFile
from sparsegroup.data.schema import LogFormat
from sparsegroup.errors import ClickLogError
from sparsegroup.streaming.sources.source import BLOCK_BYTES, Away, Block, Source, StreamError, Texts, block_of

HEAD_BYTES = 32 << 20
"""Bytes of text among which the first rows are looked for."""

_UNFINISHED = (
    ".tmp",
    ".temp",
    ".part",
    ".partial",
    ".crdownload",
    ".download",
    ".filepart",
    ".inprogress",
    ".swp",
    "~",
)
"""Ends of names that writers give to files before they are complete."""
_OLD = 60.0
"""Seconds after which a file that has not changed is complete, or damaged."""
_MARK_BYTES = 64
_unreadable = (ClickLogError, OSError, pa.ArrowException)
_logger = logging.getLogger(__name__)


@dataclass
class _Followed:
    """A file, what was seen of it, and where reading it is."""

    name: str
    file: RawFile
    size: int = 0
    changed: int = 0
    """Time of the last change, in ns since 1970; 0 if unknown."""
    since: float = 0.0
    """When this size and time were seen first, on the monotonic clock."""
    offset: int = 0
    line: int = 1
    mark: int = 0
    """Of a text, a checksum of the bytes before `offset`; of another file, its size when it was first read."""
    is_done: bool = False
    """Whether a file that does not grow was read to its end."""
    is_checked: bool = False
    tried: tuple[int, int] | None = None
    """Size and time at which it could not be read."""
    is_within_line: bool = False
    """Whether `offset` is behind a last line without a newline, which was taken for a whole one."""

    @property
    def text(self) -> TextFile | None:
        """The file, if it is a text that may grow."""
        return self.file if isinstance(self.file, TextFile) and not self.file.is_compressed else None

    @property
    def entry(self) -> list[int]:
        """Where reading is, as the position has it."""
        return [self.offset, self.line, self.mark, int(self.is_done)]

    @property
    def waiting(self) -> int:
        """Bytes that are not read; all of a file that does not grow, until it is read to its end."""
        return max(self.size - self.offset, 0) if self.text else 0 if self.is_done else self.size

    def is_unchanged_for(self, seconds: float) -> bool:
        """Whether it has not changed for so long, as far as was seen, or for very long."""
        age = time.time() - self.changed / 1e9 if self.changed else 0.0
        return time.monotonic() - self.since >= seconds or age >= max(seconds, _OLD)


@dataclass
class _Reading:
    """A file that is open: the stream of a text, or the chunks of another file from `offset` on."""

    name: str
    size: int
    stream: Any = None
    chunks: Iterator[Chunk] | None = None
    offset: int = field(default=-1)


class FilesSource(Source):
    """Rows of files that grow and appear.

    Plain texts are followed as they grow, in whole lines. A last line without a newline is taken once the file has not
    changed for `settle` seconds; if the file grows in that line later, the rest of it is a bad row. Compressed texts
    are read once they have not changed for so long, Parquet and Arrow files once they have a footer. Files whose
    names begin with "." or "_" or end with `.tmp`, `.part`, `.crdownload` or the like are not read before they are
    renamed. A folder that does not exist yet is waited for. A store that cannot be reached is waited for once it was
    reached.

    Files are read in order, each as far as it went when they were listed, and then listed again. So a file that
    appears late is read when it is seen, and of several files that grow none waits for another's end.

    A position is {name: [offset, line, mark, is done]} for the files that were read and are still there; files that
    vanish are forgotten, unless all do. A file may not shrink or be replaced; a log that is rotated to another name
    is to be followed as a folder of files that keep their names.

    Args:
        log: What to follow, see `open_log`.
        sort: The order of files: "name" (numbers by value) or "time" (of the last change).
        settle: Seconds without a change after which a file is complete.
        every: Seconds between listings, at least; listings that take long are rarer.
        missing_columns: What to do about a file without a column that the model reads: stop with an "error", or read
            the column as "empty". A file without the label is always an error.
    """

    def __init__(
        self,
        log: LogPaths,
        *,
        sort: Literal["name", "time"] = "name",
        settle: float = 5.0,
        every: float = 1.0,
        missing_columns: Literal["error", "empty"] = "error",
    ) -> None:
        if sort not in ("name", "time"):
            raise StreamError(f"`sort` of files is name or time, got {sort!r}", "sort")
        if missing_columns not in ("error", "empty"):
            raise StreamError(
                f"`missing_columns` of files is error or empty, got {missing_columns!r}", "missing_columns"
            )
        self._log, self._sort, self._settle, self._every = log, sort, settle, every
        self._are_filled = missing_columns == "empty"
        self._reported: set[str] = set()
        self.name = shown(log)
        self._given = {on_disk(path) for path in paths_of(log)}
        self._paths = sorted(identified(log))
        self._is_one = len(paths_of(log)) == 1
        self._followed: dict[str, _Followed] = {}
        self._position: dict[str, list[int]] = {}
        self._queue: deque[_Followed] = deque()
        self._until: dict[str, int] = {}
        self._due = 0.0
        self._reading: _Reading | None = None
        self._away = Away(self.name, _logger)
        self._was_listed = False
        self._closed = threading.Event()
        self._format: LogFormat | None = None

    @property
    def identity(self) -> Mapping[str, Any]:
        """See `Source.identity`: the paths, from whatever folder they are named."""
        return {"files": self._paths}

    def open(self, format: LogFormat, position: Any = None) -> None:
        """See `Source.open`."""
        if position is not None and not isinstance(position, Mapping):
            raise StreamError(f"{self.name}: the position {position!r} is not one of files")
        self._format, self._due = format, 0.0
        self._position = {name: list(entry) for name, entry in (position or {}).items()}
        self._followed.clear()
        self._queue.clear()
        self._reading = None

    def read(self, timeout: float) -> Block | None:
        """See `Source.read`. The files are listed when all that was there has been read, once a second at most."""
        end = time.monotonic() + timeout
        while True:
            if not self._queue and time.monotonic() >= self._due:
                self._look()
            while self._queue:
                followed = self._queue[0]
                block = self._next_of(followed)
                if block is None or followed.offset >= self._until[followed.name]:
                    self._queue.popleft()
                if block is not None:
                    return block
            now = time.monotonic()
            if now >= end or self._closed.wait(max(min(end, self._due) - now, 0.0)):
                return None

    def again(self, span: Any) -> Block:
        """See `Source.again`."""
        name, offset, line, end, end_line = span
        if name not in self._followed:
            self._look()
        followed = self._followed.get(name)
        if followed is None:
            raise StreamError(f"{self.name}: {name} has vanished, and rows of it are to be read again; bring it back")
        source = followed.file.source
        if (followed.offset, followed.line) != (offset, line):
            followed.offset, followed.line, followed.mark, followed.is_done = offset, line, 0, False
            self._reading = None
        try:
            if not followed.is_checked:
                self._check(followed)
            if followed.text is not None:
                stream = self._stream(followed, end)
                if followed.is_within_line:
                    return self._rest_of_line(followed, end - offset, span)
                chunk = followed.text.lines_between(stream, self._format_of(followed), offset, end, line, BLOCK_BYTES)
            else:
                chunk = self._next_chunk(followed)
        except FileNotFoundError as error:
            raise StreamError(f"{source} has vanished, and rows of it are to be read again; bring it back") from error
        if chunk is None or (chunk.end_offset, chunk.end_line) != (end, end_line):
            raise StreamError(
                f"{source}: has changed since its lines {line:,} to {end_line - 1:,} were read, and they are to be "
                "read again; bring back the file that was there"
            )
        return self._block(followed, chunk, span)

    def lag(self) -> Mapping[str, float]:
        """Bytes and files that are not read, when they were listed last."""
        waiting = [followed.waiting for followed in list(self._followed.values())]
        return {"bytes": sum(waiting), "files": sum(size > 0 for size in waiting)}

    def close(self) -> None:
        """End a `read` that waits."""
        self._closed.set()
        self._reading = None

    # Which files there are

    def _look(self) -> None:
        """List the files, and queue those with something to read."""
        began = time.monotonic()
        found: dict[str, _Followed] = {}
        for file in self._listed():
            try:
                size, changed = file.facts
            except FileNotFoundError:  # since it was listed
                continue
            name = file.name if self._is_one else self._place_of(file)
            followed = self._followed.get(name) or self._first_seen(name, file)
            if (followed.size, followed.changed) != (size, changed):
                followed.since = time.monotonic()
                if not followed.is_checked:
                    followed.file = file
            followed.size, followed.changed = size, changed
            self._check_size(followed)
            found[name] = followed
        if found:  # of an empty folder, what was there may only be away
            for name in self._followed.keys() - found.keys():
                gone = self._followed[name]
                if gone.offset and _is_there(gone.file):  # without a byte in it
                    raise self._replaced(gone)
                if gone.waiting:
                    _logger.warning("%s has vanished with %s bytes that were not read", gone.file.source, gone.waiting)
            self._followed = found
            self._position = {name: entry for name, entry in self._position.items() if name in found}
        ready = [followed for followed in found.values() if followed.waiting]
        if self._sort == "time":
            ready.sort(key=lambda followed: followed.changed)  # names decide between equal ones
        self._queue = deque(ready)
        self._until = {followed.name: followed.size if followed.text else 1 << 62 for followed in ready}
        took = time.monotonic() - began
        self._due = began + self._every * max(1.0, 10 * took)

    def _place_of(self, file: RawFile) -> str:
        return os.path.realpath(file.path) if file.filesystem is LOCAL else file.source

    def _listed(self) -> list[RawFile]:
        try:
            files = listed(self._log, waits=True)
        except ClickLogError as error:
            if not self._was_listed or not isinstance(error.__cause__, OSError):
                raise
            self._away.gone(error.__cause__)
            return []
        self._away.back()
        self._was_listed = True
        return [file for file in files if file.path in self._given or not file.path.endswith(_UNFINISHED)]

    def _first_seen(self, name: str, file: RawFile) -> _Followed:
        """The file where the position has it."""
        followed = _Followed(name, file, since=time.monotonic())
        if entry := self._position.get(name):
            followed.offset, followed.line, followed.mark, is_done = entry
            followed.is_done = bool(is_done)
        return followed

    def _check_size(self, followed: _Followed) -> None:
        if followed.text is None:
            is_same = not followed.mark or followed.mark == followed.size
        else:
            is_same = followed.offset <= followed.size
        if not is_same:
            raise self._replaced(followed)

    def _replaced(self, followed: _Followed) -> StreamError:
        unit = "bytes" if isinstance(followed.file, TextFile) else "rows"
        return StreamError(
            f"{followed.file.source}: has shrunk or been replaced since its first {followed.offset:,} {unit} were "
            "read; bring it back, or give the new file another name"
        )

    # What is read of a file

    def _format_of(self, followed: _Followed) -> LogFormat:
        """The format; without a separator, the file's own is used."""
        assert self._format is not None, "open comes before read"
        if self._format.separator:
            return self._format
        return replace(self._format, separator=followed.file.head.separator or ",")

    def _check(self, followed: _Followed) -> None:
        """Raise ClickLogError unless the file has the columns of the format, or the missing ones can be empty."""
        file, format = followed.file, self._format_of(followed)
        if missing := file.missing_columns(format):
            names = ", ".join(map(repr, missing))
            if not self._are_filled:
                raise ClickLogError(
                    f"{file.source}:1: no column {names}; the columns are {', '.join(file.head.columns)}; with "
                    "`missing_columns` empty, its rows have no values there",
                    "missing_columns",
                )
            if not self._reported.issuperset(missing):
                _logger.warning("%s: no column %s; its rows count as missing there", file.source, names)
            self._reported.update(missing)
            file.add_missing(missing)
        file.check(format)
        followed.is_checked = True

    def _next_of(self, followed: _Followed) -> Block | None:
        """The next rows of a file, if there are any now."""
        try:
            chunk = self._next_lines(followed) if followed.text else self._next_chunk_when_complete(followed)
        except FileNotFoundError:  # the next listing says so
            self._reading = None
            return None
        except (ClickLogError, OSError) as error:
            if followed.file.filesystem is LOCAL or not isinstance(error.__cause__ or error, OSError):
                raise
            self._reading = None
            self._away.gone(error)
            return None
        if isinstance(chunk, Block) or chunk is None:
            return chunk
        span = [followed.name, followed.offset, followed.line, chunk.end_offset, chunk.end_line]
        return self._block(followed, chunk, span)

    def _block(self, followed: _Followed, chunk: Chunk, span: Any) -> Block:
        """The rows of a chunk, behind which the position moves."""
        texts = partial(_texts_of_chunk, followed.file, chunk, self._format_of(followed))
        return self._moved(followed, texts, chunk.end_offset, chunk.end_line, span)

    def _moved(self, followed: _Followed, texts: Texts, offset: int, line: int, span: Any) -> Block:
        followed.offset, followed.line = offset, line
        if followed.text is not None:
            followed.mark = _mark(self._before(followed))
        else:
            followed.mark = followed.size
        self._position = {**self._position, followed.name: followed.entry}
        return block_of(texts, self._format_of(followed), span, self._position, time.time(), followed.file.source)

    def _next_lines(self, followed: _Followed) -> Chunk | Block | None:
        """The next whole lines of a text."""
        text = followed.text
        assert text is not None
        stream = self._stream(followed, followed.size)
        if followed.is_within_line:
            return self._after_line(followed)
        takes_rest = followed.is_unchanged_for(self._settle)
        if not followed.is_checked:  # its header is there if a line is
            stream.seek(0)
            begin = stream.read(BLOCK_BYTES)
            if b"\n" not in begin and not takes_rest and len(begin) < BLOCK_BYTES:
                return None
            self._check(followed)
        format = self._format_of(followed)
        while True:
            chunk = text.lines_from(stream, format, followed.offset, followed.line, BLOCK_BYTES, takes_rest=takes_rest)
            if chunk is None or chunk.data:
                break
            followed.offset, followed.line = chunk.end_offset, chunk.end_line  # only a header
        if chunk is not None and takes_rest:
            stream.seek(chunk.end_offset - 1)
            followed.is_within_line = stream.read(1) != b"\n"
        return chunk

    def _stream(self, followed: _Followed, size: int) -> Any:
        """The open text, with `size` bytes at least; StreamError if it is not the one that was read before."""
        reading = self._reading
        if reading is None or reading.name != followed.name or reading.stream is None or reading.size < size:
            stream = followed.file.open_bytes()
            reading = self._reading = _Reading(followed.name, stream.size(), stream)
            before = self._before(followed)
            if followed.offset and followed.mark and _mark(before) != followed.mark:
                raise self._replaced(followed)
            followed.is_within_line = bool(before) and not before.endswith(b"\n")
        return reading.stream

    def _before(self, followed: _Followed) -> bytes:
        """The last bytes before the offset in the open text."""
        assert self._reading is not None
        stream, begin = self._reading.stream, max(followed.offset - _MARK_BYTES, 0)
        stream.seek(begin)
        data: bytes = stream.read(followed.offset - begin)
        return data

    def _after_line(self, followed: _Followed) -> Block | Chunk | None:
        """What has come after a last line without a newline: only that, or else a bad row, the rest of the line."""
        stream = self._stream(followed, followed.size)
        stream.seek(followed.offset)
        data: bytes = stream.read(BLOCK_BYTES + 1)
        end = data.find(b"\n") + 1
        if not end and len(data) <= BLOCK_BYTES:
            return None
        length = end or len(data)
        if not data[:length].strip(b"\r\n"):
            followed.offset, followed.is_within_line = followed.offset + length, False
            followed.mark = _mark(self._before(followed))
            self._position = {**self._position, followed.name: followed.entry}
            return self._next_lines(followed)
        span = [followed.name, followed.offset, followed.line, followed.offset + length, followed.line]
        return self._rest_of_line(followed, length, span)

    def _rest_of_line(self, followed: _Followed, length: int, span: Any) -> Block:
        stream = self._stream(followed, followed.offset + length)
        stream.seek(followed.offset)
        data: bytes = stream.read(length)
        reason = "the rest of a line that was taken for a whole one when it did not grow; write whole lines"
        bad = (followed.line - 1, reason, data[:SAMPLE].decode("utf-8", "replace").rstrip())
        followed.is_within_line = not data.endswith(b"\n")
        texts = partial(_no_rows, self._format_of(followed), bad)
        return self._moved(followed, texts, followed.offset + length, followed.line, span)

    def _next_chunk_when_complete(self, followed: _Followed) -> Chunk | None:
        """The next rows of a file that does not grow, once it is complete; none at its end."""
        is_shown_by_footer = isinstance(followed.file, ColumnarFile) or followed.file.filesystem is not LOCAL
        if not followed.offset and not is_shown_by_footer and not followed.is_unchanged_for(self._settle):
            return None
        now, is_old = (followed.size, followed.changed), followed.is_unchanged_for(_OLD)
        if followed.tried == now and not is_old:
            return None
        try:
            _ = followed.file.head
            if not followed.is_checked:
                self._check(followed)
            chunk = self._next_chunk(followed)
        except _unreadable as error:
            self._reading, followed.tried = None, now
            if isinstance(error, FileNotFoundError):
                raise
            if followed.is_checked or self._has_no_head(followed):
                if not is_old:
                    return None
                raise StreamError(
                    f"{error}; it has not changed for {_OLD:.0f} seconds: replace it or remove it"
                ) from error
            raise
        if chunk is None:
            followed.is_done, followed.mark = True, followed.size
            self._reading = None
            self._position = {**self._position, followed.name: followed.entry}
        return chunk

    def _has_no_head(self, followed: _Followed) -> bool:
        """Whether the error was the file's damage, and not its columns."""
        return "head" not in vars(followed.file)

    def _next_chunk(self, followed: _Followed) -> Chunk | None:
        """The next chunk with rows of a file that does not grow."""
        reading = self._reading
        if reading is None or (reading.name, reading.offset) != (followed.name, followed.offset):
            format = self._format_of(followed)
            _ = followed.file.head
            chunks = followed.file.chunks(format, followed.offset, followed.line, BLOCK_BYTES)
            reading = self._reading = _Reading(followed.name, followed.size, None, chunks)
        assert reading.chunks is not None
        chunk = next(reading.chunks, None)
        while chunk is not None and isinstance(chunk.data, bytes) and not chunk.data:
            followed.offset, followed.line = chunk.end_offset, chunk.end_line  # only a header
            chunk = next(reading.chunks, None)
        reading.offset = chunk.end_offset if chunk is not None else -1
        return chunk

    # The first rows

    def first_rows(self, path: Path, rows: int, patience: float) -> LogPaths:
        """See `Source.first_rows`."""
        began, said = None, False
        while True:
            self._look()
            found, count = self._heads(rows)
            if count and began is None:
                began = time.monotonic()
            if began is not None and (count >= rows or time.monotonic() - began >= patience):
                break
            if not said and not count:
                _logger.info("waiting for the first rows of %s", self.name)
                said = True
            if self._closed.wait(min(self._every, patience if began else 1.0)):
                raise StreamError(f"{self.name}: was closed before its first rows came")
        self._followed.clear()
        self._queue.clear()
        self._due = 0.0
        written = [_write_head(path, number, file, head) for number, (file, head) in enumerate(found)]
        return written[0] if len(written) == 1 else written

    def _heads(self, rows: int) -> tuple[list[tuple[RawFile, Any]], int]:
        """The files in order with the first rows of each, a text's bytes or a table; and how many rows these are."""
        found: list[tuple[RawFile, Any]] = []
        count, size = 0, 0
        for followed in self._queue:
            if count >= rows or size >= HEAD_BYTES:
                break
            try:
                head: Any
                if isinstance(followed.file, TextFile):
                    head = self._first_lines(followed, rows - count + 1, HEAD_BYTES - size)
                    lines = sum(bool(line.strip()) for line in head.split(b"\n"))
                    size += len(head)
                    if lines < 2:
                        continue
                    count += lines - 1
                else:
                    head = _first_batches(followed.file, rows - count)
                    if not head:
                        continue
                    count += sum(batch.num_rows for batch in head)
            except _unreadable as error:
                if followed.is_unchanged_for(_OLD) and not isinstance(error, FileNotFoundError):
                    raise
                continue  # it is not complete
            found.append((followed.file, head))
        return found, count

    def _first_lines(self, followed: _Followed, lines: int, size: int) -> bytes:
        """The first whole lines of a text."""
        is_settled = followed.is_unchanged_for(self._settle)
        if followed.file.is_compressed and not is_settled and followed.file.filesystem is LOCAL:
            return b""
        data = b""
        with followed.file.open_text() as stream:
            while len(data) < size and data.count(b"\n") < lines and (more := stream.read(BLOCK_BYTES)):
                data += more
        if len(data) >= size or not is_settled or data.count(b"\n") >= lines:
            data = data[: data.rfind(b"\n") + 1]
        return b"".join(line + b"\n" for line in data.split(b"\n")[:lines] if line)


def _is_there(file: RawFile) -> bool:
    try:
        file.facts_now()
    except OSError:
        return False
    return True


def _mark(data: bytes) -> int:
    return zlib.crc32(data) or 1


def _texts_of_chunk(file: RawFile, chunk: Chunk, format: LogFormat, bad: list[BadRow]) -> pl.DataFrame:
    return file.full_frame(chunk, format, bad)


def _no_rows(format: LogFormat, row: BadRow, bad: list[BadRow]) -> pl.DataFrame:
    bad.append(row)
    return pl.DataFrame(schema={**dict.fromkeys(format.raw, pl.String), LINE: pl.Int64})


def _first_batches(file: RawFile, rows: int) -> list[pa.RecordBatch]:
    """Record batches with the first rows of a Parquet or Arrow file."""
    if not isinstance(file, ColumnarFile):
        raise ClickLogError(f"{file.source}: the first rows of such a file cannot be copied; give a `schema`", "schema")
    _ = file.head  # raises ClickLogError if it is damaged
    found: list[pa.RecordBatch] = []
    with file.open_bytes() as stream:
        if file.is_parquet:
            batches: Iterator[pa.RecordBatch] = pq.ParquetFile(stream).iter_batches(max(rows, 1))
        else:
            reader = pa.ipc.open_file(stream)
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        for batch in batches:
            found.append(batch.slice(0, rows))
            rows -= len(found[-1])
            if rows <= 0:
                break
    return found


def _write_head(path: Path, number: int, file: RawFile, head: Any) -> str:
    """Write the first rows of a file to one of its kind, in folders that add the same columns."""
    partitions = [part for part in file.name.split("/")[:-1] if "=" in part[1:]]
    name = posixpath.basename(file.path)
    if file.is_compressed:
        name = name[: -len(file.suffix)]
    folder = path.joinpath(*partitions)
    os.makedirs(folder, exist_ok=True)
    target = str(folder / f"{number:06}-{name}")
    with name_errors(target):
        if isinstance(head, bytes):
            Path(target).write_bytes(head)
        elif isinstance(file, ColumnarFile) and file.is_parquet:
            pq.write_table(pa.Table.from_batches(head), on_disk(target), filesystem=LOCAL)
        else:
            with pa.OSFile(target, "wb") as stream, pa.ipc.new_file(stream, head[0].schema) as writer:
                for batch in head:
                    writer.write_batch(batch)
    return target
