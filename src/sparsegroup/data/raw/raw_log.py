"""A raw log to train on as it is: read once to count its rows, and then as they are used."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import polars as pl
import pyarrow as pa

from sparsegroup.data.batches import LABEL, TIME, Batch, batch_of, read_ahead, rebatched
from sparsegroup.data.formats.log_format import LogFormat
from sparsegroup.data.keys import Int64s, fields_of
from sparsegroup.data.log import Log
from sparsegroup.data.log_errors import BadRows, ClickLogError, shown_bad_rows
from sparsegroup.data.raw.encoding import EncodedRows, Stretch, encoded_chunks, named_keys, with_places
from sparsegroup.data.raw.raw_file import RawFile, identity_of, source_of
from sparsegroup.data.raw.text_file import CHUNK_BYTES
from sparsegroup.names import OnBadRow

_DAY = 24 * 3600


@dataclass
class RowCount:
    """Counts of the rows of a log that have been read, from which it follows where the test set begins.

    Attributes:
        rows: Number of rows.
        positives: Number of rows with label 1.
        last_time: Time of the last row.
        boundary: First row of the last day, or of the test set where that is marked; -1 before there is one.
    """

    rows: int = 0
    positives: int = 0
    last_time: int = 0
    boundary: int = -1

    def note(self, encoded: EncodedRows, log: LogFormat, source: str, *, of_test_log: bool) -> None:
        """Count the next rows.

        Args:
            encoded: The rows.
            log: Their format.
            source: Their file, for messages.
            of_test_log: Whether it is one of the test set's own log.

        Raises:
            ClickLogError: They are not in the order of time, of a log whose last day is the test set; or training
                rows follow test rows.
        """
        batch = encoded.batch
        if not batch.num_rows:
            return
        if log.split == "last-day":
            times = batch.column(TIME).to_numpy()
            if times[0] < self.last_time or (np.diff(times) < 0).any():
                raise ClickLogError(f"{source}: rows must be in the order of time, for the last day is the test set")
            days = times // _DAY
            if days[-1] > self.last_time // _DAY or self.boundary < 0:
                self.boundary = self.rows + int(np.searchsorted(days, days[-1]))
            self.last_time = int(times[-1])
        if encoded.is_test is not None:
            first = int(encoded.is_test.argmax()) if encoded.is_test.any() else -1
            began = 0 if self.boundary >= 0 else first
            if began >= 0 and not encoded.is_test[began:].all():
                raise ClickLogError(f"{source}: rows with {log.split_column}=2 (test) must come last")
            if first >= 0 and self.boundary < 0:
                self.boundary = self.rows + first
        if of_test_log and self.boundary < 0:
            self.boundary = self.rows
        self.rows += batch.num_rows
        self.positives += int(batch.column(LABEL).to_numpy().sum())

    def train_rows(self, log: LogFormat) -> int:
        """How many rows, from the start, are for training, when all have gone by."""
        if log.split == "last-day":
            return self.boundary or self.rows  # of a single day there is no test set
        if log.split in ("column", "file"):
            return self.boundary if self.boundary >= 0 else self.rows
        if log.split == "last-of-7":
            return max(1, self.rows * 6 // 7)
        return self.rows - round(self.rows * log.test_fraction) if log.split == "last-fraction" else self.rows

    def checked_train_rows(
        self, log: LogFormat, source: str, left_out: int, bads: Sequence[BadRows], max_bad: float
    ) -> int:
        """`train_rows` of a log that can be trained on.

        Args:
            log: The format.
            source: The log, for messages.
            left_out: Bad rows.
            bads: Examples of them.
            max_bad: Share of bad rows, in [0, 1), that is let pass.

        Raises:
            ClickLogError: More bad rows than that, no rows, or no training rows.
        """
        if left_out > max_bad * (self.rows + left_out):
            examples = "\n".join(shown_bad_rows(bads))
            raise ClickLogError(
                f"{left_out:,} of {self.rows + left_out:,} rows are bad, more than max_bad={max_bad:g}\n{examples}"
            )
        if not self.rows:
            raise ClickLogError(f"{source}: no rows")
        train_rows = self.train_rows(log)
        if not train_rows:
            raise ClickLogError(f"{source}: no training rows; all {self.rows:,} are for testing")
        return train_rows


@dataclass(frozen=True)
class _Start:
    """Where a chunk begins: its first row in all files, the number of its file, and the offset and line in it."""

    row: int
    file: int
    offset: int
    line: int


@dataclass(frozen=True)
class _End:
    """Where a file ends: the row after its last one, its offset, its places for rows, and those of files before it."""

    row: int = 0
    offset: int = 0
    places: int = 0
    before: int = 0


class RawLog(Log):
    """A raw log, anything that `prepare` reads, to train on as it is. `open_log` makes it.

    It gives the rows that `PreparedLog` gives of what `prepare` makes of it, and takes as little memory. Each pass
    parses and hashes it anew.

    Args:
        files: Those of the log in order, then those of the test set's own log, if there is one.
        format: Their format, as `format_of` gives it.
        tests: How many of the files are the test set's.
        name: Where the rows come from, for messages; by default the first file.
        on_bad_row: "error" raises at the first bad row, "skip" leaves bad rows out. Where it raises, making the
            `RawLog` finds bad labels and rows with another number of columns; the rest is found as it is read.
        max_bad: Share of the rows, in [0, 1), above which "skip" raises all the same.
        threads: Number of threads that parse and hash.
        on_progress: Is told, while rows are counted, how many bytes of the uncompressed logs have been read (of a
            columnar log, rows), and how many there are, if that is known.
        chunk_bytes: How many bytes of a text are parsed at a time.

    Attributes:
        format: The format.
        positives: Number of rows with label 1.
        bad: The rows left out, for each file.

    Raises:
        ClickLogError: A file lacks a column, a bad row (FILE:LINE: why), too many of them, no rows, or a damaged file.
        OSError: No such file.
    """

    def __init__(
        self,
        files: Sequence[RawFile],
        format: LogFormat,
        *,
        tests: int = 0,
        name: str | None = None,
        on_bad_row: OnBadRow = "error",
        max_bad: float = 0.001,
        threads: int = 2,
        on_progress: Callable[[int, int | None], None] | None = None,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self._files, self._test_file, self.format = files, len(files) - tests, format
        for number in {0, self._test_file} & set(range(len(files))):  # the others, as reading comes to them
            files[number].check(format)
        self._encoded = partial(encoded_chunks, on_bad_row=on_bad_row, threads=threads, chunk_bytes=chunk_bytes)
        self.name, self.fields, self.numbers = name or files[0].source, format.fields, format.numbers
        self.lists, self.labelled, self.weighted = tuple(format.lists), format.labelled, format.weight is not None
        self.timed, self.columns, self.findings = format.time is not None, format.kinds, format.findings
        source = source_of(files, format, tests)
        self.identity, self._sizes = identity_of(source), [size for _, size, _ in source["files"]]
        self.bad = [BadRows(file.source) for file in files]
        self._starts: list[_Start] = []
        self._ends = [_End() for _ in files]
        counted = self._count(rows_alone(format, on_bad_row), on_progress)
        self._row_at = {(begin.file, begin.offset): begin.row for begin in self._starts}
        self._rows, self.positives = counted.rows, counted.positives
        self.bad_rows = sum((bad.reasons for bad in self.bad), start=Counter())
        self.notes = tuple(shown_bad_rows(self.bad))
        left_out = sum(bad.count for bad in self.bad)
        self.train_rows = counted.checked_train_rows(format, self.name, left_out, self.bad, max_bad)

    def __len__(self) -> int:
        return self._rows

    def places(self, start: int, batch: Batch) -> Int64s:
        """Places `[n]` of rows in the files, from 0, where no column gives times: bad rows and blank lines leave gaps.

        With a column of times, or a test set of its own, they are the rows' numbers.
        """
        if self.format.time is not None or self._test_file < len(self._files):
            return super().places(start, batch)
        places: Int64s = batch.times.numpy() - self._files[0].first_row(self.format)
        return places

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """Rows `start` to `stop` in order, `size` at a time, the last ones fewer; threads read ahead.

        In an uncompressed text log nothing before the chunk of row `start` is read, and of other logs no file before
        that row's.

        Raises:
            ClickLogError: A bad row (FILE:LINE: why), or a log that has changed since its rows were counted.
        """
        yield from rebatched(read_ahead(self._parts(max(start, 0), min(stop, len(self)))), size)

    def _count(self, log: LogFormat, on_progress: Callable[[int, int | None], None] | None) -> RowCount:
        counted, begin, done = RowCount(), _Start(0, 0, 0, 1), 0
        sizes = [file.size for file in self._files]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        for stretch, chunk, encoded in self._encoded(self._unread(), log):
            number, file = stretch.number, stretch.file
            if number != begin.file:
                begin = _Start(counted.rows, number, 0, 1)
            if encoded.batch.num_rows:
                self._starts.append(replace(begin, row=counted.rows))
            counted.note(encoded, log, file.source, of_test_log=number >= self._test_file)
            done += chunk.end_offset - begin.offset
            begin = _Start(counted.rows, number, chunk.end_offset, chunk.end_line)
            self._ends[number] = _End(counted.rows, chunk.end_offset, chunk.end_line - file.first_row(log))
            if on_progress:
                on_progress(done, total)
        row = places = 0
        for number, end in enumerate(self._ends):
            row, before = max(row, end.row), 0 if number == self._test_file else places
            self._ends[number] = replace(end, row=row, before=before)
            places = before + max(end.places, 0)
        return counted

    def _unread(self) -> Iterator[Stretch]:
        """All files, each checked when it is its turn."""
        for number, file in enumerate(self._files):
            file.check(self.format)
            yield Stretch(number, file, self.bad[number])

    def _from(self, begin: _Start, stop: int) -> Iterator[Stretch]:
        """What was counted from a chunk on, up to the file that has the row before row `stop`."""
        offset, line = begin.offset, begin.line
        last = next(number for number, end in enumerate(self._ends) if end.row >= stop)
        for number, file in enumerate(self._files[begin.file : last + 1], begin.file):
            if file.stored.size_now() < self._sizes[number]:
                raise self._changed(number)
            yield Stretch(number, file, BadRows(""), offset, line, until=self._ends[number].offset)
            offset, line = 0, 1

    def _parts(self, start: int, stop: int) -> Iterator[Batch]:
        """Rows `start` to `stop`, within the log, a chunk at a time."""
        if start >= stop:
            return
        begin = self._starts[bisect_right(self._starts, start, key=lambda begin: begin.row) - 1]
        position, current = begin.row, begin.file
        with closing(self._encoded(self._from(begin, stop), self.format)) as chunks:
            for stretch, chunk, encoded in chunks:
                if stretch.number != current:
                    self._check_read(position, self._ends[stretch.number - 1].row)
                    current = stretch.number
                last = self._ends[current]
                rows = min(encoded.batch.num_rows, last.row - position)  # what was added since is not read
                first, end = max(start - position, 0), min(stop - position, rows)
                position += rows
                if first < end:
                    batch = with_places(encoded.batch.slice(first, end - first), self.format, last.before)
                    yield batch_of(pa.Table.from_batches([batch]), self.fields, self.numbers, self.lists, self.weighted)
                if position >= stop:
                    return
                if position < last.row and self._row_at.get((current, chunk.end_offset), position) != position:
                    raise self._changed(current)
        self._check_read(position, stop)

    def _check_read(self, position: int, expected: int) -> None:
        """Whether all rows before `expected` have been read, now that `position` of them have."""
        if position < expected:
            raise self._changed(next(number for number, end in enumerate(self._ends) if end.row > position))

    def values_of(self, keys: Int64s, most_rows: int) -> dict[int, str]:
        """The text of those of `keys` `[n]` that come in about the first `most_rows` rows, which are read for it.

        Raises:
            ClickLogError: As `batches`.
        """
        places = np.unique(fields_of(keys))
        fields = [self.fields[place] for place in places[places < len(self.fields)].tolist()]
        wanted, found, rows = pl.DataFrame({"key": np.unique(keys)}), dict[int, str](), 0
        if not fields:
            return found
        everything = (Stretch(number, file, BadRows("")) for number, file in enumerate(self._files))
        with closing(self._encoded(everything, self.format, keep_raw=True)) as chunks:
            for _, _, encoded in chunks:
                named = named_keys(encoded, self.format, fields).join(wanted, on="key", how="semi")
                found |= dict(named.select("key", "value").iter_rows())
                rows += encoded.batch.num_rows
                if len(found) == len(wanted) or rows >= most_rows:
                    break
        return found

    def _changed(self, number: int) -> ClickLogError:
        source = self._files[number].source
        return ClickLogError(f"{source}: has changed since its rows were counted; read it from the start")


def rows_alone(log: LogFormat, on_bad_row: OnBadRow) -> LogFormat:
    """A format with those columns alone that say which rows there are, and where the test set begins."""
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
