"""Contributions of columns to a logit: against closed forms, and by the properties of Shapley values."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from over import over
from plain_settings import plain
from serving_cases import batch_of, opened_model, random_keys, serving
from sparsegroup import HashEmbedding
from sparsegroup.data.batches import Batch
from sparsegroup.data.keys import FIELD_BITS
from sparsegroup.data.schema import LogSchema
from sparsegroup.errors import UserError
from sparsegroup.models import FM, LR, NumberEncoder, PairKeys, WithPairs
from sparsegroup.serving import TrainedModel, explain, explanation
from sparsegroup.training import ClickModel

DIM = 3
SAMPLED = pytest.mark.parametrize("exact", [10, 0], ids=["exact", "sampled"])


def model_of(network: nn.Module, weights: Tensor, **options: Any) -> tuple[ClickModel, LogSchema, Batch]:
    """A network over fields a, b, … with these vectors `[fields, dim]`, and a batch of the row that has them."""
    keys = torch.arange(len(weights))[None] << 56
    table = HashEmbedding(weights.shape[1], field_bits=FIELD_BITS, dtype=torch.float64, **options)
    table.assign(keys, weights[None])
    columns = LogSchema(tuple("abcdefghijklmnop"[: len(weights)]), (), ())
    row = Batch(keys, torch.empty(1, 0), torch.ones(1), torch.zeros(1, dtype=torch.int64))
    return ClickModel(table, network), columns, row


def opened_with_dims() -> TrainedModel:
    """A model whose fields have vectors of several sizes."""
    columns = LogSchema(("site", "user", "tags"), ("tags",), ("age",))
    config = plain(dim=4, dims={"user": 2}, standardize=True)
    model, _ = config.build_for(columns)
    model.embedding(random_keys(200, fields=3))
    model.embedding.items = lambda: [(random_keys(200, fields=3), None)]  # type: ignore[union-attr, method-assign]
    return TrainedModel(Path("made-up"), "run", config, columns, model.eval(), None)


MODELS = {
    "lists, numbers, fallback": lambda: opened_model(
        lists=True, numbers=True, fallback=True, standardize=True, number_buckets=4
    ),
    "pairs": lambda: opened_model("deepfm", pairs=["site*user"], fallback=True),
    "attention": lambda: opened_model("mlp", lists=True, attention={"tags": "user"}, list_sums=True),
    "buckets": lambda: opened_model(numbers=True, number_buckets=4),
    "dims": opened_with_dims,
}


@SAMPLED
@over("name", MODELS)
def test_contributions_add_up_and_the_model_is_unchanged(
    name: str, exact: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = MODELS[name]()
    batch, before = batch_of(opened, 6), {name: value.clone() for name, value in opened.model.state_dict().items()}
    monkeypatch.setattr(explanation, "EXACT", 10)
    truth = explain(opened.model, opened.columns, batch)
    monkeypatch.setattr(explanation, "EXACT", exact)
    found = explain(opened.model, opened.columns, batch, permutations=200)
    np.testing.assert_allclose(found.reference + found.contributions.sum(1), found.logits, atol=1e-9)
    logits = opened.model(batch.keys, batch.numbers, batch.bags).detach().numpy()
    np.testing.assert_allclose(found.logits, logits, rtol=1e-4, atol=1e-4)
    assert (np.abs(found.contributions - truth.contributions) <= 5 * found.errors + 1e-9).all()
    assert (found.errors.max() > 0, found.permutations) == ((False, 0) if exact else (True, 200))
    after = opened.model.state_dict()
    assert before.keys() == after.keys()
    assert all(before[name].equal(after[name]) for name in before)


@over("dtype", ["float32", "int8"])
def test_an_export_is_explained_as_its_model(dtype: str) -> None:
    opened = opened_model(lists=True, numbers=True, fallback=True, standardize=True)
    batch, served = batch_of(opened, 4), serving(opened, dtype)
    of_run, of_export = (explain(model, opened.columns, batch) for model in (opened.model, served.model))
    tolerance = 1e-6 if dtype == "float32" else 0.05
    np.testing.assert_allclose(of_export.contributions, of_run.contributions, atol=tolerance)


@SAMPLED
def test_of_a_linear_model_they_are_the_weights_less_the_fallbacks(exact: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanation, "EXACT", exact)
    weights, fallbacks = torch.randn(2, 9, 1, dtype=torch.float64)
    model, columns, row = model_of(LR(9), weights, fallback=True)
    with torch.no_grad():
        model.table.fallback[:9] = fallbacks  # type: ignore[index]
    found = explain(model, columns, row)
    np.testing.assert_allclose(found.contributions[0], (weights - fallbacks)[:, 0], atol=1e-12)
    assert found.errors.max() < 1e-12


@SAMPLED
def test_both_fields_of_an_interaction_get_half_of_it(exact: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explanation, "EXACT", exact)
    vectors = torch.randn(2, DIM, dtype=torch.float64)
    model, columns, row = model_of(FM(2, DIM), vectors)
    found = explain(model, columns, row)
    half = float(vectors[0, 1:] @ vectors[1, 1:]) / 2
    np.testing.assert_allclose(found.contributions[0], vectors[:, 0] + half, atol=1e-12)
    assert found.errors.max() < 1e-12  # an order and its reverse have each field first


def test_both_fields_of_a_pair_get_half_of_its_weight() -> None:
    weights = torch.tensor([[0.3], [-0.2]], dtype=torch.float64)
    pairs = PairKeys([(0, 1)], first=2, field_bits=FIELD_BITS)
    model, columns, row = model_of(WithPairs(pairs, LR(3)), weights)
    model.table.assign(pairs(row.keys)[:, 2], torch.ones(1, 1, dtype=torch.float64))
    np.testing.assert_allclose(explain(model, columns, row).contributions[0], [0.8, 0.3], atol=1e-12)


class OfTwo(nn.Module):
    """It ignores the third field, and takes the others for the same."""

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        return (embeddings[:, 0] * embeddings[:, 1]).sum(1).tanh() + embeddings[:, :2].sum((1, 2)).exp()


def test_equal_fields_get_the_same_and_one_that_is_ignored_nothing() -> None:
    model, columns, row = model_of(OfTwo(), torch.ones(3, DIM, dtype=torch.float64))
    a, b, ignored = explain(model, columns, row).contributions[0]
    assert (a, ignored) == (pytest.approx(b, abs=1e-12), pytest.approx(0, abs=1e-12))
    assert a > 1


def test_a_value_without_a_row_and_a_mean_number_contribute_nothing() -> None:
    opened = opened_model(numbers=True, fallback=True, standardize=True, number_buckets=4)
    encoder = next(module for module in opened.model.modules() if isinstance(module, NumberEncoder))
    assert encoder.signed_log.any()
    standardized, _ = encoder(encoder.means()[None])
    np.testing.assert_allclose(standardized, 0, atol=1e-9)
    keys = (torch.arange(5)[None] << 56) + 12_345
    unknown = Batch(keys, encoder.means()[None], torch.ones(1), torch.zeros(1, dtype=torch.int64))
    found = explain(opened.model, opened.columns, unknown)
    np.testing.assert_allclose(found.contributions, 0, atol=1e-9)


def test_wrong_arguments_are_named() -> None:
    model, columns, row = model_of(LR(2), torch.ones(2, 1, dtype=torch.float64))
    for permutations in (2, 5):
        with pytest.raises(UserError, match=f"`permutations` must be even and >= 4, got {permutations}"):
            explain(model, columns, row, permutations=permutations)
    with pytest.raises(ValueError, match=r"must be \(1, 0, 0\) as in columns, got \(2, 0, 0\)"):
        explain(model, LogSchema(("a",), (), ()), row)
    assert explain(model, columns, row[:0]).contributions.shape == (0, 2)
