"""`convert`: a model's embeddings become tables that compute and train the same; `to_embeddings`: and back."""

import copy
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from over import over
from sparsegroup import (
    GroupAdam,
    GroupFTRL,
    GroupOptimizer,
    HashEmbedding,
    HashEmbeddingBag,
    TableEmbedding,
    TableEmbeddingBag,
    convert,
    param_groups,
    to_embeddings,
)

ROWS, DIM = 50, 6


class Shop(nn.Module):
    """An embedding at two places, one whose weight another shares, a padded one, and two kinds of bags."""

    def __init__(self, *, sparse: bool = True) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.item = nn.Embedding(ROWS, DIM, sparse=sparse)
        self.places = nn.ModuleDict({"again": self.item, "other": nn.Embedding(ROWS, DIM, sparse=sparse)})
        self.places["other"].weight = self.item.weight
        self.history = nn.Embedding(ROWS, DIM, padding_idx=0, sparse=sparse)
        self.tags = nn.EmbeddingBag(ROWS, DIM, mode="mean", padding_idx=0, sparse=sparse)
        self.words = nn.EmbeddingBag(ROWS, DIM, mode="sum", include_last_offset=True, sparse=sparse)
        self.head = nn.Linear(5 * DIM, 1)

    def forward(self, ids: Tensor, offsets: Tensor) -> Tensor:
        parts = [
            self.item(ids[:, 0]),
            self.places["again"](ids[:, 1]) - self.places["other"](ids[:, 2]),
            self.history(ids).sum(1),
            self.tags(ids),
            self.words(input=ids.flatten(), offsets=offsets, per_sample_weights=ids.flatten() / ROWS),
        ]
        return self.head(torch.cat(parts, 1)).squeeze(1)


def batch(seed: int, rows: int = 16) -> tuple[Tensor, Tensor]:
    """Ids of which every third is padding, and ragged offsets with the last."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, ROWS, (rows, 4), generator=draw)
    ids[torch.rand(rows, 4, generator=draw) < 0.3] = 0
    cuts = torch.randint(0, rows * 4, (rows - 1,), generator=draw).sort().values
    return ids, torch.cat([torch.tensor([0]), cuts, torch.tensor([rows * 4])])


def trained(model: nn.Module, optimizer: GroupOptimizer, steps: int = 12) -> list[float]:
    losses = []
    for step in range(steps):
        ids, offsets = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids, offsets), (ids[:, 0] % 2).float())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_the_model_computes_what_it_did_and_so_does_the_one_that_is_converted_back() -> None:
    model = Shop()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    wanted = [model(*batch(seed)) for seed in range(4)]
    assert convert(model) is model
    assert not [module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
    for training in (True, False):
        model.train(training)
        for seed, want in enumerate(wanted):
            assert torch.allclose(model(*batch(seed)), want, rtol=1e-6, atol=1e-6)
    assert torch.equal(model.item.table.lookup(torch.arange(ROWS)), before["item.weight"])
    assert to_embeddings(model) is model
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    for seed, want in enumerate(wanted):
        assert torch.equal(model(*batch(seed)), want)


def test_what_is_shared_stays_shared_there_and_back() -> None:
    model = convert(Shop())
    assert model.item is model.places["again"]
    assert model.item is not model.places["other"]
    assert model.item.table is model.places["other"].table
    assert sum(isinstance(module, HashEmbedding) for module in model.modules()) == 4
    to_embeddings(model)
    assert model.item is model.places["again"]
    assert model.item.weight is model.places["other"].weight


def test_arguments_and_attributes_stay() -> None:
    model = Shop()
    model.tags.eval()
    before = copy.deepcopy(model)
    convert(model)
    names: dict[str, tuple[str, ...]] = {
        "history": ("num_embeddings", "embedding_dim", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq"),
        "tags": ("num_embeddings", "embedding_dim", "padding_idx", "mode", "include_last_offset", "sparse", "training"),
        "words": ("num_embeddings", "padding_idx", "mode", "include_last_offset", "training"),
    }
    for stage in ("tables", "embeddings"):
        for name, attributes in names.items():
            module, old = model.get_submodule(name), before.get_submodule(name)
            for attribute in attributes:
                assert getattr(module, attribute) == getattr(old, attribute), (stage, name, attribute)
        to_embeddings(model) if stage == "tables" else None
    assert repr(model) == repr(before)
    assert "padding_idx=0" in repr(convert(before).history)


@over(
    ("kind", "options"),
    [(GroupAdam, {}), (GroupAdam, {"l1": 1e-4, "l21": 0.05, "l2": 1e-3}), (GroupFTRL, {}), (GroupFTRL, {"l21": 0.02})],
)
def test_a_converted_model_trains_as_sparse_embeddings_do(
    kind: type[GroupOptimizer], options: dict[str, float]
) -> None:
    """Also where an optimizer charges a row's start (all but FTRL): bags sum in another order, so not bit for bit."""
    plain = Shop()
    model = convert(copy.deepcopy(plain))
    losses = trained(plain, kind(param_groups(plain, **options), lr=0.05))
    optimizer = kind(param_groups(model, **options), lr=0.05)
    assert torch.allclose(torch.tensor(trained(model, optimizer)), torch.tensor(losses), rtol=1e-5)
    to_embeddings(model)
    for (name, found), wanted in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-5), name
    if "l21" in options:
        assert (plain.item.weight == 0).all(1).sum() == (model.item.weight == 0).all(1).sum() > 0


@over("options", [{}, {"l21": 5.0}])
def test_lookups_train_bit_for_bit(options: dict[str, float]) -> None:
    """Where an id comes once in a batch: gradients of several are summed in another order."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Embedding(ROWS, DIM, padding_idx=0, sparse=True), nn.Flatten(), nn.Linear(4 * DIM, 1))
    table = convert(copy.deepcopy(plain))
    optimizers = [GroupAdam(param_groups(model, **options), lr=0.05) for model in (plain, table)]
    for _ in range(10):
        ids = torch.randperm(ROWS)[:40].view(-1, 4)
        for model, optimizer in zip((plain, table), optimizers, strict=True):
            optimizer.zero_grad()
            model(ids).square().sum().backward()
            optimizer.step()
        assert torch.equal(table[0].table.lookup(torch.arange(1, ROWS)), plain[0].weight[1:])
    assert torch.equal(plain[2].weight, table[2].weight)
    assert bool((plain[0].weight[1:] == 0).all(1).any()) == bool(options)


def test_padding_is_zero_and_untrained_and_no_row() -> None:
    model = convert(Shop())
    trained(model, GroupAdam(param_groups(model), lr=0.1))
    assert not model.history.table.contains(torch.tensor([0]))
    assert model.history.table.num_seen == ROWS - 1
    for training in (True, False):
        assert not model.train(training).history(torch.tensor([0, 0])).any()
        assert not model.tags(torch.zeros(1, 3, dtype=torch.int64)).any()
    assert not to_embeddings(model).history.weight[0].any()


def test_a_padding_row_that_is_not_zero_stays_as_it_is() -> None:
    torch.manual_seed(0)
    plain = nn.Embedding(ROWS, DIM, padding_idx=3)
    nn.init.normal_(plain.weight)  # over the zeros that torch puts there
    model = convert(plain)
    vectors = model(torch.tensor([3, 4]))
    assert torch.equal(vectors, plain.weight[[3, 4]])
    vectors.sum().backward()
    GroupAdam(param_groups(model), lr=0.1).step()
    assert torch.equal(model(torch.tensor([3])), plain.weight[[3]])
    assert not torch.equal(model(torch.tensor([4])), plain.weight[[4]])
    state = copy.deepcopy(model.state_dict())
    torch.manual_seed(1)
    other = convert(nn.Embedding(ROWS, DIM, padding_idx=3))
    other.load_state_dict(state)
    assert torch.equal(other.eval()(torch.arange(ROWS)), model.eval()(torch.arange(ROWS)))


def test_a_model_that_is_an_embedding_is_given_back_anew() -> None:
    for plain in (nn.Embedding(ROWS, DIM), nn.EmbeddingBag(ROWS, DIM, mode="sum")):
        made = convert(plain)
        assert type(made) is (TableEmbeddingBag if isinstance(plain, nn.EmbeddingBag) else TableEmbedding)
        assert type(made.table) is (HashEmbeddingBag if isinstance(plain, nn.EmbeddingBag) else HashEmbedding)
        assert torch.equal(to_embeddings(made).weight, plain.weight)


def test_int32_ids_are_taken_and_floats_refused() -> None:
    plain = nn.Sequential(nn.Embedding(ROWS, DIM, padding_idx=0))
    bag = nn.EmbeddingBag(ROWS, DIM, mode="sum", padding_idx=0)
    ids, offsets = torch.tensor([0, 5, 7], dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32)
    wanted = plain(ids), bag(ids, offsets)
    model, table_bag = convert(plain), convert(bag)
    assert torch.equal(model(ids), wanted[0])
    assert torch.allclose(table_bag(ids, offsets), wanted[1])
    with pytest.raises(TypeError, match=r"keys must be int64 or int32, got torch\.float32"):
        model(ids.float())


def bag_calls() -> list[tuple[Any, ...]]:
    ids = torch.tensor([[0, 5, 7], [0, 0, 0], [5, 5, 1]])
    weights = torch.tensor([[1.0, 2.0, -1.0], [1.0, 1.0, 1.0], [0.5, 0.25, 3.0]])
    offsets = torch.tensor([0, 2, 2, 5])
    return [(ids,), (ids, None, weights), (ids.flatten(), offsets), (ids.flatten(), offsets, weights.flatten())]


@over("last", [False, True])
@over("padding_idx", [None, 0, 5])
@over("mode", ["sum", "mean"])
def test_bags_give_what_torchs_give(mode: str, padding_idx: int | None, last: bool) -> None:
    torch.manual_seed(0)
    plain = nn.EmbeddingBag(ROWS, DIM, mode=mode, padding_idx=padding_idx, include_last_offset=last)
    model = convert(plain)
    for training in (True, False):
        model.train(training)
        for ids, offsets, *weights in [(*call, None)[:3] if len(call) == 1 else call for call in bag_calls()]:
            if offsets is not None and last:
                offsets = torch.cat([offsets, torch.tensor([ids.numel()])])
            if weights and weights[0] is not None and mode == "mean":
                with pytest.raises(ValueError, match="mode='sum'"):
                    model(ids, offsets, *weights)
                continue
            assert torch.allclose(model(ids, offsets, *weights), plain(ids, offsets, *weights), atol=1e-6)


def test_weights_of_another_shape_than_the_ids_are_refused_with_padding_too() -> None:
    model = convert(nn.EmbeddingBag(ROWS, DIM, mode="sum", padding_idx=0))
    with pytest.raises(ValueError, match="must have the shape of the keys"):
        model(torch.ones(2, 3, dtype=torch.int64), None, torch.ones(3, 2))
    with pytest.raises(ValueError, match="1-d keys need offsets"):
        model(torch.ones(3, dtype=torch.int64))


def test_the_old_weights_are_gone_and_nothing_warns() -> None:
    model = Shop()
    old = {id(parameter) for parameter in model.parameters()} - {id(parameter) for parameter in model.head.parameters()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        convert(model)
    assert not old & {id(parameter) for parameter in model.parameters()}
    assert len(list(model.parameters())) == len(old) + 2
