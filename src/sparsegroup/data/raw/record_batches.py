"""Parquet and Arrow files, a record batch at a time, each to be validated in full before its values are used.

Arrow's readers give what a damaged file says without a look at it: offsets beyond the values, texts that are no UTF-8,
codes without an entry in the dictionary. What is made of such a batch may end the process.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from sparsegroup.data.log_errors import ClickLogError
from sparsegroup.data.raw.stored_file import StoredFile

_DAMAGE = (OSError, pa.ArrowException, UnicodeDecodeError, OverflowError, MemoryError, pl.exceptions.PolarsError)


class RecordBatches(ABC):
    """A columnar file that is open.

    Args:
        stream: Its bytes, where any place can be read.

    Attributes:
        names: The columns, in order.
        place: What is being read, such as "row group 3".
        begin: The first row of that, from 0: reading can begin there without reading what is before it.
    """

    names: tuple[str, ...]
    place = ""
    begin = 0

    @abstractmethod
    def __init__(self, stream: Any) -> None: ...

    @abstractmethod
    def read(
        self, columns: Sequence[str], rows: int, offset: int, begins: dict[int, int]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Some columns of all rows, or of those from about row `offset` on.

        Args:
            columns: Their names.
            rows: How many a batch has at most.
            offset: The first row that is wanted; no batch that has it or follows it is left out.
            begins: Number of a record batch → its first row, as far as reading has told of a format that does not say
                it, where more is noted.

        Yields:
            The number of a batch's first row, from 0; the batch.
        """


class _ParquetBatches(RecordBatches):
    def __init__(self, stream: Any) -> None:
        self._file = pq.ParquetFile(stream, pre_buffer=True, page_checksum_verification=True)
        self.names = tuple(self._file.schema_arrow.names)

    def read(
        self, columns: Sequence[str], rows: int, offset: int, begins: dict[int, int]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        end = 0
        for group in range(self._file.num_row_groups):
            first, end = end, end + self._file.metadata.row_group(group).num_rows
            if end > offset:
                self.place, self.begin, row = f"row group {group + 1}", first, first
                for batch in self._file.iter_batches(rows, [group], list(columns), use_threads=False):
                    yield row, batch.select(list(columns))
                    row += batch.num_rows
                if row != end:
                    raise pa.ArrowInvalid(f"{row - first:,} rows where {end - first:,} are announced")


class _ArrowBatches(RecordBatches):
    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.names = tuple(pa.ipc.open_file(stream).schema.names)

    def read(
        self, columns: Sequence[str], rows: int, offset: int, begins: dict[int, int]
    ) -> Iterator[tuple[int, pa.RecordBatch]]:
        fields = [self.names.index(name) for name in columns]
        file = pa.ipc.open_file(self._stream, options=pa.ipc.IpcReadOptions(included_fields=fields, use_threads=False))
        start, row = max(((number, row) for number, row in [*begins.items()] if row <= offset), default=(0, 0))
        for number in range(start, file.num_record_batches):
            self.place, self.begin, begins[number] = f"record batch {number + 1}", row, row
            whole = file.get_batch(number).select(list(columns))
            for first in range(0, whole.num_rows, rows):
                yield row + first, whole.slice(first, rows)
            row += whole.num_rows


_FORMATS: dict[str, tuple[str, type[RecordBatches]]] = {
    ".parquet": ("Parquet", _ParquetBatches),
    ".arrow": ("Arrow", _ArrowBatches),
    ".feather": ("Arrow", _ArrowBatches),
}
SUFFIXES = tuple(_FORMATS)
"""What the names of columnar files end with."""


@contextmanager
def damage(source: object, place: Callable[[], str]) -> Iterator[None]:
    """What readers say of a damaged file, as an error that names it.

    Args:
        source: The file.
        place: Says what of it is read; empty for all of it.

    Raises:
        ClickLogError: The file is damaged.
    """
    try:
        yield
    except (*_DAMAGE, pl.exceptions.PanicException) as error:
        where = f"{place()}: " if place() else ""
        raise ClickLogError(f"{source}: {where}damaged ({' '.join(str(error).split())})") from error


@contextmanager
def opened(stored: StoredFile) -> Iterator[RecordBatches]:
    """A columnar file, open.

    Raises:
        ClickLogError: It is damaged, or of another format.
        FileNotFoundError, IsADirectoryError: There is no such file.
    """
    name, kind = _FORMATS[stored.suffix]
    with stored.open_bytes() as stream:
        try:
            batches = kind(stream)
        except (*_DAMAGE, ValueError) as error:
            raise ClickLogError(f"{stored}: damaged, or no {name} file ({' '.join(str(error).split())})") from error
        yield batches


def read_batches(
    stored: StoredFile, columns: Sequence[str], rows: int, offset: int, begins: dict[int, int]
) -> Iterator[tuple[RecordBatches, int, pa.RecordBatch]]:
    """`RecordBatches.read` of a file.

    Yields:
        The file, open; the number of the batch's first row, from 0; the batch, of which only the number of rows may be
        used before it is validated in full.

    Raises:
        ClickLogError: The file is damaged; the message says where.
        FileNotFoundError, IsADirectoryError: There is no such file.
    """
    with opened(stored) as batches:
        found = batches.read(columns, rows, offset, begins)
        while True:
            with damage(stored, lambda: batches.place):
                try:
                    first, batch = next(found)
                except StopIteration:
                    return
            yield batches, first, batch
