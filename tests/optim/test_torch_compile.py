"""A model with tables, and a step, under torch.compile: the rows are those of eager training."""

import copy
import pickle
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn import functional

from sparsegroup import (
    FieldTables,
    GroupAdagrad,
    GroupAdaHessian,
    GroupAdam,
    GroupOptimizer,
    HashEmbedding,
    HashEmbeddingBag,
    param_groups,
)

pytestmark = [
    pytest.mark.whole,
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # of Dynamo's own looking
    pytest.mark.filterwarnings("ignore:Using backward.. with create_graph=True"),
]

DIM = 4

EMBEDDINGS: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: HashEmbedding(DIM),
    "bags": lambda: HashEmbeddingBag(DIM),
    "fallback": lambda: HashEmbedding(DIM, fallback=True, field_bits=2, std=0.1),
}
L21 = {"plain": 2e-2, "bags": 2e-2, "fallback": 0.2}


@pytest.fixture(autouse=True)
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


class Clicks(nn.Module):
    """A click model whose embedding is looked up in `forward`, as everybody writes it."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = embedding
        self.head = nn.LazyLinear(1)
        self(torch.zeros(1, 3, dtype=torch.int64))

    def forward(self, keys: Tensor) -> Tensor:
        logits: Tensor = self.head(self.embedding(keys).flatten(1)).squeeze(1)
        return logits


def compiled(function: Any, **options: Any) -> Any:
    """By AOTAutograd, without the C++ compiler that not everybody has."""
    return torch.compile(function, backend="aot_eager", **options)


def batches(count: int, fields: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
    draw = torch.Generator().manual_seed(1)
    for _ in range(count):
        keys = torch.randint(0, 100, (16, 3), generator=draw)
        if fields:
            keys = keys | (torch.tensor([0, 1, 1]) << 56)
        yield keys, torch.rand(16, generator=draw).round()


def trained(model: nn.Module, forward: Callable[[Tensor], Tensor], optimizer: GroupOptimizer, **of: Any) -> nn.Module:
    for keys, labels in batches(12, **of):
        optimizer.zero_grad()
        functional.binary_cross_entropy_with_logits(forward(keys), labels).backward()
        optimizer.step()
    return model.eval()


def same(model: nn.Module, other: nn.Module) -> None:
    ours, theirs = model.state_dict(), other.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-5, atol=1e-7, msg=lambda text, n=name: f"{n}: {text}")


@pytest.mark.parametrize("kind", EMBEDDINGS)
def test_a_compiled_model_trains_the_same_rows_in_one_graph(kind: str) -> None:
    eager, model = Clicks(EMBEDDINGS[kind]()), Clicks(EMBEDDINGS[kind]())
    trained(eager, eager, GroupAdam(param_groups(eager, l21=L21[kind])))
    trained(model, compiled(model, fullgraph=True), GroupAdam(param_groups(model, l21=L21[kind])))
    same(model, eager)
    embedding = model.embedding
    assert isinstance(embedding, HashEmbedding)
    assert 0 < embedding.num_live < embedding.num_seen  # the lasso has chosen, so the comparison means something


def test_tables_of_several_widths_compile_with_breaks() -> None:
    eager = Clicks(FieldTables(DIM, {0: 4, 1: 2}))
    model = copy.deepcopy(eager)  # P is drawn
    trained(eager, eager, GroupAdagrad(param_groups(eager, lr=0.1)), fields=True)
    trained(model, compiled(model), GroupAdagrad(param_groups(model, lr=0.1)), fields=True)
    same(model, eager)


def test_evaluation_no_grad_and_copies_insert_as_they_do_without() -> None:
    table = HashEmbedding(DIM)
    forward = compiled(table, fullgraph=True)
    with torch.no_grad():
        assert not forward(torch.arange(3)).requires_grad
    for other in (copy.deepcopy(table), pickle.loads(pickle.dumps(table))):
        compiled(other, fullgraph=True)(torch.arange(5))
        assert (table.num_rows, other.num_rows) == (3, 5)
    table.eval()
    assert not forward(torch.tensor([7])).any()
    assert table.num_rows == 3
    assert torch.equal(forward(torch.arange(3)), table(torch.arange(3)))


def test_what_cannot_be_is_refused_with_what_to_use() -> None:
    with pytest.raises(Exception, match="keys must be int64 or int32"):
        compiled(HashEmbedding(DIM))(torch.zeros(3))
    model, keys = Clicks(HashEmbedding(DIM)), torch.zeros(2, 3, dtype=torch.int64)
    for strict in (True, False):
        with pytest.raises(Exception, match=r"sparsegroup\.serving\.export"):
            torch.export.export(model, (keys,), strict=strict)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of jit.trace, from torch 2.10 on
        with pytest.raises(RuntimeError, match=r"sparsegroup\.serving\.export"):
            torch.jit.trace(model, (keys,))


LAYERS = {
    "dense": lambda: nn.Embedding(100, DIM),
    "sparse": lambda: nn.Embedding(100, DIM, sparse=True),
    "table": lambda: HashEmbedding(DIM),
}


@pytest.mark.parametrize(
    ("rule", "layer", "eager_steps"),
    [
        *((GroupAdam, layer, steps) for layer, steps in zip(LAYERS, (0, 1, 0), strict=True)),
        (GroupAdaHessian, "dense", 0),  # torch has no second derivative of a sparse nn.Embedding
        (GroupAdaHessian, "table", 1),
    ],
)
def test_a_compiled_step_is_the_step(rule: type[GroupOptimizer], layer: str, eager_steps: int) -> None:
    models = []
    for compiles in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(LAYERS[layer](), nn.Flatten(), nn.Linear(3 * DIM, 1), nn.Flatten(0))
        optimizer = rule(model.parameters(), lr=0.01, l21=1e-3)
        step = compiled(optimizer.step) if compiles else optimizer.step
        for number, (keys, labels) in enumerate(batches(5)):
            optimizer.zero_grad()
            loss = functional.binary_cross_entropy_with_logits(model(keys), labels)
            loss.backward(create_graph=rule is GroupAdaHessian)
            (optimizer.step if number < eager_steps else step)()
        models.append(model)
    same(*models)


def test_a_whole_training_step_and_a_step_with_a_closure_are_compiled() -> None:
    models = []
    for compiles in (False, True):
        model = Clicks(HashEmbedding(DIM))
        optimizer = GroupAdam(param_groups(model, l21=1e-3))

        def closure(keys: Tensor, labels: Tensor, model: nn.Module = model, optimizer: Any = optimizer) -> Tensor:
            optimizer.zero_grad()
            loss = functional.binary_cross_entropy_with_logits(model(keys), labels)
            loss.backward()
            return loss

        def train(*batch: Tensor, closure: Any = closure, optimizer: Any = optimizer) -> Tensor:
            loss: Tensor = closure(*batch)
            optimizer.step()
            return loss.detach()

        run = compiled(train) if compiles else train
        step = compiled(optimizer.step) if compiles else optimizer.step
        *some, last = batches(5)
        losses = [float(run(*batch)) for batch in some]
        losses.append(float(step(lambda last=last, closure=closure: closure(*last)).detach()))
        assert losses[-1] != losses[0]
        models.append(model)
    same(*models)
