"""Data frames: their keys and numbers, equal to a log's of the same values, and a frame as a log."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import torch

from sparsegroup.data.batches import Bags, Batch, concatenated
from sparsegroup.data.inference.columns import SAMPLE_ROWS, infer_columns, kinds_of
from sparsegroup.data.keys import Int64s
from sparsegroup.data.kinds import ColumnFinding
from sparsegroup.data.log import Log
from sparsegroup.data.raw.encode import encode_frame
from sparsegroup.data.raw.files import LINE, BadRow
from sparsegroup.data.schema import LogFormat, format_for_kinds
from sparsegroup.data.values import is_pandas_index, leaves, texts_of, without_empty
from sparsegroup.errors import ClickLogError
from sparsegroup.objectives import LOGISTIC

_ROWS = 65_536
"""Rows that are hashed at a time."""


@dataclass(frozen=True)
class HashedFrame:
    """What a model is given of a frame's rows.

    Attributes:
        keys: `[n, fields]` int64, of the fields of one value, in the order of `fields`.
        numbers: `[n, numbers]` float32, in the order of `numbers`; NaN where one is missing.
        bags: List field → its values' keys.
        fields: All categorical fields, including lists; a field's place is its number in the keys, unless it shares
            the vocabulary of another field: its keys have that field's number then.
        numbers_of: Names of the numbers.
    """

    keys: Int64s
    numbers: npt.NDArray[np.float32]
    bags: Mapping[str, Bags]
    fields: tuple[str, ...]
    numbers_of: tuple[str, ...]


def hash_keys(frame: Any, columns: Mapping[str, str] | LogFormat | None = None) -> HashedFrame:
    """Return the keys and numbers of a frame's rows, which equal those of a log of the same values.

    Args:
        frame: `[n]` rows of Polars, pandas, Arrow, or any library with Arrow's PyCapsule interface. A label and columns
            that are not named are ignored.
        columns: Column → its kind, see `ColumnKind`, such as `Log.columns`; or a format from `read_schema`. None: the
            kinds that `columns_of` infers from the frame, with no column as label. Rows for a model must be read with
            the columns of its training.

    Raises:
        ClickLogError: A column is missing, or a value cannot be read (with column and row, from 0).

    Examples:
        >>> import polars as pl
        >>> from sparsegroup.data import hash_keys
        >>> frame = pl.DataFrame({"user": ["ann", "bob", "eve"], "price": [9.5, 12.0, None]})
        >>> hashed = hash_keys(frame, {"user": "category", "price": "number"})
        >>> hashed.keys.shape, hashed.numbers.tolist()
        ((3, 1), [[9.5], [12.0], [nan]])
        >>> hash_keys(frame).fields
        ('user',)
    """
    frame = polars_frame(frame)
    columns = kinds_of(columns_of(frame)) if columns is None else columns
    log = columns if isinstance(columns, LogFormat) else feature_format(columns)
    batch = _batch(frame, log.for_scoring())
    bags = dict(zip(log.lists, batch.bags, strict=True))
    return HashedFrame(batch.keys.numpy(), batch.numbers.numpy(), bags, log.fields, log.numbers)


def columns_of(frame: Any, *, exclude: Collection[str] = ()) -> tuple[ColumnFinding, ...]:
    """What the columns of a frame of features are, and why, inferred from its first rows; see `ColumnKind`.

    A column of a categorical type (pandas, Polars, Arrow's dictionaries) is a category.

    Args:
        frame: As in `hash_keys`, without the label.
        exclude: Columns to leave out.
    """
    data = polars_frame(frame)
    known = dict.fromkeys(exclude, ("ignore", "left out, as requested"))
    rows = columns_in(data.head(SAMPLE_ROWS), data.columns)
    types = dict(rows.schema)
    return infer_columns(texts_of(rows, rows.columns), whole=len(data) <= SAMPLE_ROWS, known=known, types=types)


def feature_format(kinds: Mapping[str, str]) -> LogFormat:
    """The format of rows without a label or a weight, whose columns have these kinds."""
    features = {name: "ignore" if kind in ("label", "split") else kind for name, kind in kinds.items()}
    return replace(format_for_kinds(features, "").without_label(), weight=None)


def polars_frame(frame: Any) -> pl.DataFrame:
    """A data frame of any library as one of Polars, without pandas' index, its structs opened (see `leaves`).

    Raises:
        ClickLogError: Types are mixed.
    """
    try:
        categories = _categories_of(frame)
        if type(frame).__module__.partition(".")[0] == "pandas":
            frame = pl.from_pandas(frame)
        data = pl.DataFrame(pl.from_arrow(frame) if isinstance(frame, pa.Table | pa.RecordBatch) else frame)
        schema = data.schema
        data = data.with_columns(without_empty(name, schema[name], is_category=True) for name in categories)
        opened = {name: column for name, column in leaves(data.schema).items() if not is_pandas_index(name)}
        return data if list(opened) == data.columns else data.select(opened.values())
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise ClickLogError(f"a data frame is expected, each column of one type: {error}") from error


def _categories_of(frame: Any) -> list[str]:
    """Return the columns of a pandas or Arrow frame that are of a categorical type."""
    if isinstance(frame, pa.Table | pa.RecordBatch):
        return [field.name for field in frame.schema if pa.types.is_dictionary(field.type)]
    if type(frame).__module__.partition(".")[0] == "pandas":
        return [name for name, dtype in frame.dtypes.items() if str(dtype) == "category"]
    return []


class FrameLog(Log):
    """The rows of a data frame, hashed like a file's of the same values; all are for training.

    Args:
        frame: `[n]` rows of features, see `hash_keys`.
        labels: `[n]`, 0 or 1, or any finite numbers, or numbers of `classes`; None for rows without.
        columns: Column → its kind, see `ColumnKind`; None infers it from the rows.
        weights: `[n]`, ≥ 0; None where every row counts the same.
        classes: Texts of the classes whose numbers, from 0, the labels are; none where labels are something else.
        tasks: Names of the tasks of which labels are, `[n, tasks]`, NaN where one has none; none for labels `[n]`.
        whole: Take the rows as for scoring: a column of the log's own time need not be readable.
        name: Where the rows come from, for messages.

    Raises:
        ClickLogError: A column is missing, a value cannot be read, or there are not as many labels or weights as rows.

    Examples:
        >>> import polars as pl
        >>> from sparsegroup.data import FrameLog
        >>> log = FrameLog(pl.DataFrame({"user": ["ann", "bob", "ann"]}), [1, 0, 1])
        >>> log.fields, log.columns, next(log.batches(0, 3, 3)).labels.tolist()
        (('user',), {'user': 'category'}, [1.0, 0.0, 1.0])
    """

    def __init__(
        self,
        frame: Any,
        labels: npt.ArrayLike | None = None,
        *,
        columns: Mapping[str, str] | None = None,
        weights: npt.ArrayLike | None = None,
        classes: Sequence[str] = (),
        tasks: Sequence[str] = (),
        whole: bool = False,
        name: str = "a data frame",
    ) -> None:
        data = polars_frame(frame)
        self.findings = columns_of(data) if columns is None else ()
        self.columns = dict(kinds_of(self.findings) if columns is None else columns)
        log = feature_format(self.columns)
        log = log.for_scoring() if whole else log
        self.name, self.fields, self.numbers, self.lists = name, log.fields, log.numbers, tuple(log.lists)
        self.train_rows, self.timed = len(data), log.time is not None
        self.labelled, self.weighted = labels is not None, weights is not None
        rows = _batch(data, log)
        self._rows = replace(
            rows,
            labels=rows.labels if labels is None else self._per_row("labels", labels, *([len(tasks)] if tasks else [])),
            weights=None if weights is None else self._per_row("weights", weights),
        )
        self.classes, self.tasks = tuple(classes), tuple(tasks)
        self.binary = not classes and not tasks and bool(LOGISTIC.are_labels(self._rows.labels).all())

    def _per_row(self, what: str, values: npt.ArrayLike, *more: int) -> torch.Tensor:
        given, shape = np.asarray(values, np.float32), [self.train_rows, *more]
        if list(given.shape) != shape:
            raise ClickLogError(f"{self.name}: {what} must be {shape}, got {list(given.shape)}")
        return torch.from_numpy(given.copy())

    def __len__(self) -> int:
        return self.train_rows

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """See `Log.batches`."""
        for first in range(start, min(stop, len(self)), size):
            yield self._rows[first : min(first + size, stop)]


def _batch(frame: pl.DataFrame, log: LogFormat) -> Batch:
    """The rows as one batch, labels 0, no weights; without a time of the log's own, times are the rows' numbers."""
    log, parts = replace(log.without_label(), weight=None), []
    for first in range(0, max(len(frame), 1), _ROWS):
        rows, bad = columns_in(frame.slice(first, _ROWS), log.raw), list[BadRow]()
        lines = pl.int_range(first, first + len(rows), eager=True).alias(LINE)
        encoded = encode_frame(rows.with_columns(lines), log, bad)
        if bad:
            row, reason, value = min(bad)
            raise ClickLogError(f"row {row}: {reason}: {value!r}")
        parts.append(encoded.batch)
    return concatenated(parts)


def columns_in(frame: pl.DataFrame, names: Collection[str]) -> pl.DataFrame:
    """Return some columns, with null for missing values.

    Raises:
        ClickLogError: A column is missing.
    """
    if missing := [name for name in names if name not in frame.columns]:
        raise ClickLogError(f"no column {missing[0]!r} in the frame; the columns are {', '.join(frame.columns)}")
    schema = frame.schema
    return frame.select(without_empty(name, schema[name]) for name in names)
