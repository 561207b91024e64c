"""GroupAdaHessian: without λ it is AdaHessian as published; its random vectors, averages and the graph it frees."""

import math
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer, lr_scheduler

from fixed_gradients import relative_error, rests_at_0
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

SHAPES = ((3,), (4, 3), (2, 3, 2), (2, 2, 2, 3))
SIZE = sum(math.prod(shape) for shape in SHAPES)
BETA1, BETA2, EPS = 0.9, 0.999, 1e-4


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class PublishedAdaHessian(Optimizer):
    """AdaHessian (Yao et al., AAAI 2021), transcribed: hessian_power 1, the published spatial averaging."""

    def __init__(self, params: list[Tensor], lr: float, generator: torch.Generator) -> None:
        super().__init__(params, {"lr": lr})
        self.generator = generator

    def step(self) -> None:
        (group,) = self.param_groups
        parameters = group["params"]
        gradients = [p.grad for p in parameters]
        # Rademacher: each element is -1 or 1.
        v = [2 * torch.randint(0, 2, p.shape, generator=self.generator).to(p.dtype) - 1 for p in parameters]
        hv = torch.autograd.grad(gradients, parameters, grad_outputs=v)
        for p, g, v_p, hv_p in zip(parameters, gradients, v, hv, strict=True):
            D = (v_p * hv_p).abs()
            if D.ndim >= 2:
                D = D.mean(dim=1 if D.ndim == 2 else tuple(range(2, D.ndim)), keepdim=True).expand_as(D)
            self.update(p, g.detach(), D, group["lr"])

    @torch.no_grad()
    def update(self, p: Tensor, g: Tensor, D: Tensor, lr: float) -> None:
        state = self.state[p]
        if not state:
            state.update(t=0, exp_avg=torch.zeros_like(p), exp_hessian_diag_sq=torch.zeros_like(p))
        state["t"] += 1
        state["exp_avg"] = BETA1 * state["exp_avg"] + (1 - BETA1) * g
        state["exp_hessian_diag_sq"] = BETA2 * state["exp_hessian_diag_sq"] + (1 - BETA2) * D * D
        bias_correction1 = 1 - BETA1 ** state["t"]
        bias_correction2 = 1 - BETA2 ** state["t"]
        denominator = state["exp_hessian_diag_sq"].sqrt() / math.sqrt(bias_correction2) + EPS
        p.sub_(lr * state["exp_avg"] / bias_correction1 / denominator)


def fixed_quadratic(parameters: list[Tensor], g: Tensor, H: Tensor) -> list[Tensor]:
    """Gradients, with graph, of a function whose gradient is `g` and whose Hessian is `H` wherever it is."""
    x = torch.cat([p.reshape(-1) for p in parameters])
    moved = x - x.detach()
    # Not `backward(create_graph=True)`, which warns that it leaves a reference cycle behind.
    return list(torch.autograd.grad(g @ moved + moved @ H @ moved / 2, parameters, create_graph=True))


def test_without_regularizer_it_is_adahessian_as_published() -> None:
    """The Hessians couple all parameters; the rate falls to 0 and rises again."""

    def path(cls: type[Optimizer]) -> Tensor:
        draw, visited = generator(4), []
        parameters = [nn.Parameter(torch.randn(shape, dtype=torch.float64, generator=draw)) for shape in SHAPES]
        optimizer = cls(parameters, lr=0.15, generator=generator(5))
        schedule = lr_scheduler.LambdaLR(optimizer, rests_at_0)
        for _ in range(60):
            g, A = (torch.randn(*shape, dtype=torch.float64, generator=draw) for shape in ((SIZE,), (SIZE, SIZE)))
            for p, gradient in zip(parameters, fixed_quadratic(parameters, g + 0.5, A + A.T), strict=True):
                p.grad = gradient
            optimizer.step()
            schedule.step()
            visited.append(torch.cat([p.detach().reshape(-1) for p in parameters]))
        return torch.stack(visited)

    assert relative_error(path(GroupAdaHessian), path(PublishedAdaHessian)) < 1e-12


def mixing_loss(x: Tensor) -> Tensor:
    """Its Hessian is not diagonal: the random vectors matter."""
    return (x @ x.t()).square().sum() / 50


def hessian_estimate(optimizer: GroupAdaHessian, x: Tensor) -> Tensor:
    """|D| of the first step, read back from V₁ = (1 - β2) D²."""
    return (optimizer.state[x]["exp_avg_sq"] / (1 - BETA2)).sqrt()


def test_the_generator_decides_or_the_global_seed_without_one():
    def after_two_steps(**arguments: object) -> nn.Parameter:
        x = parameter(4, 3)
        optimizer = GroupAdaHessian([x], lr=0.1, l21=0.01, **arguments)
        for _ in range(2):
            backward(optimizer, mixing_loss(x))
            optimizer.step()
        return x

    torch.manual_seed(5)
    before = torch.get_rng_state()
    assert_identical(after_two_steps(generator=generator(1)), after_two_steps(generator=generator(1)))
    assert not torch.equal(after_two_steps(generator=generator(1)), after_two_steps(generator=generator(2)))
    assert_identical(torch.get_rng_state(), before, "with a generator, the global one is not touched")
    first = after_two_steps()
    torch.manual_seed(5)
    assert_identical(after_two_steps(), first)
    assert not torch.equal(after_two_steps(), first)


@over(
    ("shape", "sizes", "averaged"),
    [
        ((), (1, 1, 1, 1), lambda d: d),
        ((), (-1, -1, -1, -1), lambda d: d),
        ((6,), (3, 1, 1, 1), lambda d: d.view(2, 3).mean(1, keepdim=True).expand(2, 3)),
        ((4, 6), (1, 2, 1, 1), lambda d: d.view(4, 3, 2).mean(2, keepdim=True).expand(4, 3, 2)),
        ((4, 6), (-1, 1, -1, -1), lambda d: d),
        ((2, 3, 4), (1, 1, 6, 1), lambda d: d.view(2, 2, 6).mean(2, keepdim=True).expand(2, 2, 6)),
        ((2, 1, 2, 2, 2), (1, 1, 1, -1), lambda d: d.mean((2, 3, 4), keepdim=True).expand(2, 1, 2, 2, 2)),
    ],
)
def test_the_hessian_is_averaged_over_blocks(shape, sizes, averaged):
    x = parameter(*shape)
    optimizer = GroupAdaHessian([x], spatial_average_block_size=sizes)
    # Curvatures of both signs: |D| is averaged, not D.
    backward(optimizer, (wave(x, 2) * x * x / 2).sum())
    optimizer.step()
    expected = averaged(wave(x, 2).abs()).reshape(shape)
    torch.testing.assert_close(hessian_estimate(optimizer, x), expected, rtol=1e-13, atol=0)


@over("size", [-1, 1])
def test_a_sparse_embedding_steps_as_a_dense_one_given_the_same_vectors(size):
    """Rows interact through the loss, so the vectors matter; all rows are looked up, so both draw the same ones."""
    models = [nn.Embedding.from_pretrained(parameter(4, 3).detach(), freeze=False, sparse=s) for s in (True, False)]
    for layer in models:
        optimizer = GroupAdaHessian(
            [layer.weight], lr=0.1, l21=0.01, generator=generator(3), spatial_average_block_size=(1, size, 1, 1)
        )
        for _ in range(3):
            backward(optimizer, mixing_loss(layer(torch.tensor([[0, 2], [1, 3], [3, 3]])).view(-1, 3)))
            assert layer.weight.grad.is_sparse == layer.sparse
            optimizer.step()
    torch.testing.assert_close(models[0].weight, models[1].weight, rtol=1e-12, atol=1e-12)


def test_sparse_gradients_of_more_dimensions_have_a_hessian():
    """Also where autograd gives the Hessian's product densely."""
    table, flat = parameter(6, 2, 3), nn.Parameter(parameter(6, 2, 3).detach().reshape(6, -1))
    for x in (table, flat):
        optimizer = GroupAdaHessian([x], lr=0.1, l21=0.02, spatial_average_block_size=(1, 1, 1, 1))
        for t, rows in enumerate([[0, 5], [2, 5]]):
            optimizer.zero_grad()
            g = (x + 0.5 * t)[rows]  # linked to x, so that the Hessian is 1
            x.grad = torch.sparse_coo_tensor(torch.tensor([rows]), g, x.shape, check_invariants=True)
            optimizer.step()
        torch.testing.assert_close(hessian_estimate(optimizer, x)[0], torch.ones_like(x[0]))
    torch.testing.assert_close(table.reshape(6, -1), flat, rtol=1e-14, atol=1e-14)


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
    assert marker() is not None, "the gradient keeps its graph until the step"
    optimizer.step()
    assert marker() is None, "freed immediately, not by the garbage collector"
    assert not x.grad.requires_grad
    assert not any(value.requires_grad for value in optimizer.state[x].values())


@over("sparse", [False, True])
def test_gradients_without_a_graph_are_refused(sparse):
    """Also a second step on the same ones."""
    x = parameter(4, 3)
    optimizer = GroupAdaHessian([x], l21=0.01)
    train(optimizer, 2)
    with refused(optimizer, RuntimeError, "create_graph=True"):
        optimizer.step()
    optimizer.zero_grad()
    lookup_loss(x, [0, 1, 2, 3], sparse=sparse).backward()
    with refused(optimizer, RuntimeError, "create_graph=True"):
        optimizer.step()
    train(optimizer, 1, start=2)


def test_a_linear_parameter_has_curvature_0_and_a_block_must_divide_the_row():
    linear, curved = parameter(3), parameter(4, 5)
    optimizer = GroupAdaHessian([linear, curved])
    backward(optimizer, linear.sum() + separable_loss(curved))
    optimizer.step()
    assert not optimizer.state[linear]["exp_avg_sq"].any()
    assert linear.isfinite().all()
    optimizer.param_groups[0]["spatial_average_block_size"] = (1, 3, 1, 1)
    backward(optimizer, linear.sum() + separable_loss(curved))
    with refused(optimizer, ValueError, r"spatial_average_block_size.* 3 .* 5"):
        optimizer.step()
    assert curved.grad.grad_fn is not None, "the gradients can still be used"


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


@over("unscale_first", [False, True])
def test_grad_scaler_is_refused_and_training_continues_without_it(unscale_first):
    x = parameter(4, 3, dtype=torch.float32)
    optimizer = GroupAdaHessian([x], l21=0.02)
    train(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu")
    optimizer.zero_grad()
    scaler.scale(separable_loss(x)).backward(create_graph=True)
    if unscale_first:
        scaler.unscale_(optimizer)
    with refused(optimizer, RuntimeError, "GroupAdaHessian cannot run under GradScaler"):
        scaler.step(optimizer)
    train(optimizer, 1)  # which the scaler's traces on the optimizer must not prevent
    disabled, before = torch.amp.GradScaler("cpu", enabled=False), x.detach().clone()
    optimizer.zero_grad()
    disabled.scale(separable_loss(x)).backward(create_graph=True)
    disabled.step(optimizer)
    assert not torch.equal(x, before)
