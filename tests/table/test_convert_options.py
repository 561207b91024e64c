"""What `convert` replaces, how its tables start, what it refuses, and what becomes of losses over the weights."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from over import over
from sparsegroup import (
    GroupAdam,
    HashEmbedding,
    MinCount,
    TableEmbedding,
    TargetRate,
    convert,
    param_groups,
    to_embeddings,
)
from sparsegroup.serving import export, load_export

INITIALIZERS: dict[str, tuple[Callable[[Tensor], Any], float]] = {
    "DeepCTR-Torch": (partial(nn.init.normal_, mean=0, std=1e-4), 1e-4),
    "torch": (nn.init.normal_, 1.0),
    "xavier, normal": (nn.init.xavier_normal_, (2 / 2_008) ** 0.5),
    "xavier, uniform": (nn.init.xavier_uniform_, (2 / 2_008) ** 0.5),
    "TorchRec": (partial(nn.init.uniform_, a=-(2_000**-0.5), b=2_000**-0.5), (3 * 2_000) ** -0.5),
    "zeros": (nn.init.zeros_, 0.0),
}


def embedding(rows: int = 2_000, dim: int = 8, seed: int = 0, **options: Any) -> nn.Embedding:
    torch.manual_seed(seed)
    return nn.Embedding(rows, dim, **options)


@over("name", INITIALIZERS)
def test_new_rows_start_as_the_embedding_was_initialized(name: str) -> None:
    initialize, std = INITIALIZERS[name]
    plain = embedding(padding_idx=0)
    initialize(plain.weight)
    with torch.no_grad():
        plain.weight[0] = 0
    table = convert(plain, rows="none").table
    assert table.num_rows == 0
    vectors = table(torch.arange(1, 20_001)).detach()
    assert table.num_seen == 20_000
    assert float(vectors.std()) == pytest.approx(std, rel=0.03)
    assert abs(float(vectors.mean())) <= 0.02 * std


def test_rows_that_are_there_stay_and_new_ones_start_alike() -> None:
    plain = embedding()
    nn.init.uniform_(plain.weight, -0.5, 0.5)
    table = convert(plain).table
    assert torch.equal(table(torch.arange(2_000)), plain.weight)
    newcomers = table(torch.arange(2_000, 12_000)).detach()
    assert float(newcomers.std()) == pytest.approx(12**-0.5, rel=0.02)
    assert table.num_rows == 12_000


def test_a_weight_that_is_not_around_zero_is_not_drawn_anew() -> None:
    plain = embedding()
    nn.init.uniform_(plain.weight, 0.0, 1.0)
    model = nn.Sequential(plain)
    with pytest.raises(ValueError, match=r"0: rows='none' would draw its rows around zero, but their mean is 0\.5"):
        convert(model, rows="none")
    assert model[0] is plain
    assert convert(model, rows="none", std=0.1)[0].table.table.config.std == 0.1


def test_tables_differ_in_their_seeds_which_torchs_seed_decides() -> None:
    def starts(**options: Any) -> list[Tensor]:
        model = convert(nn.ModuleList([embedding(), embedding()]), rows="none", **options)
        return [module.table.initial(torch.arange(5)) for module in model]

    first, again = starts(), starts()
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[0], first[1])
    torch.manual_seed(5)
    given = starts(seed=2**64 - 1)
    assert torch.equal(given[0], starts(seed=2**64 - 1)[0])
    assert not torch.equal(given[0], given[1])
    with pytest.raises(ValueError, match="seed must be in"):
        starts(seed=-1)


def test_a_weight_at_its_initializer_counts_no_features_before_they_come() -> None:
    model = convert(nn.Sequential(embedding(100_000), nn.Linear(8, 1)), rows="none")
    optimizer = GroupAdam(param_groups(model), lr=1e-2)
    target = TargetRate(optimizer, 0.2, steps=60)
    draw = torch.Generator().manual_seed(0)
    for _ in range(60):
        ids = torch.randint(0, 500, (256,), generator=draw)
        optimizer.zero_grad()
        logits = model(ids).squeeze(1)
        nn.functional.binary_cross_entropy_with_logits(logits, (ids < 50).float()).backward()
        optimizer.step()
        target.step()
    table = model[0].table
    assert table.num_seen == 500
    assert table.feature_rate == pytest.approx(0.2, abs=0.02)
    ids = torch.arange(1_000)
    wanted = model.eval()(ids)
    plain = to_embeddings(model)
    assert plain[0].weight.shape == (100_000, 8)
    assert int((plain[0].weight != 0).any(1).sum()) == table.num_live
    assert torch.equal(plain(ids), wanted)


def test_larger_ids_make_a_larger_embedding_and_negative_ones_none() -> None:
    model = nn.Sequential(convert(embedding(10)))
    model(torch.tensor([25]))
    assert to_embeddings(nn.Sequential(*model))[0].weight.shape == (26, 8)
    model(torch.tensor([-7]))
    with pytest.raises(ValueError, match="0: it has the key -7; the rows of an nn"):
        to_embeddings(model)
    assert isinstance(model[0], TableEmbedding)


def test_dead_rows_have_the_fallback_vector_after_it() -> None:
    model = convert(nn.Sequential(embedding(10, padding_idx=0)), fallback=True)
    table = model[0].table
    with torch.no_grad():
        table.fallback.normal_()
    table.assign(torch.tensor([4]), torch.zeros(1, 8))
    ids = torch.arange(10)
    wanted = model.eval()(ids)
    assert torch.equal(wanted[4], table.fallback[0])
    assert torch.equal(to_embeddings(model)(ids), wanted)
    assert not wanted[0].any()


def test_options_reach_the_tables() -> None:
    model = convert(nn.Sequential(embedding()), rows="none", admission=MinCount(2), dtype=torch.float64, std=0.5)
    model(torch.tensor([1, 2]))
    assert model[0].table.num_rows == 0
    assert model(torch.tensor([2])).dtype == torch.float64
    assert model[0].table.num_rows == 1
    with pytest.raises(TypeError, match="there is no 'size'"):
        convert(nn.Sequential(embedding()), size=3)


def test_only_what_is_chosen_is_replaced() -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        layers = {"big": embedding(1_000), "small": embedding(10), "fixed": embedding(1_000).requires_grad_(False)}
        return nn.ModuleDict({**layers, "bag": nn.EmbeddingBag(100, 4)})

    def replaced(**options: Any) -> list[str]:
        return [name for name, module in convert(model(), **options).items() if isinstance(module, TableEmbedding)]

    assert replaced() == ["big", "small", "bag"]
    assert replaced(choose=lambda name, module: name == "fixed") == ["fixed"]
    assert replaced(choose=lambda name, module: isinstance(module, nn.EmbeddingBag)) == ["bag"]
    assert replaced(choose=lambda name, module: module.num_embeddings >= 200) == ["big", "fixed"]
    with pytest.raises(ValueError, match="ModuleDict holds no nn"):
        replaced(choose=lambda name, module: False)
    with pytest.raises(ValueError, match="Linear holds nothing that `convert` has made"):
        to_embeddings(nn.Linear(2, 2))
    with pytest.raises(ValueError, match="rows must be 'all' or 'none', got 'some'"):
        replaced(rows="some")


def test_a_frozen_embedding_that_is_chosen_stays_frozen() -> None:
    model = convert(nn.Sequential(embedding().requires_grad_(False)), choose=lambda name, module: True)
    assert not model[0].weight.requires_grad
    assert not model(torch.tensor([3])).requires_grad
    assert not to_embeddings(model)[0].weight.requires_grad


class Scaled(nn.Embedding):
    """An embedding with a `forward` of its own."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


def test_an_embedding_with_a_forward_of_its_own_is_left_alone() -> None:
    model = convert(nn.Sequential(Scaled(10, 8), nn.Sequential(embedding())))
    assert type(model[0]) is Scaled
    assert isinstance(model[1][0], TableEmbedding)
    with pytest.raises(ValueError, match="0: Scaled has a custom `forward`"):
        convert(nn.Sequential(Scaled(10, 8)), choose=lambda name, module: True)


class Tied(nn.Module):
    """An embedding whose weight is that of the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = embedding(), nn.Linear(8, 2_000, bias=False)
        self.head.weight = self.words.weight


class Holding(nn.Module):
    """An embedding that a plain list holds, too."""

    def __init__(self, of_weights: bool) -> None:
        super().__init__()
        self.words = embedding()
        self.fields = {"words": [self.words.weight if of_weights else self.words]}


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
        (lambda: nn.Sequential(embedding(max_norm=1.0)), r"0: max_norm=1 rescales rows"),
        (lambda: nn.Sequential(embedding(scale_grad_by_freq=True)), r"0: scale_grad_by_freq=True divides"),
        (lambda: nn.Sequential(nn.EmbeddingBag(10, 2, mode="max")), r"0: a table's bags have the modes .* 'max'"),
        (lambda: nn.Sequential(embedding().half()), r"0: dtype must be torch.float32 or torch.float64 on cpu"),
        (lambda: nn.Sequential(nn.Embedding(10, 2, device="meta")), r"0: .*meta"),
        (hooked, r"0: its hooks would be lost"),
        (differing, r"0: its weight is shared by embeddings of another class, padding_idx"),
        (Tied, r"other.words: its weight is other.head.weight, too"),
        (lambda: Holding(True), r"other.words: the model holds it, or its weight, as other.fields, too"),
        (lambda: Holding(False), r"other.words: the model holds it, or its weight, as other.fields, too"),
    ],
)
def test_what_a_table_cannot_be_is_refused_and_nothing_changes(make: Callable[[], nn.Module], message: str) -> None:
    model = nn.ModuleDict({"fine": embedding(), "other": make()})
    before = list(model.modules())
    with pytest.raises((ValueError, RuntimeError), match=message.replace("0: ", "other.0: ", 1)):
        convert(model)
    assert list(model.modules()) == before


class Regularized(nn.Module):
    """As models of DeepCTR-Torch and of FuxiCTR hold what they add to the loss."""

    def __init__(self, l2: float, norm: float | None) -> None:
        super().__init__()
        self.words, self.linear = embedding(), nn.Linear(8, 1)
        named = list(self.linear.named_parameters())
        self.regularization_weight = [([self.words.weight, self.linear.weight], 0.0, l2), (named, 0.0, 0.5)]
        self._embedding_regularizer = norm


@over(
    ("model", "message"),
    [
        (Regularized(1e-5, None), r"words: .*as regularization_weight, too.*l2_reg_embedding=0"),
        (Regularized(0.0, 1e-6), r"embedding_regularizer=1e-06 .*embedding_regularizer=None"),
    ],
)
def test_losses_over_whole_weights_are_refused(model: Regularized, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert(model)
    assert isinstance(model.words, nn.Embedding)


def test_a_loss_that_computes_nothing_of_the_weights_is_none() -> None:
    assert convert(Regularized(0.0, None)).words.table.num_rows == 2_000


@pytest.mark.whole
def test_a_converted_model_is_exported_as_any_with_tables(tmp_path: Path) -> None:
    model = convert(nn.Sequential(embedding(50, padding_idx=0), nn.Flatten(), nn.Linear(24, 1))).eval()
    ids = torch.from_numpy(np.random.default_rng(0).integers(0, 50, (20, 3)))
    export(model, tmp_path / "out", (ids,), formats=["program"])
    served = load_export(tmp_path / "out")
    assert torch.allclose(served(ids[:7]), model(ids[:7]), atol=1e-6)
    assert isinstance(model[0].table, HashEmbedding)
