"""Columns of types (Parquet, Arrow, data frames) as the texts that a CSV of the same data has."""

import polars as pl


def text_of(name: str, dtype: pl.DataType) -> pl.Expr:
    """A column as texts, null where there is no value.

    Whole numbers have no decimals, booleans are true and false, times ISO's (with the offset of their zone, if they
    have one), lists and structs JSON.

    Args:
        name: The column.
        dtype: Its type.
    """
    column = pl.col(name)
    if dtype.is_float():
        column = column.fill_nan(None)
        whole = (column == column.round()) & (column.abs() < 2.0**53)
        column = (
            pl.when(whole).then(column.cast(pl.Int64, strict=False).cast(pl.String)).otherwise(column.cast(pl.String))
        )
    elif isinstance(dtype, pl.Datetime):
        column = column.dt.strftime("%Y-%m-%dT%H:%M:%S" + ("%z" if dtype.time_zone else ""))
    elif isinstance(dtype, pl.Duration):
        column = column.cast(pl.Int64)
    elif isinstance(dtype, pl.List | pl.Array | pl.Struct):
        # What is written of a struct of it alone, {"":…}, without the braces around.
        json = pl.struct(column.alias("")).struct.json_encode()
        column = pl.when(column.is_not_null()).then(json.str.slice(4, json.str.len_chars() - 5)).alias(name)
    return column.cast(pl.String).replace("", None).alias(name)
