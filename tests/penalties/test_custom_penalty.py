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
from optimizer_cases import parameter, refused
from over import over
from scad import SCAD
from sparsegroup import GroupAdam, HashEmbedding, Penalty
from sparsegroup.checkpoint import load_checkpoint, save_checkpoint
from sparsegroup.rules import ADAM, bind
from sparsegroup.training import Config

TAU = 1.3


def kept(norm: Array, penalty: Penalty) -> Array:
    """k of groups with these norms."""
    with np.errstate(divide="ignore"):
        return 1 - bind(type(penalty).shrinkage, np)(norm, TAU, 0.0, 1.0, *penalty.scalars())


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
    assert np.isnan(kept(np.array([math.nan]), SCAD(a))).all()


@over("dtype", [torch.float32, torch.float64])
@over(("norm", "l21"), [("s", 0.2), ("metric", 1.0)])
def test_the_compiled_step_is_the_eager_one_and_that_of_a_table(norm: Any, l21: float, dtype: torch.dtype) -> None:
    keys, table = torch.arange(9), HashEmbedding(5, std=1.0, dtype=dtype)
    start = table(keys).detach()

    def steps(x: Tensor, **how: Any) -> None:
        optimizer = GroupAdam([x], lr=0.1, l21=l21, norm=norm, penalty=SCAD(a=2.5), **how)
        for t in range(30):
            pull = torch.randn(9, 5, generator=torch.Generator().manual_seed(t)).to(dtype)
            pull[:4] *= 1e-2
            optimizer.zero_grad()
            ((table(keys) if x is table.weight else x) * pull).sum().backward()
            optimizer.step()

    compiled, eager = (torch.nn.Parameter(start.clone()) for _ in range(2))
    steps(compiled)
    steps(eager, foreach=True)
    steps(table.weight)
    assert {bool(row.any()) for row in compiled} == {False, True}
    tolerance = {"rtol": 1e-12 if dtype == torch.float64 else 1e-4, "atol": 1e-6}
    torch.testing.assert_close(compiled, eager, **tolerance)
    torch.testing.assert_close(table.lookup(keys), eager.detach(), **tolerance)


@over("way", [by_tensor, by_table])
def test_tritons_kernels_take_it(way: Any) -> None:
    one = case(ADAM, (13, 5), replace(REGULARIZER, penalty=SCAD(a=2.5)))
    with np.errstate(all="ignore"):  # the interpreter is NumPy, which says what it divides by
        assert_step(one, way(one))


def test_states_checkpoints_and_settings_have_it_and_a_parameter_out_of_range_is_refused(tmp_path: Path) -> None:
    table, again = HashEmbedding(3), HashEmbedding(3)
    optimizers = [GroupAdam(table.parameters(), l21=0.05, penalty=SCAD(a=2.5)), GroupAdam(again.parameters())]
    assert optimizers[0].state_dict()["param_groups"][0]["penalty"] == {"name": "scad", "a": 2.5}
    save_checkpoint(tmp_path / "saved", table, optimizers[0])
    load_checkpoint(tmp_path / "saved", again, optimizers[1])
    assert optimizers[1].param_groups[0]["penalty"] == SCAD(a=2.5)
    assert Config.of(penalty="scad").optimizer.penalty == SCAD()
    assert Config.of(penalty={"name": "scad", "a": 3}).as_dict()["optimizer"]["penalty"] == {"name": "scad", "a": 3.0}
    with pytest.raises(ValueError, match=r"a of the penalty 'scad' must be > 2, got 2"):
        SCAD(a=2)
    dense = GroupAdam([parameter(2)])
    with refused(dense, ValueError, r"a of the penalty 'scad' must be > 2, got 1 \(param group 1\)"):
        dense.add_param_group({"params": [parameter(2)], "penalty": {"name": "scad", "a": 1}})
