"""The table of keys in docs/formats.md is what the package and xxhash compute."""

import re
from pathlib import Path

import pytest
import xxhash

from sparsegroup.data.keys import keys_of

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
ROW = re.compile(r"^\| (\d+) \| (?:`([^`]*)`(?: × (\d+))?|(empty)) \| (-?\d+) \| 0x([0-9A-F]{16}) \|$", re.MULTILINE)


def rows() -> list[tuple[int, str, int, int]]:
    if not PAGE.exists():
        pytest.skip("the documentation is not at hand")
    return [
        (int(field), "" if empty else value * int(times or 1), int(key), int(unsigned, 16))
        for field, value, times, empty, key, unsigned in ROW.findall(PAGE.read_text(encoding="utf-8"))
    ]


def test_the_table_of_keys_holds() -> None:
    for field, value, key, unsigned in rows():
        low = xxhash.xxh3_64_intdigest(value.encode()) & (1 << 56) - 1
        assert unsigned == field << 56 | low
        assert key == (unsigned - (1 << 64) if unsigned >> 63 else unsigned)
        assert keys_of([value], field).tolist() == [key]


def test_the_table_of_keys_has_what_is_hard() -> None:
    values = [value for _, value, _, _ in rows()]
    assert "" in values
    assert any(not value.isascii() for value in values)
    assert any(len(value.encode()) > 240 for value in values)
    assert any(key < 0 for _, _, key, _ in rows())
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    assert len(values) == len(re.findall(r"0x[0-9A-F]{16}", text)) >= 10
