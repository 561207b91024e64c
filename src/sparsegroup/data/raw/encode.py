"""Raw rows to batches of keys, numbers, labels, times and weights; threads parse ahead, bad rows have their line."""

import math
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl
import torch

from sparsegroup.data.batches import MOST_WEIGHT, Bags, Batch
from sparsegroup.data.keys import Int64s, keys_of, keys_of_columns
from sparsegroup.data.kinds import NUMBERS, Label
from sparsegroup.data.raw.files import LINE, SAMPLE, BadRow, BadRows, Chunk, RawFile
from sparsegroup.data.schema import LogFormat
from sparsegroup.data.values import composed, texts_of
from sparsegroup.errors import ClickLogError
from sparsegroup.settings.names import OnBadRow

LABEL_VALUE, TRIES = "\x00label", "\x00tries"
"""Columns of the labels as numbers, with a task's number behind it, and of tries; no file has any of that name."""

TRAIN, VALIDATION, TEST = 0, 1, 2
SPLITS = {
    **dict.fromkeys(("", "0", "0.0", "train", "training"), TRAIN),
    **dict.fromkeys(("1", "1.0", "valid", "validation", "val", "dev"), VALIDATION),
    **dict.fromkeys(("2", "2.0", "test", "testing"), TEST),
}
"""Text of a split column, in lower case → the set that the row is in. Validation rows are trained on."""
_SPLIT_MARK = "\x00split"


@dataclass(frozen=True)
class EncodedRows:
    """The rows of a chunk; without a column of times, their times are their places in the log's files, from 1."""

    batch: Batch
    raw: pl.DataFrame | None
    """The fields' values as they were hashed, if they were requested."""
    split: npt.NDArray[np.int8] | None
    """`[n]` the set of each row, a value of `SPLITS`; None for a format without a split column."""
    bad: list[BadRow]
    """Rows left out, in order."""

    def named_keys(self, log: LogFormat, fields: Sequence[str]) -> pl.DataFrame:
        """Columns `key`, `field` and `value` of the features of some fields, once for each field; needs `raw`.

        `field` is the field that the vocabulary belongs to.
        """
        assert self.raw is not None
        single, pieces = [name for name in log.fields if name not in log.lists], []
        for name in fields:
            values = self.raw[name].fill_null("")
            if name in log.lists:
                keys = self.batch.bags[list(log.lists).index(name)].keys
                values = values.str.split(log.lists[name]).explode()
            else:
                keys = self.batch.keys[:, single.index(name)]
            named = pl.DataFrame([pl.Series("key", keys.numpy(), pl.Int64), values.alias("value")])
            owner = pl.lit(log.columns_of_model.shares.get(name, name)).alias("field")
            pieces.append(named.unique("key").select("key", owner, "value"))
        return pl.concat(pieces)


@dataclass
class ReadRange:
    """Consecutive chunks of file number `number` of a log, from `offset` on; `line` is the next one to be read."""

    number: int
    file: RawFile
    bad: BadRows | None = None
    """Receives bad rows, if they are counted."""
    offset: int = 0
    line: int = 1
    until: int | None = None
    """The `end_offset` after which nothing more is read; None for the whole file."""
    row: int = 0
    """Number in the log of the first row."""
    places: int = 0
    """Rows, bad rows and blank lines in the files before it; a test log begins at 0."""


def whole_files(
    files: Sequence[RawFile], log: LogFormat, first_test: int, bads: Sequence[BadRows], begin: ReadRange | None = None
) -> Iterator[ReadRange]:
    """All files, from where `begin` is on, each checked when it is its turn."""
    part = begin or ReadRange(0, files[0])
    while True:
        part.file.check(log)
        part.bad = bads[part.number]
        yield part
        number, places = part.number + 1, part.places + max(part.line - part.file.first_row(log), 0)
        if number == len(files):
            return
        part = ReadRange(number, files[number], places=0 if number == first_test else places)


def encoded_chunks(
    ranges: Iterable[ReadRange],
    log: LogFormat,
    *,
    on_bad_row: OnBadRow,
    threads: int,
    chunk_bytes: int,
    keep_raw: bool = False,
) -> Generator[tuple[ReadRange, Chunk, EncodedRows]]:
    """The chunks of some ranges in order, and their rows; ranges are requested as reading reaches them.

    `threads` threads parse and hash, also several small files at the same time. `keep_raw` gives the fields' values.
    Raises ClickLogError for a bad row, unless they are skipped, and for a damaged file.
    """
    with ThreadPoolExecutor(threads) as pool:
        pending: deque[tuple[ReadRange, Chunk, Future[EncodedRows]]] = deque()

        def first() -> tuple[ReadRange, Chunk, EncodedRows]:
            part, chunk, job = pending.popleft()
            encoded = job.result()
            for number, reason, text in encoded.bad:
                if on_bad_row == "error":
                    others, rows = len(encoded.bad) - 1, len(encoded.batch) + len(encoded.bad)
                    more = f" (and {others:,} more of the {rows:,} rows around it)" if others else ""
                    raise ClickLogError(f"{part.file.source}:{number}: {reason}: {text[:SAMPLE]!r}{more}")
                if part.bad is not None:
                    part.bad.add(number, reason, text)
            return part, chunk, encoded

        try:
            for part, chunk in _read(ranges, log, chunk_bytes):
                pending.append((part, chunk, pool.submit(encode_chunk, part.file, chunk, log, keep_raw, part.places)))
                if len(pending) > threads:
                    yield first()
            while pending:
                yield first()
        finally:
            for _, _, job in pending:
                job.cancel()


def _read(ranges: Iterable[ReadRange], log: LogFormat, chunk_bytes: int) -> Iterator[tuple[ReadRange, Chunk]]:
    for part in ranges:
        for chunk in part.file.chunks(log, part.offset, part.line, chunk_bytes):
            part.line = chunk.end_line
            yield part, chunk
            if part.until is not None and chunk.end_offset >= part.until:
                break


def encode_chunk(file: RawFile, chunk: Chunk, log: LogFormat, keep_raw: bool = False, places: int = 0) -> EncodedRows:
    """Parse and hash rows of a file; `places` is the number of places in the files before it."""
    bad: list[BadRow] = []
    frame = file.full_frame(chunk, log, bad)
    try:
        return encode_frame(frame, log, bad, keep_raw, places)
    except ClickLogError as error:
        raise ClickLogError(f"{file.source}: {error}") from error


def encode_frame(
    frame: pl.DataFrame, log: LogFormat, bad: list[BadRow], keep_raw: bool = False, places: int = 0
) -> EncodedRows:
    """Hash the format's raw columns, in which empty values are null. The column `LINE` has the rows' line numbers.

    `bad` has the rows that were left out before. ClickLogError: a column's type does not fit its kind.
    """
    of_texts = (
        (*log.label_columns, log.weight, log.split_column, log.time) if log.kinds and log.derive else frame.columns
    )
    frame = texts_of(frame, [name for name in of_texts if name in frame.columns and name != LINE], plain=not log.kinds)
    frame = _with_valid_labels(frame, log, bad)
    frame = _with_valid_weights(frame, log, bad)
    frame = _with_valid_split(frame, log, bad)
    frame = _derived(frame, log, bad)
    frame = composed(frame, log.fields)
    rows, missing = len(frame), math.nan if log.kinds else 0.0
    labels = _labels(frame, log)
    times = (frame[LINE].cast(pl.Int64) + places).to_numpy() if log.time is None else _seconds(frame[log.time])
    numbered = log.columns_of_model.key_fields
    single = [name for name in log.fields if name not in log.lists]
    keys, numbers = np.empty((rows, 0), np.int64), np.empty((rows, 0), np.float32)
    if single:
        keys = keys_of_columns([frame[name] for name in single], [numbered[name] for name in single])
    if log.numbers:  # one call of Polars: a call for each column would dominate the time
        columns = pl.DataFrame([frame[name] for name in log.numbers])
        columns = columns.select(pl.all().fill_null(missing).cast(pl.Float32))
        numbers = columns.to_numpy(order="c", writable=True)
    batch = Batch(
        torch.from_numpy(keys),
        torch.from_numpy(numbers),
        torch.from_numpy(labels),
        torch.from_numpy(times.copy()),
        weights=_weights(frame, log, labels) if log.weighted else None,
        bags=tuple(_bags(frame[name], separator, numbered[name]) for name, separator in log.lists.items()),
    )
    split = frame[_SPLIT_MARK].to_numpy() if log.split_column else None
    return EncodedRows(batch, frame.select(log.fields) if keep_raw else None, split, sorted(bad))


def _with_valid_labels(frame: pl.DataFrame, log: LogFormat, bad: list[BadRow]) -> pl.DataFrame:
    """The rows with labels, as numbers in another column: the label's may also be a field."""
    if not log.labelled:
        return frame
    if log.tasks:
        return _with_labels_of_tasks(frame, log, bad)
    if log.reader.tries is None:
        labels = log.reader.read(frame[log.label])
    else:
        both = [Label(name, NUMBERS).read(frame[name]) for name in log.reader.columns]
        frame = frame.with_columns(both[1].alias(TRIES))
        labels = _share_of(*both)
    frame = frame.with_columns(labels.alias(LABEL_VALUE))
    if not labels.null_count():
        return frame
    for row in frame.filter(labels.is_null()).iter_rows(named=True):
        text = row[log.label]
        bad.append((row[LINE], log.reader.problem, f"no {log.label}" if text is None else f"{log.label}={text}"))
    return frame.filter(labels.is_not_null())


def _share_of(some: pl.Series, tries: pl.Series) -> pl.Series:
    """The share `[n]` of tries that a column counts, 0 of none; null where it is below 0 or above their number."""
    both = pl.DataFrame({"some": some, "tries": tries})
    valid = (pl.col("some") >= 0) & (pl.col("some") <= pl.col("tries"))
    share = pl.col("some") / pl.col("tries").clip(lower_bound=1e-30)
    return both.select(pl.when(valid).then(share)).to_series()


def _with_labels_of_tasks(frame: pl.DataFrame, log: LogFormat, bad: list[BadRow]) -> pl.DataFrame:
    """The same of several tasks: an empty label is none of its task's, which a row may lack, but not all of them."""
    rows = np.ones(len(frame), np.bool_)
    none = np.ones(len(frame), np.bool_)
    for number, reader in enumerate(log.readers):
        texts = frame[reader.column]
        empty = (texts.is_null() | (texts.str.strip_chars() == "").fill_null(False)).to_numpy()
        labels = reader.read(texts)
        wrong = labels.is_null().to_numpy() & ~empty & rows
        for row in frame.filter(pl.Series(wrong)).iter_rows(named=True):
            bad.append((row[LINE], reader.problem, f"{reader.column}={row[reader.column]}"))
        rows, none = rows & ~wrong, none & empty
        frame = frame.with_columns(labels.alias(f"{LABEL_VALUE}{number}"))
    names = ", ".join(one.column for one in log.readers)
    for line in frame[LINE].filter(pl.Series(none)):
        bad.append((line, "no task has a label", f"no {names}"))
    kept = rows & ~none
    return frame if kept.all() else frame.filter(pl.Series(kept))


def _labels(frame: pl.DataFrame, log: LogFormat) -> npt.NDArray[np.float32]:
    """`[n]`, or of several tasks `[n, tasks]`, NaN where a task has none; zeros of a log without labels."""
    if not log.labelled:
        return np.zeros((len(frame), len(log.tasks)) if log.tasks else len(frame), np.float32)
    if not log.tasks:
        return frame[LABEL_VALUE].to_numpy().copy()
    columns = [frame[f"{LABEL_VALUE}{number}"].fill_null(math.nan).to_numpy() for number in range(len(log.tasks))]
    return np.stack(columns, axis=1).astype(np.float32)


def _with_valid_weights(frame: pl.DataFrame, log: LogFormat, bad: list[BadRow]) -> pl.DataFrame:
    if log.weight is None:
        return frame
    weight = frame[log.weight].str.strip_chars().cast(pl.Float32, strict=False)
    valid = weight.is_between(0, MOST_WEIGHT).fill_null(False)
    if valid.all():
        return frame.with_columns(weight)
    for row in frame.filter(~valid).iter_rows(named=True):
        text = f"{log.weight}={row[log.weight]}" if row[log.weight] is not None else f"no {log.weight}"
        bad.append((row[LINE], f"weight {log.weight!r} must be a number >= 0, at most {MOST_WEIGHT:g}", text))
    return frame.with_columns(weight).filter(valid)


def _with_valid_split(frame: pl.DataFrame, log: LogFormat, bad: list[BadRow]) -> pl.DataFrame:
    """Return the rows with a valid mark in the split column, and the number of the mark in `_SPLIT_MARK`."""
    if log.split_column is None:
        return frame
    text = pl.col(log.split_column).fill_null("").str.strip_chars().str.to_lowercase()
    mark = text.replace_strict(SPLITS, default=None, return_dtype=pl.Int8)
    frame = frame.with_columns(mark.alias(_SPLIT_MARK))
    if not frame[_SPLIT_MARK].null_count():
        return frame
    reason = (
        f"{log.split_column!r} must mark a row as train, valid or test, or as 0, 1 or 2; rename a column of another "
        "meaning, or give a schema"
    )
    for line, value in frame.filter(pl.col(_SPLIT_MARK).is_null()).select(LINE, log.split_column).iter_rows():
        bad.append((line, reason, f"{log.split_column}={value}"))
    return frame.filter(pl.col(_SPLIT_MARK).is_not_null())


def _weights(frame: pl.DataFrame, log: LogFormat, labels: npt.NDArray[np.float32]) -> torch.Tensor:
    own = np.ones(len(labels), np.float32) if log.weight is None else frame[log.weight].to_numpy().copy()
    if log.labelled and log.reader.tries is not None:
        own *= frame[TRIES].to_numpy()
    if log.labelled and log.class_weights != (1, 1):
        own *= np.where(labels == 1, *reversed(log.class_weights)).astype(np.float32)
    return torch.from_numpy(own)


def _derived(frame: pl.DataFrame, log: LogFormat, bad: list[BadRow]) -> pl.DataFrame:
    """The fields, numbers and time made of the raw columns, without rows of which they cannot be."""
    made = log.derive(frame) if log.derive else frame
    numbers = [pl.col(name).cast(pl.Float32, strict=False) for name in log.numbers]
    if not log.kinds:  # there NaN is a missing number
        made = made.with_columns(pl.when(number.is_finite()).then(number) for number in numbers)
    checked = {**{name: name for name in log.numbers}, **log.checked}
    if log.time is not None and log.time not in checked:
        made = made.with_columns(pl.col(log.time).cast(pl.Int64, strict=False))
        checked[log.time] = log.time
    works = np.ones(len(frame), np.bool_)
    for name, raw in checked.items():
        if not made[name].null_count():
            continue
        failed = made[name].is_null()
        if name != log.time or name == raw:  # a time that is made of a column cannot be missing
            failed &= frame[raw].is_not_null()
        if failed.any():
            for row in frame.filter(failed & pl.Series(works)).iter_rows(named=True):
                bad.append((row[LINE], f"{raw!r} cannot be read", f"{raw}={'' if row[raw] is None else row[raw]}"))
            works &= ~failed.to_numpy()
    return made if works.all() else made.filter(works)


def _seconds(times: pl.Series) -> Int64s:
    if times.dtype == pl.Datetime:
        return times.dt.epoch("s").to_numpy()
    return times.cast(pl.Int64).fill_null(0).to_numpy()


def _bags(values: pl.Series, separator: str, field: int) -> Bags:
    lists = values.fill_null("").str.split(separator)
    offsets = np.zeros(len(lists) + 1, np.int64)
    np.cumsum(lists.list.len().to_numpy(), out=offsets[1:])
    return Bags(torch.from_numpy(keys_of(lists.explode(), field)), torch.from_numpy(offsets))
