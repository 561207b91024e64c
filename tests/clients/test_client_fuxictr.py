"""FuxiCTR: its models compute and train the same with tables, shared and padded embeddings included."""

from typing import Any

import pytest
import torch
from torch import nn

from client_cases import assert_trains_as_sparse_embeddings
from sparsegroup import HashEmbedding, TableEmbedding, convert, to_embeddings

pytest.importorskip("fuxictr")

from fuxictr.features import FeatureMap
from model_zoo.LongCTR.DCNv2 import DCNv2

pytestmark = pytest.mark.filterwarnings("ignore")

VALUES, LENGTH = 30, 3


def dcn(embedding_regularizer: Any = None, values: int = VALUES, **options: Any) -> nn.Module:
    """A user, an item with those clicked before, which are padded, and a seller whose embedding is the user's."""
    torch.manual_seed(0)
    feature_map = FeatureMap("clicks", data_dir="")
    feature_map.features["user"] = {"source": "user", "type": "categorical", "vocab_size": values}
    feature_map.features["seller"] = {**feature_map.features["user"], "share_embedding": "user"}
    feature_map.features["item"] = {"source": "item", "type": "categorical", "vocab_size": values, "padding_idx": 0}
    feature_map.labels, feature_map.default_emb_dim = ["click"], 4
    settings = {"optimizer": "adam", "loss": "binary_crossentropy", "metrics": ["AUC"], "verbose": 0, "model_root": ""}
    units = {"embedding_dim": 4, "parallel_dnn_hidden_units": [8]}
    return DCNv2(feature_map, embedding_regularizer=embedding_regularizer, **units, **settings, **options)


def clicks(seed: int, rows: int = 16) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    user, seller = torch.randint(0, VALUES, (2, rows), generator=draw)
    items = torch.randint(0, VALUES, (rows, LENGTH + 1), generator=draw)
    items[:, 0] = 0
    features = {"user": user, "seller": seller, "click": user % 2 == 0}
    return features, {"item": items.flatten()}, items[:, :-1] > 0


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 15) -> torch.Tensor:
    for step in range(steps):
        optimizer.zero_grad()
        model.compute_loss(model(clicks(step)), model.get_labels(clicks(step))).backward()
        optimizer.step()
    return predicted(model)


def predicted(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model.eval()(clicks(99))["y_pred"]


def test_it_gives_what_it_gave_with_shared_embeddings_in_one_table() -> None:
    model = dcn()
    wanted = predicted(model)
    convert(model)
    layers = model.embedding_layer.embedding_layer.embedding_layers
    assert layers["seller"] is layers["user"]
    assert sum(isinstance(module, HashEmbedding) for module in model.modules()) == 2
    assert torch.equal(predicted(model), wanted)
    model.reset_parameters()  # of the network: it knows nothing of tables
    assert isinstance(layers["item"], TableEmbedding)
    items = to_embeddings(model).embedding_layer.embedding_layer.embedding_layers["item"]
    assert not items.weight[0].any()


@pytest.mark.parametrize("options", [{}, {"l21": 0.1}])
def test_it_trains_as_with_sparse_embeddings(options: dict[str, float]) -> None:
    assert_trains_as_sparse_embeddings(dcn(net_regularizer=1e-4), trained, **options)


def test_new_rows_start_by_its_initializer_and_its_regularizer_of_embeddings_is_refused() -> None:
    model = convert(dcn(values=5_000), rows="none")
    table = model.embedding_layer.embedding_layer.embedding_layers["item"].table
    assert table.num_rows == 0
    assert table.table.config.std == pytest.approx(1e-4, rel=0.03)
    with pytest.raises(ValueError, match=r"embedding_regularizer='l2\(1e-5\)' .*embedding_regularizer=None"):
        convert(dcn("l2(1e-5)"))
