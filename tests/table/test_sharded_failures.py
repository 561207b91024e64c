"""A rank that dies or hangs: no other waits for ever, and each says in which operation it has waited."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from failing_ranks import WORLD, Training, hang, kill, played
from sparsegroup.checkpoint import save_checkpoint
from sparsegroup.table import ExchangeError

pytestmark = pytest.mark.whole


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


@pytest.mark.parametrize(
    ("scene", "operation", "roles"),
    [
        pytest.param(backward, "gradients of lookup", {1: kill}, id="killed in a step"),
        pytest.param(lookup_ahead, "keys of a lookup in training", {0: kill}, id="the first killed, and the store"),
        pytest.param(save, "writing a checkpoint", {2: kill}, id="killed while it saves"),
        pytest.param(lookup, "keys of a lookup in training", {1: hang}, id="hangs"),
    ],
)
def test_who_does_not_come(scene: Any, operation: str, roles: Mapping[int, Callable[[], None]], tmp_path: Path) -> None:
    told = played(tmp_path, scene, roles)
    assert set(told) == set(range(WORLD)) - set(roles)
    for rank, message in told.items():
        assert message.startswith(f"HashEmbedding: rank {rank} of {WORLD}, operation "), message
        assert f", '{operation}" in message, message
        assert "Another rank has ended or does not answer" in message


def wait_in_vain(training: Training) -> None:
    with pytest.raises(ExchangeError):
        lookup(training)
    training.table(torch.arange(10))


def test_nothing_is_exchanged_after_a_failure(tmp_path: Path) -> None:
    for message in played(tmp_path, wait_in_vain, {1: kill}).values():
        assert "nothing can be exchanged any more: rank " in message, message


def send_what_cannot_be_sent(training: Training) -> str:
    shards = training.table.across.shards
    with pytest.raises(Exception, match="pickle") as caught:
        shards.of_all([(lambda: 1) if shards.rank == 1 else 1], "parts")
    training.table(torch.arange(10))
    return str(caught.value)


def test_one_that_cannot_send_says_so_on_all(tmp_path: Path) -> None:
    told = played(tmp_path, send_what_cannot_be_sent, {})
    for rank in (0, 2):
        assert told[rank].startswith("no error: rank 1 of 3: "), told[rank]
