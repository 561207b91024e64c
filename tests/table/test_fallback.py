"""What stands in for keys without a live row: in training, checkpoints, exports and deltas."""

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from command import Run
from optimizer_cases import ALLOW_CREATE_GRAPH, backward
from over import over
from sparsegroup import GroupAdaHessian, GroupAdam, HashEmbedding, HashEmbeddingBag, TargetRate, param_groups
from sparsegroup.checkpoint import load_checkpoint, save_checkpoint
from sparsegroup.serving import open_trained
from sparsegroup.table.lookup.fallback import field_numbers

pytestmark = ALLOW_CREATE_GRAPH


def in_field(field: int, values: list[int]) -> torch.Tensor:
    """Keys whose top 8 bits are `field`."""
    return torch.tensor([((field << 56) + value + 2**63) % 2**64 - 2**63 for value in values])


def table_with_dead_rows(**options: Any) -> tuple[HashEmbedding, torch.Tensor, torch.Tensor]:
    """A table of two fields, with its live and its dead keys."""
    table = HashEmbedding(3, std=1.0, field_bits=8, fallback=True, **options)
    live, dead = in_field(0, [1, 2]), torch.cat([in_field(0, [3]), in_field(200, [1])])
    table.assign(live, torch.ones(2, 3))
    table.assign(dead, torch.zeros(2, 3))
    assert table.fallback is not None
    with torch.no_grad():
        table.fallback[0] = torch.tensor([1.0, 2.0, 3.0])
        table.fallback[200] = torch.tensor([4.0, 5.0, 6.0])
    return table, live, dead


@settings(max_examples=50)
@given(field=st.integers(0, 255), value=st.integers(0, 2**56 - 1))
def test_the_field_is_in_a_keys_top_bits(field: int, value: int) -> None:
    key = in_field(field, [value])
    assert field_numbers(key, 8).tolist() == [field]
    assert field_numbers(key, 4).tolist() == [field >> 4]
    assert field_numbers(key, 0).tolist() == [0]


def test_it_stands_in_for_dead_rows_and_unknown_keys_and_for_nothing_else() -> None:
    table, live, dead = table_with_dead_rows()
    unknown = in_field(200, [77])
    table.eval()
    vectors = table(torch.cat([live, dead, unknown]))
    expected = [[1.0, 1.0, 1.0]] * 2 + [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [4.0, 5.0, 6.0]]
    assert vectors.tolist() == expected
    assert not table.lookup(torch.cat([dead, unknown])).any()  # the rows as they are
    shaped = table(torch.cat([live, dead]).view(2, 2))
    assert shaped.shape == (2, 2, 3)
    assert shaped.flatten(0, 1).tolist() == expected[:4]


def test_it_learns_and_the_dead_row_goes_on_counting() -> None:
    with_it, _, dead = table_with_dead_rows()
    without = HashEmbedding(3, std=1.0, field_bits=8)
    without.assign(dead, torch.zeros(2, 3))
    gradient = torch.tensor([[1.0, 2.0, 3.0], [-1.0, 0.5, 0.0]])
    for table in (with_it, without):
        (table(dead) * gradient).sum().backward()
    assert torch.equal(grads(with_it, dead), grads(without, dead))
    assert with_it.fallback is not None
    assert with_it.fallback.grad is not None
    assert with_it.fallback.grad[0].tolist() == gradient[0].tolist()
    assert with_it.fallback.grad[200].tolist() == gradient[1].tolist()
    assert with_it.fallback.grad.count_nonzero() == 5


def grads(table: HashEmbedding, keys: torch.Tensor) -> torch.Tensor:
    """The gradients `[n, dim]` of the rows of keys."""
    gradient = table.weight.grad
    assert gradient is not None
    gradient = gradient.coalesce()
    rows = torch.from_numpy(table.table.find(keys.numpy()))
    by_row = dict(zip(gradient.indices()[0].tolist(), gradient.values(), strict=True))
    return torch.stack([by_row[row] for row in rows.tolist()])


def table_model(table: HashEmbedding) -> torch.nn.Module:
    return torch.nn.ModuleDict({"table": table})


@over("optimizer_class", [GroupAdam, GroupAdaHessian])
def test_it_is_trained_unregularized_beside_the_table(optimizer_class: Any) -> None:
    torch.manual_seed(0)
    table = HashEmbedding(4, std=0.01, fallback=True, dtype=torch.float64)
    optimizer = optimizer_class(param_groups(table_model(table), l21=1e-3, penalty="hard"), lr=1e-2)
    target = TargetRate(optimizer, 0.05, steps=60)
    for _ in range(60):
        optimizer.zero_grad()
        keys = torch.randint(500, (64,))
        vectors = table(keys)
        backward(optimizer, (vectors - 1.0).square().mean() + ((keys % 50 == 0)[:, None] * vectors).sum() * 0.1)
        optimizer.step()
        target.step()
    assert optimizer.param_groups[1]["l21"] == 0
    assert table.num_live == pytest.approx(0.05 * table.num_seen, abs=1)
    assert table.fallback is not None
    assert (table.fallback > 0.1).all()
    table.eval()
    assert torch.equal(table(torch.tensor([10**9])), table.fallback)


def test_a_table_alone_in_its_param_group_is_what_a_target_counts() -> None:
    table = HashEmbedding(4, std=0.1, field_bits=8, fallback=True)
    optimizer = GroupAdam(table.parameters(), lr=1e-2, penalty="hard")
    target = TargetRate(optimizer, 0.1, steps=40)
    for _ in range(40):
        optimizer.zero_grad()
        (table(torch.randint(1000, (64,))) - 1).square().sum().backward()
        optimizer.step()
        target.step()
    assert table.num_live == pytest.approx(0.1 * table.num_seen, abs=1)


def test_bags_sum_the_vectors_that_stand_in() -> None:
    bag = HashEmbeddingBag(3, mode="sum", field_bits=8, fallback=True)
    assert bag.fallback is not None
    with torch.no_grad():
        bag.fallback[7] = 2.0
    bag.eval()
    assert bag(in_field(7, [1, 2, 3]), torch.tensor([0, 2])).tolist() == [[4.0] * 3, [2.0] * 3]


def test_state_dicts_copies_and_checkpoints_carry_it(tmp_path: Path) -> None:
    table, _, dead = table_with_dead_rows()
    again = HashEmbedding(3, field_bits=8, fallback=True)
    again.load_state_dict(table.state_dict())
    optimizer = GroupAdam(table.parameters())
    save_checkpoint(tmp_path / "at", table, optimizer)
    loaded = HashEmbedding(3, std=1.0, field_bits=8, fallback=True)
    load_checkpoint(tmp_path / "at", loaded, GroupAdam(loaded.parameters()))
    for other in (again, copy.deepcopy(table), loaded):
        other.eval()
        table.eval()
        assert torch.equal(other(dead), table(dead))
        assert other(dead).any()


def test_a_table_with_and_one_without_are_told_apart() -> None:
    table, _, _ = table_with_dead_rows()
    plain = HashEmbedding(3, field_bits=8)
    with pytest.raises(RuntimeError, match=r"Unexpected key.*fallback"):
        plain.load_state_dict(table.state_dict())
    with pytest.raises(RuntimeError, match=r"Missing key.*fallback"):
        table.load_state_dict(plain.state_dict())
    with pytest.raises(RuntimeError, match=r"fallback must have shape \[256, 3\], got \[1, 3\]"):
        table.load_state_dict(HashEmbedding(3, fallback=True).state_dict())
    before, state = table.fallback.clone(), HashEmbedding(3, field_bits=8, fallback=True).state_dict()
    state["fallback"] = torch.ones(256, 3)
    del state["keys"]
    with pytest.raises(RuntimeError, match=r"Missing key.*keys"):
        table.load_state_dict(state)
    assert torch.equal(table.fallback, before)


def test_an_export_scores_as_the_run_and_deltas_lead_to_the_next(tmp_path: Path, run: Run) -> None:
    """Exports, ONNX and deltas give unknown and dead keys the vector that training gave them."""
    log = noisy_log(tmp_path / "log.csv")
    options = ["--lr", 0.05, "--target-rate", 0.05, "--batch-size", 64, "--columns", "categorical"]
    done = run("train", log, *options, "--fallback")
    assert done.returncode == 0, done.stderr
    trained = open_trained("runs/log").model
    unknown = torch.full((1, 3), 2**40, dtype=torch.int64) + (torch.arange(3) << 56)
    fallback = trained.embedding.fallback
    assert isinstance(fallback, torch.Tensor)
    assert fallback[2].all()  # a feature of the others is either live or never seen again
    for dtype, formats in (("float32", ["--onnx"]), ("int8", ["--no-onnx"])):
        done = run("export", "runs/log", dtype, "--dtype", dtype, *formats, "--test", log)
        assert done.returncode == 0, done.stderr  # it has compared training, export and ONNX on the log
        test = json.loads((tmp_path / dtype / "manifest.json").read_text())["test"]["scores"]
        assert test["export" if dtype == "int8" else "onnx"]["max_abs_difference"] < (0.02 if dtype == "int8" else 1e-6)
        assert 0.6 < test["training"]["auc"] < 0.9
        served = open_trained(dtype).model
        half_a_step = float(fallback[:3].detach().abs().max()) / 220 if dtype == "int8" else 0.0
        torch.testing.assert_close(served.embedding(unknown)[0], fallback[:3].detach(), rtol=0, atol=half_a_step)
        torch.testing.assert_close(served(unknown), trained(unknown), rtol=0, atol=1e-6 + 10 * half_a_step)

    done = run("train", log, "--continue", "runs/log", "--out", "next")
    assert done.returncode == 0, done.stderr
    assert run("export", "next", "whole", "--no-onnx").returncode == 0
    assert run("export", "next", "delta", "--since", "float32").returncode == 0
    done = run("apply", "float32", "delta", "applied", "--no-onnx")
    assert done.returncode == 0, done.stderr
    for name in ("embeddings.safetensors", "network.safetensors"):
        assert (tmp_path / "applied" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def noisy_log(path: Path, rows: int = 2_000) -> Path:
    lines = ["label,ts,color,noise,size"]
    labels = [(i % 7 in (1, 3)) ^ (i * 7919 % 10 < 3) for i in range(rows)]
    lines += [f"{int(y)},{i},c{i % 7},{i * 2654435761 % 9973},{i * 40503 % 613}" for i, y in enumerate(labels)]
    path.write_text("\n".join(lines) + "\n")
    return path
