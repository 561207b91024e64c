"""Number formats of exported vectors: how far off, and what cannot be had."""

import pytest
import torch

from sparsegroup.serving import ExportError
from sparsegroup.serving.frozen import Embeddings

VECTORS = torch.randn(500, 6, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 3, 500).unsqueeze(1)


def encode(vectors: torch.Tensor, dtype: str) -> Embeddings:
    return Embeddings.of(torch.arange(len(vectors)), vectors, dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dtype", "bits", "smallest"), [("float32", 200, 0), ("float16", 11, 2**-25), ("bfloat16", 8, 0)]
)
def test_floats_are_off_by_half_a_last_place(dtype: str, bits: int, smallest: float) -> None:
    error = (encode(VECTORS, dtype).decode() - VECTORS).abs()
    assert (error <= (VECTORS.abs() * 2.0**-bits).clamp(min=smallest)).all()  # float16 has the smallest normal numbers


def test_int8_is_off_by_half_a_step_of_the_row() -> None:
    encoded = encode(VECTORS, "int8")
    assert encoded.scale is not None
    step = VECTORS.abs().amax(1) / 127
    assert torch.allclose(encoded.scale, step)
    assert ((encoded.decode() - VECTORS).abs() <= step.unsqueeze(1) * 0.5001).all()
    assert (encoded.vectors.abs().amax(1) == 127).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8"])
def test_what_is_decoded_encodes_to_the_same_and_zero_stays_zero(dtype: str) -> None:
    decoded = encode(VECTORS, dtype).decode()
    assert torch.allclose(encode(decoded, dtype).decode(), decoded, rtol=1e-6, atol=0)
    assert not encode(torch.zeros(2, 6), dtype).decode().any()
    assert encode(torch.empty(0, 6), dtype).decode().shape == (0, 6)


def test_float16_has_no_large_numbers_and_no_format_has_nan() -> None:
    with pytest.raises(ExportError, match=r"float16 has no 70000.*take float32 or int8"):
        encode(torch.tensor([[1.0, 70_000.0]]), "float16")
    for value in (float("nan"), float("inf")):
        for dtype in ("float32", "int8"):
            with pytest.raises(ExportError, match="not finite"):
                encode(torch.tensor([[1.0, value]]), dtype)
