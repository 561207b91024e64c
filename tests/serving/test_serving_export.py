"""Exports: what is in them, what they weigh, which one fits a size, and that a damaged one is never taken for whole."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from over import over
from serving_cases import FIELDS, batch_of, opened_model
from sparsegroup.data import MemoryLog
from sparsegroup.data.schema import LogSchema
from sparsegroup.serving import ExportError, TrainedModel, export_trained, export_within, open_trained, read_export
from sparsegroup.serving.evaluation import TestRows
from sparsegroup.serving.exporting import compare, random_batches
from sparsegroup.serving.frozen import sorted_rows
from sparsegroup.serving.frozen_model import tables_of
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


@pytest.mark.parametrize(("dtype", "vector", "formats"), [("int8", 8 + 1, ["onnx"]), ("bfloat16", 16, [])])
def test_files_are_as_large_as_their_rows(dtype: Any, vector: int, formats: Any, tmp_path: Path) -> None:
    opened = opened_model("mlp", rows=50_000, dim=8, hidden=(4,))
    manifest = export_trained(opened, tmp_path / "out", dtype, formats)
    rows = manifest.live_rows * (vector + 8)
    assert 1 <= manifest.files["embeddings.safetensors"].bytes / rows < 1.01
    assert not formats or 1 <= manifest.files["model.onnx"].bytes / rows < 1.15
    written = {name: (tmp_path / "out" / name).stat().st_size for name in manifest.files}
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
    out, mine = tmp_path / "out", tmp_path / "mine"
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
    mine.mkdir()
    for folder, message in (
        (mine, "holds no export that could be overwritten"),
        (out, r"holds thesis\.txt, which is no part of an export"),
    ):
        (folder / "thesis.txt").write_text("all of it")
        with pytest.raises(ExportError, match=message):
            export_trained(opened_model(), folder, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["int8", "mine", "out", "same"]


@over(("wrong", "name"), [(["onnx"], "onnx"), (["training"], "training"), (["export", "onnx"], "export")])
def test_a_probability_that_is_no_number_in_one_of_the_models_fails_the_self_test(wrong: list[str], name: str) -> None:
    def scorer(of: str) -> Any:
        first = np.nan if of in wrong else 0.5
        return lambda batch: np.where(np.arange(len(batch)) == 0, first, 0.5).astype(np.float32)

    batches = random_batches(torch.arange(4), LogSchema(("a", "b"), (), ()), 8)
    with pytest.raises(ExportError, match=f"^{name} gives a prediction that is no number"):
        compare(batches, {of: scorer(of) for of in dict.fromkeys([*wrong, "export"])}, torch.nn.Identity())


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-9] ^= 4
    path.write_bytes(content)


def edit(folder: Path, **values: object) -> None:
    path = folder / MANIFEST
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


EMBEDDINGS, NETWORK, MANIFEST = "embeddings.safetensors", "network.safetensors", "manifest.json"
DAMAGE: list[tuple[Callable[[Path], object], str]] = [
    (lambda at: flip(at / EMBEDDINGS), rf"{EMBEDDINGS}: damaged \(its checksum is"),
    (lambda at: flip(at / NETWORK), rf"{NETWORK}: damaged \(its checksum is"),
    (lambda at: (at / EMBEDDINGS).write_bytes(b"12345"), rf"{EMBEDDINGS}: damaged \(5 bytes, 5,880 were written"),
    (lambda at: (at / NETWORK).unlink(), f"{NETWORK}: missing"),
    (lambda at: (at / MANIFEST).unlink(), f"{MANIFEST} is missing"),
    (lambda at: (at / MANIFEST).write_text((at / MANIFEST).read_text()[:500]), f"{MANIFEST}: damaged"),
    (lambda at: edit(at, live_rows=3), rf"{MANIFEST}: damaged \(its checksum"),
    (lambda at: edit(at, format=99), rf"{MANIFEST}: damaged \(impossible format 99\)"),
    (lambda at: edit(at, version=99), f"{MANIFEST}: written by a newer version .* update"),
]


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    export_trained(opened_model(), tmp_path / "whole")
    for number, (damage, message) in enumerate(DAMAGE):
        damaged = shutil.copytree(tmp_path / "whole", tmp_path / str(number))
        damage(damaged)
        with pytest.raises(ExportError, match=message):
            read_export(damaged)


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


def test_a_limit_below_the_network_is_refused_with_the_least_size(tmp_path: Path) -> None:
    opened = opened_model("mlp")
    with pytest.raises(ExportError, match=r"`bytes`: 1\.0 kB are too few: the network and the files without a row"):
        export_within(opened, tmp_path / "out", 1_000, rows_of(opened))
    with pytest.raises(ExportError, match="has 1 test rows; a choice by `bytes` needs two"):
        export_within(opened, tmp_path / "out", 10**6, rows_of(opened, 1))
    assert not list(tmp_path.iterdir())
