"""To autograd, to modules, in losses, bags and the loops that people write, it is `nn.Embedding(sparse=True)`."""

import gc
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import embedding_bag

from family import FAMILY, regularizer
from optimizer_cases import ALLOW_CREATE_GRAPH, Hold, Marker, assert_identical
from over import over
from sparsegroup import GroupAdaHessian, GroupAdam, HashEmbedding, HashEmbeddingBag
from sparsegroup.bags import BagMode, pool_ragged
from table_cases import KeyedEmbedding, as_keys, everything, learn, pull, random_keys, take_step
from table_pairs import DTYPES, Pair, same

pytestmark = ALLOW_CREATE_GRAPH

DIM = 3
KEYS = as_keys([5, -1, 5, 2**62])
Module = HashEmbedding | KeyedEmbedding
Script = Callable[[Module, torch.optim.Optimizer], None]


def new_table() -> HashEmbedding:
    return HashEmbedding(DIM, std=0.5, seed=2, dtype=torch.float64)


def loss_of(module: nn.Module, keys: Tensor = KEYS, t: float = 1.0) -> Tensor:
    vectors = module(keys)
    return (torch.sin(t + torch.arange(vectors.numel()).view_as(vectors)) * vectors + vectors.square() / 3).sum()


SCRIPTS: dict[str, Script] = {}


def script(function: Script) -> Script:
    SCRIPTS[function.__name__] = function
    return function


@script
def growth_between_lookup_backward_and_another(module: Module, optimizer: torch.optim.Optimizer) -> None:
    loss = loss_of(module) + 2 * loss_of(module, as_keys([[-1, 7]]), 2.0)
    module(torch.arange(1000, 1100))  # which is part of no loss
    loss.backward()
    with torch.no_grad():
        module(torch.arange(1100, 1200))
    loss_of(module, torch.arange(900, 1150)).backward()
    optimizer.step()


@script
def a_retained_graph_with_a_step_in_between(module: Module, optimizer: torch.optim.Optimizer) -> None:
    """The last pass has the vectors that were looked up, not the present ones."""
    loss = loss_of(module)
    loss.backward(retain_graph=True)
    loss.backward(retain_graph=True)
    optimizer.step()
    take_step(optimizer, loss)


@script
def steps_without_a_gradient_two_on_one_and_gradients_set_to_zero(
    module: Module, optimizer: torch.optim.Optimizer
) -> None:
    optimizer.step()
    loss_of(module).backward()
    optimizer.step()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert not module.weight.grad._values().any()
    optimizer.step()
    loss_of(module, as_keys([7]), 2.0).backward()
    optimizer.step()
    module.zero_grad()
    assert module.weight.grad is None
    optimizer.step()
    loss_of(module, as_keys([5, 7]), 2.0).backward()
    optimizer.step()


def clipped(gradient: Tensor) -> Tensor:
    gradient = gradient.coalesce()
    gradient.values().clamp_(-0.5, 0.5)
    return gradient


@script
def gradients_of_autograd_grad_changed_by_hand(module: Module, optimizer: torch.optim.Optimizer) -> None:
    for change in (lambda g: g * 0.25, lambda g: g.mul_(0.25), Tensor.coalesce, clipped):
        optimizer.zero_grad()
        (gradient,) = torch.autograd.grad(loss_of(module), module.weight)
        assert module.weight.grad is None
        assert gradient.is_sparse
        module.weight.grad = change(gradient)
        optimizer.step()


@script
def hooks_on_weight_and_vectors(module: Module, optimizer: torch.optim.Optimizer) -> None:
    handle = module.weight.register_hook(lambda gradient: gradient * 3)
    vectors = module(KEYS)
    vectors.register_hook(lambda gradient: gradient.clamp(-0.3, 0.3))
    vectors.square().sum().backward()
    handle.remove()
    handle = module.weight.register_post_accumulate_grad_hook(lambda weight: optimizer.step())
    loss_of(module, as_keys([7]), 2.0).backward()
    handle.remove()


@script
def vectors_changed_in_place_and_detached_and_strided_gradients(
    module: Module, optimizer: torch.optim.Optimizer
) -> None:
    vectors = module(KEYS)
    vectors.mul_(2.0)
    vectors[0] = 0.0
    (vectors.square() + module(KEYS).detach() * module(KEYS)).sum().backward()
    module(KEYS).sum().backward()  # an expanded gradient
    module(KEYS).t().contiguous()[::2].sum().backward()
    module(KEYS)[1:3].square().sum().backward()
    optimizer.step()


@over("name", SCRIPTS)
def test_what_people_do_with_an_embedding(name: str) -> None:
    table = new_table()
    oracle = KeyedEmbedding(table, 1024)
    states = []
    # Sparse tensors that torch itself makes warn unless these checks are switched on or off.
    with torch.sparse.check_sparse_tensor_invariants(False):
        for module in (table, oracle):
            optimizer = GroupAdam([module.weight], lr=0.1, l1=0.01, l21=0.05)
            SCRIPTS[name](module, optimizer)
            take_step(optimizer, loss_of(module, as_keys([-1, 5, 9]), 3.0))
            states.append(optimizer.state_dict()["state"][0]["step"])
    keys = as_keys(oracle.row_of)
    torch.testing.assert_close(table.lookup(keys), oracle.lookup(keys), rtol=1e-12, atol=1e-12)
    assert states[0] == states[1]
    assert table.num_rows == len(keys)


# Losses and bags


OFFSETS = (as_keys([0, 3, 3, 7, 10, 10]), as_keys([0, 0, 0, 0, 1, 9]), as_keys([0]))


@DTYPES
@over("kind", ["sum", "mean", "weighted", "equal bags"])
def test_a_bag_is_a_pooled_sparse_embedding(kind: str, dtype: torch.dtype) -> None:
    """Empty bags at both ends and in the middle, a key twice in a bag and in two bags, growth all the time."""
    mode, member = "sum" if kind in ("sum", "weighted") else "mean", FAMILY["adam"]
    table = HashEmbeddingBag(5, std=0.05, dtype=dtype, **({} if mode == "mean" else {"mode": mode}))
    pair = Pair(table, lambda weight: member.build(weight, **regularizer(member)))
    generator = torch.Generator().manual_seed(1)
    pool, path = random_keys(60, seed=4), []
    for t in range(18):
        keys = pool[torch.randint(0, 6 + 3 * t, (10,), generator=generator)]
        keys[4] = keys[0]
        weights = [torch.randn(10, generator=generator, dtype=torch.float64).to(dtype)] * (kind == "weighted")
        offsets = as_keys([0, 5]) if kind == "equal bags" else OFFSETS[t % 3]
        g = torch.randn(len(offsets), 5, generator=generator, dtype=torch.float64).to(dtype)
        slopes = []
        for module, optimizer in pair.both:
            optimizer.zero_grad()
            own = weights[0].clone().requires_grad_() if weights else None
            if module is pair.oracle:
                module.insert(keys)
                rows = module.rows(keys)
                bags = embedding_bag(rows, module.weight, offsets, mode=mode, sparse=True, per_sample_weights=own)
            else:
                inputs = (keys.view(2, 5),) if kind == "equal bags" else (keys, offsets)
                bags = module(*inputs, per_sample_weights=own)
            (bags * g).sum().backward()
            optimizer.step()
            slopes.append(None if own is None else own.grad)
        torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-5)
        path.append(pair.vectors(pool))
    same(torch.stack(path, dim=1))
    pair.assert_same_state()


def joined(gradients: Sequence[Tensor]) -> Tensor:
    return torch.cat([(one.coalesce().values() if one.is_sparse else one).flatten() for one in gradients])


@over(("mode", "fallback", "dim"), [("sum", False, 8), ("mean", False, 3), ("mean", True, 8)])
def test_bags_are_pooled_to_the_bits_of_their_vectors_pooled_in_order(
    two_threads: None, mode: BagMode, fallback: bool, dim: int
) -> None:
    """By two threads, with new keys, prefetched ones, zero rows, and gradients of both orders."""
    options: Any = {"std": 0.5, "seed": 3, "fallback": fallback}
    bag, table = HashEmbeddingBag(dim, mode=mode, **options), HashEmbedding(dim, **options)
    generator = torch.Generator().manual_seed(1)
    for step in range(3):
        ends = torch.cat([as_keys([0]), torch.randint(0, 8, (3000,), generator=generator).cumsum(0)])
        keys = torch.randint(0, 2000 * (step + 1), (int(ends[-1]),), generator=generator)
        found = []
        for module in (bag, table):
            if step:
                module.prefetch(keys)
            pooled = bag(keys, ends[:-1]) if module is bag else pool_ragged(table(keys), ends, len(ends) - 1, mode)
            leaves = list(module.parameters())
            first = joined(torch.autograd.grad(pooled.pow(3).sum(), leaves, create_graph=True))
            found.append((pooled, first, joined(torch.autograd.grad(first.sum(), leaves))))
            module.assign(torch.arange(0, 2000 * (step + 1), 2), torch.zeros(1000 * (step + 1), dim))
            if module.fallback is not None:
                module.fallback.data.add_(1 / 3)
        (*ours, second), (*theirs, expected) = found
        assert_identical(ours, theirs)
        torch.testing.assert_close(second, expected)


# Gradients


def test_there_is_a_graph_where_there_is_one_of_an_embedding() -> None:
    """In evaluation also: `eval()` says nothing of autograd. Unknown keys have no gradient."""
    table = new_table()
    with torch.no_grad():
        assert not table(KEYS).requires_grad
    with torch.inference_mode():
        assert table(KEYS).is_inference()
    assert not table.lookup(KEYS).requires_grad
    assert not table.initial(KEYS).requires_grad
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
    products = []
    for module in (table, KeyedEmbedding(table)):
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


@over("cls", [GroupAdam, GroupAdaHessian])
def test_a_step_lets_go_of_the_graph_and_nothing_of_the_table(cls: type) -> None:
    table = new_table()
    optimizer = cls([table.weight], l21=0.1)

    def graph(table: HashEmbedding) -> weakref.ref[Marker]:
        marker = Marker()
        (Hold.apply(table(KEYS), marker) ** 3).sum().backward(create_graph=cls is GroupAdaHessian)
        return weakref.ref(marker)

    marker = graph(table)
    optimizer.step()
    optimizer.zero_grad()
    assert marker() is None, "freed immediately, not by the garbage collector"
    gone = weakref.ref(table)
    del table, optimizer
    gc.collect()
    assert gone() is None, "no registry keeps it alive"


def test_adahessian_averages_the_hessian_over_a_row_as_of_an_embedding() -> None:
    table = new_table()
    oracle = KeyedEmbedding(table)
    for module in (table, oracle):
        optimizer = GroupAdaHessian([module.weight], spatial_average_block_size=(1, -1, 1, 1))
        for t in range(3):
            learn(module, optimizer, pull(KEYS + t, DIM))
    keys = as_keys(oracle.row_of)
    torch.testing.assert_close(table.lookup(keys), oracle.lookup(keys), rtol=1e-12, atol=1e-12)


# The weight


def test_the_weight_is_the_only_parameter_and_as_large_as_the_table() -> None:
    table = new_table()
    weight = table.weight
    assert list(dict(table.named_parameters())) == ["weight"]
    assert isinstance(weight, nn.Parameter)
    assert (weight.requires_grad, weight.is_leaf) == (True, True)
    for count in (3, 70):
        table(torch.arange(count))
        assert weight.shape == (count, DIM)
        assert weight.numel() == count * DIM
    assert (weight.dtype, weight.device) == (torch.float64, torch.device("cpu"))
    optimizer = GroupAdam([weight], l21=1e6)
    learn(table, optimizer, pull(torch.arange(500), DIM))
    optimizer.zero_grad()
    table.shrink()
    table.load_state_dict(table.state_dict())
    assert table.weight is weight, "optimizers know it by identity"
    assert weight.shape == (0, DIM)


USES: dict[str, Callable[[HashEmbedding], object]] = {
    "product": lambda table: table.weight * 2,
    "indexing": lambda table: table.weight[0],
    "in place": lambda table: table.weight.data.zero_(),
    "penalty": lambda table: (table.weight**2).sum().backward(),
    "torch's init": lambda table: nn.init.zeros_(table.weight),
    "SparseAdam": lambda table: take_step(torch.optim.SparseAdam([table.weight]), loss_of(table)),
    "Adagrad": lambda table: take_step(torch.optim.Adagrad([table.weight]), loss_of(table)),
}


@over("use", USES)
def test_arithmetic_on_the_weight_and_optimizers_of_torch_say_why_not(use: str) -> None:
    table = new_table()
    optimizer = GroupAdam([table.weight])
    learn(table, optimizer, pull(KEYS, DIM))
    before = everything(table, optimizer)
    refused = pytest.raises((TypeError, RuntimeError, NotImplementedError), match="HashEmbedding")
    with torch.sparse.check_sparse_tensor_invariants(False), refused:
        USES[use](table)
    assert_identical(everything(table, optimizer), before)
