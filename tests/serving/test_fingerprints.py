"""Exports without keys: rows are found by fingerprints, and an absent key hardly ever is."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from over import over
from serving_cases import batch_of, opened_model, random_keys, serving
from sparsegroup.server.model import LoadedModel, ServedRelease
from sparsegroup.serving import ExportError, apply_deltas, export_delta, export_trained, open_trained, read_export
from sparsegroup.serving.frozen import FrozenTable
from sparsegroup.serving.frozen_model import frozen_copy
from sparsegroup.serving.inspection import inspect
from sparsegroup.serving.onnx import OnnxModel, graph_of, save_onnx, session_for, with_rows
from sparsegroup.serving.rows import (
    BUCKET_CAPACITY,
    FINGERPRINT_BITS,
    Embeddings,
    bits_for,
    bucket_of,
    buckets_in,
    fields_in,
    load_embeddings,
    truncated,
)
from sparsegroup.settings.names import Dtype

FORMATS: tuple[Dtype, ...] = ("float32", "int8", "int4")


def embeddings(keys: torch.Tensor, dtype: Dtype = "float32", dim: int = 3, fallback: bool = False) -> Embeddings:
    generator = torch.Generator().manual_seed(len(keys))
    vectors = torch.randn(len(keys), dim, generator=generator)
    absent = torch.full((256, dim), -9.0) if fallback else None
    return Embeddings.of(keys, vectors, dtype, absent, bits_for(keys))


hashes = st.integers(0, (1 << 56) - 1)
hashed = st.sets(st.tuples(st.sampled_from([0, 1, 2, 127, 128, 255]), hashes), max_size=60)


def as_keys(pairs: set[tuple[int, int]]) -> torch.Tensor:
    keys = np.array([(field << 56) | value for field, value in pairs], np.uint64).view(np.int64)
    return torch.from_numpy(np.sort(keys))


@settings(max_examples=200)
@given(hashed, hashed, st.sampled_from(FORMATS), st.booleans())
def test_keys_are_found_by_their_first_bits_and_no_others(
    present: set[tuple[int, int]], absent: set[tuple[int, int]], dtype: Dtype, fallback: bool
) -> None:
    keys, others = as_keys(present), as_keys(absent)
    bits = bits_for(keys)
    kept = truncated(keys, bits)
    if len(kept.unique()) < len(kept):
        return  # another test has these
    rows = embeddings(keys, dtype, fallback=fallback)
    assert torch.equal(rows.keys, kept)
    table = FrozenTable(rows)
    assert torch.equal(table.index.keys, kept)
    assert torch.equal(table(keys), rows.decode())
    assert torch.equal(table(kept), rows.decode())
    vector = dict(zip(kept.tolist(), rows.decode(), strict=True))
    nothing = torch.zeros(3) if rows.fallback is None else rows.fallback[0]
    assert not fallback or float((nothing + 9).abs().max()) <= 9 * (0 if dtype == "float32" else 1 / 15)
    for key, found in zip(truncated(others, bits).tolist(), table(others), strict=True):
        assert torch.equal(found, vector.get(key, nothing))
    again = {name: tensor.clone() for name, tensor in rows.tensors().items()}
    assert all(torch.equal(again[name], tensor) for name, tensor in table_tensors(table, rows).items())


def table_tensors(table: FrozenTable, rows: Embeddings) -> dict[str, torch.Tensor]:
    """What the rows that a table gives back are stored as."""
    return replace(rows, keys=table.index.keys).tensors()


@over("dtype", FORMATS)
def test_pytorch_and_onnxruntime_find_any_number_of_rows(dtype: Dtype, tmp_path: Path) -> None:
    first = serving(opened_model("mlp", dim=3, fallback=True), dtype, "fingerprints")
    path = tmp_path / "model.onnx"
    save_onnx(first.trace(), path, first.inputs, first.model.objective.output_names, metadata=first.metadata())
    graph = graph_of(path.read_bytes())
    for count in (0, 1, 15, 16, 17, 100, 1_000, 20_000):
        opened = opened_model("mlp", dim=3, fallback=True, rows=count, seed=count)
        opened.model.embedding.fallback.detach().normal_()  # type: ignore[union-attr]
        served = serving(opened, dtype, "fingerprints")
        made = with_rows(graph, served)
        assert made is not None, "the operators do not depend on the number of rows"
        path.write_bytes(made)
        keys = random_keys(200, seed=1) if not count else batch_of(opened, 400).keys
        keys = torch.cat([keys.view(-1, 5), random_keys(1_000, seed=7)[:500].view(-1, 5)])
        (found,) = OnnxModel(path)((keys,))
        np.testing.assert_allclose(found, served(keys).numpy(), rtol=0, atol=1e-6)
        assert session_for(graph, served) is not None


def test_absent_keys_are_taken_for_others_as_often_as_is_stated() -> None:
    keys = random_keys(60_000, fields=3)
    rows = embeddings(keys)
    table = FrozenTable(rows)
    assert rows.bits is not None
    assert 1 / 12_000 <= rows.false_hits <= 1 / 5_900
    absent = random_keys(1_000_000, fields=3, seed=1)
    absent = absent[~torch.isin(truncated(absent, rows.bits), truncated(keys, rows.bits)) | ~torch.isin(absent, keys)]
    found = table(absent).any(1)
    counts = torch.bincount(fields_in(rows.keys), minlength=256).double()
    expected = float((counts * 2.0 ** -rows.bits.double())[fields_in(absent)].sum())
    assert abs(int(found.sum()) - expected) <= 4 * expected**0.5  # of a Poisson distribution
    assert torch.equal(found, torch.isin(truncated(absent, rows.bits), rows.keys))


def test_of_rows_with_one_fingerprint_the_largest_remains_and_the_others_are_counted() -> None:
    keys = random_keys(30_000, fields=2)
    twins = keys[::1000] ^ 1  # the last bit, which no fingerprint has
    every = torch.cat([keys, twins]).sort().values
    vectors = torch.ones(len(every), 1)
    vectors[torch.isin(every, twins)] = 2.0
    bits = bits_for(every)
    expected = len(every) - len(truncated(every, bits).unique())
    rows = Embeddings.of(every, vectors, "float32", None, bits)
    assert rows.merged == expected >= len(twins)
    assert len(rows) + rows.merged == len(every)
    assert (FrozenTable(rows)(keys[::1000]) == 2).all()


def test_a_full_bucket_leaves_out_its_smallest_rows() -> None:
    keys = random_keys(8_000, fields=1)
    bits = bits_for(keys[: len(keys) // 2])  # so that buckets have more rows than they should
    norms = torch.rand(len(keys), 1, generator=torch.Generator().manual_seed(0)) + 0.5
    rows = Embeddings.of(keys, norms, "float32", None, bits)
    bucket = bucket_of(rows.keys, bits)
    assert int(torch.bincount(bucket).max()) == BUCKET_CAPACITY
    assert 0 < rows.merged < 100
    kept = torch.isin(truncated(keys, bits), rows.keys)
    for full in bucket_of(truncated(keys[~kept], bits), bits).unique()[:5]:
        inside = bucket_of(truncated(keys, bits), bits) == full
        assert norms[inside & ~kept].max() <= norms[inside & kept].min()


@over("keys", [torch.arange(1_000), torch.arange(1_000) + (3 << 56), torch.arange(200) << 57])
def test_keys_that_are_no_hashes_are_refused(keys: torch.Tensor) -> None:
    with pytest.raises(ExportError, match=r"these are for keys that are hashes of values; export with `keys` full"):
        embeddings(keys.sort().values)


@over(("dtype", "most"), [("int8", 11.5), ("int4", 7.5)])
def test_a_row_takes_at_most_twelve_bytes(dtype: Dtype, most: float, tmp_path: Path) -> None:
    for count in (90_000, 160_000):  # at both ends of how full buckets are
        rows = embeddings(random_keys(count), dtype, dim=8)
        rows.save(tmp_path / "rows")
        assert (tmp_path / "rows").stat().st_size <= most * count + 2_000
        state = FrozenTable(rows).state_dict()
        assert sum(tensor.nbytes for tensor in state.values()) <= (most + 0.5) * count + 20_000
        assert load_embeddings(tmp_path / "rows", 8, dtype, "fingerprints").tensors().keys() == rows.tensors().keys()


def test_bits_follow_the_rows_and_those_of_a_base_remain_while_there_is_room() -> None:
    for count, expected in ((0, 0), (1, 0), (11, 0), (12, 1), (22, 1), (23, 2), (11_264, 10), (11_265, 11)):
        keys = random_keys(2 * count, fields=1)[:count]
        bits = bits_for(keys)
        assert bits[0] - FINGERPRINT_BITS == expected
        assert buckets_in(bits) == (1 << expected) + 255
    base = bits_for(random_keys(10_000, fields=1))
    assert torch.equal(bits_for(random_keys(3_000, fields=1), base), base)
    assert torch.equal(bits_for(random_keys(16_000, fields=1), base), base)
    assert not torch.equal(bits_for(random_keys(20_000, fields=1), base), base)
    assert not torch.equal(bits_for(random_keys(20_000, fields=2), base), base)


def edited(path: Path, **tensors: torch.Tensor) -> None:
    content = load_file(path) | tensors
    save_file({name: tensor.contiguous() for name, tensor in content.items()}, path)


def test_damaged_files_are_named(tmp_path: Path) -> None:
    rows = embeddings(random_keys(3_000), "int4", dim=5)
    path = tmp_path / "rows.safetensors"
    rows.save(path)
    whole = load_file(path)
    assert torch.equal(load_embeddings(path, 5, "int4", "fingerprints").decode(), rows.decode())
    swapped = whole["fingerprints"].clone()
    swapped[[0, 1]] = swapped[[1, 0]]
    fuller = whole["sizes"].clone()
    fuller[0] = 26
    for damage, message in (
        ({"bits": whole["bits"][:9]}, r"bits must be uint8 \[256\], 16 to 41, got uint8 \[9\]"),
        ({"bits": torch.full((256,), 41, dtype=torch.uint8)}, "bits must be"),
        ({"bits": torch.zeros(256, dtype=torch.uint8)}, "bits must be"),
        ({"sizes": whole["sizes"][1:]}, "sizes must be"),
        ({"sizes": fuller}, r"sizes must be uint8 \[\d+\] up to 25"),
        ({"fingerprints": whole["fingerprints"][1:]}, "fingerprints must be"),
        ({"fingerprints": swapped}, "keys must be int64, ascending and distinct"),
        ({"vectors": whole["vectors"][:, :2]}, r"vectors must be uint8 \[\d+, 3\]"),
        ({"scale": whole["scale"].float()}, "scale must be uint8"),
        ({"more": whole["scale"]}, "it holds .*more"),
    ):
        edited(path, **damage)
        with pytest.raises(ExportError, match=rf"damaged \(.*{message}"):
            load_embeddings(path, 5, "int4", "fingerprints")
        save_file(whole, path)
    with pytest.raises(ExportError, match="damaged"):
        load_embeddings(path, 5, "int4", "full")
    few = rows[torch.arange(5)]
    few.save(path)  # by keys, which are fewer bytes than the sizes of all buckets
    assert "keys" in load_file(path)
    edited(path, keys=few.keys + 1)
    with pytest.raises(ExportError, match="keys must be fingerprints with the bits of their fields"):
        load_embeddings(path, 5, "int4", "fingerprints")


def test_unused_fallback_vectors_take_no_bytes(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    for used in (0, 3, 256):
        fallback = torch.zeros(256, 2)
        fallback[:used] = 1.5
        rows = Embeddings.of(torch.tensor([1]), torch.ones(1, 2), "float32", fallback)
        rows.save(path)
        assert path.stat().st_size < 700 + 8 * used
        again = load_embeddings(path, 2, "float32")
        assert again.fallback is not None
        assert torch.equal(again.fallback, fallback)


def grow(opened: object, count: int, seed: int) -> None:
    table = opened.model.embedding  # type: ignore[attr-defined]
    keys = random_keys(count, seed=seed)
    table.assign(keys, torch.randn(len(keys), table.dim, generator=torch.Generator().manual_seed(seed)))


def test_a_delta_keeps_its_bases_bits_until_buckets_are_too_full(tmp_path: Path) -> None:
    opened = opened_model(rows=2_000)
    export_trained(opened, tmp_path / "0", "int8", keys="fingerprints")
    bits = read_export(tmp_path / "0").tables["embedding"].bits
    grow(opened, 300, 1)
    manifest = export_delta(opened, tmp_path / "1", tmp_path / "0")
    assert (manifest.keys, manifest.dtype) == ("fingerprints", "int8")
    followed = read_export(tmp_path / "1").tables["embedding"]
    assert bits is not None
    assert followed.bits is not None
    assert torch.equal(followed.bits, bits)
    with pytest.raises(ExportError, match="its keys are fingerprints; a delta to full cannot be made"):
        export_delta(opened, tmp_path / "2", tmp_path / "1", keys="full")
    grow(opened, 4_000, 2)
    with pytest.raises(ExportError, match="has fingerprints of too few bits for the present number of rows; no delta"):
        export_delta(opened, tmp_path / "2", tmp_path / "1")


def test_a_server_swaps_rows_without_tracing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = opened_model(rows=2_000)
    export_trained(opened, tmp_path / "0", "int4", ["onnx"], keys="fingerprints")
    about = ServedRelease(None, "", "export", 0)
    before = LoadedModel(read_export(tmp_path / "0"), about)
    grow(opened, 200, 1)
    export_delta(opened, tmp_path / "1", tmp_path / "0")
    apply_deltas(tmp_path / "0", [tmp_path / "1"], tmp_path / "whole")
    monkeypatch.setattr("sparsegroup.server.model.save_onnx", None)  # so that tracing fails
    after = LoadedModel(read_export(tmp_path / "1"), about, before)
    whole = LoadedModel(read_export(tmp_path / "whole"), about, before)
    for loaded in (before, after, whole):
        loaded.check()
    batch = batch_of(opened, 300)
    assert np.array_equal(after.outputs(batch), whole.outputs(batch))
    assert not np.array_equal(after.outputs(batch), before.outputs(batch))


def test_an_export_without_keys_opens_and_is_exported_again_with_the_same_fingerprints(tmp_path: Path) -> None:
    opened = opened_model(rows=2_000)
    keys = opened.model.embedding.state_dict()["keys"].numpy()
    names = pl.DataFrame({"key": keys, "field": "site", "value": [str(key) for key in keys]})
    names.write_parquet(tmp_path / "vocabulary.parquet")
    opened = replace(opened, vocabulary=tmp_path / "vocabulary.parquet")
    first = export_trained(opened, tmp_path / "0", "int8", keys="fingerprints")
    again = open_trained(tmp_path / "0")
    assert export_trained(again, tmp_path / "1", "int8").id == first.id
    with pytest.raises(ExportError, match="has no keys, so it can only be exported with fingerprints"):
        export_trained(again, tmp_path / "2", "int8", keys="full")
    found = inspect(again, 5)
    assert {one.value for one in found.top} <= set(names["value"])
    assert (first.false_hits, first.merged_rows) == (read_export(tmp_path / "0").manifest.false_hits, 0)
    exact = frozen_copy(opened.model, {"embedding": read_export(tmp_path / "0").tables["embedding"]})
    batch = batch_of(opened, 100)
    with torch.no_grad():
        ours, theirs = (model(batch.keys, batch.numbers, batch.bags) for model in (exact, again.model))
    assert torch.equal(ours, theirs)
