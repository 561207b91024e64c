"""Keys that carry their field, and tables of several widths as one embedding: the algebra, and all else as with one."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from optimizer_cases import backward
from over import over
from sparsegroup import FieldTables, GroupSGD, HashEmbedding, HashEmbeddingBag, convert, field_keys
from sparsegroup.data.keys import fields_of, keys_of
from sparsegroup.serving import export, load_export
from table_cases import random_keys

DIM, SIZES = 6, {0: 6, 1: 2, 2: 4, 130: 2}

# Keys


@over("field_bits", [1, 5, 8, 16])
def test_the_field_is_above_and_the_id_below(field_bits: int) -> None:
    most, low = 1 << field_bits, (1 << (64 - field_bits)) - 1
    ids = random_keys(50)
    for field in {0, 1, most // 2 - 1, most // 2, most - 1}:
        found = field_keys(ids, field, field_bits=field_bits)
        assert [key % 2**64 for key in found.tolist()] == [field << (64 - field_bits) | id & low for id in ids.tolist()]
    many = torch.randint(0, 1 << 40, (3, 2, min(most, 256)), generator=torch.Generator().manual_seed(0))
    each = [field_keys(many[..., field], field, field_bits=field_bits) for field in range(many.shape[-1])]
    assert torch.equal(field_keys(many, field_bits=field_bits), torch.stack(each, dim=-1)), "numbered by the last"


def test_they_are_those_of_click_logs() -> None:
    hashed = torch.from_numpy(keys_of(["a", "b", ""], 0))
    for field in (0, 3, 200):
        keys = field_keys(hashed, field)
        assert keys.tolist() == keys_of(["a", "b", ""], field).tolist()
        assert fields_of(keys.numpy()).tolist() == [field] * 3


def test_int32_keys_are_widened_wherever_keys_are_taken() -> None:
    keys = torch.tensor([[5, -1], [2**31 - 1, -(2**31)]], dtype=torch.int32)
    table, tables, bag = HashEmbedding(3, std=1.0), FieldTables(3, {0: 2, 255: 3}), HashEmbeddingBag(3)
    table.assign(keys, torch.ones(2, 2, 3))
    assert table.keys.tolist() == keys.flatten().tolist()
    assert table.contains(keys).all()
    table.prefetch(keys)
    for call in (table, table.lookup, table.initial, table.eval(), tables, bag, lambda ids: field_keys(ids, 3)):
        assert torch.equal(call(keys), call(keys.long()))
    offsets = torch.tensor([0, 3], dtype=torch.int32)
    assert torch.equal(bag(keys.flatten(), offsets), bag(keys.flatten().long(), offsets.long()))


# Tables of several widths


def keyed(field: Tensor | int, value: Tensor) -> Tensor:
    """Keys of values in a field; fields above 127 are negative."""
    return (torch.as_tensor(field) << 56) | value


def drawn_keys(*shape: int, seed: int = 0, values: int = 50) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    fields = torch.tensor(list(SIZES))[torch.randint(len(SIZES), shape, generator=generator)]
    return keyed(fields, torch.randint(values, shape, generator=generator))


def embedding(**options: object) -> FieldTables:
    torch.manual_seed(1)
    return FieldTables(DIM, SIZES, **{"std": 0.5, "dtype": torch.float64, **options})


def table_of(tables: FieldTables, key: Tensor) -> HashEmbedding:
    return tables.tables[f"dim_{SIZES[int(key >> 56) & 255]}"]


def matrices(tables: FieldTables) -> dict[int, Tensor]:
    """P by the size of vectors."""
    return {
        table.dim: tables.up[name].weight.detach() if name in tables.up else torch.eye(DIM, dtype=torch.float64)
        for name, table in tables.tables.items()
    }


def test_a_vector_is_multiplied_by_the_matrix_of_its_size() -> None:
    """Whose columns are orthonormal at the start."""
    tables = embedding()
    assert {name: table.dim for name, table in tables.tables.items()} == {"dim_2": 2, "dim_4": 4, "dim_6": 6}
    for size, matrix in matrices(tables).items():
        torch.testing.assert_close(matrix.T @ matrix, torch.eye(size, dtype=torch.float64))
    for keys in (drawn_keys(7, 3), drawn_keys(2, 3, 4, seed=2), drawn_keys(1, 1)):
        given = tables(keys)
        vectors = [table_of(tables, key).lookup(key) for key in keys.flatten()]
        expected = torch.stack([matrices(tables)[len(v)] @ v for v in vectors]).view(*keys.shape, DIM)
        torch.testing.assert_close(given, expected, rtol=1e-12, atol=1e-12)
    assert tables(torch.empty(0, 4, dtype=torch.int64)).shape == (0, 4, DIM)
    ahead, keys = embedding(), drawn_keys(3, 4_096, values=10_000)
    ahead.prefetch(keys)
    assert torch.equal(ahead(keys), embedding()(keys))


def test_the_gradient_is_that_of_dense_algebra() -> None:
    tables, keys = embedding(), drawn_keys(60, values=8)
    weights = torch.randn(60, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    tables(keys)
    leaves = {int(key): table_of(tables, key).lookup(key).requires_grad_() for key in keys.unique()}
    ups = {size: matrix.clone().requires_grad_() for size, matrix in matrices(tables).items()}
    dense = torch.stack([ups[len(leaves[int(key)])] @ leaves[int(key)] for key in keys])
    ((dense * weights).sin()).sum().backward()
    optimizer = GroupSGD(tables.parameters(), lr=1.0)
    backward(optimizer, ((tables(keys) * weights).sin()).sum())
    for name, layer in tables.up.items():
        torch.testing.assert_close(layer.weight.grad, ups[tables.tables[name].dim].grad, rtol=1e-10, atol=1e-12)
    optimizer.step()
    for key, leaf in leaves.items():
        after = table_of(tables, torch.tensor(key)).lookup(torch.tensor(key))
        torch.testing.assert_close(after, leaf.detach() - leaf.grad, rtol=1e-10, atol=1e-12)


def test_unknown_keys_have_zeros_in_evaluation_or_the_projected_fallback() -> None:
    keys, tables = drawn_keys(9), embedding(fallback=True).eval()
    assert not embedding().eval()(keys).any()
    for table in tables.tables.values():
        nn.init.normal_(table.fallback)
    vectors = [table_of(tables, key).fallback[(key >> 56) & 255] for key in keys]
    torch.testing.assert_close(tables(keys), torch.stack([matrices(tables)[len(v)] @ v for v in vectors]))


def test_counts_copies_and_state_dicts_are_those_of_all_tables() -> None:
    tables, keys = embedding(fallback=True), drawn_keys(100)
    tables(keys)
    each = list(tables.tables.values())
    assert tables.num_rows == sum(table.num_rows for table in each) == tables.num_live
    assert tables.memory().total == sum(table.memory().total for table in each)
    assert tables.memory().parts == {"weight": sum(8 * table.dim * table.num_rows for table in each)}
    assert {field: count.rows for field, count in tables.field_counts().items()} == {
        field: sum(count.rows for table in each for its, count in table.field_counts().items() if its == field)
        for field in SIZES
    }
    assert (tables.feature_rate, tables.num_evicted, tables.num_refused) == (1.0, 0, 0)
    other = FieldTables(DIM, SIZES, dtype=torch.float64, fallback=True)
    other.load_state_dict(tables.state_dict())
    for again in (copy.deepcopy(tables), other):
        assert torch.equal(again.eval()(keys), tables.eval()(keys))
    assert "place" not in tables.state_dict()


class Both(nn.Module):
    """Tables of several widths, and an embedding that has become a table."""

    def __init__(self) -> None:
        super().__init__()
        self.fields = embedding(dtype=torch.float32, fallback=True)
        self.item = convert(nn.Embedding(50, DIM, padding_idx=0))
        self.head = nn.Linear(8 * DIM, 1)

    def forward(self, keys: Tensor) -> Tensor:
        return self.head(torch.cat([self.fields(keys), self.item(keys & 31)], dim=1).flatten(1))


@pytest.mark.whole
def test_a_module_with_them_or_with_a_converted_embedding_is_exported(tmp_path: Path) -> None:
    model, keys = Both(), drawn_keys(9, 4)
    model(keys)
    manifest = export(model, tmp_path / "out", (keys,), formats=["program"])
    assert set(manifest.tables) == {"fields.dim_2", "fields.dim_4", "fields.dim_6", "item.table"}
    program = load_export(tmp_path / "out")
    again = load_export(tmp_path / "out", copy.deepcopy(model))
    for given in (keys, keys[:1], keys[:0], drawn_keys(30, 4, seed=5), keyed(1, torch.arange(8).view(2, 4))):
        expected = model.eval()(given).detach()
        torch.testing.assert_close(program(given), expected)
        torch.testing.assert_close(again(given), expected)


# What does not fit


ZEROS = torch.zeros(2).long()


@over(
    ("call", "message"),
    [
        (lambda: field_keys(torch.zeros(2, 257).long()), r"at most 256 fields for field_bits=8, got shape \[2, 257\]"),
        (lambda: field_keys(torch.tensor(3)), r"got shape \[\]; or give the field"),
        (lambda: field_keys(ZEROS, 256), r"field \(field_bits=8\) must be in \[0, 255\], got 256"),
        (lambda: field_keys(ZEROS, 1, field_bits=0), r"field_bits must be in \[1, 16\], got 0"),
        (lambda: field_keys(torch.zeros(2), 1), "keys must be int64 or int32, got torch.float32"),
        (lambda: FieldTables(4, {}), "sizes must name at least one field"),
        (lambda: FieldTables(4, {0: 5}), "the size of field 0 must be"),
        (lambda: FieldTables(4, {256: 2}), "a field in sizes must be"),
        (lambda: FieldTables(0, {0: 1}), "dim must be"),
    ],
)
def test_bad_arguments_are_refused(call, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_a_field_without_a_size_is_refused_in_training_and_unknown_in_evaluation() -> None:
    tables, keys = embedding(), keyed(5, torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="the field 5 has no size; there are sizes of the fields 0, 1, 2, 130"):
        tables(keys)
    assert tables.num_seen == 0
    assert not tables.eval()(keys).any()
