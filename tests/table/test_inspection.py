"""What a table reports about itself, where its rows start, and what it does without room or memory."""

import math
import sys

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from distributed_cases import in_a_new_process
from optimizer_cases import ALLOW_CREATE_GRAPH, assert_identical
from over import over
from sparsegroup import HashEmbedding
from sparsegroup.table.directory.buckets import mix
from table_cases import EDGES, as_keys, edges_trained, learn, pull, random_keys, threads

pytestmark = ALLOW_CREATE_GRAPH


@over("shape", [(), (2, 1, 3), (2, 0)])
def test_the_shape_of_the_keys_gains_the_dimension(shape: tuple[int, ...]) -> None:
    table = HashEmbedding(4)
    keys = random_keys(math.prod(shape)).view(shape)
    for vectors in (table(keys), table.lookup(keys), table.initial(keys), table.eval()(keys)):
        assert (vectors.shape, vectors.dtype) == ((*shape, 4), torch.float32)
        assert_identical(vectors, table.initial(keys))
    assert table.num_rows == keys.numel()
    assert (table.contains(keys).shape, table.contains(keys).dtype) == (shape, torch.bool)
    table.lookup(keys).fill_(9.0)
    assert_identical(table.lookup(keys), table.initial(keys), "what is looked up is a copy")


def test_keys_of_any_memory_layout_are_read_and_not_written() -> None:
    table, keys = HashEmbedding(3), random_keys(24).view(4, 6)
    for view in (keys.t(), keys[::2, 1::2], keys[:1].expand(3, 6), keys.flatten()[5:6]):
        assert_identical(table(view), table.initial(view.contiguous()))
    assert_identical(keys.flatten(), random_keys(24))


# Starts


def test_a_start_depends_on_seed_and_key_and_not_on_arrival() -> None:
    """Whatever the order, the batches, the shape, the other keys, the number of threads and torch's generator."""
    keys, state = random_keys(5000), torch.get_rng_state()
    expected = HashEmbedding(6, seed=7).initial(keys)
    one_by_one, backwards, split, doubled = tables = [HashEmbedding(6, seed=7) for _ in range(4)]
    for key in keys[:50]:
        one_by_one(key)
    backwards(keys.flip(0))
    for part in keys.split(777):
        split(part)
    doubled(keys.repeat(2).view(2, -1))
    for table in tables:
        some = keys[: table.num_rows]
        assert_identical(table.lookup(some), expected[: len(some)])
    assert_identical(torch.get_rng_state(), state)
    torch.manual_seed(2)
    for count in (1, 2):
        with threads(count):
            table = HashEmbedding(6, seed=7)
            assert_identical(table(keys), expected)
            assert_identical(table.initial(keys), expected)
    for seed in (1, 2**31, 2**63 - 1):
        other = HashEmbedding(6, seed=seed).initial(keys)
        assert (expected != other).any(dim=1).all()
        assert abs(np.corrcoef(expected.flatten(), other.flatten())[0, 1]) < 0.05


@over(("dim", "init", "std"), [(3, "uniform", 0.01), (8, "normal", 2.5)])
def test_it_is_distributed_as_it_says(dim: int, init: str, std: float) -> None:
    """On consecutive keys, which a weak hash would show in."""
    values = HashEmbedding(dim, std=std, init=init).initial(torch.arange(-20_000, 20_000))
    assert len(values.unique(dim=0)) > 39_000
    standard = values.double().flatten().numpy() / std
    assert abs(standard.mean()) < 4 / math.sqrt(standard.size)
    assert standard.std() == pytest.approx(1, rel=0.02)
    width = math.sqrt(3)
    expected = stats.norm() if init == "normal" else stats.uniform(-width, 2 * width)
    assert stats.kstest(standard, expected.cdf).pvalue > 1e-3


def test_normal_starts_are_those_of_box_and_muller() -> None:
    """The kernel computes logarithms, sines and cosines by series; float32 has fewer digits of the same numbers."""
    keys, seed, mixed = random_keys(5_000), 3, mix.py_func
    with np.errstate(over="ignore"):
        golden = np.uint64(0x9E3779B97F4A7C15)
        stream = mixed(keys.numpy().view(np.uint64) ^ mixed(mixed(np.array([seed], np.uint64) + golden)))
        words = np.stack([mixed(stream + np.uint64(pair) * golden) for pair in (1, 2)], axis=1)
    halves = words >> np.uint64(32), words & np.uint64(2**32 - 1)
    a, b = ((half.astype(float) + 0.5) / 2**32 for half in halves)
    radius = 2.5 * np.sqrt(-2 * np.log(a))
    wanted = np.stack([radius * np.cos(2 * np.pi * b), radius * np.sin(2 * np.pi * b)], axis=2).reshape(-1, 4)
    fine, coarse = (
        HashEmbedding(4, std=2.5, seed=seed, dtype=dtype).initial(keys).numpy()
        for dtype in (torch.float64, torch.float32)
    )
    np.testing.assert_allclose(fine, wanted, rtol=0, atol=1e-14)
    np.testing.assert_allclose(coarse, wanted, rtol=1e-5, atol=1e-6)


@over("keys", [torch.arange(4096), torch.arange(4096) << 32, torch.arange(4096) << 52, random_keys(4096)])
def test_elements_keys_and_neighbours_are_uncorrelated(keys: Tensor) -> None:
    values = HashEmbedding(6).initial(keys).double().numpy()
    bound = 4.5 / math.sqrt(len(values))
    between_elements = np.corrcoef(values.T) - np.eye(6)
    assert np.abs(between_elements).max() < bound
    between_neighbours = [np.corrcoef(values[:-step].flatten(), values[step:].flatten())[0, 1] for step in (1, 2, 64)]
    assert np.abs(between_neighbours).max() < bound


# Counts


def test_an_empty_table_is_true_and_has_nothing() -> None:
    table = HashEmbedding(3, field_bits=4)
    assert table, "`len()` makes an empty container false; `module or default` must not lose a module"
    assert (table.num_seen, table.feature_rate, list(table.items()), table.field_counts()) == (0, 0.0, [], {})
    assert "rows=0, dim=3" in repr(table.weight)


# Without room or memory


@over("limit", [11, 12, 15])
def test_a_full_table_inserts_nothing_of_the_batch_until_rows_are_dropped(limit: int) -> None:
    table, optimizer = edges_trained(max_rows=limit)
    keys = torch.arange(100, 100 + limit - 11 + 1)
    with pytest.raises(RuntimeError, match=rf"max_rows.*{limit}|{limit}.*max_rows"):
        table(keys)
    assert (table.num_rows, table.num_seen) == (11, 11)
    assert not table.contains(keys).any()
    if limit > 11:
        table(keys[1:].repeat(3))
    assert table.num_rows == limit
    optimizer.param_groups[0]["l21"] = 1e9
    learn(table, optimizer, pull(as_keys(EDGES[:3]), 3))
    optimizer.zero_grad()
    assert not table.eval()(keys[:1]).any(), "looking up goes on"
    table.train()
    assert table.shrink() == 3
    table(as_keys([1000, 1001, 1002]))
    assert (table.num_rows, table.num_seen) == (limit, limit + 3)
    with pytest.raises(RuntimeError, match="max_rows"):
        table(as_keys(EDGES[:1]))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="sets Linux's limits")
@pytest.mark.whole
def test_out_of_memory_leaves_the_table_intact() -> None:
    in_a_new_process(
        """
        import resource, torch
        from sparsegroup import GroupAdam, HashEmbedding

        table = HashEmbedding(256)
        optimizer = GroupAdam([table.weight], lr=0.1, l21=0.01)

        def train(keys):
            optimizer.zero_grad()
            table(keys).sum().backward()
            optimizer.step()

        def usage(name):
            return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) * 1024

        train(torch.arange(2000))
        room = 256 << 20
        resource.setrlimit(resource.RLIMIT_DATA, (usage("VmData") + room, resource.RLIM_INFINITY))
        known = 2000
        try:
            table(torch.arange(known, known + 1_000_000))
        except MemoryError:
            assert table.num_rows == table.num_seen == known, (table.num_rows, table.num_seen)
        else:
            raise SystemExit("a gigabyte is not so small")
        try:
            while known < 4_000_000:
                with torch.no_grad():
                    table(torch.arange(known, known + 1000))
                known += 1000
        except MemoryError as error:
            print("refused", error)
        else:
            raise SystemExit("no MemoryError")
        resource.setrlimit(resource.RLIMIT_DATA, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert table.num_rows == table.num_seen == known, (table.num_rows, table.num_seen, known)
        assert not table.contains(torch.arange(known, known + 1000)).any()
        keys = torch.arange(2000, known)
        for part in keys.split(5000):
            assert torch.equal(table.lookup(part), table.initial(part))
        train(torch.arange(known - 500, known + 500))
        assert table.num_rows == known + 500
        """
    )
