"""The serving model, in PyTorch, as a program and in ONNX, against the model as it was trained."""

import json
import math
import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import onnx
import pytest
import torch
from onnxruntime.quantization import quantize_dynamic
from torch.export import ExportedProgram

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

CASES: dict[str, tuple[str, str, dict[str, Any]]] = {  # network: formats of vectors and keys, settings
    "deepfm": ("int8", "full", {"lists": True, "numbers": True, "number_buckets": 5}),  # which is also FM
    "opnn": ("float16", "full", {"numbers": True, "standardize": True, "hidden": [16]}),
    "dcn": (
        "bfloat16",
        "full",
        {"lists": True, "numbers": True, "attention": {"words": "hour"}, "number_buckets": 3, "standardize": True},
    ),
    "mlp": ("int4", "fingerprints", {"lists": True, "dims": {"user": 2, "tags": 3}, "fallback": True}),
    "xdeepfm": ("float32", "full", {"lists": True, "numbers": True, "fallback": True}),
}
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


class Exported(NamedTuple):
    """A model that has the vectors of the export's format, what serves it, and that as a program and in ONNX."""

    opened: TrainedModel
    model: ServingModel
    program: ExportedProgram
    path: Path

    def assert_near(self, found: Any, expected: torch.Tensor) -> None:
        np.testing.assert_allclose(found, expected, rtol=0, atol=5e-6)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Exported]:
    """A case, exported once for all tests."""

    @cache
    def of(name: str) -> Exported:
        dtype, keys, settings = CASES[name]
        opened = opened_model(name, **settings)
        model, path = serving(opened, dtype, keys), tmp_path_factory.mktemp(name) / "model.onnx"
        program = model.trace()
        save_onnx(program, path, model.inputs, metadata=model.metadata() | {"export": "abc"})
        rounded(opened.model, dtype)
        return Exported(opened, model, program, path)

    return of


@pytest.mark.parametrize("name", CASES)
def test_onnx_and_program_give_what_the_model_gives_for_any_batch(
    name: str, exported: Callable[[str], Exported]
) -> None:
    of = exported(name)
    runs, programs = OnnxModel(of.path), []
    if name == "dcn":  # ONNX is made of the program
        save_program(of.program, of.path.with_suffix(".pt2"))
        programs.append(load_program(of.path.with_suffix(".pt2")))
    for size in (1, 2, 37) if of.opened.columns.lists else (0, 1, 2, 37):
        batch = batch_of(of.opened, size)
        if "standardize" in CASES[name][2]:
            batch.numbers[:5] = EXTREMES[:size]
        elif name == "xdeepfm":  # which has the numbers as they are
            batch.numbers[:1, 0] = math.nan
        arguments = of.model.arguments(batch)
        expected = trained(of.opened, batch) if CASES[name][1] == "full" else of.model(*arguments)
        assert expected.isfinite()[1:].all()
        assert expected.isfinite()[:1].all() != (name == "xdeepfm")
        of.assert_near(runs(arguments)[0], expected)
        for program in programs:
            assert torch.allclose(program(*arguments), expected, rtol=0, atol=1e-6)
    check_graph(onnx.load(of.path), of.model)
    root = str(Path(__file__).parents[2]).encode()
    assert not any(root in file.read_bytes() for file in of.path.parent.iterdir())  # no paths of this machine


def other_rows(name: str, rows: int) -> tuple[TrainedModel, ServingModel]:
    """A model of a case with other rows, and what serves it."""
    dtype, keys, settings = CASES[name]
    other = opened_model(name, rows=rows, seed=5, **settings)
    for fallback in [one for named, one in other.model.named_parameters() if named.endswith(".fallback")]:
        fallback.data.normal_()
    return other, serving(other, dtype, keys)


@pytest.mark.parametrize("name", CASES)
def test_any_rows_go_into_a_file_without_tracing(
    name: str, exported: Callable[[str], Exported], tmp_path: Path
) -> None:
    of, path = exported(name), tmp_path / "model.onnx"
    first, graph = of.path.read_bytes(), graph_of(of.path.read_bytes())
    assert len(graph) < 130_000
    for rows in (0, 3_000):
        other, served = other_rows(name, rows)
        arguments = served.arguments(batch_of(other if rows else of.opened, 100))
        expected = served(*arguments)
        made = with_rows(graph, served)
        assert made == with_rows(first, served)
        path.write_bytes(made)
        of.assert_near(OnnxModel(path)(arguments)[0], expected)
        session = session_for(graph, served)  # as a server does
        assert session is not None
        given = {each: one.numpy() for each, one in zip(served.inputs, arguments, strict=True)}
        of.assert_near(session.run(None, given)[0], expected)


def test_a_file_with_other_rows_is_that_of_a_new_export_which_runs_elsewhere_with_its_large_weights(
    exported: Callable[[str], Exported], tmp_path: Path
) -> None:
    of, (other, served) = exported("opnn"), other_rows("opnn", 3_000)
    new, moved = tmp_path / "new", tmp_path / "moved"
    new.mkdir()
    save_onnx(served.trace(), new / "model.onnx", served.inputs, metadata=served.metadata(), external_bytes=1)
    new.rename(moved)
    assert (moved / "model.onnx.data").stat().st_size > served.model.embedding.vectors.nbytes  # type: ignore[union-attr,operator]
    arguments = served.arguments(batch_of(other, 16))
    of.assert_near(OnnxModel(moved / "model.onnx")(arguments)[0], served(*arguments))
    content = with_rows(of.path.read_bytes(), served)
    assert content is not None
    (tmp_path / "made.onnx").write_bytes(content)
    onnx.checker.check_model(tmp_path / "made.onnx", full_check=True)
    made, fresh = onnx.load(tmp_path / "made.onnx"), onnx.load(moved / "model.onnx")
    assert made.graph.node == fresh.graph.node
    assert {entry.key: entry.value for entry in made.metadata_props} == served.metadata()
    tensors = [
        {each.name: (each.dims, each.data_type, onnx.numpy_helper.to_array(each).tobytes()) for each in one}
        for one in (made.graph.initializer, fresh.graph.initializer)
    ]
    assert tensors[0] == tensors[1]
    large, serves_it = other_rows("opnn", 200_000)
    size = len(with_rows(content, serves_it)) / large.model.embedding.num_live
    assert 16 < size < 1.15 * 16, "a key of 8 bytes and 4 numbers of 2"


def test_a_quantized_network_looks_up_the_same_rows(exported: Callable[[str], Exported], tmp_path: Path) -> None:
    """A rounded factor of a product of matrices in the lookup would be another row."""
    of = exported("xdeepfm")  # with all kinds of products
    graph = onnx.load(of.path).graph
    of_the_lookup = [node for node in graph.node if any("embedding" in value for value in node.input)]
    assert of_the_lookup
    assert not {"MatMul", "Gemm"} & {node.op_type for node in of_the_lookup}
    quantize_dynamic(of.path, tmp_path / "small.onnx", op_types_to_quantize=["MatMul"])
    arguments = of.model.arguments(batch_of(of.opened, 200))
    exact, small = (OnnxModel(file)(arguments)[0] for file in (of.path, tmp_path / "small.onnx"))
    assert 0 < np.abs(exact - small).max() < 0.1


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


def test_other_operators_are_noticed(exported: Callable[[str], Exported]) -> None:
    first, like = exported("opnn").path.read_bytes(), CASES["opnn"][2]
    assert with_rows(first, serving(opened_model("opnn", **like), "float16")) is not None
    others = {
        "network": serving(opened_model("mlp", **like), "float16"),
        "width": serving(opened_model("opnn", **{**like, "hidden": [8]}), "float16"),
        "vectors": serving(opened_model("opnn", dim=5, **like), "float16"),
        "format": serving(opened_model("opnn", **like), "int8"),
        "keys": serving(opened_model("opnn", **like), "float16", "fingerprints"),
        "tables": serving(opened_model("opnn", dims={"user": 2}, **like), "float16"),
        "fallback": serving(opened_model("opnn", fallback=True, **like), "float16"),
        "lists": serving(opened_model("opnn", lists=True, **like), "float16"),
        "numbers": serving(opened_model("opnn"), "float16"),
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


def test_missing_packages_and_damaged_files_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ExportError, match=r"model\.onnx: onnxruntime cannot open it"):
        OnnxModel(tmp_path / "model.onnx")
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert not serving_onnx.has_onnx()
    with pytest.raises(ExportError, match=r"pip install 'sparsegroup\[onnx\]'"):
        export_trained(opened_model(), tmp_path / "out", formats=["onnx"])
    assert not (tmp_path / "out").exists()
