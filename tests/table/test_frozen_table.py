"""The lookup of exported keys: a dictionary, whatever the keys."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from over import over
from serving_cases import random_keys
from sparsegroup.serving.frozen import FrozenTable
from sparsegroup.serving.rows import Embeddings

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
EDGES = [LOWEST, LOWEST + 1, -1, 0, 1, HIGHEST - 1, HIGHEST, (1 << 56) - 1, 1 << 56, -(1 << 56), (1 << 56) + 1]
any_key = st.one_of(
    st.sampled_from(EDGES),
    st.integers(LOWEST, HIGHEST),
    st.integers(-50, 50),
    st.builds(lambda field, low: (field << 56) + low, st.integers(-128, 127), st.integers(0, 300)),
    st.integers(HIGHEST - 3000, HIGHEST),
)


def table(keys: torch.Tensor, dtype: str = "float32", dim: int = 3) -> tuple[FrozenTable, torch.Tensor]:
    vectors = torch.randn(len(keys), dim, generator=torch.Generator().manual_seed(0))
    rows = Embeddings.of(keys, vectors, dtype)  # type: ignore[arg-type]
    return FrozenTable(rows), rows.decode()


@settings(max_examples=100)
@given(st.sets(any_key, max_size=200), st.lists(any_key, max_size=30), st.sampled_from(["float32", "int8"]))
def test_any_set_of_keys_is_found_and_no_other(keys: set[int], others: list[int], dtype: str) -> None:
    live = torch.tensor(sorted(keys), dtype=torch.int64)
    asked = torch.cat([live, torch.tensor([*others, *EDGES], dtype=torch.int64)])
    lookup, vectors = table(live, dtype)
    expected, found = dict(zip(live.tolist(), vectors, strict=True)), lookup(asked)
    assert (found.dtype, found.shape) == (torch.float32, (len(asked), 3))
    for key, vector in zip(asked.tolist(), found, strict=True):
        assert torch.equal(vector, expected.get(key, torch.zeros(3))), key
    assert lookup(live[:0]).shape == (0, 3)


@over("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_hashed_keys_of_many_fields_take_few_steps_and_little_directory(dtype: str) -> None:
    keys = random_keys(20_000, fields=256)
    lookup, vectors = table(keys, dtype)
    assert torch.equal(lookup(keys), vectors)
    neighbours = torch.cat([keys - 1, keys + 1])
    neighbours = neighbours[~torch.isin(neighbours, keys)]
    assert not lookup(neighbours).any()
    assert len(lookup.index.halves) <= 2
    assert lookup.index.start.nbytes + lookup.index.first.nbytes <= 1.2 * len(keys)


@over(
    "keys",
    [
        torch.arange(5_000),
        torch.arange(5_000) + (7 << 56),
        HIGHEST - 4_999 + torch.arange(5_000),
        LOWEST + torch.arange(5_000),
        torch.cat([torch.tensor([LOWEST, 0]), HIGHEST - 4_999 + torch.arange(5_000)]),
        torch.cat([torch.arange(5_000) - 2_500, (5 << 56) + random_keys(1_000, 1)]),
    ],
)
def test_keys_that_crowd_cost_steps_but_are_found(keys: torch.Tensor) -> None:
    lookup, vectors = table(keys)
    assert torch.equal(lookup(keys), vectors)
    assert not lookup(torch.tensor([123 << 54, -7_777_777, keys[0] + (1 << 40)])).any()
    assert len(lookup.index.halves) <= math.ceil(math.log2(len(keys) / 16))
