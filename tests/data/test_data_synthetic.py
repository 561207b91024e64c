"""Made-up logs: reproducible, with the frequencies, types and truth that they say, the same as CSV and Parquet."""

import re
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from sklearn.metrics import roc_auc_score

from command import Run
from sparsegroup.data import SyntheticConfig, synthetic_log
from sparsegroup.data.keys import fields_of
from sparsegroup.data.synthetic import BLOCK, DAYS, START, TypedClicks, bounded_zipf, write_clicks
from sparsegroup.errors import ClickLogError

SMALL = SyntheticConfig(rows=20_000, cardinalities=(10, 1_000, 30_000))


def test_the_same_seed_gives_the_same_log_whose_last_tenth_is_the_test_set() -> None:
    log, same, other = synthetic_log(SMALL, 1), synthetic_log(SMALL, 1), synthetic_log(SMALL, 2)
    np.testing.assert_array_equal(log.keys, same.keys)
    np.testing.assert_array_equal(log.labels, same.labels)
    assert not np.array_equal(log.labels, other.labels)
    assert (len(log), log.train_rows) == (20_000, 18_000)
    expected = np.unique(log.keys[:18_000])
    np.testing.assert_array_equal(np.sort(log.seen), expected)
    assert log.features == len(expected) < len(np.unique(log.keys))  # it may hold unknown features
    assert [np.unique(fields_of(column)).tolist() for column in log.keys.T] == [[0], [1], [2]]


def test_frequencies_follow_the_bounded_zipf_law() -> None:
    cardinality, exponent = 1_000, 1.1
    ranks = bounded_zipf((np.arange(1_000_000) + 0.5) / 1_000_000, cardinality, exponent)
    assert (ranks.min(), ranks.max() < cardinality) == (0, True)
    # P(rank <= r) = ((r + 1)^(1-a) - 1) / (c^(1-a) - 1), the distribution function on [1, c].
    for rank in (1, 10, 100):
        expected = ((rank + 1.0) ** (1 - exponent) - 1) / (cardinality ** (1 - exponent) - 1)
        assert abs((ranks < rank).mean() - expected) < 1e-5


def test_informative_features_move_the_label_and_their_share_is_the_configured_one() -> None:
    log = synthetic_log(SyntheticConfig(rows=200_000, cardinalities=(40, 40), informative=0.5, effect=2.0))
    rate = {key: log.labels[(log.keys == key).any(axis=1)] for key in np.unique(log.keys)}
    deviations = {key: abs(labels.mean() - log.labels.mean()) for key, labels in rate.items() if len(labels) > 2_000}
    informative = [d for key, d in deviations.items() if log.are_informative(key)]
    noise = [d for key, d in deviations.items() if not log.are_informative(key)]
    assert np.mean(informative) > 4 * np.mean(noise)
    log = synthetic_log(SyntheticConfig(rows=100_000, informative=0.1))
    assert abs(log.are_informative(np.unique(log.keys)).mean() - 0.1) < 0.005


# Typed columns

ROWS = 5 * BLOCK + 11


@cache
def clicks(rows: int = ROWS, seed: int = 0) -> pl.DataFrame:
    """The log, with its true probabilities in a column `p`, and their logits in `logit`."""
    blocks = list(TypedClicks(rows, seed).blocks())
    p = np.concatenate([probabilities for _, probabilities in blocks])
    frame = pl.DataFrame(pl.from_arrow(pa.Table.from_batches([batch for batch, _ in blocks])))
    return frame.with_columns(pl.Series("p", p), pl.Series("logit", np.log(p / (1 - p))))


def test_the_same_seed_gives_the_same_blocks_and_another_another() -> None:
    blocks = list(TypedClicks(ROWS, 0).blocks())
    assert [batch.num_rows for batch, _ in blocks] == [len(p) for _, p in blocks] == 5 * [BLOCK] + [11]
    again = pa.Table.from_batches([batch for batch, _ in blocks])  # whose schemas are the same
    assert pl.DataFrame(pl.from_arrow(again)).equals(clicks().drop("p", "logit"))
    assert clicks(1_000, 1)["clicked"].to_list() != clicks(1_000, 2)["clicked"].to_list()
    assert not set(clicks(1_000, 1)["request_id"]) & set(clicks(1_000, 2)["request_id"])


def test_request_ids_are_unique_times_ascend_and_only_some_columns_lack_values() -> None:
    assert clicks()["request_id"].is_unique().all()
    seconds = clicks()["event_time"].dt.epoch("s")
    assert seconds.is_sorted()
    assert seconds[0] == START
    assert DAYS - 0.01 < (seconds[-1] - START) / 86_400 < DAYS
    missing = {name: share for name, share in clicks().null_count().row(0, named=True).items() if share}
    assert set(missing) == {"country", "age", "is_member", "price", "ctr_7d"}
    assert all(0.01 < count / ROWS < 0.3 for count in missing.values())
    assert 0.1 < (clicks()["tags"].list.len() == 0).mean() < 0.4  # type: ignore[operator]


@pytest.mark.parametrize("seed", [0, 1])
def test_the_labels_are_drawn_with_the_true_probabilities(seed: int) -> None:
    log = clicks(seed=seed)
    assert abs(log["clicked"].mean() - 0.2) < 0.01  # type: ignore[operator]
    assert 0.75 < roc_auc_score(log["clicked"], log["p"]) < 0.79
    bins = log.group_by((pl.col("p") * 20).floor().alias("bin")).agg(
        pl.len(), pl.sum("clicked", "p"), (pl.col("p") * (1 - pl.col("p"))).sum().alias("v")
    )
    z = ((bins["clicked"] - bins["p"]) / bins["v"].sqrt()).filter(bins["len"] > 100)
    assert len(z) > 8
    assert z.abs().max() < 4  # type: ignore[operator]


def test_new_ads_appear_and_shares_of_old_ones_change() -> None:
    first, *_, last = (part["ad_id"] for part in clicks().iter_slices(ROWS // 10 + 1))
    assert (~last.is_in(clicks()["ad_id"][: 9 * ROWS // 10].unique().implode())).any()
    favourites = [set(part.value_counts(sort=True)["ad_id"][:50]) for part in (first, last)]
    assert len(favourites[0] & favourites[1]) < 35


def test_csv_and_parquet_hold_the_same_values(tmp_path: Path) -> None:
    rows = BLOCK + 7
    for name in ("log.csv", "log.parquet"):
        write_clicks(tmp_path / name, rows, 3)
    text, typed = pl.read_csv(tmp_path / "log.csv", infer_schema=False), pl.read_parquet(tmp_path / "log.parquet")
    assert typed.equals(clicks(rows, 3).drop("p", "logit"))
    assert re.fullmatch(r"2025-03-03T\d\d:\d\d:\d\d", text["event_time"][0])
    assert set(text["is_member"]) == {"true", "false", None}
    for name in ("age", "price", "visits", "ctr_7d", "ad_id", "clicked"):
        assert text[name].cast(pl.Float64).equals(typed[name].cast(pl.Float64)), name
    for name in ("request_id", "user_id", "segment", "country", "device", "category"):
        assert text[name].equals(typed[name].cast(pl.String)), name
    assert text["event_time"].str.to_datetime(time_unit="us").equals(typed["event_time"])
    assert text["tags"].fill_null("").equals(typed["tags"].list.join("|"))


def test_the_command_writes_a_log_that_trains_and_refuses_what_cannot_be_written(tmp_path: Path, run: Run) -> None:
    done = run("synthesize", "log.csv", "--rows", 2_000, "--seed", 1)
    assert (done.returncode, "log.csv: 2,000 rows" in done.stdout) == (0, True), done.stderr
    write_clicks(tmp_path / "again.csv", 2_000, 1)
    assert (tmp_path / "again.csv").read_bytes() == (tmp_path / "log.csv").read_bytes()
    assert run("train", "log.csv", "--label", "clicked", "--model", "lr").returncode == 0
    again = run("synthesize", "log.csv")
    assert (again.returncode, "log.csv: exists; give another file, or --overwrite" in again.stderr) == (2, True)
    assert run("synthesize", "log.csv", "--rows", 100, "--overwrite").returncode == 0
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 101
    (tmp_path / "folder.csv").mkdir()
    for name, message in (
        ("log.txt", r"log\.txt: .*name it \*\.csv or \*\.parquet"),
        ("log.csv", "exists; give another file, or `overwrite`"),
        ("folder.csv", "is a folder"),
    ):
        with pytest.raises(ClickLogError, match=message):
            write_clicks(tmp_path / name, overwrite=name == "folder.csv")
    with pytest.raises(ValueError, match="rows must be >= 1, got 0"):
        TypedClicks(0)
    with pytest.raises(ValueError, match="seed must be >= 0, got -1"):
        TypedClicks(1, -1)
