"""Deltas: all of them lead to the export made at once, in their order only."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from serving_cases import opened_model, train
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
from sparsegroup.serving.rows import Embeddings, load_embeddings
from sparsegroup.settings.names import Dtype, KeyFormat


def content(folder: Path) -> list[bytes]:
    names = sorted(path.name for path in folder.glob("embeddings*.safetensors"))
    return [(folder / name).read_bytes() for name in (*names, "network.safetensors")]


SIZES = {"user": 2, "tags": 2, "hour": 3}
"""Three tables: the sizes of some fields' vectors, and 4 of the others."""


def table_files(name: str, tables: TrainedModel) -> list[str]:
    """The names of a file that each table of a model has."""
    names = list(tables_of(tables.model))
    return [f"{name}.safetensors"] if names == ["embedding"] else [f"{name}-{one}.safetensors" for one in names]


def same(a: Embeddings, b: Embeddings) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a.tensors().values(), b.tensors().values(), strict=True))


@pytest.mark.parametrize(
    ("dtype", "keys", "dims"),
    [("float32", "full", {}), ("int8", "full", SIZES), ("int4", "fingerprints", SIZES)],
)
def test_a_chain_of_deltas_leads_to_the_full_export_byte_for_byte(
    dtype: Dtype, keys: KeyFormat, dims: dict[str, int], tmp_path: Path
) -> None:
    opened = opened_model(dims=dims, rows=420)  # which take as many bits for the days to come
    export_trained(opened, tmp_path / "0", dtype, keys=keys)
    none = export_delta(opened, tmp_path / "none", tmp_path / "0")
    assert none.changes is not None
    assert (none.changes.upserts, none.changes.tombstones) == (0, 0)
    assert none.id == read_export(tmp_path / "0").manifest.id
    upserts, tombstones = (table_files(name, opened) for name in ("upserts", "tombstones"))
    for (name, table), file in zip(tables_of(opened.model).items(), upserts, strict=True):
        assert len(load_embeddings(tmp_path / "none" / file, table.dim, dtype, keys)) == 0, name
    files = {"manifest.json", "network.safetensors", *upserts, *tombstones}
    assert {path.name for path in (tmp_path / "none").iterdir()} == files
    deltas = [tmp_path / "deltas" / f"{day}" for day in range(1, 4)]
    for day, (base, path) in enumerate(zip([tmp_path / "0", *deltas], deltas, strict=False), 1):
        train(opened, day, 0.1)
        delta = export_delta(opened, path, base)
        full = export_trained(opened, tmp_path / f"full{day}", dtype, keys=keys)
        assert delta.id == full.id
        assert delta.changes is not None
        assert 0 < delta.changes.upserts < full.live_rows
        assert delta.changes.tombstones > 0
    applied = apply_deltas(tmp_path / "0", deltas, tmp_path / "out")
    assert (applied.id, applied.fields) == (full.id, full.fields)
    assert content(tmp_path / "out") == content(tmp_path / "full3")
    followed, expected = read_export(deltas[-1]), read_export(tmp_path / "full3")  # by the paths that they record
    assert all(same(rows, expected.tables[name]) for name, rows in followed.tables.items())
    assert sum(table.num_live for table in tables_of(open_trained(deltas[-1]).model).values()) == full.live_rows
    shutil.copytree(tmp_path / "0", tmp_path / "moved" / "0")
    shutil.copytree(tmp_path / "deltas", tmp_path / "moved" / "deltas")
    assert read_export(tmp_path / "moved" / "deltas" / "3").manifest == replace(
        full, **{name: getattr(followed.manifest, name) for name in ("kind", "files", "parent", "changes")}
    )


def days(tmp_path: Path, count: int, **settings: Any) -> TrainedModel:
    """Export a model, and a delta of each day."""
    opened = opened_model(**settings)
    export_trained(opened, tmp_path / "0")
    for day in range(1, count + 1):
        train(opened, day, 0.1)
        export_delta(opened, tmp_path / f"{day}", tmp_path / f"{day - 1}")
    return opened


def test_deltas_out_of_order_or_on_another_base_are_refused_and_nothing_is_written(tmp_path: Path) -> None:
    export_trained(days(tmp_path, 3), tmp_path / "other")
    orders = [["0", "2"], ["0", "2", "1"], ["0", "1", "3"], ["0", "1", "1"], ["other", "1"], ["1", "1"]]
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
    for settings, what in (
        ({"numbers": True}, "has other columns"),
        ({"model": "mlp"}, "has another network"),
        ({"dims": SIZES}, "has another network"),
    ):
        with pytest.raises(ExportError, match=what):
            export_delta(opened_model(**settings), tmp_path / "1", tmp_path / "0")
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_a_damage_to_a_delta_or_its_base_is_named(tmp_path: Path) -> None:
    opened = days(tmp_path, 1, dims=SIZES)
    delta, of = tmp_path / "1", EXPORT.read(tmp_path / "1")
    assert of.changes is not None

    def check(message: str, **changed: Any) -> None:
        EXPORT.write(delta, replace(of, **changed))
        with pytest.raises(ExportError, match=message):
            read_export(delta)
        EXPORT.write(delta, of)

    for name in (*table_files("upserts", opened), *table_files("tombstones", opened)):
        whole = (delta / name).read_bytes()
        (delta / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        with pytest.raises(ExportError, match=re.escape(f"{name}: damaged")):
            read_export(delta)
        with pytest.raises(ExportError, match=re.escape(f"{name}: damaged")):
            apply_deltas(tmp_path / "0", [delta], tmp_path / "out")
        (delta / name).write_bytes(whole)
        files = {other: facts for other, facts in of.files.items() if other != name}
        check(re.escape(f"files: {name} is missing"), files=files)
    for field in ("upserts", "tombstones"):
        changes = replace(of.changes, **{field: getattr(of.changes, field) + 1})
        check(f"changes.{field}: .* but the files have", changes=changes)
    of_one = list(of.tables)[1]
    tables = {**of.tables, of_one: replace(of.tables[of_one], live_rows=1)}
    check(f"tables.{of_one}.live_rows: 1, but the files have", tables=tables)
    of_other = Parent(export_trained(opened_model(), tmp_path / "other").id, "../other")
    check(r"tables: \['embedding.dim_2', .* cannot follow \['embedding'\]", parent=of_other)
    export_trained(opened_model(seed=5), tmp_path / "0", overwrite=True)
    with pytest.raises(ExportError, match=r"builds on export .* but in .* there is"):
        read_export(delta)
