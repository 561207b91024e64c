"""GroupAdaHessian's own promises: its random vectors, block averages, and the graph it must not keep."""

import gc
import math
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional

from optimizer_cases import (
    ALLOW_CREATE_GRAPH,
    Hold,
    Marker,
    assert_identical,
    backward,
    lookup_loss,
    parameter,
    refused,
    separable_loss,
    train,
    wave,
)
from over import over
from sparsegroup import GroupAdaHessian, HashEmbedding

pytestmark = ALLOW_CREATE_GRAPH

BETA2 = 0.999


def mixing_loss(x: torch.Tensor) -> torch.Tensor:
    """Its Hessian is not diagonal: the random vectors matter."""
    return (x @ x.t()).square().sum() / 50


def after_two_steps(**arguments: object) -> nn.Parameter:
    x = parameter(4, 3)
    optimizer = GroupAdaHessian([x], lr=0.1, l21=0.01, **arguments)
    for _ in range(2):
        backward(optimizer, mixing_loss(x))
        optimizer.step()
    return x


def hessian_estimate(optimizer: GroupAdaHessian, x: torch.Tensor) -> torch.Tensor:
    """|D| of the first step, read back from V₁ = (1 - β2) D²."""
    return (optimizer.state[x]["exp_avg_sq"] / (1 - BETA2)).sqrt()


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_same_seed_gives_the_same_steps_and_another_seed_others():
    assert_identical(after_two_steps(generator=generator(1)), after_two_steps(generator=generator(1)))
    assert not torch.equal(after_two_steps(generator=generator(1)), after_two_steps(generator=generator(2)))


def test_with_a_generator_the_global_one_is_not_touched():
    before = torch.get_rng_state()
    after_two_steps(generator=generator(1))
    assert_identical(torch.get_rng_state(), before)


def test_without_a_generator_the_global_seed_decides():
    torch.manual_seed(5)
    first = after_two_steps()
    torch.manual_seed(5)
    assert_identical(after_two_steps(), first)
    assert not torch.equal(after_two_steps(), first)


def test_the_vectors_are_rademacher():
    """v ⊙ H v for H = 1 1ᵀ is v Σv: for one element ±1, for a few the odd sums that signs can have."""
    counts = []
    for seed in range(40):
        x = nn.Parameter(torch.zeros(3, dtype=torch.float64))
        optimizer = GroupAdaHessian([x], generator=generator(seed))
        backward(optimizer, x.sum().square() / 2)
        optimizer.step()
        estimate = hessian_estimate(optimizer, x)
        torch.testing.assert_close(estimate, estimate[:1].expand(3))
        counts.append(round(estimate[0].item()))
    assert set(counts) == {1, 3}
    assert 3 <= counts.count(3) <= 20  # probability 1/4 each


@over(
    ("shape", "sizes", "averaged"),
    [
        ((), (1, 1, 1, 1), lambda d: d),
        ((), (-1, -1, -1, -1), lambda d: d),
        ((6,), (-1, 1, 1, 1), lambda d: d),
        ((6,), (3, 1, 1, 1), lambda d: d.view(2, 3).mean(1, keepdim=True).expand(2, 3)),
        ((4, 6), (1, -1, 1, 1), lambda d: d.mean(1, keepdim=True).expand(4, 6)),
        ((4, 6), (1, 2, 1, 1), lambda d: d.view(4, 3, 2).mean(2, keepdim=True).expand(4, 3, 2)),
        ((4, 6), (-1, 1, -1, -1), lambda d: d),
        ((2, 3, 4), (1, 1, -1, 1), lambda d: d.mean(2, keepdim=True).expand(2, 3, 4)),
        ((2, 3, 4), (1, 1, 6, 1), lambda d: d.view(2, 2, 6).mean(2, keepdim=True).expand(2, 2, 6)),
        ((2, 3, 4, 2), (1, 1, 1, -1), lambda d: d.mean((2, 3), keepdim=True).expand(2, 3, 4, 2)),
        ((2, 1, 2, 2, 2), (1, 1, 1, -1), lambda d: d.mean((2, 3, 4), keepdim=True).expand(2, 1, 2, 2, 2)),
    ],
)
def test_the_hessian_is_averaged_over_blocks(shape, sizes, averaged):
    x = parameter(*shape)
    optimizer = GroupAdaHessian([x], spatial_average_block_size=sizes)
    # Curvatures of both signs: |D| is averaged, not D.
    backward(optimizer, (wave(x, 2) * x * x / 2).sum())
    optimizer.step()
    torch.testing.assert_close(hessian_estimate(optimizer, x), averaged(wave(x, 2).abs()).reshape(shape))


@over(("size", "averaged"), [(-1, lambda d: d.mean(1, keepdim=True)), (1, lambda d: d)])
def test_rows_of_a_sparse_gradient_are_averaged_like_those_of_a_dense_one(size, averaged):
    table = parameter(5, 3)
    optimizer = GroupAdaHessian([table], spatial_average_block_size=(1, size, 1, 1))
    at = torch.tensor([4, 1, 4])
    curvature = wave(table, 2)
    x = functional.embedding(at, table, sparse=True)
    backward(optimizer, (curvature[at] * x * x / 2).sum())
    optimizer.step()
    expected = torch.zeros_like(curvature)
    expected[1], expected[4] = curvature[1].abs(), 2 * curvature[4].abs()  # row 4 was looked up twice
    torch.testing.assert_close(hessian_estimate(optimizer, table), averaged(expected).expand(5, 3))


def test_a_sparse_embedding_steps_as_a_dense_one_given_the_same_vectors():
    """Rows interact through the loss, so the vectors matter; all rows are looked up, so both draw the same ones."""
    models = [nn.Embedding.from_pretrained(parameter(4, 3).detach(), freeze=False, sparse=s) for s in (True, False)]
    for layer in models:
        optimizer = GroupAdaHessian([layer.weight], lr=0.1, l21=0.01, generator=generator(3))
        for _ in range(3):
            backward(optimizer, mixing_loss(layer(torch.tensor([[0, 2], [1, 3], [3, 3]])).view(-1, 3)))
            assert layer.weight.grad.is_sparse == layer.sparse
            optimizer.step()
    torch.testing.assert_close(models[0].weight, models[1].weight, rtol=1e-12, atol=1e-12)


@over("sparse", [False, True])
def test_step_lets_go_of_the_graph(sparse):
    x = parameter(4, 3)
    optimizer = GroupAdaHessian([x], l21=0.01)

    def graph():
        marker = Marker()
        looked_up = functional.embedding(torch.tensor([0, 3]), x, sparse=True) if sparse else x
        backward(optimizer, (Hold.apply(looked_up, marker) ** 3).sum())
        return weakref.ref(marker)

    marker = graph()
    gc.collect()
    assert marker() is not None, "the gradient keeps its graph until the step"
    optimizer.step()
    assert marker() is None, "freed at once, not by the garbage collector"
    assert x.grad.grad_fn is None
    assert not x.grad.requires_grad
    assert not any(value.requires_grad for value in optimizer.state[x].values())


@over("sparse", [False, True])
def test_forgetting_create_graph_is_said_and_changes_nothing(sparse):
    x = parameter(4, 3)
    optimizer = GroupAdaHessian([x], l21=0.01)
    train(optimizer, 2)
    optimizer.zero_grad()
    lookup_loss(x, [0, 1, 2, 3], sparse=sparse).backward()
    with refused(optimizer, RuntimeError, r"create_graph=True"):
        optimizer.step()
    train(optimizer, 1, start=2)


def test_a_second_step_on_the_same_gradients_is_refused():
    """They have no graph any more."""
    x = parameter(4, 3)
    optimizer = GroupAdaHessian([x])
    train(optimizer, 1)
    with refused(optimizer, RuntimeError, "create_graph=True"):
        optimizer.step()


def test_a_linear_parameter_beside_others_has_curvature_0():
    linear, curved = parameter(3), parameter(3)
    optimizer = GroupAdaHessian([linear, curved])
    backward(optimizer, linear.sum() + separable_loss(curved))
    optimizer.step()
    assert not optimizer.state[linear]["exp_avg_sq"].any()
    assert linear.isfinite().all()


def test_a_block_that_does_not_divide_the_row_is_refused_and_changes_nothing():
    fits, not_ = parameter(4, 6), parameter(4, 5)
    optimizer = GroupAdaHessian([fits, not_], spatial_average_block_size=(1, 3, 1, 1))
    backward(optimizer, separable_loss(fits) + separable_loss(not_))
    with refused(optimizer, ValueError, r"spatial_average_block_size.* 3 .* 5"):
        optimizer.step()
    assert fits.grad.grad_fn is not None, "the gradients can still be used"


def test_other_parameters_of_the_model_need_not_be_the_optimizers():
    """Only the diagonal blocks of its own parameters are asked for, with one more parameter in the same graph."""
    x, other = parameter(4, 3), parameter(3, 4)
    optimizer = GroupAdaHessian([x], generator=generator(0))
    backward(optimizer, (x @ other).square().sum())
    optimizer.step()
    assert other.grad.grad_fn is not None
    expected = 2 * (other @ other.t()).detach()  # the Hessian of each row of x
    v = (2 * torch.randint(0, 2, (4, 3), generator=generator(0)) - 1).double()
    diagonal = (v * (v @ expected)).abs().mean(1, keepdim=True).expand(4, 3)
    torch.testing.assert_close(hessian_estimate(optimizer, x), diagonal)
    other.grad = None


def test_weight_decay_is_in_the_gradient_and_not_in_the_hessian():
    x = parameter(4)
    optimizer = GroupAdaHessian([x], weight_decay=0.5)
    backward(optimizer, (x * x).sum() / 2)
    expected = 0.1 * 1.5 * x.detach()
    optimizer.step()
    torch.testing.assert_close(optimizer.state[x]["exp_avg"], expected)
    torch.testing.assert_close(hessian_estimate(optimizer, x), torch.ones(4, dtype=torch.float64))
    assert math.isclose(optimizer.param_groups[0]["betas"][1], BETA2)


@over("power", [0.5, 1.5])
@over("own_generator", [False, True])
def test_a_step_that_is_refused_has_drawn_nothing(power, own_generator):
    """Neither where the gradient of x^p is infinite at 0 nor where its second derivative is."""
    table, keys = HashEmbedding(2), torch.tensor([3, 4])
    draws = generator(0) if own_generator else torch.default_generator
    optimizer = GroupAdaHessian(table.parameters(), generator=draws if own_generator else None)
    table.assign(keys, torch.tensor([[1.0, 2.0], [0.0, 1.0]]))
    before, rows = draws.get_state(), table.lookup(keys)
    (table(keys) ** power).sum().backward(create_graph=True)
    with pytest.raises(FloatingPointError, match="key 4"):
        optimizer.step()
    assert torch.equal(draws.get_state(), before)
    assert torch.equal(table.lookup(keys), rows)
    table.weight.grad = None
