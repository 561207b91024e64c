"""Which columns hold lists, and what separates their values."""

import polars as pl

from sparsegroup.data.columns.column_kind import JSON, ColumnKind
from sparsegroup.data.columns.column_profile import ColumnProfile
from sparsegroup.data.columns.column_values import json_list

_LOOKED_AT = 5_000
_SHARES = {"|": 0.05, ";": 0.05, ",": 0.3, " ": 0.5}
"""Separator → share of the values that must have it. The first that fits is taken."""

_TOKEN = r"^[A-Za-z]{0,3}\d+$"
"""Between spaces there must be such tokens: texts have spaces, too."""

_REPEATS = 2


def list_kind(profile: ColumnProfile) -> tuple[str, str] | None:
    """The kind of a column of lists, and why it is one; None if it is none."""
    values = profile.values.head(_LOOKED_AT)
    if values.str.starts_with("[").all():
        lists = [json_list(value) for value in values]
        if all(one is not None for one in lists):
            return str(ColumnKind("list", JSON)), "JSON arrays"
    for separator, share in _SHARES.items():
        has = values.str.contains(separator, literal=True)
        if has.mean() >= share and _separates(separator, values, profile):  # type: ignore[operator]
            several = 100 * float(has.mean())  # type: ignore[arg-type]
            name = separator if separator != " " else "spaces"
            return str(ColumnKind("list", separator)), f"{several:.0f} % of the values are several, between {name}"
    return None


def _separates(separator: str, values: pl.Series, profile: ColumnProfile) -> bool:
    """Whether what is between separators comes again in other values, and looks like a value."""
    parts = values.str.split(separator)
    elements = parts.explode()
    filled = elements.filter(elements != "")
    if not len(filled) or len(filled) < 0.9 * len(elements) or (filled != filled.str.strip_chars()).any():
        return False
    if separator == " " and not filled.str.contains(_TOKEN).all():
        return False
    if separator != " " and filled.str.contains(r"[(){}]|://").any():
        return False
    lengths = parts.list.len()
    varies = lengths.n_unique() > 1
    return filled.n_unique() * _REPEATS <= len(filled) and (varies or filled.n_unique() < values.n_unique())
