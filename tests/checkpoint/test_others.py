"""A checkpoint of another model or optimizer is refused, in words; one with another λ is gone on with."""

import gc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

from checkpoint_cases import LAMBDAS, Training, bits, clicks, unchanged
from over import over
from sparsegroup import MCP, GroupAdagrad, GroupAdaHessian, GroupAdam, HashEmbedding
from sparsegroup.checkpoint import CheckpointError, load_checkpoint, save_checkpoint


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    training = clicks()
    for _ in range(4):
        training.step()
    training.save(tmp_path / "one", step=4)
    return tmp_path / "one"


def with_two(training: Training) -> Training:
    training.optimizers = [*training.optimizers, SGD([nn.Parameter(torch.zeros(1))])]
    return training


def other_parts(training: Training) -> Training:
    training.optimizers = [GroupAdam([training.tables[0].weight])]
    return training


def with_module(training: Training, name: str, module: nn.Module) -> Training:
    training.model.set_submodule(name, module)
    return training


def in_another_precision(training: Training) -> Training:
    training.model.network.to(torch.bfloat16)  # type: ignore[operator, union-attr]
    return training


@over(
    ("other", "message"),
    [
        (lambda: clicks(dim=4), r"another model's: the table '.*' has dim .* \(the model has .*\)"),
        (lambda: clicks(seed=1), r"another model's: the table '.*' has seed 0 \(the model has 1\)"),
        (lambda: clicks(dtype=torch.float64), r"dtype 'float32' \(the model has 'float64'\)"),
        (lambda: clicks(hidden=5), r"another model's: network\.\d\.\w+ is float32 \[.*\] there, float32 \[.*\] in the"),
        (lambda: clicks(GroupAdagrad), "written with the optimizer adam, this one is adagrad: .* the weights are kept"),
        (lambda: with_two(clicks()), "written with the optimizer adam, this one is adam, SGD"),
        (lambda: other_parts(clicks()), "the optimizer's state does not fit"),
        (
            lambda: with_module(clicks(), "deep", nn.Identity()),
            "it has the tables 'deep.of/items.0', 'users', the model 'users'",
        ),
        (
            lambda: with_module(clicks(), "network.4", nn.Linear(1, 1)),
            "another model's: network.4.bias is nothing there, float32 .* in the model",
        ),
        (lambda: in_another_precision(clicks()), "is float32 .* there, bfloat16 .* in the model"),
        (
            lambda: with_module(clicks(), "users", HashEmbedding(3, field_bits=2, max_rows=3)),
            "rows are more than max_rows=3 of the model",
        ),
    ],
)
def test_another_training_is_refused(saved: Path, other: Callable[[], Training], message: str) -> None:
    training = other()
    with unchanged(training), pytest.raises(CheckpointError, match=message) as refused:
        training.load(saved)
    assert str(refused.value).startswith(f"{saved}: ")
    assert str(refused.value).count(str(saved)) == 1
    before = {path: path.read_bytes() for path in saved.iterdir()}
    with pytest.raises(CheckpointError, match="exists already"):
        training.save(saved)
    assert {path: path.read_bytes() for path in saved.iterdir()} == before


def test_the_second_optimizer_does_not_fit_and_the_first_stays_as_it_was(tmp_path: Path) -> None:
    def make(second: int) -> Training:
        torch.manual_seed(0)
        model = nn.Linear(2, 2)
        training = Training(
            model, [Adam([model.weight]), Adam([model.bias, nn.Parameter(torch.zeros(second))][:second])]
        )
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        for optimizer in training.optimizers:
            optimizer.step()
        return training

    make(1).save(tmp_path / "one")
    other = make(2)
    with unchanged(other), pytest.raises(CheckpointError, match="the optimizer's state does not fit"):
        other.load(tmp_path / "one")


def test_a_load_hook_of_the_model_that_fails_leaves_nothing_changed(tmp_path: Path) -> None:
    """Nor the optimizer's random numbers."""
    training, other = (
        clicks(partial(GroupAdaHessian, generator=torch.Generator().manual_seed(seed))) for seed in (0, 1)
    )
    training.save(tmp_path / "one")
    calls = []

    def fail(module: nn.Module, incompatible_keys: object) -> None:
        calls.append(other.optimizers[0].generator.get_state())  # type: ignore[attr-defined]
        raise RuntimeError("the hook has failed")

    other.model.register_load_state_dict_post_hook(fail)
    with unchanged(other), pytest.raises(RuntimeError, match="the hook has failed"):
        other.load(tmp_path / "one")
    assert torch.equal(calls[0], training.optimizers[0].generator.get_state()), "until then it has been loaded"  # type: ignore[attr-defined]


def test_the_weights_alone_are_taken_for_another_optimizer(saved: Path) -> None:
    was, other = clicks(), clicks(GroupAdagrad)
    was.load(saved)
    load_checkpoint(saved, other.model)
    for one, two in zip(was.tables, other.tables, strict=True):
        assert bits(one.state_dict()) == bits(two.state_dict())
    assert bits(dict(was.model.named_parameters())["network.0.weight"]) == bits(
        dict(other.model.named_parameters())["network.0.weight"]
    )
    assert other.optimizers[0].state_dict()["state"] == {}
    fresh = clicks(GroupAdagrad)
    for one, two in zip(was.tables, fresh.tables, strict=True):
        two.load_state_dict(one.state_dict())
    fresh.model.network.load_state_dict(was.model.network.state_dict())  # type: ignore[operator, union-attr]
    rng = torch.get_rng_state()
    for training in (other, fresh):
        torch.set_rng_state(rng)
        training.draw.manual_seed(5)
        training.step()
    assert bits(other.model.state_dict()) == bits(fresh.model.state_dict())
    assert bits(other.optimizers[0].state_dict()) == bits(fresh.optimizers[0].state_dict())
    gc.collect()
    assert set(other.tables[0].table.rows.parts) == {"weight", "u", *GroupAdagrad.rule.state}, "none of Adam's"


def test_a_penalty_is_the_same_by_name_and_as_an_object(tmp_path: Path) -> None:
    was, same, other = (clicks(lambdas={"l21": 0.003, "penalty": one}) for one in (MCP(2.5), MCP(2.5), "hard"))
    was.save(tmp_path / "one")
    assert same.load(tmp_path / "one", settings="own").notes == []
    (note,) = other.load(tmp_path / "one", settings="own").notes
    assert note.startswith("penalty is {'name': 'mcp', 'gamma': 2.5} in the checkpoint and 'hard' here: ")


def test_another_lambda_goes_on_from_where_the_first_one_has_led(saved: Path) -> None:
    was, own, taken = (clicks(lambdas=lambdas) for lambdas in (LAMBDAS, {"l21": 0.5}, {"l21": 0.5}))
    assert was.load(saved).notes == []
    assert set(own.load(saved, settings="own").notes) == {
        "l1 is 0.0001 in the checkpoint and 0.0 here: that is taken; u and the moments are kept",
        "l21 is 0.003 in the checkpoint and 0.5 here: that is taken; u and the moments are kept",
    }
    assert "l21 is 0.003 in the checkpoint and 0.5 here: the checkpoint's is taken" in taken.load(saved).notes
    groups = [training.optimizers[0].param_groups[0] for training in (was, own, taken)]
    assert [group["l21"] for group in groups] == [0.003, 0.5, 0.003]
    states = [bits(training.optimizers[0].state_dict()["state"]) for training in (was, own, taken)]
    assert states[0] == states[1] == states[2]
    assert bits(was.facts()) == bits(taken.facts())
    by_hand = clicks()
    by_hand.load(saved)
    by_hand.optimizers[0].param_groups[0].update(l21=0.5, l1=0.0)
    rng = torch.get_rng_state()
    for training in (own, by_hand):
        torch.set_rng_state(rng)
        training.draw.manual_seed(5)
        training.step()
    assert bits(own.facts()) == bits(by_hand.facts())
    assert own.tables[0].num_live < own.tables[0].num_rows


def test_changes_of_something_else_are_not_written(tmp_path: Path) -> None:
    training = clicks()
    training.save(tmp_path / "one", track=True)
    other = clicks()
    with pytest.raises(CheckpointError, match=r"have not been tracked since .*one"):
        save_checkpoint(tmp_path / "two", other.model, other.optimizers, parent=tmp_path / "one")
    training.tables[0].load_state_dict(training.tables[0].state_dict())
    with pytest.raises(CheckpointError, match=r"have not been tracked since .*one"):
        training.save(tmp_path / "two", parent=tmp_path / "one")
    assert [path.name for path in tmp_path.iterdir()] == ["one"]
