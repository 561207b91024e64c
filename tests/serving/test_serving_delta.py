"""Deltas: what a server must set and remove, and that all of them lead to the export made at once."""

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from serving_cases import opened_model
from sparsegroup.serving import (
    ExportError,
    TrainedModel,
    apply_deltas,
    export_delta,
    export_trained,
    open_trained,
    read_export,
)
from sparsegroup.serving.frozen import Embeddings, load_embeddings
from sparsegroup.serving.reading import difference, merge

DTYPES = ("float32", "float16", "bfloat16", "int8")
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
    scale = torch.zeros(len(some)) if some.scale is None else some.scale
    rows = zip(some.keys.tolist(), some.vectors, scale, strict=True)
    return {
        key: vector.contiguous().view(torch.uint8).numpy().tobytes() + one.numpy().tobytes()
        for key, vector, one in rows
    }


def train_a_little(opened: TrainedModel, seed: int) -> None:
    """Change some rows, zero some, bring some back, drop some, add some; and change the network."""
    generator, table = torch.Generator().manual_seed(seed), opened.model.embedding
    keys = table.state_dict()["keys"]
    for scale in (0, 1):
        some = keys[torch.rand(len(keys), generator=generator) < 0.1]
        table.assign(some, scale * torch.randn(len(some), 4, generator=generator))
    if seed % 2:
        table.shrink()
    new = torch.randint(-(1 << 60), 1 << 60, (10,), generator=generator) % (5 << 56)
    table.assign(new, torch.randn(10, 4, generator=generator))
    with torch.no_grad():
        for parameter in opened.model.network.parameters():
            parameter += 0.01 * torch.randn(parameter.shape, generator=generator)


def content(folder: Path) -> list[bytes]:
    return [(folder / name).read_bytes() for name in ("embeddings.safetensors", "network.safetensors")]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_chain_of_deltas_leads_to_the_full_export_byte_for_byte(dtype: str, tmp_path: Path) -> None:
    opened = opened_model()
    export_trained(opened, tmp_path / "0", dtype)  # type: ignore[arg-type]
    none = export_delta(opened, tmp_path / "none", tmp_path / "0")
    assert none.changes is not None
    assert (none.changes.upserts, none.changes.tombstones) == (0, 0)
    assert none.id == read_export(tmp_path / "0").manifest.id
    assert len(load_embeddings(tmp_path / "none" / "upserts.safetensors", 4, dtype)) == 0  # type: ignore[arg-type]
    for day in range(1, 4):
        train_a_little(opened, day)
        delta = export_delta(
            opened, tmp_path / "deltas" / f"{day}", tmp_path / ("0" if day == 1 else f"deltas/{day - 1}")
        )
        full = export_trained(opened, tmp_path / f"full{day}", dtype)  # type: ignore[arg-type]
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
    assert same(followed.embeddings, read_export(tmp_path / "full3").embeddings)
    assert open_trained(deltas[-1]).model.embedding.num_live == full.live_rows
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
    with pytest.raises(ExportError, match="has another network"):
        export_delta(opened_model("mlp"), tmp_path / "1", tmp_path / "0")
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_a_damaged_delta_and_a_replaced_base_are_named(tmp_path: Path) -> None:
    days(tmp_path, 1)
    path = tmp_path / "1" / "tombstones.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(ExportError, match=r"tombstones\.safetensors: damaged"):
        apply_deltas(tmp_path / "0", [tmp_path / "1"], tmp_path / "out")
    path.write_bytes(whole)
    export_trained(opened_model(seed=5), tmp_path / "0", overwrite=True)
    with pytest.raises(ExportError, match=r"builds on export .* but in .* there is"):
        read_export(tmp_path / "1")
