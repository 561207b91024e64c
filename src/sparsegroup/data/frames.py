"""Keys and numbers of data frames, as those of a log's file."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from sparsegroup.data.batches import Bags, Batch, batch_of, concatenated
from sparsegroup.data.inference import SAMPLE_ROWS, ColumnFinding, infer_columns, kinds_of
from sparsegroup.data.keys import Int64s
from sparsegroup.data.kinds import text_of
from sparsegroup.data.log_errors import ClickLogError
from sparsegroup.data.raw.encoding import encode_frame
from sparsegroup.data.raw.raw_file import LINE, BadRow
from sparsegroup.data.schema import LogFormat, format_for_kinds

_ROWS = 65_536
"""Rows that are texts at a time."""


@dataclass(frozen=True)
class HashedFrame:
    """What a model is given of a frame's rows.

    Attributes:
        keys: `[n, fields]` int64, of the fields of one value, in the order of `fields`.
        numbers: `[n, numbers]` float32, in the order of `numbers`; NaN where one is missing.
        bags: List field → its values' keys.
        fields: All categorical fields, those of lists among them; a field's place is its number in the keys.
        numbers_of: Names of the numbers.
    """

    keys: Int64s
    numbers: npt.NDArray[np.float32]
    bags: Mapping[str, Bags]
    fields: tuple[str, ...]
    numbers_of: tuple[str, ...]


def hash_keys(frame: Any, columns: Mapping[str, str] | LogFormat | None = None) -> HashedFrame:
    """The keys and numbers of a frame's rows, those that a log of the same values has.

    Args:
        frame: `[n]` rows: of Polars, pandas, Arrow, or whatever has Arrow's PyCapsule interface. Typed columns are as
            their texts in a CSV. A label and columns that are not named are passed over.
        columns: Column → its kind, see `ColumnKind`, such as `Log.columns`; or what `read_schema` gives. None: what
            `columns_of` tells of these rows, of which none is a label then. Rows for a model are to be read by the
            columns that it was trained on.

    Raises:
        ClickLogError: A column is missing, or a value cannot be read (with column and row, from 0).

    Examples:
        >>> import polars as pl
        >>> from sparsegroup.data import hash_keys
        >>> frame = pl.DataFrame({"user": ["ann", "bob"], "price": [9.5, None]})
        >>> hashed = hash_keys(frame, {"user": "category", "price": "number"})
        >>> hashed.keys.shape, hashed.numbers.tolist()
        ((2, 1), [[9.5], [nan]])
        >>> hash_keys(frame).fields
        ('user',)
    """
    frame = polars_frame(frame)
    kinds = kinds_of(columns_of(frame)) if columns is None else columns
    log = kinds if isinstance(kinds, LogFormat) else feature_format(kinds)
    batch = frame_batch(frame, log.for_scoring())
    bags = dict(zip(log.lists, batch.bags, strict=True))
    return HashedFrame(batch.keys.numpy(), batch.numbers.numpy(), bags, log.fields, log.numbers)


def feature_format(kinds: Mapping[str, str]) -> LogFormat:
    """The format of rows without a label or a weight, whose columns have these kinds.

    Raises:
        ClickLogError: As `format_for_kinds`.
    """
    return replace(format_for_kinds(_features(kinds), "").without_label(), weight=None)


def frame_batch(frame: pl.DataFrame, log: LogFormat) -> Batch:
    """The rows of a frame as one batch, with labels 0 and without weights.

    Args:
        frame: `[n]` rows.
        log: Their format; without a time of its own, times are the rows' numbers from 0.

    Raises:
        ClickLogError: As `hash_keys`.
    """
    log = replace(log.without_label(), weight=None)
    parts = []
    for first in range(0, max(len(frame), 1), _ROWS):
        texts = texts_of(frame.slice(first, _ROWS), log.raw)
        lines = pl.int_range(first, first + len(texts), eager=True).alias(LINE)
        bad: list[BadRow] = []
        rows, _, _ = encode_frame(texts.with_columns(lines), log, bad)
        if bad:
            row, reason, value = min(bad)
            raise ClickLogError(f"row {row}: {reason}: {value!r}")
        parts.append(batch_of(pa.Table.from_batches([rows]), log.fields, log.numbers, tuple(log.lists), False))
    return concatenated(parts)


def columns_of(frame: Any, *, exclude: Collection[str] = ()) -> tuple[ColumnFinding, ...]:
    """What the columns of a frame of features are, and why, told from its first rows; see `ColumnKind`.

    A column of a categorical type (pandas, Polars, Arrow's dictionaries) is a category.

    Args:
        frame: As in `hash_keys`, without the label.
        exclude: Columns to leave out.
    """
    data = polars_frame(frame)
    first = data.head(SAMPLE_ROWS)
    known = dict.fromkeys(exclude, ("ignore", "to be left out, as asked"))
    findings = infer_columns(texts_of(first, first.columns), whole=len(data) <= SAMPLE_ROWS, known=known)
    typed = {name for name, dtype in data.schema.items() if isinstance(dtype, pl.Categorical | pl.Enum)} - {*exclude}
    return tuple(
        ColumnFinding(one.name, "category", "of a categorical type", one.examples, one.distinct, one.missing)
        if one.name in typed
        else one
        for one in findings
    )


def polars_frame(frame: Any) -> pl.DataFrame:
    """A data frame of any library as one of Polars; pandas' index is left out.

    Raises:
        ClickLogError: It is no frame, or has a column whose values are of several types.
    """
    if isinstance(frame, pl.DataFrame):
        return frame
    try:
        if type(frame).__module__.partition(".")[0] == "pandas":
            return pl.from_pandas(frame)
        return pl.DataFrame(pl.from_arrow(frame) if isinstance(frame, pa.Table | pa.RecordBatch) else frame)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise ClickLogError(f"a data frame is expected, each column of one type: {error}") from error


def texts_of(frame: Any, names: Collection[str]) -> pl.DataFrame:
    """Columns of a frame as texts, null where there is no value.

    Raises:
        ClickLogError: One is missing.
    """
    data = polars_frame(frame)
    if missing := [name for name in names if name not in data.columns]:
        raise ClickLogError(f"no column {missing[0]!r} in the frame; the columns are {', '.join(data.columns)}")
    return data.select(text_of(name, data.schema[name]) for name in names)


def _features(columns: Mapping[str, str]) -> dict[str, str]:
    return {name: "ignore" if kind in ("label", "split") else kind for name, kind in columns.items()}
