"""Number formats of exported vectors: how far off, and what cannot be had."""

from pathlib import Path

import pytest
import torch

from over import over
from sparsegroup.serving import ExportError
from sparsegroup.serving.rows import SCALES, Embeddings, load_embeddings
from sparsegroup.settings.names import Dtype

VECTORS = torch.randn(500, 6, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 3, 500).unsqueeze(1)


def encode(vectors: torch.Tensor, dtype: str) -> Embeddings:
    return Embeddings.of(torch.arange(len(vectors)), vectors, dtype)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dtype", "bits", "smallest"), [("float32", 200, 0), ("float16", 11, 2**-25), ("bfloat16", 8, 0)]
)
def test_floats_are_off_by_half_a_last_place(dtype: str, bits: int, smallest: float) -> None:
    error = (encode(VECTORS, dtype).decode() - VECTORS).abs()
    assert (error <= (VECTORS.abs() * 2.0**-bits).clamp(min=smallest)).all()  # float16 has the smallest normal numbers


SMALL = VECTORS * 0.05
"""Up to some hundred, as int4 has them."""


@pytest.mark.parametrize(("dtype", "most"), [("int8", 127), ("int4", 7)])
def test_integers_are_off_by_half_a_step_of_the_row(dtype: str, most: int) -> None:
    for width in (1, 5, 6):
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
    with pytest.raises(ExportError, match=f"{dtype} has no numbers above .*; the table holds 1e.06, take float32"):
        encode(torch.tensor([[1.0, 1e6]]), dtype)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int8", "int4"])
def test_what_is_decoded_encodes_to_the_same_and_zero_stays_zero(dtype: str) -> None:
    vectors = VECTORS if dtype != "int4" else SMALL
    decoded = encode(vectors, dtype).decode()
    assert torch.equal(encode(decoded, dtype).decode(), decoded)
    assert not encode(torch.zeros(2, 6), dtype).decode().any()
    assert encode(torch.empty(0, 6), dtype).decode().shape == (0, 6)


def test_float16_has_no_large_numbers_and_no_format_has_nan() -> None:
    with pytest.raises(ExportError, match=r"float16 has no 70000.*take float32"):
        encode(torch.tensor([[1.0, 70_000.0]]), "float16")
    for value in (float("nan"), float("inf")):
        for dtype in ("float32", "int8", "int4"):
            with pytest.raises(ExportError, match="not finite"):
                encode(torch.tensor([[1.0, value]]), dtype)


@over("dtype", ["float32", "float16", "int8", "int4"])
@over("dim", [1, 5, 8])
def test_fallback_vectors_have_the_format_of_the_others(dtype: Dtype, dim: int, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(dim)
    vectors, fallback = torch.randn(20, dim, generator=generator), torch.randn(8, dim, generator=generator)
    fallback[5:] = 0
    rows = Embeddings.of(torch.arange(20), vectors, dtype, fallback)
    assert rows.fallback is not None
    expected = Embeddings.of(torch.arange(8), fallback, dtype)
    assert torch.equal(rows.fallback, expected.decode())
    rows.save(tmp_path / "rows")
    again = load_embeddings(tmp_path / "rows", dim, dtype)
    assert again.fallback is not None
    assert torch.equal(again.fallback, rows.fallback)
    stored = rows.tensors()
    assert torch.equal(stored["fallback"], expected.vectors[:5])
    assert sum(of.nbytes for name, of in stored.items() if name.startswith("fallback")) == 8 + 5 * (
        stored["vectors"].nbytes + (stored["scale"].nbytes if "scale" in stored else 0)
    ) // len(rows)
