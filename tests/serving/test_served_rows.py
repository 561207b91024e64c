"""Rows as exports store them: number formats, fingerprints instead of keys, and changes from one export to the next."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from over import over
from serving_cases import opened_model, random_keys
from sparsegroup.serving import ExportError, TrainedModel, export_delta, export_trained, open_trained, read_export
from sparsegroup.serving.frozen import FrozenTable
from sparsegroup.serving.inspection import inspect
from sparsegroup.serving.rows import (
    BUCKET_CAPACITY,
    SCALES,
    Embeddings,
    bits_for,
    bucket_of,
    difference,
    fields_in,
    load_embeddings,
    merge,
    truncated,
)
from sparsegroup.settings.names import Dtype

DTYPES: tuple[Dtype, ...] = ("float32", "float16", "bfloat16", "int8", "int4")
VECTORS = torch.randn(500, 6, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 3, 500).unsqueeze(1)
SMALL = VECTORS * 0.05
"""Up to some hundred, as int4 has them."""


def encode(vectors: torch.Tensor, dtype: str) -> Embeddings:
    return Embeddings.of(torch.arange(len(vectors)), vectors, dtype)  # type: ignore[arg-type]


# Number formats


@over(("dtype", "bits", "smallest"), [("float32", 200, 0), ("float16", 11, 2**-25), ("bfloat16", 8, 0)])
def test_floats_are_off_by_half_a_last_place(dtype: str, bits: int, smallest: float) -> None:
    error = (encode(VECTORS, dtype).decode() - VECTORS).abs()
    assert (error <= (VECTORS.abs() * 2.0**-bits).clamp(min=smallest)).all()  # float16 has the smallest normal numbers


@over("width", [1, 5, 6])
@over(("dtype", "most"), [("int8", 127), ("int4", 7)])
def test_integers_are_off_by_half_a_step_of_the_row(dtype: str, most: int, width: int) -> None:
    vectors = SMALL[:, :width]
    encoded = encode(vectors, dtype)
    assert encoded.scale is not None
    step = SCALES[encoded.scale.int()].unsqueeze(1)
    wanted = vectors.abs().amax(1, keepdim=True) / (most + 0.5)
    assert (step >= wanted * 0.9999).all()
    fine = (step > SCALES[0]).squeeze(1)
    assert fine.float().mean() > 0.8
    assert (step[fine] <= wanted[fine] * 2**0.1251).all()  # the next of 8 scales per power of two
    assert ((encoded.decode() - vectors).abs() <= step * 0.5001).all()
    assert encoded.dim == width
    assert encoded.vectors.nbytes == len(vectors) * (width if dtype == "int8" else -(-width // 2))


@over("dtype", DTYPES)
def test_what_is_decoded_encodes_to_the_same_and_zero_stays_zero(dtype: str) -> None:
    decoded = encode(VECTORS if dtype != "int4" else SMALL, dtype).decode()
    assert torch.equal(encode(decoded, dtype).decode(), decoded)
    assert not encode(torch.zeros(2, 6), dtype).decode().any()
    assert encode(torch.empty(0, 6), dtype).decode().shape == (0, 6)


@over(
    ("value", "dtype", "message"),
    [
        (1e6, "int8", "int8 has no numbers above .*; the table holds 1e.06, take float32"),
        (1e6, "int4", "int4 has no numbers above .*; the table holds 1e.06, take float32"),
        (70_000.0, "float16", "float16 has no 70000.*take float32"),
        *((value, dtype, "not finite") for value in (torch.nan, torch.inf) for dtype in ("float32", "int8", "int4")),
    ],
)
def test_a_number_that_a_format_has_not_is_named(value: float, dtype: str, message: str) -> None:
    with pytest.raises(ExportError, match=message):
        encode(torch.tensor([[1.0, value]]), dtype)


@over("used", [0, 5, 8])
@over("dtype", DTYPES)
@over("dim", [1, 5, 8])
def test_fallback_vectors_have_the_format_of_the_others_and_unused_ones_no_bytes(
    dtype: Dtype, dim: int, used: int, tmp_path: Path
) -> None:
    generator = torch.Generator().manual_seed(dim)
    vectors, fallback = torch.randn(20, dim, generator=generator), torch.randn(8, dim, generator=generator)
    fallback[used:] = 0
    rows = Embeddings.of(torch.arange(20), vectors, dtype, fallback)
    expected = encode(fallback, dtype)
    assert rows.fallback is not None
    assert torch.equal(rows.fallback, expected.decode())
    rows.save(tmp_path / "rows")
    again = load_embeddings(tmp_path / "rows", dim, dtype)
    assert again.fallback is not None
    assert torch.equal(again.fallback, rows.fallback)
    stored = rows.tensors()
    assert torch.equal(stored["fallback"], expected.vectors[:used])
    assert "scale" not in stored or torch.equal(stored["fallback_scale"], expected.scale[:used])  # type: ignore[index]


# Changes

values = st.sampled_from([-2.0, -0.5, 0.25, 1.0, 3.0])
tables = st.dictionaries(st.sampled_from([-(1 << 63), -5, 0, 1, 2, 3, (1 << 63) - 1]), st.tuples(values, values))


def of_table(table: dict[int, tuple[float, ...]], dtype: Dtype) -> Embeddings:
    keys = torch.tensor(sorted(table), dtype=torch.int64)
    return Embeddings.of(keys, torch.tensor([table[key] for key in sorted(table)]).reshape(len(table), 2), dtype)


def as_dict(some: Embeddings) -> dict[int, bytes]:
    scale = torch.zeros(len(some), dtype=torch.uint8) if some.scale is None else some.scale
    rows = zip(some.keys.tolist(), some.vectors.contiguous(), scale, strict=True)
    return {key: bytes(vector.view(torch.uint8).tolist()) + bytes([int(one)]) for key, vector, one in rows}


@settings(max_examples=60)
@given(st.lists(tables, min_size=1, max_size=6), st.sampled_from(DTYPES))
def test_any_sequence_of_changes_applied_is_the_last_state(
    states: list[dict[int, tuple[float, ...]]], dtype: Dtype
) -> None:
    state = of_table(states[0], dtype)
    server = as_dict(state)
    for following in states[1:]:
        new, before = of_table(following, dtype), as_dict(state)
        change = difference(state, new)
        upserts, tombstones = as_dict(change.upserts), change.tombstones.tolist()
        assert all(before.get(key) != bits for key, bits in upserts.items())  # no more than needed
        for key in tombstones:  # what a server does
            del server[key]
        server |= upserts
        state = merge(state, change)
        assert state.keys.tolist() == new.keys.tolist()
        assert server == as_dict(new) == as_dict(state)


# Fingerprints


def embeddings(keys: torch.Tensor, dtype: Dtype = "float32", dim: int = 3, fallback: bool = False) -> Embeddings:
    vectors = torch.randn(len(keys), dim, generator=torch.Generator().manual_seed(len(keys)))
    return Embeddings.of(keys, vectors, dtype, torch.full((256, dim), -9.0) if fallback else None, bits_for(keys))


hashed = st.sets(st.tuples(st.sampled_from([0, 1, 2, 127, 128, 255]), st.integers(0, (1 << 56) - 1)), max_size=60)


def as_keys(pairs: set[tuple[int, int]]) -> torch.Tensor:
    keys = np.array([(field << 56) | value for field, value in pairs], np.uint64).view(np.int64)
    return torch.from_numpy(np.sort(keys))


@settings(max_examples=80)
@given(hashed, hashed, st.sampled_from(("float32", "int8", "int4")), st.booleans())
def test_keys_are_found_by_their_first_bits_and_no_others(
    present: set[tuple[int, int]], absent: set[tuple[int, int]], dtype: Dtype, fallback: bool
) -> None:
    keys, others = as_keys(present), as_keys(absent)
    bits = bits_for(keys)
    kept = truncated(keys, bits)
    if len(kept.unique()) < len(kept):
        return  # another test has these
    rows = embeddings(keys, dtype, fallback=fallback)
    table = FrozenTable(rows)
    assert torch.equal(rows.keys, kept)
    assert torch.equal(table.index.keys, kept)
    assert torch.equal(table(keys), rows.decode())
    assert torch.equal(table(kept), rows.decode())
    vector = dict(zip(kept.tolist(), rows.decode(), strict=True))
    nothing = torch.zeros(3) if rows.fallback is None else rows.fallback[0]
    assert not fallback or float((nothing + 9).abs().max()) <= 9 * (0 if dtype == "float32" else 1 / 15)
    for key, found in zip(truncated(others, bits).tolist(), table(others), strict=True):
        assert torch.equal(found, vector.get(key, nothing))


def test_absent_keys_are_taken_for_others_as_often_as_is_stated() -> None:
    keys = random_keys(60_000, fields=3)
    rows = embeddings(keys)
    table = FrozenTable(rows)
    assert rows.bits is not None
    assert 1 / 12_000 <= rows.false_hits <= 1 / 5_900
    absent = random_keys(500_000, fields=3, seed=1)
    found = table(absent).any(1)
    counts = torch.bincount(fields_in(rows.keys), minlength=256).double()
    expected = float((counts * 2.0 ** -rows.bits.double())[fields_in(absent)].sum())
    assert abs(int(found.sum()) - expected) <= 4 * expected**0.5  # of a Poisson distribution
    assert torch.equal(found, torch.isin(truncated(absent, rows.bits), rows.keys))


def test_of_rows_with_one_fingerprint_the_largest_remains_and_the_others_are_counted() -> None:
    keys = random_keys(30_000, fields=2)
    twins = keys[::1000] ^ 1  # the last bit, which no fingerprint has
    every = torch.cat([keys, twins]).sort().values
    vectors = torch.where(torch.isin(every, twins), 2.0, 1.0).unsqueeze(1)
    bits = bits_for(every)
    rows = Embeddings.of(every, vectors, "float32", None, bits)
    assert rows.merged == len(every) - len(truncated(every, bits).unique()) >= len(twins)
    assert len(rows) + rows.merged == len(every)
    assert (FrozenTable(rows)(keys[::1000]) == 2).all()


def test_a_full_bucket_leaves_out_its_smallest_rows() -> None:
    keys = random_keys(8_000, fields=1)
    bits = bits_for(keys[: len(keys) // 2])  # so that buckets have more rows than they should
    norms = torch.rand(len(keys), 1, generator=torch.Generator().manual_seed(0)) + 0.5
    rows = Embeddings.of(keys, norms, "float32", None, bits)
    assert int(torch.bincount(bucket_of(rows.keys, bits)).max()) == BUCKET_CAPACITY
    assert 0 < rows.merged < 100
    kept = torch.isin(truncated(keys, bits), rows.keys)
    for full in bucket_of(truncated(keys[~kept], bits), bits).unique()[:5]:
        inside = bucket_of(truncated(keys, bits), bits) == full
        assert norms[inside & ~kept].max() <= norms[inside & kept].min()


@over("keys", [torch.arange(1_000), torch.arange(1_000) + (3 << 56), torch.arange(200) << 57])
def test_keys_that_are_no_hashes_are_refused(keys: torch.Tensor) -> None:
    with pytest.raises(ExportError, match=r"these are for keys that are hashes of values; export with `keys` full"):
        embeddings(keys.sort().values)


@over("count", [90_000, 160_000])  # at both ends of how full buckets are
@over(("dtype", "most"), [("int8", 11.5), ("int4", 7.5)])
def test_a_row_takes_at_most_twelve_bytes(dtype: Dtype, most: float, count: int, tmp_path: Path) -> None:
    rows = embeddings(random_keys(count), dtype, dim=8)
    rows.save(tmp_path / "rows")
    assert (tmp_path / "rows").stat().st_size <= most * count + 2_000
    state = FrozenTable(rows).state_dict()
    assert sum(tensor.nbytes for tensor in state.values()) <= (most + 0.5) * count + 20_000


def test_damaged_files_are_named(tmp_path: Path) -> None:
    rows, path = embeddings(random_keys(3_000), "int4", dim=5), tmp_path / "rows.safetensors"
    rows.save(path)
    whole = load_file(path)
    assert torch.equal(load_embeddings(path, 5, "int4", "fingerprints").decode(), rows.decode())
    swapped, fuller = whole["fingerprints"].clone(), whole["sizes"].clone()
    swapped[[0, 1]] = swapped[[1, 0]]
    fuller[0] = 26

    def check(message: str, tensors: dict[str, torch.Tensor], keys: Any = "fingerprints") -> None:
        save_file({name: tensor.contiguous() for name, tensor in (load_file(path) | tensors).items()}, path)
        with pytest.raises(ExportError, match=rf"damaged \(.*{message}"):
            load_embeddings(path, 5, "int4", keys)

    for message, tensors in (
        (r"bits must be uint8 \[256\], 16 to 41, got uint8 \[9\]", {"bits": whole["bits"][:9]}),
        ("bits must be", {"bits": torch.full((256,), 41, dtype=torch.uint8)}),
        ("bits must be", {"bits": torch.zeros(256, dtype=torch.uint8)}),
        ("sizes must be", {"sizes": whole["sizes"][1:]}),
        (r"sizes must be uint8 \[\d+\] up to 25", {"sizes": fuller}),
        ("fingerprints must be", {"fingerprints": whole["fingerprints"][1:]}),
        ("keys must be int64, ascending and distinct", {"fingerprints": swapped}),
        (r"vectors must be uint8 \[\d+, 3\]", {"vectors": whole["vectors"][:, :2]}),
        ("scale must be uint8", {"scale": whole["scale"].float()}),
        ("it holds .*more", {"more": whole["scale"]}),
    ):
        check(message, tensors)
        save_file(whole, path)
    check("it holds ", {}, "full")
    few = rows[torch.arange(5)]
    few.save(path)  # by keys, which are fewer bytes than the sizes of all buckets
    check("keys must be fingerprints with the bits of their fields", {"keys": few.keys + 1})


def grow(opened: TrainedModel, count: int, seed: int) -> None:
    table = opened.model.embedding
    keys = random_keys(count, seed=seed)
    table.assign(keys, torch.randn(len(keys), table.dim, generator=torch.Generator().manual_seed(seed)))


def test_a_delta_keeps_its_bases_bits_until_buckets_are_too_full(tmp_path: Path) -> None:
    opened = opened_model(rows=2_000)
    export_trained(opened, tmp_path / "0", "int8", keys="fingerprints")
    grow(opened, 300, 1)
    manifest = export_delta(opened, tmp_path / "1", tmp_path / "0")
    assert (manifest.keys, manifest.dtype) == ("fingerprints", "int8")
    base, followed = (read_export(tmp_path / name).tables["embedding"].bits for name in "01")
    assert base is not None
    assert followed is not None
    assert torch.equal(followed, base)
    with pytest.raises(ExportError, match="its keys are fingerprints; a delta to full cannot be made"):
        export_delta(opened, tmp_path / "2", tmp_path / "1", keys="full")
    grow(opened, 4_000, 2)
    with pytest.raises(ExportError, match="has fingerprints of too few bits for the present number of rows; no delta"):
        export_delta(opened, tmp_path / "2", tmp_path / "1")


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
    assert {one.value for one in inspect(again, 5).top} <= set(names["value"])
    read = read_export(tmp_path / "0")
    assert (first.false_hits, first.merged_rows) == (read.manifest.false_hits, 0)
    assert torch.equal(read.tables["embedding"].decode(), again.model.embedding(read.tables["embedding"].keys))
