"""What a checkpoint brings back: everything, and training goes on with the same bits."""

import json
import math
from collections import Counter
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file
from torch import nn
from torch.optim import SGD, Adam, AdamW
from torch.optim import lr_scheduler as schedules

from checkpoint_cases import LAMBDAS, Training, bits, clicks, forge, unchanged
from over import over
from sparsegroup import (
    GroupAdagrad,
    GroupAdaHessian,
    GroupAdam,
    GroupAMSGrad,
    GroupFTRL,
    GroupMomentum,
    GroupSGD,
    HashEmbedding,
)
from sparsegroup.checkpoint import CheckpointError, Checkpoints, load_checkpoint, save_checkpoint
from sparsegroup.checkpoint.manifest import CHECKPOINT
from sparsegroup.checkpoint.plain import as_plain, from_plain
from sparsegroup.table.files import write
from sparsegroup.table.rows import host

GROUP = [GroupSGD, GroupMomentum, GroupAdagrad, GroupAdam, GroupAMSGrad, GroupFTRL]


def adahessian(*arguments: Any, **options: Any) -> GroupAdaHessian:
    """Which draws random numbers of its own."""
    return GroupAdaHessian(*arguments, generator=torch.Generator().manual_seed(3), **options)


def make_pages_tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_PAGE_BYTES", 1 << 12)
    monkeypatch.setattr(write, "_PIECE_BYTES", 600)


def goes_on_alike(one: Training, other: Training, steps: int = 3) -> None:
    """Both hold the same, and train on to the same."""
    rng = torch.get_rng_state()
    ends = []
    for training in (one, other):
        torch.set_rng_state(rng)
        training.draw.manual_seed(7)
        before = bits(training.facts())
        for _ in range(steps):
            training.step()
        ends.append((before, bits(training.facts())))
    assert ends[0] == ends[1]


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
@over(("number", "make"), list(enumerate([*GROUP, adahessian])))
def test_every_optimizer_goes_on(tmp_path_factory: pytest.TempPathFactory, number: int, make: Any) -> None:
    dim, dtype = [(1, torch.float32), (3, torch.float64), (5, torch.float32)][number % 3]
    folder = tmp_path_factory.mktemp("one")
    with pytest.MonkeyPatch.context() as patch:
        if number != 3:
            make_pages_tiny(patch)
        training = clicks(make, dim=dim, dtype=dtype)
        for _ in range(30):
            training.step()
        training.tables[0].shrink()
        training.step()
        training.save(folder / "one", step=31)
        other = clicks(make, dim=dim, dtype=dtype)
        loaded = other.load(folder / "one")
        assert (loaded.step, loaded.notes) == (31, [])
        goes_on_alike(training, other)


def dense(make: Callable[[nn.Module], Any], dtype: torch.dtype = torch.float32) -> Training:
    """A model without tables, with tied weights and a buffer that is trained along."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Flatten(0)).to(dtype)
    model[2].weight = model[0].weight  # type: ignore[union-attr]
    return Training(model, make(model))


def step_dense(training: Training) -> None:
    generator = training.draw
    for optimizer in training.optimizers:
        optimizer.zero_grad()
    inputs = torch.randn(8, 4, generator=generator).to(next(training.model.parameters()).dtype)
    training.model(inputs).square().mean().backward()
    for optimizer in training.optimizers:
        optimizer.step()


@over(
    ("make", "dtype"),
    [
        (lambda model: [], torch.float32),
        (lambda model: [Adam(model.parameters(), amsgrad=True)], torch.float32),
        (lambda model: [AdamW([model[0].weight]), SGD([model[0].bias], lr=0.1, momentum=0.9)], torch.bfloat16),
        (lambda model: [GroupAdam(model.parameters(), l21=1e-3)], torch.bfloat16),
        (lambda model: [GroupAdam(model.parameters(), l21=1e-3, state_dtype=torch.bfloat16)], torch.float32),
        (
            lambda model: [GroupAdam([{"params": [model[0].weight], "groups": torch.tensor([0, 1, 0, 2])}], l21=0.1)],
            torch.float32,
        ),
    ],
)
def test_a_model_without_tables(tmp_path_factory: pytest.TempPathFactory, make: Any, dtype: torch.dtype) -> None:
    training, other = dense(make, dtype), dense(make, dtype)
    step_dense(training)
    step_dense(training)
    extra = {"nan": math.nan, "inf": [-math.inf, np.float32(0.1)], "t": (1, (2,)), 3: None, "__x": torch.arange(2)}
    extra["counter"] = Counter({2: 3})
    folder = tmp_path_factory.mktemp("dense") / "one"
    training.save(folder, extra=extra)
    loaded = other.load(folder)
    assert repr(loaded.extra) == repr({**extra, "inf": [-math.inf, float(np.float32(0.1))]})
    other.draw.set_state(training.draw.get_state())
    for one in (training, other):
        step_dense(one)
    assert bits(training.facts()) == bits(other.facts())


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "MultiStepLR": lambda optimizer: schedules.MultiStepLR(optimizer, [2, 4, 4, 6], 0.5),
    "OneCycleLR": lambda optimizer: schedules.OneCycleLR(optimizer, 0.1, 20),
    "LambdaLR": lambda optimizer: schedules.LambdaLR(optimizer, lambda step: 1 / (1 + step)),
    "SequentialLR": lambda optimizer: schedules.SequentialLR(
        optimizer,
        [schedules.ConstantLR(optimizer, 0.1, 2), schedules.MultiStepLR(optimizer, [1, 3], 0.5)],
        milestones=[3],
    ),
    "ReduceLROnPlateau": lambda optimizer: schedules.ReduceLROnPlateau(optimizer, patience=0),
    "ChainedScheduler": lambda optimizer: schedules.ChainedScheduler(
        [schedules.ConstantLR(optimizer, 0.1, 4), schedules.ExponentialLR(optimizer, 0.9)]
    ),
}


@over("name", SCHEDULES)
def test_schedules_go_on(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    def make() -> Training:
        training = clicks()
        training.scheduler = SCHEDULES[name](training.optimizers[0])
        return training

    folder = tmp_path_factory.mktemp("schedule")
    training, other = make(), make()
    for _ in range(3):
        training.step()
    training.save(folder / "one")
    assert other.load(folder / "one").notes == []
    goes_on_alike(training, other, 6)
    plain = clicks()
    plain.save(folder / "without")
    plain.scheduler = schedules.StepLR(plain.optimizers[0], 1)
    with unchanged(plain), pytest.raises(CheckpointError, match="holds no learning-rate scheduler, and a StepLR is to"):
        plain.load(folder / "without")
    with unchanged(plain), pytest.raises(CheckpointError, match=f"the state of a {name}, and a StepLR is to be loaded"):
        plain.load(folder / "one")


def test_an_empty_table_and_one_in_two_places_that_no_optimizer_knows(tmp_path: Path) -> None:
    training = clicks()
    training.save(tmp_path / "empty")
    other = clicks()
    other.step()
    other.load(tmp_path / "empty")
    goes_on_alike(training, other)

    def twice(table: HashEmbedding) -> nn.Module:
        return nn.ModuleDict({"a": table, "b": nn.ModuleList([table])})

    table, again = HashEmbedding(2), HashEmbedding(2)
    table(torch.arange(5))
    assert len(save_checkpoint(tmp_path / "alone", twice(table)).tables) == 1, "it is written once"
    load_checkpoint(tmp_path / "alone", twice(again))
    assert bits(again.state_dict()) == bits(table.state_dict())


def test_the_files_are_open(tmp_path: Path) -> None:
    training = clicks()
    training.step(torch.arange(9))
    training.save(tmp_path / "one")
    tensors = load_file(tmp_path / "one" / "table-users.safetensors")
    assert tensors["keys"].tolist() == list(range(9))
    exported = training.tables[0].table.snapshot().arrays()
    assert (tensors["rows"] == np.stack([exported[part] for part in training.tables[0].table.rows.parts], 1)).all()


OPERATIONS = (
    *("step", "step", "step", "look up", "shrink", "assign", "zero", "load", "optimizer", "save", "save", "whole"),
    "resume",
)


def courses(max_examples: int, most: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Draws of operations with seeds, of how many checkpoints to keep, and of the size of pages."""
    operations = st.lists(st.tuples(st.sampled_from(OPERATIONS), st.integers(0, 1 << 20)), max_size=most)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        drawn = given(operations=operations, keep=st.integers(1, 3), tiny=st.booleans())(test)
        return settings(max_examples=max_examples, suppress_health_check=[HealthCheck.function_scoped_fixture])(drawn)

    return decorate


@courses(20, 24)
def test_any_course_of_events(tmp_path_factory: Any, operations: Any, keep: int, tiny: bool) -> None:
    any_course_of_events(tmp_path_factory.mktemp("course"), operations, keep, tiny)


@pytest.mark.slow
@courses(600, 60)
def test_any_long_course_of_events(tmp_path_factory: Any, operations: Any, keep: int, tiny: bool) -> None:
    any_course_of_events(tmp_path_factory.mktemp("course"), operations, keep, tiny)


def any_course_of_events(folder: Path, operations: list[tuple[str, int]], keep: int, tiny: bool) -> None:
    """Each checkpoint holds what the training held, to the last bit, and no more rows than have changed."""
    with pytest.MonkeyPatch.context() as patch:
        if tiny:
            make_pages_tiny(patch)
        torch.manual_seed(0)
        training, checkpoints = clicks(), Checkpoints(folder, keep=keep)
        touched: dict[int, set[int]] = {0: set(), 1: set()}
        for step, (operation, seed) in enumerate([*operations, ("save", 0)], 1):
            training.draw.manual_seed(seed)
            keys = training.keys()
            users = training.tables[0]
            if operation == "step":
                training.step(keys)
            elif operation == "look up":
                before = [set(table.table.directory.keys().tolist()) for table in training.tables]
                training.model(keys)
                for number, table in enumerate(training.tables):
                    touched[number] |= set(table.table.directory.keys().tolist()) - before[number]
            elif operation in ("assign", "zero"):
                some = keys.unique()
                users.assign(some, torch.full((len(some), 3), 0.0 if operation == "zero" else seed / 3))
                touched[0] |= set(some.tolist())
            elif operation == "shrink":
                users.shrink()
            elif operation == "load":
                training.model.load_state_dict(training.model.state_dict())
            elif operation == "optimizer":
                make = GROUP[seed % len(GROUP)]
                training.optimizers = [make(training.model.parameters(), lr=0.05, **LAMBDAS)]
            elif operation == "resume" and (latest := checkpoints.latest()) is not None:
                saved = CHECKPOINT.read(latest).state["optimizers"][0]["kind"]
                make = next(one for one in GROUP if one.__name__.removeprefix("Group").lower() == saved)
                training = clicks(make)
                checkpoints = Checkpoints(folder, keep=keep)
                checkpoints.load(latest, training.model, training.optimizers)
                touched = {0: set(), 1: set()}
            if operation == "step":
                touched[0] |= set(keys.tolist())
                touched[1] |= set((keys * 7 + 1).tolist())
            if operation in ("save", "whole"):
                path = checkpoints.save(step, training.model, training.optimizers, whole=operation == "whole")
                manifest = CHECKPOINT.read(path)
                for number, (_, facts) in enumerate(manifest.tables.values()):
                    table = training.tables[number].table
                    changed = touched[number] & set(table.directory.keys().tolist())
                    assert facts.written == (table.num_rows if manifest.parent is None else len(changed))
                touched = {0: set(), 1: set()}
                kept = checkpoints.paths()
                ancestors = {CHECKPOINT.read(one).parent for one in kept}
                needed = {Path(parent.path).name for parent in ancestors if parent is not None}
                assert all(one.name in needed for one in kept[:-keep])
                fresh = clicks(type(training.optimizers[0]))
                rng = torch.get_rng_state()
                load_checkpoint(path, fresh.model, fresh.optimizers)
                torch.set_rng_state(rng)
                assert bits(fresh.facts()) == bits(training.facts())


def test_changes_follow_until_they_outweigh_what_they_change(tmp_path: Path) -> None:
    training, checkpoints = clicks(), Checkpoints(tmp_path, keep=2)
    training.step(torch.arange(4_000))
    wholes = []
    for step in range(1, 12):
        path = checkpoints.save(step, training.model, training.optimizers)
        manifest = CHECKPOINT.read(path)
        if manifest.parent is None:
            wholes.append(step)
        else:
            assert [facts.written for _, facts in manifest.tables.values()] == [700, 700]
            assert manifest.bytes < 0.25 * CHECKPOINT.read(checkpoints.paths()[0]).bytes
        assert checkpoints.latest() == path
        training.step(torch.arange(700 * step, 700 * (step + 1)) % 4_000)
    assert wholes == [1, 8]
    assert [path.name[-2:] for path in checkpoints.paths()] == ["08", "09", "10", "11"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_without_tables_each_is_whole_and_other_folders_stay(tmp_path: Path) -> None:
    (tmp_path / "step-by-step").mkdir()
    (tmp_path / "step-1").mkdir()
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in range(5):
        assert CHECKPOINT.read(checkpoints.save(step, nn.Linear(1, 1))).parent is None
    last = {f"step-{step:012d}" for step in (3, 4)}
    assert {path.name for path in tmp_path.iterdir()} == {"step-by-step", "step-1", *last}
    with pytest.raises(ValueError, match="keep must be >= 1, got 0"):
        Checkpoints(tmp_path, keep=0)


def test_a_step_that_does_not_come_after_the_last_good_one_is_refused(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (3, 5):
        checkpoints.save(step, nn.Linear(1, 1))
    with pytest.raises(CheckpointError, match="step 4 does not come after it"):
        checkpoints.save(4, nn.Linear(1, 1))
    (tmp_path / "step-000000000005" / "state.safetensors").write_bytes(b"")
    checkpoints.save(4, nn.Linear(1, 1))
    assert [path.name[-1] for path in checkpoints.paths()] == ["3", "4"]


def test_what_cannot_be_read_does_not_take_the_place_of_what_can(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=2)
    first = checkpoints.save(1, nn.Linear(1, 1))
    for step in (2, 3):
        later = checkpoints.save(step, nn.Linear(1, 1))
        (later / "state.safetensors").write_bytes(b"")
    assert checkpoints.latest() == first


def test_rows_that_a_chain_cannot_make_are_not_vouched_for(tmp_path: Path) -> None:
    training, checkpoints = clicks(), Checkpoints(tmp_path)
    training.step()
    first = checkpoints.save(1, training.model, training.optimizers)
    training.step()
    second = checkpoints.save(2, training.model, training.optimizers)
    assert CHECKPOINT.read(second).parent is not None

    def claim_more_rows(content: dict[str, Any]) -> None:
        for _, facts in content["tables"].values():
            facts["rows"] = facts["seen"] = facts["rows"] + facts["written"] + 500

    forge(second, claim_more_rows)
    assert checkpoints.latest() == first
    assert "rows cannot make" in str(checkpoints.skipped[0])


@over("extra", [{"a": object()}, [print], {"b": {1, 2}}, {"c": torch.int64}])
def test_what_only_a_pickle_could_hold_is_refused(tmp_path: Path, extra: Any) -> None:
    with pytest.raises(CheckpointError, match="which a checkpoint cannot hold"):
        save_checkpoint(tmp_path / "one", nn.Linear(1, 1), extra=extra)
    assert not any(tmp_path.iterdir())


KEYS = st.sampled_from(["a", "b", "", ".", "a.b", "a.", ".b", "'", "a'", "0", "__tensor__", "__a"]) | st.integers(0, 1)


@settings(max_examples=200)
@given(
    extra=st.recursive(
        st.just(Ellipsis),  # a tensor of its own
        lambda inner: st.dictionaries(KEYS, inner, max_size=3) | st.lists(inner, max_size=2) | st.tuples(inner, inner),
        max_leaves=8,
    )
)
def test_every_tensor_is_saved_under_a_name_of_its_own(extra: Any) -> None:
    numbers = count()

    def filled(one: Any) -> Any:
        if isinstance(one, dict):
            return {key: filled(value) for key, value in one.items()}
        return type(one)(map(filled, one)) if isinstance(one, list | tuple) else torch.tensor(next(numbers))

    given_extra, tensors = filled(extra), {}
    content = json.loads(json.dumps(as_plain(given_extra, tensors, "extra")))
    assert len(tensors) == next(numbers)
    assert repr(from_plain(content, tensors)) == repr(given_extra)


def test_tensors_whose_names_would_be_the_same_when_joined_by_dots(tmp_path: Path) -> None:
    extra = {"a": {"b": torch.tensor(1)}, "a.b": torch.tensor(2), 1: torch.tensor(3), "1": np.array([4])}
    model = nn.Linear(1, 1)
    save_checkpoint(tmp_path / "one", model, extra=extra)
    loaded = load_checkpoint(tmp_path / "one", model).extra
    assert repr(loaded) == repr({**extra, "1": torch.tensor([4])})


def test_a_tensor_is_saved_as_its_numbers_are_and_an_array_without_numbers_is_refused(tmp_path: Path) -> None:
    model, negated = nn.Linear(1, 1), torch._neg_view(torch.tensor([1.0, -2.0]))
    save_checkpoint(tmp_path / "one", model, extra=negated)
    assert load_checkpoint(tmp_path / "one", model).extra.tolist() == [-1.0, 2.0]
    for array in (np.array([{}, None], object), np.array(["a"]), np.array(["2026-01-01"], "datetime64[D]")):
        with pytest.raises(CheckpointError, match=r"extra.* array of"):
            save_checkpoint(tmp_path / "two", model, extra={"of": array})
    assert not (tmp_path / "two").exists()
