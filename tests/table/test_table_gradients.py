"""The table's gradients: their shape, second derivatives, and what they leave behind."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from optimizer_cases import ALLOW_CREATE_GRAPH, Hold, Marker, assert_identical
from over import over
from sparsegroup import GroupAdaHessian, GroupAdam, HashEmbedding, HashEmbeddingBag
from table_cases import KeyedEmbedding, as_keys, everything, learn, pull

pytestmark = ALLOW_CREATE_GRAPH

DIM = 3
KEYS = as_keys([5, -1, 5, 2**62])


def new_table() -> HashEmbedding:
    return HashEmbedding(DIM, std=0.5, seed=2, dtype=torch.float64)


def loss_of(module: nn.Module, keys: Tensor = KEYS, t: float = 1.0) -> Tensor:
    vectors = module(keys)
    return (torch.sin(t + torch.arange(vectors.numel()).view_as(vectors)) * vectors + vectors.square() / 3).sum()


def test_the_gradient_is_sparse_with_a_row_for_each_lookup() -> None:
    table = new_table()
    g = torch.arange(12, dtype=torch.float64).view(4, DIM)
    (table(KEYS) * g).sum().backward()
    gradient = table.weight.grad
    assert (gradient.layout, gradient.sparse_dim(), gradient.dense_dim()) == (torch.sparse_coo, 1, 1)
    assert gradient.shape[1] == DIM
    expected = {tuple((g[0] + g[2]).tolist()), tuple(g[1].tolist()), tuple(g[3].tolist())}
    assert {tuple(row.tolist()) for row in gradient.coalesce().values()} == expected


def test_without_grad_there_is_no_graph() -> None:
    table = new_table()
    with torch.no_grad():
        assert not table(KEYS).requires_grad
    with torch.inference_mode():
        assert table(KEYS).is_inference()
    assert not table.lookup(KEYS).requires_grad
    assert not table.initial(KEYS).requires_grad
    assert table(KEYS).requires_grad


def test_in_evaluation_known_keys_still_have_a_gradient() -> None:
    """As nn.Embedding: `eval()` says nothing of autograd. Unknown keys have none to give."""
    table = new_table()
    table(as_keys([5]))
    optimizer = GroupAdam([table.weight], lr=0.1)
    table.eval()
    table(as_keys([5, 6])).sum().backward()
    before = table.lookup(as_keys([5]))
    optimizer.step()
    assert (table.lookup(as_keys([5])) != before).all()
    assert 6 not in table


def test_second_derivatives_are_the_embeddings() -> None:
    """Of a loss whose Hessian mixes rows: H v, and its gradient, by `autograd.grad` through the gradient."""
    table = new_table()
    oracle = KeyedEmbedding(table)
    products = []
    for module in (table, oracle):
        vectors = module(KEYS)
        loss = (vectors @ vectors.t()).square().sum() / 8
        (gradient,) = torch.autograd.grad(loss, module.weight, create_graph=True)
        along = torch.autograd.grad((gradient.coalesce().values() ** 2).sum(), module.weight)[0].coalesce()
        loss = (module(KEYS) ** 4).sum()
        loss.backward(create_graph=True)
        assert module.weight.grad.requires_grad
        (second,) = torch.autograd.grad(module.weight.grad.coalesce().values().sum(), module.weight)
        products.append([sorted(rows.coalesce().values().sum(1).tolist()) for rows in (along, second)])
        module.weight.grad = None
    torch.testing.assert_close(torch.tensor(products[0]), torch.tensor(products[1]), rtol=1e-10, atol=1e-10)


def test_the_vectors_are_twice_differentiable_in_what_surrounds_them() -> None:
    """A gradient penalty on the input of a network behind the table."""
    table = new_table()
    oracle = KeyedEmbedding(table)
    for module in (table, oracle):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Linear(DIM, 4), nn.Tanh(), nn.Linear(4, 1)).double()
        optimizer = GroupAdam([{"params": [module.weight], "l21": 0.01}, {"params": network.parameters()}], lr=0.05)
        for _ in range(3):
            optimizer.zero_grad()
            vectors = module(KEYS)
            (slope,) = torch.autograd.grad(network(vectors).sum(), vectors, create_graph=True)
            (network(vectors).sum() + slope.square().sum()).backward()
            optimizer.step()
    torch.testing.assert_close(table.lookup(KEYS), oracle.lookup(KEYS), rtol=1e-12, atol=1e-12)


@over("cls", [GroupAdam, GroupAdaHessian])
def test_a_step_lets_go_of_the_graph(cls: type) -> None:
    table = new_table()
    optimizer = cls([table.weight])

    def graph() -> weakref.ref[Marker]:
        marker = Marker()
        (Hold.apply(table(KEYS), marker) ** 3).sum().backward(create_graph=cls is GroupAdaHessian)
        return weakref.ref(marker)

    marker = graph()
    optimizer.step()
    optimizer.zero_grad()
    assert marker() is None, "freed at once, not by the garbage collector"


@over("size", [-1, 1, DIM])
def test_adahessian_averages_the_hessian_over_a_row_as_of_an_embedding(size: int) -> None:
    table = new_table()
    oracle = KeyedEmbedding(table)
    for module in (table, oracle):
        optimizer = GroupAdaHessian([module.weight], spatial_average_block_size=(1, size, 1, 1))
        for t in range(3):
            learn(module, optimizer, pull(KEYS + t, DIM))
    keys = as_keys(oracle.row_of)
    torch.testing.assert_close(table.lookup(keys), oracle.lookup(keys), rtol=1e-12, atol=1e-12)


def test_a_table_and_its_optimizer_leave_nothing_behind() -> None:
    """No registry keeps a table alive that nobody else holds."""
    table = new_table()
    optimizer = GroupAdam([table.weight], l21=0.1)
    learn(table, optimizer, pull(KEYS, DIM))
    gone = weakref.ref(table)
    del table, optimizer
    gc.collect()
    assert gone() is None


USES: dict[str, Callable[[Tensor], object]] = {
    "product": lambda weight: weight * 2,
    "sum": lambda weight: weight.sum(),
    "indexing": lambda weight: weight[0],
    "norm": lambda weight: weight.norm(),
    "in place": lambda weight: weight.data.zero_(),
    "penalty": lambda weight: (weight**2).sum().backward(),
    "linear": lambda weight: nn.functional.linear(torch.ones(2, DIM, dtype=torch.float64), weight),
    "torch's init": lambda weight: nn.init.zeros_(weight),
}


class TestWeight:
    def test_it_is_the_only_parameter_and_as_large_as_the_table(self) -> None:
        table = new_table()
        assert list(dict(table.named_parameters())) == ["weight"]
        assert isinstance(table.weight, nn.Parameter)
        assert table.weight.requires_grad
        for count in (3, 70):
            table(torch.arange(count))
            assert table.weight.shape == (count, DIM)
            assert table.weight.numel() == count * DIM
            assert sum(parameter.numel() for parameter in table.parameters()) == count * DIM
        assert table.weight.is_leaf
        assert (table.weight.dtype, table.weight.device) == (torch.float64, torch.device("cpu"))
        assert table.weight is table.weight, "optimizers know it by identity"

    def test_it_stays_the_same_object_through_growth_steps_and_shrinking(self) -> None:
        table = new_table()
        weight = table.weight
        optimizer = GroupAdam([weight], l21=1e6)
        learn(table, optimizer, pull(torch.arange(500), DIM))
        optimizer.zero_grad()
        table.shrink()
        table.load_state_dict(table.state_dict())
        assert table.weight is weight
        assert weight.shape == (0, DIM)

    @over("use", USES)
    def test_arithmetic_on_it_says_why_not(self, use: str) -> None:
        table = new_table()
        optimizer = GroupAdam([table.weight])
        learn(table, optimizer, pull(KEYS, DIM))
        before = everything(table, optimizer)
        with pytest.raises((TypeError, RuntimeError, NotImplementedError), match="HashEmbedding"):
            USES[use](table.weight)
        assert_identical(everything(table, optimizer), before)

    @over("cls", [torch.optim.SparseAdam, torch.optim.SGD, torch.optim.Adagrad])
    def test_an_optimizer_of_torch_says_why_not(self, cls: type[torch.optim.Optimizer]) -> None:
        table = new_table()
        before = table(KEYS).detach()

        def train() -> None:
            optimizer = cls([table.weight], lr=0.1)
            loss_of(table).backward()
            optimizer.step()

        with (
            torch.sparse.check_sparse_tensor_invariants(False),
            pytest.raises((TypeError, RuntimeError, NotImplementedError), match="HashEmbedding"),
        ):
            train()
        assert_identical(table.lookup(KEYS), before)

    def test_a_module_with_a_table_takes_the_usual_calls(self) -> None:
        model = nn.ModuleDict({"table": new_table(), "bag": HashEmbeddingBag(2), "head": nn.Linear(3, 1)})
        assert [name for name, _ in model.named_parameters()] == [
            "table.weight",
            "bag.weight",
            "head.weight",
            "head.bias",
        ]
        assert not model.eval()["table"].training
        assert model.train()["table"].training
        assert model.cpu() is model
        assert model.to("cpu") is model
        model.requires_grad_(False).requires_grad_(True)
        model.zero_grad()
        assert "HashEmbedding(" in repr(model)
        assert "HashEmbeddingBag(" in repr(model)
        model.apply(lambda module: None)
