"""Exports and deltas: what is in them, what they weigh, and that a damaged one is never taken for whole."""

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from over import over
from serving_cases import FIELDS, batch_of, opened_model, train
from sparsegroup.artifact.manifest import Parent
from sparsegroup.data import MemoryLog
from sparsegroup.data.schema import LogSchema
from sparsegroup.serving import (
    ExportError,
    TrainedModel,
    apply_deltas,
    export_delta,
    export_trained,
    export_within,
    open_trained,
    read_export,
)
from sparsegroup.serving.evaluation import TestRows
from sparsegroup.serving.exporting import compare, random_batches
from sparsegroup.serving.frozen import sorted_rows
from sparsegroup.serving.frozen_model import tables_of
from sparsegroup.serving.manifest import EXPORT
from sparsegroup.serving.rows import Embeddings, load_embeddings
from sparsegroup.settings.names import Dtype, KeyFormat
from sparsegroup.training import predict


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_an_export_holds_the_live_rows_and_opens_as_a_model(dtype: Any, tmp_path: Path) -> None:
    opened = opened_model(numbers=True, lists=True)
    manifest = export_trained(opened, tmp_path / "out", dtype)
    table = opened.model.embedding
    assert (manifest.live_rows, manifest.features_seen) == (table.num_live, table.num_seen)
    assert manifest.feature_rate == table.feature_rate < 1
    assert sum(rows.live for rows in manifest.fields.values()) == table.num_live
    assert sum(rows.seen for rows in manifest.fields.values()) == table.num_seen
    assert (manifest.before.dense, manifest.before.table) == (table.num_seen * table.dim * 4, table.memory().content)
    tensors = load_file(tmp_path / "out" / "embeddings.safetensors")
    assert (tensors["keys"][1:] > tensors["keys"][:-1]).all()
    assert tensors["vectors"].dtype == getattr(torch, dtype)
    again = open_trained(tmp_path / "out")
    assert (again.kind, again.manifest) == ("export", manifest)
    assert (again.config, again.columns) == (opened.config, opened.columns)
    assert again.model.embedding.num_rows == again.model.embedding.num_live == table.num_live
    batch = batch_of(opened, 50)
    with torch.no_grad():
        first, second = (one.model(batch.keys, batch.numbers, batch.bags).sigmoid() for one in (opened, again))
    assert (first - second).abs().max() < {"float32": 1e-6, "float16": 1e-3}.get(dtype, 2e-2)
    if dtype == "int8":  # exported from an export as from the model
        export_trained(opened, tmp_path / "whole")
        small = export_trained(open_trained(tmp_path / "whole"), tmp_path / "small", "int8")
        for name in ("content", "features_seen", "before", "fields"):
            assert getattr(small, name) == getattr(manifest, name), name


@over(("dtype", "vector"), [("int8", 8 + 1), ("bfloat16", 16)])
def test_files_are_as_large_as_their_rows(dtype: Dtype, vector: int, tmp_path: Path) -> None:
    opened = opened_model("mlp", rows=50_000, dim=8, hidden=(4,))
    manifest = export_trained(opened, tmp_path / dtype, dtype)
    assert 1 <= manifest.files["embeddings.safetensors"].bytes / (manifest.live_rows * (vector + 8)) < 1.01
    written = {name: (tmp_path / dtype / name).stat().st_size for name in manifest.files}
    assert written == {name: file.bytes for name, file in manifest.files.items()}


def test_rows_that_a_format_rounds_to_zero_are_left_out_and_counted(tmp_path: Path) -> None:
    opened = opened_model()
    keys = next(opened.model.embedding.items())[0][:7]
    opened.model.embedding.assign(keys, torch.full((7, 4), 1e-9))
    assert export_trained(opened, tmp_path / "a", "float32").zero_rows == 0
    manifest = export_trained(opened, tmp_path / "b", "float16")
    assert (manifest.zero_rows, manifest.live_rows) == (7, opened.model.embedding.num_live - 7)
    empty = export_trained(opened_model(rows=0), tmp_path / "empty")
    assert (empty.live_rows, empty.feature_rate) == (0, 0.0)
    assert open_trained(tmp_path / "empty").model.embedding.num_rows == 0


def test_the_same_model_gives_the_same_bytes_and_nothing_is_written_over_or_left_behind(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    before = export_trained(opened_model(), out)  # an empty folder is free
    assert export_trained(opened_model(), tmp_path / "same") == before == read_export(out).manifest
    assert export_trained(opened_model(), tmp_path / "int8", "int8").id != before.id
    with pytest.raises(ExportError, match=r"is not empty; give another folder, or `overwrite`"):
        export_trained(opened_model(seed=1), out)
    bad = opened_model(seed=1)
    bad.model.embedding.assign(torch.tensor([5]), torch.full((1, 4), 1e9))
    with pytest.raises(ExportError, match="float16 has no 1e"):
        export_trained(bad, out, "float16", overwrite=True)
    assert read_export(out).manifest == before
    after = export_trained(opened_model(seed=1), out, overwrite=True)
    assert after == read_export(out).manifest
    assert after.id != before.id
    assert sorted(path.name for path in tmp_path.iterdir()) == ["int8", "out", "same"]


@over(("wrong", "name"), [(["onnx"], "onnx"), (["training"], "training"), (["export", "onnx"], "export")])
def test_a_probability_that_is_no_number_in_one_of_the_models_fails_the_self_test(wrong: list[str], name: str) -> None:
    def scorer(of: str) -> Any:
        first = np.nan if of in wrong else 0.5
        return lambda batch: np.where(np.arange(len(batch)) == 0, first, 0.5).astype(np.float32)

    batches = random_batches(torch.arange(4), LogSchema(("a", "b"), (), ()), 8)
    with pytest.raises(ExportError, match=f"^{name} gives a prediction that is no number"):
        compare(batches, {of: scorer(of) for of in dict.fromkeys([*wrong, "export"])}, torch.nn.Identity())


# Exports of a limited size


def norms_of(opened: TrainedModel) -> torch.Tensor:
    """The norms of all live rows, largest first."""
    norms = torch.cat([sorted_rows(table)[1].norm(dim=1) for table in tables_of(opened.model).values()])
    return norms.sort(descending=True).values


def rows_of(opened: TrainedModel, count: int = 400) -> TestRows:
    """Rows of present and absent keys, whose labels are drawn from the model's predictions."""
    generator = torch.Generator().manual_seed(0)
    every = torch.cat([sorted_rows(table)[0] for table in tables_of(opened.model).values()])
    columns = []
    for field in range(len(FIELDS)):
        absent = (field << 56) + torch.randint(0, 1 << 56, (20,), generator=generator)
        known = torch.cat([every[(every >> 56) == field], absent])
        columns.append(known[torch.randint(0, len(known), (count,), generator=generator)])
    keys = torch.stack(columns, 1).numpy()
    blank = MemoryLog("rows", FIELDS, keys, torch.zeros(count).numpy(), 0)
    chances = torch.from_numpy(predict(opened.model, blank.batches(0, count, 100)).logits()).sigmoid()
    labels = (torch.rand(count, generator=generator) < chances).to(torch.float32).numpy()
    return TestRows(MemoryLog("rows", FIELDS, keys, labels, 0), 0)


@over("settings", [{"dims": {"user": 2}}, {"fallback": True}])
def test_it_fits_keeps_the_largest_rows_and_is_the_best_candidate(settings: dict[str, Any], tmp_path: Path) -> None:
    opened = opened_model("mlp", rows=3_000, **settings)
    folder, norms, rows = tmp_path / "-".join(settings), norms_of(opened), rows_of(opened)
    with pytest.raises(ExportError, match="has 1 test rows; a choice by `bytes` needs two"):
        export_within(opened, folder, 10**6, rows_of(opened, 1))
    assert not folder.exists()
    whole = export_within(opened, folder / "whole", 10**9, rows)
    assert whole.live_rows == len(norms)
    for more in (12_000, 30_000):
        out, limit = folder / str(more), whole.files["network.safetensors"].bytes + more
        manifest = export_within(opened, out, limit, rows)
        best = manifest.candidates[0]
        assert best.loss == min(one.loss for one in manifest.candidates)
        assert (best.dtype, best.rows) == (manifest.dtype, manifest.live_rows)
        written = sum(file.bytes for name, file in manifest.files.items() if name.endswith(".safetensors"))
        assert written == best.bytes <= limit
        assert all(one.rows == len(norms) or one.bytes > 0.97 * limit for one in manifest.candidates)
        kept = norms_of(open_trained(out))
        torch.testing.assert_close(kept, norms[: len(kept)], rtol=0.1, atol=0.02)


# Deltas: all of them lead to the export made at once, in their order only


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
