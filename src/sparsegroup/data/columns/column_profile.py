"""The values of a column in the rows that are looked at: what all rules of the inference go by."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import polars as pl

from sparsegroup.data.columns.column_values import ISO, MISSING

_EXAMPLES, _LENGTH = 3, 24
# 1e5 without a sign or a point is rather the beginning of a hash.
_NUMERAL = r"^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]\d+)?$|^[+-]?\d*\.\d*[eE]\d+$"
_PADDED = r"^[+-]?0\d"
_INFINITE = r"^[+-]?(?i:inf|infinity)$"


@dataclass(frozen=True)
class ColumnProfile:
    """A column of texts, and what of it the rules ask for.

    Attributes:
        name: The column.
        texts: `[rows]` its values; null where there is none.
    """

    name: str
    texts: pl.Series

    @cached_property
    def present(self) -> pl.Series:
        """The values that there are, without blanks around them and without spellings of missing ones."""
        texts = self.texts.str.strip_chars()
        return texts.filter(texts.is_not_null() & ~texts.is_in(list(MISSING)))

    @cached_property
    def counts(self) -> pl.DataFrame:
        """Different values and how often each comes, in columns `value` and `count`."""
        return self.present.alias("value").value_counts(sort=True)

    @property
    def values(self) -> pl.Series:
        """Different values, the most frequent first."""
        return self.counts["value"]

    @property
    def rows(self) -> int:
        """Rows with a value."""
        return len(self.present)

    @property
    def distinct(self) -> int:
        """Number of different values."""
        return len(self.counts)

    @cached_property
    def stretches(self) -> int:
        """In how many pieces the rows fall, each of rows with the same value."""
        return int((self.present != self.present.shift(1)).fill_null(True).sum())

    @property
    def stretch(self) -> float:
        """Rows in a row with the same value, on average."""
        return self.rows / self.stretches

    @property
    def returns(self) -> float:
        """In how many stretches of rows a value comes, on average."""
        return self.stretches / self.distinct

    @property
    def missing(self) -> float:
        """Share of the rows without a value."""
        return 1 - self.rows / max(len(self.texts), 1)

    @property
    def examples(self) -> tuple[str, ...]:
        """The most frequent values, cut to a readable length."""
        return tuple(
            value if len(value) <= _LENGTH else value[: _LENGTH - 1] + "…" for value in self.values.head(_EXAMPLES)
        )

    @cached_property
    def words(self) -> frozenset[str]:
        """The words that the name is made of, in lower case."""
        parts = re.split(r"[^A-Za-z0-9]+|(?<=[a-z0-9])(?=[A-Z])", self.name)
        return frozenset(re.sub(r"\d+$", "", part.lower()) for part in parts if part)

    def is_named(self, words: Iterable[str]) -> bool:
        """Whether one of these words is in the name."""
        return not self.words.isdisjoint(words)

    def all_match(self, pattern: str) -> bool:
        """Whether every value matches."""
        return bool(self.values.str.contains(pattern).all())

    def any_matches(self, pattern: str) -> bool:
        """Whether some value matches."""
        return bool(self.values.str.contains(pattern).any())

    @cached_property
    def numeral_share(self) -> float:
        """Share of the rows with a value that is a number, infinity among them."""
        is_numeral = self.counts.filter(
            pl.col("value").str.contains(_NUMERAL) | pl.col("value").str.contains(_INFINITE)
        )
        return int(is_numeral["count"].sum()) / max(self.rows, 1)

    @property
    def is_numeric(self) -> bool:
        """Whether all values are numbers."""
        return self.rows > 0 and self.numeral_share == 1.0

    @property
    def is_padded(self) -> bool:
        """Whether a value begins with a zero that no number needs."""
        return self.any_matches(_PADDED)

    @cached_property
    def numbers(self) -> npt.NDArray[np.float64]:
        """`[rows]` the values as numbers, in the order of the rows, if all are."""
        return self.present.cast(pl.Float64, strict=False).to_numpy()

    @cached_property
    def is_whole(self) -> bool:
        """Whether all values are whole numbers."""
        return bool(np.isfinite(self.numbers).all() and (self.numbers == np.round(self.numbers)).all())

    @property
    def is_iso(self) -> bool:
        """Whether all values are dates, or dates with a time."""
        without_names = re.sub(r"\?P<\w+>", "", ISO)
        return (
            self.rows > 0
            and self.all_match(without_names)
            and self.values.str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False).is_not_null().all()
        )

    @cached_property
    def smoothness(self) -> float:
        """Correlation, from -1 to 1, of how often a number comes and how often the next larger one does.

        An amount has a density, which is much the same for neighbours; the numbers of users or articles have none.
        """
        counts = self.counts.with_columns(pl.col("value").cast(pl.Float64)).sort("value")["count"].rank().to_numpy()
        if len(counts) < 3 or counts[:-1].std() == 0 or counts[1:].std() == 0:
            return 0.0
        return float(np.corrcoef(counts[:-1], counts[1:])[0, 1])
