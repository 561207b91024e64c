"""An ONNX file for other rows of the same network, made without tracing it, is the one that tracing makes."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from over import over
from serving_cases import batch_of, opened_model, serving
from sparsegroup.serving import ServingModel
from sparsegroup.serving.frozen import FrozenTable
from sparsegroup.serving.onnx import OnnxModel, graph_of, save_onnx, with_rows
from sparsegroup.serving.rows import Embeddings

LARGEST = (1 << 63) - 1


def traced(served: ServingModel, path: Path) -> bytes:
    outputs = served.model.objective.output_names
    save_onnx(served.trace(), path, served.inputs, outputs, metadata=served.metadata())
    return path.read_bytes()


@over(
    ("model", "dtype", "options"),
    [
        ("dcn", "float32", {"lists": True, "numbers": True, "fallback": True}),
        ("mlp", "int8", {"dims": {"user": 2, "tags": 2}}),
        ("mlp", "int4", {"dims": {"user": 2, "tags": 3}, "keys": "fingerprints"}),
        ("dcn", "int8", {"lists": True, "fallback": True, "keys": "fingerprints"}),
        ("lr", "float32", {}),
    ],
)
def test_it_is_the_file_that_tracing_the_other_model_makes(
    model: str, dtype: str, options: dict[str, Any], tmp_path: Path
) -> None:
    keys = options.pop("keys", "full")
    first = traced(serving(opened_model(model, rows=20, **options), dtype, keys), tmp_path / "first.onnx")
    opened = opened_model(model, rows=3000, seed=5, **options)
    served = serving(opened, dtype, keys)
    path = tmp_path / "second.onnx"
    fresh = onnx.load_from_string(traced(served, path))
    for template in (first, graph_of(first)):
        made = with_rows(template, served)
        assert made is not None
        again = onnx.load_from_string(made)
        assert again.graph.node == fresh.graph.node
        assert {entry.key: entry.value for entry in again.metadata_props} == served.metadata()
        tensors = [
            {each.name: (each.dims, each.data_type, onnx.numpy_helper.to_array(each).tobytes()) for each in one}
            for one in (again.graph.initializer, fresh.graph.initializer)
        ]
        assert tensors[0] == tensors[1]
        path.write_bytes(made)
        onnx.checker.check_model(path, full_check=True)
        batch = batch_of(opened, 400)
        (scores,) = OnnxModel(path)(served.arguments(batch))
        np.testing.assert_allclose(scores, served(*served.arguments(batch)).numpy(), rtol=0, atol=1e-6)
    assert len(graph_of(first)) < 60_000


def test_other_operators_are_noticed(tmp_path: Path) -> None:
    first = traced(serving(opened_model()), tmp_path / "first.onnx")
    others = {
        "network": serving(opened_model("mlp")),
        "width": serving(opened_model(hidden=[8])),
        "vectors": serving(opened_model(dim=5)),
        "format": serving(opened_model(), "int8"),
        "keys": serving(opened_model(), "float32", "fingerprints"),
        "tables": serving(opened_model(dims={"user": 2})),
        "fallback": serving(opened_model(fallback=True)),
        "lists": serving(opened_model(lists=True)),
        "numbers": serving(opened_model(numbers=True)),
    }
    found = {name: with_rows(first, other) for name, other in others.items()}
    assert found == dict.fromkeys(others)


def table_of(keys: list[int], fallback: bool = False) -> FrozenTable:
    vectors = torch.arange(1.0, len(keys) + 1).unsqueeze(1)
    rows = Embeddings(torch.tensor(sorted(keys), dtype=torch.int64), vectors, None, None)
    return FrozenTable(Embeddings(rows.keys, vectors, None, -torch.ones(256, 1) if fallback else None))


edges = st.sampled_from([-LARGEST - 1, -LARGEST, -1, 0, 1, 1 << 56, (1 << 56) - 1, LARGEST - 1, LARGEST])
some_keys = st.one_of(edges, st.integers(-LARGEST - 1, LARGEST), st.integers(0, 200))


@settings(max_examples=300)
@given(st.sets(some_keys, max_size=150), st.lists(some_keys, max_size=30), st.booleans())
def test_a_lookup_of_few_rows_finds_them_and_no_others(present: set[int], absent: list[int], fallback: bool) -> None:
    keys = sorted(present)
    table = table_of(keys, fallback)
    place = {key: float(number) for number, key in enumerate(keys, 1)}
    wanted = [*keys, *absent]
    found = table(torch.tensor(wanted, dtype=torch.int64)).flatten().tolist()
    assert found == [place.get(key, -1.0 if fallback else 0.0) for key in wanted]
    items = list(table.items(7))
    assert [key for part, _ in items for key in part.tolist()] == keys
    assert [value for _, part in items for value in part.flatten().tolist()] == list(place.values())


@pytest.mark.parametrize("rows", [0, 1, 15, 16, 17, 100, 10_000, 300_000])
def test_the_operators_of_hashed_keys_do_not_depend_on_their_number(rows: int) -> None:
    generator = torch.Generator().manual_seed(rows)
    keys = torch.randint(0, 5 << 56, (rows,), generator=generator).unique()
    table = FrozenTable(Embeddings(keys, torch.ones(len(keys), 2)))
    assert table.structure == table_of([1]).structure.replace("(1,", "(2,")
    assert table.index.halves == [2, 1]


def test_crowded_keys_take_more_steps() -> None:
    dense = torch.arange(2000)  # far from another key of the same field: one bucket
    keys = torch.cat([dense, torch.tensor([1 << 55])])
    table = FrozenTable(Embeddings(keys, torch.arange(1.0, len(keys) + 1).unsqueeze(1)))
    assert len(table.index.halves) > 2
    assert table.structure != table_of([1]).structure
    assert table(keys).flatten().tolist() == list(range(1, len(keys) + 1))
    assert not table(torch.tensor([-1, 2000, 1 << 54, 1 << 56])).any()
