"""An action that a signal, exhausted memory or a policy interrupts has happened completely or not at all."""

import copy
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from interrupts import interrupt, without_memory
from optimizer_cases import ALLOW_CREATE_GRAPH
from sparsegroup import GroupAdam, HashEmbedding, MinCount, UnusedFor
from sparsegroup.checkpoint import Checkpoints, load_checkpoint, save_checkpoint
from sparsegroup.kernels.cpu import threads

pytestmark = ALLOW_CREATE_GRAPH

DIM = 4
OLD, NEW = 7 * torch.arange(40), 7 * torch.arange(30, 80)
KINDS: dict[str, dict[str, Any]] = {
    "plain": {},
    "policies": {"admission": MinCount(2), "eviction": UnusedFor(steps=2, every=1)},
    "limit": {"max_bytes": "3MiB"},
}

Pair = tuple[HashEmbedding, GroupAdam]
Content = tuple[dict[int, bytes], dict[str, dict[int, bytes]]]


def train(table: HashEmbedding, optimizer: GroupAdam, keys: Tensor) -> None:
    """Take a step with small gradients for the first keys, whose rows l21 makes zero."""
    optimizer.zero_grad()
    (table(keys) * torch.linspace(0, 1, len(keys))[:, None] ** 3).sum().backward()
    optimizer.step()


def trained(kind: str, *later: Tensor) -> Pair:
    """Return a table with live rows and zero rows, and its optimizer."""
    table = HashEmbedding(DIM, seed=1, huge_pages=False, **KINDS[kind])
    optimizer = GroupAdam(table.parameters(), lr=0.1, l21=0.05)
    for keys in (OLD, OLD, OLD, *later):
        train(table, optimizer, keys)
    optimizer.zero_grad()
    return table, optimizer


def by_key(keys: Tensor, values: Tensor) -> dict[int, bytes]:
    return dict(zip(keys.tolist(), [value.numpy().tobytes() for value in values], strict=True))


def content(table: HashEmbedding, optimizer: GroupAdam) -> Content:
    """Return vector and state of each key. Check that all counts agree, and that each key has its row."""
    entries = table.state_dict()
    keys, vectors = entries["keys"], table.lookup(entries["keys"])
    rows, state = by_key(keys, vectors), optimizer.state_dict()["state"].get(0, {})
    assert torch.equal(vectors, entries["weight"])
    assert table.num_rows == len(rows) == len(keys)
    assert table.num_live == int((vectors != 0).any(1).sum())
    if "seen_registers" not in entries:  # then they are counted exactly
        seen = [*rows, *entries["dropped"].tolist(), *entries.get("candidates", torch.empty(0)).tolist()]
        assert table.num_seen == len(set(seen))
    parts = {name: by_key(state["keys"], value) for name, value in state.items() if name not in ("keys", "step")}
    assert all(part.keys() == rows.keys() for part in parts.values())
    return rows, parts


# How each action is taken; however it is cut off, it leaves the content from before or after it.
ACTIONS: dict[str, Callable[[HashEmbedding, GroupAdam, Pair, Path], object]] = {
    "lookup": lambda table, optimizer, other, path: table(NEW),
    "step": lambda table, optimizer, other, path: optimizer.step(),
    "assign": lambda table, optimizer, other, path: table.assign(NEW, torch.arange(200.0).view(50, DIM)),
    "shrink": lambda table, optimizer, other, path: table.shrink(),
    "load_state_dict": lambda table, optimizer, other, path: table.load_state_dict(other[0].state_dict()),
    "copy": lambda table, optimizer, other, path: table.weight.detach().copy_(other[0].weight.detach()),
    "average": lambda table, optimizer, other, path: table.weight.detach().lerp_(other[0].weight.detach(), 0.5),
    "load_checkpoint": lambda table, optimizer, other, path: load_checkpoint(path, table, optimizer),
    "restore": lambda table, optimizer, other, path: optimizer.load_state_dict(other[1].state_dict()),
}
CASES = [
    *(("plain", name) for name in ACTIONS),
    *(("policies", name) for name in ("shrink", "load_checkpoint")),
    *(("limit", name) for name in ("lookup", "assign", "load_state_dict")),
]


class Case:
    """Action on copies of a trained table."""

    def __init__(self, kind: str, name: str, folder: Path) -> None:
        self.name, self.other, self.path = name, trained(kind, NEW, NEW), folder / "checkpoint"
        self.start = trained(kind)
        save_checkpoint(self.path, *self.other)
        before, after = self.pair(), self.pair()
        self.before = content(*before)
        self.act(after)
        self.after = content(*after)

    def pair(self) -> Pair:
        pair = copy.deepcopy(self.start)
        if self.name == "step":
            pair[0](NEW[:10]).square().sum().backward()
        return pair

    def act(self, pair: Pair) -> None:
        ACTIONS[self.name](*pair, self.other, self.path)

    def check(self, pair: Pair) -> None:
        """Check that the content is from before or after the action, and that action and training can continue."""
        assert content(*pair) in (self.before, self.after)
        if self.name not in ("step", "average"):
            self.act(pair)
            assert content(*pair) == self.after
        if self.name not in ("copy", "average"):  # which take the state from the optimizer
            train(*pair, torch.cat([OLD, NEW]).unique())
            content(*pair)


def cut_off(case: Case, moments: int | None) -> None:
    """Interrupt an action at all of its moments, or at some, evenly."""
    last = interrupt(partial(case.act, case.pair()), 0)
    for moment in range(1, last + 1) if moments is None else np.linspace(1, last, moments, dtype=int):
        pair = case.pair()
        interrupt(partial(case.act, pair), int(moment))
        try:
            case.check(pair)
        except AssertionError as error:
            error.add_note(f"interrupted at moment {moment} of {last}")
            raise


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_an_interrupted_change_of_a_table_happens_whole_or_not_at_all(kind: str, name: str, tmp_path: Path) -> None:
    cut_off(Case(kind, name, tmp_path), 60 if name == "step" else 12)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_a_change_of_a_table_may_be_interrupted_at_any_moment(kind: str, name: str, tmp_path: Path) -> None:
    cut_off(Case(kind, name, tmp_path), None)


def test_helping_threads_are_done_when_an_interrupted_step_or_lookup_ends() -> None:
    """Otherwise they would still use memory of the thread that was interrupted, or change rows later."""
    torch.manual_seed(0)
    keys, start = torch.arange(20_000), HashEmbedding(DIM, huge_pages=False)
    threads.set_num_threads(2)
    try:
        for _ in range(3):  # so that a thread comes to help
            start(keys)
        for moment in range(1, 40, 3):
            table = copy.deepcopy(start)
            optimizer = GroupAdam(table.parameters(), lr=0.1)
            before = table.lookup(keys)
            interrupt(lambda: table(keys), moment, threads.__file__)  # noqa: B023  # called at once
            table(keys).sum().backward()
            interrupt(optimizer.step, moment, threads.__file__)
            after = table.lookup(keys)
            assert torch.equal(after, before) or bool((after != before).all())
            time.sleep(0.005)
            assert torch.equal(table.lookup(keys), after)
    finally:
        threads.set_num_threads(None)


def test_an_interrupted_checkpoint_is_whole_or_not_there_and_the_next_one_has_all_changes(tmp_path: Path) -> None:
    start = trained("plain")
    last = interrupt(lambda: save_checkpoint(tmp_path / "dry", *start), 0)
    for moment in np.linspace(1, last, 10, dtype=int).tolist():
        table, optimizer = copy.deepcopy(start)
        checkpoints = Checkpoints(tmp_path / str(moment))
        checkpoints.save(1, table, optimizer)
        train(table, optimizer, NEW)
        interrupt(lambda: checkpoints.save(2, table, optimizer), moment)  # noqa: B023
        train(table, optimizer, NEW[:20])
        expected = content(table, optimizer)
        checkpoints.save(3, table, optimizer)
        other = trained("plain")
        latest = checkpoints.latest()
        assert latest is not None
        assert load_checkpoint(latest, *other).step == 3
        assert content(*other) == expected


@pytest.mark.parametrize(
    "name", ["lookup", "assign", "shrink", "load_state_dict", "copy", "load_checkpoint", "restore"]
)
def test_without_memory_nothing_of_a_table_has_changed(name: str, tmp_path: Path) -> None:
    case = Case("plain", name, tmp_path)
    with without_memory(0) as calls:
        case.act(case.pair())
    count = len(calls)
    assert count
    for at in range(1, count + 1):
        pair = case.pair()
        with without_memory(at):
            try:
                case.act(pair)
            except MemoryError:
                try:
                    assert content(*pair) == case.before
                except AssertionError as error:
                    error.add_note(f"{calls[at - 1]}, call {at} of {count}")
                    raise
        case.check(pair)
