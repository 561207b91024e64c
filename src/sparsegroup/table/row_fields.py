"""Which field each row of a table belongs to, by the top bits of its key: for λ21 that differ by field.

Rows do not hold their keys. This is told from the keys as they get their rows, and kept only by tables whose optimizer
asks for it: a byte per row for up to 8 bits, two for more.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.regularizer import Regularizer
from sparsegroup.table.index import Index
from sparsegroup.table.row_locations import Int64s

_COMMON = 32
"""A class of rows that is a larger share than one in so many is found by drawing from all rows."""

_SPARE, _MORE = 32, 1.1
"""What is drawn beyond what should suffice for the rarest common class."""

_GROWTH = 1.25
_AT_A_TIME = 1 << 20


def fields_of(keys: Int64s, bits: int) -> npt.NDArray[np.uint16]:
    """The field, uint16, in the top `bits` bits, 1 to 16, of each key."""
    return (keys.view(np.uint64) >> np.uint64(64 - bits)).astype(np.uint16)


class RowFields:
    """The fields of a table's rows.

    Args:
        bits: How many of a key's bits say the field, from 1 to 16.

    Attributes:
        bits: See above.
        num_rows: Rows so far.
        counts: `[2**bits]` int64, how many of them each field has.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.num_rows = 0
        self.counts = np.zeros(1 << bits, np.int64)
        self._fields: npt.NDArray[Any] = np.empty(0, np.uint8 if bits <= 8 else np.uint16)
        self._listed: dict[tuple[tuple[int, ...], int], tuple[int, Int64s]] = {}

    @classmethod
    def of_index(cls, index: Index, bits: int) -> "RowFields":
        """Those of the rows that an index has."""
        result = cls(bits)
        result._fields = np.empty(index.num_keys, result._fields.dtype)
        result.num_rows = index.num_keys
        for keys, rows in index.scan(_AT_A_TIME):
            fields = fields_of(keys, bits)
            result._fields[rows] = fields
            result.counts += np.bincount(fields, minlength=len(result.counts))
        return result

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self._fields.nbytes + sum(rows.nbytes for _, rows in self._listed.values())

    def add(self, keys: Int64s, rows: Int64s) -> None:
        """Note new rows, whose numbers are the next ones, in any order, and the keys `[n]` that have got them."""
        fields = fields_of(keys, self.bits)
        count = self.num_rows + len(rows)
        if count > len(self._fields):
            grown = np.empty(max(count, int(_GROWTH * len(self._fields))), self._fields.dtype)
            grown[: self.num_rows] = self._fields[: self.num_rows]
            self._fields = grown
        self._fields[rows] = fields
        self.counts += np.bincount(fields, minlength=len(self.counts))
        self.num_rows = count

    def keep(self, kept: npt.NDArray[np.bool_]) -> None:
        """Keep the rows of a mask `[num_rows]`, renumbered in their order."""
        self._fields = self._fields[: self.num_rows][kept]
        self.num_rows = len(self._fields)
        self.counts = np.zeros_like(self.counts)
        for first in range(0, self.num_rows, _AT_A_TIME):
            self.counts += np.bincount(self._fields[first : first + _AT_A_TIME], minlength=len(self.counts))
        self._listed.clear()

    def of(self, rows: Int64s | slice) -> npt.NDArray[Any]:
        """The field of each of some rows."""
        return self._fields[: self.num_rows][rows]

    def classified(self, classes: "FieldClasses") -> npt.NDArray[np.uint16]:
        """The class of each row, by its number."""
        result = np.empty(self.num_rows, np.uint16)
        for first in range(0, self.num_rows, _AT_A_TIME):
            some = slice(first, first + _AT_A_TIME)
            result[some] = classes.of_field[self.of(some)]
        return result

    def draw(self, classes: "FieldClasses", at_most: int, generator: np.random.Generator) -> list[Int64s]:
        """Rows of each class, drawn with replacement, or all of them.

        A common class is found by drawing from among all rows. The rows of a rare one are listed: over a training each
        row is looked at once for that.

        Args:
            classes: The classes.
            at_most: Rows of a class, ≥ 1.
            generator: Draws them.
        """
        totals = classes.sums(self.counts)
        rare = totals <= max(at_most, self.num_rows // _COMMON)
        if not rare.all():
            enough = (at_most + _SPARE) * self.num_rows / int(totals[~rare].min())
            common = generator.integers(0, self.num_rows, int(_MORE * enough))
            which = classes.of_field[self.of(common)]
        found = []
        for number, total in enumerate(totals.tolist()):
            if rare[number]:
                rows = self._rows_of(classes, number)
                found.append(rows if total <= at_most else rows[generator.integers(0, total, at_most)])
            else:
                self._listed.pop((classes.named, number), None)
                found.append(common[which == number][:at_most])
        return found

    def _rows_of(self, classes: "FieldClasses", number: int) -> Int64s:
        """All rows of a class, in their order: only those that are new since it was asked last are looked at."""
        begin, rows = self._listed.get((classes.named, number), (0, np.empty(0, np.int64)))
        if begin < self.num_rows:
            new = [
                first + np.flatnonzero(classes.are_of(number, self.of(slice(first, first + _AT_A_TIME))))
                for first in range(begin, self.num_rows, _AT_A_TIME)
            ]
            rows = np.concatenate([rows, *new])
            self._listed[classes.named, number] = self.num_rows, rows
        return rows


class FieldClasses:
    """Fields in classes: those that are named, from class 1 on, and all others together, class 0.

    Args:
        named: Some fields.
        bits: There are 2**bits.

    Attributes:
        named: See above.
        of_field: `[2**bits]`, the class of each field.
    """

    def __init__(self, named: Sequence[int], bits: int) -> None:
        self.named = tuple(named)
        self.of_field = np.zeros(1 << bits, np.uint16)
        self.of_field[list(named)] = np.arange(1, len(named) + 1)

    def sums(self, of_fields: Int64s) -> Int64s:
        """What numbers of fields `[2**bits]` add up to in each class."""
        sums = np.zeros(len(self.named) + 1, np.int64)
        np.add.at(sums, self.of_field, of_fields)
        return sums

    def split(self, values: npt.NDArray[Any], which: npt.NDArray[Any]) -> list[npt.NDArray[Any]]:
        """The values of each class, in their order; `which` `[n]` says the class of each."""
        parts: list[list[npt.NDArray[Any]]] = [[values[:0]] for _ in range(len(self.named) + 1)]
        for first in range(0, len(values), _AT_A_TIME):
            some = which[first : first + _AT_A_TIME].astype(np.uint16, copy=False)  # which is sorted by radix
            in_order = values[first : first + _AT_A_TIME][np.argsort(some, kind="stable")]
            ends = np.cumsum(np.bincount(some, minlength=len(parts)))
            for part, its in zip(parts, np.split(in_order, ends[:-1]), strict=True):
                part.append(its)
        return [np.concatenate(part) for part in parts]

    def are_of(self, number: int, fields: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Which of some fields are of a class."""
        found: npt.NDArray[np.bool_] = fields == self.named[number - 1] if number else self.of_field[fields] == 0
        return found


class RowLambdas:
    """The λ21 of a table's rows where it differs by field.

    Args:
        fields: The rows' fields.
        regularizer: Has them.

    Attributes:
        fields, regularizer: See above.
        values: The distinct λ21, ascending.
    """

    def __init__(self, fields: RowFields, regularizer: Regularizer) -> None:
        self.fields, self.regularizer = fields, regularizer
        of_field = dict(regularizer.field_l21)
        self.values = sorted({regularizer.l21, *of_field.values()})
        self._numbers = np.full(1 << fields.bits, self.values.index(regularizer.l21), np.uint16)
        for field, l21 in of_field.items():
            self._numbers[field] = self.values.index(l21)

    def numbers(self, rows: Int64s | slice) -> npt.NDArray[np.uint16]:
        """Which of the values each of some rows has, by its place."""
        numbers: npt.NDArray[np.uint16] = self._numbers[self.fields.of(rows)]
        return numbers
