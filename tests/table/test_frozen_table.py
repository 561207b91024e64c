"""The lookup of exported keys: a dictionary, whatever the keys."""

from copy import deepcopy

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from over import over
from serving_cases import random_keys
from sparsegroup.serving.frozen import FrozenTable
from sparsegroup.serving.rows import Embeddings, bits_for
from table_cases import threads

LOWEST, HIGHEST = -(1 << 63), (1 << 63) - 1
EDGES = [LOWEST, LOWEST + 1, -1, 0, 1, HIGHEST - 1, HIGHEST, (1 << 56) - 1, 1 << 56, -(1 << 56), (1 << 56) + 1]
any_key = st.one_of(
    st.sampled_from(EDGES),
    st.integers(LOWEST, HIGHEST),
    st.integers(-50, 50),
    st.builds(lambda field, low: (field << 56) + low, st.integers(-128, 127), st.integers(0, 300)),
    st.integers(HIGHEST - 3000, HIGHEST),
)


def table(keys: torch.Tensor, dtype: str = "float32") -> tuple[FrozenTable, torch.Tensor]:
    rows = Embeddings.of(keys, torch.randn(len(keys), 3, generator=torch.Generator().manual_seed(0)), dtype)
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


HASHED = random_keys(20_000, fields=256)


@over(
    ("keys", "steps"),
    [
        (HASHED, 2),
        (torch.cat([torch.tensor([LOWEST, 0]), HIGHEST - 4_999 + torch.arange(5_000)]), 9),
        (torch.cat([torch.arange(5_000) - 2_500, (5 << 56) + random_keys(1_000, 1)]), 9),
    ],
)
def test_hashed_keys_take_few_steps_and_little_directory_and_those_that_crowd_are_found(
    keys: torch.Tensor, steps: int
) -> None:
    lookup, vectors = table(keys)
    assert torch.equal(lookup(keys), vectors)
    neighbours = torch.cat([keys - 1, keys + 1, torch.tensor([123 << 54, -7_777_777])])
    assert not lookup(neighbours[~torch.isin(neighbours, keys)]).any()
    assert len(lookup.index.halves) <= steps
    if keys is HASHED:
        assert lookup.index.start.nbytes + lookup.index.first.nbytes <= 1.2 * len(keys)


@settings(max_examples=8)
@given(st.sets(any_key, max_size=200), st.sampled_from(["float32", "int8", "int4"]), st.booleans(), st.booleans())
def test_keys_found_ahead_have_the_rows_that_the_operators_find(
    keys: set[int], dtype: str, fallback: bool, fingerprints: bool
) -> None:
    live = random_keys(len(keys), fields=256) if fingerprints else torch.tensor(sorted(keys), dtype=torch.int64)
    generator = torch.Generator().manual_seed(len(keys))
    vectors, absent = (torch.randn(count, 3, generator=generator) for count in (len(live), 256))
    bits = bits_for(live) if fingerprints else None
    lookup = FrozenTable(Embeddings.of(live, vectors, dtype, absent if fallback else None, bits))
    some = torch.cat([live, torch.tensor(EDGES), random_keys(50, fields=256)])
    asked = some.repeat(2, 20_000 // len(some))[:, :-1]
    with threads(2):
        wanted = lookup(asked)
        lookup.prefetch(asked)
        assert lookup._ahead is not None
        assert torch.equal(deepcopy(lookup)(asked), wanted)  # a copy has no thread to wait for
        assert torch.equal(lookup(asked), wanted)
        assert lookup._ahead is None
        lookup.prefetch(asked)
        assert torch.equal(lookup(asked[:, :7]), wanted[:, :7])  # other keys than those
        assert torch.equal(lookup(asked), wanted)
        lookup.prefetch(asked[:, :7])
        assert lookup._ahead is None  # too few to pay
