"""What a table tells about itself, and where its rows start."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from optimizer_cases import ALLOW_CREATE_GRAPH, assert_identical
from over import over
from sparsegroup import GroupAdam, HashEmbedding, HashEmbeddingBag, param_groups, sparsity_report
from sparsegroup.table.directory.buckets import mix
from table_cases import EDGES, INT64, as_keys, kill, random_keys, threads

pytestmark = ALLOW_CREATE_GRAPH


@over("shape", [(), (1,), (4,), (2, 3), (2, 1, 3), (0,), (2, 0)])
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
    table = HashEmbedding(3)
    keys = random_keys(24).view(4, 6)
    before = keys.clone()
    for view in (keys.t(), keys[::2, 1::2], keys[:1].expand(3, 6), keys.flatten()[5:6]):
        assert_identical(table(view), table.initial(view.contiguous()))
    assert_identical(keys, before)
    assert table.num_rows == 24


def test_every_64_bit_value_is_a_key_of_its_own_row() -> None:
    table = HashEmbedding(2)
    keys = as_keys(EDGES)
    assert not table.contains(keys).any()
    assert_identical(table(keys), table.initial(keys))
    assert table.contains(keys).all()
    assert all(key in table for key in (*EDGES, np.int64(INT64.min)))
    assert 2 not in table
    assert table.num_rows == len(EDGES) == table(keys).unique(dim=0).shape[0]


def test_in_training_a_new_key_gets_its_row_also_without_a_graph() -> None:
    table = HashEmbedding(2)
    with torch.no_grad():
        table(as_keys([5]))
    with torch.inference_mode():
        table(as_keys([6]))
    assert (5 in table, 6 in table, table.num_rows) == (True, True, 2)


# Starts


def test_a_start_depends_on_seed_and_key_and_not_on_arrival() -> None:
    """Whatever the order, the batches, the shape, the other keys, the number of threads and torch's generator."""
    keys = random_keys(5000)
    torch.manual_seed(1)
    state = torch.get_rng_state()
    expected = HashEmbedding(6, seed=7).initial(keys)
    one_by_one, backwards, split, doubled, with_one_thread, with_two = (HashEmbedding(6, seed=7) for _ in range(6))
    assert one_by_one.num_seen == 0
    for key in keys[:50]:
        one_by_one(key)
    backwards(keys.flip(0))
    for part in keys.split(777):
        split(part)
    doubled(keys.repeat(2).view(2, -1))
    for count, table in ((1, with_one_thread), (2, with_two)):
        with threads(count):
            assert_identical(table(keys), expected)
            assert_identical(table.initial(keys), expected)
    assert_identical(one_by_one.lookup(keys[:50]), expected[:50])
    for table in (backwards, split, doubled):
        assert_identical(table.lookup(keys), expected)
    assert_identical(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert_identical(HashEmbedding(6, seed=7)(keys), expected)


@over("seed", [1, 2**31, 2**63 - 1])
def test_another_seed_gives_other_starts(seed: int) -> None:
    keys = random_keys(2000)
    a, b = HashEmbedding(4).initial(keys), HashEmbedding(4, seed=seed).initial(keys)
    assert (a != b).any(dim=1).all()
    assert abs(np.corrcoef(a.flatten(), b.flatten())[0, 1]) < 0.05


def test_float64_has_the_same_starts_in_more_digits() -> None:
    keys = random_keys(2000)
    coarse, fine = (HashEmbedding(4, std=1.0, dtype=dtype).initial(keys) for dtype in (torch.float32, torch.float64))
    torch.testing.assert_close(coarse.double(), fine, rtol=1e-5, atol=1e-6)


@over(("dim", "init", "std"), [(1, "normal", 2.5), (3, "uniform", 0.01), (8, "normal", 0.01), (8, "uniform", 2.5)])
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
    """The kernel computes logarithms, sines and cosines by series."""
    keys, seed, mixed = random_keys(5_000), 3, mix.py_func
    with np.errstate(over="ignore"):
        golden = np.uint64(0x9E3779B97F4A7C15)
        stream = mixed(keys.numpy().view(np.uint64) ^ mixed(mixed(np.array([seed], np.uint64) + golden)))
        words = np.stack([mixed(stream + np.uint64(pair) * golden) for pair in (1, 2)], axis=1)
    a, b = (
        (half + 0.5) / 2**32
        for half in ((words >> np.uint64(32)).astype(float), (words & np.uint64(2**32 - 1)).astype(float))
    )
    radius = 2.5 * np.sqrt(-2 * np.log(a))
    wanted = np.stack([radius * np.cos(2 * np.pi * b), radius * np.sin(2 * np.pi * b)], axis=2).reshape(-1, 4)
    found = HashEmbedding(4, std=2.5, seed=seed, dtype=torch.float64).initial(keys).numpy()
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-14)


@over("keys", [torch.arange(4096), torch.arange(4096) << 32, torch.arange(4096) << 52, random_keys(4096)])
def test_elements_keys_and_neighbours_are_uncorrelated(keys: Tensor) -> None:
    values = HashEmbedding(6).initial(keys).double().numpy()
    bound = 4.5 / math.sqrt(len(values))
    between_elements = np.corrcoef(values.T) - np.eye(6)
    assert np.abs(between_elements).max() < bound
    between_neighbours = [np.corrcoef(values[:-step].flatten(), values[step:].flatten())[0, 1] for step in (1, 2, 64)]
    assert np.abs(between_neighbours).max() < bound


# Counts


def test_an_empty_table_has_nothing() -> None:
    table = HashEmbedding(3, field_bits=4)
    assert table, "`len()` makes an empty container false; `module or default` must not lose a module"
    counts = table.num_rows, table.num_live, table.num_seen, len(table), table.skipped_rows, table.feature_rate
    assert counts == (0, 0, 0, 0, 0, 0.0)
    assert list(table.items()) == []
    assert table.field_counts() == {}
    assert table.shrink() == 0
    assert table.lookup(as_keys([1])).tolist() == [[0.0, 0.0, 0.0]]
    assert "rows=0, dim=3" in repr(table.weight)


@over("field_bits", [1, 5, 16])
def test_counts_per_field_are_by_the_top_bits(field_bits: int) -> None:
    table = HashEmbedding(3, field_bits=field_bits)
    keys = random_keys(400)
    table(keys)
    kill(table, keys[:100])
    table.shrink()
    kill(table, keys[100:150])
    fields = [(key % 2**64) >> (64 - field_bits) for key in keys.tolist()]
    counts = {field: (count.seen, count.rows, count.live) for field, count in table.field_counts().items()}
    assert counts == {field: tuple(fields[start:].count(field) for start in (0, 100, 150)) for field in fields}


def test_the_optimizer_regularizes_a_table_as_an_embedding() -> None:
    model = nn.ModuleDict({"table": HashEmbedding(3), "bag": HashEmbeddingBag(2), "head": nn.Linear(3, 1)})
    groups = param_groups(model, l21=0.25)
    assert [(group["l21"], group["param_names"]) for group in GroupAdam(groups).param_groups] == [
        (0.25, ["table.weight", "bag.weight"]),
        (0.0, ["head.weight", "head.bias"]),
    ]


def test_a_report_counts_its_rows() -> None:
    table = HashEmbedding(3)
    table(as_keys([1, 2, 3, 4]))
    kill(table, as_keys([2, 4, 5]))
    (entry,) = sparsity_report(GroupAdam(table.named_parameters()))
    assert (entry.name, entry.shape, entry.groups, entry.zero_groups) == ("weight", (5, 3), 5, 3)
    assert entry.live_rate == pytest.approx(0.4)
