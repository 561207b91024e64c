"""`HashEmbeddingBag` takes the bags of several features at once, as TorchRec's jagged tensors hold them."""

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from distributed_cases import Ranks
from over import over
from sparsegroup import GroupAdam, HashEmbedding, HashEmbeddingBag


def jagged(values: Tensor, lengths: Tensor, weights: Tensor | None = None, **methods: Any) -> SimpleNamespace:
    """What a bag uses of TorchRec's `JaggedTensor`; with further methods, of a `KeyedJaggedTensor`."""
    found = {"values": values, "lengths": lengths, "weights_or_none": weights, **methods}
    return SimpleNamespace(**{name: lambda value=value: value for name, value in found.items()})


Bags = dict[str, list[list[int]]]
BAGS: Bags = {"user": [[3], [], [3, 4]], "item": [[-1, 2**62, 5], [3], []]}
WEIGHTS = [2.0, 0.5, -1.0, 3.0, 0.0, 1.0, 4.0]
DIM = 4


def features_of(
    bags: Bags, weights: Tensor | None = None, dtype: torch.dtype = torch.int64, **replaced: Any
) -> SimpleNamespace:
    """Feature → its bags."""
    flat, strides = [bag for its in bags.values() for bag in its], list(map(len, bags.values()))
    found = {
        "values": torch.tensor([value for bag in flat for value in bag], dtype=dtype),
        "lengths": torch.tensor([len(bag) for bag in flat], dtype=dtype),
        "weights": weights,
        "keys": list(bags),
        "stride": strides[0],
        "stride_per_key": strides,
        "variable_stride_per_key": len(set(strides)) > 1,
    }
    return jagged(**{**found, **replaced})


def key_of(value: int, field: int, bits: int) -> int:
    """The field in the top bits of a 64-bit number, in two's complement."""
    key = value % 2**64 % 2 ** (64 - bits) + (field << 64 - bits)
    return key - (2**64 if key >= 2**63 else 0)


def one_by_one(bag: HashEmbeddingBag, bags: Bags, weights: list[float] | None = None) -> Tensor:
    """`[batch, features, dim]`, each bag looked up on its own."""
    rest = iter(weights or [1.0] * 99)
    pooled = {}
    for name, its in bags.items():
        fields = bag.features or {name: 0}
        bits = bag._field_bits
        sums = []
        for one in its:
            rows = [next(rest) * bag.lookup(torch.tensor(key_of(value, fields.get(name, 0), bits))) for value in one]
            sums.append(sum(rows, torch.zeros(DIM)) / (max(len(one), 1) if bag.mode == "mean" else 1))
        pooled[name] = torch.stack(sums)
    return torch.stack([pooled[name] for name in bag.features or bags], 1)


@over("dtype", [torch.int64, torch.int32])
@over(
    ("options", "weights"),
    [
        ({"mode": "sum"}, None),
        ({"mode": "mean"}, None),
        ({"mode": "sum", "features": {"item": 130, "user": 1}, "field_bits": 8}, None),
        ({"mode": "mean", "features": {"user": 1, "item": 1}, "field_bits": 4}, None),
        ({"mode": "mean", "features": {"item": 0, "user": 0}}, None),
        ({"mode": "sum"}, WEIGHTS),
        ({"mode": "sum", "features": {"user": 0, "item": 1}, "field_bits": 1}, WEIGHTS),
    ],
)
def test_every_feature_has_its_bag_by_name_and_in_its_field(
    options: dict[str, Any], weights: list[float] | None, dtype: torch.dtype
) -> None:
    bags = BAGS if dtype == torch.int64 else {"user": [[3], [], [3, 4]], "item": [[-1, 7, 5], [3], []]}
    bag = HashEmbeddingBag(DIM, **options)
    batch = features_of(bags, None if weights is None else torch.tensor(weights), dtype)
    found = bag(batch)
    assert found.shape == (3, 2, DIM)
    torch.testing.assert_close(found, one_by_one(bag, bags, weights))
    fields = bag.features or dict.fromkeys(bags, 0)
    keys = {key_of(key, fields[name], bag._field_bits) for name, its in bags.items() for one in its for key in one}
    assert sorted(bag.keys.tolist()) == sorted(keys)
    again = pickle.loads(pickle.dumps(bag)).eval()
    torch.testing.assert_close(again(batch), found)
    if bag.features and weights is None:
        others = features_of({"other": [[9], [9], [9]], "item": bags["item"], "user": bags["user"]}, dtype=dtype)
        torch.testing.assert_close(again(others), found)


def test_a_jagged_tensor_without_keys_is_one_feature() -> None:
    bag = HashEmbeddingBag(DIM, mode="sum")
    found = bag(jagged(torch.tensor([3, 4, 3]), torch.tensor([2, 0, 1])))
    torch.testing.assert_close(found, one_by_one(bag, {"": [[3, 4], [], [3]]})[:, 0])


@over("features", [None, {"item": 0, "user": 1}])
def test_a_batch_without_bags_or_without_values(features: dict[str, int] | None) -> None:
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
            bag.prefetch(batch if jagged else batch.values())
            vectors.square().sum().backward()
            optimizer.step()
        tables.append(bag.lookup(batch.values()))
    assert torch.equal(*tables)


NAMED = {"features": {"user": 0, "item": 1}, "field_bits": 1}


@over(
    ("batch", "error", "message"),
    [
        (features_of({"user": [[1]], "item": [[1], [2]]}), ValueError, r"one size, this one's have \[1, 2\]"),
        (features_of({"item": [[1]]}), ValueError, "the batch has no feature 'user'; it has 'item'"),
        (features_of(BAGS, values=torch.zeros(7)), TypeError, "must be int64 or int32, got torch.float32"),
        (features_of(BAGS, values=torch.arange(6)), ValueError, "add up to its 6 values"),
        (features_of(BAGS, stride=2), ValueError, "2 features of 2 bags need 4 lengths, got 6"),
        (features_of(BAGS, torch.ones(7)), NotImplementedError, "need mode='sum'"),
        (jagged(torch.tensor([3]), torch.tensor([1])), ValueError, "does not say which of this bag's features"),
        ([1, 2], TypeError, "a jagged tensor of TorchRec, got list"),
    ],
)
def test_a_batch_that_does_not_fit_is_refused_before_anything_is_inserted(
    batch: Any, error: type[Exception], message: str
) -> None:
    bag = HashEmbeddingBag(DIM, **NAMED)
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
    with pytest.raises(ValueError, match="are for tensors, not for a SimpleNamespace"):
        HashEmbeddingBag(DIM)(features_of(BAGS), torch.tensor([0]))
    with pytest.raises(TypeError, match=r"got SimpleNamespace: give its values\(\)"):
        HashEmbedding(DIM)(features_of(BAGS))  # type: ignore[arg-type]


def part_of(rank: int) -> SimpleNamespace:
    """A rank's part of a global batch; the last rank has none."""
    samples = list(range(5 * rank, 5 * rank + 5)) if rank < 3 else []
    return features_of({"user": [[k % 7] * (k % 3) for k in samples], "item": [[k % 4, 2**40 + k] for k in samples]})


def summed_over_ranks() -> tuple[Tensor, list[int]]:
    bag = HashEmbeddingBag(DIM, mode="sum", process_group=dist.group.WORLD, reduction="sum", **NAMED)
    optimizer = GroupAdam(bag.parameters(), lr=0.1)
    bag(part_of(dist.get_rank())).square().sum().backward()
    optimizer.step()
    return bag(part_of(dist.get_rank())).detach(), bag.keys.tolist()


def test_a_sharded_bag_takes_each_ranks_part(four_ranks: Ranks) -> None:
    parts = four_ranks.call(summed_over_ranks)
    whole = HashEmbeddingBag(DIM, mode="sum", **NAMED)
    optimizer = GroupAdam(whole.parameters(), lr=0.1)
    sum(whole(part_of(rank)).square().sum() for rank in range(4)).backward()  # type: ignore[union-attr]
    optimizer.step()
    for rank, (vectors, _) in enumerate(parts):
        torch.testing.assert_close(vectors, whole(part_of(rank)).detach())
    assert parts[3][0].shape == (0, 2, DIM)
    assert sorted(key for _, keys in parts for key in keys) == sorted(whole.keys.tolist())
