"""All destinations alike: complete releases or none, one publisher, named damage, and nothing left behind."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.fs as fs
import pytest

from object_store import BUCKET, ObjectStore, object_store
from publishing_cases import content, publish, small_model, train
from redis_server import redis_server
from sparsegroup.errors import UserError
from sparsegroup.publishing import Destination, Publisher, PublishError, Served, Subscriber, open_destination

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture(scope="module")
def redis_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with redis_server(tmp_path_factory.mktemp("redis")) as uri:
        yield uri


@pytest.fixture(params=["folder", "s3", "memory", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty destination of each kind."""
    name = f"models/{next(_NUMBERS)}"
    if request.param == "folder":
        return str(tmp_path / name)
    if request.param == "memory":
        return f"memory://{name}"
    if request.param == "redis":
        return f"{request.getfixturevalue('redis_uri')}/0/{name}"
    store: ObjectStore = request.getfixturevalue("server")
    for variable, value in store.environment.items():
        monkeypatch.setenv(variable, value)
    return f"s3://{BUCKET}/{name}"


def stored(place: str) -> set[str]:
    """Names of all that a destination holds, each file as `release/name`."""
    there: Any = open_destination(place)
    if place.startswith("redis"):
        keys = {key.decode().removeprefix(there._prefix + ":") for key in there._client.keys(there._prefix + ":*")}
        listed = {key.decode().removeprefix(there._prefix + ":") for key in there._client.smembers(there._key("files"))}
        assert keys - {"releases.json", "files"} == listed
        folders = {str(release.number): release.folder for release in there.releases()}
        files = [name.split(":", 1) for name in listed]
        return {"releases.json"} | {f"{folders.get(number, number)}/{name}" for number, name in files}
    if "://" not in place:
        return {str(path.relative_to(place)) for path in Path(place).rglob("*") if path.is_file()}
    found = there._filesystem.get_file_info(fs.FileSelector(there._root, recursive=True))
    return {info.path.removeprefix(there._root + "/") for info in found if info.is_file}


def expected_files(destination: Destination) -> set[str]:
    releases = destination.releases()
    return {"releases.json"} | {f"{release.folder}/{name}" for release in releases for name in release.files}


def flip(place: str, folder: str, number: int, name: str) -> None:
    """Change one byte of a stored file."""

    def flipped(data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1])

    there: Any = open_destination(place)
    if place.startswith("redis"):
        key = there._key(number, name)
        there._client.set(key, flipped(there._client.get(key)))
    elif "://" in place:
        path = f"{there._root}/{folder}/{name}"
        data = flipped(there._filesystem.open_input_stream(path).read())
        with there._filesystem.open_output_stream(path) as file:
            file.write(data)
    else:
        path_here = Path(place) / folder / name
        data = flipped(path_here.read_bytes())
        path_here.unlink()
        path_here.write_bytes(data)


def test_releases_go_there_and_come_back(place: str, tmp_path: Path) -> None:
    opened = small_model(dims={"user": 2})
    assert open_destination(place).releases() == ()
    publisher = Publisher(place, formats=(), keep=1, compact_after=0.5)
    cached, plain = Subscriber(place, tmp_path / "cache"), Subscriber(place)
    have: Served | None = None
    for seed in range(8):
        if seed == 4:
            publisher.close()
            publisher = Publisher(place, formats=(), keep=1, compact_after=0.5)
        publish(publisher, opened)
        train(opened, seed)
        assert publisher.served is not None
        have = cached.catch_up(have if seed % 3 else None)
        for served in (have, plain.catch_up(None)):
            assert content(served.export) == content(publisher.served)
            assert publisher.latest is not None
            assert replace(served.release, figures={}) == replace(publisher.latest, figures={})
        assert stored(place) == expected_files(publisher.destination)
    if not place.startswith(str(tmp_path)):
        releases = {release.folder for release in publisher.destination.releases()}
        assert {path.name for path in (tmp_path / "cache").iterdir()} <= releases
    publisher.close()


def test_two_publishers_do_not_mix(place: str) -> None:
    first = Publisher(place, formats=())
    publish(first, small_model(seed=1))
    if "://" not in place:  # a folder has a lock
        with pytest.raises(PublishError, match="another process publishes there"):
            Publisher(place, formats=())
        return
    second = Publisher(place, formats=())
    publish(first, small_model(seed=2))
    before = stored(place)
    for _ in range(2):
        with pytest.raises(PublishError, match="another process publishes there"):
            publish(second, small_model(seed=3))
        assert stored(place) == before
    publish(first, small_model(seed=3))
    assert len(first.destination.releases()) == 3


@pytest.mark.parametrize("how", ["before", "after"])
@pytest.mark.parametrize("step", ["_put", "_write_index", "_remove_others"])
def test_a_publication_that_fails_is_made_up_for(
    place: str, step: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = small_model()
    publisher = Publisher(place, formats=(), compact_after=0.9, keep=1)
    publish(publisher, opened)
    have = Subscriber(place).catch_up(None)
    for seed in range(4):
        train(opened, seed)
        draft = publisher.draft(opened)
        with monkeypatch.context() as patch:
            failing(patch, publisher.destination, step, how, at=seed // 2)
            with suppress(OSError):
                publisher.publish(draft, samples=seed)
        have = Subscriber(place).catch_up(have)  # one of the releases, complete
        publisher.publish(draft, samples=seed)
        have = Subscriber(place).catch_up(have)
        assert publisher.served is not None
        assert content(have.export) == content(publisher.served)
    train(opened, 7)
    publish(publisher, opened)
    assert stored(place) == expected_files(publisher.destination)
    publisher.close()


def failing(patch: pytest.MonkeyPatch, destination: Destination, step: str, how: str, at: int) -> None:
    """Let the `at`-th call of a step fail."""
    real: Callable[..., Any] = getattr(destination, step)
    calls = itertools.count()

    def fails(*arguments: Any) -> None:
        fail = next(calls) == at
        if not fail or how == "after":
            real(*arguments)
        if fail:
            raise OSError("it fails")

    patch.setattr(destination, step, fails)


def test_a_flipped_bit_is_noticed_and_named(place: str) -> None:
    opened = small_model()
    publisher = Publisher(place, formats=())
    publish(publisher, opened)
    have = Subscriber(place).catch_up(None)
    train(opened, 1)
    publish(publisher, opened)
    export, delta = publisher.destination.releases()
    for release, names in ((delta, delta.files), (export, ["embeddings.safetensors"])):
        for name in names:
            flip(place, release.folder, release.number, name)
            with pytest.raises(UserError, match=rf"release 2 cannot be read: .*{name}: damaged"):
                Subscriber(place).catch_up(None)
            flip(place, release.folder, release.number, name)
    flip(place, export.folder, 1, "embeddings.safetensors")
    assert publisher.served is not None
    assert content(Subscriber(place).catch_up(have).export) == content(publisher.served)  # by the delta
    flip(place, delta.folder, 2, "network.safetensors")
    with pytest.raises(PublishError, match=r"cannot be read"):
        Subscriber(place).catch_up(have)
    publisher.close()


def test_a_server_reads_the_next_release_if_the_one_it_reads_is_removed(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = small_model()
    publisher = Publisher(place, formats=(), keep=1, compact_after=0)
    publish(publisher, opened)
    subscriber = Subscriber(place)
    real, seen = subscriber.destination.fetch, []

    def fetch(release: Any, into: Path) -> Path:
        if len(seen) < 2:
            train(opened, len(seen))
            publish(publisher, opened)
        seen.append(release.number)
        return real(release, into)

    monkeypatch.setattr(subscriber.destination, "fetch", fetch)
    served = subscriber.catch_up(None)
    assert seen == [1, 2, 3]
    assert publisher.served is not None
    assert content(served.export) == content(publisher.served)
    publisher.close()


def test_a_damaged_index_is_named(tmp_path: Path) -> None:
    publisher = Publisher(tmp_path, formats=())
    publish(publisher, small_model())
    path = tmp_path / "releases.json"
    whole = path.read_text()
    for damaged, message in (
        (whole[:-20], "damaged"),
        (whole.replace('"number": 1', '"number": 2'), "its checksum is not that"),
        (whole.replace('"version": 1', '"version": 9'), "newer version"),
    ):
        path.write_text(damaged)
        with pytest.raises(PublishError, match=rf"releases\.json: .*{message}"):
            Subscriber(tmp_path).newer(None)
    publisher.close()


def test_a_name_that_cannot_be_opened_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, message in {
        "redis://me:secret@localhost:6379/0": r"redis://localhost:6379/0: must be redis://HOST:PORT/DATABASE/PREFIX",
        "nosuch://here/there": r"nosuch://here/there: .*nosuch",
    }.items():
        with pytest.raises(PublishError, match=message):
            open_destination(name)
    with pytest.raises(PublishError, match=r"redis://localhost:1/0/x: releases.json: "):
        open_destination("redis://me:secret@localhost:1/0/x").releases()
