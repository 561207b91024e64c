"""Kinds of the columns of a log, each written as one text, and the rules for reading labels."""

import json
import re
import unicodedata
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from operator import ge, gt, le, lt
from typing import Self

import polars as pl

from sparsegroup.errors import ClickLogError, LogOptionError

# fmt: off
_PLAIN = (
    "category", "category of numbers", "number", "category, number", "amount", "category, amount", "boolean", "words",
    "domain", "category, domain", "ignore", "label", "split", "weight",
)
_CURRENCIES = (
    "usd", "eur", "gbp", "jpy", "cny", "inr", "brl", "chf", "sek", "nok", "dkk", "pln", "czk", "huf", "aud", "cad",
    "mxn", "try", "rub", "krw", "zar", r"kr\.?", "zł", "kč", r"fr\.",
)
_CODES = (
    "AED|AFN|ALL|AMD|ANG|AOA|ARS|AWG|AZN|BAM|BBD|BDT|BGN|BHD|BIF|BMD|BND|BOB|BSD|BTN|BWP|"
    "BYN|BZD|CDF|CLP|COP|CRC|CUP|CVE|DJF|DOP|DZD|EGP|ERN|ETB|FJD|FKP|GEL|GHS|GIP|GMD|GNF|"
    "GTQ|GYD|HKD|HNL|HTG|IDR|ILS|IQD|IRR|ISK|JMD|JOD|KES|KGS|KHR|KMF|KPW|KWD|KYD|KZT|LAK|"
    "LBP|LKR|LRD|LSL|LYD|MAD|MDL|MGA|MKD|MMK|MNT|MOP|MRU|MUR|MVR|MWK|MYR|MZN|NAD|NGN|NIO|"
    "NPR|NZD|OMR|PAB|PEN|PGK|PHP|PKR|PYG|QAR|RON|RSD|RWF|SAR|SBD|SCR|SDG|SGD|SHP|SLE|SOS|"
    "SRD|SSP|STN|SVC|SYP|SZL|THB|TJS|TMT|TND|TOP|TTD|TWD|TZS|UAH|UGX|UYU|UZS|VES|VND|VUV|"
    "WST|XAF|XCD|XOF|XPF|YER|ZMW|ZWL"
)
# fmt: on

SIGN = rf"(?:R\$|[\p{{Sc}}%‰]|(?i:\b(?:{'|'.join(_CURRENCIES)}))|\b(?:{_CODES})\b)"
"""What an amount may have before or after its number: a currency, or percent."""

AMOUNTS = {
    "": r"^[+-]?(?:\d{1,3}(?:[,'’\s]\d{3})+|\d*)(?:\.\d+)?$",
    ",": r"^[+-]?(?:\d{1,3}(?:[.'’\s]\d{3})+|\d*)(?:,\d+)?$",
}
"""Detail of an amount → how its number is written, with a decimal point or a decimal comma."""

PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
"""Unit of whole numbers that are times → how many of them make a second."""

UNITS = (*PER_SECOND, "iso", "date")
"""Units of times; or a format as `strptime` has it, such as `%d/%m/%Y`."""

JSON = "json"
JOINT = "\x1f"
"""Between the values of a JSON list and the words of a text, once they are read."""

MOST_WORDS = 64
"""Words of a text that are read, the first ones."""

_NAMED = {"space": " ", "comma": ",", "tab": "\t"}

# fmt: off
MISSING = (
    "", "NA", "N/A", "n/a", "na", "n.a.", "null", "NULL", "Null", "None", "none", "nil", "NaN", "nan", "-nan", "NaT",
    "<NA>", "<na>", "(null)", "<null>", "\\N", "?", "-", "--", ".", "#N/A", "#NA", "#N/A N/A", "#DIV/0!", "#VALUE!",
    "#REF!", "#NUM!", "#NAME?", "#NULL!", "1.#QNAN", "-1.#IND", "1.#IND",
)
"""Spellings of a missing number, boolean, time or list, by databases, pandas, SAS and spreadsheets. In a category they
stand for themselves: NA is a country."""
# fmt: on

EXCEPT = " except "
"""Word between a kind and the JSON array of additional spellings of a missing value."""

SHARES = " shares "
"""Word between a kind and the column whose vocabulary the column shares."""

_SPELLINGS = {
    **dict.fromkeys(("category", "category, domain"), "texts"),
    **dict.fromkeys(("category of numbers", "category, number"), "numerals"),
    **{role: role for role in ("category, amount", "boolean", "words", "domain", "list")},
}
"""Role of a column → spelling of the values of its field. Columns of one spelling may share a vocabulary."""

BOOLEANS = dict.fromkeys(("true", "yes", "t", "y", "1"), "1") | dict.fromkeys(("false", "no", "f", "n", "0"), "0")
"""Spelling in lower case → what is hashed."""

SIGNS = "signs"
"""Rule of a label that is 1 or -1, as libsvm's are."""

NUMBERS = "numbers"
"""Rule of labels that are finite numbers. Bounds may follow: `numbers > 0`, `numbers >= 0 <= 1`."""

CLASSES = "classes"
"""Rule of a label that is one of several classes, followed by their texts as a JSON array."""

MOST_CLASSES = 1000

_COMPARISON = re.compile(r"(?P<column>.*?\S)\s*(?P<sign>>=|<=|==|!=|>|<|=)\s*(?P<value>\S.*)")
_COMPARED = re.compile(r"(>=|<=|==|!=|>|<)(.*)")
_BY_ORDER: Mapping[str, Callable[[pl.Expr, float], pl.Expr]] = {">=": ge, "<=": le, ">": gt, "<": lt}

ISO = (
    r"^\s*(?P<date>\d{4}-\d\d-\d\d)(?:[T ](?P<hour>\d\d):(?P<minute>\d\d)(?::(?P<second>\d\d)(?:[.,]\d+)?)?"
    r"\s*(?P<zone>Z|UTC|[+-]\d\d(?::?\d\d)?)?)?\s*$"
)
"""A date, or a date and a time, with or without a zone."""


@dataclass(frozen=True)
class Label:
    """Rule for reading the labels of a column.

    Attributes:
        column: The column.
        rule: "" for 0 or 1, or a spelling of `BOOLEANS`; `SIGNS` for 1 or -1; `NUMBERS` for finite numbers; `CLASSES`
            with their texts, whose numbers from 0 the labels are; a comparison, such as ">=4" or "==click": the label
            is 1 where it holds, and texts are compared by == and != alone; or "/tries" with the column of as many tries
            as a row has: the label is the share of them that the column counts, and the row weighs as many times more.

    Raises:
        LogOptionError: Fewer than two classes, more than 1000, or one twice.
    """

    column: str
    rule: str = ""

    @classmethod
    def of(cls, given: str, columns: Collection[str] | None = None, rule: str = "") -> "Label":
        """The label that a text names: a column, a comparison of one such as `rating>=4`, or `clicks/impressions`.

        Args:
            given: The text; a column of that name comes first.
            columns: The log's columns, where they are known.
            rule: How a column's own values are read.

        Raises:
            LogOptionError: A comparison by order with something that is no number.
        """
        column, _, tries = given.partition("/")
        if column and tries and given not in (columns or ()) and (columns is None or {column, tries} <= {*columns}):
            return cls(column, f"/{tries}")
        match = _COMPARISON.fullmatch(given)
        if match is None or given in (columns or ()) or (columns is not None and match["column"] not in columns):
            return cls(given, rule)
        sign, value = match["sign"].replace("==", "="), match["value"]
        if sign in ("=", "!="):
            return cls(match["column"], ("==" if sign == "=" else sign) + value)
        if _number(value) is None:
            raise LogOptionError(f"`label` {given!r}: {match['sign']} compares with a number, got {value!r}", "label")
        return cls(match["column"], sign + value)

    @classmethod
    def several(cls, given: str | Sequence[str], columns: Collection[str] | None = None) -> tuple["Label", ...]:
        """The labels, of one task each, that texts name, or a text with commas between; one of any other text.

        Raises:
            LogOptionError: As `of`; or the same label twice.
        """
        if isinstance(given, str):
            parts = tuple(cls.of(part.strip(), columns) for part in given.split(","))
            there = [columns is None or part.column in columns for part in parts]
            known = all(there) or (any(there) and not any(part.rule for part in parts))  # a value may have commas
            given = [str(part) for part in parts] if known and given not in (columns or ()) else [given]
        found = tuple(cls.of(one, columns) for one in given)
        if len(set(found)) < len(found):
            raise LogOptionError(f"`label` names one twice: {', '.join(map(str, found))}", "label")
        return found

    @classmethod
    def of_classes(cls, column: str, classes: Sequence[str]) -> "Label":
        """The label of a column that is one of these classes."""
        if not 2 <= len(classes) <= MOST_CLASSES or len(set(classes)) < len(classes):
            count = f"{len(classes):,} class{'es' * (len(classes) != 1)}"
            what = count if len(set(classes)) == len(classes) else "one twice"
            raise LogOptionError(
                f"label {column!r}: 2 to {MOST_CLASSES} different classes are expected, got {what}"
                f"{'' if len(classes) < 2 else '; numbers are learnt with `objective` squared or another'}",
                "label",
            )
        return cls(column, CLASSES + json.dumps(list(classes), ensure_ascii=False))

    @property
    def classes(self) -> tuple[str, ...]:
        """The texts of the classes, in the order of their numbers; none of other rules, or before they are found."""
        texts = self.rule.removeprefix(CLASSES) if self.rule.startswith(CLASSES) else ""
        return tuple(json.loads(texts or "[]"))

    @property
    def tries(self) -> str | None:
        """The column of the tries of a row, of which `column` counts some; None of other rules."""
        return self.rule[1:] if self.rule.startswith("/") else None

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read for it."""
        return (self.column,) if self.tries is None else (self.column, self.tries)

    @property
    def is_binary(self) -> bool:
        """Whether all labels are 0 or 1."""
        return not self.rule.startswith((NUMBERS, CLASSES, "/"))

    def read(self, texts: pl.Series) -> pl.Series:
        """Labels `[n]` float32 of texts `[n]`; null where there is none, or it cannot be read."""
        if not self.rule and texts.is_in(["0", "1"]).fill_null(False).all():
            return (texts == "1").cast(pl.Float32)
        return pl.DataFrame({"text": texts}).select(self._value.cast(pl.Float32)).to_series()

    @property
    def _value(self) -> pl.Expr:
        text = pl.col("text").str.strip_chars()
        numbers = text.cast(pl.Float64, strict=False)
        if self.rule == SIGNS:
            return pl.when(numbers.is_in([-1.0, 0.0, 1.0])).then(numbers > 0)
        if not self.rule:
            words = text.str.to_lowercase().replace_strict(BOOLEANS, default=None, return_dtype=pl.String)
            return pl.coalesce(pl.when(numbers.is_in([0.0, 1.0])).then(numbers), words.cast(pl.Float64))
        if classes := self.classes:
            values, places = [_number(name) for name in classes], list(range(len(classes)))
            if None not in values:  # 1 and 1.0 are one number
                return numbers.replace_strict(values, places, default=None, return_dtype=pl.Float64)
            return text.str.normalize("NFC").replace_strict(classes, places, default=None, return_dtype=pl.Float64)
        if not self.is_binary:
            valid = numbers.cast(pl.Float32).is_finite()
            for sign, bound in self._bounds:
                valid &= _BY_ORDER[sign](numbers, bound)
            return pl.when(valid).then(numbers)
        sign, value = _COMPARED.fullmatch(self.rule).groups()  # type: ignore[union-attr]
        number = _number(value)
        if sign in _BY_ORDER:
            assert number is not None
            return _BY_ORDER[sign](numbers, number)
        # 1 and 1.0 are one number; a text equals none.
        holds = (
            text.str.normalize("NFC") == unicodedata.normalize("NFC", value)
            if number is None
            else (numbers == number).fill_null(False)
        )
        return pl.when(text.is_not_null()).then(holds if sign == "==" else ~holds)

    @property
    def _bounds(self) -> list[tuple[str, float]]:
        """Return the comparisons that a numeric label passes."""
        bounds = self.rule.removeprefix(NUMBERS).split() if self.rule.startswith(NUMBERS) else []
        return [(sign, float(bound)) for sign, bound in zip(bounds[::2], bounds[1::2], strict=True)]

    @property
    def problem(self) -> str:
        """What is wrong with a text that cannot be read."""
        if not self.rule:
            return f"label {self.column!r} must be 0 or 1, true or false, yes or no"
        if self.rule == SIGNS:
            return f"label {self.column!r} must be 1 or -1"
        if self.is_binary:
            return f"label {self.column!r} cannot be compared ({self.rule})"
        if self.tries is not None:
            return f"label {self.column!r} must be a number from 0 to {self.tries!r}"
        if classes := self.classes:
            shown = ", ".join(classes[:10]) + (f" and {len(classes) - 10} more" if len(classes) > 10 else "")
            return f"label {self.column!r} must be one of the classes {shown}"
        return f"label {self.column!r} must be a finite number{self.rule.removeprefix(NUMBERS).replace(' <=', ', <=')}"

    def check(self, texts: pl.Series, where: str) -> None:
        """Raise ClickLogError with advice if texts `[n]` show that the labels are not 0 and 1.

        Labels are not 0 and 1 if two other values occur, or if most rows have other numbers.
        """
        present = texts.str.strip_chars().replace("", None).drop_nulls()
        strange = present.filter(self.read(present).is_null())
        if self.rule or not len(strange):
            return
        numbers = present.cast(pl.Float64, strict=False)
        are_numbers = bool(numbers.is_finite().fill_null(False).all())
        counted = (numbers if are_numbers else present).alias("value").value_counts(sort=True)
        values = sorted(counted["value"]) if are_numbers else counted["value"].to_list()
        shown = [f"{value:g}" if are_numbers else value for value in values[:3]]
        if len(values) == 2 and 10 * len(strange) >= len(present):
            first, second = shown
            raise ClickLogError(
                f"{where}: label {self.column!r} is {first} or {second}, where 0 or 1 is expected: say which one is "
                f"positive, as in `label` '{self.column}=={second}'",
                "label",
            )
        if len(strange) > max(10, len(texts) // 2) and are_numbers and len(values) > 1:
            rarer = next((one for one in values[1:] if 2 * int((numbers >= one).sum()) <= len(present)), values[-1])
            raise ClickLogError(
                f"{where}: label {self.column!r} has numbers such as {', '.join(shown)}: compare it, as in `label` "
                f"'{self.column}>={rarer:g}', or train on the numbers, with `objective` squared or another, or softmax",
                "label",
            )

    def __str__(self) -> str:
        if self.rule == SIGNS or not (self.is_binary or self.tries is not None):
            return self.column
        return self.column + self.rule


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if isfinite(number) else None


@dataclass(frozen=True)
class ColumnKind:
    """What a column is, and so what becomes of it.

    - `category`: a field; a text is hashed unchanged, a typed number in one spelling: 7 for 7.0.
    - `category of numbers`: a field whose values are numbers, so that 1, 1.0 and 01 are one of them.
    - `number`: an unchanged number, float32; a missing or infinite one is NaN.
    - `category, number`: both of the last two.
    - `amount`: a number with a currency or percent, or digits in groups: `$1,234.50`, `30 %`; `amount comma` where the
      decimals follow a comma: `1.234,50 €`. One that cannot be read makes the row a bad one.
    - `category, amount`, `category, amount comma`: a field of the numbers, and the number.
    - `boolean`: a field of 0 and 1; true, yes, t, y, 1.0 are 1, false, no, f, n, 0.0 are 0, in any case.
    - `timestamp UNIT`: two fields, hour (0 to 23) and weekday (1, Monday, to 7); of a date the weekday alone. Units are
      s, ms, us, ns (whole numbers since 1970, UTC), iso (2024-01-31T09:30:00+01:00, in the zone written) and date; or
      any format of `strptime` with a year, such as `timestamp %d/%m/%Y %H:%M`.
    - `time UNIT`: the same, and the log's own time, in seconds since 1970. `time` alone: unchanged whole numbers, and
      no fields.
    - `list SEPARATOR`: a field of several values; the separator is one or more characters, `space`, `comma`, `tab`, or
      `json` for arrays.
    - `words`: a field of several values, the different words of a text in lower case, of the first 64.
    - `domain`: a field, the domain of an e-mail address or a URL in lower case; `category, domain`: also one of the
      unchanged text.
    - `label`, `split`, `weight`: the label, the mark of the test rows, and how much a row counts, a number >= 0.
    - `ignore`: nothing.

    A kind with a field may be followed by `shares` and another column, such as `list | shares item`: equal values of
    the two columns have one key, and so one vector. Any kind may be followed by `except` and a JSON array of texts that
    mean no value in this column besides `MISSING`: `number except ["unknown"]`.

    Attributes:
        role: The kind without its detail.
        detail: Unit or format of a time, separator of a list, decimal comma of an amount, or "".
        missing: Texts that mean no value in the column, besides `MISSING`.
        shares: Column whose vocabulary the column shares, or "".

    Examples:
        >>> from sparsegroup.data import ColumnKind
        >>> ColumnKind.of("time ms")
        ColumnKind(role='time', detail='ms', missing=(), shares='')
        >>> str(ColumnKind("list", ","))
        'list comma'
        >>> ColumnKind.of('number except ["unknown"]').missing
        ('unknown',)
        >>> ColumnKind.of("list | shares item").shares
        'item'
    """

    role: str
    detail: str = ""
    missing: tuple[str, ...] = ()
    shares: str = ""

    @classmethod
    def of(cls, text: str) -> Self:
        """The kind with this text.

        Raises:
            ClickLogError: There is none.
        """
        plain, mark, array = text.partition(EXCEPT)
        if mark:
            return replace(cls.of(plain), missing=_texts_of(array, text))
        plain, mark, column = text.partition(SHARES)
        if mark and column.strip():
            return replace(cls.of(plain), shares=column.strip())
        words = " ".join(text.replace(",", ", ", 1).split()) if not text.strip().startswith("list") else text.strip()
        if words in _PLAIN or words == "time":
            return cls(words)
        if words == "number, category":
            return cls("category, number")
        if words in ("amount comma", "category, amount comma"):
            return cls(words.removesuffix(" comma"), ",")
        role, _, detail = words.partition(" ")
        if role in ("time", "timestamp") and (detail in UNITS or "%Y" in detail):
            return cls(role, detail)
        if role == "list" and detail.strip():
            return cls(role, _NAMED.get(detail.strip(), detail.strip()))
        raise ClickLogError(
            f"a column is one of {'; '.join(_PLAIN)}; time or timestamp with one of {', '.join(UNITS)} or a format with"
            " %Y, such as %d/%m/%Y; or list with what separates its values, such as |, comma, space or json: "
            f"got {text!r}"
        )

    def __str__(self) -> str:
        named = {separator: name for name, separator in _NAMED.items()}
        text = f"{self.role} {named.get(self.detail, self.detail)}".strip()
        text += SHARES + self.shares if self.shares else ""
        return text + (EXCEPT + json.dumps(self.missing, ensure_ascii=False) if self.missing else "")

    @property
    def is_time(self) -> bool:
        """Whether it is a time, the log's own or another."""
        return self.role in ("time", "timestamp")

    @property
    def can_be_unread(self) -> bool:
        """Return whether values of a field of the column may be unreadable."""
        return self.is_time or self.role == "list"

    @property
    def has_hour(self) -> bool:
        """Whether the times of a column are more than dates."""
        return self.detail != "date" and ("%" not in self.detail or "%H" in self.detail or "%I" in self.detail)

    @property
    def spelling(self) -> str:
        """Return the spelling of the values of the column's field, "" of a kind without such a field."""
        return _SPELLINGS.get(self.role, "")

    def can_share(self, other: "ColumnKind") -> bool:
        """Return whether equal values of this kind and of another kind can have one key."""
        is_list_of = self.role == "list" and other.spelling in ("texts", "numerals")
        return bool(self.spelling) and (self.spelling == other.spelling or is_list_of)

    @property
    def separator(self) -> str:
        """What separates the values of a list or text, once it is read; "" of other columns."""
        if self.role == "words":
            return JOINT
        return "" if self.role != "list" else JOINT if self.detail == JSON else self.detail


def _texts_of(array: str, kind: str) -> tuple[str, ...]:
    """Return the texts in a JSON array. ClickLogError: an element is not a text."""
    try:
        texts = json.loads(array)
    except ValueError:
        texts = None
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        raise ClickLogError(f'after `except`, a JSON array of texts is expected, such as ["unknown"]: got {kind!r}')
    return tuple(texts)


@dataclass(frozen=True)
class ColumnFinding:
    """What a column was taken for, and why.

    Attributes:
        name: The column.
        kind: What it was taken for, see `ColumnKind`.
        why: The reason, in words.
        examples: A few of its values.
        distinct: Different values in the rows that were looked at, without missing ones.
        missing: Share of those rows, in [0, 1], that have no value.
        auc: AUC with which the column alone predicts the label in those rows; None if that is not known.
        warning: What the user should think about, or ""; parameters are in backquotes.
    """

    name: str
    kind: str
    why: str
    examples: tuple[str, ...] = ()
    distinct: int = 0
    missing: float = 0.0
    auc: float | None = None
    warning: str = ""
