"""Swaps: the newest good release serves, whatever the others are, and a rollback holds."""

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from server_cases import KINDS, Shelf, exported, typed_rows, untrained, write_rows
from sparsegroup.server import ExportFolder, Metrics, ReleaseFollower, RollbackError, model, open_releases
from sparsegroup.serving import ExportError
from sparsegroup.serving.tracing import trace

ROWS = typed_rows()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Exports of one network; the first has its ONNX file."""
    place = tmp_path_factory.mktemp("follower")
    log = write_rows(place / "log.csv", ROWS)
    return [exported(untrained(log, bias=bias), place / f"{bias}", onnx=not bias) for bias in range(4)]


@pytest.fixture
def shelf(folders: list[Path]) -> Shelf:
    shelf = Shelf()
    shelf.add(folders[0])
    return shelf


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def follower(shelf: Shelf, metrics: Metrics) -> ReleaseFollower:
    follower = ReleaseFollower(shelf, metrics)
    assert follower.load_newest()
    return follower


def logits(follower: ReleaseFollower) -> Any:
    assert follower.model is not None
    found = follower.model.predictions(follower.model.reader.batch(ROWS))["probability"]
    return np.log(found) - np.log1p(-found)


def text_of(metrics: Metrics) -> str:
    return metrics.text().decode()


def test_the_newest_release_is_taken_without_tracing(
    follower: ReleaseFollower, shelf: Shelf, folders: list[Path], metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "save_onnx", trace)  # which would raise
    before, begun = logits(follower), follower.model
    assert not follower.load_newest()
    for bias in (1, 2, 3):
        shelf.add(folders[bias])
        assert follower.load_newest()
        assert follower.model is not None
        assert follower.model.release.number == bias + 1
        np.testing.assert_allclose(logits(follower), before + bias, atol=1e-3)
        assert follower.model.reader is begun.reader  # type: ignore[union-attr]
    found = text_of(metrics)
    assert "sparsegroup_swaps_total 4.0" in found
    assert "sparsegroup_release 4.0" in found
    assert "sparsegroup_swap_seconds_count 4.0" in found
    assert follower.age is not None
    assert follower.age > 1e8


def test_a_request_keeps_the_model_that_it_has_begun_with(
    follower: ReleaseFollower, shelf: Shelf, folders: list[Path]
) -> None:
    begun = follower.model
    assert begun is not None
    before = begun.predictions(begun.reader.batch(ROWS))
    shelf.add(folders[1])
    follower.load_newest()
    after = begun.predictions(begun.reader.batch(ROWS))
    assert before["probability"].tolist() == after["probability"].tolist()


def test_a_release_that_fails_its_checks_is_refused_named_and_not_tried_again(
    follower: ReleaseFollower, shelf: Shelf, folders: list[Path], metrics: Metrics, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = logits(follower)
    export = shelf.exports[0]
    assert not isinstance(export, Exception)
    shelf.exports.append(replace(export, network={name: one * torch.nan for name, one in export.network.items()}))
    with pytest.raises(ExportError, match="not finite"):
        follower.load_newest()
    fetch, calls = shelf.fetch, list[int]()
    monkeypatch.setattr(shelf, "fetch", lambda *given, **named: calls.append(1) or fetch(*given, **named))
    assert not follower.load_newest()
    assert not calls
    assert logits(follower).tolist() == before.tolist()
    assert "not finite" in follower.described()["refused"]["2"]
    assert "sparsegroup_failed_swaps_total 1.0" in text_of(metrics)
    assert "sparsegroup_swaps_total 1.0" in text_of(metrics)
    with pytest.raises(RollbackError, match="release 2 was refused"):
        follower.rollback(2)
    shelf.add(folders[1])
    assert follower.load_newest()
    np.testing.assert_allclose(logits(follower), before + 1, atol=1e-3)


def test_an_onnx_model_that_computes_something_else_is_refused(
    follower: ReleaseFollower, shelf: Shelf, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert follower.model is not None
    wrong = follower.model._session
    monkeypatch.setattr(model, "session_for", lambda *_: wrong)
    shelf.add(folders[1])
    with pytest.raises(ExportError, match="ONNX and PyTorch differ by 0"):
        follower.load_newest()
    assert follower.model is not None
    assert follower.model.release.number == 1


def test_what_cannot_be_fetched_is_tried_again_and_counted_once(
    follower: ReleaseFollower, shelf: Shelf, folders: list[Path], metrics: Metrics
) -> None:
    shelf.exports.append(ExportError("upserts.safetensors: damaged"))
    for _ in range(3):
        with pytest.raises(ExportError, match="damaged"):
            follower.load_newest()
    assert follower.described()["refused"] == {"2": "upserts.safetensors: damaged"}
    assert "sparsegroup_failed_swaps_total 1.0" in text_of(metrics)
    shelf.exports.pop()
    shelf.add(folders[1])
    assert follower.load_newest()
    assert follower.described()["refused"] == {}


def test_a_rollback_holds_until_it_is_resumed(
    follower: ReleaseFollower, shelf: Shelf, folders: list[Path], metrics: Metrics
) -> None:
    first = logits(follower)
    with pytest.raises(RollbackError, match="no other release has served"):
        follower.rollback()
    for bias in (1, 2):
        shelf.add(folders[bias])
        follower.load_newest()
    assert follower.rollback().release.number == 2
    np.testing.assert_allclose(logits(follower), first + 1, atol=1e-3)
    shelf.add(folders[3])
    assert not follower.load_newest()
    assert follower.rollback(1).release.number == 1
    assert logits(follower).tolist() == first.tolist()
    assert "sparsegroup_pinned 1.0" in text_of(metrics)
    with pytest.raises(RollbackError, match="no release 9"):
        follower.rollback(9)
    assert (follower.pinned, follower.described()["refused"]) == (1, {})
    follower.resume()
    assert follower.load_newest()
    np.testing.assert_allclose(logits(follower), first + 3, atol=1e-3)
    assert "sparsegroup_pinned 0.0" in text_of(metrics)


def test_a_release_with_other_columns_is_read_in_its_own_way(
    follower: ReleaseFollower, shelf: Shelf, tmp_path: Path
) -> None:
    log = write_rows(tmp_path / "log.csv", ROWS)
    shelf.add(exported(untrained(log, {**KINDS, "site": "ignore", "tags": "category"}), tmp_path / "other"))
    before = follower.model
    assert before is not None
    assert follower.load_newest()
    assert follower.model is not None
    assert "site" in before.reader.columns
    assert "site" not in follower.model.reader.columns
    assert len(logits(follower)) == len(ROWS)


def until(condition: Any, seconds: float = 60) -> None:
    waited = threading.Event()
    for _ in range(int(seconds * 200)):
        if condition():
            return
        waited.wait(0.005)
    raise AssertionError("it has not happened")


def test_the_thread_follows_through_a_time_without_its_destination(
    shelf: Shelf, folders: list[Path], metrics: Metrics, caplog: pytest.LogCaptureFixture
) -> None:
    follower = ReleaseFollower(shelf, metrics, poll=0.001)
    shelf.away = OSError("the store is away")
    follower.start()
    try:
        until(lambda: follower.described()["problem"] == "the store is away")
        assert follower.model is None
        shelf.away = None
        until(lambda: follower.model is not None)
        shelf.away = ConnectionError("gone again")
        until(lambda: follower.described()["problem"] == "gone again")
        shelf.add(folders[1])
        shelf.away = None
        until(lambda: follower.model is not None and follower.model.release.number == 2)
        until(lambda: follower.described()["problem"] is None)
        follower.rollback()
        follower.resume()
        until(lambda: follower.model is not None and follower.model.release.number == 2)
    finally:
        follower.stop()
    assert [record.message for record in caplog.records].count("the store is away") == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_vectors_of_each_format_reach_onnxruntime(dtype: Any, tmp_path: Path) -> None:
    log = write_rows(tmp_path / "log.csv", ROWS)
    follower = ReleaseFollower(open_releases(str(exported(untrained(log), tmp_path / "export", dtype))), Metrics())
    assert follower.load_newest()  # which compares it with PyTorch


def test_a_folder_is_one_export(folders: list[Path], tmp_path: Path) -> None:
    source = open_releases(str(folders[0]))
    assert isinstance(source, ExportFolder)
    follower = ReleaseFollower(source, Metrics())
    assert follower.load_newest()
    assert not follower.load_newest()
    for to in (None, 1):
        with pytest.raises(RollbackError, match=r"no other release|one export"):
            follower.rollback(to)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(ExportError, match=r"manifest\.json"):
        ReleaseFollower(open_releases(str(tmp_path)), Metrics()).load_newest()
