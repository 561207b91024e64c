"""The serving model, in PyTorch, as a program and in ONNX, against the model as it was trained."""

import json
import math
import re
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import pytest
import torch

from serving_cases import batch_of, opened_model, serving, sizes_of
from sparsegroup.data.batches import Batch
from sparsegroup.serving import ExportError, TrainedModel, export_trained, open_trained
from sparsegroup.serving import onnx as serving_onnx
from sparsegroup.serving.frozen import live_rows
from sparsegroup.serving.onnx import OnnxModel, save_onnx
from sparsegroup.serving.tracing import load_program, save_program
from sparsegroup.settings.names import ModelName
from sparsegroup.training import predict

CASES: list[tuple[str, bool, bool, str, dict[str, Any]]] = [  # network, lists, numbers, format, settings
    ("lr", False, True, "float32", {}),
    ("deepfm", True, True, "int8", {"number_buckets": 5}),  # which is also FM
    ("opnn", False, True, "float16", {"standardize": True}),
    ("dcn", True, True, "bfloat16", {"attention": {"words": "hour"}, "number_buckets": 3, "standardize": True}),
    ("dcnv2", False, False, "bfloat16", {}),
    ("mlp", True, False, "int4", {}),
    ("xdeepfm", True, True, "float32", {}),
]
EXTREMES = torch.tensor([[math.nan, 1.0], [1e5, -3.0], [math.inf, -math.inf], [1e30, -1e30], [0.0, math.nan]])
"""Numbers of a log that standardizing makes finite."""


@torch.no_grad()
def trained(opened: TrainedModel, batch: Batch, dtype: str = "float32") -> torch.Tensor:
    """What the trained model gives when its table holds the decoded vectors."""
    rows = live_rows(opened.model.embedding, dtype)  # type: ignore[arg-type]
    opened.model.embedding.assign(rows.keys, rows.decode())
    probabilities: torch.Tensor = opened.model(batch.keys, batch.numbers, batch.bags).sigmoid()
    return probabilities


@pytest.mark.parametrize("name", get_args(ModelName))
def test_it_gives_what_the_trained_model_gives(name: str) -> None:
    for lists, numbers in product((False, True), repeat=2):
        opened = opened_model(name, lists=lists, numbers=numbers)
        opened.model.train()
        model, batch = serving(opened), batch_of(opened, 64)
        assert opened.model.network.training  # the trained model stays as it is
        assert all(parameter.requires_grad for parameter in opened.model.network.parameters())
        opened.model.eval()
        assert torch.allclose(model(*model.arguments(batch)), trained(opened, batch), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("name", "lists", "numbers", "dtype", "settings"), CASES)
def test_onnx_and_program_give_the_same_for_any_batch(
    name: str, lists: bool, numbers: bool, dtype: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    opened = opened_model(name, lists=lists, numbers=numbers, **settings)
    model = serving(opened, dtype)
    traced = model.trace()
    save_onnx(traced, tmp_path / "model.onnx", model.inputs, metadata=model.metadata() | {"export": "abc"})
    save_program(traced, tmp_path / "model.pt2")
    runs, program = OnnxModel(tmp_path / "model.onnx"), load_program(tmp_path / "model.pt2")
    for size in (1, 2, 37) if lists else (0, 1, 2, 37):
        batch = batch_of(opened, size)
        if settings.get("standardize"):
            batch.numbers[:5] = EXTREMES[:size]
        expected = trained(opened, batch, dtype)
        arguments = model.arguments(batch)
        assert np.abs(runs(arguments)[0] - expected.numpy()).max(initial=0) <= (5e-6 if settings else 1e-6)
        assert torch.allclose(program(*arguments), expected, rtol=0, atol=1e-6)
    graph = onnx.load(tmp_path / "model.onnx")
    assert {node.domain for node in graph.graph.node} == {""}
    assert [entry.domain for entry in graph.opset_import] == [""]
    assert not graph.functions
    assert graph.ir_version == 9  # the newest that onnxruntime 1.17 reads
    assert [given.name for given in graph.graph.input] == list(model.inputs)
    sizes = {one.name: sizes_of(one)[0] for one in (*graph.graph.input, *graph.graph.output)}
    assert {sizes[name] for name in ("keys", "probability", *(["numbers"] if numbers else []))} == {"batch"}
    assert {sizes[f"{name}.offsets"] for name in opened.columns.lists} <= {"batch + 1"}
    assert [sizes[f"{name}.keys"] for name in opened.columns.lists] == [
        f"{name}_keys_size" for name in opened.columns.lists
    ]
    assert not any(re.search(r"\bs\d+", str(size)) for one in graph.graph.value_info for size in sizes_of(one))
    about = {entry.key: entry.value for entry in graph.metadata_props}
    assert json.loads(about["fields"]) == list(opened.columns.fields)
    assert (about["hash"], about["export"]) == ("xxh3_64", "abc")
    root = str(Path(__file__).parents[2]).encode()
    assert root not in (tmp_path / "model.onnx").read_bytes()  # no paths of this machine
    assert root not in (tmp_path / "model.pt2").read_bytes()


ALONE = """
import sys
for name in ("torch", "sparsegroup"):
    sys.modules[name] = None  # so that importing it fails
import numpy, onnxruntime
folder = sys.argv[1]
session = onnxruntime.InferenceSession(folder + "/model.onnx", providers=["CPUExecutionProvider"])
inputs = dict(numpy.load(folder + "/inputs.npz"))
numpy.save(folder + "/found.npy", session.run(["probability"], inputs)[0])
assert not any(name.split(".")[0] == "torch" for name, module in sys.modules.items() if module is not None)
"""


def test_onnx_runs_elsewhere_alone_with_large_weights_beside_the_file(tmp_path: Path) -> None:
    opened = opened_model(numbers=True)
    model, batch = serving(opened), batch_of(opened, 16)
    save_onnx(model.trace(), tmp_path / "model.onnx", model.inputs, metadata={}, external_bytes=1)
    data = tmp_path / "model.onnx.data"
    assert data.stat().st_size > model.model.embedding.vectors.nbytes  # type: ignore[union-attr,operator]
    moved = tmp_path / "moved"
    moved.mkdir()
    for path in (tmp_path / "model.onnx", data):
        path.rename(moved / path.name)
    arguments = dict(zip(model.inputs, model.arguments(batch), strict=True))
    np.savez(moved / "inputs.npz", **{name: tensor.numpy() for name, tensor in arguments.items()})
    subprocess.run([sys.executable, "-c", ALONE, moved], check=True, timeout=60)
    assert np.abs(np.load(moved / "found.npy") - trained(opened, batch).numpy()).max() <= 1e-6


def test_without_the_packages_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    assert not serving_onnx.has_onnx()
    with pytest.raises(ExportError, match=r"pip install 'sparsegroup\[onnx\]'"):
        export_trained(opened_model(), tmp_path / "out", formats=["onnx"])
    assert not list(tmp_path.iterdir())


def test_a_damaged_onnx_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(ExportError, match=r"model\.onnx: onnxruntime cannot open it"):
        OnnxModel(tmp_path / "model.onnx")


def test_an_export_of_several_tables_predicts_batch_after_batch(tmp_path: Path) -> None:
    opened = opened_model(numbers=True, dims={"user": 2})
    export_trained(opened, tmp_path / "out", test=None)
    served, batches = open_trained(tmp_path / "out"), [batch_of(opened, 5), batch_of(opened, 7)]
    of_export, of_training = (predict(one.model, batches).logits() for one in (served, opened))
    np.testing.assert_allclose(of_export, of_training, atol=1e-6)
