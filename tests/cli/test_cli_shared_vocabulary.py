"""An item and a history of items with one vocabulary, through every command: the counts, the vectors, the scores."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from command import Run, call, without_pictures
from endings import Refused
from sparsegroup.data import PreparedLog, open_log
from sparsegroup.data.keys import keys_of
from sparsegroup.server import RowReader, format_of_model
from sparsegroup.serving import explain, open_trained
from sparsegroup.training.predictions import UnseenValues

ROWS = 400
SCHEMA = "columns: {click: label, history: list | shares item, item: category of numbers, user: category}\n"
ALONE = SCHEMA.replace(" shares item", "")
MODEL = ("--model", "mlp", "--set", "model.attention={history: item}", "--set", "model.dims={item: 2}", "--dim", 4)
OPTIONS = (*MODEL, "--selection", "never", "--batch-size", 64, "--target-rate", 1)


def write_log(path: Path, rows: int = ROWS) -> pl.DataFrame:
    draw = np.random.default_rng(0)
    item, sizes = draw.integers(30, size=rows), draw.integers(4, size=rows)
    history = [draw.integers(20, 50, size=size) for size in sizes]
    frame = pl.DataFrame(
        {
            "click": [int(one in of) if len(of) else int(one < 10) for one, of in zip(item, history, strict=True)],
            "history": ["|".join(map(str, of)) for of in history],
            "item": item.astype(str),
            "user": [f"u{one}" for one in draw.integers(9, size=rows)],
        }
    )
    frame.write_csv(path)
    return frame


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a log, a run with a shared vocabulary, its export, and a prepared log."""
    folder = tmp_path_factory.mktemp("shared")
    write_log(folder / "log.csv")
    (folder / "schema.yaml").write_text(SCHEMA)
    (folder / "alone.yaml").write_text(ALONE)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        without_pictures(patch)
        assert call(patch, "train", "log.csv", "--schema", "schema.yaml", *OPTIONS, "--out", "run") == 0
        assert call(patch, "export", "run", "export", "--test", "log.csv", "--no-onnx") == 0
        assert call(patch, "prepare", "log.csv", "prepared", "--schema", "schema.yaml", "--vocabulary") == 0
    return folder


@pytest.fixture
def there(place: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(place)
    return place


def values(name: str) -> set[str]:
    column = pl.read_csv("log.csv", infer_schema=False)[name].fill_null("").str.split("|").explode()
    return set(column)


def test_each_feature_counts_once_and_belongs_to_the_item(there: Path, ok: Run) -> None:
    everything = values("item") | values("history")
    prepared = PreparedLog("prepared")
    assert prepared.manifest.features["item"][0] == len(everything)
    assert prepared.manifest.features["history"][0] == len(values("history"))
    assert json.loads(ok("prepare", "log.csv", "again", "--schema", "schema.yaml", "--json").stdout)["features"] == (
        len(everything) + 9
    )
    words = pl.read_parquet("prepared/vocabulary.parquet")
    assert set(words.filter(field="item")["value"]) == everything
    assert set(words["field"]) == {"item", "user"}
    assert dict(words.filter(value="25").select("value", "key").iter_rows()) == {"25": int(keys_of(["25"], 1)[0])}

    summary = json.loads((there / "run" / "summary.json").read_text())
    trained = open_trained("run")
    assert trained.columns.shares == {"history": "item"}
    assert set(summary["fields"]) == {"item", "user"}
    assert sum(one["seen"] for one in summary["fields"].values()) == summary["features_seen"]
    for model in ("run", "export"):
        found = json.loads(ok("inspect", model, "--json").stdout)
        assert set(found["fields"]) == {"item", "user"}
        assert found["fields"]["item"]["live"] == summary["fields"]["item"]["live"] > 30
        assert {one["field"] for one in found["top"]} <= {"item", "user"}
        assert model == "export" or {one["value"] for one in found["top"] if one["field"] == "item"} <= everything
    sizes = {table.dim: table.num_live for table in trained.rows.values()}
    assert sizes[2] == summary["fields"]["item"]["live"]
    unseen = UnseenValues(trained.model.embedding, trained.columns)
    batch = next(open_log("log.csv", like=trained.config.format_options, whole=True).batches(0, ROWS, ROWS))
    found = unseen.add(batch)
    assert found["history"][0] == sum(len(one.split("|")) for one in pl.read_csv("log.csv")["history"] if one)
    assert all(count[1] <= 9 for count in found.values())


def test_every_way_to_score_gives_the_same(there: Path, tmp_path: Path, ok: Run) -> None:
    for model in ("run", "export"):
        ok("predict", model, "log.csv", "--out", tmp_path / f"{model}.parquet")
    of_run, of_export = (pl.read_parquet(tmp_path / f"{model}.parquet")["probability"] for model in ("run", "export"))
    np.testing.assert_allclose(of_export, of_run, rtol=0, atol=1e-6)
    ok("predict", "run", "prepared", "--out", tmp_path / "prepared.parquet")
    assert pl.read_parquet(tmp_path / "prepared.parquet")["probability"].to_list() == of_run.to_list()

    trained = open_trained("run")
    reader = RowReader(format_of_model(trained.config, trained.columns))
    log = open_log("log.csv", like=trained.config.format_options, whole=True)
    rows, expected = pl.read_csv("log.csv").to_dicts(), next(log.batches(0, ROWS, ROWS))
    for first in (0, 1):  # then only the history is new
        batch = reader.batch([rows[0] | {"history": [7, "8"], "user": None}, *rows[first:]])[1:]
        assert torch.equal(batch.keys, expected.keys[first:])
        assert torch.equal(batch.bags[0].keys, expected[first:].bags[0].keys)
    assert torch.equal(reader.batch_of_frame(pl.DataFrame(rows).to_arrow()).bags[0].keys, expected.bags[0].keys)

    explained = explain(trained.model, trained.columns, expected[:5])
    total = explained.reference + explained.contributions.sum(1)
    np.testing.assert_allclose(1 / (1 + np.exp(-total)), of_run[:5], atol=1e-6)
    assert json.loads(ok("explain", "run", "log.csv", "--row", "3", "--json").stdout)["rows"]


def test_a_run_knows_what_it_shares(there: Path, tmp_path: Path, ok: Run, refused: Refused) -> None:
    ok("train", "log.csv", "--continue", "run", "--out", tmp_path / "more")
    assert open_trained(tmp_path / "more").columns.shares == {"history": "item"}
    what = "shared vocabularies are none; the run was trained with history shares item"
    assert what in refused(
        "train", "log.csv", "--schema", "alone.yaml", "--continue", "run", "--out", tmp_path / "other"
    )
    assert what in refused("evaluate", "run", "log.csv", "--schema", "alone.yaml")
    assert "another log, or one read in another way" in refused(
        "prepare", "log.csv", "prepared", "--schema", "alone.yaml", "--vocabulary"
    )
    assert "dims: 'history' shares the vocabulary of 'item'" in refused(
        "train", "log.csv", "--schema", "schema.yaml", "--set", "model.dims={history: 2}", "--out", tmp_path / "no"
    )


def test_the_baseline_is_that_of_separate_vocabularies(there: Path, tmp_path: Path, ok: Run) -> None:
    ok("train", "log.csv", "--schema", "alone.yaml", *OPTIONS, "--out", tmp_path / "alone")
    ours, theirs = (
        json.loads((of / "summary.json").read_text())["baseline"] for of in (there / "run", tmp_path / "alone")
    )
    assert ours == theirs
