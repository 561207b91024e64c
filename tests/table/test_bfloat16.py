"""Tables in the host's memory that keep u and the optimizer's state in bfloat16, `state_dtype=torch.bfloat16`."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from checkpoint_cases import bits, clicks
from family import FAMILY, Member
from over import over
from sparsegroup import GroupAdam, GroupFTRL, GroupOptimizer, GroupRowWiseAdagrad, HashEmbedding
from sparsegroup.checkpoint import Checkpoints, load_checkpoint, save_checkpoint
from sparsegroup.kernels.rounding import to_bfloat16
from sparsegroup.optim.step import step_seed
from sparsegroup.table.rows import host
from table_cases import Lookup, random_keys, take_step

BF16 = torch.bfloat16
NO_LAMBDAS = {"l1": 0.0, "l21": 0.0}
KEYS = random_keys(120)


def lookup(step: int, dim: int, count: int = 60) -> Lookup:
    rng = np.random.default_rng(step)
    keys = KEYS[torch.from_numpy(rng.permutation(min(len(KEYS), 40 + 20 * step))[:count])]
    gradient, hessian = torch.from_numpy(rng.normal(size=(2, len(keys), dim))).float()
    gradient[rng.random(len(keys)) < 0.1] = 0.0
    return Lookup(keys, gradient, hessian)


def build(member: Member, dim: int = 5, state_dtype: torch.dtype | None = BF16, **options: Any) -> Any:
    table = HashEmbedding(dim, std=0.1, seed=1)
    if "initial_accumulator_value" in member.hyperparameters:
        options = {"initial_accumulator_value": 0.125, **options}  # which is a bfloat16
    return table, member.build(table.weight, **{"l1": 0.01, "l21": 0.05, "state_dtype": state_dtype, **options})


def step(table: HashEmbedding, optimizer: GroupOptimizer, one: Lookup) -> None:
    take_step(optimizer, one.loss(table(one.keys)))


def state_of(table: HashEmbedding, keys: Tensor) -> dict[str, Tensor]:
    """The parts of the keys' rows."""
    rows = table.table.directory.find(keys.numpy())
    return {part: torch.from_numpy(table.table.rows.read(part, rows)) for part in table.table.rows.parts}


def twin_of(member: Member, table: HashEmbedding, optimizer: GroupOptimizer, **options: Any) -> Any:
    """A table and an optimizer that hold the same in float32."""
    twin, its = build(member, table.dim, None, **options)
    twin.load_state_dict(table.state_dict())
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0]["state_dtype"] = None
    its.load_state_dict(state)
    return twin, its


@over(
    ("rule", "lambdas", "dims"),
    [("adam", {}, (1, 3, 8)), ("adam", NO_LAMBDAS, (3,)), ("rowwise_adagrad", {}, (3, 8))],
)
def test_a_step_is_that_of_float32_rounded_as_everywhere(rule: str, lambdas: dict[str, float], dims: Any) -> None:
    """To the bit: the weights of a float32 table with the same state, and its state as eager PyTorch rounds it."""
    member = FAMILY[rule]
    for dim in dims:
        table, optimizer = build(member, dim, **lambdas)
        step(table, optimizer, lookup(1, dim))
        for t in range(2, 5):
            twin, its = twin_of(member, table, optimizer, **lambdas)
            one = lookup(t, dim)
            step(table, optimizer, one)
            step(twin, its, one)
            ours, theirs = state_of(table, one.keys), state_of(twin, one.keys)
            assert torch.equal(ours.pop("weight"), theirs.pop("weight"))
            rows = torch.from_numpy(table.table.directory.find(one.keys.numpy()))
            elements = (rows[:, None] * dim + torch.arange(dim)).to(torch.int32)
            for number, (part, found) in enumerate(ours.items(), 0 if "u" in ours else 1):
                expected = theirs[part]
                if part != "group_sum":  # which stays float32
                    expected = to_bfloat16(expected, elements, step_seed(t), number)
                assert torch.equal(found.view(torch.int32), expected.float().view(torch.int32)), part
            assert table.num_live == twin.num_live == int(table.lookup(KEYS).any(1).sum())


def test_what_a_group_begins_with_is_known_again() -> None:
    """0.1 is no bfloat16: a row of which no element had a gradient stays where it is."""
    table = HashEmbedding(4, std=0.1)
    optimizer = GroupFTRL(table.parameters(), lr=0.1, l21=3.0, state_dtype=BF16, initial_accumulator_value=0.1)
    before = table(KEYS).detach().clone()
    gradient = torch.ones(len(KEYS), 4)
    gradient[::2] = 0.0
    for _ in range(2):
        optimizer.zero_grad()
        table(KEYS).backward(gradient)
        optimizer.step()
    assert torch.equal(table.lookup(KEYS)[::2], before[::2])
    assert not torch.equal(table.lookup(KEYS)[1::2], before[1::2])


# Copies, files and limits


@over("cls", [GroupAdam, GroupRowWiseAdagrad])
def test_a_checkpoint_its_increments_and_a_copy_go_on_with_the_same_bits(
    cls: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "_PAGE_BYTES", 1 << 9)

    def make(params: Any, **options: Any) -> GroupOptimizer:
        return cls(params, state_dtype=BF16, **options)

    training = clicks(make)
    for _ in range(20):
        training.step()
    training.tables[0].shrink()
    training.step()
    checkpoints = Checkpoints(tmp_path / cls.__name__)
    for number in range(3):
        checkpoints.save(number, training.model, training.optimizers)
        training.step()
    loaded = clicks(make)
    loaded.load(checkpoints.save(3, training.model, training.optimizers))
    assert all(table.table.rows.state_dtype == BF16 for table in loaded.tables)
    ends, rng = [], torch.get_rng_state()
    for one in (copy.deepcopy(training), training, loaded):
        torch.set_rng_state(rng)
        one.draw.manual_seed(7)
        before = bits(one.facts())
        for _ in range(4):
            one.step()
        ends.append((before, bits(one.facts())))
    assert ends[0] == ends[1] == ends[2]


@over(("first", "second"), [(None, BF16), (BF16, None), (BF16, torch.float32)])
def test_a_checkpoint_can_be_resumed_in_another_dtype(
    tmp_path: Path, first: torch.dtype | None, second: torch.dtype | None
) -> None:
    """What was read is converted: exactly to float32, to the nearest to bfloat16."""
    path = tmp_path / f"{first}-{second}"
    (table, optimizer), (other, its) = (build(FAMILY["adam"], 3, state_dtype) for state_dtype in (first, second))
    for t in range(3):
        step(table, optimizer, lookup(t, 3))
    save_checkpoint(path, table, [optimizer])
    load_checkpoint(path, other, [its])
    its.param_groups[0] |= {"state_dtype": second, "lr": 0.0}
    step(other, its, Lookup(KEYS[:1], torch.zeros(1, 3), torch.zeros(1, 3)))
    before, after = state_of(table, KEYS[1:]), state_of(other, KEYS[1:])
    for part in before:
        expected = before[part].to(BF16).float() if second == BF16 and part != "weight" else before[part]
        assert torch.equal(after[part], expected)
    assert (other.table.rows.state_dtype == BF16) == (second == BF16)


def test_a_limit_counts_the_narrow_rows_and_a_checkpoint_within_it_stays_whole(tmp_path: Path) -> None:
    def limited(state_dtype: torch.dtype | None) -> Any:
        table = HashEmbedding(16, std=0.1, max_bytes=4_000_000)
        return table, GroupAdam(table.parameters(), state_dtype=state_dtype, l21=1e-6)

    (wide, _), (narrow, optimizer) = trained = limited(None), limited(BF16)
    for table, its in trained:
        for first in range(0, 40_000, 2_000):
            take_step(its, table(torch.arange(first, first + 2_000)).sum())
            assert table.memory().total <= 4_000_000
    assert narrow.num_rows > 1.3 * wide.num_rows
    save_checkpoint(tmp_path / "one", narrow, [optimizer])
    table, its = limited(BF16)
    load_checkpoint(tmp_path / "one", table, [its])
    assert torch.equal(table.keys, narrow.keys)


@over("eagerly", [False, True])
def test_a_sweep_leaves_what_the_closed_form_says(eagerly: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of the float32 table of the same state, u to the nearest; also as rows wider than a block are swept."""
    monkeypatch.setattr(host.HostStorage, "_sweeps_eagerly", eagerly)
    member = FAMILY["adam"]
    table, optimizer = build(member, 3)
    for t in range(3):
        step(table, optimizer, lookup(t, 3))
    twin, its = twin_of(member, table, optimizer)
    median = float(np.median(optimizer.census(0, 0, (1,))[0].critical))
    for one in (optimizer, its):
        one.param_groups[0]["l21"] = 1.0001 * median
        one.sweep()
    assert 0 < table.num_live == twin.num_live < table.num_rows
    ours, theirs = state_of(table, KEYS), state_of(twin, KEYS)
    torch.testing.assert_close(ours["weight"], theirs["weight"])
    torch.testing.assert_close(ours["u"], theirs["u"], rtol=2**-8, atol=1e-6)
    assert torch.equal(ours["exp_avg"], theirs["exp_avg"])


def test_rows_of_float64_have_no_such_state() -> None:
    table = HashEmbedding(4, dtype=torch.float64)
    for state_dtype in (BF16, torch.float32):
        optimizer = GroupAdam(table.parameters(), state_dtype=state_dtype)
        message = f"state_dtype={state_dtype} cannot be for a HashEmbedding of torch.float64"
        with pytest.raises(ValueError, match=message):
            step(table, optimizer, lookup(1, 4))
        assert table.table.rows.parts == ("weight",)
