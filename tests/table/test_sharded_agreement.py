"""What ranks do together; what one does otherwise, what fails on one, and one that dies or hangs raises on all."""

import os
import re
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from distributed_cases import Ranks, forking
from over import over
from sparsegroup import GroupAdaHessian, GroupAdam, GroupOptimizer, HashEmbedding
from sparsegroup.checkpoint import save_checkpoint
from sparsegroup.table import EvictionPolicy, ExchangeError
from sparsegroup.table.sharded.exchange import group_of_tables
from table_cases import take_step

KEYS = torch.arange(20) * 0x9E3779B97F4A7C1


def table_of(**options: Any) -> HashEmbedding:
    return HashEmbedding(4, process_group=dist.group.WORLD, **options)


def raised(action: Callable[[], Any]) -> tuple[str, str]:
    """The error that an action ends in."""
    try:
        action()
    except Exception as error:
        return type(error).__name__, str(error)
    return "no error", ""


def usable(table: HashEmbedding) -> bool:
    """Whether the ranks still exchange."""
    return bool(table.train()(KEYS).shape == (20, 4))


def played(actions: tuple[str, str]) -> Any:
    """Each rank carries out its actions, of a letter each."""
    table, other = table_of(), table_of()
    optimizer = GroupAdam(table.parameters())
    losses: list[Tensor] = []
    letters: dict[str, Callable[[], Any]] = {
        "t": lambda: losses.append(table(KEYS).sum()),
        "o": lambda: other(KEYS),
        "e": lambda: table.eval()(KEYS),
        "0": lambda: losses[0].backward(),
        "1": lambda: losses[1].backward(),
        "s": optimizer.step,
        "F": lambda: table_of(fallback=True),
        "P": table_of,
    }

    def play() -> None:
        for letter in actions[dist.get_rank()]:
            letters[letter]()

    return raised(play), usable(table)


@over(
    ("actions", "zero", "one"),
    [
        (("ot", "to"), r"keys of a lookup in training, table \d+", r"keys of a lookup in training, table \d+"),
        (("t", "e"), "keys of a lookup in training", "keys of a lookup in evaluation"),
        (("ts", "t0s"), "a step", r"gradients of lookup 1 in table \d+"),
        (("tt10", "tt01"), "gradients of lookup 2", "gradients of lookup 1"),
        (("t0t", "t0st"), "keys of a lookup in training", "a step"),
        (("F", "P"), ".*fallback=True", ".*fallback=False"),
    ],
)
def test_ranks_that_part_all_raise_the_same(actions: tuple[str, str], zero: str, one: str, ranks: Ranks) -> None:
    (first, is_usable), (second, _) = ranks.call(played, actions)
    assert first == second
    kind, message = first
    assert kind == ExchangeError.__name__
    assert "different operations, or in different order" in message
    places = rf"rank 0 is in operation [\d,]+, '{zero}.*'; rank 1 is in operation [\d,]+, '{one}"
    assert re.search(places, message), message
    assert is_usable


def stepped_with(spoilt: int, value: float, options: dict[str, Any], optimizer_of: Any) -> Any:
    """A step in which the gradient of one key is spoilt on one rank, and what it leaves of table and network."""
    table, layer = table_of(**options), nn.Linear(4, 1, bias=False)
    nn.init.ones_(layer.weight)
    optimizer = optimizer_of([*table.parameters(), *layer.parameters()])
    table(KEYS)
    before = table.lookup(KEYS)
    vectors = table(KEYS)
    if dist.get_rank() == spoilt:
        vectors.register_hook(lambda gradient: gradient.index_fill(0, torch.tensor(7), value))
    layer(vectors).sum().backward(create_graph=optimizer.rule.second_order)
    error = raised(optimizer.step)
    changed = not torch.equal(table.lookup(KEYS), before) or not bool((layer.weight == 1).all())
    return error, changed, len(optimizer.state)


@over(
    ("spoilt", "value", "options", "optimizer_of"),
    [
        (0, float("nan"), {}, GroupAdam),
        (0, float("nan"), {}, GroupAdaHessian),
        (1, 1e6, {"wire_dtype": torch.float16}, GroupAdam),  # finite, but not in float16
    ],
)
def test_a_gradient_that_is_not_finite_changes_nothing_on_any_rank(
    spoilt: int, value: float, options: Any, optimizer_of: Any, ranks: Ranks
) -> None:
    for (kind, message), changed, states in ranks.call(stepped_with, spoilt, value, options, optimizer_of):
        assert kind == FloatingPointError.__name__
        assert "is not finite; nothing has been changed" in message
        assert not changed
        assert not states


def without_room_on_one() -> Any:
    table = table_of(max_rows=1 if dist.get_rank() else None)
    errors = [raised(lambda: table(KEYS))]
    table.prefetch(KEYS)
    errors.append(raised(lambda: table(KEYS)))
    return errors, bool(table.eval()(KEYS).shape == (20, 4))


class FailingOnOne(EvictionPolicy):
    """An eviction policy that fails on one rank."""

    every = 1

    def evicts(self, rows: Any) -> Any:
        if dist.get_rank():
            raise MemoryError("no room to think")
        return torch.zeros(len(rows), dtype=torch.bool).numpy()


def failing_eviction() -> Any:
    table = table_of(eviction=FailingOnOne())
    optimizer = GroupAdam(table.parameters())
    table(KEYS).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return raised(lambda: table(KEYS))


def test_a_lookup_that_fails_on_one_rank_fails_on_all(ranks: Ranks) -> None:
    (first, usable_first), (second, usable_second) = ranks.call(without_room_on_one)
    assert usable_first
    assert usable_second
    for (kind, message), (own_kind, own_message) in zip(first, second, strict=True):
        assert kind == own_kind == "RuntimeError"
        assert message == f"rank 1 of 2: RuntimeError: {own_message}"
        assert "max_rows" in message
    assert ranks.call(failing_eviction) == [
        ("MemoryError", "rank 1 of 2: MemoryError: no room to think"),
        ("MemoryError", "no room to think"),
    ]


# A rank that dies or hangs: no other waits for ever, and each says in which operation it has waited.

WORLD = 3
SECONDS = 3
"""The time-out of their group."""

PATIENCE = 100
"""Seconds in which all must have ended; gloo waits for half an hour."""


@dataclass(frozen=True)
class Training:
    """One of a sharded table, on one rank, in which a rank may do something of its own: `misbehave`."""

    table: HashEmbedding
    optimizer: GroupOptimizer
    folder: Path
    misbehave: Callable[[], None]


def lookup(training: Training) -> None:
    training.misbehave()
    training.table(torch.arange(10))


def backward(training: Training) -> None:
    vectors = training.table(torch.arange(10))
    vectors.register_hook(lambda gradient: training.misbehave())
    vectors.sum().backward()


def lookup_ahead(training: Training) -> None:
    """Keys are exchanged by another thread."""
    training.table(torch.arange(10))
    training.misbehave()
    training.table.prefetch(torch.arange(5))
    training.table(torch.arange(5))


def save(training: Training) -> None:
    """It is in the middle of it."""
    model = nn.ModuleDict({"table": training.table})
    model.register_state_dict_pre_hook(lambda *_: training.misbehave())
    save_checkpoint(training.folder / "checkpoint", model, training.optimizer, step=2)


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hang() -> None:
    time.sleep(2 * PATIENCE)


def be_good() -> None: ...


@pytest.mark.parametrize(
    ("scene", "operation", "roles"),
    [
        pytest.param(lookup_ahead, "keys of a lookup in training", {0: kill}, id="the first killed, and the store"),
        pytest.param(save, "writing a checkpoint", {2: kill}, id="killed while it saves"),
        pytest.param(backward, "gradients of lookup", {1: hang}, id="hangs"),
    ],
)
@pytest.mark.whole
def test_who_does_not_come(scene: Any, operation: str, roles: Mapping[int, Callable[[], None]], tmp_path: Path) -> None:
    """Nothing is exchanged after that."""
    context = forking()
    pipes = {rank: context.Pipe() for rank in range(WORLD)}
    processes = [
        context.Process(target=_play, args=(rank, tmp_path, scene, roles.get(rank, be_good), theirs), daemon=True)
        for rank, (_, theirs) in pipes.items()
    ]
    for process in processes:
        process.start()
    for _, theirs in pipes.values():
        theirs.close()
    try:
        for rank in pipes.keys() - roles.keys():
            ours, _ = pipes[rank]
            assert ours.poll(PATIENCE), f"rank {rank} waits for ever"
            message, later = ours.recv()
            assert message.startswith(f"HashEmbedding: rank {rank} of {WORLD}, operation "), message
            assert f", '{operation}" in message, message
            assert "Another rank has ended or does not answer" in message
            assert "nothing can be exchanged any more: rank " in later, later
    finally:
        for process in processes:
            process.kill()
            process.join()


def _play(rank: int, folder: Path, scene: Any, misbehave: Callable[[], None], pipe: Connection) -> None:
    """Play a scene after two steps, and tell the errors of it and of a lookup after it."""
    torch.set_num_threads(1)
    at_first = timedelta(seconds=PATIENCE)  # steps compile kernels
    dist.init_process_group("gloo", store=_store(rank, folder), rank=rank, world_size=WORLD, timeout=at_first)
    table = table_of()
    own_group = group_of_tables(dist.group.WORLD)
    assert own_group._get_backend(torch.device("cpu")).options._timeout == at_first
    optimizer = GroupAdam(table.parameters())
    for _ in range(2):
        take_step(optimizer, table(torch.arange(20)).sum())
    dist.barrier()
    dist.distributed_c10d._set_pg_timeout(timedelta(seconds=SECONDS), own_group)
    training = Training(table, optimizer, folder, misbehave)
    pipe.send([raised(partial(action, training))[1] for action in (scene, lookup)])
    hang()  # until the test is over


def _store(rank: int, folder: Path) -> dist.Store:
    """One that ends with rank 0, as `init_process_group` makes it by default."""
    port = folder / "port"
    if rank == 0:
        store = dist.TCPStore("127.0.0.1", 0, WORLD, is_master=True, wait_for_workers=False)
        (folder / "port.new").write_text(str(store.port))
        (folder / "port.new").rename(port)
        return store
    while not port.exists():
        time.sleep(0.01)
    return dist.TCPStore("127.0.0.1", int(port.read_text()), WORLD)
