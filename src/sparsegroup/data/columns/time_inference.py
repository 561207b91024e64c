"""Which columns are times, in what unit, and which of them is the log's own."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparsegroup.data.columns.column_kind import PER_SECOND, ColumnKind
from sparsegroup.data.columns.column_profile import ColumnProfile
from sparsegroup.data.columns.column_values import as_seconds
from sparsegroup.data.columns.column_words import TIMES

CLOCKS = ("ts", "timestamp")
"""Names of the log's own time, whatever its unit."""

_EARLIEST, _LATEST = 946_684_800, 2_208_988_800
"""Seconds since 1970 of the years 2000 and 2040: numbers are times only between."""

_SLACK, _IN_ORDER = 0.01, 0.99
"""Rows are in order if this share of them comes no later than this share of the whole span after its time."""

_LONG = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def time_kind(profile: ColumnProfile) -> tuple[str, str] | None:
    """The kind of a column of times, and why it is one; None if it is none.

    Args:
        profile: A column of dates, or of numbers.
    """
    if profile.is_iso:
        has_time = profile.any_matches(r":")
        unit = "iso" if has_time else "date"
        return str(ColumnKind("timestamp", unit)), "dates with a time" if has_time else "dates"
    if not profile.is_named(TIMES):
        return None
    low, high = float(profile.numbers.min()), float(profile.numbers.max())
    for unit, scale in PER_SECOND.items():
        if low >= _EARLIEST * scale and high < _LATEST * scale and (profile.is_whole or unit == "s"):
            year = int(np.datetime64(int(low) // scale, "s").astype("datetime64[Y]").astype(int)) + 1970
            return str(ColumnKind("timestamp", unit)), f"{_LONG[unit]} since 1970, from {year} on"
    return None


def own_time(columns: Sequence[tuple[ColumnProfile, str]]) -> tuple[str, str, str] | None:
    """The column of the log's own time, what kind that makes it, and the reason if it is another than for that kind.

    It has a name of a time, no missing value, and is in order, but for a little.

    Args:
        columns: Each with the kind that it was found to have.
    """
    named = [(profile, kind) for profile, kind in columns if profile.is_named(TIMES) and not profile.missing]
    clocks = [one for one in named if one[0].name.lower() in CLOCKS]
    for profile, text in (*clocks, *(one for one in named if one not in clocks)):
        kind = ColumnKind.of(text)
        if kind.role == "timestamp" and _in_order(_seconds(profile, kind.detail)):
            return profile.name, str(ColumnKind("time", kind.detail)), ""
        is_clock = profile.name.lower() in CLOCKS and kind.role not in ("timestamp", "label", "split")
        if is_clock and profile.rows and profile.is_numeric and profile.is_whole and _in_order(profile.numbers):
            return profile.name, "time", "the log's own time: a clock of its own, in order"
    return None


def _seconds(profile: ColumnProfile, unit: str) -> npt.NDArray[np.float64]:
    seconds: npt.NDArray[np.float64] = (
        profile.present.to_frame(profile.name)
        .select(as_seconds(profile.name, unit)[0])
        .to_series()
        .to_numpy()
        .astype(np.float64)
    )
    return seconds


def _in_order(times: npt.NDArray[np.float64]) -> bool:
    late = np.maximum.accumulate(times) - times
    return bool((late <= _SLACK * (times.max() - times.min())).mean() >= _IN_ORDER)
