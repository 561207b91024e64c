"""Whatever happens to the files of a checkpoint: it loads, or an error names the file and nothing has changed.

Where a disk is full, what there is stays, and nothing of what was begun counts.
"""

import errno
import pickle
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from checkpoint_cases import (
    MANIFEST,
    STATE,
    TABLE,
    Training,
    bits,
    clicks,
    forge,
    fresh_facts,
    last,
    unchanged,
    write_chain,
)
from forgery import forged_arrays, seal_file, with_array
from full_disk import FullDisk
from over import over
from sparsegroup.checkpoint import CheckpointError, Checkpoints
from sparsegroup.checkpoint.manifest import CHECKPOINT


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_chain(tmp_path_factory.mktemp("chain"))


@pytest.fixture(autouse=True)
def no_pickle(chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading a pickle is a failure."""
    clicks().load(last(chain))  # Numba caches compiled kernels as pickles: all are compiled here
    clicks().tables[0].table.directory.index.with_buckets(2_000)

    def refuse(*arguments: object, **keywords: object) -> None:
        raise AssertionError("a pickle is read")

    for module, name in [(pickle, "load"), (pickle, "loads"), (pickle, "Unpickler"), (torch, "load"), (np, "load")]:
        monkeypatch.setattr(module, name, refuse)


@pytest.fixture
def folder(chain: Path, tmp_path: Path) -> Path:
    return shutil.copytree(chain, tmp_path / "checkpoints")


@pytest.fixture
def victim() -> Training:
    """A training that the checkpoints could be loaded into."""
    training = clicks()
    training.draw.manual_seed(1)
    for _ in range(3):
        training.step()
    return training


def all_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def is_refused(folder: Path, training: Training, damaged: Path) -> None:
    """The last checkpoint is not loaded, the error names the wrong file, and `latest` is the last good checkpoint."""
    with unchanged(training), pytest.raises(CheckpointError) as refused:
        training.load(last(folder))
    assert damaged.name in str(refused.value)
    assert damaged.parent.name in str(refused.value)
    checkpoints = Checkpoints(folder)
    expected = [path for path in checkpoints.paths() if path.name < damaged.parent.name]
    assert checkpoints.latest() == (expected[-1] if expected else None)
    assert len(checkpoints.skipped) == len(checkpoints.paths()) - len(expected)


def damages(path: Path, files: list[Path], draw: random.Random) -> Iterator[bytes]:
    """Other contents of a file: cut, with more at the end, a pickle, those of other files."""
    content = path.read_bytes()
    for length in {0, 7, 8, 9, len(content) - 1, *draw.sample(range(len(content)), 2)}:
        if not content[length:].isspace():  # after the JSON
            yield content[:length]
    yield from (content + more for more in (b"\0", b"\n}", content))
    yield pickle.dumps({"weight": [1.0]})
    yield next(other for other in map(Path.read_bytes, draw.sample(files, len(files))) if other != content)


def test_damaged_files_are_refused(folder: Path, victim: Training, tmp_path: Path) -> None:
    draw, files = random.Random(0), all_files(folder)
    for path in files:
        content = path.read_bytes()
        for damaged in list(damages(path, files, draw)):
            path.write_bytes(damaged)
            is_refused(folder, victim, path)
        path.unlink()
        for make, remove in (
            (lambda path: None, lambda path: None),
            (Path.mkdir, Path.rmdir),
            (lambda path: path.symlink_to(tmp_path / "nowhere"), Path.unlink),
        ):
            make(path)
            with unchanged(victim), pytest.raises(CheckpointError, match=path.parent.name):
                victim.load(last(folder))
            remove(path)
        path.write_bytes(content)
    victim.load(last(folder))


@pytest.mark.parametrize("times", [40, pytest.param(8_000, marks=pytest.mark.slow)])
def test_flipped_bits(folder: Path, victim: Training, times: int) -> None:
    draw = random.Random(times)
    expected, files = fresh_facts(last(folder)), all_files(folder)
    for number in range(times):
        path = files[number % len(files)]
        whole = path.read_bytes()
        content = bytearray(whole)
        for _ in range(draw.choice([1, 1, 1, 2, 20])):
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
        path.write_bytes(content)
        try:
            found = fresh_facts(last(folder))
        except CheckpointError:
            is_refused(folder, victim, path)
        else:  # 1e-08 and 1E-08 are the same in JSON
            assert path.name == MANIFEST
            assert found == expected
        path.write_bytes(whole)


def test_checkpoints_in_the_place_of_others(folder: Path, victim: Training) -> None:
    one, two, three = Checkpoints(folder).paths()
    for taken, put in [(one, two), (one, three), (two, one), (two, three)]:
        original = taken.rename(folder / "original")
        shutil.copytree(put, taken)
        with unchanged(victim), pytest.raises(CheckpointError, match=three.name):
            victim.load(three)
        shutil.rmtree(taken)
        original.rename(taken)
    shutil.rmtree(one)
    with unchanged(victim), pytest.raises(CheckpointError, match=rf"{three.name}: .*{one.name}.*is missing"):
        victim.load(three)


def test_another_format_or_version(folder: Path, victim: Training) -> None:
    path = last(folder) / MANIFEST
    newer = CHECKPOINT.version + 1
    for change in (
        *({"format": other} for other in (1, "export", None)),
        *({"version": other} for other in (0, "2", None, 2.0, True, newer)),
    ):
        forge(last(folder), lambda content, change=change: content.update(change))
        is_refused(folder, victim, path)
        forge(last(folder), lambda content: content.update(format="checkpoint"))
    written = rf"{MANIFEST}: written by a newer version .* in version {newer} "
    with pytest.raises(CheckpointError, match=rf"{written}.*up to version {CHECKPOINT.version}: update sparsegroup"):
        victim.load(last(folder))


def of_table(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["tables"][TABLE][1].update(changes)


def of_group(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda content: content["state"]["optimizers"][0]["param_groups"][0].update(changes)


def numpy_rng(content: dict[str, Any]) -> list[Any]:
    generator: list[Any] = content["state"]["ranks"][0]["rng"]["numpy"]["__tuple__"]
    return generator


def rename_file(content: dict[str, Any], new: str) -> None:
    content["files"][new] = content["files"].pop(TABLE)
    content["tables"][new] = content["tables"].pop(TABLE)


FORGED: dict[str, Callable[[dict[str, Any]], object]] = {
    **{
        f"the parent {path!r}": lambda content, path=path: content.update(parent={"path": path, "id": "0" * 16})
        for path in ("../../x", "/etc", "", "../.x", "../a\0b")
    },
    **{
        f"the file {name!r}": lambda content, name=name: rename_file(content, name)
        for name in ("../../x", "/dev/zero", "a\0b", "", ".")
    },
    "no state": lambda content: content["files"].pop(STATE),
    "a table without a file": lambda content: content["files"].pop(TABLE),
    "another table": lambda content: content["tables"][TABLE].__setitem__(0, "others"),
    "a table twice": lambda content: content["tables"][TABLE].__setitem__(0, "deep.of/items.0"),
    "another dtype": of_table(dtype="float64"),
    "other parts": of_table(parts={"a": 0.0, "b": 0.0, "c": 0.0}),
    "parts of words": of_table(parts={"u": "x", "exp_avg": 0.0, "exp_avg_sq": 0.0}),
    "many rows": of_table(rows=1 << 60),
    "many rows written": of_table(written=1 << 31),
    "fewer keys seen than rows": of_table(seen=1),
    "more optimizers": lambda content: content["state"]["optimizers"].append(content["state"]["optimizers"][0]),
    "a parameter that is not there": of_group(params=[1]),
    "eps beyond float32": of_group(eps=1e308),
    "a step that is no count": lambda content: content["state"]["optimizers"][0]["state"]["__items__"][0][1].update(
        step=1e308
    ),
    "a number for a weight": lambda content: content["state"]["model"].update({"network.0.weight": 3}),
    "a place beyond NumPy's words": lambda content: numpy_rng(content).__setitem__(2, 625),
    "a number that NumPy has drawn or not": lambda content: numpy_rng(content).__setitem__(3, 2),
    "weight decay": of_group(weight_decay=0.1),
    "empty entries": lambda content: content["state"]["optimizers"][0].update(
        state={"__items__": [[number, {}] for number in range(6)]}
    ),
    "no ranks": lambda content: content["state"].update(ranks=[]),
    "a missing tensor": lambda content: content["state"]["ranks"][0]["rng"].update(torch={"__tensor__": "x"}),
    "a tensor of no name": lambda content: content["state"]["ranks"][0]["rng"].update(torch={"__tensor__": []}),
    "a group without parameters": lambda content: content["state"]["optimizers"][0].update(param_groups=[{}]),
    "an unknown dtype": lambda content: content["state"].update(extra={"__dtype__": "int3"}),
    "a key that is a mapping": lambda content: content["state"].update(extra={"__items__": [[{}, 1]]}),
}
"""What no change of one value makes; the attack on the same files makes every other."""
SAID = {
    "the parent": "parent.path: a neighbour is expected, as in ../step-1, got ",
    "no state": "state.safetensors is not in checkpoint.json",
    "a table without a file": "is not among the files",
    "a table twice": "the table 'deep.of/items.0' is in the files of the ranks",
    "no ranks": "state.ranks",
    "a missing tensor": "the tensor 'x' is missing",
    "an unknown dtype": "the dtype 'int3' is unknown",
    "eps beyond float32": "eps is beyond float32",
    "a step that is no count": "step: a count is expected, got 1e+308",
    "a number for a weight": "network.0.weight is int there, float32 [4, 9] in the model",
    "a place beyond": "numpy: 624 words and a place among them are expected",
    "a number that NumPy": "numpy: a number that was drawn ahead is expected",
    "fewer keys seen": "seen: 1 keys cannot have",
    "weight decay": "weight_decay cannot be applied to rows",
}


@over("name", FORGED)
def test_a_forged_manifest(folder: Path, victim: Training, name: str) -> None:
    path = last(folder) / MANIFEST
    whole = path.read_bytes()
    forge(last(folder), FORGED[name])
    with unchanged(victim), pytest.raises(CheckpointError, match=last(folder).name) as refused:
        victim.load(last(folder))
    assert next((said for what, said in SAID.items() if name.startswith(what)), "") in str(refused.value)
    path.write_bytes(whole)


EXP_AVG, RNG = "state.optimizers.0.state.2.exp_avg", "state.ranks.0.rng.torch"
CONVERTED = ((EXP_AVG, "another dtype"), (RNG, "one dimension more"))


@over(
    ("file", "name"),
    [
        *((TABLE, name) for name in ("keys", "rows", "dropped")),
        *((STATE, name) for name in ("state.model.network.0.weight", EXP_AVG, RNG)),
    ],
)
def test_tensors_of_another_form(folder: Path, victim: Training, file: str, name: str) -> None:
    path, manifest = last(folder) / file, last(folder) / MANIFEST
    before = {one: one.read_bytes() for one in (path, manifest)}
    tensor = load_file(path)[name]
    others = [
        array
        for what, array in forged_arrays(tensor)
        if ((array.dtype, array.shape) != (tensor.dtype, tensor.shape) and (name, what) not in CONVERTED)
        or (name, what) == ("keys", "the first twice")
    ]
    for array in [None, *others, *([np.arange(-40, 40)] if name == "dropped" else [])]:
        path.write_bytes(with_array(path, name, array))
        seal_file(manifest, file)
        with unchanged(victim), pytest.raises(CheckpointError, match=last(folder).name):
            victim.load(last(folder))
        for one, content in before.items():
            one.write_bytes(content)


@over("rows", [0, 39])
def test_fewer_rows_than_the_file_has(folder: Path, victim: Training, rows: int) -> None:
    first = Checkpoints(folder).paths()[0]
    forge(first, of_table(rows=rows))
    with (
        unchanged(victim),
        pytest.raises(CheckpointError, match=rf"{first.name}/{TABLE}: 40 rows; the manifest says {rows}"),
    ):
        victim.load(first)


def test_changes_that_change_one_another(folder: Path, victim: Training) -> None:
    for path, parent in zip(Checkpoints(folder).paths(), (3, 1, 2), strict=True):
        link = {"path": f"../step-{parent:012d}", "id": "0" * 16}
        forge(path, lambda content, link=link: content.update(id="0" * 16, parent=link))
    for path in Checkpoints(folder).paths():
        with unchanged(victim), pytest.raises(CheckpointError, match=path.name):
            victim.load(path)


@over("whole", [False, True])
def test_full_at_every_operation(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, whole: bool
) -> None:
    """The training is unchanged by a save that fails, and the next one writes what this one has not."""
    training, disk = clicks(), FullDisk(monkeypatch)
    checkpoints = Checkpoints(tmp_path_factory.mktemp("disk") / "checkpoints", keep=1)
    training.step()
    first = checkpoints.save(1, training.model, training.optimizers)
    expected = bits(training.facts())
    training.step()
    now = bits(training.facts())
    for allowed in range(100):
        disk.left = allowed
        error = None
        try:
            with unchanged(training):
                saved = checkpoints.save(2, training.model, training.optimizers, whole=whole)
        except OSError as raised:
            error = raised
        disk.left = float("inf")
        if error is None:
            break
        assert error.errno == errno.ENOSPC
        assert str(error.filename).startswith(str(checkpoints.folder))
        if checkpoints.paths() != [first]:  # full when all was written
            assert fresh_facts(checkpoints.folder / "step-000000000002") == now
            saved = checkpoints.save(3, training.model, training.optimizers)
            break
        assert checkpoints.latest() == first
        assert not checkpoints.skipped
        assert list(checkpoints.folder.iterdir()) == [first]
        assert fresh_facts(first) == expected
    assert allowed > 10
    assert fresh_facts(saved) == now
    assert checkpoints.latest() == saved
