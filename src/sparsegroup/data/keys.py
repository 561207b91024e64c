"""Feature keys: 64 bits from field and value, the same on every machine, in every version and process.

A key is `field · 2⁵⁶ + (XXH3_64(value as UTF-8) mod 2⁵⁶)`, as a signed 64-bit number in two's complement; `field` is
the place of the field among the categorical ones, from 0, or that of the field whose vocabulary it shares, and XXH3_64
has seed 0. A missing value is the empty string.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import polars_hash as plh

Int64s = npt.NDArray[np.int64]

HASH = "xxh3_64"
VALUE_BITS = 56
"""Bits of a 64-bit key that hold the hash of the value; the field is in those above."""

FIELD_BITS = 64 - VALUE_BITS
MOST_FIELDS = 1 << FIELD_BITS


def keys_of(values: Any, field: int) -> Int64s:
    """The keys of `values`.

    Args:
        values: `[n]` strings, an Arrow array or Polars series; null is as the empty string.
        field: Place of their field among the categorical ones, < `MOST_FIELDS`.

    Returns:
        `[n]`.
    """
    return keys_of_columns([pl.Series(values, dtype=pl.String)], [field])[:, 0]


def keys_of_columns(columns: Sequence[pl.Series], fields: Sequence[int]) -> Int64s:
    """Return the keys `[n, columns]` of one or more columns of strings; `fields` has their field numbers."""
    names = [str(place) for place in range(len(columns))]
    frame = pl.DataFrame([column.alias(name) for column, name in zip(columns, names, strict=True)])
    filled = frame.select(pl.col(name).fill_null("") for name in names)  # one call for all, each takes tenths of a ms
    hashed = filled.select(plh.col(name).nchash.xxh3_64() for name in names)
    keys = hashed.to_numpy(order="c", writable=True)
    keys &= np.uint64((1 << VALUE_BITS) - 1)
    keys |= np.array(fields, np.uint64) << np.uint64(VALUE_BITS)
    return keys.view(np.int64)


def fields_of(keys: Int64s) -> Int64s:
    """The field of each key."""
    return (keys.view(np.uint64) >> np.uint64(VALUE_BITS)).astype(np.int64)


def moved(keys: Int64s, fields: Int64s | np.int64) -> Int64s:
    """Return the keys of the same values in other fields: one for all keys, or `[n]`."""
    values = keys.view(np.uint64) & np.uint64((1 << VALUE_BITS) - 1)
    return (values | np.asarray(fields).astype(np.uint64) << np.uint64(VALUE_BITS)).view(np.int64)


def expected_collisions(features: Mapping[str, int]) -> float:
    """How many pairs of values of a field can be expected to share a key, summed over the fields.

    Args:
        features: Field → distinct values.
    """
    return sum(n * (n - 1) / 2 for n in features.values()) / 2.0**VALUE_BITS
