"""The serving model, in PyTorch, as a program and in ONNX, against the model as it was trained."""

import json
import math
import re
import sys
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import pytest
import torch

from over import over
from serving_cases import batch_of, opened_model, random_keys, rounded, serving, sizes_of
from sparsegroup.data.batches import Batch
from sparsegroup.serving import ExportError, ServingModel, TrainedModel, export_trained
from sparsegroup.serving import onnx as serving_onnx
from sparsegroup.serving.frozen import FrozenTable
from sparsegroup.serving.onnx import OnnxModel, graph_of, save_onnx, session_for, with_rows
from sparsegroup.serving.rows import Embeddings, bits_for
from sparsegroup.serving.tracing import load_program, save_program
from sparsegroup.settings.names import ModelName

CASES: list[tuple[str, bool, bool, str, str, dict[str, Any]]] = [  # network, lists, numbers, formats, settings
    ("deepfm", True, True, "int8", "full", {"number_buckets": 5}),  # which is also FM
    ("opnn", False, True, "float16", "full", {"standardize": True}),
    ("dcn", True, True, "bfloat16", "full", {"attention": {"words": "hour"}, "number_buckets": 3, "standardize": True}),
    ("mlp", True, False, "int4", "fingerprints", {"dims": {"user": 2, "tags": 3}, "fallback": True}),
    ("xdeepfm", True, True, "float32", "full", {"fallback": True}),
]
EXTREMES = torch.tensor([[math.nan, 1.0], [1e5, -3.0], [math.inf, -math.inf], [1e30, -1e30], [0.0, math.nan]])
"""Numbers of a log that standardizing makes finite."""


@torch.no_grad()
def trained(opened: TrainedModel, batch: Batch) -> torch.Tensor:
    probabilities: torch.Tensor = opened.model(batch.keys, batch.numbers, batch.bags).sigmoid()
    return probabilities


@over("name", get_args(ModelName))
def test_it_gives_what_the_trained_model_gives_and_leaves_that_as_it_is(name: str) -> None:
    opened = opened_model(name, lists=True, numbers=True)
    opened.model.train()
    model, batch = serving(opened), batch_of(opened, 64)
    assert opened.model.network.training
    assert all(parameter.requires_grad for parameter in opened.model.network.parameters())
    opened.model.eval()
    assert torch.allclose(model(*model.arguments(batch)), trained(opened, batch), rtol=0, atol=1e-6)


def saved(model: ServingModel, path: Path) -> bytes:
    outputs = model.model.objective.output_names
    save_onnx(model.trace(), path, model.inputs, outputs, metadata=model.metadata())
    return path.read_bytes()


@pytest.mark.parametrize(("name", "lists", "numbers", "dtype", "keys", "settings"), CASES)
def test_onnx_and_program_give_the_same_for_any_batch_and_any_rows(
    name: str, lists: bool, numbers: bool, dtype: str, keys: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    opened = opened_model(name, lists=lists, numbers=numbers, **settings)
    model, path = serving(opened, dtype, keys), tmp_path / "model.onnx"
    traced = model.trace()
    save_onnx(traced, path, model.inputs, metadata=model.metadata() | {"export": "abc"})
    runs, programs = OnnxModel(path), []
    if name == "dcn":  # ONNX is made of the program
        save_program(traced, tmp_path / "model.pt2")
        programs.append(load_program(tmp_path / "model.pt2"))
    rounded(opened.model, dtype)
    tolerance = 5e-6 if settings else 1e-6
    for size in (1, 2, 37) if lists else (0, 1, 2, 37):
        batch = batch_of(opened, size)
        if settings.get("standardize"):
            batch.numbers[:5] = EXTREMES[:size]
        arguments = model.arguments(batch)
        expected = trained(opened, batch) if keys == "full" else model(*arguments)
        np.testing.assert_allclose(runs(arguments)[0], expected, rtol=0, atol=tolerance)
        for program in programs:
            assert torch.allclose(program(*arguments), expected, rtol=0, atol=1e-6)
    check_graph(onnx.load(path), model)
    root = str(Path(__file__).parents[2]).encode()
    assert not any(root in file.read_bytes() for file in tmp_path.iterdir())  # no paths of this machine
    first, graph = path.read_bytes(), graph_of(path.read_bytes())
    assert len(graph) < 130_000
    for rows in (0, 3_000):  # without tracing
        other = opened_model(name, lists=lists, numbers=numbers, rows=rows, seed=5, **settings)
        for fallback in [one for named, one in other.model.named_parameters() if named.endswith(".fallback")]:
            fallback.data.normal_()
        served, batch = serving(other, dtype, keys), batch_of(other if rows else opened, 100)
        expected = served(*served.arguments(batch))
        for template in (first, graph):
            made = with_rows(template, served)
            assert made is not None
            path.write_bytes(made)
            np.testing.assert_allclose(OnnxModel(path)(served.arguments(batch))[0], expected, rtol=0, atol=tolerance)
        session = session_for(graph, served)  # as a server does
        assert session is not None
        given = {each: one.numpy() for each, one in zip(served.inputs, served.arguments(batch), strict=True)}
        np.testing.assert_allclose(session.run(None, given)[0], expected, rtol=0, atol=tolerance)
    if name == "opnn":
        onnx.checker.check_model(path, full_check=True)
        again, fresh = onnx.load_from_string(made), onnx.load_from_string(saved(served, path))
        assert again.graph.node == fresh.graph.node
        assert {entry.key: entry.value for entry in again.metadata_props} == served.metadata()
        tensors = [
            {each.name: (each.dims, each.data_type, onnx.numpy_helper.to_array(each).tobytes()) for each in one}
            for one in (again.graph.initializer, fresh.graph.initializer)
        ]
        assert tensors[0] == tensors[1]


def check_graph(model: onnx.ModelProto, served: ServingModel) -> None:
    """It has standard operators only, open sizes with plain names, and says which columns it takes."""
    graph, columns = model.graph, served.columns
    assert {node.domain for node in graph.node} == {""}
    assert [entry.domain for entry in model.opset_import] == [""]
    assert not model.functions
    assert model.ir_version == 9  # the newest that onnxruntime 1.17 reads
    assert [given.name for given in graph.input] == list(served.inputs)
    sizes = {one.name: sizes_of(one)[0] for one in (*graph.input, *graph.output)}
    assert {sizes[name] for name in ("keys", "probability", *(["numbers"] if columns.numbers else []))} == {"batch"}
    for name in columns.lists:
        assert (sizes[f"{name}.offsets"], sizes[f"{name}.keys"]) == ("batch + 1", f"{name}_keys_size")
    assert not any(re.search(r"\bs\d+", str(size)) for one in graph.value_info for size in sizes_of(one))
    about = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(about["fields"]) == list(columns.fields)
    assert (about["hash"], about["export"]) == ("xxh3_64", "abc")


def test_other_operators_are_noticed(tmp_path: Path) -> None:
    first = saved(serving(opened_model()), tmp_path / "first.onnx")
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
    assert {name: with_rows(first, other) for name, other in others.items()} == dict.fromkeys(others)


def table_of(keys: torch.Tensor, *, fingerprints: bool = False) -> FrozenTable:
    vectors = torch.arange(1.0, len(keys) + 1).unsqueeze(1)
    return FrozenTable(Embeddings.of(keys, vectors, "float32", None, bits_for(keys) if fingerprints else None))


def test_the_operators_of_hashed_keys_do_not_depend_on_their_number_and_crowded_ones_take_more() -> None:
    for fingerprints in (False, True):
        of_one = table_of(random_keys(1), fingerprints=fingerprints)
        for rows in (0, 1, 15, 16, 17, 100, 10_000, *(() if fingerprints else (300_000,))):
            assert table_of(random_keys(rows, seed=rows), fingerprints=fingerprints).structure == of_one.structure
    dense = torch.cat([torch.arange(2000), torch.tensor([1 << 55])])  # far from another key of the field: one bucket
    table = table_of(dense)
    assert len(table.index.halves) > 2
    assert table.structure != table_of(random_keys(1)).structure
    assert table(dense).flatten().tolist() == list(range(1, len(dense) + 1))
    assert not table(torch.tensor([-1, 2000, 1 << 54, 1 << 56])).any()
    items = list(table.items(7))
    assert torch.equal(torch.cat([keys for keys, _ in items]), dense)
    assert torch.equal(torch.cat([vectors for _, vectors in items]), table(dense))


def test_onnx_runs_elsewhere_with_large_weights_beside_the_file(tmp_path: Path) -> None:
    opened = opened_model(numbers=True)
    model, batch = serving(opened), batch_of(opened, 16)
    save_onnx(model.trace(), tmp_path / "model.onnx", model.inputs, metadata={}, external_bytes=1)
    data = tmp_path / "model.onnx.data"
    assert data.stat().st_size > model.model.embedding.vectors.nbytes  # type: ignore[union-attr,operator]
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in (tmp_path / "model.onnx", data):
        path.rename(moved / path.name)
    (found,) = OnnxModel(moved / "model.onnx")(model.arguments(batch))
    assert np.abs(found - trained(opened, batch).numpy()).max() <= 1e-6


def test_missing_packages_and_damaged_files_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ExportError, match=r"model\.onnx: onnxruntime cannot open it"):
        OnnxModel(tmp_path / "model.onnx")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert not serving_onnx.has_onnx()
    with pytest.raises(ExportError, match=r"pip install 'sparsegroup\[onnx\]'"):
        export_trained(opened_model(), tmp_path / "out", formats=["onnx"])
    assert not (tmp_path / "out").exists()
