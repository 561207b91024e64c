"""Parameters that are subclasses of `Tensor`: those without memory of their own are stepped by PyTorch's operations."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from over import over
from sparsegroup import GroupAdam, GroupFTRL, GroupSGD, sparsity_report


def gradients() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4, 3) * torch.tensor([[3.0], [0.01], [2.0], [0.02]]) for _ in range(4)]


def stepped(parameter: nn.Parameter, kind: type, **options: Any) -> torch.optim.Optimizer:
    optimizer = kind([parameter], lr=0.1, **options)
    for gradient in gradients():
        parameter.grad = TwoTensor(gradient, gradient.clone()) if isinstance(parameter, TwoTensor) else gradient
        optimizer.step()
    return optimizer


@over("kind", [GroupAdam, GroupFTRL, GroupSGD])
@over("options", [{}, {"l21": 1.0}, {"l21": 1.0, "groups": "columns"}, {"l21": 1.0, "fused": True}])
def test_a_tensor_that_wraps_others_is_stepped_as_these(kind, options):
    start = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))
    wrapping, plain = nn.Parameter(TwoTensor(start.clone(), start.clone())), nn.Parameter(start.clone())
    optimizer = stepped(wrapping, kind, **options)
    other = stepped(plain, kind, **options)
    for part in (wrapping.a, wrapping.b):
        torch.testing.assert_close(part, plain.detach(), rtol=1e-5, atol=1e-6)
        assert torch.equal(part == 0, plain == 0)
    assert str(sparsity_report(optimizer)) == str(sparsity_report(other))


class Named(nn.Parameter):
    """A subclass with memory."""


def test_a_subclass_with_memory_is_stepped_as_a_tensor():
    start = torch.ones(4, 3)
    own, plain = Named(start.clone()), nn.Parameter(start.clone())
    stepped(own, GroupAdam, l21=1.0)
    stepped(plain, GroupAdam, l21=1.0)
    assert torch.equal(own, plain)
