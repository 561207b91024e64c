"""Transforms of `torch.func` over models with tables: they give what loops over autograd give."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, stack_module_state, vmap
from torch.nn.functional import binary_cross_entropy_with_logits

from over import over
from sparsegroup import FieldTables, GroupAdam, HashEmbedding, HashEmbeddingBag, convert, param_groups
from table_cases import take_step

DIM = 4
TABLES: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: HashEmbedding(DIM),
    "fallback": lambda: HashEmbedding(DIM, fallback=True, field_bits=2),
    "bags": lambda: HashEmbeddingBag(DIM),
    "converted": lambda: convert(nn.Embedding(60, DIM), rows="none"),
    "fields": lambda: FieldTables(DIM, {0: 4, 1: 2}),
}
every_mode = over("training", [True, False])


class Clicks(nn.Module):
    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = table
        self.head = nn.Sequential(nn.Linear(DIM, 3), nn.Tanh(), nn.Linear(3, 1))

    def forward(self, keys: Tensor) -> Tensor:
        """Of one sample, `[keys]`, or of several, `[samples, keys]`."""
        if isinstance(self.table, HashEmbeddingBag):
            pooled = self.table(keys.reshape(-1, keys.shape[-1])).view(*keys.shape[:-1], DIM)
        else:
            pooled = self.table(keys).sum(-2)
        return self.head(pooled * 30).squeeze(-1)


def model_of(kind: str, training: bool = True) -> Clicks:
    """Knows some of the keys of `batch`; some of these have zero rows."""
    model = Clicks(TABLES[kind]())
    keys, labels = batch(0)
    optimizer = GroupAdam(param_groups(model, l21=0.3))
    for _ in range(2):
        take_step(optimizer, binary_cross_entropy_with_logits(model(keys), labels))
    optimizer.zero_grad()
    return model.train(training)


def batch(seed: int = 1) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    keys = torch.randint(0, 40, (8, 3), generator=draw) | (torch.tensor([0, 1, 1]) << 56)
    return keys, torch.rand(8, generator=draw).round()


def network(model: nn.Module) -> dict[str, Tensor]:
    """What is transformed: the parameters that are no table's rows."""
    return {name: p.detach() for name, p in model.named_parameters() if name.startswith("head.")}


def loss_of(model: nn.Module) -> Callable[[dict[str, Tensor], Tensor, Tensor], Tensor]:
    def loss(parameters: dict[str, Tensor], keys: Tensor, labels: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(functional_call(model, parameters, (keys,)), labels)

    return loss


def by_autograd(model: nn.Module, keys: Tensor, labels: Tensor) -> dict[str, Tensor]:
    named = [(name, p) for name, p in model.named_parameters() if name.startswith("head.")]
    loss = binary_cross_entropy_with_logits(model(keys), labels)
    return dict(zip([name for name, _ in named], torch.autograd.grad(loss, [p for _, p in named]), strict=True))


def close(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@every_mode
@over("kind", TABLES)
def test_gradients_of_the_network_and_of_each_sample(kind: str, training: bool) -> None:
    keys, labels = batch()
    model, other = model_of(kind, training), model_of(kind, training)
    close(grad(loss_of(model))(network(model), keys, labels), by_autograd(other, keys, labels))
    close(model.state_dict(), other.state_dict())  # the same rows have appeared, or none
    if kind != "fields":
        found = vmap(grad(loss_of(model)), in_dims=(None, 0, 0))(network(model), keys, labels)
        each = [by_autograd(other, *sample) for sample in zip(keys, labels, strict=True)]
        close(found, {name: torch.stack([one[name] for one in each]) for name in each[0]})


@every_mode
def test_keys_on_any_dimension_and_nested(training: bool) -> None:
    keys = torch.arange(24).view(2, 3, 4)
    table, other = HashEmbedding(DIM).train(training), HashEmbedding(DIM).train(training)
    other(keys)
    found = vmap(vmap(table, in_dims=1), in_dims=2)(keys)
    close(found, other(keys).permute(2, 1, 0, 3))
    assert table.num_rows == other.num_rows == 24 * training
    close(grad(lambda x: (table(keys[0, 0, 0]) * x).sum())(torch.ones(DIM)), other(keys[0, 0, 0]))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # torch's jvp uses it
@every_mode
def test_first_and_second_derivatives(training: bool) -> None:
    """Of the logits and of the loss; the vectors are constants."""
    keys, labels = batch()
    model = model_of("plain", training)
    model(keys)
    behind = Clicks(nn.Identity())
    vectors = model.table.lookup(keys)

    def derivatives(module: nn.Module, inputs: Tensor) -> list[Any]:
        def logits(parameters: dict[str, Tensor]) -> Tensor:
            return functional_call(module, parameters, (inputs,))

        parameters = network(model)
        second = hessian(loss_of(module))(parameters, inputs, labels)
        return [jacrev(logits)(parameters), jacfwd(logits)(parameters), second]

    close(derivatives(model, keys), derivatives(behind, vectors))


def test_an_ensemble_of_networks_trains_the_rows_they_share() -> None:
    """What is a constant to `vmap` is none to the backward outside."""
    keys, labels = batch()
    model, other = model_of("plain"), model_of("plain")
    heads = [Clicks(nn.Identity()).head for _ in range(3)]
    for number, head in enumerate(heads):
        nn.init.normal_(head[0].weight, generator=torch.Generator().manual_seed(number))
    stacked = {f"head.{name}": p for name, p in stack_module_state(heads)[0].items()}
    vmap(loss_of(model), in_dims=(0, None, None))(stacked, keys, labels).sum().backward()
    for head in heads:
        other.head = head
        binary_cross_entropy_with_logits(other(keys), labels).backward()
    found, expected = (one.table.weight.grad.coalesce() for one in (model, other))
    rows, expected_rows = (gradient.indices() - gradient.indices().min() for gradient in (found, expected))
    close(rows, expected_rows)
    close(found.values(), expected.values())
    assert expected.values().any()
    close(stacked["head.0.weight"].grad, torch.stack([head[0].weight.grad for head in heads]))


def test_the_rows_themselves_are_refused_with_what_to_do() -> None:
    keys, labels = batch()
    model = model_of("plain")
    rows, parameters = model.table.num_rows, {name: p.detach() for name, p in model.named_parameters()}
    for transform in (grad, jacrev):
        with pytest.raises(RuntimeError, match=r"leave it out of the parameters.*backward\(\)"):
            transform(loss_of(model))(parameters, keys, labels)
    assert model.table.num_rows == rows
    with pytest.raises(NotImplementedError, match="not one tensor"):
        stack_module_state([model, model])
