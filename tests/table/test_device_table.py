"""`HashEmbedding` with its rows on a GPU, or in Triton's interpreter, against the same table on the CPU."""

import copy
import pickle
import weakref
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from gpu_cases import DEVICE
from optimizer_cases import ALLOW_CREATE_GRAPH, assert_identical, make
from over import over
from row_model import RowModel
from sparsegroup import (
    GroupAdagrad,
    GroupAdaHessian,
    GroupAdam,
    GroupFTRL,
    GroupOptimizer,
    HashEmbedding,
    HashEmbeddingBag,
    UnusedFor,
)
from sparsegroup.checkpoint import load_checkpoint, save_checkpoint
from sparsegroup.kernels.gpu import runtime
from sparsegroup.kernels.gpu.transfer import Watch
from sparsegroup.table.lookup.kernels import BagPooling
from sparsegroup.table.rows.device import DeviceRows, DeviceStorage
from sparsegroup.table.rows.rows import WEIGHT
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


@over("cls", [GroupAdam, GroupAdaHessian])
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


def test_a_copied_gradient_of_other_row_numbers_changes_nothing_and_a_later_step_raises():
    table, optimizer = trained(new_table())
    with on_device():
        optimizer.zero_grad()
        table(batch(2)).sum().backward()
        gradient, table.weight.grad = table.weight.grad.clone(), None
        table.load_state_dict(table.state_dict())
        before = table.lookup(KEYS).clone()
        table.weight.grad = gradient
        optimizer.step()
        assert torch.equal(table.lookup(KEYS), before)
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        with pytest.raises(RuntimeError, match="left out: it has rows of another table, or of this table before"):
            optimizer.step()
    step(table, optimizer, 2)
    assert not torch.equal(table.lookup(KEYS), before)


def test_gradients_add_up_over_lookups_and_passes():
    tables = [trained(new_table(), steps=1), trained(on_host(), steps=1)]
    for table, optimizer in tables:
        with around(table):
            optimizer.zero_grad()
            (table(batch(1)).sum() + table(batch(2)).square().sum()).backward()
            table(batch(1)).sum().backward()
            optimizer.step()
    assert_same(tables[0][0], tables[1][0])


def test_prefetch_gives_the_same(monkeypatch):
    plain, _ = trained(new_table())
    monkeypatch.setattr("sparsegroup.table.lookup.lookup.GRAIN", 1)
    monkeypatch.setattr("sparsegroup.kernels.cpu.threads._number", 2)
    table, optimizer = trained(new_table(), steps=0)
    for t in range(3):
        step(table, optimizer, t)
        with on_device():
            table.prefetch(batch(t + 1) if t < 2 else batch(2))
    assert torch.equal(plain.lookup(KEYS), table.lookup(KEYS))


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
        with pytest.raises(RuntimeError, match="pools bags on its way only where"):
            bags[1].vectors_or_pools(KEYS, BagPooling(np.array([0, len(KEYS)]), is_mean=True))


def test_copies_train_on_alike_and_checkpoints_go_between_cpu_and_device(tmp_path: Path):
    table, optimizer = trained(new_table())
    loaded, from_cpu, on_cpu = (trained(new(), steps=0) for new in (new_table, new_table, on_host))
    with on_device():
        loaded[0].load_state_dict(table.state_dict())
        loaded[1].load_state_dict(optimizer.state_dict())
        copies = [copy.deepcopy((table, optimizer)), pickle.loads(pickle.dumps((table, optimizer))), loaded]
        save_checkpoint(tmp_path / "device", model=table, optimizer=optimizer)
        load_checkpoint(tmp_path / "device", model=on_cpu[0], optimizer=on_cpu[1])
        save_checkpoint(tmp_path / "cpu", model=on_cpu[0], optimizer=on_cpu[1])
        load_checkpoint(tmp_path / "cpu", model=from_cpu[0], optimizer=from_cpu[1])
    for one in ((table, optimizer), *copies, from_cpu, on_cpu):
        step(*one, 4)
    for other, _ in (*copies, from_cpu):
        assert_same(table, other, rtol=0, atol=0)
    assert_same(table, on_cpu[0])


@over(
    ("arguments", "text"),
    [
        ({"device": "meta"}, "CPU or a GPU"),
        ({"device": DEVICE, "dtype": torch.float64}, "torch.bfloat16"),
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


@over(("penalty", "dtype"), [("hard", torch.float32), ("lasso", torch.bfloat16)])
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


# Rows on a device, without a table


Float32s = npt.NDArray[np.float32]

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
ADAM = {"u": 0.0, "exp_avg": 0.0, "exp_avg_sq": 0.0}
ADAGRAD = {"u": 0.0, "sum": 0.1}
LAYOUTS = [{}, ADAM, ADAGRAD, {"sum": 0.1}]


def paged(
    dim: int, dtype: torch.dtype, initial: dict[str, float], state_dtype: torch.dtype = F32, rows_of_page: int = 4
) -> DeviceRows:
    row_bytes = DeviceRows(dim, dtype, DEVICE, initial, state_dtype).row_bytes
    return DeviceRows(dim, dtype, DEVICE, initial, state_dtype, rows_of_page * row_bytes)


def numbered(count: int, dim: int) -> Float32s:
    return np.arange(1, count * dim + 1, dtype=np.float32).reshape(count, dim)


class DeviceModel(RowModel):
    rows: DeviceRows

    def kept(self, part: str, values: npt.ArrayLike) -> Float32s:
        dtype = self.rows.weight_dtype if part == WEIGHT else self.rows.state_dtype
        return torch.tensor(np.asarray(values, np.float32)).to(dtype).float().numpy()

    def begin(self, before: int, weights: Float32s) -> None:
        """As the table does: only the weights of new rows are written."""
        numbers = torch.arange(before, before + len(weights), device=DEVICE)
        self.rows.scatter(numbers, torch.tensor(weights, device=DEVICE))

    def lay_out(self) -> dict[str, float]:
        initial = LAYOUTS[self.rng.integers(len(LAYOUTS))]
        state_dtype, old = (None, F32, BF16)[self.rng.integers(3)], self.rows
        self.rows = old.relaid(initial, self.count, state_dtype)
        assert self.rows.state_dtype == state_dtype or state_dtype is None
        assert old.read(WEIGHT, np.array([-1])).tolist() == [[0.0] * old.dim]
        return initial

    def check(self) -> None:
        super().check()
        gathered = self.rows.gather(torch.arange(self.count, device=DEVICE))
        assert gathered.dtype == self.rows.weight_dtype
        np.testing.assert_array_equal(gathered.float().cpu().numpy(), self.arrays[WEIGHT])


@over(
    ("dim", "dtype", "state_dtype"),
    [(1, F32, F32), (3, F32, BF16), (10, BF16, BF16), (3, F16, F32)],
)
def test_any_sequence_of_calls_does_what_arrays_do(
    dim: int, dtype: torch.dtype, state_dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = 100 * dim + 10 * dtype.itemsize + state_dtype.itemsize
    model = DeviceModel(seed, paged(dim, dtype, ADAGRAD, state_dtype, rows_of_page=2 + 2 * (dim % 2)))
    monkeypatch.setattr("sparsegroup.table.rows.device._PIECE_BYTES", int(model.rng.choice([100, 400, 1 << 20])))
    model.drive(10)


def test_arrays_that_may_not_be_written_to_are_taken_in_any_order_of_memory() -> None:
    rows = paged(3, F32, ADAGRAD)
    rows.reserve(9)
    numbers, values = np.arange(9)[::-1], np.asfortranarray(numbered(9, 3).astype(np.float64))
    numbers.flags.writeable = values.flags.writeable = False
    rows.write("sum", numbers, values)
    np.testing.assert_array_equal(rows.read("sum", np.arange(9)), values[::-1])
    by_columns = torch.tensor(numbered(3, 9), device=DEVICE).T
    rows.scatter(torch.arange(9, device=DEVICE).repeat_interleave(2)[::2], by_columns)
    assert rows.gather(torch.arange(9, device=DEVICE)[::2]).equal(by_columns[::2])


def test_rows_of_usual_lengths_are_aligned_and_short_ones_hardly_padded() -> None:
    for dtype, state_dtype, dim, initial in product((F32, BF16), (F32, BF16), (8, 10, 64), LAYOUTS):
        rows = DeviceRows(dim, dtype, DEVICE, initial, state_dtype)
        assert rows.layout().aligned
        unpadded = dim * (dtype.itemsize + len(initial) * state_dtype.itemsize)
        assert rows.row_bytes < unpadded + 16 * (1 + len(initial))
    assert [DeviceRows(dim, F32, DEVICE, initial).row_bytes for dim, initial in ((1, ADAM), (3, {}))] == [16, 12]
    larger_than_a_page = DeviceRows(8, F32, DEVICE, ADAGRAD, page_bytes=10)
    larger_than_a_page.reserve(3)
    assert larger_than_a_page.bytes(3) == 3 * larger_than_a_page.row_bytes


def test_live_rows_differ_from_zero_and_moved_ones_keep_their_bits() -> None:
    rows = paged(3, BF16, ADAGRAD, BF16, rows_of_page=2)
    rows.reserve(5)
    rows.write(WEIGHT, np.arange(5), np.array([[0, -0.0, 0], [0, 0, 1e-30], [np.nan, 0, 0], [0, 0, 0], [0, -1, 0]]))
    assert rows.live(0, 5).tolist() == [False, True, True, False, True]
    assert rows.live(1, 3).tolist() == [True, True]
    rows.write_whole(np.array([4]), np.tile([[np.nan, -0.0, np.inf]], (1, 3)))
    before = rows.read_whole(np.array([4])).view(np.int32)
    rows.compact(np.isin(np.arange(5), [0, 4]))
    np.testing.assert_array_equal(rows.read_whole(np.array([1])).view(np.int32), before)
    rows = rows.relaid({"sum": 0.1, "u": 0.0}, 2)
    np.testing.assert_array_equal(rows.read_whole(np.array([1])).view(np.int32), before)
    rows.compact(np.array([True, False]))
    rows.reserve(2)  # one that begins where another was
    assert rows.read_whole(np.array([1])).tolist() == [[0.0] * 3 + [float(torch.tensor(0.1).to(BF16))] * 3 + [0.0] * 3]


class Pages:
    """How many bytes of pages there are, and were at most; a page beyond `limit` finds no memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.peak = 0
        self.limit = 1 << 30
        new_page = DeviceRows._new_page

        def counted(rows: DeviceRows) -> torch.Tensor:
            if self.now >= self.limit:
                raise torch.OutOfMemoryError("CUDA out of memory")
            page = new_page(rows)
            self.now += page.nbytes
            self.peak = max(self.peak, self.now)
            weakref.finalize(page, self._gone, page.nbytes)
            return page

        monkeypatch.setattr(DeviceRows, "_new_page", counted)

    def _gone(self, size: int) -> None:
        self.now -= size


@over(("before", "after"), [({}, ADAM), (ADAM, ADAGRAD)])
def test_rows_laid_out_anew_are_not_held_twice(
    before: dict[str, float], after: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        pages = Pages(patch)
        rows = DeviceRows(3, F32, DEVICE, before, page_bytes=150)
        rows.reserve(203)
        rows.write(WEIGHT, np.arange(203), numbered(203, 3))
        old = pages.now
        assert old == rows.bytes(203)
        rows = rows.relaid(after, 203)
        assert pages.now == rows.bytes(203)
        assert pages.peak <= max(old, pages.now) + 4 * 150
        np.testing.assert_array_equal(rows.read(WEIGHT, np.arange(203)), numbered(203, 3))
        rows.compact(np.arange(203) % 29 == 0)
        assert pages.now == rows.bytes(7) < old / 5
        rows.compact(np.zeros(7, np.bool_))
        assert pages.now == 0


def test_memory_for_what_rows_grow_by_is_taken_before_they_are_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = DeviceRows(3, F32, DEVICE, {}, page_bytes=150)
    rows.reserve(100)
    rows.write(WEIGHT, np.arange(100), numbered(100, 3))
    pages = Pages(monkeypatch)
    growth = DeviceRows(3, F32, DEVICE, ADAM, page_bytes=150).bytes(100) - rows.bytes(100)
    pages.limit = growth
    with pytest.raises(MemoryError):
        rows.relaid(ADAM, 100)
    np.testing.assert_array_equal(rows.read(WEIGHT, np.arange(100)), numbered(100, 3))
    pages.limit = 0
    with pytest.raises(MemoryError, match="5 more pages of 96 bytes"):
        rows.reserve(141)
    np.testing.assert_array_equal(rows.read(WEIGHT, np.arange(100)), numbered(100, 3))
    pages.limit = growth + 4 * 150
    with pytest.raises(MemoryError, match="Load a checkpoint"):  # the old pages do not count as given back
        rows.relaid(ADAM, 100)
