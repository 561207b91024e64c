"""What is done to several numbers at once is what would be done to one after the other."""

import numpy as np
from numba import njit

from over import over
from sparsegroup.kernels.cpu import intrinsics


@njit
def _match(line, key):
    return intrinsics.match_4(np.int64(line.ctypes.data), key)


@njit
def _add(source, target, count):
    intrinsics.add(
        np.int64(source.ctypes.data), np.int64(target.ctypes.data), count, source.itemsize, source.dtype.type(0)
    )


@over("place", range(4))
@over("key", [5, 0, -1, 2**63 - 1, -(2**63)])
def test_a_key_is_found_in_each_of_the_four_slots_and_no_other(key, place):
    line = np.array([11, 21, 12, 22, 13, 23, 14, 24])
    line[2 * place] = key
    assert _match(line, key) == 21 + place
    assert _match(line, 21 + place) == 0, "a row is not a key"


def test_empty_slots_match_key_0_and_add_nothing():
    assert _match(np.zeros(8, np.int64), 0) == 0
    assert _match(np.array([0, 7, 0, 0, 0, 0, 0, 0]), 0) == 7


@over("dtype", [np.float32, np.float64])
@over("count", [0, 1, 3, 7, 8, 9, 16, 21])
def test_as_many_numbers_are_added_as_are_asked_for(count, dtype):
    draw = np.random.default_rng(count)
    source, target = draw.standard_normal((2, 24)).astype(dtype)
    expected = target.copy()
    expected[:count] += source[:count]
    _add(source, target, count)
    assert np.array_equal(target, expected)
