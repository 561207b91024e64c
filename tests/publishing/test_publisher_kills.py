"""A publisher that is killed, or whose disk is full, at any moment: servers read the last release or the new one."""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from full_disk import FullDisk
from kill_driver import Faults
from publishing_cases import content, publish, small_model
from serving_cases import train
from sparsegroup.publishing import Publisher, Subscriber, open_destination


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an export and a delta; the next one is followed by an export."""
    folder = tmp_path_factory.mktemp("begun") / "there"
    opened = small_model()
    with Publisher(folder, formats=(), compact_after=0.9, keep=1) as publisher:
        for seed in range(2):
            publish(publisher, opened)
            train(opened, seed)
        assert [release.kind for release in publisher.destination.releases()] == ["export", "delta"]
    return folder


def next_release(folder: Path) -> list[Any]:
    """Publish once more; the contents of the releases that there may be now."""
    opened = small_model()
    with Publisher(folder, formats=(), compact_after=0.9, keep=1) as publisher:
        before = content(publisher.served) if publisher.served is not None else None
        for seed in range(3):
            train(opened, seed)
        publish(publisher, opened)
        assert publisher.served is not None
        return [before, content(publisher.served)]


def killed(folder: Path, at: int | None, how: str) -> list[str]:
    """Publish in a process that dies at an operation on the disk; the operations, if it has not died."""
    reading, writing = os.pipe()
    process = os.fork()
    if not process:
        try:
            os.chdir(folder)
            faults = Faults(at, how)
            faults.install()
            next_release(folder)
            faults.at = None
            os.write(writing, json.dumps(faults.seen).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        seen = pipe.read()
    os.waitpid(process, 0)
    names: list[str] = json.loads(seen or "[]")
    return names


def test_a_publisher_that_is_killed_leaves_what_can_be_read(begun: Path, tmp_path: Path) -> None:
    place = tmp_path / "undisturbed"
    shutil.copytree(begun, place)
    operations = killed(place, None, "before")
    assert len(operations) > 20
    shutil.rmtree(place)
    shutil.copytree(begun, place)
    possible = next_release(place)
    kinds = []
    for at, name in enumerate(operations):
        last = operations[at - 1].split()[0] if at else ""
        if last == "sync" or (name.startswith("open ") and not last.startswith("os.re")):
            continue  # the disk is as it was
        if name.startswith("os.remove") and last == "os.remove":
            continue  # some of a folder's files are removed, as before the first
        shutil.rmtree(place)
        shutil.copytree(begun, place)
        killed(place, at, "middle" if name.endswith("…") else "before")
        kinds.append(possible.index(content(Subscriber(place).catch_up(None).export)))
        assert next_release(place)[1] == possible[1]
        assert content(Subscriber(place).catch_up(None).export) == possible[1]
        found = {path.name for path in place.iterdir()}
        assert found == {release.folder for release in open_destination(place).releases()} | {"releases.json"}
    assert kinds == sorted(kinds)
    assert set(kinds) == {0, 1}


def test_a_full_disk_leaves_the_last_release(begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, reference = tmp_path / "there", tmp_path / "reference"
    possible = next_release(shutil.copytree(begun, reference))
    disk = FullDisk(monkeypatch)
    for allowed in (0, 3, 6, 9, 12, 18, 24, 30, 36):
        shutil.copytree(begun, place)
        disk.left = allowed
        with suppress(OSError):
            next_release(place)
        disk.left = float("inf")
        assert content(Subscriber(place).catch_up(None).export) in possible
        assert next_release(place)[1] == possible[1]
        assert not [path for path in place.iterdir() if path.name.startswith(".")]
        shutil.rmtree(place)
