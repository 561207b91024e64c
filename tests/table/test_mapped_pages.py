"""Memory of a table that is asked for before it is written to: each piece once, and it is as it was."""

import ctypes
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from sparsegroup import HashEmbedding
from sparsegroup.kernels.cpu import threads
from sparsegroup.table.rows.pages import MappedPages

UNIT = 2 << 20
PAGE = 2 * UNIT + UNIT // 4
"""The last huge page of each is not whole."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems hand memory out when it is written to")


@pytest.fixture
def pages() -> MappedPages:
    made = MappedPages(PAGE, huge=True)
    made.resize(2)
    return made


@pytest.fixture(autouse=True)
def jobs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What a helping thread has been asked to do."""
    submitted: list[Any] = []
    monkeypatch.setattr(threads, "submit", submitted.append)
    threads.set_num_threads(2)
    yield submitted
    threads.set_num_threads(None)


def asked(jobs: list[Any]) -> list[tuple[int, int]]:
    """The addresses of what has been asked for since, and how much."""
    found = [place for job in jobs if job.func.__name__ == "_hand_out" for place in job.args[0]]
    jobs.clear()
    return found


def places(pages: MappedPages, jobs: list[Any], begin: int, end: int) -> list[tuple[int, int]]:
    """Where in the pages memory is asked for, in bytes from their first on, and how much."""
    pages.prefault(begin, end)
    starts, found = [int(address) for address in pages.addresses], asked(jobs)
    at = [next(k for k in range(len(starts)) if starts[k] <= address < starts[k] + PAGE) for address, _ in found]
    return [(k * PAGE + address - starts[k], size) for k, (address, size) in zip(at, found, strict=True)]


def test_each_piece_is_asked_for_once(pages: MappedPages, jobs: list[Any]) -> None:
    assert places(pages, jobs, 10, 20) == [(0, UNIT)]
    assert places(pages, jobs, 0, UNIT) == []
    assert places(pages, jobs, UNIT - 1, PAGE + 1) == [(UNIT, UNIT), (2 * UNIT, PAGE - 2 * UNIT), (PAGE, UNIT)]
    assert places(pages, jobs, 0, 10 * PAGE) == [(PAGE + UNIT, UNIT), (PAGE + 2 * UNIT, PAGE - 2 * UNIT)]
    assert places(pages, jobs, 0, 10 * PAGE) == []


def test_what_has_been_given_back_is_asked_for_again(pages: MappedPages, jobs: list[Any]) -> None:
    places(pages, jobs, 0, 2 * PAGE)
    pages.resize(1)
    pages.resize(2)
    assert [at for at, _ in places(pages, jobs, 0, 2 * PAGE)] == [PAGE, PAGE + UNIT, PAGE + 2 * UNIT]
    pages.clear_after(100)
    assert len(places(pages, jobs, 0, 2 * PAGE)) == 6


def test_small_tables_small_pages_and_one_thread_ask_for_nothing(pages: MappedPages, jobs: list[Any]) -> None:
    for count, huge in ((1, True), (3, False)):
        made = MappedPages(PAGE, huge=huge)
        made.resize(count)
        made.prefault(0, count * PAGE)
    threads.set_num_threads(1)
    pages.prefault(0, PAGE)
    assert not jobs


def test_what_is_there_stays(pages: MappedPages, jobs: list[Any]) -> None:
    view = np.frombuffer((ctypes.c_char * PAGE).from_address(int(pages.addresses[1])), np.uint8)
    view[:100] = 7
    pages.prefault(0, 2 * PAGE)
    (hand_out,) = jobs
    hand_out()
    assert (view[:100] == 7).all()
    assert not view[100:].any()
    pages.resize(0)
    hand_out()  # late: nothing is there any more


def test_a_growing_table_asks_for_its_next_rows(jobs: list[Any]) -> None:
    table = HashEmbedding(64, std=0.1, seed=1)
    for first in range(0, 150_000, 10_000):
        table(torch.arange(first, first + 10_000))
    found = [address for address, _ in asked(jobs)]
    assert len(found) == len(set(found))
    rows = table.table.storage.rows.pages  # type: ignore[attr-defined]
    begin, used = int(rows.addresses[1]), (150_000 * 256) % rows.page_bytes
    assert used > 2 * UNIT
    assert {begin + at for at in range(UNIT, used, UNIT)} <= set(found)
    assert torch.equal(table.lookup(torch.arange(150_000)), table.initial(torch.arange(150_000)))
