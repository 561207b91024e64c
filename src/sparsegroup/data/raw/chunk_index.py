"""Where the chunks of a log's files begin, as they were counted, and which of them some rows are in."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sparsegroup.data.keys import Int64s
from sparsegroup.data.log import Run, rows_in
from sparsegroup.data.log_errors import BadRows
from sparsegroup.data.raw.encoding import Stretch
from sparsegroup.data.raw.raw_file import Chunk, RawFile


@dataclass(frozen=True)
class ChunkStart:
    """Where a chunk with rows begins.

    Attributes:
        row: Its first row, in all files.
        file: Number of its file.
        offset, line: Where it begins there, as in `RawFile.chunks`.
        is_entry: See `Chunk.is_entry`; the first one of a file is an entry always.
    """

    row: int
    file: int
    offset: int
    line: int
    is_entry: bool


@dataclass(frozen=True)
class FileEnd:
    """Where a file ends: the row after its last one, its offset, its places for rows, and those of files before it."""

    row: int = 0
    offset: int = 0
    places: int = 0
    before: int = 0


@dataclass(frozen=True, kw_only=True)
class RowStretch(Stretch):
    """Chunks of a file that have some rows.

    Attributes:
        row: First row of the first chunk.
        runs: The rows that are wanted of it.
        before: How many rows are wanted of the stretches before it.
    """

    row: int
    runs: Sequence[Run]
    before: int


class ChunkIndex:
    """The chunks of a log's files: first all are added, in order, then `close` is called.

    Args:
        files: The files.

    Attributes:
        ends: Where each file ends.
    """

    def __init__(self, files: Sequence[RawFile]) -> None:
        self._files = files
        self._starts: list[ChunkStart] = []
        self.ends = [FileEnd() for _ in files]
        self._at = (0, 0, 1)

    def add(self, number: int, chunk: Chunk, row: int, end: int, places: int) -> int:
        """Note a chunk; gives how many bytes (of a columnar file, rows) it has.

        Args:
            number: Number of its file.
            chunk: The chunk.
            row, end: Its first row, and the row after its last one.
            places: Places for rows in the file up to its end.
        """
        file, offset, line = self._at
        if number != file:
            offset, line = 0, 1
        if row < end:
            begins = not self._starts or self._starts[-1].file != number
            self._starts.append(ChunkStart(row, number, offset, line, begins or chunk.is_entry))
        self._at = (number, chunk.end_offset, chunk.end_line)
        self.ends[number] = FileEnd(end, chunk.end_offset, places)
        return chunk.end_offset - offset

    def close(self, first_test: int) -> None:
        """All chunks are there; file number `first_test` is the first one of the test set's own log."""
        row = places = 0
        for number, end in enumerate(self.ends):
            row, before = max(row, end.row), 0 if number == first_test else places
            self.ends[number] = replace(end, row=row, before=before)
            places = before + max(end.places, 0)

    def row_at(self, number: int, offset: int) -> int | None:
        """The first row of the chunk that begins at `offset` of file `number`; None where none with rows does."""
        place = bisect_left(self._starts, (number, offset), key=lambda start: (start.file, start.offset))
        found = self._starts[place] if place < len(self._starts) else None
        return found.row if found is not None and (found.file, found.offset) == (number, offset) else None

    def file_of(self, row: int) -> int:
        """Number of the file that has a row."""
        return bisect_right(self.ends, row, key=lambda end: end.row)

    def cuts(self, longest: int) -> Int64s:
        """See `Log.cuts`: rows that entries begin with, and the chunks where two entries are far apart."""
        rows = [start.row for start in self._starts if start.is_entry]
        far = [
            (first, stop)
            for first, stop in zip(rows, [*rows[1:], self.ends[-1].row], strict=True)
            if stop - first > longest
        ]
        within = [start.row for first, stop in far for start in self._starts[self._chunk_of(first) : self._after(stop)]]
        return np.unique(np.array([*rows, *within], np.int64))

    def stretches(self, runs: Sequence[Run]) -> Iterator[RowStretch]:
        """What is to be read for some rows, each chunk once.

        Where a chunk that is wanted can only be reached by reading what is before it, and something there has been
        read for the rows before, reading goes on from there.
        """
        before, last = 0, -1
        for number, first, stop, wanted in self._spans(runs):
            begin = self._starts[first]
            passed = self._starts[last + 1 : first + 1]
            joins = last >= 0 and self._starts[last].file == number and not any(start.is_entry for start in passed)
            follows = stop < len(self._starts) and self._starts[stop].file == number
            yield RowStretch(
                number,
                self._files[number],
                BadRows(""),
                begin.offset,
                begin.line,
                until=self._starts[stop].offset if follows else self.ends[number].offset,
                joins=joins,
                row=begin.row,
                runs=wanted,
                before=before,
            )
            before, last = before + rows_in(wanted), stop - 1

    def _spans(self, runs: Sequence[Run]) -> Iterator[tuple[int, int, int, list[Run]]]:
        """Number of a file, chunks of it that follow each other (the first, and after the last), and rows in them."""
        span: tuple[int, int, int, list[Run]] | None = None
        for first, stop in runs:
            while first < stop:
                begin = self._chunk_of(first)
                number = self._starts[begin].file
                end = min(stop, self.ends[number].row)
                if span is not None and span[0] == number and begin <= span[2]:
                    span[3].append((first, end))
                    span = (number, span[1], self._after(end), span[3])
                else:
                    if span is not None:
                        yield span
                    span = (number, begin, self._after(end), [(first, end)])
                first = end
        if span is not None:
            yield span

    def _chunk_of(self, row: int) -> int:
        return bisect_right(self._starts, row, key=lambda start: start.row) - 1

    def _after(self, end: int) -> int:
        """The chunk after the one that has the row before row `end`."""
        return self._chunk_of(end - 1) + 1
