"""Exports: what is in them, what they weigh, and that a damaged one is never taken for whole."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file

from serving_cases import batch_of, opened_model
from sparsegroup.data.schema import LogSchema
from sparsegroup.serving import ExportError, export_trained, open_trained, read_export, read_manifest
from sparsegroup.serving.exporting import compare, random_batches
from sparsegroup.serving.onnx import OnnxModel

DTYPES = ("float32", "float16", "bfloat16", "int8")


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_export_holds_the_live_rows_and_opens_as_a_model(dtype: str, tmp_path: Path) -> None:
    opened = opened_model(numbers=True, lists=True)
    manifest = export_trained(opened, tmp_path / "out", dtype)  # type: ignore[arg-type]
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


@pytest.mark.parametrize("dtype", DTYPES)
def test_files_are_as_large_as_their_rows(dtype: str, tmp_path: Path) -> None:
    opened = opened_model("mlp", rows=50_000, dim=8)
    opened = replace(opened, config=opened.config.replace(hidden=(4,)))
    opened.model.network = opened.config.build_for(opened.columns)[0].network
    with_onnx = dtype in ("float32", "int8")
    manifest = export_trained(opened, tmp_path / "out", dtype, ["onnx"] if with_onnx else [])  # type: ignore[arg-type]
    vector = {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 8 + 1}[dtype]  # int8 has a scale
    rows = manifest.live_rows * (vector + 8)
    assert 1 <= manifest.files["embeddings.safetensors"].bytes / rows < 1.01
    if with_onnx:
        assert 1 <= manifest.files["model.onnx"].bytes / rows < 1.15
    written = {name: (tmp_path / "out" / name).stat().st_size for name in manifest.files}
    assert written == {name: file.bytes for name, file in manifest.files.items()}


def test_rows_that_a_format_rounds_to_zero_are_left_out_and_counted(tmp_path: Path) -> None:
    opened = opened_model()
    keys = next(opened.model.embedding.items())[0][:7]
    opened.model.embedding.assign(keys, torch.full((7, 4), 1e-9))
    assert export_trained(opened, tmp_path / "a", "float32").zero_rows == 0
    manifest = export_trained(opened, tmp_path / "b", "float16")
    assert (manifest.zero_rows, manifest.live_rows) == (7, opened.model.embedding.num_live - 7)


def test_an_empty_table_can_be_exported(tmp_path: Path) -> None:
    manifest = export_trained(opened_model(rows=0), tmp_path / "out", formats=["onnx"])
    assert (manifest.live_rows, manifest.feature_rate) == (0, 0.0)
    assert open_trained(tmp_path / "out").model.embedding.num_rows == 0
    zeros = torch.zeros(2, 5, dtype=torch.int64)
    assert OnnxModel(tmp_path / "out" / "model.onnx")([zeros])[0].shape == (2,)


def test_the_same_model_gives_the_same_bytes_and_another_id_where_they_differ(tmp_path: Path) -> None:
    first, second = (export_trained(opened_model(), tmp_path / name) for name in ("a", "b"))
    assert first == second == read_manifest(tmp_path / "a")
    assert export_trained(opened_model(), tmp_path / "c", "int8").id != first.id
    assert export_trained(opened_model(seed=1), tmp_path / "d").id != first.id


def test_the_vocabulary_is_that_of_the_live_keys(tmp_path: Path) -> None:
    opened = opened_model()
    table = opened.model.embedding
    keys = table.state_dict()["keys"].numpy()
    names = pl.DataFrame({"key": keys, "field": "site", "value": [str(key) for key in keys]})
    names.write_parquet(tmp_path / "vocabulary.parquet")
    export_trained(replace(opened, vocabulary=tmp_path / "vocabulary.parquet"), tmp_path / "out")
    again = open_trained(tmp_path / "out")
    assert again.vocabulary is not None
    kept = pl.read_parquet(again.vocabulary)
    assert kept["key"].to_list() == sorted(next(table.items())[0].tolist())
    assert kept.columns == names.columns


def test_nothing_is_written_over_or_left_behind(tmp_path: Path) -> None:
    out, mine = tmp_path / "out", tmp_path / "mine"
    out.mkdir()
    export_trained(opened_model(), out)  # an empty folder is free
    before = read_manifest(out)
    with pytest.raises(ExportError, match=r"is not empty; give another folder, or `overwrite`"):
        export_trained(opened_model(seed=1), out)
    bad = opened_model(seed=1)
    bad.model.embedding.assign(torch.tensor([5]), torch.full((1, 4), 1e9))
    with pytest.raises(ExportError, match="float16 has no 1e"):
        export_trained(bad, out, "float16", overwrite=True)
    assert read_manifest(out) == before
    assert export_trained(opened_model(seed=1), out, overwrite=True) == read_manifest(out) != before
    mine.mkdir()
    for folder, message in (
        (mine, "holds no export that could be overwritten"),
        (out, r"holds thesis\.txt, which is no part of an export"),
    ):
        (folder / "thesis.txt").write_text("all of it")
        with pytest.raises(ExportError, match=message):
            export_trained(opened_model(), folder, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "out"]


@pytest.mark.parametrize(
    ("wrong", "name"), [(["onnx"], "onnx"), (["training"], "training"), (["export", "onnx"], "export")]
)
def test_a_probability_that_is_no_number_in_one_of_the_models_fails_the_self_test(wrong: list[str], name: str) -> None:
    def scorer(of: str) -> Any:
        first = np.nan if of in wrong else 0.5
        return lambda batch: np.where(np.arange(len(batch)) == 0, first, 0.5).astype(np.float32)

    batches = random_batches(torch.arange(4), LogSchema(("a", "b"), (), ()), 8)
    with pytest.raises(ExportError, match=f"^{name} gives a prediction that is no number"):
        compare(batches, {of: scorer(of) for of in dict.fromkeys([*wrong, "export"])}, torch.nn.Identity())


def flip(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)


def edit(folder: Path, **values: object) -> None:
    path = folder / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


EMBEDDINGS, NETWORK, MANIFEST = "embeddings.safetensors", "network.safetensors", "manifest.json"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a flipped bit in the embeddings": (
        lambda at: flip(at / EMBEDDINGS, -9),
        rf"{EMBEDDINGS}: damaged \(its checksum is",
    ),
    "a flipped bit in the network": (lambda at: flip(at / NETWORK, -9), rf"{NETWORK}: damaged \(its checksum is"),
    "a truncated file": (
        lambda at: (at / EMBEDDINGS).write_bytes(b"12345"),
        rf"{EMBEDDINGS}: damaged \(5 bytes, 5,880 were written",
    ),
    "a missing file": (lambda at: (at / NETWORK).unlink(), f"{NETWORK}: missing"),
    "no manifest": (lambda at: (at / MANIFEST).unlink(), f"{MANIFEST} is missing"),
    "half a manifest": (
        lambda at: (at / MANIFEST).write_text((at / MANIFEST).read_text()[:500]),
        f"{MANIFEST}: damaged",
    ),
    "an edited manifest": (lambda at: edit(at, live_rows=3), rf"{MANIFEST}: damaged \(its checksum"),
    "another format": (lambda at: edit(at, format=99), rf"{MANIFEST}: damaged \(impossible format 99\)"),
    "a newer version": (lambda at: edit(at, version=99), f"{MANIFEST}: written by a newer version .* update"),
}


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    export_trained(opened_model(), tmp_path / "whole")
    for what, (damage, message) in DAMAGE.items():
        damaged = shutil.copytree(tmp_path / "whole", tmp_path / what)
        damage(damaged)
        with pytest.raises(ExportError, match=message):
            read_export(damaged)
