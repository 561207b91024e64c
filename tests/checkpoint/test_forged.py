"""Whatever someone writes into a checkpoint, digests included, loading it ends well or with an error that names it."""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoint_cases import Training, bits, unchanged
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
from sparsegroup.checkpoint import CheckpointError, Checkpoints


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


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_manifest(folder: Path, victim: Training, name: str) -> None:
    forge(last(folder), FORGED[name])
    with unchanged(victim), pytest.raises(CheckpointError, match=last(folder).name):
        victim.load(last(folder))


@pytest.mark.parametrize("rows", [0, 1, 39])
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


@pytest.mark.parametrize("name", FORGED_TENSORS)
def test_forged_tensors(folder: Path, victim: Training, name: str) -> None:
    file, change = FORGED_TENSORS[name]
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


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something is in JSON; of long lists the first few items."""
    inner: Any = (
        content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    )
    for name, item in inner:
        if isinstance(name, str) or name < 3:
            yield (*path, name)
            yield from places(item, (*path, name))


ODD = [
    None,
    True,
    -1,
    0,
    1.5,
    1e300,
    1 << 80,
    "",
    "x",
    "../x",
    [],
    [1],
    [[1, 2]],
    {},
    {"a": 1},
    {"__items__": [[1, 2]]},
]
ODD += [{"__tensor__": "state.ranks.0.rng.torch"}, {"__number__": "nan"}, {"__tuple__": [1]}, {"__counter__": {}}]


def replace_at_random(folder: Path, training: Training, seed: int, share: float) -> int:
    """Replace things in the last manifest, one at a time; what is loaded all the same is no more than other values."""
    draw = random.Random(seed)
    path = last(folder) / MANIFEST
    whole = path.read_bytes()
    content = json.loads(whole)
    tried = 0
    for place in places(content):
        for value in ODD:
            if draw.random() > share:
                continue

            def change(content: Any, place: tuple[Any, ...] = place, value: Any = value) -> None:
                for name in place[:-1]:
                    content = content[name]
                content[place[-1]] = value

            forge(last(folder), change)
            before = bits(training.facts())
            tried += 1
            error = None
            try:
                training.load(last(folder))
            except Exception as raised:
                error = raised
            if error is not None:
                assert isinstance(error, CheckpointError), f"{place} = {value!r}: {error!r}"
                assert last(folder).name in str(error)
                assert bits(training.facts()) == before, f"{place} = {value!r}: {error!r}"
            path.write_bytes(whole)
    return tried


def test_odd_values_at_random_places(folder: Path, victim: Training) -> None:
    assert replace_at_random(folder, victim, 0, 0.03) > 50


@pytest.mark.slow
def test_odd_values_everywhere(folder: Path, victim: Training) -> None:
    assert replace_at_random(folder, victim, 0, 1.0) > 2_000
