"""Columns of numbers, amounts and times in which some cells are something else: the kind stays, the cell is named."""

import datetime as dt
import math
import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from data_cases import rows_of
from over import over
from sparsegroup.data import ClickLogError, columns_of, hash_keys, open_log
from sparsegroup.data.frames import feature_format
from sparsegroup.data.kinds import MISSING, ColumnKind
from sparsegroup.server import BadRowsError, RowReader

ROWS = 400
DRAW = random.Random(0)
DECIMALS = [f"{DRAW.gammavariate(2, 5):.4f}" for _ in range(ROWS)]
DAYS = [dt.date(2024, 1, 1) + dt.timedelta(days=i * 7 % 366) for i in range(ROWS)]


def finding(values: list[str], name: str = "x") -> object:
    (found,) = columns_of(pl.DataFrame({name: pl.Series(values).replace("", None)}))
    return found


def with_one(values: list[str], odd: str) -> list[str]:
    return [*values[: ROWS // 2], odd, *values[ROWS // 2 + 1 :]]


TYPED = {
    "number": DECIMALS,
    "category, number": [str(i * 7919 % 101 + 100) for i in range(ROWS)],
    "amount": [f"${float(one):,.2f}" for one in DECIMALS],
    "amount comma": [f"{float(one):.2f} €".replace(".", ",") for one in DECIMALS],
    "timestamp date": [day.isoformat() for day in DAYS],
    "timestamp iso": [f"{day.isoformat()}T09:30:00" for day in DAYS],
    "timestamp %d/%m/%Y": [day.strftime("%d/%m/%Y") for day in DAYS],
}


@pytest.mark.parametrize("odd", ["unknown", "~", "2024-02-30", 'he said "no"'])
@pytest.mark.parametrize("kind", TYPED)
def test_one_odd_cell_leaves_the_kind_and_is_named_with_its_count(kind: str, odd: str) -> None:
    assert finding(TYPED[kind]).kind == kind
    found = finding(with_one(TYPED[kind], odd))
    read = ColumnKind.of(found.kind)
    assert found.kind.startswith(f"{kind} except")
    assert read.missing == (odd,)
    assert "1 of its 400 values" in found.warning
    assert odd in found.warning


@pytest.mark.parametrize("spelling", [text for text in MISSING if text] + ["1e12", "-7", "1E+15", "inf"])
def test_a_spelling_of_nothing_or_of_a_number_changes_no_number(spelling: str) -> None:
    found = finding(with_one(DECIMALS, spelling))
    assert (found.kind, found.warning) == ("number", "")
    assert finding([spelling] * 3 + DECIMALS[3:]).kind == "number"


@given(st.text(min_size=1, max_size=30))
def test_no_single_text_among_numbers_makes_a_category_of_them(text: str) -> None:
    assume(text.strip())
    values = with_one(DECIMALS, text)
    kind = finding(values).kind
    assert ColumnKind.of(kind).role == "number"
    numbers = hash_keys(pl.DataFrame({"x": values}), {"x": kind}).numbers[:, 0]
    others = np.arange(ROWS) != ROWS // 2
    np.testing.assert_array_equal(numbers[others], np.float32(DECIMALS)[others])


def test_identifiers_that_are_numbers_stay_such_beside_an_odd_text() -> None:
    values = [str(i * 7919 % 53) for i in range(ROWS)]
    plain, odd = finding(values, "user_id"), finding(with_one(values, "guest"), "user_id")
    assert (odd.kind, odd.warning) == (plain.kind, "")
    keys = hash_keys(pl.DataFrame({"user_id": ["7", "7.0", "guest", ""]}), {"user_id": odd.kind}).keys[:, 0].tolist()
    assert keys[0] == keys[1]
    assert len({*keys}) == 3


def test_odd_values_that_are_too_many_make_a_category_with_a_warning() -> None:
    some = finding(["unknown" if i % 20 == 0 else one for i, one in enumerate(DECIMALS)])
    assert some.kind == "category"
    assert "95.0%" in some.warning
    assert 'number except ["unknown"]' in some.warning
    different = finding([f"?{i}" if i % 8 == 0 else one for i, one in enumerate(DECIMALS)])
    assert different.kind == "category"
    assert "number" in different.warning


def test_a_cell_that_no_kind_names_is_bad_in_a_log_a_frame_and_a_request(tmp_path: Path) -> None:
    kind = 'number except ["unknown"]'
    log = tmp_path / "log.csv"
    log.write_text("label,u,x\n1,a,2.5\n0,b,unknown\n1,a,NA\n0,b,dear\n")
    columns = {"label": "label", "u": "category", "x": kind}
    with pytest.raises(ClickLogError, match=r"log\.csv:5: 'x' cannot be read.*dear"):
        list(open_log(log, columns=columns, test_fraction=0).batches(0, 4, 4))
    skipped = open_log(log, columns=columns, test_fraction=0, on_bad_row="skip", max_bad=0.5)
    expected = [[2.5], [math.nan], [math.nan]]
    np.testing.assert_array_equal(rows_of(skipped).numbers, expected)
    np.testing.assert_array_equal(
        hash_keys(pl.DataFrame({"x": ["2.5", " unknown ", "NA"]}), {"x": kind}).numbers, expected
    )
    with pytest.raises(ClickLogError, match="row 0: 'x' cannot be read"):
        hash_keys(pl.DataFrame({"x": ["dear"]}), {"x": kind})
    reader = RowReader(feature_format({"x": kind}).for_scoring())
    answer = reader.batch([{"x": 2.5}, {"x": "unknown"}, {"x": None}])
    np.testing.assert_array_equal(answer.numbers, expected)
    with pytest.raises(BadRowsError, match="'x' cannot be read"):
        reader.batch([{"x": "dear"}])


@over(
    ("values", "kind"),
    [
        (["1" if i % 3 else "" for i in range(3_000)], "boolean"),
        (["True" if i % 3 else "" for i in range(3_000)], "boolean"),
        (["5" if i % 3 else "" for i in range(3_000)], "category of numbers"),
        (["yes" if i % 3 else "" for i in range(3_000)], "boolean"),
        (["ab"[i // 2_000] if i % 7 == 0 else "" for i in range(3_000)], "category"),
        ([str(i // 2_000 + 3) if i % 7 == 0 else "" for i in range(3_000)], "category of numbers"),
    ],
)
def test_a_flag_of_one_value_or_nothing_is_a_feature_and_no_clock(values: list[str], kind: str) -> None:
    assert finding(values).kind == kind


GROUPS = {
    "whole": ([f"{i * 7919 % 90_000 + 1_000:,}" for i in range(ROWS)], "amount"),
    "with decimals": ([f"{i * 7919 % 900_000 / 100:,.2f}" for i in range(ROWS)], "amount"),
    "some below a thousand": ([f"{i * 7919 % 3_000:,}" for i in range(ROWS)], "amount"),
    "blanks": ([f"{i * 7919 % 90_000 + 1_000:,}".replace(",", " ") for i in range(ROWS)], "amount"),
    "points": ([f"{i * 79_190 % 9_000_000 + 1_000_000:,}".replace(",", ".") for i in range(ROWS)], "amount comma"),
    "lists of three digits": ([f"{i % 90 + 100},{i % 50 + 200}" for i in range(ROWS)], "list comma"),
    "lists of padded codes": ([f"{i % 90:03},{i % 50:03}" for i in range(ROWS)], "list comma"),
}


@pytest.mark.parametrize("case", GROUPS)
def test_digits_in_groups_are_amounts_and_lists_of_numbers_are_lists(case: str) -> None:
    values, kind = GROUPS[case]
    assert finding(values).kind == kind
    if kind == "amount":
        numbers = hash_keys(pl.DataFrame({"x": values}), {"x": kind}).numbers[:, 0]
        plain = [float(value.replace(",", "").replace(" ", "")) for value in values]
        np.testing.assert_array_equal(numbers, np.float32(plain))


def test_dates_in_order_either_way_are_read_as_the_shorter_span_and_warned_of() -> None:
    us = finding([f"03/{1 + i * 12 // ROWS:02d}/2024" for i in range(ROWS)])
    assert us.kind == "timestamp %m/%d/%Y"
    assert "timestamp %d/%m/%Y" in us.warning
    european = finding([f"{1 + i * 12 // ROWS:02d}.03.2024" for i in range(ROWS)])
    assert (european.kind, european.warning) == ("timestamp %d.%m.%Y", "")


@over(
    ("values", "words"),
    [
        ([f"{'€' if i % 3 else '£'}{i * 37 % 900}.50" for i in range(ROWS)], ("several currencies", "EUR 66%", "GBP")),
        ([f"{i * 37 % 900}.50 {'RON' if i % 17 == 0 else 'EUR'}" for i in range(ROWS)], ("RON 6%",)),
        ([f"{i * 37 % 9_000 / 100:.2f} km" for i in range(ROWS)], ("unit", "100%", "km")),
        ([f"{i % 4} days, {i % 24}:{i % 60:02d}:06" for i in range(ROWS)], ("times", "days")),
        ([f'{{"a": {i % 9}}}' for i in range(ROWS)], ("objects", '{"a": ')),
        ([f'{{"a": {i}}}' if i % 9 else "none yet" for i in range(ROWS)], ("objects", "89%", '{"a": ')),
    ],
)
def test_amounts_in_several_units_are_warned_of_with_shares_and_values(values: list[str], words: tuple[str]) -> None:
    found = finding(values)
    assert all(word in found.warning for word in words), found


SHUFFLED = [f"{day.isoformat()}T{i % 24:02d}:00:00" for i, day in enumerate(DAYS)]


@over(
    ("name", "values", "words"),
    [
        ("ts", SHUFFLED, ("not in the order", "sort")),
        ("event_time", SHUFFLED, ("not in the order", "sort")),
        ("clicked_at", ["", *sorted(SHUFFLED)[1:]], ("no value",)),
        ("ts", sorted(SHUFFLED), ()),
        ("release_date", SHUFFLED, ()),
        ("account", [f"{1 + i % 9}.{i % 97:05d}E+15" for i in range(ROWS)], ("spreadsheet", "identifiers")),
        ("order_ref", [f"{1 + i * 7 % 9}.2{i % 9}E+11" for i in range(ROWS)], ("spreadsheet",)),
        ("power", [f"{1 + i % 9}.{i % 97:05d}e-15" for i in range(ROWS)], ()),
    ],
)
def test_times_out_of_order_and_shortened_identifiers_are_warned_of(
    name: str, values: list[str], words: tuple[str, ...], tmp_path: Path
) -> None:
    frame = pl.DataFrame({"label": [i % 2 for i in range(ROWS)], "user": [f"u{i % 9}" for i in range(ROWS)]})
    frame.with_columns(pl.Series(name, values)).write_csv(tmp_path / "log.csv")
    (found,) = (one for one in open_log(tmp_path / "log.csv").findings if one.name == name)
    assert bool(found.warning) == bool(words), found
    assert all(word in found.warning for word in words), found
    with_split = frame.with_columns(pl.Series(name, values), split=pl.lit("train"))
    with_split.write_csv(tmp_path / "split.csv")
    assert not any("test set" in one.warning for one in open_log(tmp_path / "split.csv").findings)
