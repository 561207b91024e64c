"""Feature keys: the same on every machine, and in every version of what computes them."""

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from sparsegroup.data.keys import MOST_FIELDS, expected_collisions, fields_of, keys_of
from sparsegroup.data.local_files import arrow_of

XXH3_64 = {
    "": 0x2D06800538D394C2,
    "abc": 0x78AF5F94892F3950,
    "a" * 17: 0x39127B6816C5F92A,
    "日本": 0x2C17FB837F1A1BC0,
    "x" * 200: 0x50EF124FB1E4DE53,
    "0123456789abcdef" * 20: 0x40C383CC89D2F624,
}


def key(value: str, field: int) -> int:
    """The format, in Python's integers."""
    unsigned = field << 56 | XXH3_64[value] & (1 << 56) - 1
    return unsigned - (1 << 64) if unsigned >> 63 else unsigned


def test_a_key_is_the_field_over_the_hash_of_the_value() -> None:
    every = [keys_of(list(XXH3_64), field) for field in range(MOST_FIELDS)]
    for field, keys in enumerate(every):
        assert keys.dtype == np.int64
        assert keys.tolist() == [key(value, field) for value in XXH3_64]
        assert fields_of(keys).tolist() == [field] * len(XXH3_64)
    assert len(np.unique(np.concatenate(every))) == len(XXH3_64) * 256  # no two fields share a key


def test_a_missing_value_is_the_empty_string_and_containers_make_no_difference() -> None:
    missing, empty = keys_of([None, ""], 3)
    assert missing == empty == keys_of([None], 3) == keys_of(pl.Series([None], dtype=pl.Null), 3)
    values = ["a", None, "b", "a"]
    series = pl.Series(values)
    assert keys_of(series, 2).tolist() == keys_of(values, 2).tolist() == keys_of(series.to_arrow(), 2).tolist()
    assert len(keys_of([], 2)) == 0


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32])
def test_an_arrow_array_has_the_values_and_dtype_of_its_numpy_array(dtype: type) -> None:
    for values in (np.arange(10, dtype=dtype), np.arange(10, dtype=dtype)[::2]):
        assert arrow_of(values).equals(pa.array(values))


def test_expected_collisions_are_those_of_the_birthday_problem() -> None:
    assert expected_collisions({}) == 0
    assert expected_collisions({"a": 1}) == 0
    assert expected_collisions({"a": 2, "b": 2}) == 2 / 2**56
    assert expected_collisions({"a": 1 << 28}) == pytest.approx(0.5, rel=1e-6)
