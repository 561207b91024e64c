"""Folders of a made-up format: whole or not there, read by later versions, followed along a chain."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from pathlib import Path

import pytest

from over import over
from sparsegroup.artifact.folder import atomic_folder, remove_folder, remove_leftovers, write_atomically
from sparsegroup.artifact.manifest import (
    FolderFormat,
    Manifest,
    Parent,
    Plain,
    chain_of,
    facts_of_files,
    verified_chain,
)


class JarError(ValueError):
    pass


@dataclass(frozen=True, kw_only=True)
class Jar(Manifest):
    label: str
    grams: int = 0


def in_grams(content: Plain) -> Plain:
    kilograms = content.pop("kilograms")
    return {**content, "grams": round(kilograms * 1000)}


def relabelled(content: Plain) -> Plain:
    label = content.pop("name")
    return {**content, "label": label}


JARS = FolderFormat("jar", "jar.json", 4, Jar, JarError, "no jar", migrations={2: relabelled, 3: in_grams})


def write_jar(folder: Path, parent: Parent | None = None, **content: object) -> Jar:
    with atomic_folder(folder) as place:
        (place / "jam").write_text("sweet")
        return JARS.write(place, Jar(parent=parent, files=facts_of_files(place), **{"label": "plum", **content}))  # type: ignore[arg-type]


@over("version", [2, 3])
def test_an_earlier_version_is_migrated_step_by_step(version: int, tmp_path: Path) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Earlier(Manifest):
        def as_plain(self) -> Plain:
            return {"name" if version == 2 else "label": "plum", "kilograms": 0.25}

    earlier: FolderFormat[Earlier] = FolderFormat("jar", "jar.json", version, Earlier, JarError, "no jar")
    (tmp_path / "jar").mkdir(exist_ok=True)
    earlier.write(tmp_path / "jar", Earlier())
    jar = JARS.read(tmp_path / "jar")
    assert (jar.label, jar.grams) == ("plum", 250)


def test_what_is_read_is_what_was_written_and_other_formats_are_named(tmp_path: Path) -> None:
    written = write_jar(tmp_path / "jar", label="Pflaume – 李", grams=7)
    assert JARS.read(tmp_path / "jar") == written
    assert written.bytes == 5

    @dataclass(frozen=True, kw_only=True)
    class WithLid(Jar):
        lid: str = "red"  # a new field with a default needs no version

    with_lid = WithLid(label=written.label, grams=7, id=written.id, files=written.files)
    assert replace(JARS, manifest=WithLid).read(tmp_path / "jar") == with_lid
    with pytest.raises(JarError, match=r"jar.json: of a folder of the format 'jar', 'can' is expected"):
        replace(JARS, name="can").read(tmp_path / "jar")
    path = tmp_path / "jar" / "jar.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 5}))
    with pytest.raises(JarError, match=r"jar.json: written by a newer version \(sparsegroup .*version 4: update"):
        JARS.read(tmp_path / "jar")


def half_a_jar(folder: Path) -> None:
    with atomic_folder(folder, replace=True) as place:
        (place / "jam").write_text("half")
        raise OSError("full")


def test_a_folder_that_fails_leaves_nothing_or_the_old_one(tmp_path: Path) -> None:
    for names in ([], ["jar"]):
        with pytest.raises(OSError, match="full"):
            half_a_jar(tmp_path / "jar")
        assert [path.name for path in tmp_path.iterdir()] == names
        if not names:
            write_jar(tmp_path / "jar")
    assert (tmp_path / "jar" / "jam").read_text() == "sweet"
    with atomic_folder(tmp_path / "jar", replace=True) as place:
        (place / "jam").write_text("new")
    assert [path.name for path in (tmp_path / "jar").iterdir()] == ["jam"]
    (tmp_path / ".unfinished-x").mkdir()
    remove_leftovers(tmp_path)
    remove_folder(tmp_path / "jar")
    assert not list(tmp_path.iterdir())


def contents_of(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


@over("order", list(permutations(range(3))))
def test_of_writers_of_one_folder_at_the_same_time_each_leaves_a_whole_one(
    order: tuple[int, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "new" / "jar"
    with ExitStack() as killed:
        entered = [killed.enter_context(ExitStack()) for _ in order]
        places = [writer.enter_context(atomic_folder(folder, replace=True)) for writer in entered]
        assert len(set(places)) == len(order)
        for number, place in enumerate(places):
            (place / f"file-{number}").write_text(str(number))
        for number in order:
            remove_leftovers(folder.parent)  # those of living writers are none
            entered[number].close()
            assert contents_of(folder) == {f"file-{number}": str(number)}
    assert [path.name for path in folder.parent.iterdir()] == ["jar"]


def test_writers_of_one_file_at_the_same_time_each_leave_a_whole_one(tmp_path: Path) -> None:
    path, seen = tmp_path / "predictions.csv", set[Path]()

    def write(depth: int, temporary: Path) -> None:
        seen.add(temporary)
        with temporary.open("w") as file:
            file.write("a" * depth)
            file.flush()
            if depth < 3:
                write_atomically(path, partial(write, depth + 1))
                assert path.read_text() == "a" * (depth + 1) + "b" * (depth + 1)
            file.write("b" * depth)

    write_atomically(path, partial(write, 1))
    assert len(seen) == 3
    assert contents_of(tmp_path) == {"predictions.csv": "ab"}


def test_what_a_killed_process_has_left_is_used_again(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        temporaries.append(path)
        with path.open("a") as file:
            file.write("new")

    temporaries: list[Path] = []
    with atomic_folder(tmp_path / "jar") as place:
        temporaries.append(place)
    write_atomically(tmp_path / "file", write)
    folder, file = temporaries
    folder.mkdir()
    (folder / "half").write_text("written")
    file.write_text("half")
    write_jar(tmp_path / "jar")
    write_atomically(tmp_path / "file", write)
    assert contents_of(tmp_path / "jar").keys() == {"jam", "jar.json"}
    assert (tmp_path / "file").read_text() == "new"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "jar"]


def another(folder: Path) -> None:
    remove_folder(folder / "1")
    write_jar(folder / "1", grams=9)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: remove_folder(folder / "1"), r"2: builds on 1, which cannot be read: .*no jar"),
        (another, r"2: builds on jar .*, but in .*1 there is"),
        (lambda folder: (folder / "1" / "jam").write_text("sweat"), r"1/jam: damaged"),
    ],
)
def test_a_chain_is_followed_and_its_damage_named(
    damage: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    first = write_jar(tmp_path / "1")
    second = write_jar(tmp_path / "2", Parent(first.id, "../1"), grams=2)
    write_jar(tmp_path / "3", Parent(second.id, "../2"), grams=3)
    assert [path.name for path, _ in chain_of(tmp_path / "3", JARS)] == ["1", "2", "3"]
    damage(tmp_path)
    with pytest.raises(JarError, match=message):
        verified_chain(tmp_path / "3", JARS)
