"""What a table tells about itself, and where its rows start."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from optimizer_cases import ALLOW_CREATE_GRAPH, assert_identical
from over import over
from sparsegroup import GroupAdam, GroupMomentum, HashEmbedding, HashEmbeddingBag, param_groups, sparsity_report
from table_cases import EDGES, INT64, as_keys, kill, learn, pull, random_keys, threads

pytestmark = ALLOW_CREATE_GRAPH


class TestLookup:
    @over("shape", [(), (1,), (4,), (2, 3), (2, 1, 3), (0,), (2, 0)])
    def test_the_shape_of_the_keys_gains_the_dimension(self, shape: tuple[int, ...]) -> None:
        table = HashEmbedding(4)
        keys = random_keys(math.prod(shape)).view(shape)
        for vectors in (table(keys), table.lookup(keys), table.initial(keys), table.eval()(keys)):
            assert (vectors.shape, vectors.dtype) == ((*shape, 4), torch.float32)
            assert_identical(vectors, table.initial(keys))
        assert table.num_rows == keys.numel()

    def test_keys_of_any_memory_layout_are_read_and_not_written(self) -> None:
        table = HashEmbedding(3)
        keys = random_keys(24).view(4, 6)
        before = keys.clone()
        for view in (keys.t(), keys[::2, 1::2], keys[:1].expand(3, 6), keys.flatten()[5:6]):
            assert_identical(table(view), table.initial(view.contiguous()))
        assert_identical(keys, before)
        assert table.num_rows == 24

    def test_every_64_bit_value_is_a_key(self) -> None:
        table = HashEmbedding(2)
        keys = as_keys(EDGES)
        assert not table.contains(keys).any()
        assert_identical(table(keys), table.initial(keys))
        assert table.contains(keys).all()
        assert all(key in table for key in EDGES)
        assert 2 not in table
        assert table.num_rows == len(EDGES) == table(keys).unique(dim=0).shape[0]

    def test_in_training_a_new_key_gets_its_row_also_without_a_graph(self) -> None:
        table = HashEmbedding(2)
        with torch.no_grad():
            table(as_keys([5]))
        with torch.inference_mode():
            table(as_keys([6]))
        assert (5 in table, 6 in table, table.num_rows) == (True, True, 2)

    def test_in_evaluation_an_unknown_key_gives_zeros_and_leaves_no_trace(self) -> None:
        table = HashEmbedding(2)
        table(as_keys([1]))
        table.eval()
        for vectors in (table(as_keys([[7, 1, -7]])), table.lookup(as_keys([[7, 1, -7]]))):
            assert_identical(
                vectors, torch.stack([torch.zeros(2), table.initial(as_keys([1]))[0], torch.zeros(2)])[None]
            )
        assert (table.num_rows, table.num_seen, table.num_live) == (1, 1, 1)
        assert not table.contains(as_keys([7, -7])).any()
        table.train()
        assert_identical(table(as_keys([7])), table.initial(as_keys([7])))

    def test_looking_up_by_key_never_inserts_and_has_no_graph(self) -> None:
        table = HashEmbedding(2)
        table(as_keys([3]))
        assert table.training
        vectors = table.lookup(as_keys([3, 4]))
        assert not vectors.requires_grad
        assert not vectors[1].any()
        vectors.fill_(9.0)
        assert_identical(table.lookup(as_keys([3])), table.initial(as_keys([3])))
        assert table.initial(as_keys([4])).any()
        assert table.num_rows == 1

    def test_a_key_may_be_asked_for_as_a_number(self) -> None:
        table = HashEmbedding(2)
        table(as_keys([INT64.min, 3]))
        assert 3 in table
        assert np.int64(INT64.min) in table
        assert INT64.max not in table


class TestStart:
    def test_it_depends_on_seed_and_key_and_not_on_arrival(self) -> None:
        """Whatever the order, the batches, the shape, the other keys and the number of threads."""
        keys = random_keys(5000)
        at_once = HashEmbedding(6, seed=7)
        expected = at_once.initial(keys)
        assert_identical(at_once(keys), expected)
        one_by_one, backwards, split, doubled = (HashEmbedding(6, seed=7) for _ in range(4))
        for key in keys[:50]:
            one_by_one(key)
        backwards(keys.flip(0))
        for part in keys.split(777):
            split(part)
        doubled(keys.repeat(2).view(2, -1))
        assert_identical(one_by_one.lookup(keys[:50]), expected[:50])
        for table in (backwards, split, doubled):
            assert_identical(table.lookup(keys), expected)
        for count in (1, 2):
            with threads(count):
                table = HashEmbedding(6, seed=7)
                assert_identical(table(keys), expected)
                assert_identical(table.initial(keys), expected)

    def test_asking_for_starts_inserts_nothing_and_training_does_not_change_them(self) -> None:
        table = HashEmbedding(3)
        keys = random_keys(20)
        before = table.initial(keys)
        assert table.num_seen == 0
        learn(table, GroupAdam([table.weight]), pull(keys, 3))
        assert_identical(table.initial(keys), before)
        assert (table.lookup(keys) != before).any()

    def test_the_global_generator_is_neither_read_nor_moved(self) -> None:
        torch.manual_seed(1)
        before = torch.get_rng_state()
        first = HashEmbedding(3)(as_keys([1, 2]))
        assert_identical(torch.get_rng_state(), before)
        torch.manual_seed(2)
        assert_identical(HashEmbedding(3)(as_keys([1, 2])), first)

    @over("seed", [1, 2**31, 2**63 - 1])
    def test_another_seed_gives_other_starts(self, seed: int) -> None:
        keys = random_keys(2000)
        a, b = HashEmbedding(4).initial(keys), HashEmbedding(4, seed=seed).initial(keys)
        assert (a != b).any(dim=1).all()
        assert abs(np.corrcoef(a.flatten(), b.flatten())[0, 1]) < 0.05

    def test_float64_has_the_same_starts_in_more_digits(self) -> None:
        keys = random_keys(2000)
        coarse, fine = (
            HashEmbedding(4, std=1.0, dtype=dtype).initial(keys) for dtype in (torch.float32, torch.float64)
        )
        torch.testing.assert_close(coarse.double(), fine, rtol=1e-5, atol=1e-6)

    @over("std", [0.01, 2.5])
    @over("init", ["normal", "uniform"])
    @over("dim", [1, 3, 8])
    def test_it_is_distributed_as_it_says(self, init: str, std: float, dim: int) -> None:
        """On consecutive keys, which a weak hash would show in."""
        values = HashEmbedding(dim, std=std, init=init).initial(torch.arange(-20_000, 20_000))
        assert len(values.unique(dim=0)) > 39_000
        standard = values.double().flatten().numpy() / std
        assert abs(standard.mean()) < 4 / math.sqrt(standard.size)
        assert standard.std() == pytest.approx(1, rel=0.02)
        width = math.sqrt(3)
        expected = stats.norm() if init == "normal" else stats.uniform(-width, 2 * width)
        assert stats.kstest(standard, expected.cdf).pvalue > 1e-3

    @over("keys", [torch.arange(4096), torch.arange(4096) << 32, torch.arange(4096) << 52, random_keys(4096)])
    def test_elements_keys_and_neighbours_are_uncorrelated(self, keys: Tensor) -> None:
        values = HashEmbedding(6).initial(keys).double().numpy()
        bound = 4.5 / math.sqrt(len(values))
        between_elements = np.corrcoef(values.T) - np.eye(6)
        assert np.abs(between_elements).max() < bound
        between_neighbours = [
            np.corrcoef(values[:-step].flatten(), values[step:].flatten())[0, 1] for step in (1, 2, 64)
        ]
        assert np.abs(between_neighbours).max() < bound


class TestCounts:
    def test_an_empty_table_has_nothing(self) -> None:
        table = HashEmbedding(3, field_bits=4)
        counts = table.num_rows, table.num_live, table.num_seen, len(table), table.skipped_rows, table.feature_rate
        assert counts == (0, 0, 0, 0, 0, 0.0)
        assert list(table.items()) == []
        assert table.field_counts() == {}
        assert table.shrink() == 0
        assert table.lookup(as_keys([1])).tolist() == [[0.0, 0.0, 0.0]]
        assert table.contains(as_keys([])).shape == (0,)

    def test_a_module_that_is_empty_is_not_false(self) -> None:
        """`len()` makes an empty container false; `module or default` must not lose a module."""
        assert HashEmbedding(3)

    def test_the_feature_rate_is_over_keys_ever_seen(self) -> None:
        table = HashEmbedding(3)
        keys = random_keys(20)
        table(keys)
        assert (table.num_seen, table.num_live, table.feature_rate) == (20, 20, 1.0)
        kill(table, keys[:15])
        assert (table.num_seen, table.num_rows, table.num_live, table.feature_rate) == (20, 20, 5, 0.25)
        assert table.shrink() == 15
        assert (table.num_seen, table.num_rows, table.num_live, table.feature_rate) == (20, 5, 5, 0.25)
        table(keys[:10])
        assert (table.num_seen, table.num_rows, table.num_live, table.feature_rate) == (20, 15, 15, 0.75)
        assert table.shrink() == 0

    def test_rows_that_live_again_are_counted_again(self) -> None:
        table = HashEmbedding(3)
        optimizer = GroupMomentum([table.weight], lr=0.1, l21=1e6)
        learn(table, optimizer, pull(as_keys([1, 2]), 3))
        assert table.num_live == 0
        optimizer.param_groups[0]["l21"] = 0.0
        learn(table, optimizer, pull(as_keys([2]), 3))
        assert (table.num_live, table.feature_rate) == (1, 0.5)

    def test_contains_has_the_shape_of_the_keys(self) -> None:
        table = HashEmbedding(3)
        table(as_keys([1, 4]))
        found = table.contains(as_keys([1, 2, 3, 4]).view(2, 2))
        assert found.dtype == torch.bool
        assert found.tolist() == [[True, False], [False, True]]

    @over("batch_size", [1, 7, 100, 65536])
    def test_items_are_the_live_rows_once_each_in_batches(self, batch_size: int) -> None:
        table = HashEmbedding(3)
        keys = random_keys(100)
        table(keys)
        kill(table, keys[::4])
        batches = list(table.items(batch_size))
        assert all(1 <= len(found) == len(vectors) <= batch_size for found, vectors in batches)
        found = torch.cat([found for found, _ in batches])
        vectors = torch.cat([vectors for _, vectors in batches])
        assert sorted(found.tolist()) == sorted(set(keys.tolist()) - set(keys[::4].tolist()))
        assert_identical(vectors, table.lookup(found))
        vectors.zero_()
        assert table.num_live == 75
        assert table.lookup(found).any(dim=1).all(), "they are copies"

    @over("field_bits", [1, 5, 16])
    def test_counts_per_field_are_by_the_top_bits(self, field_bits: int) -> None:
        table = HashEmbedding(3, field_bits=field_bits)
        keys = random_keys(400)
        table(keys)
        kill(table, keys[:100])
        table.shrink()
        kill(table, keys[100:150])
        fields = [(key % 2**64) >> (64 - field_bits) for key in keys.tolist()]
        counts = table.field_counts()
        assert counts.keys() == set(fields)
        for field, count in counts.items():
            expected = [fields[start:].count(field) for start in (0, 100, 150)]
            assert [count.seen, count.rows, count.live] == expected

    def test_the_optimizer_regularizes_a_table_as_an_embedding(self) -> None:
        model = nn.ModuleDict({"table": HashEmbedding(3), "bag": HashEmbeddingBag(2), "head": nn.Linear(3, 1)})
        groups = param_groups(model, l21=0.25)
        assert [(group["l21"], group["param_names"]) for group in GroupAdam(groups).param_groups] == [
            (0.25, ["table.weight", "bag.weight"]),
            (0.0, ["head.weight", "head.bias"]),
        ]

    def test_a_report_counts_its_rows(self) -> None:
        table = HashEmbedding(3)
        table(as_keys([1, 2, 3, 4]))
        kill(table, as_keys([2, 4, 5]))
        (entry,) = sparsity_report(GroupAdam(table.named_parameters()))
        assert (entry.name, entry.shape, entry.groups, entry.zero_groups) == ("weight", (5, 3), 5, 3)
        assert entry.live_rate == pytest.approx(0.4)

    def test_its_description_names_what_it_is(self) -> None:
        table = HashEmbedding(3)
        table(as_keys([1, 2]))
        assert "HashEmbedding(" in repr(table)
        assert isinstance(repr(table.weight), str)
        assert isinstance(str(table.memory()), str)
