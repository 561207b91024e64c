"""Clipping: torch's functions clip the gradients of tables as the dense ones that they stand for."""

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from over import over
from sparsegroup import GroupAdam, HashEmbedding
from table_cases import as_keys

KEYS = as_keys([5, -1, 5, 2**62, 7, 7, 7])
DIM = 3


class Model(nn.Module):
    """A table, an embedding and a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.table = HashEmbedding(DIM, std=0.5, dtype=torch.float64)
        self.embedding = nn.Embedding(9, DIM, dtype=torch.float64)
        self.dense = nn.Linear(DIM, 2, dtype=torch.float64)
        self.unused = nn.Parameter(torch.ones(1))

    def backward(self, lookups: int = 1) -> None:
        for number in range(lookups):
            keys = KEYS + number % 2
            vectors = self.table(keys) + self.embedding(keys % 9)
            (self.dense(vectors).square().sum() * (1 + number)).backward()


def as_dense(gradient: Tensor) -> Tensor:
    """All elements that are there, each row once."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def flat(model: nn.Module) -> Tensor:
    return torch.cat([as_dense(x.grad).flatten() for x in model.parameters() if x.grad is not None])


def new_model(lookups: int) -> Model:
    torch.manual_seed(0)
    model = Model()
    model.backward(lookups)
    return model


@over("norm_type", [2.0, 1.0, 0.5, math.inf])
def test_the_norm_is_that_of_one_vector_in_which_each_row_is_once(norm_type):
    cases = (1, 0.3, None), (3, 0.3, True), (3, 0.3, False), (1, 2.0, True), (3, math.inf, None)
    for lookups, share, foreach in cases:
        model = new_model(lookups)
        before = flat(model)
        norm = torch.linalg.vector_norm(before, norm_type)
        got = clip_grad_norm_(model.parameters(), share * norm.item(), norm_type, foreach=foreach)
        torch.testing.assert_close(got, norm, rtol=1e-12, atol=0)
        torch.testing.assert_close(flat(model), before * min(share, 1.0), rtol=1e-5, atol=0)


@over(("lookups", "foreach"), [(1, None), (3, True), (3, False)])
def test_values_are_clamped_when_rows_have_been_summed(lookups, foreach):
    model = new_model(lookups)
    before = flat(model)
    bound = before.abs().median().item()
    clip_grad_value_(model.parameters(), bound, foreach=foreach)
    torch.testing.assert_close(flat(model), before.clamp(-bound, bound), rtol=0, atol=0)


def test_a_step_after_clipping_is_that_of_the_scaled_loss():
    def trained(scaled: bool) -> HashEmbedding:
        table = HashEmbedding(DIM, std=0.5, dtype=torch.float64)
        optimizer = GroupAdam(table.parameters(), lr=0.1, l21=1e-3, eps=0.5)
        for step in range(4):
            optimizer.zero_grad()
            loss = table(KEYS[step:]).square().sum()
            if scaled:
                (gradient,) = torch.autograd.grad(loss, table.weight)
                loss = table(KEYS[step:]).square().sum() * (0.2 / (gradient.norm() + 1e-6)).clamp(max=1)
            loss.backward()
            if not scaled:
                clip_grad_norm_(table.parameters(), 0.2)
            optimizer.step()
        return table

    torch.testing.assert_close(trained(False).lookup(KEYS), trained(True).lookup(KEYS), rtol=1e-12, atol=1e-12)


def test_a_norm_that_is_not_finite_raises_before_anything_is_changed():
    model = new_model(1)
    model.dense.weight.grad[0, 0] = math.nan
    before = flat(model)
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_([model.dense.weight, model.table.weight], 1.0, error_if_nonfinite=True)
    assert torch.equal(flat(model).nan_to_num(), before.nan_to_num())


def with_gradient() -> HashEmbedding:
    table = HashEmbedding(DIM)
    table(KEYS).sum().backward()
    return table


def test_one_parameter_may_be_given_without_a_list_and_a_range_must_hold_zero():
    table = with_gradient()
    with pytest.raises(ValueError, match=r"clamped to \[1, 2\], which leaves out zero"):
        table.weight.grad.clamp_(1, 2)
    assert clip_grad_norm_(table.weight, 1.0) > 1
    clip_grad_value_(table.weight, 0.01)
    assert table.weight.grad._values().max() <= 0.01


def test_the_gradient_of_a_table_is_a_tensor():
    """It can be read, copied, sent, set, summed, made zero and deleted."""
    table = with_gradient()
    gradient = table.weight.grad
    assert table.weight.grad is gradient
    assert gradient.layout == torch.sparse_coo
    assert copy.deepcopy(table).weight.grad is None
    for other in (copy.deepcopy(gradient), pickle.loads(pickle.dumps(gradient)), gradient + 0 * gradient):
        assert type(other) is Tensor
        assert as_dense(other).equal(as_dense(gradient))
    table.weight.grad = copy.deepcopy(gradient)
    table.weight.grad.mul_(torch.tensor(2.0))
    table(KEYS).sum().backward()
    assert as_dense(table.weight.grad).equal(3 * as_dense(gradient))
    table.weight.grad.zero_()
    assert table.weight.grad._nnz() == 0
    assert clip_grad_norm_(table.weight, 1.0) == 0
    del table.weight.grad
    assert table.weight.grad is None
