"""Deltas: what a server must set and remove, and that all of them lead to the export made at once."""

import random
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_cases import by_table, opened_model
from sparsegroup.artifact.manifest import Parent
from sparsegroup.serving import (
    ExportError,
    TrainedModel,
    apply_deltas,
    export_delta,
    export_trained,
    open_trained,
    read_export,
)
from sparsegroup.serving.frozen_model import tables_of
from sparsegroup.serving.manifest import EXPORT
from sparsegroup.serving.rows import Embeddings, difference, load_embeddings, merge
from sparsegroup.settings.names import Dtype, KeyFormat

DTYPES = ("float32", "float16", "bfloat16", "int8", "int4")
values = st.sampled_from([-2.0, -0.5, 0.25, 1.0, 3.0])
tables = st.dictionaries(st.sampled_from([-(1 << 63), -5, 0, 1, 2, 3, (1 << 63) - 1]), st.tuples(values, values))


def embeddings(table: dict[int, tuple[float, ...]], dtype: str) -> Embeddings:
    keys = torch.tensor(sorted(table), dtype=torch.int64)
    vectors = torch.tensor([table[key] for key in sorted(table)]).reshape(len(table), 2)
    return Embeddings.of(keys, vectors, dtype)  # type: ignore[arg-type]


def same(a: Embeddings, b: Embeddings) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.tensors().values(), b.tensors().values(), strict=True))


@settings(max_examples=100)
@given(st.lists(tables, min_size=1, max_size=6), st.sampled_from(DTYPES))
def test_any_sequence_of_changes_applied_is_the_last_state(
    states: list[dict[int, tuple[float, ...]]], dtype: str
) -> None:
    state, server = embeddings(states[0], dtype), dict(embeddings_as_dict(embeddings(states[0], dtype)))
    for following in states[1:]:
        new = embeddings(following, dtype)
        change = difference(state, new)
        # No more than needed: tombstones were there, upserts are new or other.
        before = embeddings_as_dict(state)
        assert all(key in before for key in change.tombstones.tolist())
        assert all(before.get(key) != bits for key, bits in embeddings_as_dict(change.upserts).items())
        for key in change.tombstones.tolist():  # what a server does
            del server[key]
        server |= embeddings_as_dict(change.upserts)
        state = merge(state, change)
        assert same(state, new)
        assert server == embeddings_as_dict(new)


def embeddings_as_dict(some: Embeddings) -> dict[int, bytes]:
    scale = torch.zeros(len(some), dtype=torch.uint8) if some.scale is None else some.scale
    rows = zip(some.keys.tolist(), some.vectors, scale, strict=True)
    return {
        key: vector.contiguous().view(torch.uint8).numpy().tobytes() + one.numpy().tobytes()
        for key, vector, one in rows
    }


def train_a_little(opened: TrainedModel, seed: int) -> None:
    """Change some rows, zero some, bring some back, drop some, add some; and change the network."""
    generator = torch.Generator().manual_seed(seed)
    new = torch.randint(-(1 << 60), 1 << 60, (10,), generator=generator) % (5 << 56)
    for table, added in by_table(opened.model, new):
        keys = table.state_dict()["keys"]
        for scale in (0, 1):
            some = keys[torch.rand(len(keys), generator=generator) < 0.1]
            table.assign(some, scale * torch.randn(len(some), table.dim, generator=generator))
        if seed % 2:
            table.shrink()
        table.assign(added, torch.randn(len(added), table.dim, generator=generator))
    with torch.no_grad():
        for parameter in opened.model.network.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)


def content(folder: Path) -> list[bytes]:
    names = sorted(path.name for path in folder.glob("embeddings*.safetensors"))
    return [(folder / name).read_bytes() for name in (*names, "network.safetensors")]


SIZES = {"user": 2, "tags": 2, "hour": 3}
"""Three tables: the sizes of some fields' vectors, and 4 of the others."""


def table_files(name: str, tables: TrainedModel) -> list[str]:
    """The names of a file that each table of a model has."""
    names = list(tables_of(tables.model))
    return [f"{name}.safetensors"] if names == ["embedding"] else [f"{name}-{one}.safetensors" for one in names]


@pytest.mark.parametrize(("dtype", "keys"), [("float32", "full"), ("int8", "full"), ("int4", "fingerprints")])
@pytest.mark.parametrize("dims", [{}, SIZES], ids=["a table", "tables"])
def test_a_chain_of_deltas_leads_to_the_full_export_byte_for_byte(
    dtype: Dtype, keys: KeyFormat, dims: dict[str, int], tmp_path: Path
) -> None:
    opened = opened_model(dims=dims, rows=420)  # which take as many bits for the days to come
    export_trained(opened, tmp_path / "0", dtype, keys=keys)
    none = export_delta(opened, tmp_path / "none", tmp_path / "0")
    assert none.changes is not None
    assert (none.changes.upserts, none.changes.tombstones) == (0, 0)
    assert none.id == read_export(tmp_path / "0").manifest.id
    for (name, table), file in zip(tables_of(opened.model).items(), table_files("upserts", opened), strict=True):
        assert len(load_embeddings(tmp_path / "none" / file, table.dim, dtype, keys)) == 0, name
    files = {"manifest.json", "network.safetensors"}
    assert {path.name for path in (tmp_path / "none").iterdir()} == {
        *files,
        *table_files("upserts", opened),
        *table_files("tombstones", opened),
    }
    for day in range(1, 4):
        train_a_little(opened, day)
        delta = export_delta(
            opened, tmp_path / "deltas" / f"{day}", tmp_path / ("0" if day == 1 else f"deltas/{day - 1}")
        )
        full = export_trained(opened, tmp_path / f"full{day}", dtype, keys=keys)
        assert delta.id == full.id
        assert delta.changes is not None
        assert 0 < delta.changes.upserts < full.live_rows
        assert delta.changes.tombstones > 0
    deltas = [tmp_path / "deltas" / f"{day}" for day in range(1, 4)]
    applied = apply_deltas(tmp_path / "0", deltas, tmp_path / "out")
    assert applied.id == full.id
    assert applied.fields == full.fields
    assert content(tmp_path / "out") == content(tmp_path / "full3")
    followed = read_export(deltas[-1])  # by the paths that they record
    expected = read_export(tmp_path / "full3").tables
    assert all(same(rows, expected[name]) for name, rows in followed.tables.items())
    assert sum(table.num_live for table in tables_of(open_trained(deltas[-1]).model).values()) == full.live_rows
    shutil.copytree(tmp_path / "0", tmp_path / "moved" / "0")
    shutil.copytree(tmp_path / "deltas", tmp_path / "moved" / "deltas")
    assert read_export(tmp_path / "moved" / "deltas" / "3").manifest == replace(
        full, **{name: getattr(followed.manifest, name) for name in ("kind", "files", "parent", "changes")}
    )


def days(tmp_path: Path, count: int) -> TrainedModel:
    opened = opened_model()
    export_trained(opened, tmp_path / "0")
    for day in range(1, count + 1):
        train_a_little(opened, day)
        export_delta(opened, tmp_path / f"{day}", tmp_path / f"{day - 1}")
    return opened


def test_deltas_out_of_order_or_on_another_base_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    opened = days(tmp_path, 3)
    export_trained(opened, tmp_path / "other")
    orders = [["0", "2"], ["0", "2", "1"], ["0", "1", "3"], ["0", "1", "1"], ["other", "1"], ["1", "1"]]
    random.Random(0).shuffle(orders)
    for base, *deltas in orders:
        with pytest.raises(ExportError, match=r"follows export [0-9a-f]{16}, not [0-9a-f]{16}, which"):
            apply_deltas(tmp_path / base, [tmp_path / delta for delta in deltas], tmp_path / "out")
    with pytest.raises(ExportError, match="a whole export, no delta"):
        apply_deltas(tmp_path / "0", [tmp_path / "other"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    apply_deltas(tmp_path / "1", [tmp_path / "2", tmp_path / "3"], tmp_path / "out")
    assert content(tmp_path / "out") == content(tmp_path / "other")


def test_a_delta_needs_the_format_the_columns_and_the_network_of_its_base(tmp_path: Path) -> None:
    export_trained(opened_model(), tmp_path / "0", "int8")
    with pytest.raises(ExportError, match="its vectors are int8; a delta to float32 cannot be made"):
        export_delta(opened_model(), tmp_path / "1", tmp_path / "0", "float32")
    with pytest.raises(ExportError, match="has other columns"):
        export_delta(opened_model(numbers=True), tmp_path / "1", tmp_path / "0")
    for other in (opened_model("mlp"), opened_model(dims=SIZES)):
        with pytest.raises(ExportError, match="has another network"):
            export_delta(other, tmp_path / "1", tmp_path / "0")
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_a_damage_to_the_delta_of_any_table_is_named(tmp_path: Path) -> None:
    opened = opened_model(dims=SIZES)
    export_trained(opened, tmp_path / "0")
    train_a_little(opened, 1)
    delta, of = tmp_path / "1", export_delta(opened, tmp_path / "1", tmp_path / "0")
    assert of.changes is not None
    for name in (*table_files("upserts", opened), *table_files("tombstones", opened)):
        whole = (delta / name).read_bytes()
        (delta / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(ExportError, match=re.escape(f"{name}: damaged")):
            read_export(delta)
        (delta / name).write_bytes(whole)
        files = {other: facts for other, facts in of.files.items() if other != name}
        EXPORT.write(delta, replace(of, files=files))
        with pytest.raises(ExportError, match=re.escape(f"files: {name} is missing")):
            read_export(delta)
        EXPORT.write(delta, of)
    for field in ("upserts", "tombstones"):
        EXPORT.write(delta, replace(of, changes=replace(of.changes, **{field: getattr(of.changes, field) + 1})))
        with pytest.raises(ExportError, match=f"changes.{field}: .* but the files have"):
            read_export(delta)
    of_one = list(of.tables)[1]
    tables = {**of.tables, of_one: replace(of.tables[of_one], live_rows=1)}
    EXPORT.write(delta, replace(of, tables=tables))
    with pytest.raises(ExportError, match=f"tables.{of_one}.live_rows: 1, but the files have"):
        read_export(delta)


def test_a_damaged_delta_and_a_replaced_base_are_named(tmp_path: Path) -> None:
    days(tmp_path, 1)
    path = tmp_path / "1" / "tombstones.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ExportError, match=r"tombstones\.safetensors: damaged"):
        apply_deltas(tmp_path / "0", [tmp_path / "1"], tmp_path / "out")
    path.write_bytes(whole)
    of_tables = export_trained(opened_model(dims=SIZES), tmp_path / "tables")
    EXPORT.write(tmp_path / "1", replace(EXPORT.read(tmp_path / "1"), parent=Parent(of_tables.id, "../tables")))
    with pytest.raises(ExportError, match=r"tables: \['embedding'\] cannot follow \['embedding.dim_2', "):
        read_export(tmp_path / "1")
    days_again = tmp_path / "again"
    days(days_again, 1)
    export_trained(opened_model(seed=5), days_again / "0", overwrite=True)
    with pytest.raises(ExportError, match=r"builds on export .* but in .* there is"):
        read_export(days_again / "1")
