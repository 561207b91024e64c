"""Columns that share a vocabulary: which may, what their log says of them, and a log without some of them."""

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from over import over
from sparsegroup.data import ClickLogError, ColumnKind, FrameLog, hash_keys, open_log
from sparsegroup.data.keys import fields_of
from sparsegroup.data.order import LogWithout
from sparsegroup.data.preparation import prepare
from sparsegroup.data.prepared_log import PREPARED_LOG, PreparedLog
from sparsegroup.data.schema import LogSchema, read_schema, write_schema

KINDS = {
    "user": "category",
    "clicked": "list | shares item",
    "item": "category of numbers",
    "seen": "list comma shares item",
    "last": "category of numbers shares item",
}
FRAME = pl.DataFrame(
    {"user": ["u", "v"], "clicked": ["1|02", ""], "item": ["2.0", "3"], "seen": ["3", "1,2"], "last": ["01", "NA"]}
)


def test_equal_values_have_equal_keys_and_other_fields_have_others() -> None:
    found = hash_keys(FRAME, KINDS)
    clicked, seen, item, last = found.bags["clicked"].keys, found.bags["seen"].keys, found.keys[:, 1], found.keys[:, 2]
    assert set(fields_of(found.keys[:, 0])) == {0}
    for keys in (clicked.numpy(), seen.numpy(), item, last):
        assert set(fields_of(keys)) == {2}
    one, two, nothing = clicked.tolist()
    assert seen.tolist() == [item[1], one, two]
    assert (item[0], last.tolist()) == (two, [one, nothing])


@over(
    ("kinds", "message"),
    [
        ({"b": "category shares c"}, "no such column"),
        ({"itemm": "category", "b": "category shares item"}, "did you mean 'itemm'"),
        ({"a": "ignore", "b": "category shares a"}, "left out"),
        ({"click": "label", "b": "category shares click"}, "no such column"),
        ({"a": "category", "b": "category shares a", "c": "category shares b"}, "shares that of 'a'"),
        ({"a": "category shares b", "b": "category shares a"}, "shares that of 'a'"),
        ({"a": "category shares a"}, "shares itself"),
        ({"a": "number", "b": "words shares a"}, "number"),
        ({"a": "category", "b": "words shares a"}, "words"),
        ({"a": "category", "b": "category of numbers shares a"}, "category of numbers"),
        ({"a": "words", "b": "list | shares a"}, "words"),
        ({"a": "list |", "b": "category shares a"}, "list"),
        ({"a": "timestamp iso", "b": "timestamp iso shares a"}, "timestamp"),
        ({"a": "category", "b": "number shares a"}, "number"),
    ],
)
def test_columns_that_cannot_share_are_refused(kinds: dict[str, str], message: str, tmp_path: Path) -> None:
    columns = {"click": "label", "x": "category"} | kinds
    with pytest.raises(ClickLogError, match=f"shares the vocabulary of .*{message}"):
        read_schema({"columns": columns})
    pl.DataFrame({name: ["0", "1"] for name in columns}).write_csv(tmp_path / "log.csv")
    with pytest.raises(ClickLogError, match=f"shares the vocabulary of .*{message}"):
        open_log(tmp_path / "log.csv", columns=columns, label="click")


def test_an_excluded_column_cannot_be_shared(tmp_path: Path) -> None:
    FRAME.with_columns(click=pl.Series([0, 1])).write_csv(tmp_path / "log.csv")
    with pytest.raises(ClickLogError, match=r"'item'.*left out"):
        open_log(tmp_path / "log.csv", columns=KINDS | {"click": "label"}, exclude=["item"])


@over(
    "text",
    ["category shares item", "list comma shares the item", 'list json shares a.b except ["x"]', "words shares q"],
)
def test_a_kind_is_read_as_it_is_written(text: str) -> None:
    assert str(ColumnKind.of(text)) == text
    assert ColumnKind.of(text).shares in ("item", "the item", "a.b", "q")


def test_a_schema_is_written_with_its_vocabularies(tmp_path: Path) -> None:
    log = read_schema({"label": "click", "columns": {"click": "label"} | KINDS})
    write_schema(tmp_path / "schema.yaml", log, "a log")
    assert read_schema(tmp_path / "schema.yaml") == log
    assert log.columns_of_model.shares == {"clicked": "item", "seen": "item", "last": "item"}


@over(
    ("shares", "message"),
    [({"a": "c"}, "c is no field"), ({"c": "a"}, "c is no field"), ({"a": "b", "b": "a"}, "both shares")],
)
def test_a_damaged_schema_is_refused(shares: dict[str, str], message: str) -> None:
    content = {"fields": ["a", "b"], "lists": [], "numbers": [], "hash": "xxh3_64", "shares": shares}
    with pytest.raises(ValueError, match=f"shares: .*{message}"):
        LogSchema.from_dict(content)


def test_a_prepared_log_with_a_forged_vocabulary_is_damaged(tmp_path: Path) -> None:
    FRAME.with_columns(click=pl.Series([0, 1])).write_csv(tmp_path / "log.csv")
    prepared, _ = prepare([tmp_path / "log.csv"], tmp_path / "log", columns=KINDS | {"click": "label"}, test_fraction=0)
    assert prepared.schema.shares == {"clicked": "item", "seen": "item", "last": "item"}
    assert prepared.features == 2 + 4  # users; 1, 2, 3 and a missing item
    for kind in ("nonsense shares item", "list comma shares seen", "category shares last"):
        manifest = replace(prepared.manifest, columns={**prepared.columns, "clicked": kind})
        PREPARED_LOG.write(tmp_path / "log", manifest)
        with pytest.raises(ClickLogError, match=r"log\.json: damaged"):
            PreparedLog(tmp_path / "log")


def test_a_log_without_columns_keeps_the_vocabularies_of_the_others() -> None:
    log = FrameLog(FRAME, [0, 1], columns=KINDS)
    less = LogWithout(log, ["user", "last"])
    (batch,) = less.batches(0, 2, 2)
    assert less.schema.key_fields == {"clicked": 1, "item": 1, "seen": 1}
    assert batch.keys[0, 0] == batch.bags[0].keys[1]
    with pytest.raises(ValueError, match="'item' cannot be left out: 'clicked' shares"):
        LogWithout(log, ["item", "last"])
    assert LogWithout(log, ["item", "last", "seen", "clicked"]).fields == ("user",)


def test_the_texts_of_a_vocabulary_are_found_in_all_its_columns(tmp_path: Path) -> None:
    FRAME.with_columns(click=pl.Series([0, 1])).write_csv(tmp_path / "log.csv")
    log = open_log(tmp_path / "log.csv", columns=KINDS | {"click": "label"})
    (batch,) = log.batches(0, 2, 2)
    clicked = batch.bags[0].keys.numpy()
    assert log.values_of(clicked, 10) == dict(zip(clicked.tolist(), ["1", "2", ""], strict=True))
