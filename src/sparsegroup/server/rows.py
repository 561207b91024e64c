"""Rows of requests, as JSON or Arrow has them, to what a model takes: hashed as training has hashed its log."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, islice, pairwise, zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import torch

from sparsegroup.data.batches import Bags, Batch
from sparsegroup.data.formats import FORMATS
from sparsegroup.data.frames import columns_in, feature_format, polars_frame
from sparsegroup.data.keys import VALUE_BITS
from sparsegroup.data.kinds import ColumnKind
from sparsegroup.data.raw.encode import EncodedRows, encode_frame
from sparsegroup.data.raw.files import LINE, SAMPLE, BadRow
from sparsegroup.data.schema import ColumnTransform, LogFormat, LogSchema, read_schema
from sparsegroup.data.values import opened, text_of_value
from sparsegroup.errors import ClickLogError, UserError, did_you_mean
from sparsegroup.training import Config

_REMEMBERED = 1 << 14
"""Values of a column whose keys are remembered."""

_LONGEST = 200
"""Characters of the longest text that is remembered."""

_LEARNT = 100_000
"""Total characters of a request's unknown values above which keys are not stored as Python integers."""

_CANDIDATES = 50
"""Largest number of a request's columns that are compared with a missing column, and of missing columns with a hint."""

Row = Mapping[str, Any]
"""Column of the log → its value: text, number, true or false, a list of these, an object of columns, or None."""


@dataclass(frozen=True)
class BadValue:
    """A value of a request that cannot be read.

    Attributes:
        row: Place of the row in the request, from 0; None where it is not about one row.
        column: The column, or None where it is not about one.
        reason: What is wrong.
    """

    row: int | None
    column: str | None
    reason: str


class BadRowsError(UserError):
    """Rows of a request that cannot be scored; none of the request's rows is."""

    def __init__(self, bad: Sequence[BadValue]) -> None:
        first = bad[0]
        row = "" if first.row is None else f"row {first.row}: "
        more = f" (and {len(bad) - 1:,} more)" if len(bad) > 1 else ""
        super().__init__(f"{row}{first.reason}{more}")
        self.bad = tuple(bad)


def format_of_model(config: Config, columns: LogSchema, schema: Path | None = None) -> LogFormat:
    """How to read rows for a model: the format of the log that it was trained on, without its label.

    Args:
        config: The settings that the model was trained with.
        columns: The columns that the model expects.
        schema: The schema file, if `config` does not describe the columns.

    Raises:
        ClickLogError: The settings do not tell the format.
    """
    options = config.format_options
    path, kinds, name = schema or options.get("schema"), options.get("columns"), options.get("dataset", "auto")
    found: list[LogFormat] = []
    if path is not None:
        if isinstance(path, Path) and not path.is_file():
            raise ClickLogError(
                f"`schema`: the model was trained on a log that the schema {path} describes, which is not there; give "
                "the file",
                "schema",
            )
        found = [read_schema(path)]
    elif isinstance(kinds, Mapping):
        found = [feature_format(_kinds_of_features(kinds, columns))]
    else:
        for known in FORMATS:
            if known.make is not None and name in ("auto", known.name):
                given: Any = [options.get(known.option)] if known.option is not None else []
                found.append(known.make(*given))
        if not columns.lists:  # all columns are categories, as of a log that a header names
            found.append(LogFormat("log", "", columns.fields, columns.numbers))
    for log in found:
        if replace(log.columns_of_model, hash=columns.hash) == columns:
            return replace(log.for_scoring().without_label(), weight=None)
    raise ClickLogError(
        f"the columns {', '.join((*columns.fields, *columns.numbers))} of the model differ from what its settings "
        "describe; give a `schema` of the log's columns",
        "schema",
    )


def _kinds_of_features(kinds: Mapping[str, str], columns: LogSchema) -> dict[str, str]:
    """The kinds of the columns that the model's columns are made of; the others, labels among them, are ignored."""
    made = {*columns.fields, *columns.numbers}
    found = {}
    for name, kind in kinds.items():
        outputs = ColumnTransform(((name, kind),)).outputs
        is_feature = bool(outputs) and all(one in made or role == "time" for one, role, _, _ in outputs)
        found[name] = kind if is_feature else "ignore"
    return found


class RowReader:
    """Makes batches of rows.

    Rows are read by `encode_frame`, like a log's. What a single column's value becomes is remembered, for the
    values that came last: a value that has been seen costs a look into a dictionary. Several threads may share it.

    Args:
        log: The format, of `format_of_model`.

    Attributes:
        log: The format.
        columns: The columns that rows have.
    """

    def __init__(self, log: LogFormat) -> None:
        self.log, self.columns = log, log.raw
        self._kinds = {name: log.kind_of(name) for name in log.raw}
        self._single = [name for name in log.fields if name not in log.lists]
        # Where a format makes its columns in another way, one may depend on several.
        self._by_column = log.derive is None or isinstance(log.derive, ColumnTransform)
        self._made = {name: [made for made in self._outputs if log.sources.get(made, made) == name] for name in log.raw}
        self._remembered: dict[str, dict[str | None, tuple[Any, ...]]] = {name: {} for name in log.raw}
        self._narrowed = lru_cache(256)(self._narrow)

    @property
    def _outputs(self) -> tuple[str, ...]:
        return (*self.log.fields, *self.log.numbers)

    def batch(self, rows: Sequence[Row]) -> Batch:
        """The batch of some rows; labels and times are not of use.

        A text is read as in a CSV; a number, a boolean or a list as in a typed column. The parts of an object are
        columns called `column.part`. None and "" are missing; so is a column that only some of the rows have. Columns
        that the log did not have are passed over.

        Raises:
            BadRowsError: A column that none of the rows has, or values that cannot be read.
        """
        texts = self._texts(rows)
        if not self._by_column:
            return self._encoded(self._frame(texts, len(rows))).batch
        values = {name: self._values(name, column) for name, column in texts.items()}
        unknown = {name: list(absent) for name, (_, absent) in values.items() if absent}
        if sum(len(text or "") for column in unknown.values() for text in column) > _LEARNT:
            return self._encoded(self._frame(texts, len(rows))).batch
        learnt = self._learn(unknown) if unknown else {}
        if learnt is None:
            self._encoded(self._frame(texts, len(rows)))  # which says what is wrong with which row
            raise AssertionError("a value that cannot be read alone is wrong in its row")
        found = {
            name: known
            if not absent
            else [learnt[name][text] if one is None else one for text, one in zip(texts[name], known, strict=True)]
            for name, (known, absent) in values.items()
        }
        return self._joined(found, len(rows))

    def batch_of_frame(self, frame: pa.Table | pl.DataFrame) -> Batch:
        """Return the batch of a frame's rows; see `batch`.

        Raises:
            BadRowsError: As `batch`; or a column of a type that cannot be read.
        """
        return self._encoded(self._frame_of(frame)).batch

    def with_values(self, rows: Sequence[Row]) -> tuple[Batch, list[dict[str, Any]]]:
        """The batch of some rows, and of each row the values that it was made of, by the model's columns.

        A field's are the hashed texts, of lists with their separator between them; a missing number is None.
        """
        encoded = self._encoded(self._frame(self._texts(rows), len(rows)), keep_raw=True)
        assert encoded.raw is not None
        values = []
        for row, numbers in zip(encoded.raw.iter_rows(named=True), encoded.batch.numbers.numpy(), strict=True):
            own = (float(str(one)) if np.isfinite(one) else None for one in numbers)  # 0.1, not 0.10000000149
            fields = {name: text or "" for name, text in row.items()}
            values.append(fields | dict(zip(self.log.numbers, own, strict=True)))
        return encoded.batch, values

    # Values as texts

    def _texts(self, rows: Sequence[Row]) -> dict[str, list[str | None]]:
        """The rows' values as texts, by column; None where one is missing."""
        texts: dict[str, list[str | None]] = {}
        rows = [opened(row) for row in rows]
        for name in self.columns:
            values = [row.get(name) for row in rows]
            if not all(value is None or type(value) is str for value in values):
                values = [
                    value if type(value) is str else self._text(name, value, at) for at, value in enumerate(values)
                ]
            texts[name] = [value or None for value in values]
        there = dict.fromkeys(chain.from_iterable(rows))
        if rows and (absent := [name for name in self.columns if name not in there]):
            known = set(self.columns)
            others = list(islice((name for name in there if name not in known), _CANDIDATES))
            why = "no row has the column {!r}; give null where it is missing. {}"
            hints = [did_you_mean(name, others) for name in absent[:_CANDIDATES]]
            raise BadRowsError(
                [
                    BadValue(None, name, why.format(name, hint).strip())
                    for name, hint in zip_longest(absent, hints, fillvalue="")
                ]
            )
        return texts

    def _text(self, name: str, value: Any, row: int) -> str | None:
        """Return a value of JSON as a text."""
        try:
            return text_of_value(value, self._kinds[name])
        except ValueError as error:
            raise BadRowsError([BadValue(row, name, f"{name!r} {error}")]) from None

    # Texts as keys and numbers

    def _values(self, name: str, column: list[str | None]) -> tuple[list[Any], dict[str | None, None]]:
        """What each text of a column becomes, None where that is not remembered; and those texts, once each."""
        known = self._remembered[name]
        values = [known.get(text) for text in column]
        if None not in values:
            return values, {}
        return values, {text: None for text, value in zip(column, values, strict=True) if value is None}

    def _learn(self, unknown: Mapping[str, list[str | None]]) -> dict[str, dict[str | None, tuple[Any, ...]]] | None:
        """What the texts of some columns become; None if one of them cannot be read."""
        height = max(map(len, unknown.values()))
        texts = {name: column + [None] * (height - len(column)) for name, column in unknown.items()}
        bad: list[BadRow] = []
        log = self._narrowed(tuple(unknown))
        batch = encode_frame(self._frame(texts, height), log, bad).batch
        if bad:
            return None
        single = [name for name in log.fields if name not in log.lists]
        made: dict[str, list[Any]] = {}
        for place, name in enumerate(single):
            made[name] = (batch.keys[:, place] + self._shift(name, log)).tolist()
        for name, bags in zip(log.lists, batch.bags, strict=True):
            keys, ends = (bags.keys + self._shift(name, log)).tolist(), bags.offsets.tolist()
            made[name] = [keys[begin:end] for begin, end in pairwise(ends)]
        made |= {name: batch.numbers[:, place].tolist() for place, name in enumerate(log.numbers)}
        learnt = {}
        for name, column in unknown.items():
            values = zip(*(made[one] for one in self._made[name]), strict=True)
            learnt[name] = dict(zip(column, values, strict=False))
            remembered = self._remembered[name]
            if len(remembered) + len(column) > _REMEMBERED:
                self._remembered[name] = remembered = {}
            if len(column) <= _REMEMBERED:
                remembered.update((text, one) for text, one in learnt[name].items() if len(text or "") <= _LONGEST)
        return learnt

    def _narrow(self, names: tuple[str, ...]) -> LogFormat:
        """The format with these columns of the log alone; its fields have other numbers."""
        log, made = self.log, {one for name in names for one in self._made[name]}
        derive = log.derive
        if isinstance(derive, ColumnTransform):
            needed = {*names, *(ColumnKind.of(kind).shares for name, kind in derive.kinds if name in names)}
            derive = ColumnTransform(tuple((name, kind) for name, kind in derive.kinds if name in needed))
        return replace(
            log,
            fields=tuple(name for name in log.fields if name in made),
            numbers=tuple(name for name in log.numbers if name in made),
            lists={name: separator for name, separator in log.lists.items() if name in made},
            checked={name: raw for name, raw in log.checked.items() if name in made},
            derive=derive,
        )

    def _shift(self, name: str, narrowed: LogFormat) -> int:
        """What makes a key of a narrowed format one of the format, when it is added."""
        field, own = (one.columns_of_model.key_fields[name] for one in (self.log, narrowed))
        shift = (field - own) << VALUE_BITS
        return (shift + (1 << 63)) % (1 << 64) - (1 << 63)

    def _joined(self, found: Mapping[str, Sequence[tuple[Any, ...]]], rows: int) -> Batch:
        """The batch of what the values of the columns become."""
        columns = {
            made: [one[place] for one in values]
            for name, values in found.items()
            for place, made in enumerate(self._made[name])
        }
        keys = np.empty((rows, len(self._single)), np.int64)
        for place, name in enumerate(self._single):
            keys[:, place] = columns[name]
        numbers = np.empty((rows, len(self.log.numbers)), np.float32)
        for place, name in enumerate(self.log.numbers):
            numbers[:, place] = columns[name]
        bags = []
        for name in self.log.lists:
            offsets = np.zeros(rows + 1, np.int64)
            np.cumsum([len(one) for one in columns[name]], out=offsets[1:])
            inside = np.fromiter(chain.from_iterable(columns[name]), np.int64, int(offsets[-1]))
            bags.append(Bags(torch.from_numpy(inside), torch.from_numpy(offsets)))
        return _batch(torch.from_numpy(keys), torch.from_numpy(numbers), bags)

    # Whole frames

    def _frame(self, texts: Mapping[str, Sequence[str | None]], rows: int) -> pl.DataFrame:
        columns = {name: pl.Series(name, column, pl.String) for name, column in texts.items()}
        return pl.DataFrame({**columns, LINE: pl.int_range(rows, eager=True)})

    def _frame_of(self, frame: pa.Table | pl.DataFrame) -> pl.DataFrame:
        """Return the columns of a frame that are read."""
        try:
            rows = columns_in(polars_frame(frame), self.columns)
        except ClickLogError as error:
            raise BadRowsError([BadValue(None, None, str(error))]) from error
        return rows.with_columns(pl.int_range(len(rows), eager=True).alias(LINE))

    def _encoded(self, frame: pl.DataFrame, keep_raw: bool = False) -> EncodedRows:
        bad: list[BadRow] = []
        try:
            encoded = encode_frame(frame, self.log, bad, keep_raw)
        except ClickLogError as error:
            raise BadRowsError([BadValue(None, None, str(error))]) from error
        except pl.exceptions.PolarsError as error:
            raise BadRowsError([BadValue(None, None, f"cannot be read ({' '.join(str(error).split())})")]) from error
        if bad:
            raise BadRowsError(
                [BadValue(row, self._column_in(text), f"{why}: {text[:SAMPLE]!r}") for row, why, text in sorted(bad)]
            )
        return encoded

    def _column_in(self, text: str) -> str | None:
        """The column that the text of a bad row is about."""
        return max((name for name in self.columns if text.startswith(f"{name}=")), key=len, default=None)


def _batch(keys: torch.Tensor, numbers: torch.Tensor, bags: Iterable[Bags]) -> Batch:
    rows = len(keys)
    return Batch(keys, numbers, torch.zeros(rows), torch.zeros(rows, dtype=torch.int64), bags=tuple(bags))
