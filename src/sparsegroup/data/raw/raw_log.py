"""A raw log to train on as it is: read once to count its rows, and then as they are used."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from sparsegroup.data.batches import Batch, read_ahead, rebatched
from sparsegroup.data.encoded_columns import batch_of
from sparsegroup.data.formats.headed import formats_of
from sparsegroup.data.formats.log_format import LogFormat
from sparsegroup.data.log_errors import BadRows, ClickLogError
from sparsegroup.data.raw.chunk_reader import Reader
from sparsegroup.data.raw.raw_source import source_of
from sparsegroup.data.raw.row_count import RowCount
from sparsegroup.data.raw.text_file import CHUNK_BYTES
from sparsegroup.names import OnBadRow


@dataclass(frozen=True)
class _Start:
    """Where a chunk begins: its first row in all logs, the number of its log, and the byte and line in it."""

    row: int
    log: int
    offset: int
    line: int


class RawLog:
    """A raw log, anything that `prepare` reads, to train on as it is.

    It gives the rows that `PreparedLog` gives of what `prepare` makes of it, and takes as little memory. Each pass
    parses and hashes it anew.

    Args:
        log: The log.
        test: A log of its own for the test set.
        format: Their format; by default told from how the log begins.
        on_bad_row: "error" raises at the first bad row, "skip" leaves bad rows out. Where it raises, making the
            `RawLog` finds bad labels and rows with another number of columns; the rest is found as it is read.
        max_bad: Share of the rows, in [0, 1), above which "skip" raises all the same.
        threads: That parse and hash.
        on_progress: Is told, while rows are counted, the bytes of the uncompressed logs that have been read (of a
            columnar log, the rows).
        chunk_bytes: Of the log, that are parsed at a time.

    Attributes:
        format: The format.
        positives: Rows with label 1.
        bad: Of each log, the rows left out.
        source: Names, sizes and times of the logs, and a hash of the format.

    Raises:
        ClickLogError: A bad row (FILE:LINE: why), too many of them, no rows, or a damaged file.
        OSError: No such file.
    """

    def __init__(
        self,
        log: Path,
        test: Path | None = None,
        format: LogFormat | None = None,
        *,
        on_bad_row: OnBadRow = "error",
        max_bad: float = 0.001,
        threads: int = 2,
        on_progress: Callable[[int], None] | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._logs = [log] if test is None else [log, test]
        self._on_bad_row, self._threads, self._chunk_bytes = on_bad_row, threads, chunk_bytes
        self.format, self._columns = formats_of(self._logs, format)
        self.source = source_of(self._logs, self.format)
        self._sizes = [size for _, size, _ in self.source["files"]]
        self.bad = [BadRows(str(path)) for path in self._logs]
        self._starts: list[_Start] = []
        self._ends: list[int] = []  # of each log, the row after its last one
        seen = self._count(on_progress)
        self._row_at = {(begin.log, begin.offset): begin.row for begin in self._starts}
        self._rows, self.positives = seen.rows, seen.positives
        left_out = sum(bad.count for bad in self.bad)
        self._train_rows = seen.checked_train_rows(self.format, log, left_out, self.bad, max_bad)

    def __len__(self) -> int:
        return self._rows

    @property
    def name(self) -> str:
        """The log."""
        return str(self._logs[0])

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the categorical fields."""
        return self.format.fields

    @property
    def lists(self) -> tuple[str, ...]:
        """Fields of several values."""
        return tuple(self.format.lists)

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names of the numeric ones."""
        return self.format.numbers

    @property
    def train_rows(self) -> int:
        """Rows, from the start, for training."""
        return self._train_rows

    @property
    def features(self) -> None:
        """They have not been counted."""
        return None

    @property
    def bad_rows(self) -> Mapping[str, int]:
        """Reason → rows left out."""
        return sum((bad.reasons for bad in self.bad), start=Counter())

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """Rows `start` to `stop` in order, `size` at a time, the last ones fewer; threads read ahead.

        Of an uncompressed text log, what is before the chunk of row `start` is not read.

        Raises:
            ClickLogError: A bad row (FILE:LINE: why), or a log that has changed since its rows were counted.
        """
        yield from rebatched(read_ahead(self._parts(max(start, 0), min(stop, len(self)))), size)

    def _reader(self, number: int, log: LogFormat, bad: BadRows) -> Reader:
        path, columns = self._logs[number], self._columns[number]
        return Reader(path, log, columns, bad, self._on_bad_row, False, self._threads, self._chunk_bytes)

    def _count(self, on_progress: Callable[[int], None] | None) -> RowCount:
        seen = RowCount()
        log = _to_count(self.format, self._on_bad_row)
        done = 0
        for number, path in enumerate(self._logs):
            offset, line = 0, 1
            for chunk, encoded in self._reader(number, log, self.bad[number])(offset, line):
                if encoded.batch.num_rows:
                    self._starts.append(_Start(seen.rows, number, offset, line))
                seen.note(encoded, log, path)
                offset, line = chunk.end_offset, chunk.end_line
                if on_progress:
                    on_progress(done + offset)
            done += offset
            self._ends.append(seen.rows)
            if number == 0 and len(self._logs) > 1:
                seen.boundary = seen.rows
        return seen

    def _parts(self, start: int, stop: int) -> Iterator[Batch]:
        """Rows `start` to `stop`, within the log, a chunk at a time."""
        if start >= stop:
            return
        first = self._starts[bisect_right(self._starts, start, key=lambda begin: begin.row) - 1]
        position, offset, line = first.row, first.offset, first.line
        for number in range(first.log, len(self._logs)):
            until = min(stop, self._ends[number])
            if self._logs[number].stat().st_size < self._sizes[number]:
                raise self._changed(number)
            with closing(self._reader(number, self.format, BadRows(""))(offset, line)) as chunks:
                for chunk, encoded in chunks:
                    rows = encoded.batch.num_rows
                    begin, end = max(start - position, 0), min(until - position, rows)
                    position += rows
                    if begin < end:
                        yield self._batch(encoded.batch.slice(begin, end - begin))
                    if position >= until:
                        break
                    if self._row_at.get((number, chunk.end_offset), position) != position:
                        raise self._changed(number)
            if position < until:
                raise self._changed(number)
            position, offset, line = self._ends[number], 0, 1
            if position >= stop:
                return

    def _batch(self, rows: pa.RecordBatch) -> Batch:
        table = pa.Table.from_batches([rows])
        return batch_of(table, self.fields, self.numbers, self.lists, weighted=self.format.weight is not None)

    def _changed(self, number: int) -> ClickLogError:
        return ClickLogError(f"{self._logs[number]}: has changed since its rows were counted; read it from the start")


def _to_count(log: LogFormat, on_bad_row: OnBadRow) -> LogFormat:
    """The format with those columns alone that say which rows there are, and where the test set begins."""
    if on_bad_row == "skip":  # a value of a field makes no row a bad one unless something is made of it
        return log if log.derive or not log.labelled else replace(log, fields=(), lists={})
    time = log.time if log.split == "last-day" else None
    checked = {made: raw for made, raw in log.checked.items() if made == time}
    return replace(
        log,
        fields=() if log.labelled else _one_column(log),  # without a label, some column must tell the rows
        numbers=(),
        lists={},
        weight=None,
        time=time,
        derive=log.derive if checked else None,
        checked=checked,
    )


def _one_column(log: LogFormat) -> tuple[str, ...]:
    return tuple(name for name in log.fields if name in log.raw)[-1:]
