"""The table of keys in docs/formats.md is what the package and xxhash compute."""

import re
from pathlib import Path

import pytest
import xxhash

from sparsegroup.data.keys import keys_of

PAGE = Path(__file__).parents[2] / "docs" / "formats.md"
ROW = re.compile(r"^\| (\d+) \| (?:`([^`]*)`(?: × (\d+))?|(empty)) \| (-?\d+) \| 0x([0-9A-F]{16}) \|$", re.MULTILINE)


def test_the_table_of_keys_holds_and_has_what_is_hard() -> None:
    if not PAGE.exists():
        pytest.skip("the documentation is not at hand")
    text = PAGE.read_text(encoding="utf-8")
    values = set()
    for field, value, times, empty, key, unsigned in ROW.findall(text):
        value = "" if empty else value * int(times or 1)
        low = xxhash.xxh3_64_intdigest(value.encode()) & (1 << 56) - 1
        assert int(unsigned, 16) == int(field) << 56 | low
        assert int(key) == (int(unsigned, 16) - (1 << 64) if int(unsigned, 16) >> 63 else int(unsigned, 16))
        assert keys_of([value], int(field)).tolist() == [int(key)]
        values.add((value, int(key) < 0))
    texts = [value for value, _ in values]
    assert "" in texts
    assert any(not value.isascii() for value in texts)
    assert any(len(value.encode()) > 240 for value in texts)
    assert any(is_negative for _, is_negative in values)
    assert len(ROW.findall(text)) == len(re.findall(r"0x[0-9A-F]{16}", text)) >= 10
