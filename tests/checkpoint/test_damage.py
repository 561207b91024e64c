"""Whatever happens to the files of a checkpoint, digests made right again or not: it loads, or an error names it."""

import json
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint_cases import Training, bits, fresh_facts, unchanged
from checkpoint_damage import (
    MANIFEST,
    STATE,
    TABLE,
    forge,
    forge_tensors,
    last,
    refuse_pickles,
    trained_otherwise,
    write_chain,
)
from forgery import forged_documents, write_sealed
from over import over
from sparsegroup.checkpoint import CheckpointError, Checkpoints
from sparsegroup.checkpoint.manifest import CHECKPOINT


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chain(tmp_path_factory.mktemp("chain"))


@pytest.fixture(autouse=True)
def no_pickle(chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_pickles(monkeypatch, chain)


@pytest.fixture
def folder(chain: Path, tmp_path: Path) -> Path:
    return shutil.copytree(chain, tmp_path / "checkpoints")


@pytest.fixture
def victim() -> Training:
    return trained_otherwise()


@contextmanager
def put_back(checkpoint: Path) -> Iterator[None]:
    """The files of a checkpoint are afterwards what they were before."""
    files = {path: path.read_bytes() for path in checkpoint.iterdir()}
    yield
    for path, content in files.items():
        path.write_bytes(content)


def all_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def is_refused(folder: Path, training: Training, damaged: Path) -> None:
    """The last checkpoint is not loaded, and the error says which file is wrong; the last good one still is found."""
    with unchanged(training), pytest.raises(CheckpointError) as refused:
        training.load(last(folder))
    assert damaged.name in str(refused.value)
    assert damaged.parent.name in str(refused.value)
    checkpoints = Checkpoints(folder)
    good = checkpoints.latest()
    expected = [path for path in checkpoints.paths() if path.name < damaged.parent.name]
    assert good == (expected[-1] if expected else None)
    assert len(checkpoints.skipped) == len(checkpoints.paths()) - len(expected)


def test_truncated_files(folder: Path, victim: Training) -> None:
    draw = random.Random(0)
    for path in all_files(folder):
        content = path.read_bytes()
        for length in {0, 1, 7, 8, 9, len(content) // 2, len(content) - 1, *draw.sample(range(len(content)), 4)}:
            if content[length:].isspace():  # after the JSON
                continue
            path.write_bytes(content[:length])
            is_refused(folder, victim, path)
        path.write_bytes(content)


def test_files_with_something_more(folder: Path, victim: Training) -> None:
    for path in all_files(folder):
        content = path.read_bytes()
        for more in (b"\0", b"x", b"\n}", content):
            path.write_bytes(content + more)
            is_refused(folder, victim, path)
        path.write_bytes(content)


def flip_bits(folder: Path, training: Training, times: int, seed: int) -> None:
    draw = random.Random(seed)
    expected = fresh_facts(last(folder))
    for number in range(times):
        path = all_files(folder)[number % len(all_files(folder))]
        content = bytearray(path.read_bytes())
        whole = bytes(content)
        for _ in range(draw.choice([1, 1, 1, 2, 20])):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        try:
            found = fresh_facts(last(folder))
        except CheckpointError:
            is_refused(folder, training, path)
        else:  # 1e-08 and 1E-08 are the same in JSON
            assert path.name == MANIFEST
            assert found == expected
        path.write_bytes(whole)


def test_flipped_bits(folder: Path, victim: Training) -> None:
    flip_bits(folder, victim, 80, 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_thousands_of_flipped_bits(folder: Path, victim: Training, seed: int) -> None:
    flip_bits(folder, victim, 2_000, seed)


def test_missing_and_exchanged_files(folder: Path, victim: Training, tmp_path: Path) -> None:
    for path in all_files(folder):
        content = path.read_bytes()
        path.unlink()
        with unchanged(victim), pytest.raises(CheckpointError, match=path.parent.name):
            victim.load(last(folder))
        path.mkdir()
        with unchanged(victim), pytest.raises(CheckpointError, match=path.parent.name):
            victim.load(last(folder))
        path.rmdir()
        path.symlink_to(tmp_path / "nowhere")
        with unchanged(victim), pytest.raises(CheckpointError, match=path.parent.name):
            victim.load(last(folder))
        path.unlink()
        path.write_bytes(pickle.dumps({"weight": [1.0]}))
        is_refused(folder, victim, path)
        for other in all_files(folder):
            if other != path and other.read_bytes() != content and other.name != MANIFEST:
                path.write_bytes(other.read_bytes())
                is_refused(folder, victim, path)
        path.write_bytes(content)
    victim.load(last(folder))


def test_checkpoints_in_the_place_of_others(folder: Path, victim: Training) -> None:
    one, two, three = Checkpoints(folder).paths()
    for taken, put in [(one, two), (one, three), (two, one), (two, three)]:
        kept = taken.rename(folder / "kept")
        shutil.copytree(put, taken)
        with unchanged(victim), pytest.raises(CheckpointError, match=three.name):
            victim.load(three)
        shutil.rmtree(taken)
        kept.rename(taken)
    shutil.rmtree(one)
    with unchanged(victim), pytest.raises(CheckpointError, match=rf"{three.name}: .*{one.name}.*is missing"):
        victim.load(three)


def test_another_format(folder: Path, victim: Training) -> None:
    path = last(folder) / MANIFEST
    for other in (0, 1, 2, "export", None, [1], 1.5):
        forge(last(folder), lambda content, other=other: content.update(format=other))
        is_refused(folder, victim, path)


def test_another_version(folder: Path, victim: Training) -> None:
    path = last(folder) / MANIFEST
    for newer in (CHECKPOINT.version + 1, 99):
        forge(last(folder), lambda content, newer=newer: content.update(version=newer))
        written = rf"{MANIFEST}: written by a newer version .* in version {newer} "
        message = rf"{written}.*up to version {CHECKPOINT.version}: update sparsegroup"
        with unchanged(victim), pytest.raises(CheckpointError, match=message):
            victim.load(last(folder))
        is_refused(folder, victim, path)
    for impossible in (0, -1, "2", None, [2], 2.0, True):
        forge(last(folder), lambda content, impossible=impossible: content.update(version=impossible))
        is_refused(folder, victim, path)


def of_table(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["tables"][TABLE][1].update(changes)


def rename_file(content: dict[str, Any], new: str) -> None:
    content["files"][new] = content["files"].pop(TABLE)
    content["tables"][new] = content["tables"].pop(TABLE)


FORGED: dict[str, Callable[[dict[str, Any]], object]] = {
    "step": lambda content: content.update(step="x"),
    "negative step": lambda content: content.update(step=-1),
    "versions": lambda content: content.update(versions=[1]),
    "version": lambda content: content["versions"].update(torch=2),
    "parent": lambda content: content.update(parent=3),
    "half a parent": lambda content: content.update(parent={"path": "../step-000000000002"}),
    "parent outside": lambda content: content.update(parent={"path": "../../x", "id": "0" * 16}),
    "absolute parent": lambda content: content.update(parent={"path": "/etc", "id": "0" * 16}),
    "parent of no name": lambda content: content.update(parent={"path": "", "id": "0" * 16}),
    "files": lambda content: content.update(files=[]),
    "no files": lambda content: content.update(files={}),
    "a file outside": lambda content: rename_file(content, "../../x"),
    "an absolute file": lambda content: rename_file(content, "/dev/zero"),
    "a file with a NUL": lambda content: rename_file(content, "a\0b"),
    "a file of no name": lambda content: rename_file(content, ""),
    "the folder as a file": lambda content: rename_file(content, "."),
    "tables": lambda content: content.update(tables=7),
    "no tables": lambda content: content.update(tables={}),
    "a table without a file": lambda content: content["files"].pop(TABLE),
    "a size": lambda content: content["files"][TABLE].update(bytes="many"),
    "more facts": lambda content: content["files"][TABLE].update(more=1),
    "another table": lambda content: content["tables"][TABLE].__setitem__(0, "others"),
    "a table twice": lambda content: content["tables"][TABLE].__setitem__(0, "deep.of/items.0"),
    "table of no name": lambda content: content["tables"][TABLE].__setitem__(0, None),
    "dim": of_table(dim=4),
    "dtype": of_table(dtype="float64"),
    "no dtype": of_table(dtype=None),
    "table's seed": of_table(seed=1),
    "no parts": of_table(parts={}),
    "other parts": of_table(parts={"a": 0.0, "b": 0.0, "c": 0.0, "d": 0.0, "e": 0.0}),
    "parts of words": of_table(parts={"u": "x", "exp_avg": 0.0, "exp_avg_sq": 0.0}),
    "parts in a list": of_table(parts=["u"]),
    "infinite parts": of_table(parts={"u": float("inf"), "exp_avg": 0.0, "exp_avg_sq": 0.0}),
    "many rows": of_table(rows=1 << 60),
    "few rows": of_table(rows=0),
    "negative rows": of_table(rows=-1),
    "half a row": of_table(rows=1.5),
    "many written": of_table(written=1 << 60),
    "as many written as memory might hold": of_table(written=1 << 31),
    "no buckets": of_table(buckets=0),
    "seen": of_table(seen=-1),
    "seen less than rows": of_table(seen=1),
    "skipped": of_table(skipped_rows="x"),
    "state": lambda content: content.update(state=None),
    "no model": lambda content: content["state"].pop("model"),
    "model": lambda content: content["state"].update(model=[]),
    "no optimizers": lambda content: content["state"].update(optimizers=[]),
    "optimizers": lambda content: content["state"].update(optimizers=3),
    "an optimizer": lambda content: content["state"]["optimizers"].__setitem__(0, 3),
    "no kind": lambda content: content["state"]["optimizers"][0].pop("kind"),
    "no groups": lambda content: content["state"]["optimizers"][0].pop("param_groups"),
    "groups": lambda content: content["state"]["optimizers"][0].update(param_groups=[{}]),
    "a group's lr": lambda content: content["state"]["optimizers"][0]["param_groups"][0].update(lr="x"),
    "a group's params": lambda content: content["state"]["optimizers"][0]["param_groups"][0].update(params=[1]),
    "a group's eps": lambda content: content["state"]["optimizers"][0]["param_groups"][0].update(eps=1 << 70),
    "a group's l2": lambda content: content["state"]["optimizers"][0]["param_groups"][0].update(l2=1 << 63),
    "a group's groups": lambda content: content["state"]["optimizers"][0]["param_groups"][0].update(groups=-1),
    "a step count": lambda content: content["state"]["optimizers"][0]["state"]["__items__"][0][1].update(step=1e308),
    "optimizer's state": lambda content: content["state"]["optimizers"][0].update(state=[]),
    "empty entries": lambda content: content["state"]["optimizers"][0].update(
        state={"__items__": [[number, {}] for number in range(6)]}
    ),
    "no rng": lambda content: content["state"]["ranks"][0].pop("rng"),
    "no ranks": lambda content: content["state"].update(ranks=[]),
    "numpy's rng": lambda content: content["state"]["ranks"][0]["rng"].update(numpy=[1]),
    "python's rng": lambda content: content["state"]["ranks"][0]["rng"].update(python=None),
    "torch's rng": lambda content: content["state"]["ranks"][0]["rng"].update(torch=3),
    "a missing tensor": lambda content: content["state"]["ranks"][0]["rng"].update(torch={"__tensor__": "x"}),
    "a tensor of no name": lambda content: content["state"]["ranks"][0]["rng"].update(torch={"__tensor__": []}),
    "no number": lambda content: content["state"].update(scheduler={"__number__": "x"}),
    "no pairs": lambda content: content["state"].update(extra={"__items__": [[1]]}),
    "no tuple": lambda content: content["state"].update(extra={"__tuple__": 3}),
    "a key that is none": lambda content: content["state"].update(extra={"__items__": [[{}, 1]]}),
}


@over("name", FORGED)
def test_a_forged_manifest(folder: Path, victim: Training, name: str) -> None:
    with put_back(last(folder)):
        forge(last(folder), FORGED[name])
        with unchanged(victim), pytest.raises(CheckpointError, match=last(folder).name):
            victim.load(last(folder))


@over("rows", [0, 1, 39])
def test_fewer_rows_than_the_file_has(folder: Path, victim: Training, rows: int) -> None:
    """They are read into memory for as many as the manifest says."""
    first = Checkpoints(folder).paths()[0]
    forge(first, of_table(rows=rows))
    with unchanged(victim), pytest.raises(CheckpointError, match=rf"{first.name}/{TABLE}: 40 rows or more"):
        victim.load(first)


def test_an_index_out_of_proportion_is_not_made(folder: Path, victim: Training) -> None:
    forge(last(folder), of_table(buckets=1 << 60))
    victim.load(last(folder))
    assert victim.tables[0].memory().total < 1 << 24


FORGED_TENSORS: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "no keys": (TABLE, lambda tensors: tensors.pop("keys")),
    "no rows": (TABLE, lambda tensors: tensors.pop("rows")),
    "no dropped": (TABLE, lambda tensors: tensors.pop("dropped")),
    "keys of another dtype": (TABLE, lambda t: t.update(keys=t["keys"].astype(np.float64))),
    "keys of another shape": (TABLE, lambda t: t.update(keys=t["keys"][:, None])),
    "keys without a shape": (TABLE, lambda t: t.update(keys=np.array(1))),
    "fewer keys": (TABLE, lambda t: t.update(keys=t["keys"][:-1])),
    "a key twice": (TABLE, lambda t: t.update(keys=np.where(np.arange(len(t["keys"])) == 1, t["keys"][0], t["keys"]))),
    "fewer rows": (TABLE, lambda t: t.update(rows=t["rows"][:-1])),
    "rows of another dtype": (TABLE, lambda t: t.update(rows=t["rows"].astype(np.float64))),
    "rows of another shape": (TABLE, lambda t: t.update(rows=t["rows"][:, :2])),
    "flat rows": (TABLE, lambda t: t.update(rows=t["rows"].reshape(-1))),
    "dropped of another dtype": (TABLE, lambda t: t.update(dropped=t["dropped"].astype(np.float32))),
    "dropped of another shape": (TABLE, lambda t: t.update(dropped=t["dropped"].reshape(1, -1))),
    "rows are dropped": (TABLE, lambda t: t.update(dropped=np.arange(-40, 40))),
    "no tensors": (STATE, lambda tensors: tensors.clear()),
    "a weight of another shape": (STATE, lambda t: t.update({"state.model.network.0.weight": np.zeros((1, 1))})),
    "a weight of another dtype": (STATE, lambda t: t.update({"state.model.network.0.weight": np.zeros((4, 9))})),
    "u of another shape": (STATE, lambda t: t.update({"state.optimizers.0.state.2.exp_avg": np.zeros(2)})),
    "random numbers": (STATE, lambda t: t.update({"state.ranks.0.rng.torch": np.zeros(3, np.uint8)})),
}


@over("name", FORGED_TENSORS)
def test_forged_tensors(folder: Path, victim: Training, name: str) -> None:
    file, change = FORGED_TENSORS[name]
    with put_back(last(folder)):
        forge_tensors(last(folder), file, change)
        with unchanged(victim), pytest.raises(CheckpointError, match=last(folder).name):
            victim.load(last(folder))


def test_changes_that_change_one_another(folder: Path, victim: Training) -> None:
    for path, parent in zip(Checkpoints(folder).paths(), (3, 1, 2), strict=True):
        link = {"path": f"../step-{parent:012d}", "id": "0" * 16}
        forge(path, lambda content, link=link: content.update(id="0" * 16, parent=link))
    for path in Checkpoints(folder).paths():
        with unchanged(victim), pytest.raises(CheckpointError, match=path.name):
            victim.load(path)


def forge_at_random(folder: Path, training: Training, most: int | None) -> int:
    """Forge the last manifest in one place at a time; what loads all the same has no more than other values."""
    path = last(folder) / MANIFEST
    whole = path.read_bytes()
    forgeries = list(forged_documents(json.loads(whole)))
    for what, make in forgeries if most is None else random.Random(0).sample(forgeries, most):
        write_sealed(path, make())
        before = bits(training.facts())
        error = None
        try:
            training.load(last(folder))
        except Exception as raised:
            error = raised
        if error is not None:
            assert isinstance(error, CheckpointError), f"{what}: {error!r}"
            assert last(folder).name in str(error)
            assert bits(training.facts()) == before, f"{what}: {error!r}"
        path.write_bytes(whole)
    return len(forgeries)


def test_odd_values_at_random_places(folder: Path, victim: Training) -> None:
    assert forge_at_random(folder, victim, 80) > 2_000


@pytest.mark.slow
def test_odd_values_everywhere(folder: Path, victim: Training) -> None:
    forge_at_random(folder, victim, None)
