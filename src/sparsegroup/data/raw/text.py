"""Text files of any size, plain or compressed, in chunks of whole lines."""

import lzma
import re
import zlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv

from sparsegroup.data.keys import Int64s
from sparsegroup.data.raw.files import LINE, SAMPLE, TEXT, BadRow, Chunk, RawFile
from sparsegroup.data.schema import QUOTING, Head, LogFormat
from sparsegroup.errors import ClickLogError

CHUNK_BYTES = 16 << 20
LONGEST_LINE = 1 << 20
"""Bytes. A longer line is a bad row: it is not kept in memory."""

_HEAD_BYTES = 1 << 16

_CONTENTS = (
    (b"PAR1", "is a Parquet file: end its name with .parquet"),
    (b"ARROW1", "is an Arrow file: end its name with .arrow"),
    (b"FEA1", "is a Feather file of version 1: write it as Parquet"),
    (b"PK\x03\x04", "is a ZIP archive or an Excel file: unpack it, or save it as CSV"),
    (b"\x1f\x8b", "is compressed by gzip: end its name with .gz"),
    (b"BZh", "is compressed by bzip2: end its name with .bz2"),
    (b"\xfd7zXZ\0", "is compressed by xz: end its name with .xz"),
    (b"\x28\xb5\x2f\xfd", "is compressed by Zstandard: end its name with .zst"),
    (b"\x04\x22\x4d\x18", "is compressed by LZ4: end its name with .lz4"),
    (b"\xff\xfe", "is a text in UTF-16 or UTF-32: save it as UTF-8, with `iconv -t UTF-8` for example"),
    (b"\xfe\xff", "is a text in UTF-16: save it as UTF-8, with `iconv -t UTF-8` for example"),
    (b'{"', "is JSON: write it as CSV or Parquet"),
    (b'[{"', "is JSON: write it as CSV or Parquet"),
)
"""First bytes of a file that is not a text table, and the advice about the file."""


@cache
def _quotes_enclose_values(separator: str) -> re.Pattern[bytes]:
    """Return the pattern of lines whose quotes enclose whole values.

    To Arrow a quote opens a value only at its beginning. Without a closing quote, Arrow reads beyond the end of the
    line. Arrow appends the text between a closing quote and the next separator to the value.
    """
    sign = re.escape(separator.encode())
    value = rb'(?:"(?:[^"]|"")*+"|[^"%b][^%b]*+|)' % (sign, sign)
    return re.compile(rb"%b(?:%b%b)*+\r?" % (value, sign, value))


class TextFile(RawFile):
    """A text, plain or compressed (.gz, .bz2, .xz, .zst, .lz4); see `RawFile`.

    Offsets count bytes of the uncompressed text. A chunk's data are whole lines without the header, each with its
    newline; or, as a `str`, the beginning of a line of more than `LONGEST_LINE` bytes.
    """

    suffixes = (TEXT,)

    def _read_head(self) -> Head:
        with self.open_text() as stream:
            begin = more = self._read(stream, _HEAD_BYTES, 1)
            while more and b"\n" not in more and len(begin) < LONGEST_LINE:
                begin += (more := self._read(stream, _HEAD_BYTES, 1))
        if not begin:
            raise ClickLogError(f"{self.source}: the file is empty")
        for signature, what in _CONTENTS:
            if begin.startswith(signature):
                raise ClickLogError(f"{self.source}: {what}")
        line = begin.split(b"\n")[0].rstrip(b"\r")
        if b"\0" in line:
            raise ClickLogError(f"{self.source}:1: a NUL byte in the first line: the file is not a text in UTF-8")
        if b"\r" in line:
            raise ClickLogError(f"{self.source}:1: lines end with a carriage return: end them with a line feed")
        if not _is_utf8(line) and len(line) < len(begin):
            raise ClickLogError(f"{self.source}:1: the first line is not UTF-8: save the file as UTF-8")
        return Head.of_text(self.source, line.decode("utf-8", "replace").removeprefix("\ufeff"))

    @property
    def size(self) -> int | None:
        """Number of bytes; None of a compressed file."""
        return None if self.is_compressed else self.facts[0]

    def columns(self, log: LogFormat) -> list[str]:
        """All columns of a line, in order."""
        return list(log.columns) or list(self.head.cells(log.separator))

    def has_label(self, log: LogFormat) -> bool:
        """Whether the label columns of the format are there; without a header, the number of columns tells."""
        cells = self.head.cells(log.separator)
        if log.has_header:
            return set(log.label_columns) <= set(cells)
        return len(cells) != len(log.columns) - len(log.label_columns)

    def first_row(self, log: LogFormat) -> int:
        """Line 2 where there is a header, else line 1."""
        return 2 if log.has_header else 1

    def chunks(self, log: LogFormat, offset: int, line: int, chunk_bytes: int) -> Iterator[Chunk]:
        """The lines from byte `offset` of the uncompressed text on; a too long line is a chunk without its bytes."""
        rest, has_header = b"", log.has_header and line == 1
        with self.open_text() as stream:
            self._skip(stream, offset)
            while True:
                block = self._read(stream, chunk_bytes - len(rest) % chunk_bytes, line)
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
                    begin = data.find(b"\n") + 1 if has_header and line == 1 else 0
                    first = line + 1 if begin else line
                    entry = not self.is_compressed or offset == 0
                    yield Chunk(first, min(offset + end, size), line + lines, data[begin:end], entry)
                    offset, line = offset + end, line + lines
                rest = data[end:]
                if long is not None:
                    sample = rest[:SAMPLE].decode("utf-8", "replace")
                    length, rest = self._past_line(stream, rest, chunk_bytes, line)
                    yield Chunk(line, offset + length, line + 1, sample, not self.is_compressed)
                    offset, line = offset + length, line + 1

    def lines_from(
        self, stream: Any, log: LogFormat, offset: int, line: int, chunk_bytes: int, *, takes_rest: bool
    ) -> Chunk | None:
        """The whole lines from byte `offset` on of a plain text that is being written; None if there are none yet.

        Args:
            stream: The open text.
            log: The format.
            offset: Where line number `line` begins.
            line: Its number, from 1.
            chunk_bytes: About how many bytes to read, at least `LONGEST_LINE` + 1.
            takes_rest: Whether a last line without a newline, if nothing is before it, is a whole one.
        """
        stream.seek(offset)
        data = self._read(stream, max(chunk_bytes, LONGEST_LINE + 1), line)
        long = _first_long_line(data)
        if long == 0:
            length, _ = self._past_line(stream, data, chunk_bytes, line)
            stream.seek(offset + length - 1)
            is_whole = takes_rest or self._read(stream, 1, line) == b"\n"
            return _chunk(data, log, offset, offset + length, line) if is_whole else None
        end = data.rfind(b"\n") + 1 if long is None else long
        end = end or (len(data) if takes_rest else 0)
        return _chunk(data[:end], log, offset, offset + end, line) if end else None

    def lines_between(
        self, stream: Any, log: LogFormat, offset: int, end: int, line: int, chunk_bytes: int
    ) -> Chunk | None:
        """The chunk that `lines_from` gave from `offset` to `end`; None if the text does not reach so far."""
        stream.seek(0, 2)
        if stream.tell() < end:
            return None
        stream.seek(offset)
        size = min(end - offset, max(chunk_bytes, LONGEST_LINE + 1))
        return _chunk(self._read(stream, size, line), log, offset, end, line)

    def frame(self, chunk: Chunk, log: LogFormat, bad: list[BadRow]) -> pl.DataFrame:
        """See `RawFile.frame`."""
        if isinstance(chunk.data, str):
            bad.append((chunk.line, f"a line of more than {LONGEST_LINE:,} bytes", chunk.data))
            return _parse(b"", np.empty(0, np.int64), log, self.columns(log), bad)
        return _parse(*_whole_lines(chunk, log, bad), log, self.columns(log), bad)

    def _read(self, stream: Any, size: int, line: int) -> bytes:
        try:
            data: bytes = stream.read(size)
            return data
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            what = "damaged or truncated compressed file" if self.is_compressed else "cannot be read"
            raise ClickLogError(f"{self.source}:{line}: {what} ({error})") from error

    def _skip(self, stream: Any, offset: int) -> None:
        position = 0
        if self.is_compressed:
            while position < offset and (block := self._read(stream, min(offset - position, CHUNK_BYTES), 0)):
                position += len(block)
        else:
            position = min(stream.size(), offset)
            stream.seek(position)
        if position < offset:
            raise ClickLogError(
                f"{self.source}: ends at byte {position:,}, before byte {offset:,} where reading is to resume"
            )

    def _past_line(self, stream: Any, rest: bytes, size: int, line: int) -> tuple[int, bytes]:
        """Bytes of the line that begins with `rest`, which are read and forgotten, and what follows it."""
        length = 0
        while (end := rest.find(b"\n") + 1) == 0 and rest:
            length += len(rest)
            rest = self._read(stream, size, line)
        return length + end, rest[end:]


def _chunk(data: bytes, log: LogFormat, offset: int, end: int, line: int) -> Chunk:
    """The lines from `offset` to `end`, which are `data`; or, if they are one too long line, begin with it."""
    if _first_long_line(data) == 0:
        return Chunk(line, end, line + 1, data[:SAMPLE].decode("utf-8", "replace"))
    data += b"" if data.endswith(b"\n") else b"\n"
    begin = data.find(b"\n") + 1 if log.has_header and line == 1 else 0
    return Chunk(line + 1 if begin else line, end, line + data.count(b"\n"), data[begin:])


def _first_long_line(data: bytes) -> int | None:
    """Where the first line of more than `LONGEST_LINE` bytes begins, if there is one."""
    begin = 0
    while len(data) - begin > LONGEST_LINE:
        newline = data.rfind(b"\n", begin, begin + LONGEST_LINE + 1)
        if newline < 0:
            return begin
        begin = newline + 1
    return None


def _whole_lines(chunk: Chunk, log: LogFormat, bad: list[BadRow]) -> tuple[bytes, Int64s]:
    """The chunk without blank lines and lines that would mix up their neighbours, and the numbers of the others."""
    data: bytes = chunk.data
    quoted = log.separator in QUOTING and b'"' in data
    begins = _line_begins(data)
    blank = np.isin(np.frombuffer(data, np.uint8)[begins], list(b"\n\r ")).any()
    returns = b"\r" in data and data.count(b"\r") != data.count(b"\r\n")
    if not quoted and not blank and not returns and _is_utf8(data):
        return data, np.arange(chunk.line, chunk.line + len(begins))
    kept, numbers, pattern = [], [], _quotes_enclose_values(log.separator)
    for number, line in enumerate(data.split(b"\n")[:-1], chunk.line):
        if not line.strip(b" \r"):
            continue
        if not _is_utf8(line):
            reason = "invalid UTF-8"
        elif b"\r" in line[:-1]:
            reason = "a carriage return within the line"
        elif quoted and b'"' in line and not pattern.fullmatch(line):
            reason = "a quote that is not closed, or text after a closing quote"
        else:
            kept.append(line + b"\n")
            numbers.append(number)
            continue
        bad.append((number, reason, line[:SAMPLE].decode("utf-8", "replace").rstrip()))
    return b"".join(kept), np.array(numbers, np.int64)


def _line_begins(data: bytes) -> Int64s:
    """Where each line of `data`, which ends with a newline or is empty, begins."""
    # Searching for pairs of bytes would take ten times as long, and hold the interpreter's lock.
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == ord("\n"))
    return np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _parse(data: bytes, numbers: Int64s, log: LogFormat, columns: list[str], bad: list[BadRow]) -> pl.DataFrame:
    """The raw columns, and the lines' numbers in a column `LINE`."""
    gone: list[int] = []

    def on_malformed(row: Any) -> str:
        gone.append(row.number - 1)
        reason = f"{row.actual_columns} columns where {row.expected_columns} are expected"
        bad.append((int(numbers[row.number - 1]), reason, row.text[:SAMPLE]))
        return "skip"

    wanted = set(log.raw)
    names = [name for name in columns if name in wanted]
    if not data:
        return pl.DataFrame(schema={**dict.fromkeys(names, pl.String), LINE: pl.Int64})
    if log.separator == " ":  # lines of these formats often end with one
        data = data.replace(b" \n", b"\n").replace(b" \r\n", b"\n")
    table = pa_csv.read_csv(
        pa.BufferReader(data),
        # One thread, so that malformed rows come with their number; chunks are parsed side by side.
        read_options=pa_csv.ReadOptions(column_names=columns, use_threads=False, block_size=len(data) + 1),
        parse_options=pa_csv.ParseOptions(
            delimiter=log.separator,
            quote_char='"' if log.separator in QUOTING else False,
            invalid_row_handler=on_malformed,
            ignore_empty_lines=False,
        ),
        convert_options=pa_csv.ConvertOptions(
            check_utf8=False,  # `_whole_lines` has done so
            include_columns=names,
            column_types=dict.fromkeys(names, pa.string()),
            null_values=[""],
            strings_can_be_null=True,
        ),
    )
    return pl.DataFrame(pl.from_arrow(table)).with_columns(pl.Series(LINE, np.delete(numbers, gone)))
