"""All destinations alike: complete releases or none, one publisher, named damage, and nothing left behind."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.fs as fs
import pytest

from object_store import BUCKET, ObjectStore, object_store
from publishing_cases import content, publish, small_model
from redis_server import RedisServer
from serving_cases import train
from sparsegroup.errors import UserError
from sparsegroup.publishing import Destination, Publisher, PublishError, Release, Served, Subscriber, open_destination
from sparsegroup.serving import TrainedModel

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectStore]:
    with object_store() as store:
        yield store


@pytest.fixture(scope="module")
def redis_uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    yield server.url
    server.end()


@pytest.fixture(params=["folder", f"s3://{BUCKET}", "redis"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty destination of each kind."""
    begins = {"folder": str(tmp_path)}.get(request.param, request.param)
    if begins == "redis":
        begins = request.getfixturevalue("redis_uri") + "/0"
    elif begins.startswith("s3"):
        for variable, value in request.getfixturevalue("server").environment.items():
            monkeypatch.setenv(variable, value)
    return f"{begins}/models/{next(_NUMBERS)}"


def stored(place: str) -> set[str]:
    """Names of all that a destination holds, each file as `release/name`."""
    there: Any = open_destination(place)
    if place.startswith("redis"):
        prefix = there._prefix + ":"
        keys, listed = (
            {key.decode().removeprefix(prefix) for key in found}
            for found in (there._client.keys(prefix + "*"), there._client.smembers(prefix + "files"))
        )
        assert keys - {"releases.json", "files", "publisher"} == listed
        return {"releases.json"} | {name.replace(":", "/") for name in listed}
    if "://" not in place:
        return {str(path.relative_to(place)) for path in Path(place).rglob("*") if path.is_file()}
    found = there._filesystem.get_file_info(fs.FileSelector(there._root, recursive=True))
    return {info.path.removeprefix(there._root + "/") for info in found if info.is_file} - {"publisher"}


def expected_files(destination: Destination) -> set[str]:
    releases = destination.releases()
    return {"releases.json"} | {f"{release.folder}/{name}" for release in releases for name in release.files}


def flip(place: str, release: Release, name: str, scratch: Path) -> None:
    """Change one byte of a stored file."""
    there, copy = open_destination(place), scratch / name
    there._get(release, name, copy)
    data = copy.read_bytes()
    copy.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    if "://" in place:
        there._put(scratch, release)
        copy.unlink()
    else:
        copy.rename(Path(place) / release.folder / name)


@pytest.mark.parametrize("place", ["folder", f"s3://{BUCKET}", "memory:/", "redis"], indirect=True)
def test_releases_go_there_and_come_back(place: str, tmp_path: Path) -> None:
    opened = small_model(dims={"user": 2})
    assert open_destination(place).releases() == ()
    publisher = Publisher(place, formats=(), keep=1, compact_after=0.5)
    cached, plain = Subscriber(place, tmp_path / "cache"), Subscriber(place)
    have: Served | None = None
    for seed in range(6):
        if seed == 3:
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
        (cache,) = (tmp_path / "cache").iterdir()
        assert {path.name for path in cache.iterdir()} <= {*releases, "releases.json"}
    publisher.close()


def test_two_publishers_do_not_mix(place: str) -> None:
    first = Publisher(place, formats=())
    publish(first, small_model(seed=1))
    if "://" not in place:  # a folder has a lock
        with pytest.raises(PublishError, match="another process publishes there"):
            Publisher(place, formats=())
        return
    second = Publisher(place, formats=())
    before = stored(place)
    for _ in range(2):
        with pytest.raises(PublishError, match="another process publishes there"):
            publish(first, small_model(seed=2))
        assert stored(place) == before
    publish(second, small_model(seed=3))
    assert len(second.destination.releases()) == 2


@pytest.mark.parametrize(("place", "publishes"), [("memory:/", False), ("redis", True)], indirect=["place"])
def test_a_second_publisher_at_any_moment_leaves_what_can_be_read(place: str, publishes: bool) -> None:
    """Start the second publisher between any two steps of the first. The first publication fails or is complete."""
    models = [small_model(seed=seed) for seed in range(4)]
    for at in itertools.count():
        here = f"{place}/{at}"
        first = Publisher(here, formats=(), compact_after=0)
        publish(first, models[0])
        second = interrupted(first, at, here, models[1 if publishes else 0])
        with suppress(PublishError):
            publish(first, models[2])
        if second.publisher is None:  # the publication has fewer steps
            break
        assert all(Subscriber(here).catch_up(None, one).release == one for one in first.destination.releases())
        with pytest.raises(PublishError, match="another process publishes there"):
            publish(first, models[3])
        with suppress(PublishError):  # the first publication may have been complete after all
            publish(second.publisher, models[3])
        publish(second.publisher, models[1])
        publish(second.publisher, models[3])
        assert second.publisher.served is not None
        assert content(Subscriber(here).catch_up(None).export) == content(second.publisher.served)
        assert stored(here) == expected_files(second.publisher.destination)
    assert at >= len(STEPS)


STEPS = ("_check_owner", "_read_index", "_put", "_write_index", "_remove_others")


@dataclass
class Second:
    publisher: Publisher | None = None


def interrupted(first: Publisher, at: int, place: str, model: TrainedModel) -> Second:
    """Let a second publisher publish a model before the `at`-th step of the first one."""
    second, calls = Second(), itertools.count()

    def step(real: Callable[..., Any], *arguments: Any) -> Any:
        if next(calls) == at:
            second.publisher = Publisher(place, formats=(), compact_after=0)
            publish(second.publisher, model)  # nothing if the model is the one that is published
        return real(*arguments)

    for name in STEPS:
        setattr(first.destination, name, partial(step, getattr(first.destination, name)))
    return second


def test_a_publication_that_fails_is_made_up_for(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = small_model()
    publisher = Publisher(place, formats=(), compact_after=0.9, keep=1)
    publish(publisher, opened)
    have = Subscriber(place).catch_up(None)
    calls = [("_put", 0), ("_put", 1), ("_write_index", 0), ("_remove_others", 0)]
    for seed, ((step, at), how) in enumerate(itertools.product(calls, ("before", "after"))):
        train(opened, seed)
        draft = publisher.draft(opened)
        with monkeypatch.context() as patch:
            failing(patch, publisher.destination, step, how, at)
            with suppress(OSError):
                publisher.publish(draft, samples=seed)
        have = Subscriber(place).catch_up(have)  # one of the releases, complete
        publisher.publish(draft, samples=seed)
        have = Subscriber(place).catch_up(have)
        assert publisher.served is not None
        assert content(have.export) == content(publisher.served), (step, how, at)
    train(opened, 99)
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


def test_a_flipped_bit_is_noticed_and_named(place: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    opened, scratch = small_model(), tmp_path_factory.mktemp("scratch")
    publisher = Publisher(place, formats=())
    publish(publisher, opened)
    have = Subscriber(place).catch_up(None)
    train(opened, 1)
    publish(publisher, opened)
    export, delta = publisher.destination.releases()
    for release, name in ((export, "embeddings.safetensors"), *((delta, name) for name in delta.files)):
        flip(place, release, name, scratch)
        with pytest.raises(UserError, match=rf"release 2 cannot be read: .*{name}: damaged"):
            Subscriber(place).catch_up(None)
        flip(place, release, name, scratch)
    flip(place, export, "embeddings.safetensors", scratch)
    assert publisher.served is not None
    assert content(Subscriber(place).catch_up(have).export) == content(publisher.served)  # by the delta
    flip(place, delta, "network.safetensors", scratch)
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
