"""Contributions of columns to a logit: against the definition of Shapley values."""

from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from over import over
from serving_cases import batch_of, opened_model, serving
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
    columns = LogSchema(tuple("abcd"[: len(weights)]), (), ())
    row = Batch(keys, torch.empty(1, 0), torch.ones(1), torch.zeros(1, dtype=torch.int64))
    return ClickModel(table, network), columns, row


MODELS: dict[str, Callable[[], TrainedModel]] = {
    "lists, numbers, fallback": lambda: opened_model(
        lists=True, numbers=True, fallback=True, standardize=True, number_buckets=4
    ),
    "pairs": lambda: opened_model("deepfm", pairs=["site*user"], fallback=True),
    "attention": lambda: opened_model("mlp", lists=True, attention={"tags": "user"}, list_sums=True),
    "buckets": lambda: opened_model(numbers=True, number_buckets=4),
    "dims": lambda: opened_model(lists=True, numbers=True, standardize=True, dims={"user": 2}),
}


@SAMPLED
@over("name", MODELS)
def test_contributions_add_up_and_the_model_is_unchanged(
    name: str, exact: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = MODELS[name]()
    batch, before = batch_of(opened, 6), {name: value.clone() for name, value in opened.model.state_dict().items()}
    truth = explain(opened.model, opened.columns, batch)
    with monkeypatch.context() as patch:
        patch.setattr(explanation, "EXACT", exact)
        found = explain(opened.model, opened.columns, batch, permutations=200)
    np.testing.assert_allclose(found.reference + found.contributions.sum(1), found.logits, atol=1e-9)
    logits = opened.model(batch.keys, batch.numbers, batch.bags).detach().numpy()
    np.testing.assert_allclose(found.logits, logits, rtol=1e-4, atol=1e-4)
    assert (np.abs(found.contributions - truth.contributions) <= 5 * found.errors + 1e-9).all()
    assert (found.errors.max() > 0, found.permutations) == ((False, 0) if exact else (True, 200))
    after = opened.model.state_dict()
    assert before.keys() == after.keys()
    assert all(before[name].equal(after[name]) for name in before)
    if "fallback" in name:
        of_export = explain(serving(opened).model, opened.columns, batch)
        np.testing.assert_allclose(of_export.contributions, truth.contributions, atol=1e-6)


class Tanh(nn.Module):
    """It ignores the third field, takes the first two for the same, and is far from a sum."""

    def forward(self, embeddings: Tensor, numbers: Tensor | None = None) -> Tensor:
        a, b, _, d = embeddings.sum(2).unbind(1)
        return (a * b + d).tanh() + (a + b).exp() * d


@SAMPLED
@over(("network", "dim", "pairwise"), [(LR(4), 1, True), (FM(4, DIM), DIM, True), (Tanh(), DIM, False)])
def test_a_contribution_is_the_mean_change_over_all_orders_of_the_columns(
    network: nn.Module, dim: int, pairwise: bool, exact: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(explanation, "EXACT", exact)
    weights, fallbacks = torch.randn(2, 4, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model, columns, row = model_of(network, weights, fallback=True)
    with torch.no_grad():
        model.table.fallback[:4] = fallbacks  # type: ignore[index]
    expected, orders = np.zeros(4), list(permutations(range(4)))
    for order in orders:
        vectors = fallbacks.clone()
        for field in order:
            before = network(vectors[None]).item()
            vectors[field] = weights[field]
            expected[field] += (network(vectors[None]).item() - before) / len(orders)
    found = explain(model, columns, row)
    if exact or pairwise:  # an order and its reverse have each field first
        np.testing.assert_allclose(found.contributions[0], expected, atol=1e-12)
        assert found.errors.max() < 1e-12
    else:
        assert (np.abs(found.contributions[0] - expected) <= 5 * found.errors[0] + 1e-12).all()


def test_both_fields_of_a_pair_get_half_of_its_weight() -> None:
    weights = torch.tensor([[0.3], [-0.2]], dtype=torch.float64)
    pairs = PairKeys([(0, 1)], first=2, field_bits=FIELD_BITS)
    model, columns, row = model_of(WithPairs(pairs, LR(3)), weights)
    model.table.assign(pairs(row.keys)[:, 2], torch.ones(1, 1, dtype=torch.float64))
    np.testing.assert_allclose(explain(model, columns, row).contributions[0], [0.8, 0.3], atol=1e-12)


def test_a_value_without_a_row_and_a_mean_number_contribute_nothing() -> None:
    opened = opened_model(numbers=True, fallback=True, standardize=True, number_buckets=4)
    encoder = next(module for module in opened.model.modules() if isinstance(module, NumberEncoder))
    assert encoder.signed_log.any()
    standardized, _ = encoder(encoder.means()[None])
    np.testing.assert_allclose(standardized, 0, atol=1e-9)
    keys = (torch.arange(5)[None] << 56) + 12_345
    unknown = Batch(keys, encoder.means()[None], torch.ones(1), torch.zeros(1, dtype=torch.int64))
    np.testing.assert_allclose(explain(opened.model, opened.columns, unknown).contributions, 0, atol=1e-9)


def test_wrong_arguments_are_named() -> None:
    model, columns, row = model_of(LR(2), torch.ones(2, 1, dtype=torch.float64))
    for count in (2, 5):
        with pytest.raises(UserError, match=f"`permutations` must be even and >= 4, got {count}"):
            explain(model, columns, row, permutations=count)
    with pytest.raises(ValueError, match=r"must be \(1, 0, 0\) as in columns, got \(2, 0, 0\)"):
        explain(model, LogSchema(("a",), (), ()), row)
    assert explain(model, columns, row[:0]).contributions.shape == (0, 2)
