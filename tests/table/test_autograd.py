"""To autograd, to modules and to the loops that people write, a table is an `nn.Embedding(sparse=True)`."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from optimizer_cases import ALLOW_CREATE_GRAPH
from over import over
from sparsegroup import GroupAdam, GroupSGD, HashEmbedding
from table_cases import KeyedEmbedding, as_keys

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
    SCRIPTS[function.__name__.replace("_", " ")] = function
    return function


@script
def two_lookups_in_one_loss(module: Module, optimizer: torch.optim.Optimizer) -> None:
    (loss_of(module) + 2 * loss_of(module, as_keys([[-1, 7]]), 2.0)).backward()
    optimizer.step()


@script
def two_backward_calls_add_up(module: Module, optimizer: torch.optim.Optimizer) -> None:
    loss_of(module).backward()
    loss_of(module, as_keys([-1, 7]), 2.0).backward()
    optimizer.step()


@script
def growth_between_two_backward_calls(module: Module, optimizer: torch.optim.Optimizer) -> None:
    loss_of(module).backward()
    with torch.no_grad():
        module(torch.arange(1000, 1100))
    loss_of(module, torch.arange(900, 1050)).backward()
    optimizer.step()


@script
def growth_between_lookup_and_backward(module: Module, optimizer: torch.optim.Optimizer) -> None:
    loss = loss_of(module)
    module(torch.arange(1000, 1100))
    loss.backward()
    optimizer.step()


@script
def a_lookup_that_is_part_of_no_loss(module: Module, optimizer: torch.optim.Optimizer) -> None:
    module(as_keys([77, 5]))
    loss_of(module).backward()
    optimizer.step()


@script
def a_retained_graph(module: Module, optimizer: torch.optim.Optimizer) -> None:
    loss = loss_of(module)
    loss.backward(retain_graph=True)
    loss.backward()
    optimizer.step()


@script
def a_step_between_two_passes_over_a_graph(module: Module, optimizer: torch.optim.Optimizer) -> None:
    """The second pass has the vectors that were looked up, not those of now."""
    loss = loss_of(module)
    loss.backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


@script
def two_steps_on_one_gradient(module: Module, optimizer: torch.optim.Optimizer) -> None:
    loss_of(module).backward()
    optimizer.step()
    optimizer.step()


@script
def a_step_without_gradient(module: Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    loss_of(module).backward()
    optimizer.zero_grad()
    optimizer.step()


@script
def gradients_set_to_zero(module: Module, optimizer: torch.optim.Optimizer) -> None:
    loss_of(module).backward()
    optimizer.zero_grad(set_to_none=False)
    assert not module.weight.grad._values().any()
    optimizer.step()
    loss_of(module, as_keys([7]), 2.0).backward()
    optimizer.step()


@script
def the_module_zeroes_its_gradient(module: Module, optimizer: torch.optim.Optimizer) -> None:
    loss_of(module).backward()
    module.zero_grad()
    assert module.weight.grad is None
    loss_of(module, as_keys([5, 7]), 2.0).backward()
    optimizer.step()


@script
def autograd_grad(module: Module, optimizer: torch.optim.Optimizer) -> None:
    (gradient,) = torch.autograd.grad(loss_of(module), module.weight)
    assert module.weight.grad is None
    assert gradient.is_sparse
    module.weight.grad = gradient
    optimizer.step()


@script
def a_gradient_scaled_by_hand(module: Module, optimizer: torch.optim.Optimizer) -> None:
    loss_of(module).backward()
    module.weight.grad = module.weight.grad * 0.25
    optimizer.step()


@script
def a_gradient_scaled_in_place(module: Module, optimizer: torch.optim.Optimizer) -> None:
    loss_of(module).backward()
    module.weight.grad.mul_(0.25)
    optimizer.step()


@script
def a_gradient_that_is_clipped(module: Module, optimizer: torch.optim.Optimizer) -> None:
    loss_of(module).backward()
    gradient = module.weight.grad.coalesce()
    gradient.values().clamp_(-0.5, 0.5)
    module.weight.grad = gradient
    optimizer.step()


@script
def a_coalesced_gradient(module: Module, optimizer: torch.optim.Optimizer) -> None:
    loss_of(module).backward()
    module.weight.grad = module.weight.grad.coalesce()
    optimizer.step()


@script
def a_hook_on_the_weight(module: Module, optimizer: torch.optim.Optimizer) -> None:
    handle = module.weight.register_hook(lambda gradient: gradient * 3)
    loss_of(module).backward()
    handle.remove()
    loss_of(module, as_keys([7]), 2.0).backward()
    optimizer.step()


@script
def a_step_in_a_hook_after_accumulation(module: Module, optimizer: torch.optim.Optimizer) -> None:
    handle = module.weight.register_post_accumulate_grad_hook(lambda weight: optimizer.step())
    loss_of(module).backward()
    handle.remove()


@script
def a_hook_on_the_vectors(module: Module, optimizer: torch.optim.Optimizer) -> None:
    vectors = module(KEYS)
    vectors.register_hook(lambda gradient: gradient.clamp(-0.3, 0.3))
    vectors.square().sum().backward()
    optimizer.step()


@script
def vectors_that_are_changed_in_place(module: Module, optimizer: torch.optim.Optimizer) -> None:
    vectors = module(KEYS)
    vectors.mul_(2.0)
    vectors[0] = 0.0
    vectors.square().sum().backward()
    optimizer.step()


@script
def detached_vectors(module: Module, optimizer: torch.optim.Optimizer) -> None:
    (module(KEYS).detach() * module(KEYS)).sum().backward()
    optimizer.step()


@script
def a_closure(module: Module, optimizer: torch.optim.Optimizer) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = loss_of(module)
        loss.backward()
        return loss

    assert optimizer.step(closure) > -100


@script
def checkpointed_activations(module: Module, optimizer: torch.optim.Optimizer) -> None:
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    checkpoint(lambda s: s * loss_of(module), scale, use_reentrant=False).backward()
    optimizer.step()


@script
def a_gradient_scaler(module: Module, optimizer: torch.optim.Optimizer) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(loss_of(module)).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


@script
def a_gradient_scaler_that_skips_an_overflow(module: Module, optimizer: torch.optim.Optimizer) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for factor in (1.0, float("inf"), 1.0):
        optimizer.zero_grad()
        scaler.scale(loss_of(module) * factor).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 512.0


@script
def a_frozen_weight(module: Module, optimizer: torch.optim.Optimizer) -> None:
    module.weight.requires_grad_(False)
    assert not module(as_keys([5, 9])).requires_grad  # the table gives neither a row
    module.weight.requires_grad_(True)
    loss_of(module).backward()
    optimizer.step()


@script
def a_strided_and_an_expanded_gradient(module: Module, optimizer: torch.optim.Optimizer) -> None:
    module(KEYS).sum().backward()
    module(KEYS).t().contiguous()[::2].sum().backward()
    module(KEYS)[1:3].square().sum().backward()
    optimizer.step()


@over("name", SCRIPTS)
@over("cls", [GroupAdam, GroupSGD])
def test_what_people_do_with_an_embedding(cls: type, name: str) -> None:
    table = new_table()
    oracle = KeyedEmbedding(table, 1024)
    states = []
    # Sparse tensors that torch itself makes warn unless these checks are switched on or off.
    with torch.sparse.check_sparse_tensor_invariants(False):
        for module in (table, oracle):
            optimizer = cls([module.weight], lr=0.1, l1=0.01, l21=0.05)
            SCRIPTS[name](module, optimizer)
            optimizer.zero_grad()
            loss_of(module, as_keys([-1, 5, 9]), 3.0).backward()
            optimizer.step()
            states.append(optimizer.state_dict()["state"][0]["step"])
    keys = as_keys(oracle.row_of)
    torch.testing.assert_close(table.lookup(keys), oracle.lookup(keys), rtol=1e-12, atol=1e-12)
    assert states[0] == states[1]
    assert table.num_rows == len(keys)
