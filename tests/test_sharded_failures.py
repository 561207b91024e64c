"""A rank that dies, hangs or does something else: no other waits for ever, and each names it and the operation."""

import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from failing_ranks import SECONDS, WORLD, Training, hang, kill, played, stop
from sparsegroup import clip_grad_norm_
from sparsegroup.checkpoint import save_checkpoint
from sparsegroup.distributed import ExchangeError


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


def clip(training: Training) -> None:
    training.misbehave()
    clip_grad_norm_(training.table.parameters(), 1.0)


def save(training: Training) -> None:
    """It is in the middle of it."""
    model = nn.ModuleDict({"table": training.table})
    model.register_state_dict_pre_hook(lambda *_: training.misbehave())
    save_checkpoint(training.folder / "checkpoint", model, training.optimizer, step=2)


GRADIENTS, KEYS, NORM, SAVING = "gradients", "numbers of keys", "the norm of gradients", "writing a checkpoint"


@pytest.mark.parametrize(
    ("scene", "operation", "roles"),
    [
        pytest.param(backward, GRADIENTS, {2: kill}, id="killed in a step"),
        pytest.param(lookup, KEYS, {0: kill}, id="the first killed, and the store with it"),
        pytest.param(lookup_ahead, KEYS, {1: kill, 2: kill}, id="two killed"),
        pytest.param(save, SAVING, {3: kill}, id="killed while it saves"),
        pytest.param(backward, GRADIENTS, {2: stop}, id="stopped"),
        pytest.param(clip, NORM, {0: stop}, id="the first stopped, and the store with it"),
        pytest.param(lookup, KEYS, {1: hang}, id="hangs"),
        *(
            pytest.param(scene, operation, roles, marks=pytest.mark.slow)
            for scene, operation in [(lookup, KEYS), (backward, GRADIENTS), (clip, NORM), (save, SAVING)]
            for roles in [{1: kill}, {0: kill, 3: kill}, {3: stop}, {0: hang}, {1: hang, 2: stop}, {1: kill, 3: stop}]
        ),
    ],
)
def test_who_does_not_come(scene: Any, operation: str, roles: Mapping[int, Callable[[], None]], tmp_path: Path) -> None:
    told, names = played(tmp_path, scene, roles)
    assert set(told) == set(range(WORLD)) - set(roles)
    words = {
        kill: "has ended",
        stop: "did not come: its process is stopped",
        hang: "did not come, though its process runs",
    }
    for rank, message in told.items():
        culprits, _, waited = message.partition("; ")
        for other in range(WORLD):
            named = f"rank {other} of {WORLD} ({names[other]})"
            if other in roles:
                assert f"{named} {words[roles[other]]}" in culprits, message
            else:
                assert named not in culprits, message
        assert waited.startswith(f"rank {rank} of {WORLD} ({names[rank]}) waited in operation "), message
        assert f", {operation!r}" in waited, message
        assert ("Nor can the store be asked" in message) == (roles.get(0) in (kill, stop)), message


def different(training: Training) -> None:
    """One rank evaluates a batch more, the others clip."""
    if training.table.across.shards.rank == 1:
        lookup(training)
    else:
        clip(training)


def test_ranks_that_call_different_operations(tmp_path: Path) -> None:
    told, names = played(tmp_path, different, {})
    own = {rank: f"rank {rank} of {WORLD} ({name})" for rank, name in names.items()}
    for message in told.values():
        clipping = re.escape(", ".join(own[rank] for rank in (0, 2, 3)))
        assert re.match(
            "HashEmbedding: the ranks have called different operations, or in different order: "
            rf"{clipping} in operation (\d+), '{NORM}'; {re.escape(own[1])} in operation \1, '{KEYS}' \(",
            message,
        ), message


def die_or_come_late(training: Training) -> None:
    """One rank dies while another one is busy, which comes when the others have given up."""
    rank, given_up = training.table.across.shards.rank, [training.folder / f"given-up-{other}" for other in (0, 1)]
    if rank == 2:
        kill()
    while rank == 3 and not all(file.exists() for file in given_up):
        time.sleep(0.01)
    try:
        lookup(training)
    finally:
        if rank < 2:
            given_up[rank].touch()


def test_one_that_comes_late_is_told_why(tmp_path: Path) -> None:
    told, names = played(tmp_path, die_or_come_late, {2: kill})
    dead = f"rank 2 of {WORLD} ({names[2]}) has ended; "
    for rank in (0, 1):
        assert told[rank].startswith(f"HashEmbedding: {dead}"), told[rank]
        assert f"; no word yet from rank 3 of {WORLD} ({names[3]}), which runs (" in told[rank], told[rank]
    assert re.match(rf"HashEmbedding: rank [01] of {WORLD} \(.*\) had given up before, for: {re.escape(dead)}", told[3])


@pytest.mark.parametrize(
    ("roles", "culprits"),
    [
        ({2: kill}, r"rank 2 of 4 \(.*\) has ended or cannot be reached: its connection is closed"),
        ({0: kill}, "some rank did not come"),
        pytest.param(
            {2: stop},
            r"rank 2 of 4 \(.*\) did not come: it hangs, has ended or cannot be reached",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_ranks_of_other_hosts(roles: Mapping[int, Callable[[], None]], culprits: str, tmp_path: Path) -> None:
    told, _ = played(tmp_path, lookup, roles, apart=True)
    for message in told.values():
        assert re.match(f"HashEmbedding: {culprits}; rank . of 4 \\(.*\\) waited in operation", message), message
        assert message.endswith("its host, rank 0's, may be gone") == (0 in roles), message


def fail(training: Training) -> None:
    """One rank has what cannot be sent."""
    shards = training.table.across.shards
    shards.of_all([(lambda: 1) if shards.rank == 1 else 1], "parts")


def fail_twice(training: Training) -> None:
    with pytest.raises(ExchangeError):
        fail(training)
    begun = time.monotonic()
    try:
        lookup(training)
    finally:
        assert time.monotonic() - begun < 0.5 * SECONDS


@pytest.mark.parametrize("scene", [fail_twice, pytest.param(fail, marks=pytest.mark.slow)])
def test_one_that_fails_says_it_and_ends_the_group(scene: Any, tmp_path: Path) -> None:
    told, names = played(tmp_path, scene, {})
    begin = f"HashEmbedding: {f'{KEYS}: the ranks have parted before: ' if scene is fail_twice else ''}"
    for rank, message in told.items():
        assert message.startswith(f"{begin}rank 1 of {WORLD} ({names[1]}) has failed in operation "), message
        assert "pickle" in message
        assert (f"rank {rank} of {WORLD} ({names[rank]}) waited in operation " in message) == (rank != 1)
