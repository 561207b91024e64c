"""What is published is what servers get, whatever they have missed."""

import math
import time
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from command import call
from publishing_cases import content, publish, small_model
from serving_cases import batch_of, train
from sparsegroup.publishing import Publisher, PublishError, Release, Served, Subscriber
from sparsegroup.publishing import publisher as publisher_module
from sparsegroup.publishing import subscriber as subscriber_module
from sparsegroup.publishing.destinations import StoreDestination
from sparsegroup.serving import export_trained, read_export
from sparsegroup.serving.onnx import OnnxModel, with_rows
from sparsegroup.serving.rows import ExportError


def test_the_first_release_is_whole_and_those_after_it_are_deltas(tmp_path: Path) -> None:
    opened, began, there = small_model(), time.time(), tmp_path / "there"
    with Publisher(there, formats=()) as publisher:
        assert (publisher.latest, publisher.served) == (None, None)
        first = publish(publisher, opened, 100)
        assert publish(publisher, opened) is None
        train(opened, 1)
        second = publisher.publish(publisher.draft(opened), samples=200, learnt_until=5.5, read_until=6.5)
        expected = export_trained(opened, tmp_path / "direct")
        assert first is not None
        assert second is not None
        assert second == publisher.latest == publisher.destination.releases()[1]
        assert (first.number, first.kind, first.folder, first.parent) == (1, "export", "00000001-export", None)
        assert (second.number, second.kind, second.folder, second.parent) == (2, "delta", "00000002-delta", 1)
        assert (second.samples, second.learnt_until, second.read_until) == (200, 5.5, 6.5)
        assert began <= first.published <= second.published <= time.time()
        for release in (first, publisher.destination.releases()[0]):
            assert release.figures["auc"] == 0.7
            assert math.isnan(release.figures["undefined"])
        assert second.id == expected.id
        assert second.bytes == sum(path.stat().st_size for path in (there / second.folder).iterdir())
        assert publisher.served is not None
        for folder in (tmp_path / "direct", there / second.folder):
            assert content(publisher.served) == content(read_export(folder))
    assert {path.name for path in there.iterdir()} == {"00000001-export", "00000002-delta", "releases.json"}


steps = st.lists(st.sampled_from(["train", "publish", "poll", "restart", "back", "lose"]), min_size=3, max_size=25)


@settings(max_examples=12)
@given(steps, st.integers(1, 3), st.sampled_from([0.0, 0.3, 1.0]), st.booleans())
def test_a_server_that_polls_at_any_moments_gets_exactly_what_was_published(
    tmp_path_factory: pytest.TempPathFactory, what: list[str], keep: int, compact_after: float, tables: bool
) -> None:
    place = tmp_path_factory.mktemp("published") / "there"
    opened = small_model(dims={"user": 2} if tables else {})
    options: dict[str, Any] = {"formats": (), "keep": keep, "compact_after": compact_after, "dtype": "int8"}
    publisher, subscriber = Publisher(place, **options), Subscriber(place)
    published: dict[int, Any] = {}
    have: Served | None = None
    for seed, step in enumerate([*what, "train", "publish", "poll"]):
        if step == "train":
            train(opened, seed)
        elif step == "publish" and publish(publisher, opened) is not None:
            assert publisher.served is not None
            for release in publisher.destination.releases()[-2:]:
                if release.id == publisher.served.manifest.id:
                    published[release.number] = content(publisher.served)
        elif step == "restart":
            publisher.close()
            publisher = Publisher(place, **options)
        elif step == "lose":
            have = None
        elif step == "poll" and published:
            newer = subscriber.newer(have)
            assert (newer is None) == (have is not None and have.release.number == max(published))
            have = subscriber.catch_up(have)
            assert have.release.number == max(published)
            assert content(have.export) == published[have.release.number]
            assert subscriber.newer(have) is None
        elif step == "back" and published:
            for release in publisher.destination.releases():
                assert content(subscriber.catch_up(have, release).export) == published[release.number]
    wholes = [release for release in publisher.destination.releases() if release.kind == "export"]
    assert len(wholes) <= keep
    publisher.close()


def test_the_whole_is_published_again_when_deltas_have_grown_and_no_server_need_fetch_it(tmp_path: Path) -> None:
    opened, place = small_model(rows=2000), tmp_path / "there"
    publisher = Publisher(place, formats=(), compact_after=0.5, keep=2)
    publish(publisher, opened)
    subscriber = Subscriber(place)
    have = subscriber.catch_up(None)
    fetched: list[str] = []
    real = subscriber.destination.fetch
    subscriber.destination.fetch = lambda release, into: fetched.append(release.kind) or real(release, into)  # type: ignore[method-assign, assignment, func-returns-value]
    for seed in range(16):
        train(opened, seed)
        publish(publisher, opened)
        have = subscriber.catch_up(have)
        assert publisher.served is not None
        assert content(have.export) == content(publisher.served)
        releases = publisher.destination.releases()
        wholes = [release for release in releases if release.kind == "export"]
        deltas = sum(release.bytes for release in releases if release.number > wholes[-1].number)
        assert deltas <= 0.5 * wholes[-1].bytes
        assert releases[0] == wholes[0]
        assert sorted(path.name for path in place.iterdir()) == [one.folder for one in releases] + ["releases.json"]
    assert len(wholes) == 2
    assert set(fetched) == {"delta"}
    for release in wholes[1:]:
        twin = next(one for one in releases if one.number == release.number - 1)
        assert (twin.kind, twin.id) == ("delta", release.id)
        for one in (twin, release):
            assert Subscriber(place).catch_up(None, one).release.number == one.number
    publisher.close()


def kind_of(release: Release | None) -> str:
    assert release is not None
    return release.kind


def test_another_network_or_format_is_published_as_a_whole(tmp_path: Path) -> None:
    have: Served | None = None
    with Publisher(tmp_path, formats=()) as publisher:
        for other in ({}, {"hidden": [5]}, {"numbers": True}, {"dims": {"user": 2}}):
            assert kind_of(publish(publisher, small_model(**other))) == "export"
            have = Subscriber(tmp_path).catch_up(have)
            assert publisher.served is not None
            assert content(have.export) == content(publisher.served)
    with Publisher(tmp_path, formats=(), dtype="int8") as publisher:
        assert kind_of(publish(publisher, small_model(dims={"user": 2}))) == "export"


def test_a_table_that_outgrows_its_fingerprints_is_published_as_a_whole(tmp_path: Path) -> None:
    opened, table = small_model(rows=500), small_model(rows=2000, seed=1).model.embedding
    with Publisher(tmp_path, formats=(), dtype="int4", keys="fingerprints", compact_after=100) as publisher:
        for seed, kind in enumerate(("export", "delta", "export")):
            assert kind_of(publish(publisher, opened)) == kind
            assert publisher.served is not None
            assert content(Subscriber(tmp_path).catch_up(None).export) == content(publisher.served)
            train(opened, seed)
            for keys, vectors in table.items() if seed == 1 else ():
                opened.model.embedding.assign(keys, vectors)


def test_what_cannot_be_served_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="nothing is published there yet"):
        Subscriber(tmp_path / "nothing").catch_up(None)
    for name, least in (("compact_after", 0), ("keep", 1)):
        with pytest.raises(ValueError, match=f"{name} must be >= {least}"):
            Publisher(tmp_path, **{name: least - 1})  # type: ignore[arg-type]
    opened = small_model()
    with Publisher(tmp_path, formats=(), keep=1, compact_after=0) as publisher:
        first = publish(publisher, opened)
        train(opened, 1)
        publish(publisher, opened)
        with pytest.raises(PublishError, match="release 1 is no longer kept; the first is 2"):
            Subscriber(tmp_path).catch_up(None, first)
        opened.model.network.output.bias.data[0] = float("nan")  # type: ignore[union-attr, index]
        with pytest.raises(ValueError, match=r"network.output.bias: is not a number"):
            publish(publisher, opened)
        assert len(publisher.destination.releases()) == 1


def test_a_whole_export_is_traced_once_and_servers_make_its_onnx_of_deltas(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    traced: list[Any] = []

    def export(command: list[str], **_: Any) -> Any:
        """As the process would that is to be started."""
        traced.append(command)
        return CompletedProcess(command, call(monkeypatch, *command[3:]), "", "")

    monkeypatch.setattr(publisher_module.subprocess, "run", export)
    opened, subscriber = small_model(rows=2000), Subscriber(tmp_path)
    have: Served | None = None
    for seed in range(2):
        with Publisher(tmp_path, dtype="int4", keys="fingerprints", compact_after=0.1) as publisher:
            # Each continues what the last one has published.
            assert publisher.served is None or publisher.served.manifest.id == publisher.latest.id  # type: ignore[union-attr]
            for number in range(2):
                publish(publisher, opened)
                train(opened, 2 * seed + number)
                have = subscriber.catch_up(have)
                assert have.onnx is not None
                assert len(have.onnx) < 60_000
                served = have.export.serving_model()
                model = with_rows(have.onnx, served)
                assert model is not None
                (tmp_path / "model.onnx").write_bytes(model)
                arguments = served.arguments(batch_of(opened, 50))
                (scores,) = OnnxModel(tmp_path / "model.onnx")(arguments)
                assert abs(torch.from_numpy(scores) - served(*arguments)).max() < 1e-6
            releases = publisher.destination.releases()
    assert len(traced) == 1
    wholes = [release for release in releases if release.kind == "export"]
    assert len(wholes) > 1
    assert all("model.onnx" in release.files for release in wholes)
    metadata = onnx.load(tmp_path / wholes[-1].folder / "model.onnx").metadata_props
    assert {entry.key: entry.value for entry in metadata}["export"] == wholes[-1].id


def test_a_destination_that_was_removed_is_an_error_for_a_server_that_has_a_release(tmp_path: Path) -> None:
    subscriber = Subscriber(tmp_path / "there")
    assert subscriber.newer(None) is None
    with Publisher(tmp_path / "there", formats=()) as publisher:
        publish(publisher, small_model())
    served = subscriber.catch_up(None)
    (tmp_path / "there").rename(tmp_path / "elsewhere")
    with pytest.raises(PublishError, match="removed"):
        subscriber.newer(served)
    (tmp_path / "elsewhere").rename(tmp_path / "there")
    assert subscriber.newer(served) is None


def test_a_cache_loses_releases_only(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with Publisher("memory://tidy/models", formats=()) as publisher:
        publish(publisher, small_model())
    Subscriber("memory://tidy/models", cache).catch_up(None)
    (inside,) = cache.iterdir()
    for folder in (cache, inside):
        (folder / "photos").mkdir(parents=True)
        (folder / "notes.txt").write_text("mine")
    (inside / "00000009-export").mkdir()
    Subscriber("memory://tidy/models", cache).catch_up(None)
    assert {path.name for path in cache.iterdir()} == {inside.name, "photos", "notes.txt"}
    assert publisher.latest is not None
    names = {"photos", "notes.txt", "releases.json", publisher.latest.folder}
    assert {path.name for path in inside.iterdir()} == names


def test_tracing_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher_module, "TRACING_SECONDS", 0.01)
    with Publisher(tmp_path, formats=("onnx",)) as publishes:
        with pytest.raises(ExportError, match=r"model\.onnx took more than"):
            publish(publishes, small_model())
        assert publishes.destination.releases() == ()


def test_a_cache_survives_an_outage_at_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve the last release, although the publisher has removed the files of the first releases."""
    opened, cache = small_model(), tmp_path / "cache"
    publisher = Publisher("memory://outage/models", formats=(), keep=1, compact_after=0.9)
    follows, have, kinds = Subscriber("memory://outage/models", cache), None, set()

    def away(*_: Any) -> Any:
        raise PublishError("it is away")

    for seed in range(8):
        publish(publisher, opened)
        have = follows.catch_up(have)
        kinds.add(have.release.kind)
        with monkeypatch.context() as patch:
            patch.setattr(StoreDestination, "releases", away)
            starting = Subscriber("memory://outage/models", cache)
            assert (first := starting.newer(None)) is not None
            served = starting.catch_up(None)
            assert served.release == first
            assert content(served.export) == content(have.export)
            for one, known in ((Subscriber("memory://outage/models"), None), (follows, have)):
                with pytest.raises(PublishError, match="it is away"):
                    one.newer(known)
            patch.setattr(subscriber_module, "open_destination", away)
            assert content(Subscriber("memory://outage/models", cache).catch_up(None).export) == content(have.export)
            with pytest.raises(PublishError, match="it is away"):  # another destination has another cache
                Subscriber("memory://outage/others", cache).newer(None)
        assert starting.newer(served) == (None if served.release == have.release else have.release)
        train(opened, seed)
    assert kinds == {"export", "delta"}
    next(cache.glob("*/releases.json")).write_text("{")
    monkeypatch.setattr(StoreDestination, "releases", away)
    with pytest.raises(PublishError, match="it is away"):
        follows.newer(None)
