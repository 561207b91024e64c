"""DeepCTR-Torch: its models compute and train the same with tables, by their own `compile` and `fit`."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from client_cases import assert_trains_as_sparse_embeddings
from sparsegroup import GroupAdam, HashEmbedding, TableEmbedding, convert, param_groups, to_embeddings

pytest.importorskip("deepctr_torch")

from deepctr_torch import models
from deepctr_torch.inputs import DenseFeat, SparseFeat, VarLenSparseFeat

pytestmark = pytest.mark.filterwarnings("ignore")

VALUES = 40
FIELDS = ("user", "item", "shop")
ALONE = ("PNN", "AutoInt")
"""Models whose constructor has no `l2_reg_linear`."""


def columns(varlen: bool = False) -> list[Any]:
    found = [SparseFeat(field, VALUES, embedding_dim=4) for field in FIELDS] + [DenseFeat("price")]
    if varlen:
        before = SparseFeat("before", VALUES, embedding_dim=4, embedding_name="item")
        found.append(VarLenSparseFeat(before, maxlen=3, combiner="mean"))
    return found


def clicks(rows: int = 200) -> tuple[dict[str, np.ndarray], np.ndarray]:
    draw = np.random.default_rng(0)
    x = {field: draw.integers(0, VALUES, rows) for field in FIELDS}
    x |= {"price": draw.normal(size=rows), "before": draw.integers(0, VALUES, (rows, 3))}
    return x, (x["item"] % 2 == 0).astype(np.float32)


def deepfm(**options: Any) -> nn.Module:
    feats = columns(varlen=True)
    return models.DeepFM(feats, feats, dnn_hidden_units=(16,), **{"l2_reg_embedding": 0, "l2_reg_linear": 0, **options})


def fitted(model: nn.Module, optimizer: torch.optim.Optimizer, epochs: int = 3) -> np.ndarray:
    model.compile(optimizer, "binary_crossentropy", metrics=["auc"])
    x, y = clicks()
    model.fit(x, y, batch_size=32, epochs=epochs, shuffle=False, verbose=0)
    return model.predict(x)


@pytest.mark.parametrize("name", ["WDL", "DeepFM", "DCN", "NFM", "AFM", "FiBiNET", "AutoInt", "IFM", "PNN", "ONN"])
def test_each_model_gives_what_it_gave_and_trains(name: str) -> None:
    deep = columns()[: len(FIELDS)] if name == "AFM" else columns()
    parts = (deep,) if name == "PNN" else (columns(), deep)
    model = getattr(models, name)(*parts, l2_reg_embedding=0, **({"l2_reg_linear": 0} if name not in ALONE else {}))
    x, y = clicks()
    x.pop("before")
    wanted = model.predict(x)
    if name == "DCN":  # it does not hand l2_reg_linear on
        model.regularization_weight.clear()
    convert(model)
    assert not [module for module in model.modules() if type(module) is nn.Embedding]
    np.testing.assert_allclose(model.predict(x), wanted, rtol=1e-6)
    model.compile(GroupAdam(param_groups(model, l21=1e-3), lr=1e-2), "binary_crossentropy", metrics=["auc"])
    model.fit(x, y, batch_size=32, epochs=2, verbose=0)
    trained = model.predict(x)
    assert not np.allclose(trained, wanted)
    np.testing.assert_array_equal(to_embeddings(model).predict(x), trained)


@pytest.mark.parametrize("options", [{}, {"l21": 0.5}])
def test_deepfm_trains_as_with_sparse_embeddings(options: dict[str, float]) -> None:
    assert_trains_as_sparse_embeddings(deepfm(), fitted, **options)


def test_new_rows_start_with_its_init_std_and_only_what_comes_counts() -> None:
    feats = [SparseFeat("user", 10_000, embedding_dim=8)]
    model = convert(models.DeepFM(feats, feats, init_std=0.01, l2_reg_embedding=0, l2_reg_linear=0), rows="none")
    tables = {name: module for name, module in model.named_modules() if isinstance(module, HashEmbedding)}
    assert list(tables) == ["embedding_dict.user.table", "linear_model.embedding_dict.user.table"]
    for table, std in zip(tables.values(), (0.01, 0.0001), strict=True):
        assert table.num_seen == 0
        assert table.table.config.std == pytest.approx(std, rel=0.03)
    model.compile(GroupAdam(param_groups(model)), "binary_crossentropy")
    model.fit({"user": np.arange(100)}, np.ones(100, np.float32), verbose=0)
    assert [table.num_seen for table in tables.values()] == [100, 100]


def test_its_l2_on_embeddings_is_refused() -> None:
    with pytest.raises(ValueError, match="Models of DeepCTR-Torch need l2_reg_embedding=0 and l2_reg_linear=0"):
        convert(deepfm(l2_reg_embedding=1e-5))


def test_a_shared_embedding_is_one_table_and_its_state_is_saved(tmp_path) -> None:
    model = convert(deepfm())
    assert sum(isinstance(module, HashEmbedding) for module in model.modules()) == 2 * len(FIELDS)
    wanted = fitted(model, GroupAdam(param_groups(model, l21=0.5), lr=1e-2))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other = convert(deepfm(seed=1))
    other.load_state_dict(torch.load(tmp_path / "model.pt"))
    np.testing.assert_array_equal(other.predict(clicks()[0]), wanted)
    assert isinstance(other.embedding_dict["item"], TableEmbedding)
