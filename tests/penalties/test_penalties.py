"""The shapes of the group threshold: what each closed form minimizes; penalties as objects."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fixed_gradients import Array
from optimizer_cases import assert_identical, parameter, train
from over import over
from sparsegroup import MCP, GroupAdam, GroupMomentum, Penalty
from sparsegroup.penalties import Hard, Lasso, MetricNorm
from sparsegroup.training import Config
from table_cases import through_a_file

SIZE = 3
TAU_PER_L21 = math.sqrt(SIZE)


def solve(z: Array, sigma: float, **options: Any) -> Array:
    """x⁺ for rows `z` `[n, SIZE]` and a σ equal everywhere: from x = 0, SGD has z = g and σ = 1 / lr."""
    parameter = torch.nn.Parameter(torch.zeros(z.shape, dtype=torch.float64))
    parameter.grad = torch.tensor(z)
    GroupMomentum([parameter], lr=1 / sigma, momentum=0.0, **options).step()
    return parameter.detach().numpy()


def directions(seed: int, n: int = 200, longest: float = 6) -> Array:
    """Rows of all lengths up to `longest`; with 6, about half of them are above the thresholds of the tests."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, SIZE))
    return z / np.linalg.norm(z, axis=1, keepdims=True) * rng.uniform(0, longest, size=(n, 1))


PENALTY: Mapping[str, Callable[[float, float, float, float], float]] = {
    "lasso": lambda r, tau, c, gamma: tau * r,
    "mcp": lambda r, tau, c, gamma: (
        tau * r - c * r**2 / (2 * gamma) if r < gamma * tau / c else gamma * tau**2 / (2 * c)
    ),
    "hard": lambda r, tau, c, gamma: tau**2 / (2 * c) if r > 0 else 0.0,
}


@over("l1", [0.0, 0.7])
@over(("penalty", "gamma"), [("lasso", 0.0), ("hard", 0.0), ("mcp", 1.2), ("mcp", 4.0)])
def test_with_equal_sigma_the_closed_form_minimizes_its_objective(penalty: str, gamma: float, l1: float) -> None:
    sigma, l21, l2 = 1.7, 1.1, 0.4
    c, tau = sigma + 2 * l2, TAU_PER_L21 * l21

    def objective(x: Array, z: Array) -> float:
        r = float(np.linalg.norm(x))
        return float(c / 2 * r**2 + z @ x + l1 * np.abs(x).sum()) + PENALTY[penalty](r, tau, c, gamma)

    rng = np.random.default_rng(3)
    z = directions(4, n=40)
    solved = solve(z, sigma, l1=l1, l21=l21, l2=l2, penalty=MCP(gamma=gamma) if penalty == "mcp" else penalty)
    assert 0.2 < solved.any(axis=1).mean() < 0.9
    for z_row, x in zip(z, solved, strict=True):
        s = -np.sign(z_row) * np.maximum(np.abs(z_row) - l1, 0)
        along = s / max(float(np.linalg.norm(s)), 1e-300)
        rivals = [r * along for r in np.linspace(0, 4, 81)]
        rivals += [x * (1 + 1e-3), x * (1 - 1e-3), x + 1e-3 * along]
        rivals += [x + scale * rng.normal(size=SIZE) for scale in (1e-3, 1e-2, 0.1, 1.0) for _ in range(10)]
        best = objective(x, z_row)
        assert best <= min(objective(rival, z_row) for rival in rivals) + 1e-12


# As objects


def test_penalties_are_values_and_a_name_is_the_penalty_at_its_defaults() -> None:
    assert [Penalty.of(name) for name in ("lasso", "mcp", "hard")] == [Lasso(), MCP(gamma=3.0), Hard()]
    assert MCP(gamma=2.5) == MCP(2.5) != MCP()
    assert Lasso() != Hard()
    assert len({MCP(2.5), MCP(gamma=2.5), MCP(), Lasso()}) == 3
    assert (str(MCP()), str(MCP(2.5)), repr(MCP(2.5))) == ("mcp", "mcp (gamma = 2.5)", "MCP(gamma=2.5)")


@over(
    ("given", "error", "message"),
    [
        ({"name": "mcp", "gamma": 1}, ValueError, r"gamma of the penalty 'mcp' must be > 1, got 1"),
        ({"name": "mcp", "gamma": "a"}, TypeError, "gamma of the penalty 'mcp' must be a number, got 'a'"),
        ({"name": "mcp", "gama": 2}, TypeError, "the penalty 'mcp' has no parameter 'gama'"),
        ("scud", ValueError, r"penalty must be one of 'lasso', 'mcp', 'hard'.* got 'scud'"),
    ],
)
def test_a_message_names_what_is_wrong_with_a_penalty(given: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=rf"{message}.* \(GroupAdam\)"):
        GroupAdam([parameter(2)], penalty=given)
    with pytest.raises(ValueError, match=f"optimizer.penalty: {message}"):
        Config.of(penalty=given)


def test_a_name_belongs_to_one_penalty() -> None:
    with pytest.raises(ValueError, match="there is a penalty 'mcp' already"):

        class Other(Penalty):
            name = "mcp"

    assert Penalty.of("mcp") == MCP()


@over("penalty", ["lasso", "mcp", "hard", MCP(), MCP(gamma=2.5), Hard(), {"name": "mcp", "gamma": 2.5}])
def test_a_state_dict_and_a_config_hold_plain_values_and_bring_the_penalty_back(penalty: Any) -> None:
    optimizer = GroupAdam([parameter(4, 3)], l21=0.5, penalty=penalty, norm=MetricNorm())
    train(optimizer, 3)
    loaded = through_a_file(optimizer.state_dict())
    other = GroupAdam([parameter(4, 3)])
    other.load_state_dict(loaded)
    group = other.param_groups[0]
    assert (group["penalty"], group["norm"]) == (Penalty.of(penalty), MetricNorm())
    with torch.no_grad():
        group["params"][0].copy_(optimizer.param_groups[0]["params"][0])
    train(other, 2, start=3)
    train(optimizer, 2, start=3)
    assert_identical(group["params"], optimizer.param_groups[0]["params"])
    config = Config.of(penalty=penalty)
    plain = config.as_dict()["optimizer"]["penalty"]
    assert plain == Penalty.of(penalty).plain == loaded["param_groups"][0]["penalty"]
    assert Config.of(**{"optimizer.penalty": plain}) == config


def test_weight_decay_with_l21_is_warned_of_where_the_optimizer_is_made() -> None:
    weight = nn.Parameter(torch.ones(500, 4))
    with pytest.warns(RuntimeWarning, match=r"weight_decay=0.5 .*l21=0.001 .*\(param group 0\)\. Give l2") as caught:
        GroupAdam([weight], l21=1e-3, weight_decay=0.5)
    assert caught[0].filename == __file__
    # Not where no row vanishes by it: the rows of a small weight are in every batch.
    for x, options in (
        (weight, {"weight_decay": 0.5}),
        (weight, {"l21": 1e-3}),
        (weight, {"l21": 1e-3, "weight_decay": 0.5, "groups": "columns"}),
        (weight[:8].detach(), {"l21": 1e-3, "weight_decay": 0.5}),
    ):
        GroupAdam([x], **options)
