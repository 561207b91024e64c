"""Avazu's challenge."""

from functools import partial

import polars as pl

from sparsegroup.data.schema import Head, KnownFormat, LogFormat
from sparsegroup.settings.names import AvazuHour

# fmt: off
_FIELDS = (
    "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain", "app_category", "device_id",
    "device_ip", "device_model", "device_type", "device_conn_type", "C14", "C15", "C16", "C17", "C18", "C19", "C20",
    "C21",
)
# fmt: on


def avazu(hour: AvazuHour = "hour") -> LogFormat:
    """Avazu's `train.csv`, as Kaggle has it: 21 columns and the hour.

    Args:
        hour: What becomes of `hour`, YYMMDDHH: the hour of the day, the weekday and the hour as two fields, or the
            value as it is.
    """
    fields = {"hour": ("hour",), "weekday-hour": ("weekday", "hour"), "raw": ("hour",)}[hour]

    return LogFormat(
        "avazu",
        "click",
        (*fields, *_FIELDS),
        time="time",
        split="last-day",
        variant=hour,
        derive=partial(_derived, hour=hour),
        checked={"time": "hour"},
        sources={"time": "hour", "weekday": "hour"},
    )


def _derived(frame: pl.DataFrame, hour: AvazuHour) -> pl.DataFrame:
    whole = pl.when(pl.col("hour").str.len_bytes() == 8).then(pl.col("hour"))
    time = (whole + "00").str.to_datetime("%y%m%d%H%M", strict=False)
    frame = frame.with_columns(time=time)
    if hour == "weekday-hour":
        frame = frame.with_columns(weekday=time.dt.weekday().cast(pl.String))
    return frame if hour == "raw" else frame.with_columns(hour=pl.col("hour").str.slice(6))


def _recognised(head: Head, needs_label: bool) -> LogFormat | None:
    return avazu() if head.has_columns("click", ("hour", *_FIELDS), needs_label) else None


AVAZU = KnownFormat(_recognised, "avazu", avazu, option="avazu_hour")
