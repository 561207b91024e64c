"""Parquet and Arrow files: their rows as typed columns, a record batch at a time.

Arrow's readers trust a damaged file: offsets beyond the values, texts that are not UTF-8, codes without an entry in the
dictionary. So each batch is validated in full before its values are used.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from sparsegroup.data.kinds import PER_SECOND
from sparsegroup.data.raw.files import LINE, SAMPLE, BadRow, Chunk, RawFile
from sparsegroup.data.schema import Head, LogFormat
from sparsegroup.data.values import is_pandas_index, leaves, size_of, without_empty
from sparsegroup.errors import ClickLogError

LONGEST_VALUE = 1 << 20
"""Largest size of a text or list, in bytes. A longer value makes a bad row."""

_ROWS = 1 << 16
"""Rows of a chunk, at most."""

_SECONDS = (-62135596800, 253402300800)
"""The years 1 to 9999, which ISO 8601 writes with four digits; Polars ends in a panic far beyond them."""
_DAY = 24 * 3600
_NO_YEAR = "is not within the years 1 to 9999"
_UNREADABLE = (OSError, pa.ArrowException, UnicodeDecodeError, OverflowError, MemoryError)


@contextmanager
def _damage(where: str, what: str = "damaged", *more: type[Exception]) -> Iterator[None]:
    """Turn a reader's errors into a ClickLogError that names the file."""
    try:
        yield
    except (*_UNREADABLE, *more) as error:
        raise ClickLogError(f"{where}: {what} ({' '.join(str(error).split())})") from error


def _numbers(times: pa.Array) -> tuple[pa.Array, int, int]:
    """Times as whole numbers, the least that they may be, and what they are below; of other values none."""
    dtype, types = times.type, pa.types
    if types.is_date32(dtype):
        return times.view(pa.int32()), _SECONDS[0] // _DAY, _SECONDS[1] // _DAY
    if types.is_date64(dtype) or types.is_timestamp(dtype) or types.is_duration(dtype):
        unit = 1000 if types.is_date64(dtype) else PER_SECOND[dtype.unit]
        return times.view(pa.int64()), max(_SECONDS[0] * unit, -(1 << 63)), min(_SECONDS[1] * unit, (1 << 63) - 1)
    return pa.nulls(0, pa.int64()), 0, 0


def _beyond(values: pa.Array) -> pa.Array | None:
    """Which values are times beyond the years 1 to 9999; None if there are none."""
    numbers, low, high = _numbers(values)
    if not len(numbers):
        return None
    import pyarrow.compute as pc  # the thirtieth of a second, which a log of text does without

    least, most = pc.min_max(numbers).values()
    if not least.is_valid or (low <= least.as_py() and most.as_py() < high):
        return None
    return pc.fill_null(pc.or_(pc.less(numbers, low), pc.greater_equal(numbers, high)), False)


def _inner(values: pa.Array) -> Iterator[pa.Array]:
    """The flat values within lists and structs."""
    types = pa.types
    if types.is_struct(values.type):
        parts = values.flatten()
    elif types.is_list(values.type) or types.is_large_list(values.type) or types.is_fixed_size_list(values.type):
        parts = [values.flatten()]
    else:
        return
    for part in parts:
        yield from _inner(part) if pa.types.is_nested(part.type) else [part]


def _has_decimal256(dtype: pa.DataType) -> bool:
    """Return whether a type is or contains decimals of 256 bits, at which Polars panics."""
    inner = (dtype.field(place).type for place in range(dtype.num_fields))
    return pa.types.is_decimal256(dtype) or any(map(_has_decimal256, inner))


def _plain(values: pa.Array) -> pa.Array:
    """Convert values to a type that Polars reads, if such a type has the same values."""
    values = values.storage if isinstance(values, pa.ExtensionArray) else values
    if pa.types.is_dictionary(values.type):
        inner = values.type.value_type
        if pa.types.is_temporal(inner) or pa.types.is_decimal256(inner):
            values = values.dictionary_decode()
    if pa.types.is_decimal256(values.type):
        try:
            return values.cast(pa.decimal128(38, min(values.type.scale, 38)))
        except pa.ArrowInvalid:  # more than 38 digits
            return values.cast(pa.string())
    return values


class ColumnarFile(RawFile):
    """A Parquet, Arrow or Feather file; see `RawFile`."""

    suffixes = (".parquet", ".pq", ".parq", ".arrow", ".feather")
    size = None

    @property
    def is_parquet(self) -> bool:
        """Return whether the file is a Parquet file and not an Arrow or Feather file."""
        return self.suffix not in (".arrow", ".feather")

    @cached_property
    def _starts(self) -> dict[int, int]:
        """Record batch of an Arrow file → its first row, as far as they have been read."""
        return {0: 0}

    @contextmanager
    def _opened(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """The file, open to read these columns."""
        kind = "Parquet" if self.is_parquet else "Arrow"
        with self.open_bytes() as stream:
            with _damage(self.source, f"damaged, or no {kind} file", ValueError):
                if self.is_parquet:
                    file = pq.ParquetFile(stream, pre_buffer=True, page_checksum_verification=True)
                else:
                    file = pa.ipc.open_file(stream)
                    if columns is not None:
                        fields = [file.schema.names.index(name) for name in columns]
                        options = pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False)
                        file = pa.ipc.open_file(stream, options=options)
            yield file

    def _read_head(self) -> Head:
        with self._opened() as file:
            schema = file.schema_arrow if isinstance(file, pq.ParquetFile) else file.schema
            fields = [field for field in schema if not is_pandas_index(field.name)]
            named = [(leaf, field.name) for field in fields for leaf in _leaf_names(field)]
            self._column_of = dict(named)
            return Head(self.source, tuple(leaf for leaf, _ in named))

    def chunks(self, log: LogFormat, offset: int, line: int, chunk_bytes: int) -> Iterator[Chunk]:
        """The rows from row `offset` on. Raises ClickLogError if the file is damaged, and says where."""
        added = self.head.added
        wanted = list(dict.fromkeys(self._column_of[name] for name in log.raw if name not in added))
        with self._opened(wanted) as file:
            groups = self._row_groups if isinstance(file, pq.ParquetFile) else self._record_batches
            for place, start, batches in groups(file, wanted, offset):
                with _damage(f"{self.source}: {place}"):
                    row = start
                    for batch in batches:
                        begin, row, rows = max(row, offset), row + batch.num_rows, batch.select(wanted)
                        if begin < row:
                            rows = rows.slice(len(rows) - (row - begin))
                            entry = row - batch.num_rows == start
                            yield Chunk(begin + 1, row, row + 1, (place, rows), entry)

    def frame(self, chunk: Chunk, log: LogFormat, bad: list[BadRow]) -> pl.DataFrame:
        """Return the typed rows. ClickLogError: the file is damaged, or the type of a column cannot be read."""
        place, batch = chunk.data
        with _damage(f"{self.source}: {place}"):
            batch.validate(full=True)
        unusable = dict[int, BadRow]()
        columns = zip(batch.schema.names, batch.columns, strict=True)
        named = [(leaf, part) for name, values in columns for leaf, part in self._opened_structs(name, values)]
        raw = set(log.raw)
        found = {name: self._values(name, part, log, chunk.line, unusable) for name, part in named if name in raw}
        lines = pl.int_range(chunk.line, chunk.line + batch.num_rows, eager=True).alias(LINE)
        bad.extend(unusable.values())
        frame = pl.DataFrame({**found, LINE: lines})
        return frame.filter(~lines.is_in([line for line, _, _ in unusable.values()])) if unusable else frame

    def _opened_structs(self, name: str, values: pa.Array) -> list[tuple[str, pa.Array]]:
        """A column, or the columns that its structs become."""
        if name in self._column_of:
            return [(name, values)]
        if any(_beyond(inner) is not None for inner in _inner(values)):
            raise ClickLogError(f"{self.source}: column {name!r} has a time in it that {_NO_YEAR}")
        frame = pl.DataFrame({name: pl.from_arrow(values)})
        opened = frame.select(leaves(frame.schema).values())
        return [(leaf, opened[leaf].to_arrow()) for leaf in opened.columns]

    def _values(
        self, name: str, values: pa.Array, log: LogFormat, first: int, unusable: dict[int, BadRow]
    ) -> pl.Series:
        """Return a column. Add rows with impossible times or long texts to `unusable`. Row 0 is line `first`."""
        column, unread = f"{self.source}: column {name!r}", "leave it out (`exclude`), or write it as text"
        values = _plain(values)
        if (beyond := _beyond(values)) is not None:
            import pyarrow.compute as pc

            for row in pc.indices_nonzero(beyond).to_pylist():
                unusable[row] = (first + row, f"{name!r} {_NO_YEAR}", f"{name}={_numbers(values)[0][row]}")
            values = pc.if_else(beyond, pa.nulls(len(values), values.type), values)
        try:
            if _has_decimal256(values.type):
                raise pa.ArrowNotImplementedError("decimals of 256 bits in it")
            frame = pl.DataFrame(pl.from_arrow(pa.RecordBatch.from_arrays([values], [name])))
            dtype = frame.schema[name]
            if dtype.is_nested() and not log.kinds:
                raise ClickLogError(f"{column} is {values.type}; write it as text, with a separator")
            if any(_beyond(inner) is not None for inner in _inner(values)):
                raise ClickLogError(f"{column} has a time in it that {_NO_YEAR}")
            found = frame.select(
                without_empty(name, dtype, is_category=pa.types.is_dictionary(values.type))
            ).to_series()
        except (*_UNREADABLE, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
            why = " ".join(str(error).split())[:SAMPLE]
            raise ClickLogError(
                f"{column} is {values.type}, which cannot be read ({why}); {unread}", "exclude"
            ) from error
        for row in (size_of(found) > LONGEST_VALUE).arg_true():
            why = f"{name!r} has more than {LONGEST_VALUE:,} bytes"
            unusable[row] = (first + row, why, f"{name}={found[row][:SAMPLE]}")
        return found

    def _row_groups(
        self, file: pq.ParquetFile, columns: list[str], offset: int
    ) -> Iterator[tuple[str, int, Iterable[pa.RecordBatch]]]:
        """Where in the file it is, its first row, and its batches, of each row group that ends after row `offset`."""
        end = 0
        for group in range(file.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            start, end = end, end + rows
            if end > offset:
                batches = file.iter_batches(_ROWS, [group], columns, use_threads=False)
                yield f"row group {group + 1}", start, _all_rows(batches, rows)

    def _record_batches(
        self, file: Any, columns: list[str], offset: int
    ) -> Iterator[tuple[str, int, Iterable[pa.RecordBatch]]]:
        """As `_row_groups`, of an Arrow file; where each batch begins is known once those before have been read."""
        starts = self._starts
        number = max(place for place, start in [*starts.items()] if start <= offset)
        while number < file.num_record_batches:
            place = f"record batch {number + 1}"
            with _damage(f"{self.source}: {place}"):
                batch = file.get_batch(number)
            starts[number + 1] = starts[number] + batch.num_rows
            yield place, starts[number], (batch.slice(first, _ROWS) for first in range(0, batch.num_rows, _ROWS))
            number += 1


def _leaf_names(field: pa.Field) -> list[str]:
    """The names of the columns that a column becomes once its structs are opened: its own if it has none."""
    if not pa.types.is_nested(field.type) or _has_decimal256(field.type):
        return [field.name]
    try:
        return list(leaves({field.name: pl.Series(pl.from_arrow(pa.nulls(0, field.type))).dtype}))
    except (*_UNREADABLE, pl.exceptions.PolarsError, pl.exceptions.PanicException):
        return [field.name]  # that it cannot be read is an error only if it is wanted


def _all_rows(batches: Iterable[pa.RecordBatch], expected: int) -> Iterator[pa.RecordBatch]:
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        yield batch
    if rows != expected:
        raise pa.ArrowInvalid(f"{rows:,} rows where {expected:,} are announced")
