"""The shapes of the group threshold: the limits of MCP, and what each closed form minimizes."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from fixed_gradients import Array
from over import over
from sparsegroup import MCP, GroupMomentum

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


@over("l1", [0.0, 0.5])
@over("norm", ["s", "s_tilde", "metric"])
def test_mcp_lies_between_the_lasso_and_the_hard_threshold_and_tends_to_both(norm: str, l1: float) -> None:
    z, options = directions(0, longest=20), {"l1": l1, "l21": 1.5, "l2": 0.3, "norm": norm}
    lasso, mcp, hard = (solve(z, 2.0, penalty=p, **options) for p in ("lasso", "mcp", "hard"))
    gaps = [np.abs(solve(z, 2.0, penalty=MCP(gamma=g), **options) - lasso).max() for g in (1e1, 1e4, 1e9)]
    assert gaps[0] > 1e-2 > gaps[1] > 1e-6 > gaps[2]
    np.testing.assert_array_equal(solve(z, 2.0, penalty=MCP(gamma=1 + 1e-9), **options), hard)
    for one in (lasso, hard):
        assert 0 < (one != 0).any(axis=1).mean() < 1
    assert (np.abs(lasso) <= np.abs(mcp)).all()
    assert (np.abs(mcp) <= np.abs(hard)).all()
    # Only the lasso shrinks large groups.
    large = np.linalg.norm(z, axis=1) == np.linalg.norm(z, axis=1).max()
    np.testing.assert_array_equal(mcp[large], hard[large])
    assert (np.abs(lasso[large]) < np.abs(mcp[large])).any()


PENALTY: Mapping[str, Callable[[float, float, float, float], float]] = {
    "lasso": lambda r, tau, c, gamma: tau * r,
    "mcp": lambda r, tau, c, gamma: (
        tau * r - c * r**2 / (2 * gamma) if r < gamma * tau / c else gamma * tau**2 / (2 * c)
    ),
    "hard": lambda r, tau, c, gamma: tau**2 / (2 * c) if r > 0 else 0.0,
}


@over("l1", [0.0, 0.7])
@over("gamma", [1.2, 4.0])
@over("penalty", PENALTY)
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


def test_the_penalties_minimize_different_objectives() -> None:
    """Otherwise the test above could not tell them apart."""
    z = directions(5)
    lasso, mcp, hard = (solve(z, 1.7, l21=1.1, penalty=p) for p in ("lasso", MCP(gamma=2.0), "hard"))
    assert np.abs(lasso - mcp).max() > 0.1
    assert np.abs(mcp - hard).max() > 0.1
