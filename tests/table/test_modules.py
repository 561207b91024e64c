"""A model with tables is converted, moved, saved and built like any model, and its tables do not change."""

import copy
import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from optimizer_cases import assert_identical
from sparsegroup import GroupAdam, HashEmbedding, HashEmbeddingBag, param_groups
from table_cases import everything


class Model(nn.Module):
    """Tables between dense layers, at two depths."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.table = HashEmbedding(4, **options)
        self.tables = nn.ModuleList([HashEmbedding(4, **options), HashEmbeddingBag(4, **options)])
        self.last = nn.Linear(4, 1)

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        vectors = self.table(keys) + self.tables[0](keys) + self.tables[1](keys.view(-1, 1))
        output: torch.Tensor = self.last(self.first(vectors))
        return output


def trained(model: nn.Module, steps: int = 2) -> GroupAdam:
    optimizer = GroupAdam(param_groups(model, l21=1e-3))
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.arange(step, 6)).sum().backward()
        optimizer.step()
    return optimizer


def tables_of(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if isinstance(module, HashEmbedding)]


CONVERSIONS: dict[str, tuple[Callable[[nn.Module], Any], Callable[[torch.Tensor], bool]]] = {
    "half": (lambda model: model.half(), lambda weight: weight.dtype == torch.float16),
    "bfloat16": (lambda model: model.bfloat16(), lambda weight: weight.dtype == torch.bfloat16),
    "to a dtype": (lambda model: model.to(torch.float64), lambda weight: weight.dtype == torch.float64),
    "to a device": (lambda model: model.to("meta"), lambda weight: weight.is_meta),
    "to_empty": (lambda model: model.to_empty(device="meta"), lambda weight: weight.is_meta),
    "share_memory": (lambda model: model.share_memory(), lambda weight: weight.is_shared()),
}


@pytest.mark.parametrize("name", CONVERSIONS)
def test_tables_stay_as_they_are_with_one_warning_and_everything_else_is_converted(name: str) -> None:
    convert, is_converted = CONVERSIONS[name]
    model = Model()
    optimizer = trained(model)
    before = [everything(table, optimizer) for table in tables_of(model)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        convert(model)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert "a HashEmbedding" in str(caught[0].message)
    assert_identical([everything(table, optimizer) for table in tables_of(model)], before)
    assert all(is_converted(layer.weight) for layer in (model.first, model.last))


def test_a_converted_model_is_saved_and_loaded_with_its_rows() -> None:
    model = Model()
    trained(model)
    with pytest.warns(RuntimeWarning, match="keeps its dtype"):
        model.half()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=False)
    assert_identical(loaded.state_dict(), model.state_dict())
    assert loaded.first.weight.dtype == torch.float16
    trained(loaded.float())
    assert tables_of(model)[0].num_rows == 6


@pytest.mark.parametrize("materialize", ["to_empty", "assign"])
def test_a_model_made_on_the_meta_device_trains_as_one_made_on_the_cpu(materialize: str) -> None:
    model = Model(fallback=True)
    with torch.device("meta"):
        other = Model(fallback=True)
    if materialize == "to_empty":
        other.to_empty(device="cpu")
        other.load_state_dict(model.state_dict())
    else:
        other.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
    for some in (model, other):
        trained(some)
    assert_identical(other.state_dict(), model.state_dict())


@pytest.mark.parametrize(
    "make", [lambda: HashEmbedding(4, device="meta"), lambda: nn.utils.skip_init(HashEmbedding, 4)]
)
def test_a_table_that_is_explicitly_on_the_meta_device_is_refused(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match="device='cpu'"):
        make()


REPARAMETRIZATIONS: dict[str, Callable[[nn.Module], object]] = {
    "pruning of elements": lambda table: prune.l1_unstructured(table, "weight", 0.5),
    "pruning of rows": lambda table: prune.ln_structured(table, "weight", 0.5, n=2, dim=0),
    "a mask": lambda table: prune.custom_from_mask(table, "weight", torch.ones(6, 4)),
    "global pruning": lambda table: prune.global_unstructured([(table, "weight")], prune.L1Unstructured, amount=0.5),
    "weight_norm": parametrizations.weight_norm,
    "spectral_norm": parametrizations.spectral_norm,
    "a parametrization": lambda table: parametrize.register_parametrization(table, "weight", nn.ReLU()),
}


@pytest.mark.parametrize("name", REPARAMETRIZATIONS)
def test_a_reparametrized_table_is_refused_and_trains_on(name: str) -> None:
    table, other = HashEmbedding(4), HashEmbedding(4)
    for some in (table, other):
        trained(some)
    with pytest.raises(NotImplementedError, match="HashEmbedding"):
        REPARAMETRIZATIONS[name](table)
    for some in (table, other):
        trained(some)
    assert_identical(table.state_dict(), other.state_dict())
    assert [*dict(table.named_parameters())] == ["weight"]
