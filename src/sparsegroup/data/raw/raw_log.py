"""A raw log to train on as it is: read once to count its rows, and then as they are used."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import polars as pl
import pyarrow as pa

from sparsegroup.data.arrow_arrays import numpy_of
from sparsegroup.data.batches import LABEL, TIME, Batch, batch_of, read_ahead, rebatched
from sparsegroup.data.keys import Int64s, fields_of
from sparsegroup.data.log import Log, Run, overlap, rows_in, taken
from sparsegroup.data.log_errors import BadRows, ClickLogError, shown_bad_rows
from sparsegroup.data.raw.chunk_index import ChunkIndex, RowStretch
from sparsegroup.data.raw.encoding import EncodedRows, Stretch, encoded_chunks, named_keys, with_places
from sparsegroup.data.raw.raw_file import RawFile, identity_of, source_of
from sparsegroup.data.raw.text_file import CHUNK_BYTES
from sparsegroup.data.schema import LogFormat
from sparsegroup.settings.names import OnBadRow

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
            times = numpy_of(batch.column(TIME))
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
        self.positives += int(numpy_of(batch.column(LABEL)).sum())

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
        self._chunks = ChunkIndex(files)
        counted = self._count(rows_alone(format, on_bad_row), on_progress)
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

        Reading begins with the chunk of row `start` in an uncompressed text, with its row group or record batch in a
        columnar file, and with its file where that is a compressed text.

        Raises:
            ClickLogError: A bad row (FILE:LINE: why), or a log that has changed since its rows were counted.
        """
        yield from self.run_batches([(start, stop)], size)

    def run_batches(self, runs: Sequence[Run], size: int) -> Iterator[Batch]:
        """See `Log.run_batches`: each chunk is parsed once, and a compressed file is uncompressed once.

        Raises:
            ClickLogError: As `batches`.
        """
        yield from rebatched(read_ahead(self._parts(overlap(runs, 0, len(self)))), size)

    def cuts(self, longest: int) -> Int64s:
        """See `Log.cuts`: the chunks of texts, row groups and record batches, and the files of compressed texts.

        Within a compressed text of more than `longest` rows, which many have to read anyway, those of its chunks.
        """
        return self._chunks.cuts(longest)

    def _count(self, log: LogFormat, on_progress: Callable[[int, int | None], None] | None) -> RowCount:
        counted, done = RowCount(), 0
        sizes = [file.size for file in self._files]
        total = None if None in sizes else sum(size or 0 for size in sizes)
        for stretch, chunk, encoded in self._encoded(self._unread(), log):
            number, file, row = stretch.number, stretch.file, counted.rows
            counted.note(encoded, log, file.source, of_test_log=number >= self._test_file)
            done += self._chunks.add(number, chunk, row, counted.rows, chunk.end_line - file.first_row(log))
            if on_progress:
                on_progress(done, total)
        self._chunks.close(self._test_file)
        return counted

    def _unread(self) -> Iterator[Stretch]:
        """All files, each checked when it is its turn."""
        for number, file in enumerate(self._files):
            file.check(self.format)
            yield Stretch(number, file, self.bad[number])

    def _unchanged(self, stretches: Iterable[RowStretch]) -> Iterator[RowStretch]:
        """What is to be read, of each file after a look at its size."""
        seen = -1
        for stretch in stretches:
            if stretch.number != seen and stretch.file.stored.size_now() < self._sizes[stretch.number]:
                raise self._changed(stretch.number)
            seen = stretch.number
            yield stretch

    def _parts(self, runs: Sequence[Run]) -> Iterator[Batch]:
        """Rows within the log, those of a chunk at a time."""
        current: RowStretch | None = None
        position = given = 0
        stretches = self._unchanged(self._chunks.stretches(runs))
        with closing(self._encoded(stretches, self.format)) as chunks:
            for stretch, chunk, encoded in chunks:
                if stretch is not current:
                    self._check_given(runs, given, stretch.before)
                    current, position = stretch, stretch.row
                last = self._chunks.ends[stretch.number]
                rows = min(encoded.batch.num_rows, last.row - position)  # what was added since is not read
                for first, stop in overlap(stretch.runs, position, position + rows):
                    batch = encoded.batch.slice(first - position, stop - first)
                    table = pa.Table.from_batches([with_places(batch, self.format, last.before)])
                    given += len(batch)
                    yield batch_of(table, self.fields, self.numbers, self.lists, self.weighted)
                position += rows
                counted = self._chunks.row_at(stretch.number, chunk.end_offset)
                if position < stretch.runs[-1][1] and counted not in (None, position):
                    raise self._changed(stretch.number)
        self._check_given(runs, given, rows_in(runs))

    def _check_given(self, runs: Sequence[Run], given: int, expected: int) -> None:
        """Whether the first `expected` rows of the runs have been read, now that `given` of them have."""
        if given < expected:
            ((row, _),) = taken(runs, given, given + 1)
            raise self._changed(self._chunks.file_of(row))

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
