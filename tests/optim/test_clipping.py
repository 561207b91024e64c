"""Clipping: torch's functions clip the gradients of tables as the dense ones that they stand for."""

import copy
import math
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from over import over
from sparsegroup import HashEmbedding
from table_cases import as_keys

KEYS = as_keys([5, -1, 5, 2**62, 7, 7, 7])
DIM = 3


class Model(nn.Module):
    """A table, an embedding and a layer, with gradients of some lookups."""

    def __init__(self, lookups: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = HashEmbedding(DIM, std=0.5, dtype=torch.float64)
        self.embedding = nn.Embedding(9, DIM, dtype=torch.float64)
        self.dense = nn.Linear(DIM, 2, dtype=torch.float64)
        self.unused = nn.Parameter(torch.ones(1))
        for number in range(lookups):
            keys = KEYS + number % 2
            vectors = self.table(keys) + self.embedding(keys % 9)
            (self.dense(vectors).square().sum() * (1 + number)).backward()


def as_dense(gradient: Tensor) -> Tensor:
    """All elements that are there, each row once."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def flat(model: nn.Module) -> Tensor:
    return torch.cat([as_dense(x.grad).flatten() for x in model.parameters() if x.grad is not None])


@over("norm_type", [2.0, 1.0, 0.5, math.inf])
@over(
    ("lookups", "share", "foreach"), [(1, 0.3, None), (3, 0.3, True), (3, 0.3, False), (1, 2.0, True), (3, 9e9, None)]
)
def test_the_norm_is_that_of_one_vector_in_which_each_row_is_once(norm_type, lookups, share, foreach):
    model = Model(lookups)
    before = flat(model)
    norm = torch.linalg.vector_norm(before, norm_type)
    got = clip_grad_norm_(model.parameters(), share * norm.item(), norm_type, foreach=foreach)
    torch.testing.assert_close(got, norm, rtol=1e-12, atol=0)
    torch.testing.assert_close(flat(model), before * min(share, 1.0), rtol=1e-5, atol=0)


@over(("lookups", "foreach"), [(1, None), (3, True), (3, False)])
def test_values_are_clamped_when_rows_have_been_summed(lookups, foreach):
    model = Model(lookups)
    before = flat(model)
    bound = before.abs().median().item()
    clip_grad_value_(model.parameters(), bound, foreach=foreach)
    torch.testing.assert_close(flat(model), before.clamp(-bound, bound), rtol=0, atol=0)


def test_a_norm_that_is_not_finite_raises_before_anything_is_changed():
    model = Model(1)
    model.dense.weight.grad[0, 0] = math.nan
    before = flat(model)
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_([model.dense.weight, model.table.weight], 1.0, error_if_nonfinite=True)
    assert torch.equal(flat(model).nan_to_num(), before.nan_to_num())


def test_the_gradient_of_a_table_is_a_tensor():
    """It can be read, copied, sent, set, summed, clipped without a list, made zero and deleted."""
    table = HashEmbedding(DIM)
    table(KEYS).sum().backward()
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
    with pytest.raises(ValueError, match=r"clamped to \[1, 2\], which leaves out zero"):
        table.weight.grad.clamp_(1, 2)
    clip_grad_value_(table.weight, 0.01)
    assert table.weight.grad._values().max() <= 0.01
    table.weight.grad.zero_()
    assert table.weight.grad._nnz() == 0
    assert clip_grad_norm_(table.weight, 1.0) == 0
    del table.weight.grad
    assert table.weight.grad is None
