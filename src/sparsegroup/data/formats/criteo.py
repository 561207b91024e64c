"""Criteo's display-advertising challenge."""

from dataclasses import replace

import polars as pl

from sparsegroup.data.schema import Head, KnownFormat, LogFormat, same
from sparsegroup.settings.names import CriteoNumbers

_INTEGERS = tuple(f"I{i}" for i in range(1, 14))
_FIELDS = tuple(f"C{i}" for i in range(1, 27))


def criteo(numbers: CriteoNumbers = "log") -> LogFormat:
    """Criteo's `train.txt`: a label, 13 integers, 26 categorical columns, without a header.

    Args:
        numbers: "log" takes the 13 integers as numbers, sign(x) ln(1 + |x|), 0 where missing, as DCN does; "buckets"
            makes ⌊(ln x)²⌋ of x > 2, leaves smaller ones as they are, and embeds them: 39 fields in all.
    """
    log = LogFormat(
        "criteo",
        "label",
        _FIELDS,
        columns=("label", *_INTEGERS, *_FIELDS),
        separator="\t",
        split="last-of-7",
    )
    if numbers == "log":
        return replace(log, numbers=_INTEGERS, derive=_log_of_integers)
    return replace(log, fields=(*_INTEGERS, *_FIELDS), derive=_buckets_of_integers, checked=same(_INTEGERS))


def _log_of_integers(frame: pl.DataFrame) -> pl.DataFrame:
    x = pl.col(_INTEGERS).cast(pl.Float64, strict=False)
    return frame.with_columns((x.sign() * x.abs().log1p()).cast(pl.Float32))


def _buckets_of_integers(frame: pl.DataFrame) -> pl.DataFrame:
    def bucket(name: str) -> pl.Expr:
        x = pl.col(name).cast(pl.Int64, strict=False)
        large = (x.cast(pl.Float64).log() ** 2).floor().cast(pl.Int64, strict=False)
        return pl.when(x > 2).then(large).otherwise(x).cast(pl.String).alias(name)

    return frame.with_columns(bucket(name) for name in _INTEGERS)


def _recognised(head: Head, needs_label: bool) -> LogFormat | None:
    return criteo() if _is_row(head.line) or (not needs_label and _is_row(f"0\t{head.line}")) else None


def _is_row(line: str) -> bool:
    columns = line.split("\t")
    return len(columns) == len(_INTEGERS) + len(_FIELDS) + 1 and columns[0] in "01"


CRITEO = KnownFormat(_recognised, "criteo", criteo, option="criteo_numbers")
