"""onnxruntime: an export scores as PyTorch does, and its own dynamic quantization leaves the lookup as it is."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnxruntime.quantization import quantize_dynamic

import onnxruntime_scores
from plain_settings import plain
from serving_cases import batch_of, columns_of, opened_model, serving
from sparsegroup.models import NumberEncoder
from sparsegroup.serving import TrainedModel
from sparsegroup.serving.onnx import OnnxModel, save_onnx


def test_the_example_scores_and_int8_is_near(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained, exact, small = onnxruntime_scores.main(tmp_path / "served")
    assert np.abs(exact - trained).max() < 1e-5
    assert 0 < np.abs(small - exact).max() < 0.02
    assert (tmp_path / "served" / "small.onnx").stat().st_size < 0.6 * (
        tmp_path / "served" / "model.onnx"
    ).stat().st_size
    assert "off by" in capsys.readouterr().out


def test_a_quantized_network_looks_up_the_same_rows(tmp_path: Path) -> None:
    """A rounded factor of a product of matrices in the lookup would be another row."""
    opened = opened_model("xdeepfm", numbers=True, rows=2_000)  # with all kinds of products
    model = serving(opened)
    save_onnx(model.trace(), tmp_path / "model.onnx", model.inputs, metadata={})
    graph = onnx.load(tmp_path / "model.onnx").graph
    of_the_lookup = [node for node in graph.node if any("embedding" in value for value in node.input)]
    assert not {"MatMul", "Gemm"} & {node.op_type for node in of_the_lookup}
    quantize_dynamic(tmp_path / "model.onnx", tmp_path / "small.onnx", op_types_to_quantize=["MatMul"])
    arguments = model.arguments(batch_of(opened, 200))
    exact, small = (OnnxModel(tmp_path / file)(arguments)[0] for file in ("model.onnx", "small.onnx"))
    assert np.abs(exact - small).max() < 0.1


@pytest.mark.parametrize(
    ("settings", "finite"),
    [({"standardize": True, "number_buckets": 4}, True), ({}, False)],
)
def test_a_missing_number_is_to_onnx_what_it_is_to_the_model(
    settings: dict[str, Any], finite: bool, tmp_path: Path
) -> None:
    columns = columns_of(numbers=True)
    trained, _ = plain(model="mlp", dim=4, **settings).build_for(columns)
    for module in trained.modules():
        if isinstance(module, NumberEncoder):
            module.fit(torch.arange(40.0).view(20, 2))
    trained.embedding.assign(torch.arange(5), torch.randn(5, 4))
    model = serving(TrainedModel(Path("made-up"), "run", plain(), columns, trained.eval(), None))
    save_onnx(model.trace(), tmp_path / "model.onnx", model.inputs, metadata={})
    keys, numbers = torch.zeros(2, 5, dtype=torch.int64), torch.tensor([[torch.nan, 3.0], [1.0, 2.0]])
    with torch.no_grad():
        expected = trained(keys, numbers).sigmoid().numpy()
    found = OnnxModel(tmp_path / "model.onnx")([keys, numbers])[0]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.isfinite(found).tolist() == [finite, True]
