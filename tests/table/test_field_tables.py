"""Tables of several widths as one embedding: the algebra, what is sparse, and that all else goes on as with one."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from optimizer_cases import backward
from over import over
from sparsegroup import (
    FieldTables,
    GroupAdagrad,
    GroupAdam,
    GroupSGD,
    HashEmbedding,
    TargetBytes,
    TargetRate,
    param_groups,
)
from sparsegroup.serving import export, load_export

DIM, SIZES = 6, {0: 6, 1: 2, 2: 4, 130: 2}


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


def matrices(tables: FieldTables) -> dict[int, Tensor]:
    """P by the size of vectors."""
    return {
        table.dim: tables.up[name].weight.detach() if name in tables.up else torch.eye(DIM, dtype=torch.float64)
        for name, table in tables.tables.items()
    }


def one_by_one(tables: FieldTables, keys: Tensor) -> Tensor:
    """P v of each key, found alone."""
    found = []
    for key in keys.flatten():
        size = SIZES[int(key >> 56) & 255]
        found.append(matrices(tables)[size] @ tables.tables[f"dim_{size}"].lookup(key))
    return torch.stack(found).view(*keys.shape, DIM)


def test_a_vector_is_multiplied_by_the_matrix_of_its_size() -> None:
    tables = embedding()
    assert {name: table.dim for name, table in tables.tables.items()} == {"dim_2": 2, "dim_4": 4, "dim_6": 6}
    for keys in (drawn_keys(7, 3), drawn_keys(40, seed=1), drawn_keys(2, 3, 4, seed=2), drawn_keys(1, 1)):
        given = tables(keys)
        assert given.shape == (*keys.shape, DIM)
        torch.testing.assert_close(given, one_by_one(tables, keys), rtol=1e-12, atol=1e-12)
    assert tables(torch.empty(0, 4, dtype=torch.int64)).shape == (0, 4, DIM)


def test_with_one_size_it_is_the_plain_table_bit_for_bit() -> None:
    plain, tables = HashEmbedding(DIM, field_bits=8), FieldTables(DIM, dict.fromkeys(SIZES, DIM))
    optimizers = [GroupAdam(one.parameters(), l21=1e-3) for one in (plain, tables)]
    for step in range(5):
        keys = drawn_keys(30, seed=step)
        given = [one(keys) for one in (plain, tables)]
        assert torch.equal(*given)
        for optimizer, vectors in zip(optimizers, given, strict=True):
            backward(optimizer, (vectors - 1).square().sum())
            optimizer.step()
    keys = torch.cat([keys for keys, _ in plain.items()])
    assert torch.equal(plain.lookup(keys), tables.tables["dim_6"].lookup(keys))


def test_what_comes_in_is_not_longer_and_goes_into_a_subspace() -> None:
    for size, matrix in matrices(embedding()).items():
        torch.testing.assert_close(matrix.T @ matrix, torch.eye(size, dtype=torch.float64))


def test_the_gradient_is_that_of_dense_algebra() -> None:
    tables, keys = embedding(), drawn_keys(60, values=8)
    weights = torch.randn(60, DIM, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    tables(keys)
    distinct = keys.unique()
    before = {int(key): tables.tables[f"dim_{SIZES[int(key >> 56) & 255]}"].lookup(key) for key in distinct}
    leaves = {key: vector.clone().requires_grad_() for key, vector in before.items()}
    ups = {size: matrix.clone().requires_grad_() for size, matrix in matrices(tables).items()}
    dense = torch.stack([ups[len(leaves[int(key)])] @ leaves[int(key)] for key in keys])
    ((dense * weights).sin()).sum().backward()
    optimizer = GroupSGD(tables.parameters(), lr=1.0)
    backward(optimizer, ((tables(keys) * weights).sin()).sum())
    for name, layer in tables.up.items():
        size = tables.tables[name].dim
        torch.testing.assert_close(layer.weight.grad, ups[size].grad, rtol=1e-10, atol=1e-12)
    optimizer.step()
    for key, leaf in leaves.items():
        table = tables.tables[f"dim_{len(leaf)}"]
        after = table.lookup(torch.tensor(key))
        torch.testing.assert_close(after, before[key] - leaf.grad, rtol=1e-10, atol=1e-12)


def test_unknown_keys_have_zeros_in_evaluation_or_the_projected_fallback() -> None:
    keys = drawn_keys(9)
    assert not embedding().eval()(keys).any()
    tables = embedding(fallback=True).eval()
    for table in tables.tables.values():
        nn.init.normal_(table.fallback)
    fields = (keys >> 56) & 255
    expected = [
        matrices(tables)[size] @ tables.tables[f"dim_{size}"].fallback[field]
        for field in fields
        for size in [SIZES[int(field)]]
    ]
    torch.testing.assert_close(tables(keys), torch.stack(expected))


def test_looked_up_ahead_it_is_the_same() -> None:
    tables, ahead, keys = embedding(), embedding(), drawn_keys(3, 4_096, values=10_000)
    ahead.prefetch(keys)
    assert torch.equal(tables(keys), ahead(keys))
    assert tables.num_seen == ahead.num_seen


@over(("strength", "lives"), [(0.99, False), (1.01, True)])
def test_a_vector_lives_by_its_own_size(strength: float, lives: bool) -> None:
    """A gradient of λ21 √d · 1.01 in the subspace of P lets a row of size d live, whatever else there is of it."""
    l21, tables = 0.3, embedding(std=0.0)
    optimizer = GroupSGD(param_groups(tables, l21=l21), lr=1.0)
    for field, size in SIZES.items():
        matrix = matrices(tables)[size]
        inside = matrix @ torch.ones(size, dtype=torch.float64)
        beside = torch.ones(DIM, dtype=torch.float64)
        beside -= matrix @ (matrix.T @ beside)
        backward(optimizer, (tables(keyed(field, torch.tensor([7]))) @ (strength * l21 * inside + 9 * beside)).sum())
        optimizer.step()
    assert tables.num_live == (len(SIZES) if lives else 0)


def test_a_rate_is_that_of_all_tables_together() -> None:
    tables = embedding(dtype=torch.float32)
    optimizer = GroupAdam(param_groups(tables, penalty="hard"), lr=1e-2)
    target = TargetRate(optimizer, 0.2, steps=60)
    train(tables, optimizer, target)
    assert tables.num_live == pytest.approx(0.2 * tables.num_seen, abs=1)
    rates = [table.feature_rate for table in tables.tables.values()]
    assert max(rates) > 1.3 * min(rates)  # nobody has asked for the same of each
    assert tables.num_seen == sum(table.num_seen for table in tables.tables.values()) > 300


def test_bytes_are_counted_by_the_size_of_each() -> None:
    tables = embedding(dtype=torch.float32)
    optimizer = GroupAdagrad(param_groups(tables, penalty="hard"), lr=3e-2)
    train(tables, optimizer, TargetBytes(optimizer, 3_000, steps=60))
    used = sum(table.num_live * (4 * table.dim + 8) for table in tables.tables.values())
    assert 3_000 - 32 <= used <= 3_000


def train(tables: FieldTables, optimizer: GroupAdam, target: TargetRate | TargetBytes) -> None:
    for step in range(60):
        keys = drawn_keys(64, seed=step, values=400 if step % 2 else 40)
        strength = ((keys % 5 == 0).float() + 0.05) * (1 + 20 * (keys >> 56 == 2))
        backward(optimizer, (strength[:, None] * (tables(keys) - 1).square()).mean())
        optimizer.step()
        target.step()


def test_a_copy_and_a_state_dict_hold_all_of_it() -> None:
    tables, keys = embedding(fallback=True), drawn_keys(30)
    tables(keys)
    other = FieldTables(DIM, SIZES, dtype=torch.float64, fallback=True)
    other.load_state_dict(tables.state_dict())
    for again in (copy.deepcopy(tables), other):
        assert torch.equal(again.eval()(keys), tables.eval()(keys))
    assert "place" not in tables.state_dict()


def test_counts_and_bytes_are_those_of_the_tables_added_up() -> None:
    tables = embedding()
    tables(drawn_keys(100))
    each = list(tables.tables.values())
    assert tables.num_rows == sum(table.num_rows for table in each) == tables.num_live
    assert tables.memory().total == sum(table.memory().total for table in each)
    assert tables.memory().parts == {"weight": sum(8 * table.dim * table.num_rows for table in each)}
    assert {field: count.rows for field, count in tables.field_counts().items()} == {
        field: sum(count.rows for table in each for its, count in table.field_counts().items() if its == field)
        for field in SIZES
    }
    assert (tables.feature_rate, tables.num_evicted, tables.num_refused) == (1.0, 0, 0)


@pytest.mark.whole
def test_a_module_with_it_is_exported(tmp_path: Path) -> None:
    model = nn.Sequential(embedding(dtype=torch.float32, fallback=True), nn.Flatten(), nn.Linear(4 * DIM, 1))
    keys = drawn_keys(9, 4)
    model(keys)
    manifest = export(model, tmp_path / "out", (keys,), formats=["program"])
    assert set(manifest.tables) == {"0.dim_2", "0.dim_4", "0.dim_6"}
    program = load_export(tmp_path / "out")
    again = load_export(tmp_path / "out", copy.deepcopy(model))
    for given in (keys, keys[:1], keys[:0], drawn_keys(30, 4, seed=5), keyed(1, torch.arange(8).view(2, 4))):
        expected = model.eval()(given).detach()
        torch.testing.assert_close(program(given), expected)
        torch.testing.assert_close(again(given), expected)


@over(
    ("dim", "sizes", "message"),
    [
        (4, {}, "sizes must name at least one field"),
        (4, {0: 5}, "the size of field 0 must be"),
        (4, {0: 0}, "the size of field 0 must be"),
        (4, {256: 2}, "a field in sizes must be"),
        (0, {0: 1}, "dim must be"),
    ],
)
def test_arguments_out_of_range(dim: int, sizes: dict[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FieldTables(dim, sizes)


def test_a_field_without_a_size_is_refused_in_training_and_unknown_in_evaluation() -> None:
    tables, keys = embedding(), keyed(5, torch.tensor([1, 2]))
    with pytest.raises(ValueError, match="the field 5 has no size; there are sizes of the fields 0, 1, 2, 130"):
        tables(keys)
    assert tables.num_seen == 0
    assert not tables.eval()(keys).any()
