"""Arrow IPC streams of requests: decoded within limits of rows and bytes, and only the columns that a model needs."""

import struct
from collections.abc import Collection
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

VALUE_BYTES = 8
"""Bytes that are counted for a number, time or boolean."""


_INSIDE = 12
"""Largest length of a text, in bytes, that a view stores inline."""


class StreamError(ValueError):
    """Error: a body is not an Arrow IPC stream, or has an unsupported type."""


class TooLargeError(StreamError):
    """Error: an Arrow IPC stream has more rows or bytes than a request may have."""


def read_table(body: bytes, columns: Collection[str], rows: int, size: int) -> pa.Table:
    """Decode the named columns of an Arrow IPC stream, and the structs that hold them.

    The limits are compared with the headers of the messages before anything is decompressed, and then with the decoded
    values as if each were written out: a text of a dictionary counts for each row that has it.

    Args:
        body: The stream.
        columns: The columns to decode; "price.net" is in the struct "price".
        rows: Largest number of rows.
        size: Largest number of bytes, both of all buffers after decompression and of the decoded values.

    Raises:
        TooLargeError: The stream has more rows or bytes.
        StreamError: The stream is damaged, older than Arrow 1.0, or a column has an unsupported type.
    """
    try:
        _check_messages(body, rows, size)
        schema = pa.ipc.open_stream(body).schema
        if repeated := [name for name in columns if schema.names.count(name) > 1]:
            raise StreamError(f"the column {repeated[0]!r} is there more than once")
        needed = [at for at, name in enumerate(schema.names) if _is_needed(name, columns)]
        if not needed:  # an empty list would stand for all fields
            return schema.empty_table()
        options = pa.ipc.IpcReadOptions(included_fields=needed, use_threads=False)
        table = pa.ipc.open_stream(body, options=options).read_all()
        table.validate(full=True)
    except StreamError:
        raise
    except (pa.ArrowException, struct.error, OSError, ValueError, MemoryError) as error:
        raise StreamError(f"the body is not an Arrow IPC stream ({' '.join(str(error).split())})") from error
    if sum(_written(name, part) for name, column in _columns(table) for part in column.chunks) > size:
        raise TooLargeError(f"the values of a request may have {size:,} bytes when each is written out")
    # A null value may have any index into the dictionary, and Polars would use the index.
    for dictionaries in (True, False):  # Arrow cannot look up views by a dictionary's places
        table = table.cast(pa.schema([_plain(field, dictionaries=dictionaries) for field in table.schema]))
    return table


def _columns(table: pa.Table) -> list[tuple[str, pa.ChunkedArray]]:
    return list(zip(table.column_names, table.columns, strict=True))


def _is_needed(name: str, columns: Collection[str]) -> bool:
    return name in columns or any(column.startswith(f"{name}.") for column in columns)


def _written(name: str, array: pa.Array) -> int:
    """Return the bytes of an array's values if each is written out."""
    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return _written(name, array.storage)
    if pa.types.is_struct(kind):
        return sum(_written(name, part) for part in array.flatten())
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return max(VALUE_BYTES * len(array.values), _written(name, array.values))
    if pa.types.is_dictionary(kind) and not pa.types.is_nested(kind.value_type):
        if not _is_text(kind.value_type):
            return VALUE_BYTES * len(array)
        return pc.sum(_lengths(array.dictionary).take(array.indices)).as_py() or 0
    if _is_text(kind):
        return pc.sum(_lengths(array)).as_py() or 0
    if pa.types.is_nested(kind) or pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        raise StreamError(f"the column {name!r} has the type {kind}, which is not read; send plain values or lists")
    return VALUE_BYTES * len(array)


def _plain(field: pa.Field, *, dictionaries: bool) -> pa.Field:
    """Return a field without views, and unless `dictionaries` without dictionaries: its values are written out."""

    def plain(kind: pa.DataType) -> pa.DataType:
        if pa.types.is_dictionary(kind):
            return pa.dictionary(kind.index_type, plain(kind.value_type)) if dictionaries else plain(kind.value_type)
        if pa.types.is_string_view(kind):
            return pa.large_string()
        if pa.types.is_binary_view(kind):
            return pa.large_binary()
        if pa.types.is_struct(kind):
            return pa.struct([pa.field(part.name, plain(part.type)) for part in kind])
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return pa.large_list(plain(kind.value_type))
        if pa.types.is_fixed_size_list(kind):
            return pa.list_(plain(kind.value_type), kind.list_size)
        return kind

    return pa.field(field.name, plain(field.type))


def _is_text(kind: pa.DataType) -> bool:
    types = pa.types
    return any(
        is_kind(kind)
        for is_kind in (
            *(types.is_string, types.is_large_string, types.is_string_view),
            *(types.is_binary, types.is_large_binary, types.is_binary_view),
        )
    )


def _lengths(texts: pa.Array) -> pa.Array:
    """Return the bytes of each text. Views of null values are checked too, because other libraries read such views."""
    if not (pa.types.is_string_view(texts.type) or pa.types.is_binary_view(texts.type)):
        return pc.binary_length(texts).cast(pa.int64())
    _, buffer, *data = texts.buffers()
    views = np.frombuffer(buffer or b"", np.int32).reshape(-1, 4)[texts.offset : texts.offset + len(texts)]
    lengths, _, number, begin = views.T.astype(np.int64)
    is_long = lengths > _INSIDE
    sizes = np.array([0 if part is None else part.size for part in data], np.int64)
    number, end = number[is_long], (begin + lengths)[is_long]
    is_valid = (lengths >= 0).all() and (begin[is_long] >= 0).all() and (number >= 0).all()
    if not (is_valid and (number < len(sizes)).all() and (end <= sizes[number]).all()):
        raise StreamError("the body is not an Arrow IPC stream (a view of a text is outside of its buffers)")
    return pa.array(lengths)


# The headers of messages, which are flatbuffers: https://arrow.apache.org/docs/format/Columnar.html


def _check_messages(body: bytes, rows: int, size: int) -> None:
    """Raise TooLargeError if the headers of a stream announce more rows or bytes, before any buffer is decompressed."""
    found_rows = found_bytes = 0
    for message in pa.ipc.MessageReader.open_stream(body):
        if message.type == "schema":
            continue
        if message.metadata_version != pa.ipc.MetadataVersion.V5:
            raise StreamError("the body is an Arrow IPC stream of a version before 1.0, which is not read")
        header = _Table.root(message.metadata).table(2)
        batch = header.table(1) if message.type == "dictionary" else header
        if message.type != "dictionary":
            found_rows += batch.int64(0)
        longest = int(batch.pairs(1)[:, 0].max(initial=0))  # values of a field; nulls take no buffer
        found_bytes += max(longest - rows, batch.bytes_of_buffers(message.body), 0)
        if found_rows > rows:
            raise TooLargeError(f"a request may have {rows:,} rows, got {found_rows:,} or more")
        if found_bytes > size:
            raise TooLargeError(f"a request may have {size:,} bytes, also after decompression")


class _Table:
    """Table of a flatbuffer, with numbered fields that are found by a list of offsets."""

    def __init__(self, data: Any, at: int) -> None:
        self._data, self._at = data, at

    @classmethod
    def root(cls, data: Any) -> "_Table":
        return cls(data, *struct.unpack_from("<I", data))

    def _place(self, field: int) -> int | None:
        """Return the position of a field; None if the field has its default value."""
        (back,) = struct.unpack_from("<i", self._data, self._at)
        offsets = self._at - back
        (length,) = struct.unpack_from("<H", self._data, offsets)
        if 4 + 2 * field >= length:
            return None
        (offset,) = struct.unpack_from("<H", self._data, offsets + 4 + 2 * field)
        return self._at + offset if offset else None

    def _target(self, field: int) -> int:
        place = self._place(field)
        if place is None:
            raise StreamError("the body is not an Arrow IPC stream (a message has no content)")
        return place + int(struct.unpack_from("<I", self._data, place)[0])

    def table(self, field: int) -> "_Table":
        return _Table(self._data, self._target(field))

    def int64(self, field: int) -> int:
        place = self._place(field)
        return 0 if place is None else int(struct.unpack_from("<q", self._data, place)[0])

    def pairs(self, field: int) -> npt.NDArray[np.int64]:
        """Return a list of structs of two int64: `[n, 2]`."""
        if self._place(field) is None:
            return np.zeros((0, 2), np.int64)
        at = self._target(field)
        (count,) = struct.unpack_from("<I", self._data, at)
        return np.frombuffer(self._data, "<i8", 2 * count, at + 4).reshape(-1, 2)

    def bytes_of_buffers(self, body: Any) -> int:
        """Return the bytes of a record batch's buffers after decompression."""
        buffers = self.pairs(2)
        if self._place(3) is None:  # not compressed
            return int(buffers[:, 1].clip(min=0).sum())
        size = 0
        for offset, length in buffers[buffers[:, 1] > 0].tolist():
            (raw,) = struct.unpack_from("<q", body, offset)
            size += length if raw == -1 else raw
            if raw < -1:
                raise StreamError("the body is not an Arrow IPC stream (a buffer has a negative size)")
        return size
