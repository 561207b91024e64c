"""TorchRec: unsharded collections of embeddings and of bags compute and train the same with tables."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from client_cases import assert_trains_as_sparse_embeddings
from sparsegroup import HashEmbedding, HashEmbeddingBag, convert, to_embeddings

pytest.importorskip("torchrec")

from torchrec import (
    EmbeddingBagCollection,
    EmbeddingBagConfig,
    EmbeddingCollection,
    EmbeddingConfig,
    JaggedTensor,
    KeyedJaggedTensor,
    KeyedTensor,
    PoolingType,
)
from torchrec.modules.embedding_configs import DataType

pytestmark = pytest.mark.filterwarnings("ignore")

ROWS = 30


def config(name: str, *features: str, of: Any = EmbeddingBagConfig, **options: Any) -> Any:
    return of(name=name, feature_names=[*features], **{"embedding_dim": 4, "num_embeddings": ROWS, **options})


def bags(is_weighted: bool = False, **options: Any) -> EmbeddingBagCollection:
    torch.manual_seed(0)
    pooling = PoolingType.SUM if is_weighted else PoolingType.MEAN
    things = config("things", "item", "seen", pooling=PoolingType.SUM)
    tags = config("tags", "tag", embedding_dim=3, pooling=pooling, **options)
    return EmbeddingBagCollection(tables=[things, tags], is_weighted=is_weighted)


def features(seed: int = 0, rows: int = 8, dtype: torch.dtype = torch.int64, weighted: bool = False) -> Any:
    """Empty bags, too."""
    draw = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 4, (3 * rows,), generator=draw).to(dtype)
    count = int(lengths.sum())
    values = torch.randint(0, ROWS, (count,), generator=draw).to(dtype)
    weights = torch.rand(count, generator=draw) if weighted else None
    return KeyedJaggedTensor(keys=["item", "seen", "tag"], values=values, lengths=lengths, weights=weights)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("weighted", [False, True])
def test_bags_give_what_they_gave(weighted: bool, dtype: torch.dtype) -> None:
    model = bags(weighted)
    given = features(dtype=dtype, weighted=weighted)
    wanted = model(given)
    convert(model)
    assert all(isinstance(bag.table, HashEmbeddingBag) for bag in model.embedding_bags.values())
    for training in (True, False):
        found = model.train(training)(given)
        assert isinstance(found, KeyedTensor)
        assert found.keys() == wanted.keys()
        assert torch.allclose(found.values(), wanted.values(), atol=1e-6)
    assert torch.equal(to_embeddings(model)(given).values(), wanted.values())


def test_embeddings_give_what_they_gave() -> None:
    torch.manual_seed(0)
    tables = [config("things", "item", "seen", of=EmbeddingConfig), config("tags", "tag", of=EmbeddingConfig)]
    model = EmbeddingCollection(tables=tables)
    wanted = model(features())
    convert(model)
    assert sum(isinstance(module, HashEmbedding) for module in model.modules()) == 2
    for training in (True, False):
        found = model.train(training)(features())
        assert list(found) == list(wanted)
        for key, jagged in found.items():
            assert isinstance(jagged, JaggedTensor)
            assert torch.equal(jagged.values(), wanted[key].values())
            assert torch.equal(jagged.lengths(), wanted[key].lengths())
    assert list(to_embeddings(model)(features())) == list(wanted)


class Clicks(nn.Module):
    """Bags and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.bags, self.head = bags(), nn.Linear(11, 1)

    def forward(self, given: Any) -> Tensor:
        return self.head(self.bags(given).values()).squeeze(1)


def fitted(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
    for step in range(20):
        optimizer.zero_grad()
        labels = (features(step).lengths()[:8] > 1).float()
        nn.functional.binary_cross_entropy_with_logits(model(features(step)), labels).backward()
        optimizer.step()
    return model(features(99)).detach()


@pytest.mark.parametrize("options", [{}, {"l21": 0.02}])
def test_a_collection_trains_as_with_sparse_embeddings(options: dict[str, float]) -> None:
    assert_trains_as_sparse_embeddings(Clicks(), fitted, lr=0.02, **options)


@pytest.mark.parametrize("weighted", [False, True])
def test_one_bag_of_all_features_gives_what_a_collection_gives(weighted: bool) -> None:
    torch.manual_seed(0)
    tables = [config("seen", "seen", "item"), config("tag", "tag")]
    model = EmbeddingBagCollection(tables=tables, is_weighted=weighted)
    fields = {"seen": 0, "item": 0, "tag": 1}
    bag = HashEmbeddingBag(4, mode="sum", features=fields, field_bits=8)
    for field, table in enumerate(("seen", "tag")):
        bag.assign((field << 56) + torch.arange(ROWS), model.embedding_bags[table].weight.detach())
    for dtype in (torch.int64, torch.int32):
        given = features(dtype=dtype, weighted=weighted)
        wanted = model(given)
        found = bag(given)
        assert wanted.keys() == list(fields)
        torch.testing.assert_close(found.flatten(1), wanted.values())
        jagged = HashEmbeddingBag(4, mode="sum")(given["item"])
        assert jagged.shape == (8, 4)
    assert bag.num_rows == 2 * ROWS


def test_new_rows_start_in_the_range_of_the_config() -> None:
    table = config("t", "f", embedding_dim=8, num_embeddings=2_000, weight_init_min=-0.3, weight_init_max=0.3)
    bag = convert(EmbeddingBagCollection(tables=[table]), rows="none", init="uniform").embedding_bags["t"]
    starts = bag.table.initial(torch.arange(10_000))
    assert float(starts.abs().max()) == pytest.approx(0.3, rel=0.02)
    assert float(starts.std()) == pytest.approx(0.3 / 3**0.5, rel=0.02)


def test_half_precision_asks_for_a_dtype() -> None:
    with pytest.raises(
        ValueError, match=r"embedding_bags\.tags: dtype must be torch\.float32 or torch\.float64 on cpu"
    ):
        convert(bags(data_type=DataType.FP16))
    model = convert(bags(data_type=DataType.FP16), dtype=torch.float32)
    assert torch.allclose(model(features())["tag"], bags(data_type=DataType.FP16)(features())["tag"], atol=1e-3)
