"""What people try first, coming from torch, is answered with what to write instead."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from over import over
from sparsegroup import GroupAdaHessian, GroupAdam, HashEmbedding, HashEmbeddingBag

KEYS = torch.tensor([1, 2, 3])


def given_linear() -> nn.Linear:
    return nn.Linear(3, 2)


GIVEN: list[tuple[Callable[[], Any], str]] = [
    (lambda: HashEmbedding(4), r"got a module, HashEmbedding: give its \.parameters\(\)"),
    (lambda: [given_linear()], r"got a module, Linear: .* \(param group 0, parameter 0\)"),
    (lambda: [{"params": given_linear()}], r"got a module, Linear: .* \(param group 0\)"),
    (lambda: given_linear().parameters, r"got the function 'parameters': call it, parameters\(\)"),
    (lambda: HashEmbedding(4).weight, r"takes an iterable of parameters: give \[parameter\]"),
    (lambda: {"params": given_linear().parameters()}, r"takes a list of param groups: give \[group\]"),
]


@over(("params", "message"), GIVEN)
def test_an_optimizer_says_what_to_give_in_place_of_what_is_no_parameters(
    params: Callable[[], Any], message: str
) -> None:
    with pytest.raises(TypeError, match=rf"GroupAdam takes .*|{message}") as error:
        GroupAdam(params())
    assert error.match(message)


def test_a_list_of_parameters_that_is_a_module_is_taken_and_an_optimizer_that_wraps_ours_may_step() -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner = inner
            super().__init__(inner.param_groups, {})

        def step(self, closure: Any = None) -> Any:
            return self.inner.step(closure)

    table = HashEmbedding(2)
    optimizer = Wrapper(GroupAdam(nn.ParameterList([table.weight]), lr=0.1))
    before = table(KEYS)
    before.sum().backward()
    optimizer.step()
    assert not torch.equal(table.lookup(KEYS), before)


@over(
    ("options", "message"),
    [
        ({"l12": 1.0}, "unexpected argument 'l12'; did you mean 'l2', 'l1' or 'l21'"),
        ({"bettas": (0.9, 0.9)}, r"unexpected argument 'bettas'; did you mean 'betas'\?"),
        ({"zzzz": 1}, "unexpected argument 'zzzz'; it takes .*l21"),
    ],
)
def test_a_misspelt_option_of_an_optimizer_has_its_near_match(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        GroupAdam([nn.Parameter(torch.ones(2))], **options)
    with pytest.warns(RuntimeWarning, match=f"param group 0 keeps .*{next(iter(options))}"):
        GroupAdam([{"params": [nn.Parameter(torch.ones(2))], **options}])


@over(
    ("make", "message"),
    [
        (lambda: HashEmbedding(10_000, 8), r"a table grows by itself: HashEmbedding\(dim\)"),  # type: ignore
        (lambda: HashEmbeddingBag(10_000, 8), r"HashEmbeddingBag: a table grows by itself: HashEmbeddingBag\(dim\)"),  # type: ignore
        (lambda: HashEmbedding(8, 0.1), r"all but dim is given by name, got \[8, 0\.1\]"),  # type: ignore
        (lambda: HashEmbedding(num_embeddings=9, embedding_dim=8), "'embedding_dim': the length of a vector is called"),  # type: ignore
        (lambda: HashEmbedding(8, sparse=True), "there is no 'sparse': gradients are always sparse"),  # type: ignore
        (lambda: HashEmbeddingBag(8, scale_grad_by_freq=True), "HashEmbeddingBag: there is no 'scale_grad_by_freq'"),
        (lambda: HashEmbedding(8, fieldbits=4), r"there is no 'fieldbits': did you mean 'field_bits'\?"),  # type: ignore
        (lambda: HashEmbedding(), "missing 1 required positional argument: 'dim'"),  # type: ignore
    ],
)
def test_a_table_says_what_it_has_in_place_of_arguments_that_it_has_not(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        make()


@over("name", ["Adam", "AdamW", "SparseAdam", "SGD", "Adagrad", "RMSprop"])
def test_an_optimizer_of_torch_raises_and_changes_nothing(name: str) -> None:
    table = HashEmbedding(2)
    table(KEYS).sum().backward()
    before = table.lookup(KEYS)
    with pytest.raises(RuntimeError, match=r"does not support sparse|an optimizer of sparsegroup"):
        getattr(torch.optim, name)(table.parameters()).step()
    assert torch.equal(table.lookup(KEYS), before)


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("depends", [False, True])
def test_adahessian_says_that_a_loss_is_linear(depends: bool) -> None:
    table, scale = HashEmbedding(2), torch.ones(2, requires_grad=depends)
    optimizer = GroupAdaHessian(table.parameters())
    before = table(KEYS)
    (before * scale).sum().backward(create_graph=True)
    with pytest.raises(RuntimeError, match=r"the loss is linear in these parameters, .* such as GroupAdam"):
        optimizer.step()
    assert torch.equal(table.lookup(KEYS), before)
