"""Pairs of fields: each combination has another key, in the field of the pair."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from sparsegroup.data.synthetic import keys_of_values
from sparsegroup.models import PairKeys


def all_combinations(count: int) -> torch.Tensor:
    """Keys `[count², 2]` of all combinations of hashed values of two fields."""
    values = np.arange(count)
    left, right = keys_of_values(values.repeat(count), 0), keys_of_values(np.tile(values, count), 1)
    return torch.from_numpy(np.stack([left, right], axis=1))


def test_each_combination_has_another_key_also_of_small_numbers_and_bits_are_even() -> None:
    keys = all_combinations(300)
    found = PairKeys([(0, 1), (1, 0)], 2)(keys)
    assert torch.equal(found[:, :2], keys)
    assert len(found[:, 2:].unique()) == 2 * 300**2
    numbers = torch.cartesian_prod(torch.arange(300), torch.arange(300))
    assert len(PairKeys([(0, 1)], 2)(numbers)[:, 2].unique()) == 300**2
    ones = torch.stack([(found[:, 2] >> bit) & 1 for bit in range(56)]).double().mean(1)
    assert (ones - 0.5).abs().max() < 0.01  # six standard deviations of 90,000 fair bits


@pytest.mark.parametrize("first", [2, 127, 254])
def test_keys_are_those_of_the_page_on_formats(first: int) -> None:
    page = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
    a, b = map(int, re.findall(r"A = (\d+) and B = (\d+)", page)[0])
    for left, right, *found in PairKeys([(0, 1), (1, 0)], first)(all_combinations(5)).tolist():
        for place, (one, other) in enumerate(((left, right), (right, left))):
            key = (first + place) * 2**56 + (a * one + b * other) % 2**56
            assert found[place] == (key if key < 2**63 else key - 2**64)
