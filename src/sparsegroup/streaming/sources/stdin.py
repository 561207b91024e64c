"""Rows of standard input, or of another stream that can be read once: CSV with a header, or a JSON object per line."""

import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Empty, Full, Queue
from typing import IO, Any

import polars as pl

from sparsegroup.artifact.folder import write_atomically
from sparsegroup.data.raw.files import SAMPLE, BadRow, Chunk, LogPaths
from sparsegroup.data.raw.text import LONGEST_LINE, TextFile
from sparsegroup.data.schema import Head, LogFormat
from sparsegroup.streaming.sources.files import HEAD_BYTES
from sparsegroup.streaming.sources.records import FieldWatch, frame_of, record_of, write_csv
from sparsegroup.streaming.sources.source import BLOCK_BYTES, Block, EndOfStream, Source, StreamError, block_of

_PIECES = 64
"""Pieces of the stream, of at most `_PIECE` bytes each, that wait in memory; then its writer waits."""
_PIECE = 1 << 16

_Piece = bytes | str
"""Whole lines; or, as a `str`, the beginning of a line that is too long."""


class StdinSource(Source):
    """Rows of a stream that can be read once.

    A stream whose first character is `{` has a JSON object per line, another is a text with a header. A thread reads
    ahead a few megabytes, and then its writer waits. A position is {"rows": number of lines}: reading does not resume
    there, but with the next line that arrives.

    Args:
        stream: The binary stream; by default standard input.

    Raises:
        StreamError: Standard input is closed.
    """

    is_replayable = False

    def __init__(self, stream: IO[bytes] | None = None) -> None:
        self.name = "standard input" if stream is None else str(getattr(stream, "name", "a stream"))
        if stream is None and sys.stdin is None:
            raise StreamError(f"{self.name}: is closed; pipe rows into the command, or name a file")
        self._stream = sys.stdin.buffer if stream is None else stream
        self._queue: Queue[_Piece | BaseException | None] = Queue(_PIECES)
        self._kept: deque[_Piece] = deque()
        self._has_ended = False
        self._line = 1
        self._before = 0
        self._is_json: bool | None = None
        self._watch = FieldWatch(self.name)
        self._file = TextFile("standard input", source=self.name)
        self._file.partition = {}  # it is in no folder
        self._format: LogFormat | None = None
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def identity(self) -> Mapping[str, Any]:
        """See `Source.identity`: reading always continues with the rows that arrive next."""
        return {"source": "standard input"}

    def open(self, format: LogFormat, position: Any = None) -> None:
        """See `Source.open`."""
        self._format = format
        self._before = int(position["rows"]) if position else 0

    def read(self, timeout: float) -> Block | None:
        """See `Source.read`."""
        assert self._format is not None, "open comes before read"
        end = time.monotonic() + timeout
        while True:
            piece = self._next(end - time.monotonic())
            if piece is None:
                return None
            if self._is_json is None:
                piece = self._began(piece)
            lines, line = 1 if isinstance(piece, str) else piece.count(b"\n"), self._line
            self._line += lines
            if piece:
                break
        format = self._format if self._is_json or self._format.separator else self._of_header(self._format)
        chunk = Chunk(line, 0, self._line, piece)
        of_json = partial(_json_rows, chunk, format, self._watch)
        texts = of_json if self._is_json else partial(_csv_rows, self._file, chunk, format)
        position = {"rows": self._before + self._line - 1}
        return block_of(texts, format, {"rows": lines, "line": line}, position, time.time(), self.name)

    def _of_header(self, format: LogFormat) -> LogFormat:
        return replace(format, separator=self._file.head.separator)

    def _began(self, piece: _Piece) -> _Piece:
        """What follows the header, which is read."""
        assert self._format is not None
        begin = piece.encode() if isinstance(piece, str) else piece
        if not begin.strip():
            self._line += begin.count(b"\n")
            return b""
        while not begin.partition(b"\n")[0].strip():
            self._line, begin = self._line + 1, begin.partition(b"\n")[2]
        self._is_json = begin.lstrip().startswith(b"{")
        if self._is_json:
            return begin if isinstance(piece, bytes) else piece
        first, _, rest = begin.partition(b"\n")
        line = first.rstrip(b"\r").decode("utf-8", "replace").removeprefix("\ufeff")
        self._file.head = Head.of_text(self.name, line)
        format = self._format if self._format.separator else self._of_header(self._format)
        self._file.check(format)
        if not format.has_header:
            return begin
        self._line += 1
        return rest

    def _next(self, timeout: float) -> _Piece | None:
        """The next lines, about `BLOCK_BYTES` of them at most; None if there are none in time."""
        pieces: list[bytes] = []
        size = 0
        while size < BLOCK_BYTES:
            piece = self._piece(0.0 if pieces else timeout)
            if piece is None:
                break
            if isinstance(piece, str):
                if not pieces:
                    return piece
                self._kept.appendleft(piece)
                break
            pieces.append(piece)
            size += len(piece)
        if not pieces and self._has_ended:
            raise EndOfStream
        return b"".join(pieces) if pieces else None

    def _piece(self, timeout: float) -> _Piece | None:
        """The next piece that was kept or arrives; None if there is none in time, or none at all."""
        if self._kept:
            return self._kept.popleft()
        return self._arriving(timeout)

    def _arriving(self, timeout: float) -> _Piece | None:
        if self._has_ended:
            return None
        if self._thread is None:
            self._thread = threading.Thread(target=self._fill, name="sparsegroup-stdin", daemon=True)
            self._thread.start()
        try:
            piece = self._queue.get(timeout=timeout) if timeout > 0 else self._queue.get_nowait()
        except Empty:
            return None
        if piece is None:
            self._has_ended = True
        if isinstance(piece, BaseException):
            self._has_ended = True
            raise StreamError(f"{self.name}: cannot be read ({piece})") from piece
        return piece

    def _fill(self) -> None:
        """Put whole lines into the queue until the stream ends."""
        try:
            for piece in _pieces(self._stream):
                if not self._put(piece):
                    return
            self._put(None)
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            self._put(error)

    def _put(self, piece: _Piece | BaseException | None) -> bool:
        while not self._closed.is_set():
            try:
                self._queue.put(piece, timeout=0.1)
                return True
            except Full:
                continue
        return False

    def again(self, span: Any) -> Block:
        """Always raise StreamError."""
        raise StreamError(f"{self.name} can be read once; write its rows to a file or a broker to read them again")

    def close(self) -> None:
        """End the thread after what it is reading."""
        self._closed.set()

    def first_rows(self, path: Path, rows: int, patience: float) -> LogPaths:
        """See `Source.first_rows`. The rows stay in memory until they are read."""
        end, count, size = float("inf"), 0, 0
        kept = list[_Piece]()
        while count <= rows and size < HEAD_BYTES and not self._has_ended:
            now = time.monotonic()
            if now >= end:
                break
            piece = self._arriving(min(end - now, 1.0))
            if piece is not None:
                kept.append(piece)
                size += len(piece)
                count += 1 if isinstance(piece, str) else piece.count(b"\n")
                is_json = isinstance(kept[0], bytes) and kept[0].lstrip().startswith(b"{")
                if count >= (1 if is_json else 2):
                    end = min(end, time.monotonic() + patience)
        self._kept.extendleft(reversed(kept))
        lines = [line for piece in kept if isinstance(piece, bytes) for line in piece.split(b"\n") if line.strip()]
        if lines and lines[0].lstrip().startswith(b"{"):
            records = [record for line in lines[:rows] if not isinstance(record := record_of(line), str)]
            if not records:
                raise StreamError(f"{self.name}: no JSON object among the first {len(lines):,} lines")
            return write_csv(path, records)
        if len(lines) < 2:
            raise StreamError(f"{self.name}: ended before its first row")
        path.mkdir(parents=True, exist_ok=True)
        content = b"".join(line + b"\n" for line in lines[: rows + 1])
        write_atomically(path / "rows.csv", lambda target: target.write_bytes(content))
        return str(path / "rows.csv")


def _pieces(stream: IO[bytes]) -> Iterator[_Piece]:
    """The whole lines of a stream as they arrive; a last one without a newline gets one."""
    read = getattr(stream, "read1", stream.read)
    rest, is_long = b"", False
    while data := read(_PIECE):
        if is_long:
            end = data.find(b"\n") + 1
            if not end:
                continue
            data, is_long = data[end:], False
        end = data.rfind(b"\n") + 1
        if end:
            yield rest + data[:end]
            rest = data[end:]
        else:
            rest += data
            if len(rest) > LONGEST_LINE:
                yield rest[:SAMPLE].decode("utf-8", "replace")
                rest, is_long = b"", True
    if rest:
        yield rest + b"\n"


def _csv_rows(file: TextFile, chunk: Chunk, format: LogFormat, bad: list[BadRow]) -> pl.DataFrame:
    return file.full_frame(chunk, format, bad)


def _json_rows(chunk: Chunk, format: LogFormat, watch: FieldWatch, bad: list[BadRow]) -> pl.DataFrame:
    if isinstance(chunk.data, str):
        bad.append((chunk.line, f"a line of more than {LONGEST_LINE:,} bytes", chunk.data))
        return frame_of([], format, bad)
    lines = enumerate(chunk.data.split(b"\n")[:-1], chunk.line)
    return frame_of(((number, record_of(line), line) for number, line in lines if line.strip()), format, bad, watch)
