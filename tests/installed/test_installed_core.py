"""The wheel without extras, in an environment of its own and without the repository: see `make test-wheel`."""

import subprocess
import sys
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

import sparsegroup
from sparsegroup import GroupAdam, HashEmbedding, feature_rate, param_groups
from sparsegroup.errors import MissingExtraError
from sparsegroup.models import DCN


def test_it_is_the_wheel_and_the_core_alone() -> None:
    assert "site-packages" in Path(sparsegroup.__file__).parts
    needed = [line for line in requires("sparsegroup") or [] if "extra ==" not in line]
    assert {line.split(">")[0].split("<")[0] for line in needed} == {"filelock", "numba", "numpy", "torch"}
    assert not [name for name in ("polars", "typer", "sklearn", "safetensors", "xxhash") if find_spec(name)]


def test_without_a_penalty_a_step_is_adams() -> None:
    gradient = torch.randn(5, 4, generator=torch.Generator().manual_seed(0))
    ours, theirs = (torch.nn.Parameter(torch.ones(5, 4)) for _ in range(2))
    for parameter, optimizer in ((ours, GroupAdam([ours], lr=0.1)), (theirs, torch.optim.Adam([theirs], lr=0.1))):
        for _ in range(3):
            parameter.grad = gradient.clone()
            optimizer.step()
    torch.testing.assert_close(ours, theirs)


def test_a_penalty_zeroes_the_rows_that_do_not_matter() -> None:
    embedding = torch.nn.Embedding(50, 4, sparse=True)
    optimizer = GroupAdam(param_groups(embedding, l21=0.5), lr=0.01)
    weights = torch.where(torch.arange(50) < 10, 1.0, 1e-3)
    for _ in range(5):
        optimizer.zero_grad()
        (embedding(torch.arange(50)).sum(dim=1) * weights).sum().backward()
        optimizer.step()
    assert feature_rate(embedding.weight) == 0.2


def test_a_table_and_a_network_are_stepped() -> None:
    table, network = HashEmbedding(4), DCN(2, 4)
    optimizer = GroupAdam([{"params": table.parameters(), "l21": 1e-3}, {"params": network.parameters()}], lr=0.1)
    keys = torch.tensor([[1, 2], [3, 2]])
    before = network(table(keys)).detach()
    for _ in range(5):
        optimizer.zero_grad()
        network(table(keys)).sum().backward()
        optimizer.step()
    assert (network(table(keys)) < before).all()
    assert len(table) == 3


@pytest.mark.parametrize(("room", "extra"), [("checkpoint", "checkpoint"), ("data", "cli"), ("serving", "cli")])
def test_what_an_extra_holds_says_how_to_get_it(room: str, extra: str) -> None:
    with pytest.raises(MissingExtraError, match=rf"pip install 'sparsegroup\[{extra}\]'"):
        __import__(f"sparsegroup.{room}")


@pytest.mark.parametrize("command", [("-m", "sparsegroup"), (str(Path(sys.executable).with_name("sparsegroup")),)])
def test_the_command_line_says_how_to_get_it(command: tuple[str, ...]) -> None:
    line = (sys.executable, *command) if command[0] == "-m" else command
    done = subprocess.run([*line, "demo"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.endswith("pip install 'sparsegroup[cli]'\n")
