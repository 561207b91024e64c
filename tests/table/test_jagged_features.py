"""`HashEmbeddingBag` takes the bags of several features at once, as TorchRec's jagged tensors hold them."""

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from distributed_cases import Ranks
from jagged_cases import Bags, Features, OneFeature, features_of
from over import over
from sparsegroup import GroupAdam, HashEmbedding, HashEmbeddingBag

BAGS: Bags = {"user": [[3], [], [3, 4]], "item": [[-1, 2**62, 5], [3], []]}
DIM = 4


def one_by_one(bag: HashEmbedding, bags: Bags, mode: str = "sum") -> Tensor:
    """`[batch, features, dim]`, each bag looked up on its own."""
    rows = [[bag.lookup(torch.tensor(keys, dtype=torch.int64)) for keys in its] for its in bags.values()]
    pooled = [[row.sum(0) / (max(len(row), 1) if mode == "mean" else 1) for row in its] for its in rows]
    return torch.stack([torch.stack(its) for its in pooled], 1)


@over("mode", ["sum", "mean"])
@over("dtype", [torch.int64, torch.int32])
def test_values_are_keys_and_every_feature_has_its_bag(mode: Any, dtype: torch.dtype) -> None:
    bags = BAGS if dtype == torch.int64 else {"user": [[3], [], [3, 4]], "item": [[-1, 7, 5], [3], []]}
    bag = HashEmbeddingBag(DIM, mode=mode)
    found = bag(features_of(bags, dtype=dtype))
    assert found.shape == (3, 2, DIM)
    torch.testing.assert_close(found, one_by_one(bag, bags, mode))
    assert set(bag.keys.tolist()) == {key for its in bags.values() for one in its for key in one}
    torch.testing.assert_close(bag.eval()(features_of(bags, dtype=dtype)), found)


def test_features_are_taken_by_name_and_told_apart_by_field() -> None:
    bag = HashEmbeddingBag(DIM, mode="sum", features={"item": 130, "user": 1}, field_bits=8)
    found = bag(features_of({"other": [[9], [9], [9]], **BAGS}))
    low = (1 << 56) - 1
    keys = {
        "item": [[(key & low) + (130 << 56) - (1 << 64) for key in one] for one in BAGS["item"]],
        "user": [[(key & low) + (1 << 56) for key in one] for one in BAGS["user"]],
    }
    torch.testing.assert_close(found, one_by_one(bag, keys))
    counts = bag.field_counts()
    assert {field: count.rows for field, count in counts.items()} == {1: 2, 130: 4}
    again = bag.eval()(features_of({name: BAGS[name] for name in ("item", "user")}))
    torch.testing.assert_close(again, found)


def test_features_of_one_field_share_rows() -> None:
    bag = HashEmbeddingBag(DIM, features={"user": 1, "item": 1}, field_bits=4)
    bag(features_of(BAGS))
    assert bag.num_rows == 5
    plain = HashEmbeddingBag(DIM, features={"user": 0})
    plain(features_of(BAGS))
    assert sorted(plain.keys.tolist()) == [3, 4]


@over("features", [None, {"item": 1, "user": 0}])
def test_weights_count_for_their_values(features: dict[str, int] | None) -> None:
    weights = torch.tensor([2.0, 0.5, -1.0, 3.0, 0.0, 1.0, 4.0])
    bag = HashEmbeddingBag(DIM, mode="sum", features=features, field_bits=1 if features else 0)
    found = bag(features_of(BAGS, weights))
    flat = iter(weights)
    expected = {}
    for name, its in BAGS.items():
        field = (features or {}).get(name, 0) << 63
        high = field - (field << 1)
        keys = [[(key & (1 << 63) - 1) + high if features else key for key in one] for one in its]
        sums = [sum((next(flat) * bag.lookup(torch.tensor(key)) for key in one), torch.zeros(DIM)) for one in keys]
        expected[name] = torch.stack(sums)
    torch.testing.assert_close(found, torch.stack([expected[name] for name in features or BAGS], 1))
    with pytest.raises(ValueError, match="need mode='sum'"):
        HashEmbeddingBag(DIM)(features_of(BAGS, weights))


def test_a_jagged_tensor_without_keys_is_one_feature() -> None:
    bag = HashEmbeddingBag(DIM, mode="sum")
    found = bag(OneFeature(torch.tensor([3, 4, 3]), torch.tensor([2, 0, 1])))
    torch.testing.assert_close(found, one_by_one(bag, {"": [[3, 4], [], [3]]})[:, 0])
    named = HashEmbeddingBag(DIM, features={"user": 0})
    with pytest.raises(ValueError, match="does not say which of this bag's features"):
        named(OneFeature(torch.tensor([3]), torch.tensor([1])))


def test_a_batch_without_bags_or_without_values() -> None:
    for features in (None, {"item": 0, "user": 1}):
        bag = HashEmbeddingBag(DIM, features=features, field_bits=2)
        assert bag(features_of({"user": [], "item": []})).shape == (0, 2, DIM)
        assert not bag(features_of({"user": [[], []], "item": [[], []]})).any()
        assert bag.num_rows == 0


def test_gradients_and_prefetch_are_those_of_the_same_keys() -> None:
    batch = features_of(BAGS)
    ends = torch.nn.functional.pad(batch.lengths().cumsum(0), (1, 0))[:-1]
    tables = []
    for jagged in (True, False):
        bag = HashEmbeddingBag(DIM, mode="sum", std=0.5)
        optimizer = GroupAdam(bag.parameters(), lr=0.1, l21=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            vectors = bag(batch).transpose(0, 1).flatten(0, 1) if jagged else bag(batch.values(), ends)
            if jagged:
                bag.prefetch(batch)
            else:
                bag.prefetch(batch.values())
            vectors.square().sum().backward()
            optimizer.step()
        tables.append(bag.lookup(batch.values()))
    assert torch.equal(*tables)


@over(
    ("batch", "error", "message"),
    [
        (
            features_of({"user": [[1]], "item": [[1], [2]]}),
            ValueError,
            r"batches of one size, this one's have \[1, 2\]",
        ),
        (features_of({"item": [[1]]}), ValueError, "the batch has no feature 'user'; it has 'item'"),
        (replace(features_of(BAGS), all_values=torch.zeros(7)), TypeError, "must be int64 or int32, got torch.float32"),
        (replace(features_of(BAGS), all_values=torch.arange(6)), ValueError, "add up to its 6 values"),
        (replace(features_of(BAGS), strides=(2, 2)), ValueError, "2 features of 2 bags need 4 lengths, got 6"),
        ([1, 2], TypeError, "a jagged tensor of TorchRec, got list"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_before_anything_is_inserted(
    batch: Any, error: type[Exception], message: str
) -> None:
    bag = HashEmbeddingBag(DIM, features={"user": 0, "item": 1}, field_bits=1)
    with pytest.raises(error, match=message):
        bag(batch)
    assert bag.num_rows == 0


def test_what_cannot_be_features_is_refused() -> None:
    with pytest.raises(ValueError, match=r"field of the feature 'a' \(field_bits=2\) must be in \[0, 3\], got 4"):
        HashEmbeddingBag(DIM, features={"a": 4}, field_bits=2)
    with pytest.raises(ValueError, match="at least one feature"):
        HashEmbeddingBag(DIM, features={})
    with pytest.raises(TypeError, match="a mapping of names to fields"):
        HashEmbeddingBag(DIM, features=["a"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="are for tensors, not for a Features"):
        HashEmbeddingBag(DIM)(features_of(BAGS), torch.tensor([0]))
    with pytest.raises(TypeError, match=r"got Features: give its values\(\)"):
        HashEmbedding(DIM)(features_of(BAGS))  # type: ignore[arg-type]


def test_a_pickled_bag_knows_its_features() -> None:
    bag = HashEmbeddingBag(DIM, features={"user": 1, "item": 0}, field_bits=1)
    found = bag(features_of(BAGS))
    torch.testing.assert_close(pickle.loads(pickle.dumps(bag)).eval()(features_of(BAGS)), found)


def part_of(rank: int) -> Features:
    """A rank's part of a global batch; the last rank has none."""
    samples = list(range(5 * rank, 5 * rank + 5)) if rank < 3 else []
    return features_of({"user": [[k % 7] * (k % 3) for k in samples], "item": [[k % 4, 2**40 + k] for k in samples]})


def summed_over_ranks() -> tuple[Tensor, list[int]]:
    bag = HashEmbeddingBag(
        DIM, mode="sum", features={"user": 0, "item": 1}, field_bits=1, process_group=dist.group.WORLD, reduction="sum"
    )
    optimizer = GroupAdam(bag.parameters(), lr=0.1)
    bag(part_of(dist.get_rank())).square().sum().backward()
    optimizer.step()
    return bag(part_of(dist.get_rank())).detach(), bag.keys.tolist()


def test_a_sharded_bag_takes_each_ranks_part(four_ranks: Ranks) -> None:
    parts = four_ranks.call(summed_over_ranks)
    whole = HashEmbeddingBag(DIM, mode="sum", features={"user": 0, "item": 1}, field_bits=1)
    optimizer = GroupAdam(whole.parameters(), lr=0.1)
    sum(whole(part_of(rank)).square().sum() for rank in range(4)).backward()  # type: ignore[union-attr]
    optimizer.step()
    for rank, (vectors, _) in enumerate(parts):
        torch.testing.assert_close(vectors, whole(part_of(rank)).detach())
    assert parts[3][0].shape == (0, 2, DIM)
    assert sorted(key for _, keys in parts for key in keys) == sorted(whole.keys.tolist())
