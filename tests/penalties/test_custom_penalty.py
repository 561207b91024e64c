"""How to add a penalty: one file from outside the package, and every backend takes it. Group SCAD."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fixed_gradients import Array
from gpu_cases import REGULARIZER, assert_step, by_table, by_tensor, case
from optimizer_cases import parameter, refused, train
from over import over
from scad import SCAD
from sparsegroup import GroupAdam, HashEmbedding, Penalty
from sparsegroup.checkpoint import load_checkpoint, save_checkpoint
from sparsegroup.rules import ADAM, bind
from sparsegroup.training import Config

TAU = 1.3


def kept(norm: Array, penalty: Penalty, namespace: Any = np) -> Array:
    """k of groups with these norms."""
    shrinkage = bind(type(penalty).shrinkage, namespace)
    with np.errstate(divide="ignore"):
        return 1 - shrinkage(norm, TAU, 0.0, 1.0, *penalty.scalars())


def price(r: Array, c: float, a: float) -> Array:
    """P(r), the integral of the P' that `SCAD` states."""
    y = c * r
    middle = TAU**2 + (a * TAU * (y - TAU) - (y**2 - TAU**2) / 2) / (a - 1)
    return np.where(y <= TAU, TAU * y, np.where(y <= a * TAU, middle, (a + 1) * TAU**2 / 2)) / c


@over("a", [2.1, 3.7, 20.0])
@over("c", [0.5, 3.0])
def test_it_minimises_what_it_states(a: float, c: float) -> None:
    for s in np.linspace(0.05, 1.5 * a * TAU, 60):
        r = np.linspace(0, 2 * s / c, 40_001)
        best = r[np.argmin(c / 2 * r**2 - s * r + price(r, c, a))]
        assert kept(s, SCAD(a)) * s / c == pytest.approx(best, abs=1.1 * r[1])


def test_it_is_0_below_tau_continuous_and_1_from_a_tau_on() -> None:
    norm = np.linspace(0, 6 * TAU, 600_001)
    k = kept(norm, SCAD())
    assert (k[norm <= TAU] == 0).all()
    assert (k[norm > 3.7 * TAU] == 1).all()
    assert (np.diff(k) >= 0).all()
    assert np.diff(k).max() < 1e-4
    assert np.isnan(kept(np.array([math.nan]), SCAD())).all()


@over("dtype", [torch.float32, torch.float64])
@over(("norm", "l21"), [("s", 0.2), ("metric", 1.0)])
def test_the_compiled_step_is_the_eager_one(norm: Any, l21: float, dtype: torch.dtype) -> None:
    def trained(**how: Any) -> Tensor:
        x = torch.nn.Parameter(parameter(9, 5).detach().to(dtype))
        optimizer = GroupAdam([x], lr=0.1, l21=l21, norm=norm, penalty=SCAD(a=2.5), **how)
        for t in range(30):
            x.grad = torch.randn(9, 5, generator=torch.Generator().manual_seed(t)).to(dtype)
            x.grad[:4] *= 1e-2
            optimizer.step()
        return x.detach()

    compiled, eager = trained(), trained(foreach=True)
    assert {bool(row.any()) for row in compiled} == {False, True}
    torch.testing.assert_close(compiled, eager, rtol=1e-12 if dtype == torch.float64 else 1e-4, atol=1e-6)


def test_a_table_takes_it() -> None:
    table = HashEmbedding(3, dtype=torch.float64)
    keys = torch.arange(6)
    table(keys)
    x = torch.nn.Parameter(table.lookup(keys).clone())
    ours, theirs = (GroupAdam([p], lr=0.1, l21=0.05, penalty=SCAD()) for p in (table.weight, x))
    for t in range(20):
        pull = torch.randn(6, 3, generator=torch.Generator().manual_seed(t), dtype=torch.float64)
        pull[:3] *= 1e-2
        (table(keys) * pull).sum().backward()
        x.grad = pull
        for optimizer in (ours, theirs):
            optimizer.step()
            optimizer.zero_grad()
    assert 0 < table.num_live < 6
    torch.testing.assert_close(table.lookup(keys), x.detach(), rtol=1e-12, atol=1e-14)


@over("way", [by_tensor, by_table])
def test_tritons_kernels_take_it(way: Any) -> None:
    one = case(ADAM, (13, 5), replace(REGULARIZER, penalty=SCAD(a=2.5)))
    with np.errstate(all="ignore"):  # the interpreter is NumPy, which says what it divides by
        assert_step(one, way(one))


def test_its_state_and_its_checkpoint_bring_it_back(tmp_path: Path) -> None:
    x, y = parameter(4, 3), parameter(4, 3)
    optimizer, other = GroupAdam([x], l21=0.05, penalty=SCAD(a=2.5)), GroupAdam([y])
    train(optimizer, 3)
    assert optimizer.state_dict()["param_groups"][0]["penalty"] == {"name": "scad", "a": 2.5}
    other.load_state_dict(optimizer.state_dict())
    assert other.param_groups[0]["penalty"] == SCAD(a=2.5)
    table, again = HashEmbedding(3), HashEmbedding(3)
    optimizers = [GroupAdam(table.parameters(), l21=0.05, penalty=SCAD(a=2.5)), GroupAdam(again.parameters())]
    save_checkpoint(tmp_path / "saved", table, optimizers[0])
    load_checkpoint(tmp_path / "saved", again, optimizers[1])
    assert optimizers[1].param_groups[0]["penalty"] == SCAD(a=2.5)


def test_it_has_a_name_in_settings() -> None:
    assert Config.of(penalty="scad").optimizer.penalty == SCAD()
    assert Config.of(penalty={"name": "scad", "a": 3}).as_dict()["optimizer"]["penalty"] == {"name": "scad", "a": 3.0}


def test_a_parameter_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a of the penalty 'scad' must be > 2, got 2"):
        SCAD(a=2)
    optimizer = GroupAdam([parameter(2)])
    with refused(optimizer, ValueError, r"a of the penalty 'scad' must be > 2, got 1 \(param group 1\)"):
        optimizer.add_param_group({"params": [parameter(2)], "penalty": {"name": "scad", "a": 1}})
