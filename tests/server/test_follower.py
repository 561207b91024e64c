"""Swaps: the newest good release serves, whatever the others are, and a rollback holds."""

import errno
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from server_cases import KINDS, Shelf, exported, typed_rows, until, untrained, write_rows
from sparsegroup.server import (
    ExportFolder,
    LoadedModel,
    Metrics,
    ReleaseFollower,
    RollbackError,
    model,
    open_releases,
)
from sparsegroup.serving import ExportError
from sparsegroup.serving.tracing import trace

ROWS = typed_rows()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Exports of one network; the first has its ONNX file."""
    place = tmp_path_factory.mktemp("follower")
    log = write_rows(place / "log.csv", ROWS)
    return [exported(untrained(log, bias=bias), place / f"{bias}", onnx=not bias) for bias in range(4)]


class Scene:
    """A follower of a shelf; the logits of what it serves."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders, self.shelf, self.metrics = folders, Shelf(), Metrics()
        self.shelf.add(folders[0])
        self.follower = ReleaseFollower(self.shelf, self.metrics, poll=0.001)

    def add(self, number: int) -> bool:
        """Publish an export, and load what is newest."""
        self.shelf.add(self.folders[number])
        return self.follower.load_newest()

    @property
    def model(self) -> LoadedModel:
        assert self.follower.model is not None
        return self.follower.model

    @property
    def logits(self) -> Any:
        found = self.model.predictions(self.model.reader.batch(ROWS))["probability"]
        return np.log(found) - np.log1p(-found)

    def refused(self) -> Any:
        return self.follower.described()["refused"]

    def shows(self, *lines: str) -> bool:
        """Whether the metrics have all of these."""
        return all(f"sparsegroup_{line}" in self.metrics.text().decode() for line in lines)


@pytest.fixture
def scene(folders: list[Path]) -> Scene:
    scene = Scene(folders)
    assert scene.follower.load_newest()
    return scene


def test_the_newest_release_is_taken_without_tracing_and_a_request_keeps_its_model(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "save_onnx", trace)  # which would raise
    before, begun = scene.logits, scene.model
    batch = begun.reader.batch(ROWS)
    predicted = begun.predictions(batch)["probability"].tolist()
    assert not scene.follower.load_newest()
    for number in (1, 2, 3):
        assert scene.add(number)
        assert scene.model.release.number == number + 1
        np.testing.assert_allclose(scene.logits, before + number, atol=1e-3)
        assert scene.model.reader is begun.reader
    assert begun.predictions(batch)["probability"].tolist() == predicted
    assert scene.shows("swaps_total 4.0", "release 4.0", "swap_seconds_count 4.0")
    assert scene.follower.age is not None
    assert scene.follower.age > 1e8


def test_a_release_that_fails_its_checks_is_refused_named_and_not_tried_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, export = scene.logits, scene.shelf.exports[0]
    assert not isinstance(export, Exception)
    network = {name: one * torch.nan if one.is_floating_point() else one for name, one in export.network.items()}
    scene.shelf.exports.append(replace(export, network=network))
    with pytest.raises(ExportError, match="not finite"):
        scene.follower.load_newest()
    with monkeypatch.context() as patch:
        patch.setattr(scene.shelf, "fetch", None)  # so that fetching fails
        assert not scene.follower.load_newest()
    assert scene.logits.tolist() == before.tolist()
    assert "not finite" in scene.refused()["2"]
    assert scene.shows("failed_swaps_total 1.0", "swaps_total 1.0")
    with pytest.raises(RollbackError, match="release 2 was refused"):
        scene.follower.rollback(2)
    assert scene.add(1)
    np.testing.assert_allclose(scene.logits, before + 1, atol=1e-3)


def test_an_onnx_model_that_computes_something_else_is_refused(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = scene.model._session
    monkeypatch.setattr(model, "session_for", lambda *_: wrong)
    with pytest.raises(ExportError, match="ONNX and PyTorch differ by 0"):
        scene.add(1)
    assert scene.model.release.number == 1


def test_what_cannot_be_fetched_is_tried_again_and_counted_once(scene: Scene) -> None:
    scene.shelf.exports.append(ExportError("upserts.safetensors: damaged"))
    for _ in range(3):
        with pytest.raises(ExportError, match="damaged"):
            scene.follower.load_newest()
    assert scene.refused() == {"2": "upserts.safetensors: damaged"}
    assert scene.shows("failed_swaps_total 1.0")
    scene.shelf.exports.pop()
    assert scene.add(1)
    assert scene.refused() == {}


def test_a_rollback_holds_until_it_is_resumed(scene: Scene) -> None:
    first, follower = scene.logits, scene.follower
    with pytest.raises(RollbackError, match="no other release has served"):
        follower.rollback()
    assert scene.add(1)
    assert scene.add(2)
    assert follower.rollback().release.number == 2
    np.testing.assert_allclose(scene.logits, first + 1, atol=1e-3)
    assert not scene.add(3)
    assert follower.rollback(1).release.number == 1
    assert scene.logits.tolist() == first.tolist()
    assert scene.shows("pinned 1.0")
    with pytest.raises(RollbackError, match="no release 9"):
        follower.rollback(9)
    assert (follower.pinned, scene.refused()) == (1, {})
    follower.resume()
    assert follower.load_newest()
    np.testing.assert_allclose(scene.logits, first + 3, atol=1e-3)
    assert scene.shows("pinned 0.0")


def test_repeated_rollbacks_go_back_and_never_to_a_release_that_a_rollback_has_left(scene: Scene) -> None:
    follower = scene.follower
    for number in (1, 2, 3):
        assert scene.add(number)
    assert [follower.rollback().release.number for _ in range(3)] == [3, 2, 1]
    with pytest.raises(RollbackError, match="no other release"):
        follower.rollback()
    follower.resume()
    assert scene.add(1)
    assert scene.model.release.number == 5
    assert follower.rollback().release.number == 1
    assert follower.rollback(3).release.number == 3
    assert follower.rollback().release.number == 1


def test_a_rollback_skips_another_form_of_the_model_in_service(scene: Scene) -> None:
    assert scene.add(1)
    scene.shelf.add(scene.folders[1])
    fetch = scene.shelf.fetch

    def fetch_of_one_id(have: Any, to: int | None = None) -> Any:
        found = fetch(have, to)
        return found if to else replace(found, release=replace(found.release, id=scene.model.release.id))

    scene.shelf.fetch = fetch_of_one_id  # type: ignore[method-assign]
    assert scene.follower.load_newest()
    assert scene.model.release.number == 3
    assert scene.follower.rollback().release.number == 1


@pytest.mark.parametrize(
    "fault", [OSError(errno.ENOSPC, "No space left on device"), MemoryError(), RuntimeError("bad allocation")]
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_release_is_tried_again_after_a_fault_of_the_machine(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, fault: Exception, wrapped: bool
) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    scene.follower = ReleaseFollower(scene.shelf, scene.metrics, poll=1.0)

    def failing(*_: Any, **__: Any) -> Any:
        if wrapped:
            raise ExportError("the model cannot be opened") from fault
        raise fault

    tried = []
    with monkeypatch.context() as patch:
        patch.setattr(model, "session_for", failing)
        for _ in range(1000):
            now += 1
            try:
                scene.follower.load_newest()
            except (OSError, MemoryError, RuntimeError, ExportError):
                tried.append(now)
    gaps = np.diff(tried)
    assert len(tried) > 5
    assert (gaps[1:] >= gaps[:-1]).all()
    assert gaps.max() <= 300
    now += 300
    assert scene.follower.load_newest()
    assert scene.refused() == {}


def test_a_release_with_other_columns_is_read_in_its_own_way(scene: Scene, tmp_path: Path) -> None:
    log, before = write_rows(tmp_path / "log.csv", ROWS), scene.model
    scene.shelf.add(exported(untrained(log, {**KINDS, "site": "ignore", "tags": "category"}), tmp_path / "other"))
    assert scene.follower.load_newest()
    assert "site" in before.reader.columns
    assert "site" not in scene.model.reader.columns
    assert len(scene.logits) == len(ROWS)


def test_the_thread_follows_through_a_time_without_its_destination(
    folders: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    scene = Scene(folders)
    follower, shelf = scene.follower, scene.shelf
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
        until(lambda: scene.model.release.number == 2 and follower.described()["problem"] is None)
        follower.rollback()
        follower.resume()
        until(lambda: scene.model.release.number == 2)
    finally:
        follower.stop()
    assert [record.message for record in caplog.records].count("the store is away") == 1


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
