"""libsvm and libffm."""

import re
from collections.abc import Sequence
from functools import partial

import polars as pl

from sparsegroup.data.schema import KnownFormat, LogFormat, same


def svm(line: str) -> LogFormat | None:
    """libsvm (`label index:1 …`) or libffm (`label field:index:1 …`), told from a line; None if it is neither.

    All rows have as many features as this line; the fields are "1", "2", … in the order of a line.
    """
    tokens = line.split()
    if len(tokens) < 2 or not all(re.fullmatch(r"(\d+:)?\d+:[^:]+", token) for token in tokens[1:]):
        return None
    fields = tuple(str(number) for number in range(1, len(tokens)))
    name, feature = ("libffm", r"^\d+:(\d+)") if tokens[1].count(":") == 2 else ("libsvm", r"^(\d+)")
    return LogFormat(
        name,
        "label",
        fields,
        columns=("label", *fields),
        separator=" ",
        split="file",
        derive=partial(_features, fields=fields, pattern=feature + r":1(?:\.0*)?$"),
        checked=same(fields),
    )


def _features(frame: pl.DataFrame, fields: Sequence[str], pattern: str) -> pl.DataFrame:
    return frame.with_columns(pl.col(fields).str.extract(pattern))


SVM = KnownFormat(lambda head, needs_label: svm(head.line))
