"""Memory of a table that is asked for before it is written to: each piece once, and it is as it was."""

import ctypes
import sys

import numpy as np
import pytest
import torch

from sparsegroup import HashEmbedding
from sparsegroup.kernels.cpu import threads
from sparsegroup.table.pages import MappedPages

UNIT = 2 << 20
PAGE = 2 * UNIT + UNIT // 4
"""The last huge page of each is not whole."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems hand memory out when it is written to")


@pytest.fixture
def pages() -> MappedPages:
    made = MappedPages(PAGE, huge=True)
    made.resize(2)
    return made


def places(pages: MappedPages, begin: int, end: int) -> list[tuple[int, int]]:
    """Where in the pages memory is asked for, in bytes from their first on, and how much."""
    ask = pages.ask_for(begin, end)
    if ask is None:
        return []
    (found,) = ask.args
    starts = [int(address) for address in pages.addresses]
    at = [next(k for k in range(len(starts)) if starts[k] <= address < starts[k] + PAGE) for address, _ in found]
    return [(k * PAGE + address - starts[k], size) for k, (address, size) in zip(at, found, strict=True)]


def test_each_piece_is_asked_for_once(pages: MappedPages) -> None:
    assert places(pages, 10, 20) == [(0, UNIT)]
    assert places(pages, 0, UNIT) == []
    assert places(pages, UNIT - 1, PAGE + 1) == [(UNIT, UNIT), (2 * UNIT, PAGE - 2 * UNIT), (PAGE, UNIT)]
    assert places(pages, 0, 10 * PAGE) == [(PAGE + UNIT, UNIT), (PAGE + 2 * UNIT, PAGE - 2 * UNIT)]
    assert places(pages, 0, 10 * PAGE) == []


def test_what_has_been_given_back_is_asked_for_again(pages: MappedPages) -> None:
    places(pages, 0, 2 * PAGE)
    pages.resize(1)
    pages.resize(2)
    assert [at for at, _ in places(pages, 0, 2 * PAGE)] == [PAGE, PAGE + UNIT, PAGE + 2 * UNIT]
    pages.clear_after(100)
    assert len(places(pages, 0, 2 * PAGE)) == 6


def test_small_tables_and_small_pages_ask_for_nothing() -> None:
    one, small = MappedPages(PAGE, huge=True), MappedPages(PAGE, huge=False)
    one.resize(1)
    small.resize(3)
    assert one.ask_for(0, PAGE) is None
    assert small.ask_for(0, 3 * PAGE) is None


def test_what_is_there_stays(pages: MappedPages) -> None:
    memory = (ctypes.c_char * PAGE).from_address(int(pages.addresses[1]))
    view = np.frombuffer(memory, np.uint8)
    view[:100] = 7
    ask = pages.ask_for(0, 2 * PAGE)
    assert ask is not None
    ask()
    assert (view[:100] == 7).all()
    assert not view[100:].any()
    pages.resize(0)
    ask()  # late: nothing is there any more


def test_a_growing_table_asks_for_its_next_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    own = MappedPages.ask_for

    def noted(pages: MappedPages, begin: int, end: int) -> object:
        ask = own(pages, begin, end)
        asked.extend(() if ask is None else [(id(pages), address) for address, _ in ask.args[0]])
        return ask

    monkeypatch.setattr(MappedPages, "ask_for", noted)
    table = HashEmbedding(64, std=0.1, seed=1)
    threads.set_num_threads(2)
    try:
        for first in range(0, 150_000, 10_000):
            table(torch.arange(first, first + 10_000))
    finally:
        threads.set_num_threads(None)
    assert len(asked) == len(set(asked))
    rows = table.table.storage.rows.pages  # type: ignore[attr-defined]
    mine = {address for pages, address in asked if pages == id(rows)}
    begin, used = int(rows.addresses[1]), (150_000 * 256) % rows.page_bytes
    assert used > 2 * UNIT
    assert {begin + at for at in range(UNIT, used, UNIT)} <= mine
    assert torch.equal(table.lookup(torch.arange(150_000)), table.initial(torch.arange(150_000)))
