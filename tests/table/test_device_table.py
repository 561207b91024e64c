"""`HashEmbedding` with its rows on a GPU, or in Triton's interpreter, against the same table on the CPU."""

import copy
import pickle
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gpu_cases import DEVICE
from optimizer_cases import ALLOW_CREATE_GRAPH, KINDS, assert_identical, make
from over import over
from sparsegroup import GroupAdagrad, GroupAdam, GroupFTRL, GroupOptimizer, HashEmbedding, HashEmbeddingBag, UnusedFor
from sparsegroup.checkpoint import load_checkpoint, save_checkpoint
from sparsegroup.kernels.gpu import launch, runtime
from sparsegroup.kernels.gpu.backend import Watch
from sparsegroup.table.rows.device import DeviceRows, DeviceStorage
from table_cases import random_keys

pytestmark = ALLOW_CREATE_GRAPH
REGULARIZED = {"l1": 0.002, "l21": 0.5, "l2": 0.01}
KEYS = random_keys(24)
LIVE_TOO = UnusedFor(steps=1, live=True, every=1)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def on_device(device: Any = DEVICE) -> Any:
    return runtime.rehearsal() if device == DEVICE and DEVICE.type == "cpu" else nullcontext()


def new_table(dim: int = 5, **arguments: Any) -> HashEmbedding:
    with on_device():
        table = HashEmbedding(dim, device=DEVICE, std=0.1, **arguments)
    assert isinstance(table.table.storage, DeviceStorage)
    return table


def on_host() -> HashEmbedding:
    return HashEmbedding(5, std=0.1)


def around(table: HashEmbedding) -> Any:
    """What steps of a table run in."""
    return on_device() if table.table.config.on_device else nullcontext()


def batch(t: int) -> Tensor:
    """20 keys, some many times, some for the first time."""
    return KEYS[torch.randint(0, min(8 + 6 * t, 24), (20,), generator=torch.Generator().manual_seed(t))]


def step(table: HashEmbedding, optimizer: GroupOptimizer, t: int) -> None:
    optimizer.zero_grad()
    with around(table):
        vectors = table(batch(t)).float()
        weight = torch.linspace(-1, 1, 20, device=vectors.device).view(20, 1)
        loss = (weight * vectors + (0.5 + t) * vectors.square()).sum()
        loss.backward(create_graph=optimizer.rule.second_order)
        optimizer.step()


def trained(
    table: HashEmbedding, cls: type[GroupOptimizer] = GroupAdam, steps: int = 3, **arguments: Any
) -> tuple[HashEmbedding, GroupOptimizer]:
    if cls.rule.second_order:
        arguments["generator"] = torch.Generator(table.weight.device).manual_seed(1)
    with around(table):
        optimizer = make(cls, table.parameters(), **{**REGULARIZED, **arguments})
    for t in range(steps):
        step(table, optimizer, t)
    return table, optimizer


def assert_same(ours: HashEmbedding, theirs: HashEmbedding, **tolerance: float) -> None:
    x, y = ours.lookup(KEYS).float().cpu(), theirs.lookup(KEYS).float().cpu()
    torch.testing.assert_close(x, y, **{"rtol": 2e-5, "atol": 2e-6, **tolerance})
    assert (ours.num_rows, ours.num_live, ours.num_seen) == (theirs.num_rows, theirs.num_live, theirs.num_seen)


@over("cls", KINDS)
def test_it_is_the_table_of_the_cpu(cls):
    """Growing, with repeated keys, rows that end at zero, and the state beside them; and after `shrink`."""
    l21 = 5.0 if cls.rule.second_order else 0.5
    ours, our_optimizer = trained(new_table(), cls, l21=l21)
    theirs, their_optimizer = trained(on_host(), cls, l21=l21)
    assert 0 < ours.num_live < ours.num_rows
    assert_same(ours, theirs)
    one, other = (o.state_dict()["state"][0] for o in (our_optimizer, their_optimizer))
    assert one.keys() == other.keys()
    order = one["keys"].argsort(), other["keys"].argsort()
    for name in ("keys", "u", *cls.rule.state):
        torch.testing.assert_close(one[name][order[0]], other[name][order[1]], rtol=2e-5, atol=2e-6)
    for table, optimizer in ((ours, our_optimizer), (theirs, their_optimizer)):
        optimizer.zero_grad()
        assert table.shrink() > 0
        step(table, optimizer, 5)
    assert_same(ours, theirs)


def test_low_precision_rows_and_state():
    """Rows keep u without a regularizer too; what is lost of x is fed back, as in plain parameters."""
    theirs, _ = trained(on_host(), l1=0, l21=0, l2=0)
    ours, optimizer = trained(new_table(dtype=torch.bfloat16), l1=0, l21=0, l2=0)
    assert ours(KEYS[:2]).dtype == torch.bfloat16
    assert "u" in optimizer.state_dict()["state"][0]
    assert_same(ours, theirs, rtol=2e-2, atol=2e-2)
    options = {"initial_accumulator_value": 0.1, "state_dtype": torch.bfloat16}
    ours, again, theirs = (trained(new(), GroupFTRL, **options)[0] for new in (new_table, new_table, on_host))
    assert ours.table.rows.state_dtype == torch.bfloat16
    assert ours.memory().parts["u"] * 2 == ours.memory().parts["weight"]
    assert torch.equal(ours.lookup(KEYS), again.lookup(KEYS))
    assert_same(ours, theirs, rtol=0.01, atol=0.005)


@over(("mode", "value"), [("skip", float("nan")), ("raise", float("inf"))])
def test_a_row_whose_gradient_is_not_finite_is_left(mode, value):
    table, optimizer = trained(new_table(nonfinite=mode))
    keys, before = batch(2).unique(), table.lookup(KEYS).clone()
    with on_device():
        optimizer.zero_grad()
        table(keys).sum().backward()
        table.weight.grad._values()[1, 2] = value
        optimizer.step()
        bad = keys[1] == KEYS
        assert torch.equal(table.lookup(KEYS)[bad], before[bad])
        assert not torch.equal(table.lookup(KEYS), before)
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        if mode == "raise":
            with pytest.raises(FloatingPointError, match=rf"1 rows .* key {int(keys[1])} for one"):
                optimizer.step()
    step(table, optimizer, 2)
    assert table.skipped_rows == (mode == "skip")
    assert table.num_live == int((table.lookup(KEYS) != 0).any(1).sum())


def test_gradients_add_up_over_lookups_and_passes_and_are_sorted_on_the_device_only_then(monkeypatch):
    """A step takes the order that the lookup has found, if gradients come from one lookup."""
    tables = [trained(new_table(), steps=1), trained(on_host(), steps=1)]
    for table, optimizer in tables:
        with around(table):
            optimizer.zero_grad()
            (table(batch(1)).sum() + table(batch(2)).square().sum()).backward()
            table(batch(1)).sum().backward()
            optimizer.step()
    assert_same(tables[0][0], tables[1][0])
    monkeypatch.setattr(launch, "runs_of", None)
    table, optimizer = tables[0]
    with on_device():
        optimizer.zero_grad()
        table(batch(1)).sum().backward()  # an expanded gradient
        optimizer.step()
        optimizer.zero_grad()
        (table(batch(1)).sum() + table(batch(2)).sum()).backward()
        with pytest.raises(TypeError, match="NoneType"):
            optimizer.step()


def test_prefetch_and_lookups_in_pieces_give_the_same(monkeypatch):
    plain, _ = trained(new_table())
    with monkeypatch.context() as patch:
        patch.setattr("sparsegroup.table.lookup.lookup.CHUNK", 7)
        in_pieces, _ = trained(new_table())
    monkeypatch.setattr("sparsegroup.table.lookup.lookup.GRAIN", 1)
    monkeypatch.setattr("sparsegroup.kernels.cpu.threads._number", 2)
    table, optimizer = trained(new_table(), steps=0)
    for t in range(3):
        step(table, optimizer, t)
        with on_device():
            table.prefetch(batch(t + 1) if t < 2 else batch(2))
    for other in (in_pieces, table):
        assert torch.equal(plain.lookup(KEYS), other.lookup(KEYS))


def test_a_lookup_without_new_keys_does_not_wait_for_the_counts_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    table = new_table(fallback=True)
    with on_device():
        vectors = table(torch.arange(12))
        monkeypatch.setattr(Watch, "now", None)
        assert torch.equal(table(torch.arange(12)), vectors)


def test_vectors_are_assigned_listed_and_looked_up_by_keys_on_either_device():
    """In evaluation, and of bags, too."""
    table, vectors = new_table(), torch.randn(24, 5)
    assert torch.equal(table(KEYS.to(DEVICE)), table(KEYS))
    vectors[3] = 0
    table.assign(KEYS, vectors)
    assert torch.equal(table.lookup(KEYS).cpu(), vectors)
    assert table.num_live == 23
    keys, rows = (torch.cat(parts) for parts in zip(*table.items(7), strict=True))
    assert torch.equal(rows[keys.argsort()], vectors[[k for k in KEYS.argsort().tolist() if k != 3]])
    table.eval()
    found = table(torch.tensor([[12345, int(KEYS[0])]]))
    assert found.device.type == DEVICE.type
    assert torch.equal(found[0].cpu(), torch.stack([torch.zeros(5), vectors[0]]))
    found.sum().backward()
    assert table.weight.grad._indices().shape[1] == 1
    assert table(torch.zeros(0, dtype=torch.int64)).shape == (0, 5)
    assert table.num_rows == 24
    for mode in ("mean", "sum"):
        bags = [HashEmbeddingBag(4, mode=mode)]
        with on_device():
            bags.append(HashEmbeddingBag(4, mode=mode, device=DEVICE))
        torch.testing.assert_close(*(bag(KEYS, torch.tensor([0, 3, 3, 10])).cpu() for bag in bags))


def test_copies_train_on_alike():
    table, optimizer = trained(new_table())
    loaded, its = trained(new_table(), steps=0)
    with on_device():
        loaded.load_state_dict(table.state_dict())
        its.load_state_dict(optimizer.state_dict())
        copies = [copy.deepcopy((table, optimizer)), pickle.loads(pickle.dumps((table, optimizer))), (loaded, its)]
    for t, o in ((table, optimizer), *copies):
        step(t, o, 4)
    for other, _ in copies:
        assert_same(table, other, rtol=0, atol=0)


@over("to_cpu", [True, False])
def test_checkpoints_go_between_cpu_and_device(to_cpu, tmp_path: Path):
    tables = [new_table(), on_host()]
    (source, optimizer), (target, others) = (
        trained(table, steps=steps) for table, steps in zip(tables if to_cpu else tables[::-1], (3, 0), strict=True)
    )
    with on_device():
        save_checkpoint(tmp_path / str(to_cpu), model=source, optimizer=optimizer)
        load_checkpoint(tmp_path / str(to_cpu), model=target, optimizer=others)
    for t, o in ((source, optimizer), (target, others)):
        step(t, o, 4)
    assert_same(source, target)


@over(
    ("arguments", "text"),
    [
        ({"device": "meta"}, "CPU or a GPU"),
        ({"device": DEVICE, "dtype": torch.float64}, "torch.bfloat16"),
        ({"dtype": torch.bfloat16}, "torch.float32 or torch.float64 on cpu"),
        ({"device": DEVICE, "max_bytes": "4MB"}, r"max_bytes must be at least 3\d,"),
    ],
)
def test_bad_arguments_and_a_gpu_without_triton_are_refused(arguments, text, monkeypatch):
    with on_device(arguments.get("device")), pytest.raises(ValueError, match=text):
        HashEmbedding(8, **arguments)
    monkeypatch.setattr(runtime, "has_triton", lambda: False)
    with pytest.raises(RuntimeError, match="pip install triton"):
        HashEmbedding(3, device="cuda")
    monkeypatch.undo()


@over(("penalty", "dtype"), [("lasso", torch.float32), ("hard", torch.float32), ("lasso", torch.bfloat16)])
def test_a_sweep_is_the_hosts(penalty: str, dtype: torch.dtype) -> None:
    options = {"lr": 0.05, "l1": 0.0, "l21": 0.02, "l2": 0.0, "penalty": penalty}
    (ours, here), (theirs, there) = (
        trained(table, steps=4, **options) for table in (new_table(dtype=dtype), on_host())
    )
    (census,), (expected,) = here.census(0), there.census(0)
    assert census.seen == expected.seen
    if dtype == torch.float32:
        np.testing.assert_allclose(census.critical, expected.critical, rtol=1e-4)
    l21 = float(np.median(census.critical))
    for optimizer in (here, there):
        optimizer.param_groups[0]["l21"] = l21
        optimizer.sweep()
    assert ours.num_live == int((census.critical > l21).sum()) == int((ours.lookup(KEYS) != 0).any(1).sum())
    if dtype == torch.float32:
        assert_same(ours, theirs, rtol=1e-3, atol=1e-5)


def test_without_memory_on_the_device_no_key_is_inserted(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(self: DeviceRows) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    table, optimizer = trained(new_table(), steps=0)
    with monkeypatch.context() as patch:
        patch.setattr(DeviceRows, "_new_page", no_memory)
        for keys in (KEYS[:8], KEYS):
            with pytest.raises(MemoryError, match="no memory on"):
                table(keys)
            assert (table.num_rows, table.num_seen, table.num_live) == (0, 0, 0)
            assert not table.contains(KEYS).any()
            assert table.shrink() == 0
    step(table, optimizer, 4)
    assert table.num_rows == len(batch(4).unique())


@over("options", [{"eviction": UnusedFor(steps=2, every=2)}, {"eviction": LIVE_TOO, "max_bytes": "64MB"}])
def test_rows_go_and_fallback_vectors_stand_in_as_on_the_host(options: dict[str, Any]) -> None:
    found = []
    for device in ("cpu", DEVICE):
        with on_device(device):
            table = HashEmbedding(4, std=0.1, seed=2, field_bits=8, device=device, fallback=True, **options)
            assert table.fallback.device.type == torch.device(device).type
            groups = [{"params": [table.weight], "l21": 0.05}, {"params": [table.fallback], "l21": 0.0}]
            optimizer = GroupAdagrad(groups, lr=0.1)
            stood_in = []
            for t in range(8):
                optimizer.zero_grad()
                keys = torch.arange(12) + 4 * t
                vectors = table(keys)
                stood_in.append((vectors == table.fallback[0]).all(dim=1).cpu())
                scale = torch.where(keys % 3 == 0, 1.0, 0.01).to(vectors.device)
                ((vectors - 0.3).square() * scale[:, None]).sum().backward()
                optimizer.step()
            keys = torch.arange(50)
            exact = torch.stack(stood_in), table.contains(keys), table.num_seen, table.num_evicted
            close = table.lookup(keys).cpu(), table.eval()(keys).detach().cpu(), table.fallback.detach().cpu()
            found.append((exact, close))
    (exact, ours), (expected, theirs) = found
    assert_identical(exact, expected)
    assert exact[0][1:].any()
    assert not exact[0].all()
    assert exact[3] > 0
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
