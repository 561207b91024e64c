"""Gradients of a table: of several lookups, changed or copied by the user, of other row numbers, stepped in a hook."""

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from optimizer_cases import assert_identical
from over import over
from sparsegroup import GroupAdam, HashEmbedding, HashEmbeddingBag
from table_cases import KeyedEmbedding, as_keys, everything

DIM = 3
KEYS = as_keys([5, -1, 5, 2**62, 7])
Change = Callable[[Tensor], Tensor]


def new_table(**options: object) -> HashEmbedding:
    return HashEmbedding(DIM, std=0.5, seed=2, dtype=torch.float64, **options)


def adam(weight: nn.Parameter) -> GroupAdam:
    return GroupAdam([weight], lr=0.1, l1=0.01, l21=0.05)


def loss_of(module: nn.Module, keys: Tensor, t: float = 1.0) -> Tensor:
    vectors = module(keys)
    return (torch.sin(t + torch.arange(vectors.numel()).view_as(vectors)) * vectors + vectors.square() / 3).sum()


def saved(gradient: Tensor) -> Tensor:
    file = io.BytesIO()
    torch.save(gradient, file)
    file.seek(0)
    return torch.load(file)


def of_lines(gradient: Tensor, places: Tensor, factor: float = 1.0) -> Tensor:
    """Return the lines of a gradient at `places`."""
    return torch.sparse_coo_tensor(
        gradient._indices()[:, places], gradient._values()[places] * factor, gradient.shape, check_invariants=False
    )


def in_place(gradient: Tensor) -> Tensor:
    gradient._values().mul_(0.25)
    return gradient


CHANGES: dict[str, Change] = {
    "unchanged": lambda g: g,
    "scaled": lambda g: g * 0.25,
    "scaled in place": lambda g: g.mul_(0.25),
    "values scaled in place": in_place,
    "divided": lambda g: g / 3,
    "negated": lambda g: -g,
    "cloned": lambda g: g.clone(),
    "detached": lambda g: g.detach(),
    "copied": copy.deepcopy,
    "pickled": lambda g: pickle.loads(pickle.dumps(g)),
    "saved": saved,
    "moved": lambda g: g.to("cpu", copy=True),
    "coalesced": lambda g: g.coalesce(),
    "summed": lambda g: g + g.clone(),
    "copied into another": lambda g: torch.zeros_like(g).copy_(g),
    "reversed": lambda g: of_lines(g, torch.arange(g._nnz()).flip(0)),
    "repeated": lambda g: of_lines(g, torch.arange(g._nnz()).repeat(2), 0.5),
    "other values": lambda g: torch.sparse_coo_tensor(g._indices(), 3 * g._values(), g.shape, check_invariants=False),
}


@over("lookups", [1, 2])
@over("name", CHANGES)
def test_a_changed_gradient_is_stepped_as_that_of_an_embedding(name: str, lookups: int) -> None:
    table = new_table()
    oracle = KeyedEmbedding(table)
    with torch.sparse.check_sparse_tensor_invariants(False):
        for module in (table, oracle):
            optimizer = adam(module.weight)
            for t in range(3):
                optimizer.zero_grad()
                sum(loss_of(module, KEYS + number * t, t + 1.0) for number in range(lookups)).backward()
                changed = CHANGES[name](module.weight.grad)
                if changed is not module.weight.grad:
                    module.weight.grad = changed
                optimizer.step()
    keys = as_keys(oracle.row_of)
    torch.testing.assert_close(table.lookup(keys), oracle.lookup(keys), rtol=1e-12, atol=1e-12)


MOVES: dict[str, Callable[[HashEmbedding], object]] = {
    "shrunk": lambda table: table.shrink(),
    "loaded": lambda table: table.load_state_dict(new_table().state_dict() | table.state_dict()),
    "copied": lambda table: table.weight.data.copy_(table.weight.data.clone()),
}


@over("name", ["unchanged", "cloned", "saved", "summed", "coalesced", "scaled"])
@over("move", [*MOVES, "another table"])
def test_a_gradient_of_other_row_numbers_is_refused_and_nothing_changes(name: str, move: str) -> None:
    """Also its copies, in which PyTorch keeps nothing but the numbers."""
    table = new_table()
    optimizer = adam(table.weight)
    loss_of(table, KEYS).backward()
    optimizer.step()
    optimizer.zero_grad()
    table.assign(KEYS[:1], torch.zeros(1, DIM, dtype=torch.float64))
    loss_of(table, KEYS).backward()
    gradient, table.weight.grad = CHANGES[name](table.weight.grad), None
    if move == "another table":
        table = new_table()
        table(KEYS)
        optimizer = adam(table.weight)
    else:
        MOVES[move](table)
    before = everything(table, optimizer)
    table.weight.grad = gradient
    with pytest.raises(RuntimeError, match="another table, or of this table before it was shrunk or loaded"):
        optimizer.step()
    assert_identical(everything(table, optimizer), before)
    optimizer.zero_grad()
    loss_of(table, KEYS).backward()
    optimizer.step()


def test_rows_that_are_not_there_are_refused() -> None:
    table = new_table()
    optimizer = adam(table.weight)
    loss_of(table, KEYS).backward()
    gradient = table.weight.grad
    table.weight.grad = torch.sparse_coo_tensor(gradient._indices() + 3, gradient._values(), gradient.shape)
    with pytest.raises(IndexError, match=r"has row 6, the table has 4 rows \(param group 0"):
        optimizer.step()


# Several lookups in a step


def lookups(module: nn.Module, keys: Tensor, gradients: Tensor) -> None:
    """Look up each column, and run one backward pass."""
    torch.autograd.backward([module(column) for column in keys.unbind(1)], list(gradients.unbind(1)))


def micro_batches(module: nn.Module, keys: Tensor, gradients: Tensor) -> None:
    for some, slopes in zip(keys.chunk(3), gradients.chunk(3), strict=True):
        module(some).backward(slopes)


def micro_batches_of_lookups(module: nn.Module, keys: Tensor, gradients: Tensor) -> None:
    for some, slopes in zip(keys.chunk(3), gradients.chunk(3), strict=True):
        lookups(module, some, slopes)


def graphs_that_are_kept(module: nn.Module, keys: Tensor, gradients: Tensor) -> None:
    """Backward passes after all lookups, one of them twice; a lookup without a loss; a pass that fails between them."""
    found = [module(column) for column in keys.unbind(1)]
    unused = module(keys[:, 0])
    for vectors, slopes in zip(found, gradients.unbind(1), strict=True):
        vectors.backward(slopes / 2, retain_graph=True)
        with pytest.raises(ValueError, match="fails"):
            torch.autograd.backward([vectors, Fails.apply(unused)], [slopes, slopes])
        vectors.backward(slopes / 2)


class Fails(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        raise ValueError("it fails")


def as_autograd_returns_them(module: nn.Module, keys: Tensor, gradients: Tensor) -> None:
    found = [module(column) for column in keys.unbind(1)]
    for _ in range(2):
        (gradient,) = torch.autograd.grad(found, module.weight, list(gradients.unbind(1)), retain_graph=True)
    module.weight.grad = gradient


WAYS = (lookups, micro_batches, micro_batches_of_lookups, graphs_that_are_kept, as_autograd_returns_them)


@over(("way", "cls", "dim"), [*((way, HashEmbedding, 3) for way in WAYS), (micro_batches, HashEmbeddingBag, 8)])
def test_lookups_and_micro_batches_train_as_one_lookup(way: Callable[..., None], cls: type, dim: int) -> None:
    ends = []
    for each in (lambda module, keys, gradients: module(keys).backward(gradients), way):
        draw = torch.Generator().manual_seed(3)
        module = cls(dim, std=0.5, dtype=torch.float64)
        optimizer = GroupAdam(module.parameters(), lr=0.1, l21=0.02)
        for step in range(4):
            optimizer.zero_grad()
            keys = torch.randint(20 + 10 * step, (30, 4), generator=draw)
            shape = (30, dim) if cls is HashEmbeddingBag else (30, 4, dim)
            each(module, keys, torch.randn(shape, generator=draw, dtype=torch.float64))
            if step % 2:
                nn.utils.clip_grad_norm_(module.parameters(), 0.5)
            optimizer.step()
        ends.append(module.lookup(torch.arange(60)))
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-12)


def test_the_gradient_of_lookups_in_one_pass_has_one_line_for_each_row() -> None:
    table = new_table()
    seen: list[int] = []
    table.weight.register_hook(lambda gradient: seen.append(gradient._nnz()))
    torch.stack([table(KEYS), table(KEYS + 1), table(KEYS)]).sum().backward()
    assert seen == [8]
    assert table.weight.grad._nnz() == 8


def test_model_and_optimizer_are_freed_with_the_last_reference() -> None:
    gc.collect()
    gc.disable()
    try:
        table = HashEmbedding(DIM)
        optimizer = adam(table.weight)
        for _ in range(2):
            optimizer.zero_grad()
            loss = sum(table(KEYS + number).square().sum() for number in range(3))
            loss.backward()
            optimizer.step()
        unused = table(KEYS)  # a graph without a backward pass
        gone = [weakref.ref(one) for one in (table, table.table, table.weight, optimizer)]
        del table, optimizer, loss, unused
        assert [one() for one in gone] == [None] * 4
    finally:
        gc.enable()


# Steps in backward, and scaled gradients


def test_an_optimizer_that_steps_in_backward_trains_the_same_rows() -> None:
    """One optimizer for each parameter, which steps and drops the gradient when the gradient is complete."""
    ends = []
    for in_backward in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(new_table(), nn.Linear(DIM, 1, dtype=torch.float64))
        optimizers = {parameter: adam(parameter) for parameter in model.parameters()}

        def step(parameter: Tensor, optimizers: dict[Tensor, GroupAdam] = optimizers) -> None:
            optimizers[parameter].step()
            optimizers[parameter].zero_grad()
            assert parameter.grad is None

        if in_backward:
            for parameter in optimizers:
                parameter.register_post_accumulate_grad_hook(step)
        for t in range(4):
            (model(KEYS + t).square().sum() + model(KEYS).sum()).backward()
            if not in_backward:
                for parameter in optimizers:
                    step(parameter)
        ends.append([model[0].lookup(torch.arange(-5, 20)), model[1].weight.detach()])
    assert_identical(*ends)


@over("lookups", [1, 2])
def test_a_grad_scaler_trains_the_same_rows_and_skips_a_step_with_an_infinite_gradient(lookups: int) -> None:
    ends = []
    for scaler in (None, torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=2)):
        torch.manual_seed(0)
        model = nn.Sequential(new_table(), nn.Linear(DIM, 1, dtype=torch.float64))
        optimizer = GroupAdam(model.parameters(), lr=0.1, l21=0.05)
        for t in range(6):
            optimizer.zero_grad()
            loss = sum(model(KEYS + number * t).square().sum() for number in range(lookups))
            if scaler is None:
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                continue
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
        ends.append([model[0].lookup(torch.arange(-5, 20)), model[1].weight.detach()])
        if scaler is not None:
            before, scale = everything(model[0], optimizer), scaler.get_scale()
            optimizer.zero_grad()
            scaler.scale(model[0](KEYS)[0].sum() * torch.inf).backward()
            scaler.step(optimizer)
            scaler.update()
            assert scaler.get_scale() == scale / 2
            assert_identical(everything(model[0], optimizer), before)
    assert_identical(*ends)
