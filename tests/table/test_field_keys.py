"""`field_keys`: the field's number above, the id below; and int32 ids wherever keys are taken."""

import pytest
import torch
from torch import Tensor

from over import over
from sparsegroup import FieldTables, HashEmbedding, HashEmbeddingBag, field_keys
from sparsegroup.data.keys import fields_of, keys_of
from table_cases import random_keys


@over("field_bits", [1, 5, 8, 16])
def test_the_field_is_above_and_the_id_below(field_bits: int) -> None:
    most, low = 1 << field_bits, (1 << (64 - field_bits)) - 1
    fields = sorted({0, 1, most // 2 - 1, most // 2, most - 1} & set(range(most)))
    ids = random_keys(50)
    for field in fields:
        found = field_keys(ids, field, field_bits=field_bits)
        assert [key % 2**64 for key in found.tolist()] == [field << (64 - field_bits) | id & low for id in ids.tolist()]


def test_the_last_dimension_numbers_the_fields() -> None:
    ids = torch.randint(0, 1 << 40, (3, 2, 256), generator=torch.Generator().manual_seed(0))
    keys = field_keys(ids)
    assert keys.shape == ids.shape
    assert torch.equal(keys, torch.stack([field_keys(ids[..., field], field) for field in range(256)], dim=-1))
    assert keys.unique().numel() == keys.numel()
    assert torch.equal(field_keys(torch.zeros(2, 256, dtype=torch.int32)), field_keys(torch.zeros(2, 256).long()))


def test_they_are_those_of_click_logs() -> None:
    hashed = torch.from_numpy(keys_of(["a", "b", ""], 0))
    for field in (0, 3, 200):
        keys = field_keys(hashed, field)
        assert keys.tolist() == keys_of(["a", "b", ""], field).tolist()
        assert fields_of(keys.numpy()).tolist() == [field] * 3


@over(
    ("arguments", "options", "message"),
    [
        ((torch.zeros(2, 257).long(),), {}, r"at most 256 fields for field_bits=8, got shape \[2, 257\]"),
        ((torch.tensor(3),), {}, r"got shape \[\]; or give the field"),
        ((torch.zeros(2).long(), 256), {}, r"field \(field_bits=8\) must be in \[0, 255\], got 256"),
        ((torch.zeros(2).long(), -1), {}, r"must be in \[0, 255\], got -1"),
        ((torch.zeros(2).long(), 1), {"field_bits": 0}, r"field_bits must be in \[1, 16\], got 0"),
        ((torch.zeros(2), 1), {}, "keys must be int64 or int32, got torch.float32"),
    ],
)
def test_what_does_not_fit_is_refused(arguments: tuple[Tensor, int], options: dict[str, int], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        field_keys(*arguments, **options)


IDS = torch.tensor([[5, -1], [2**31 - 1, -(2**31)]], dtype=torch.int32)


def test_int32_keys_are_widened_wherever_keys_are_taken() -> None:
    narrow, wide = HashEmbedding(3, std=1.0, fallback=True, field_bits=8), IDS.long()
    assert torch.equal(narrow(IDS), narrow(wide))
    assert narrow.keys.tolist() == [5, -1, 2**31 - 1, -(2**31)]
    narrow.assign(IDS, torch.ones(2, 2, 3))
    assert torch.equal(narrow.lookup(IDS), torch.ones(2, 2, 3))
    assert narrow.contains(IDS).all()
    assert torch.equal(narrow.initial(IDS), narrow.initial(wide))
    narrow.prefetch(IDS)
    assert narrow.eval()(IDS).shape == (2, 2, 3)
    bag, offsets = HashEmbeddingBag(3, mode="sum"), torch.tensor([0, 3], dtype=torch.int32)
    assert torch.equal(bag(IDS.flatten(), offsets), bag(wide.flatten(), offsets.long()))
    tables = FieldTables(3, {0: 2, 255: 3})
    assert torch.equal(tables(IDS), tables(wide))
