"""A raw log to train on without preparing it: its rows are counted once and parsed again in each pass."""

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from typing import NamedTuple

import numpy as np
import polars as pl

from sparsegroup.data.batches import Batch, read_ahead, rebatched
from sparsegroup.data.keys import Int64s, fields_of
from sparsegroup.data.log import Log
from sparsegroup.data.raw.encode import (
    TEST,
    VALIDATION,
    EncodedRows,
    ReadRange,
    encode_chunk,
    encoded_chunks,
    whole_files,
)
from sparsegroup.data.raw.files import BadRows, Chunk, RawFile, identity_of, shown_bad_rows, source_of
from sparsegroup.data.raw.text import CHUNK_BYTES
from sparsegroup.data.schema import LogFormat
from sparsegroup.errors import ClickLogError, LogOptionError
from sparsegroup.settings.names import OnBadRow

_DAY = 24 * 3600


@dataclass
class RowCount:
    """Counts of the rows of a log that have been read, from which it follows where the test set begins."""

    rows: int = 0
    positives: int = 0
    """Number of rows with label 1."""
    last_time: int = 0
    boundary: int = -1
    """First row of the last day, or of the test set if that is marked; -1 before there is one."""
    validation: int = 0
    """Number of rows that the split column marks for validation."""

    def note(self, encoded: EncodedRows, log: LogFormat, source: str, *, of_test_log: bool) -> None:
        """Count the next rows, of the file `source`, perhaps of the test set's own log.

        Raises ClickLogError if they are not in the order of time, of a log whose last day is the test set; or if
        training rows follow test rows.
        """
        batch = encoded.batch
        if not len(batch):
            return
        if log.split == "last-day":
            times = batch.times.numpy()
            if times[0] < self.last_time or (np.diff(times) < 0).any():
                raise ClickLogError(f"{source}: rows must be in the order of time, for the last day is the test set")
            days = times // _DAY
            if days[-1] > self.last_time // _DAY or self.boundary < 0:
                self.boundary = self.rows + int(np.searchsorted(days, days[-1]))
            self.last_time = int(times[-1])
        if log.split == "time":
            self._note_times(batch.times.numpy(), log, source)
        if encoded.split is not None:
            is_test = encoded.split == TEST
            first = int(is_test.argmax()) if is_test.any() else -1
            began = 0 if self.boundary >= 0 else first
            if began >= 0 and not is_test[began:].all():
                raise ClickLogError(f"{source}: test rows ({log.split_column} is test or 2) must come last")
            if first >= 0 and self.boundary < 0:
                self.boundary = self.rows + first
            self.validation += int((encoded.split == VALIDATION).sum())
        if of_test_log and self.boundary < 0:
            self.boundary = self.rows
        self.rows += len(batch)
        labels = batch.labels if batch.labels.ndim == 1 else batch.labels.nan_to_num().abs().amax(1)
        self.positives += int(labels.count_nonzero())

    def _note_times(self, times: Int64s, log: LogFormat, source: str) -> None:
        assert log.test_from is not None
        is_test, self.last_time = times >= log.test_from, max(self.last_time, int(times.max()))
        if self.boundary < 0 and is_test.any():
            self.boundary = self.rows + int(is_test.argmax())
        if self.boundary >= 0 and not is_test[max(self.boundary - self.rows, 0) :].all():
            raise ClickLogError(
                f"{source}: rows from before {_date(log.test_from)} (`test_from`) come after later ones: sort the log "
                "by time",
                "test_from",
            )

    def train_rows(self, log: LogFormat) -> int:
        """How many rows, from the start, are for training, once all have been counted."""
        if log.split == "last-day":
            return self.boundary or self.rows  # of a single day there is no test set
        if log.split in ("time", "column", "file"):
            return self.boundary if self.boundary >= 0 else self.rows
        if log.split == "last-of-7":
            return max(1, self.rows * 6 // 7)
        return self.rows - round(self.rows * log.test_fraction) if log.split == "last-fraction" else self.rows

    def checked_train_rows(
        self, log: LogFormat, source: str, left_out: int, bads: Sequence[BadRows], max_bad: float
    ) -> int:
        """`train_rows` of a log that can be trained on; `left_out` rows are bad, `bads` are examples of them.

        Raises ClickLogError for more bad rows than the share `max_bad`, no rows, or no training rows.
        """
        if left_out > max_bad * (self.rows + left_out):
            examples = "\n".join(shown_bad_rows(bads))
            raise ClickLogError(
                f"{left_out:,} of {self.rows + left_out:,} rows are bad, more than max_bad={max_bad:g}\n{examples}"
            )
        if not self.rows:
            raise ClickLogError(f"{source}: no rows")
        if self.validation and self.boundary < 0:
            raise ClickLogError(
                f"{source}: {log.split_column!r} marks {self.validation:,} rows for validation (valid or 1) and none "
                "for testing (test or 2): mark the test rows, rename the column, or give a schema"
            )
        train_rows = self.train_rows(log)
        if log.test_from is not None and train_rows in (0, self.rows):
            what = "no row is later, the last one is" if train_rows else "no row is earlier, the last one is"
            raise ClickLogError(
                f"{source}: `test_from` {_date(log.test_from)}: {what} of {_date(self.last_time)}", "test_from"
            )
        if not train_rows:
            raise ClickLogError(f"{source}: no training rows; all {self.rows:,} are for testing")
        return train_rows

    def notes(self, log: LogFormat) -> tuple[str, ...]:
        """Return notes about validation rows and about labels that are all equal."""
        found = []
        if self.validation:
            found.append(f"{self.validation:,} rows that {log.split_column!r} marks for validation are trained on")
        if log.labelled and log.is_binary and log.split != "none" and self.positives in (0, self.rows):
            label = int(self.positives > 0)
            found.append(f"all {self.rows:,} rows have the label {label} ({log.reader}): nothing can be learnt from it")
        return tuple(found)


def _date(seconds: int) -> str:
    """Seconds since 1970 as a date, with the time of the day unless that is midnight."""
    return str(np.datetime64(seconds, "s")).replace("T", " ").removesuffix(" 00:00:00")


class RawLog(Log):
    """A raw log, anything that `prepare` reads, to train on directly. `open_log` makes it.

    It gives the rows that `PreparedLog` gives of what `prepare` makes of it, and takes as little memory. Each pass
    parses and hashes it again.

    Args:
        files: The log's in order, then the separate test log's, if there is one.
        format: Their format, as `format_of` gives it.
        tests: How many of the files are the test set's.
        name: Where the rows come from, for messages; by default the first file.
        on_bad_row: "error" raises at the first bad row, "skip" leaves bad rows out. Where it raises, making the
            `RawLog` finds bad labels and rows with another number of columns; others are found while reading.
        max_bad: Share of the rows, in [0, 1), above which "skip" raises all the same.
        threads: Number of threads that parse and hash.
        on_progress: Called while rows are counted with the number of bytes of the uncompressed logs that have been read
            (of a columnar log, rows), and their total, if that is known.
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
        self.lists, self.labelled, self.weighted = tuple(format.lists), format.labelled, format.weighted
        self.binary, self.classes = format.is_binary, () if format.tasks else format.reader.classes
        self.tasks = tuple(str(one) for one in format.readers) if format.tasks else ()
        self.timed, self.columns, self.findings = format.time is not None, format.kinds, format.findings
        self.described = format.described
        source = source_of(files, format, tests)
        self.identity = identity_of(source)
        self.bad = [BadRows(file.source) for file in files]
        self._counts = [_FileRows(size) for _, size, _ in source["files"]]
        counted = self._count(_format_for_counting(format, on_bad_row), on_progress)
        self._rows, self.positives = counted.rows, counted.positives
        self.bad_rows = sum((bad.reasons for bad in self.bad), start=Counter())
        self.notes = (*shown_bad_rows(self.bad), *counted.notes(format))
        left_out = sum(bad.count for bad in self.bad)
        self.train_rows = counted.checked_train_rows(format, self.name, left_out, self.bad, max_bad)

    def __len__(self) -> int:
        return self._rows

    def places(self, start: int, batch: Batch) -> Int64s:
        """Places `[n]` of rows in the files, from 0, if no column has times: bad rows and blank lines leave gaps.

        With a column of times, or a separate test set, they are the rows' numbers.
        """
        if self.format.time is not None or self._test_file < len(self._files):
            return super().places(start, batch)
        places: Int64s = batch.times.numpy() - self._files[0].first_row(self.format)
        return places

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """See `Log.batches`; threads read ahead, from the chunk of row `start` on (see `chunk_starts`).

        Raises:
            ClickLogError: A bad row (FILE:LINE: why), or a log that has changed since its rows were counted.
        """
        yield from rebatched(read_ahead(self._parts(max(start, 0), min(stop, len(self)))), size)

    def chunk_starts(self) -> Int64s:
        """See `Log.chunk_starts`: chunks of texts, row groups, record batches, and files of compressed texts."""
        starts = [chunk.row for file in self._counts for chunk in file.chunks if chunk.is_entry]
        return np.array(starts, np.int64)

    def _count(self, log: LogFormat, on_progress: Callable[[int, int | None], None] | None) -> RowCount:
        counted, done = RowCount(), 0
        sizes = [file.size for file in self._files]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        everything = whole_files(self._files, self.format, self._test_file, self.bad)
        for part, chunk, encoded in self._encoded(everything, log):
            counts, row = self._counts[part.number], counted.rows
            counted.note(encoded, log, part.file.source, of_test_log=part.number >= self._test_file)
            done += chunk.end_offset - counts.offset
            counts.add(chunk, row, counted.rows)
            counts.places = part.places
            if on_progress:
                on_progress(done, total)
        row = 0
        for counts in self._counts:
            counts.first = row
            row = counts.stop = max(row, counts.stop)
        return counted

    def _ranges(self, start: int, stop: int) -> Iterator[ReadRange]:
        """The chunks that have rows `start` to `stop`, of each file after a look at its size."""
        for number in range(self._file_of(start), self._file_of(stop - 1) + 1):
            file, counts = self._files[number], self._counts[number]
            if counts.first == counts.stop:
                continue
            if file.facts_now()[0] < counts.size:
                raise self._changed(number)
            first = counts.chunks[max(bisect_right(counts.chunks, start, key=attrgetter("row")) - 1, 0)]
            after = bisect_left(counts.chunks, stop, key=attrgetter("row"))
            until = counts.chunks[after].offset if after < len(counts.chunks) else counts.offset
            yield ReadRange(number, file, None, first.offset, first.line, until, first.row, counts.places)

    def _parts(self, start: int, stop: int) -> Iterator[Batch]:
        """Rows within the log, a chunk at a time."""
        if start >= stop:
            return
        number, position = -1, start
        with closing(self._encoded(self._ranges(start, stop), self.format)) as chunks:
            for part, chunk, encoded in chunks:
                if part.number != number:
                    if position < part.row:
                        raise self._changed(self._file_of(position))
                    number, position = part.number, part.row
                counts = self._counts[number]
                rows = min(len(encoded.batch), counts.stop - position)  # what was added since is not read
                first, end = max(start - position, 0), min(stop - position, rows)
                if first < end:
                    yield encoded.batch[first:end]
                position += rows
                if position < min(stop, counts.stop) and counts.row_at(chunk.end_offset) not in (None, position):
                    raise self._changed(number)
        if position < stop:
            raise self._changed(self._file_of(position))

    def _file_of(self, row: int) -> int:
        return bisect_right(self._counts, row, key=attrgetter("stop"))

    def values_of(self, keys: Int64s, most_rows: int) -> dict[int, str]:
        """The text of the `keys` `[n]` that appear in about the first `most_rows` rows, which are read for it.

        Raises:
            ClickLogError: As `batches`.
        """
        places = np.unique(fields_of(keys)).tolist()
        fields = [name for name, place in self.schema.key_fields.items() if place in places]
        wanted, found, rows = pl.DataFrame({"key": np.unique(keys)}), dict[int, str](), 0
        if not fields:
            return found
        everything = (ReadRange(number, file) for number, file in enumerate(self._files))
        with closing(self._encoded(everything, self.format, keep_raw=True)) as chunks:
            for _, _, encoded in chunks:
                named = encoded.named_keys(self.format, fields).join(wanted, on="key", how="semi")
                found |= dict(named.select("key", "value").iter_rows())
                rows += len(encoded.batch)
                if len(found) == len(wanted) or rows >= most_rows:
                    break
        return found

    def _changed(self, number: int) -> ClickLogError:
        source = self._files[number].source
        return ClickLogError(f"{source}: has changed since its rows were counted; read it from the start")


class _ChunkStart(NamedTuple):
    """Where a chunk with rows begins: its first row in the log, its place in the file, and `Chunk.is_entry`."""

    row: int
    offset: int
    line: int
    is_entry: bool


@dataclass
class _FileRows:
    """The rows of one file, as they were counted: rows `first` to `stop` of the log."""

    size: int
    first: int = 0
    stop: int = 0
    offset: int = 0
    line: int = 1
    """`offset` and `line` are where it ends, as in `RawFile.chunks`."""
    places: int = 0
    """See `ReadRange.places`."""
    chunks: list[_ChunkStart] = field(default_factory=list)
    """Its chunks with rows."""

    def add(self, chunk: Chunk, row: int, stop: int) -> None:
        """Note a chunk that has rows `row` to `stop` of the log."""
        if row < stop:
            self.chunks.append(_ChunkStart(row, self.offset, self.line, not self.chunks or chunk.is_entry))
        self.offset, self.line, self.stop = chunk.end_offset, chunk.end_line, stop

    def row_at(self, offset: int) -> int | None:
        """The first row of the chunk that begins at `offset`; None if none with rows does."""
        place = bisect_left(self.chunks, offset, key=attrgetter("offset"))
        found = self.chunks[place] if place < len(self.chunks) else None
        return found.row if found is not None and found.offset == offset else None


def _format_for_counting(log: LogFormat, on_bad_row: OnBadRow, *, with_time: bool = False) -> LogFormat:
    """A format with only the columns that decide which rows there are, and where the test set begins."""
    if on_bad_row == "skip":  # a value of a field makes no row a bad one unless something is made of it
        return log if log.derive or not log.labelled else replace(log, fields=(), lists={})
    time = log.time if with_time or log.split in ("last-day", "time") else None
    checked = {made: raw for made, raw in log.checked.items() if made == time}
    return replace(
        log,
        fields=() if log.labelled else tuple(name for name in log.fields if name in log.raw)[-1:],  # some column
        numbers=(),
        lists={},
        weight=None,
        time=time,
        derive=log.derive if checked else None,
        checked=checked,
    )


_HEAD_BYTES = 1 << 16
_THREADS = 8


def by_first_time(files: Sequence[RawFile], log: LogFormat) -> list[RawFile]:
    """At least one file, by the time of the first row of each; those without rows come last.

    Raises LogOptionError if the format has no column of times; ClickLogError if a file has other columns or is damaged.
    """
    if len(files) == 1:
        return list(files)
    if log.time is None:
        raise LogOptionError(
            "`sort_files` time is for logs with a column of times (ts or timestamp, or one that a schema names); that "
            f"of {files[0].source} has none",
            "sort_files",
        )
    with ThreadPoolExecutor(_THREADS) as pool:
        times = list(pool.map(partial(_first_time, log=log), files))
    return [files[place] for place in sorted(range(len(files)), key=times.__getitem__)]


def _first_time(file: RawFile, log: LogFormat) -> float:
    file.check(log)
    wanted = _format_for_counting(replace(log, split="none", split_column=None), "error", with_time=True)
    for chunk in file.chunks(wanted, 0, 1, _HEAD_BYTES):
        times = encode_chunk(file, chunk, wanted).batch.times
        if len(times):
            return int(times[0])
    return math.inf
