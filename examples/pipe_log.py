"""A log format of one's own: `user|item|price|clicked` a line, without a header, of which prices become buckets."""

import polars as pl

from sparsegroup.data.schema import Head, KnownFormat, LogFormat


def pipe_log() -> LogFormat:
    """The format: three fields, all columns in order, and what becomes of a price."""
    return LogFormat(
        "pipe",
        label="clicked",
        fields=("user", "item", "price"),
        columns=("user", "item", "price", "clicked"),
        separator="|",
        derive=_with_price_buckets,
        checked={"price": "price"},  # a price that cannot be read makes its row a bad one
    )


def _with_price_buckets(frame: pl.DataFrame) -> pl.DataFrame:
    price = pl.col("price").cast(pl.Float64, strict=False)
    return frame.with_columns((price / 10).floor().cast(pl.Int64, strict=False).cast(pl.String).alias("price"))


def _recognised(head: Head, needs_label: bool) -> LogFormat | None:
    return pipe_log() if head.line.count("|") == 3 else None


PIPE = KnownFormat(_recognised, "pipe", pipe_log)
"""After `sparsegroup.data.formats.FORMATS.append(PIPE)`, a log's first line tells the format."""
