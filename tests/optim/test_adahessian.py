"""GroupAdaHessian: with all λ = 0 it is AdaHessian as published; Hutchinson is exact where the Hessian is diagonal."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer, lr_scheduler

from fixed_gradients import relative_error
from over import over
from sparsegroup import GroupAdaHessian

STEPS = 90
SHAPES = ((3,), (4, 3), (2, 3, 2), (2, 2, 2, 3))
SIZE = sum(math.prod(shape) for shape in SHAPES)
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}


class PublishedAdaHessian(Optimizer):
    """AdaHessian (Yao et al., AAAI 2021), transcribed: hessian_power 1, the published spatial averaging."""

    def __init__(self, params: list[Tensor], lr: float, generator: torch.Generator) -> None:
        super().__init__(params, {"lr": lr})
        self.generator = generator
        self.beta1, self.beta2, self.eps = 0.9, 0.999, 1e-4

    def step(self) -> None:
        (group,) = self.param_groups
        parameters = group["params"]
        gradients = [p.grad for p in parameters]
        # Rademacher: each element is -1 or 1.
        v = [2 * torch.randint(0, 2, p.shape, generator=self.generator).to(p.dtype) - 1 for p in parameters]
        hv = torch.autograd.grad(gradients, parameters, grad_outputs=v)
        for p, g, v_p, hv_p in zip(parameters, gradients, v, hv, strict=True):
            D = self.spatial_average((v_p * hv_p).abs())
            self.update(p, g.detach(), D, group["lr"])

    @staticmethod
    def spatial_average(D: Tensor) -> Tensor:
        if D.ndim <= 1:
            return D
        if D.ndim == 2:
            return D.mean(dim=1, keepdim=True).expand_as(D)
        return D.mean(dim=tuple(range(2, D.ndim)), keepdim=True).expand_as(D)

    @torch.no_grad()
    def update(self, p: Tensor, g: Tensor, D: Tensor, lr: float) -> None:
        state = self.state[p]
        if not state:
            state.update(t=0, exp_avg=torch.zeros_like(p), exp_hessian_diag_sq=torch.zeros_like(p))
        state["t"] += 1
        state["exp_avg"] = self.beta1 * state["exp_avg"] + (1 - self.beta1) * g
        state["exp_hessian_diag_sq"] = self.beta2 * state["exp_hessian_diag_sq"] + (1 - self.beta2) * D * D
        bias_correction1 = 1 - self.beta1 ** state["t"]
        bias_correction2 = 1 - self.beta2 ** state["t"]
        denominator = state["exp_hessian_diag_sq"].sqrt() / math.sqrt(bias_correction2) + self.eps
        p.sub_(lr * state["exp_avg"] / bias_correction1 / denominator)


def fixed_quadratic(parameters: list[Tensor], g: Tensor, H: Tensor) -> list[Tensor]:
    """Gradients, with graph, of a function whose gradient is `g` and whose Hessian is `H` wherever it is."""
    x = torch.cat([p.reshape(-1) for p in parameters])
    moved = x - x.detach()
    # Not `backward(create_graph=True)`, which warns that it leaves a reference cycle behind.
    return list(torch.autograd.grad(g @ moved + moved @ H @ moved / 2, parameters, create_graph=True))


def start(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.nn.Parameter(torch.randn(shape, dtype=dtype, generator=generator)) for shape in SHAPES]


def run(
    optimizer: Optimizer, parameters: list[Tensor], dtype: torch.dtype, scheduler: Callable[[int], float]
) -> Tensor:
    """The flattened parameters after each step; the Hessians couple all of them."""
    generator = torch.Generator().manual_seed(4)
    schedule = lr_scheduler.LambdaLR(optimizer, scheduler)
    mean = torch.randn(SIZE, dtype=dtype, generator=generator)
    path = []
    for _ in range(STEPS):
        A = torch.randn(SIZE, SIZE, dtype=dtype, generator=generator)
        gradients = fixed_quadratic(parameters, mean + torch.randn(SIZE, dtype=dtype, generator=generator), A + A.T)
        for p, g in zip(parameters, gradients, strict=True):
            p.grad = g
        optimizer.step()
        schedule.step()
        path.append(torch.cat([p.detach().reshape(-1) for p in parameters]))
    return torch.stack(path)


def constant(epoch: int) -> float:
    return 1.0


def triangle_that_rests_at_0(epoch: int) -> float:
    return max(0.0, abs(epoch % 60 - 30) / 30 - 0.1)


@pytest.mark.parametrize(
    ("dtype", "scheduler"),
    [(torch.float64, triangle_that_rests_at_0), (torch.float32, constant)],
    ids=["float64, to 0 and back", "float32, constant"],
)
def test_without_regularizer_it_is_adahessian_as_published(
    dtype: torch.dtype, scheduler: Callable[[int], float]
) -> None:
    ours, theirs = start(dtype), start(dtype)
    a = run(GroupAdaHessian(ours, lr=0.15, generator=torch.Generator().manual_seed(5)), ours, dtype, scheduler)
    b = run(PublishedAdaHessian(theirs, 0.15, torch.Generator().manual_seed(5)), theirs, dtype, scheduler)
    assert relative_error(a, b) < TOLERANCE[dtype]


@over("sizes", [(1, 1, 1, 1), (-1, 3, 6, 12), (3, 1, 2, 3)])
def test_a_diagonal_hessian_is_found_exactly_whatever_the_draw(sizes: tuple[int, ...]) -> None:
    parameters = start(torch.float64)
    diagonal = torch.randn(SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    optimizer = GroupAdaHessian(parameters, betas=(0.9, 0.5), spatial_average_block_size=sizes)
    gradients = fixed_quadratic(parameters, torch.ones(SIZE, dtype=torch.float64), torch.diag(diagonal))
    for p, g in zip(parameters, gradients, strict=True):
        p.grad = g
    optimizer.step()
    for p, d, block in zip(parameters, diagonal.split([p.numel() for p in parameters]), sizes, strict=True):
        block = max(block, 1)
        averaged = d.abs().reshape(-1, block).mean(1).repeat_interleave(block).reshape(p.shape)
        torch.testing.assert_close(optimizer.state[p]["exp_avg_sq"], 0.5 * averaged**2, rtol=1e-15, atol=0)
