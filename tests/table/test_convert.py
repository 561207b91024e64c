"""`convert`: a model's embeddings become tables that compute and train the same; `to_embeddings`: and back."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from over import over
from sparsegroup import (
    GroupAdam,
    GroupOptimizer,
    HashEmbedding,
    HashEmbeddingBag,
    MinCount,
    TableEmbedding,
    TableEmbeddingBag,
    convert,
    param_groups,
    to_embeddings,
)
from table_cases import take_step

ROWS, DIM = 50, 6


class Shop(nn.Module):
    """An embedding at two places, one whose weight another shares, a padded one, and two kinds of bags."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.item = nn.Embedding(ROWS, DIM, sparse=True)
        self.places = nn.ModuleDict({"again": self.item, "other": nn.Embedding(ROWS, DIM, sparse=True)})
        self.places["other"].weight = self.item.weight
        self.history = nn.Embedding(ROWS, DIM, padding_idx=0, sparse=True)
        self.tags = nn.EmbeddingBag(ROWS, DIM, mode="mean", padding_idx=0, sparse=True)
        self.words = nn.EmbeddingBag(ROWS, DIM, mode="sum", include_last_offset=True, sparse=True)
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


def trained(model: nn.Module, optimizer: GroupOptimizer) -> list[float]:
    losses = []
    for step in range(12):
        ids, offsets = batch(step)
        loss = nn.functional.binary_cross_entropy_with_logits(model(ids, offsets), (ids[:, 0] % 2).float())
        take_step(optimizer, loss)
        losses.append(loss.item())
    return losses


def embedding(rows: int = 2_000, dim: int = 8, **options: Any) -> nn.Embedding:
    torch.manual_seed(0)
    return nn.Embedding(rows, dim, **options)


# What it computes, there and back


ATTRIBUTES = (
    *("num_embeddings", "embedding_dim", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse"),
    *("mode", "include_last_offset", "training"),
)


def test_the_model_computes_what_it_did_and_so_does_the_one_that_is_converted_back() -> None:
    model = Shop()
    model.tags.eval()
    original, before = copy.deepcopy(model), {name: value.clone() for name, value in model.state_dict().items()}
    old = {id(parameter) for parameter in model.parameters()} - {id(parameter) for parameter in model.head.parameters()}
    wanted = [model(*batch(seed)) for seed in range(4)]

    def has_its_attributes() -> bool:
        pairs = [(model.get_submodule(name), original.get_submodule(name)) for name in ("history", "tags", "words")]
        return all(getattr(new, name, 0) == getattr(old, name, 0) for new, old in pairs for name in ATTRIBUTES)

    assert convert(model) is model
    assert not [module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)]
    assert not old & {id(parameter) for parameter in model.parameters()}
    assert len(list(model.parameters())) == len(old) + 2
    assert model.item is model.places["again"]
    assert model.item is not model.places["other"]
    assert model.item.table is model.places["other"].table
    assert sum(isinstance(module, HashEmbedding) for module in model.modules()) == 4
    assert has_its_attributes()
    assert "padding_idx=0" in repr(model.history)
    copied = copy.deepcopy(model)
    for training in (True, False):
        copied.train(training)
        for seed, want in enumerate(wanted):
            assert torch.allclose(copied(*batch(seed)), want, rtol=1e-6, atol=1e-6)
    assert torch.equal(model.item.table.lookup(torch.arange(ROWS)), before["item.weight"])
    assert to_embeddings(model) is model
    assert model.item is model.places["again"]
    assert model.item.weight is model.places["other"].weight
    assert has_its_attributes()
    assert repr(model) == repr(original)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items())
    for seed, want in enumerate(wanted):
        assert torch.equal(model(*batch(seed)), want)


def test_a_converted_model_trains_as_sparse_embeddings_do() -> None:
    """Bags sum in another order, so not bit for bit. Padding is zero, untrained, and no row."""
    plain, options = Shop(), {"l1": 1e-4, "l21": 0.05, "l2": 1e-3}
    model = convert(copy.deepcopy(plain))
    losses = trained(plain, GroupAdam(param_groups(plain, **options), lr=0.05))
    optimizer = GroupAdam(param_groups(model, **options), lr=0.05)
    assert torch.allclose(torch.tensor(trained(model, optimizer)), torch.tensor(losses), rtol=1e-5)
    assert not model.history.table.contains(torch.tensor([0]))
    assert model.history.table.num_seen == ROWS - 1
    for training in (True, False):
        assert not model.train(training).history(torch.tensor([0, 0])).any()
        assert not model.tags(torch.zeros(1, 3, dtype=torch.int64)).any()
    to_embeddings(model)
    for (name, found), wanted in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert torch.allclose(found, wanted, rtol=1e-4, atol=1e-5), name
    assert (plain.item.weight == 0).all(1).sum() == (model.item.weight == 0).all(1).sum() > 0
    assert not model.history.weight[0].any()


def test_a_padding_row_that_is_not_zero_stays_unchanged() -> None:
    plain = embedding(ROWS, DIM, padding_idx=3)
    nn.init.normal_(plain.weight)  # over the zeros that torch puts there
    model = convert(plain)
    vectors = model(torch.tensor([3, 4]))
    assert torch.equal(vectors, plain.weight[[3, 4]])
    vectors.sum().backward()
    GroupAdam(param_groups(model), lr=0.1).step()
    assert (model(torch.tensor([3, 4])) == plain.weight[[3, 4]]).all(1).tolist() == [True, False]
    other = convert(nn.Embedding(ROWS, DIM, padding_idx=3))
    other.load_state_dict(copy.deepcopy(model.state_dict()))
    assert torch.equal(other.eval()(torch.arange(ROWS)), model.eval()(torch.arange(ROWS)))


def bag_calls() -> list[tuple[Any, ...]]:
    ids = torch.tensor([[0, 5, 7], [0, 0, 0], [5, 5, 1]])
    weights = torch.tensor([[1.0, 2.0, -1.0], [1.0, 1.0, 1.0], [0.5, 0.25, 3.0]])
    offsets = torch.tensor([0, 2, 2, 5])
    ragged = ids.int().flatten(), offsets.int(), weights.flatten()
    return [(ids, None, None), (ids, None, weights), (ids.flatten(), offsets, None), ragged]


@over(
    ("mode", "padding_idx", "last"),
    [("sum", None, True), ("sum", 5, False), ("mean", None, False), ("mean", 0, True), ("max", 5, True)],
)
def test_bags_give_what_torchs_give(mode: str, padding_idx: int | None, last: bool) -> None:
    torch.manual_seed(0)
    plain = nn.EmbeddingBag(ROWS, DIM, mode=mode, padding_idx=padding_idx, include_last_offset=last)
    model = convert(plain)
    assert (type(model), type(model.table)) == (TableEmbeddingBag, HashEmbeddingBag)
    for training in (True, False):
        model.train(training)
        for ids, offsets, weights in bag_calls():
            if offsets is not None and last:
                offsets = torch.cat([offsets, offsets.new_tensor([ids.numel()])])
            if weights is not None and mode != "sum":
                with pytest.raises(NotImplementedError, match="mode='sum'"):
                    model(ids, offsets, weights)
                continue
            assert torch.allclose(model(ids, offsets, weights), plain(ids, offsets, weights), atol=1e-6)
    assert torch.equal(to_embeddings(model).weight, plain.weight)


def test_ids_and_weights_that_do_not_fit_are_refused_with_padding_too() -> None:
    bag = convert(nn.EmbeddingBag(ROWS, DIM, mode="sum", padding_idx=0))
    single = convert(nn.Embedding(ROWS, DIM, padding_idx=0))
    with pytest.raises(ValueError, match="must have the shape of the keys"):
        bag(torch.ones(2, 3, dtype=torch.int64), None, torch.ones(3, 2))
    with pytest.raises(ValueError, match="1-d keys need offsets"):
        bag(torch.ones(3, dtype=torch.int64))
    assert torch.equal(single(torch.tensor([0, 5], dtype=torch.int32)), single(torch.tensor([0, 5])))
    with pytest.raises(TypeError, match=r"keys must be int64 or int32, got torch\.float32"):
        single(torch.ones(3))


# How tables start


@over(
    ("initialize", "std"),
    [
        (lambda weight: nn.init.normal_(weight, std=1e-4), 1e-4),  # as DeepCTR-Torch does
        (nn.init.xavier_uniform_, (2 / 2_008) ** 0.5),
        (nn.init.zeros_, 0.0),
    ],
)
def test_new_rows_start_as_the_embedding_was_initialized(initialize: Callable[[Tensor], Any], std: float) -> None:
    plain = embedding(padding_idx=0)
    initialize(plain.weight)
    with torch.no_grad():
        plain.weight[0] = 0
    for rows in ("all", "none"):
        table = convert(copy.deepcopy(plain), rows=rows).table
        assert table.num_rows == (1_999 if rows == "all" else 0)
        assert torch.equal(table.lookup(torch.arange(2_000)), plain.weight if rows == "all" else torch.zeros(2_000, 8))
        vectors = table(torch.arange(2_000, 22_000)).detach()
        assert float(vectors.std()) == pytest.approx(std, rel=0.03)
        assert abs(float(vectors.mean())) <= 0.02 * std


def test_options_reach_the_tables_whose_seeds_differ_and_follow_from_torchs() -> None:
    def starts(**options: Any) -> list[Tensor]:
        model = convert(nn.ModuleList([embedding(), embedding()]), rows="none", **options)
        return [module.table.initial(torch.arange(5)) for module in model]

    for options in ({}, {"seed": 2**64 - 1}):
        first, again = starts(**options), starts(**options)
        assert torch.equal(first[0], again[0])
        assert not torch.equal(first[0], first[1])
    model = convert(nn.Sequential(embedding()), rows="none", admission=MinCount(2), dtype=torch.float64, std=0.5)
    model(torch.tensor([1, 2]))
    assert model[0].table.num_rows == 0
    assert model(torch.tensor([2])).dtype == torch.float64
    assert model[0].table.num_rows == 1


def test_converted_back_ids_without_a_live_row_have_zeros_or_the_fallback_vector() -> None:
    """And larger ids make a larger embedding, negative ones none."""
    for fallback in (False, True):
        model = convert(nn.Sequential(embedding(padding_idx=0), nn.Linear(8, 1)), rows="none", fallback=fallback)
        optimizer = GroupAdam(param_groups(model, l21=0.02), lr=1e-2)
        for _ in range(10):
            take_step(optimizer, model(torch.arange(500)).square().mean())
        table, ids = model[0].table, torch.arange(2_006)
        assert table.num_seen == 499, "ids that have not come do not count as features"
        model(torch.tensor([2_005]))
        if fallback:
            nn.init.normal_(table.fallback)
        wanted = model.eval()(ids)
        plain = to_embeddings(nn.Sequential(*model))
        assert plain[0].weight.shape == (2_006, 8)
        assert not plain[0].weight[0].any()
        assert 0 < table.num_live < 500
        assert int((plain[0].weight != 0).any(1).sum()) == (2_005 if fallback else table.num_live)
        assert torch.equal(plain(ids), wanted)
        model.train()(torch.tensor([-7]))
        with pytest.raises(ValueError, match="0: it has the key -7; the rows of an nn"):
            to_embeddings(model)
        assert isinstance(model[0], TableEmbedding)


# What is replaced, and what is refused


class Scaled(nn.Embedding):
    """An embedding with a custom `forward`."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def test_only_what_is_chosen_is_replaced() -> None:
    def replaced(**options: Any) -> list[str]:
        layers = {"big": embedding(1_000), "small": embedding(10), "fixed": embedding(1_000).requires_grad_(False)}
        model = convert(nn.ModuleDict({**layers, "scaled": Scaled(9, 4), "bag": nn.EmbeddingBag(100, 4)}), **options)
        if isinstance(model["fixed"], TableEmbedding):
            assert not model["fixed"](torch.tensor([3])).requires_grad
            assert not to_embeddings(copy.deepcopy(model))["fixed"].weight.requires_grad
        return [name for name, module in model.items() if isinstance(module, TableEmbedding)]

    assert replaced() == ["big", "small", "bag"]
    assert replaced(choose=lambda name, module: name == "fixed") == ["fixed"]
    assert replaced(choose=lambda name, module: isinstance(module, nn.EmbeddingBag)) == ["bag"]
    assert replaced(choose=lambda name, module: module.num_embeddings >= 200) == ["big", "fixed"]
    plain = embedding()
    nn.init.uniform_(plain.weight, 0.0, 1.0)
    model = nn.Sequential(plain)
    for refused, message in (
        (lambda: replaced(choose=lambda name, module: False), "ModuleDict holds no nn"),
        (lambda: replaced(choose=lambda name, module: True), "scaled: Scaled has a custom `forward`"),
        (lambda: replaced(rows="some"), "rows must be 'all' or 'none', got 'some'"),
        (lambda: replaced(seed=-1), "seed must be in"),
        (lambda: replaced(size=3), "there is no 'size'"),
        (lambda: to_embeddings(nn.Linear(2, 2)), "Linear holds nothing that `convert` has made"),
        (lambda: convert(model, rows="none"), r"0: rows='none' would draw its rows .*, but their mean is 0\.5"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            refused()
    assert model[0] is plain
    assert convert(model, rows="none", std=0.1)[0].table.table.config.std == 0.1


def holding(**attributes: Callable[[nn.Embedding], object]) -> nn.Module:
    """A module with an embedding, `words`, and what is made of it."""
    model = nn.Module()
    model.words = embedding()
    for name, make in attributes.items():
        setattr(model, name, make(model.words))
    return model


def regularized(l2: float, norm: float | None = None) -> nn.Module:
    """As models of DeepCTR-Torch and of FuxiCTR hold what they add to the loss."""
    named = list(nn.Linear(8, 1).named_parameters())
    return holding(
        regularization_weight=lambda words: [([words.weight, named[0][1]], 0.0, l2), (named, 0.0, 0.5)],
        _embedding_regularizer=lambda words: norm,
    )


def tied(words: nn.Embedding) -> nn.Module:
    head = nn.Linear(8, 2_000, bias=False)
    head.weight = words.weight
    return head


def hooked() -> nn.Module:
    model = nn.Sequential(embedding())
    model[0].register_forward_hook(lambda *arguments: None)
    return model


def differing() -> nn.Module:
    model = nn.Sequential(embedding(padding_idx=0), embedding())
    model[1].weight = model[0].weight
    return model


@over(
    ("make", "message"),
    [
        (lambda: nn.Sequential(embedding(scale_grad_by_freq=True)), r"other.0: scale_grad_by_freq=True divides"),
        (lambda: nn.Sequential(nn.Embedding(10, 2, device="meta")), r"other.0: .*meta"),
        (hooked, r"other.0: its hooks would be lost"),
        (differing, r"other.0: its weight is shared by embeddings of another class, padding_idx"),
        (lambda: holding(head=tied), r"other.words: its weight is other.head.weight, too"),
        (lambda: holding(fields=lambda words: {"words": (words,)}), r"other.words: .* holds it, .* as other.fields"),
        (lambda: regularized(1e-5), r"other.words: .*as other.regularization_weight, too.*l2_reg_embedding=0"),
        (lambda: regularized(0.0, 1e-6), r"embedding_regularizer=1e-06 .*embedding_regularizer=None"),
    ],
)
def test_what_a_table_cannot_be_is_refused_and_nothing_changes(make: Callable[[], nn.Module], message: str) -> None:
    model = nn.ModuleDict({"fine": embedding(), "other": make()})
    before = list(model.modules())
    with pytest.raises((ValueError, RuntimeError), match=message):
        convert(model)
    assert list(model.modules()) == before
    assert convert(regularized(0.0)).words.table.num_rows == 2_000, "what computes nothing of the weights is fine"
