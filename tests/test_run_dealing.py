"""Runs are dealt so that readers have as many rows, begin where reading does, and are at the same place of the log."""

from collections import Counter
from itertools import pairwise

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sparsegroup.data.log import Run, joined, overlap, rows_in, taken
from sparsegroup.data.order import COARSEST, dealt


@st.composite
def runs(draw: st.DrawFn, rows: int = 2_000, most: int = 12) -> list[Run]:
    edges = sorted(draw(st.sets(st.integers(0, rows), min_size=2, max_size=most)))
    return list(pairwise(edges))[:: draw(st.integers(1, 2))]


@st.composite
def cuts(draw: st.DrawFn, rows: int = 2_000) -> np.ndarray:
    """None, regular ones, or any."""
    kind = draw(st.sampled_from(["none", "regular", "any"]))
    if kind == "none":
        return np.empty(0, np.int64)
    if kind == "regular":
        return np.arange(0, rows, draw(st.integers(1, rows)))
    return np.array(sorted(draw(st.sets(st.integers(0, rows), max_size=40)) | {0}))


def numbers(some: list[Run]) -> list[int]:
    return [row for first, stop in some for row in range(first, stop)]


@given(runs(), cuts(), st.integers(1, 9))
@settings(max_examples=150)
@example([(0, 3)], np.array([0]), 7)
def test_each_row_is_dealt_once_and_all_have_as_many(rows: list[Run], cuts: np.ndarray, readers: int) -> None:
    hands = dealt(rows, cuts, readers)
    assert Counter(row for hand in hands for row in numbers(hand)) == Counter(numbers(rows))
    assert hands == dealt(rows, cuts, readers)
    sizes = [rows_in(hand) for hand in hands]
    assert max(sizes) - min(sizes) <= max(1, 0.05 * rows_in(rows) / readers)
    assert all(hand == joined(sorted(hand)) for hand in hands)


@given(st.integers(1, 50), st.integers(1, 8), st.integers(500, 5_000))
@settings(max_examples=100)
def test_a_reader_goes_through_little_that_is_not_its_own(chunk: int, readers: int, rows: int) -> None:
    edges = np.arange(0, rows, chunk)
    hands = dealt([(0, rows)], edges, readers)
    touched = [{row // chunk for row in numbers(hand)} for hand in hands]
    in_vain = sum(map(len, touched)) - len(edges)
    share = len(edges) / readers
    assert in_vain <= (0 if share > 81 else readers if share > COARSEST else (COARSEST + 1) * readers)


@given(st.integers(1, 400), st.integers(2, 8))
@settings(max_examples=100)
def test_readers_that_have_read_as_much_are_at_about_the_same_place(chunk: int, readers: int) -> None:
    rows = 4_000
    hands = dealt([(0, rows)], np.arange(0, rows, chunk), readers)
    step = rows // readers // 10
    for position in range(0, rows // readers - rows // readers // 16, step):
        places = [taken(hand, position, position + 1)[0][0] for hand in hands if rows_in(hand) > position]
        assert max(places) - min(places) <= rows / COARSEST + readers * chunk


def test_one_reader_has_all_in_one_run() -> None:
    assert dealt([(3, 900)], np.arange(0, 900, 7), 1) == [[(3, 900)]]


@given(runs(), st.integers(0, 2_000), st.integers(0, 2_000))
@settings(max_examples=100)
def test_parts_of_runs_are_those_of_their_rows(some: list[Run], start: int, stop: int) -> None:
    assert numbers(overlap(some, start, stop)) == [row for row in numbers(some) if start <= row < stop]
    assert numbers(taken(some, start, stop)) == numbers(some)[start:stop]
