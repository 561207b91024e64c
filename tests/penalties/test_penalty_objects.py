"""Penalties as objects: their names and parameters, and what states, files and older versions hold of them."""

import io
from typing import Any

import pytest
import torch

from optimizer_cases import assert_identical, parameter, train
from over import over
from sparsegroup import MCP, GroupAdam, Penalty
from sparsegroup.penalties import Hard, Lasso, MetricNorm, Norm
from sparsegroup.penalties import parameter as penalty_parameter
from sparsegroup.rules.hyperparameter import at_least
from sparsegroup.training import Config

SHAPES = ["lasso", "mcp", "hard", MCP(), MCP(gamma=2.5), Hard(), {"name": "mcp", "gamma": 2.5}]


def optimizer_with(penalty: Any, steps: int = 3, **options: Any) -> GroupAdam:
    optimizer = GroupAdam([parameter(4, 3)], l21=0.5, penalty=penalty, **options)
    train(optimizer, steps)
    return optimizer


def test_a_name_is_the_penalty_at_its_defaults() -> None:
    assert [Penalty.of(name) for name in ("lasso", "mcp", "hard")] == [Lasso(), MCP(gamma=3.0), Hard()]
    for name, same in (("mcp", MCP()), ("hard", Hard()), ("mcp", {"name": "mcp", "gamma": 3})):
        ours, theirs = optimizer_with(name), optimizer_with(same)
        assert_identical(ours.param_groups[0]["params"], theirs.param_groups[0]["params"])


def test_a_parameter_is_checked_and_named() -> None:
    with pytest.raises(ValueError, match=r"gamma of the penalty 'mcp' must be > 1, got 1"):
        MCP(gamma=1)
    with pytest.raises(TypeError, match="gamma of the penalty 'mcp' must be a number, got 'a'"):
        MCP(gamma="a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"penalty 'mcp' has no parameter 'gama' \(param group 0\)"):
        GroupAdam([parameter(2)], penalty={"name": "mcp", "gama": 2})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"penalty must be one of 'lasso', 'mcp', 'hard'.* got 'scud'"):
        Penalty.of("scud")


def test_penalties_are_values() -> None:
    assert MCP(gamma=2.5) == MCP(2.5) != MCP()
    assert Lasso() != Hard()
    assert len({MCP(2.5), MCP(gamma=2.5), MCP(), Lasso()}) == 3
    assert (str(MCP()), str(MCP(2.5)), repr(MCP(2.5))) == ("mcp", "mcp (gamma = 2.5)", "MCP(gamma=2.5)")


def test_a_name_belongs_to_one_penalty() -> None:
    with pytest.raises(ValueError, match="there is a penalty 'mcp' already"):

        class Other(Penalty):
            name = "mcp"
            gamma: float = penalty_parameter(3.0, at_least(1))

    assert Penalty.of("mcp") == MCP()


@over("penalty", SHAPES)
def test_a_state_dict_holds_plain_values_and_brings_the_penalty_back(penalty: Any) -> None:
    optimizer = optimizer_with(penalty, norm=MetricNorm())
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    other = GroupAdam([parameter(4, 3)])
    other.load_state_dict(loaded)
    group = other.param_groups[0]
    assert (Penalty.of(group["penalty"]), Norm.of(group["norm"])) == (Penalty.of(penalty), MetricNorm())
    with torch.no_grad():
        group["params"][0].copy_(optimizer.param_groups[0]["params"][0])
    train(other, 2, start=3)
    train(optimizer, 2, start=3)
    assert_identical(group["params"], optimizer.param_groups[0]["params"])


@over("penalty", SHAPES)
def test_a_config_holds_a_penalty_as_files_do(penalty: Any) -> None:
    config = Config.of(penalty=penalty)
    assert config.optimizer.penalty == Penalty.of(penalty)
    assert config.as_dict()["optimizer"]["penalty"] == Penalty.of(penalty).plain
    assert Config.of(**{"optimizer.penalty": config.as_dict()["optimizer"]["penalty"]}) == config


@over(
    ("penalty", "message"),
    [
        ({"name": "mcp", "gamma": 0.5}, "gamma of the penalty 'mcp' must be > 1, got 0.5"),
        ({"name": "mcp", "gama": 2}, "the penalty 'mcp' has no parameter 'gama'"),
        ("scud", "penalty must be one of 'lasso', 'mcp', 'hard'"),
    ],
)
def test_a_config_names_what_is_wrong_with_a_penalty(penalty: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"optimizer.penalty: {message}"):
        Config.of(penalty=penalty)
