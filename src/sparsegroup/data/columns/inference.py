"""What the columns of a log are, told from their names and first values."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from sparsegroup.data.columns.column_finding import ColumnFinding, kinds_of
from sparsegroup.data.columns.column_profile import ColumnProfile
from sparsegroup.data.columns.column_values import BOOLEANS
from sparsegroup.data.columns.column_words import AMOUNTS, CYCLES, THINGS, WEIGHTS
from sparsegroup.data.columns.list_inference import list_kind
from sparsegroup.data.columns.time_inference import own_time, time_kind

ENOUGH = 100
"""Rows with a value, from which on it says something that none repeats."""

FEW, OFTEN = 100, 10
"""So few different values, each so often: a number is a category."""

_FEW_FLOATS = 20
_REPEATS = 2
"""So many times a number must come on average to be a category beside."""

_LONG = 500
"""Rows in which a clock stands still, a month, a day, while it has come to the same place fewer than `OFTEN` times."""

_NEARLY_UNIQUE = 0.8
_LARGEST_AMOUNT = 2.0**53
_MANY, _ROUGH = 1_000, 0.1


def infer_columns(
    frame: pl.DataFrame,
    *,
    whole: bool,
    known: Mapping[str, tuple[str, str]] | None = None,
    finds_weight: bool = False,
) -> tuple[ColumnFinding, ...]:
    """What the columns are, told from some rows.

    Args:
        frame: The first rows, as columns of texts; null where there is no value.
        whole: Whether these are all rows of the log.
        known: Column → its kind, and why it is that; these are not told from the rows.
        finds_weight: Whether a column of numbers >= 0 with one of the names in `WEIGHTS` is the rows' weight.

    Returns:
        A finding for each column, in order.
    """
    profiles = [ColumnProfile(name, frame[name]) for name in frame.columns]
    known = known or {}
    others = [profile for profile in profiles if profile.name not in known]
    weight = _weight_among(others) if finds_weight else None
    findings = []
    for profile in profiles:
        if profile.name in known:
            kind, why, warning = *known[profile.name], ""
        elif profile is weight:
            kind, why, warning = "weight", "how much a row counts, because of its name", _WEIGHS.format(profile.name)
        else:
            kind, why, warning = _kind_of(profile, whole)
        findings.append(
            ColumnFinding(profile.name, kind, why, profile.examples, profile.distinct, profile.missing, warning)
        )
    return tuple(_with_own_time(findings, [one for one in others if one is not weight]))


_WEIGHS = (
    "column {0!r} is used as the rows' weight, because of its name: the loss and the metrics count each row by it; "
    "if it is a feature, set `weight` to none"
)


def _weight_among(profiles: Sequence[ColumnProfile]) -> ColumnProfile | None:
    named = [one for name in WEIGHTS for one in profiles if one.name.lower() == name]
    return next((one for one in named if one.is_numeric and not one.missing and _can_weigh(one.numbers)), None)


def _can_weigh(numbers: np.ndarray) -> bool:
    return bool(np.isfinite(numbers).all() and numbers.min() >= 0 and numbers.max() > 0)


def _with_own_time(findings: Sequence[ColumnFinding], profiles: Sequence[ColumnProfile]) -> list[ColumnFinding]:
    kinds = kinds_of(findings)
    found = own_time([(profile, kinds[profile.name]) for profile in profiles])
    if found is None:
        return list(findings)
    name, kind, why = found
    return [
        replace(one, kind=kind, why=why or f"{one.why}; the log's own time: in order") if one.name == name else one
        for one in findings
    ]


def _kind_of(profile: ColumnProfile, whole: bool) -> tuple[str, str, str]:
    """Kind, reason and warning."""
    if not len(profile.texts):
        return "category", "no rows that would tell", ""
    if not profile.rows:
        what = "no value at all" if whole else "no value so far"
        return ("ignore" if whole else "category"), what, ""
    if profile.distinct == 1 and not profile.missing:
        useless = whole and profile.rows >= ENOUGH
        return "ignore" if useless else "category", f"always {profile.examples[0]}{'' if whole else ' so far'}", ""
    if profile.name.lower() == "id" and profile.rows < _REPEATS * profile.distinct:
        return "ignore", "names the row, and hardly repeats", ""
    lower = set(profile.values.head(len(BOOLEANS) + 1).str.to_lowercase())
    if lower <= BOOLEANS.keys() and len({BOOLEANS[value] for value in lower}) == 2:
        return "boolean", f"only {' and '.join(sorted(profile.examples))}", ""
    if profile.is_iso or (profile.is_numeric and not profile.is_padded):
        return _kind_of_times_and_numbers(profile)
    if found := list_kind(profile):
        return *found, ""
    return _kind_of_texts(profile)


def _kind_of_times_and_numbers(profile: ColumnProfile) -> tuple[str, str, str]:
    if found := time_kind(profile):
        return *found, ""
    if not profile.is_whole:
        if profile.distinct <= _FEW_FLOATS and profile.rows >= OFTEN * profile.distinct:
            return "category, number", f"decimals, of which only {profile.distinct} differ", ""
        return "number", "decimals", ""
    return _kind_of_whole_numbers(profile)


def _kind_of_whole_numbers(profile: ColumnProfile) -> tuple[str, str, str]:
    rows, distinct, values = profile.rows, profile.distinct, profile.numbers
    often, repeats = _often(profile), rows / distinct
    as_written = "category of numbers" if profile.any_matches(r"\.") else "category"
    if np.abs(values).max() >= _LARGEST_AMOUNT:
        return _unless_unique(profile, "category", f"{often}; too large for amounts")
    if distinct == rows and rows >= ENOUGH and _counts_up(values):
        return "ignore", "counts the rows: no value comes twice", ""
    if profile.is_named(THINGS) and not profile.is_named(AMOUNTS):
        return _unless_unique(profile, as_written, f"{often}; its name says that they stand for things")
    if profile.stretch >= _LONG and profile.returns < OFTEN and not profile.is_named(CYCLES):
        came = f"{distinct:,} values in {profile.stretches:,} stretches of {profile.stretch:,.0f} rows"
        return "ignore", f"a clock: {came}, so that later rows have others", ""
    if distinct <= FEW and repeats >= OFTEN:
        return as_written, often, ""
    if rows < ENOUGH:
        return as_written, often, ""
    if repeats < _REPEATS:
        return "number", f"whole numbers that rarely repeat: {often}", ""
    if distinct >= _MANY and profile.smoothness < _ROUGH:
        why = f"{often}; how often one comes says nothing of the next: no amounts"
        return as_written, why, ""
    return "category, number", f"{often}; may stand for things or be amounts, so both", ""


def _kind_of_texts(profile: ColumnProfile) -> tuple[str, str, str]:
    why = _often(profile)
    if profile.is_padded and profile.is_numeric:
        why += "; zeros in front: codes, not amounts"
    elif profile.numeral_share >= 0.5:
        other = profile.values.filter(~profile.values.str.contains(r"^[\d.+-]+$"))
        example = f", such as {other[0][:20]!r}" if len(other) else ""
        why += f"; {1 - profile.numeral_share:.2%} are no numbers{example}"
    return _unless_unique(profile, "category", why)


def _unless_unique(profile: ColumnProfile, kind: str, why: str) -> tuple[str, str, str]:
    """The kind, unless each value comes once; with a warning if most do."""
    if profile.rows < ENOUGH:
        return kind, why, ""
    if profile.distinct == profile.rows:
        return "ignore", f"never repeats: {profile.rows:,} rows with {profile.rows:,} values", ""
    if profile.distinct >= _NEARLY_UNIQUE * profile.rows:
        warning = (
            f"{profile.name} is nearly unique, {profile.distinct:,} values in {profile.rows:,} rows: if it names single"
            " rows, leave it out (`exclude`)"
        )
        return kind, why, warning
    return kind, why, ""


def _often(profile: ColumnProfile) -> str:
    each = profile.rows / profile.distinct
    return f"{profile.distinct:,} different values, each {each:,.{0 if each >= 10 else 1}f} times on average"


def _counts_up(values: np.ndarray) -> bool:
    steps = np.diff(values)
    return bool((steps > 0).all() and values[-1] - values[0] < 4 * len(values))
