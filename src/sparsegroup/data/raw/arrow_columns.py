"""Columns of Arrow: which types can be read, and which rows hold values that no log has."""

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from sparsegroup.data.kinds import PER_SECOND
from sparsegroup.data.log_errors import SAMPLE, ClickLogError

LONGEST_VALUE = 1 << 20
"""Bytes. A row with a longer text is a bad one."""

_SECONDS = (-62135596800, 253402300800)
"""The years 1 to 9999, which ISO 8601 writes with four digits; Polars ends in a panic far beyond them."""
_DAY = 24 * 3600


@dataclass(frozen=True)
class ArrowColumn:
    """A column of a columnar file.

    Args:
        source: The file, for messages.
        name: The column's name.
        values: Some rows of it, valid ones.

    Raises:
        ClickLogError: It is of a type that cannot be read, or of bytes that are no UTF-8.
    """

    source: str
    name: str
    values: pa.Array

    def __post_init__(self) -> None:
        """Take what is stored of an extension for it, and texts for bytes."""
        if not _is_read(self.values.type):
            raise self._error(
                f"is {self.values.type}, which cannot be read; write it as text, or give a schema without it"
            )
        values = self.values.storage if isinstance(self.values, pa.ExtensionArray) else self.values
        if _is_binary(values.type):
            try:
                values = values.cast(pa.large_binary()).cast(pa.large_string())
            except pa.ArrowInvalid as error:
                raise self._error(
                    f"is {values.type}, of bytes that are no UTF-8; write it as text, or give a schema without it"
                ) from error
        object.__setattr__(self, "values", values)

    def _error(self, what: str) -> ClickLogError:
        return ClickLogError(f"{self.source}: column {self.name!r} {what}")

    def check_is_flat(self) -> None:
        """Raise ClickLogError if it holds lists or structs, which only kinds tell how to read."""
        if pa.types.is_nested(self.values.type):
            raise self._error(f"is {self.values.type}; write it as text, with a separator")

    def unusable(self) -> Iterator[tuple[int, str, str]]:
        """The rows with a text that is too long or a time that no calendar has: their numbers, why, and the value.

        Raises:
            ClickLogError: Such a time is within a list or a struct.
        """
        import pyarrow.compute as pc  # the thirtieth of a second, which a log of text does without

        for part, low, high in _times(self.values):
            least, most = pc.min_max(part).values()
            if not least.is_valid or (low <= least.as_py() and most.as_py() < high):
                continue
            beyond = "is not within the years 1 to 9999"
            if pa.types.is_nested(self.values.type):
                raise self._error(f"has a time in it that {beyond}")
            whole = pc.take(part, self.values.indices) if pa.types.is_dictionary(self.values.type) else part
            for row in _where(pc.or_(pc.less(whole, low), pc.greater_equal(whole, high))):
                yield row, f"{self.name!r} {beyond}", f"{self.name}={whole[row]}"
        if self.values.nbytes > LONGEST_VALUE and not pa.types.is_nested(self.values.type):
            for row in _where(pc.greater(_lengths(self.values), LONGEST_VALUE)):
                value = self.values[row]
                value = value.value if isinstance(value, pa.DictionaryScalar) else value
                begin = value.as_buffer().slice(0, SAMPLE).to_pybytes()  # without a copy of the whole
                yield row, too_long(self.name), f"{self.name}={begin.decode('utf-8', 'ignore')}"


def too_long(name: str) -> str:
    """Why a row is bad that has a longer text than `LONGEST_VALUE` in a column."""
    return f"{name!r} has more than {LONGEST_VALUE:,} bytes"


def _is_read(dtype: pa.DataType, *, inner: bool = False) -> bool:
    types = pa.types
    if types.is_struct(dtype) or types.is_list(dtype) or types.is_large_list(dtype):
        return all(_is_read(dtype.field(number).type, inner=True) for number in range(dtype.num_fields))
    if types.is_fixed_size_list(dtype):
        return int(dtype.list_size) > 0 and _is_read(dtype.value_type, inner=True)
    if types.is_dictionary(dtype):
        flat = not types.is_nested(dtype.value_type) and not _is_binary(dtype.value_type)
        return flat and _is_read(dtype.value_type, inner=True)
    if isinstance(dtype, pa.BaseExtensionType):
        return not inner and _is_read(dtype.storage_type)
    if _is_binary(dtype):
        return not inner and str(dtype) != "fixed_size_binary[0]"
    if types.is_decimal(dtype):
        return int(dtype.bit_width) <= 128
    if types.is_temporal(dtype):
        return not types.is_interval(dtype)
    return any(kind(dtype) for kind in (types.is_null, types.is_boolean, types.is_integer, types.is_floating, _is_text))


def _is_text(dtype: pa.DataType) -> bool:
    return str(dtype) in ("string", "large_string", "string_view")


def _is_binary(dtype: pa.DataType) -> bool:
    return str(dtype) in ("binary", "large_binary", "binary_view") or pa.types.is_fixed_size_binary(dtype)


def _where(rows: pa.Array) -> list[int]:
    import pyarrow.compute as pc

    found: list[int] = pc.indices_nonzero(pc.fill_null(rows, False)).to_pylist()
    return found


def _lengths(values: pa.Array) -> pa.Array:
    """Bytes of each text; 0 of other values."""
    import pyarrow.compute as pc

    if pa.types.is_dictionary(values.type):
        return pc.take(_lengths(values.dictionary), values.indices)
    if not _is_text(values.type):
        return pa.nulls(len(values), pa.int32())
    return pc.binary_length(values.cast(pa.large_string()) if str(values.type) == "string_view" else values)


def _times(values: pa.Array) -> Iterator[tuple[pa.Array, int, int]]:
    """All times and durations in a column as whole numbers, the least that they may be, and what they are below."""
    dtype, types = values.type, pa.types
    if types.is_struct(dtype):
        for inner in values.flatten():
            yield from _times(inner)
    elif types.is_list(dtype) or types.is_large_list(dtype) or types.is_fixed_size_list(dtype):
        yield from _times(values.flatten())
    elif types.is_dictionary(dtype):
        yield from _times(values.dictionary)
    elif types.is_date32(dtype):
        yield values.view(pa.int32()), _SECONDS[0] // _DAY, _SECONDS[1] // _DAY
    elif types.is_date64(dtype):
        yield values.view(pa.int64()), _SECONDS[0] * 1000, _SECONDS[1] * 1000
    elif types.is_timestamp(dtype) or types.is_duration(dtype):
        low, high = (second * PER_SECOND[dtype.unit] for second in _SECONDS)
        yield values.view(pa.int64()), max(low, -(1 << 63)), min(high, (1 << 63) - 1)
