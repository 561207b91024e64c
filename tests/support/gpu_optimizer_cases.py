"""A small model of parameters of all kinds, trained on a GPU or in Triton's interpreter."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_cases import DEVICE
from optimizer_cases import make
from sparsegroup import GroupOptimizer

REGULARIZED = {"l1": 0.002, "l21": 0.03, "l2": 0.01}


class NoWaiting(TorchDispatchMode):
    """Raises where the host would read what the device has computed.

    Args:
        on_host: Tensors that the host may read.
    """

    def __init__(self, on_host: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.on_host = {tensor.data_ptr() for tensor in on_host}

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), keywords: Any = None) -> Any:
        name = str(function)
        if any(word in name for word in ("_local_scalar_dense", "aten.nonzero", "unique", "is_nonzero")):
            assert arguments[0].data_ptr() in self.on_host, name
        return function(*arguments, **(keywords or {}))


def net(dtype: torch.dtype = torch.float32) -> nn.ParameterDict:
    torch.manual_seed(0)
    return nn.ParameterDict(
        {
            "table": nn.Parameter(torch.randn(9, 6).to(dtype)),
            "other": nn.Parameter(torch.randn(7, 6).to(dtype)),
            "sparse": nn.Parameter(torch.randn(12, 5).to(dtype)),
            "columns": nn.Parameter(torch.randn(5, 8).to(dtype)),
            "conv": nn.Parameter(torch.randn(3, 4, 2, 2).to(dtype)),
            "wide": nn.Parameter(torch.randn(2, 1100).to(dtype)),
            "all": nn.Parameter(torch.randn(3, 5).to(dtype)),
            "indexed": nn.Parameter(torch.randn(6, 4).to(dtype)),
            "bias": nn.Parameter(torch.randn(5).to(dtype)),
        }
    ).to(DEVICE)


def groups_of(params: nn.ParameterDict) -> list[dict[str, Any]]:
    return [
        {"params": [params["table"], params["other"], params["sparse"], params["wide"]], **REGULARIZED},
        {"params": [params["columns"]], **REGULARIZED, "groups": "columns"},
        {"params": [params["conv"]], **REGULARIZED, "groups": 1},
        {"params": [params["all"]], **REGULARIZED, "groups": "all"},
        {"params": [params["indexed"]], **REGULARIZED, "groups": torch.tensor([0, 1, 0, 2, 2, 9])},
        {"params": [params["bias"]]},
    ]


def loss_of(params: nn.ParameterDict, t: int) -> Tensor:
    rows = torch.tensor([0, 4, 0, 11, 4, 0, 7], device=DEVICE)[t:]
    looked_up = nn.functional.embedding(rows, params["sparse"], sparse=True)
    total = looked_up.float().square().sum() + (looked_up.float() * 0.3).sum()
    for name, x in params.items():
        if name != "sparse":
            used = x[1:].float()  # the first row has no gradient, ever, where rows are groups
            total = total + ((0.5 + t) * used * used / 2 + torch.sin(used + t)).sum()
    return total


def trained(cls: type[GroupOptimizer], steps: int = 2, dtype: torch.dtype = torch.float32, **arguments: Any):
    params = net(dtype)
    if cls.rule.second_order:
        arguments["generator"] = torch.Generator(DEVICE).manual_seed(1)
    optimizer = make(cls, groups_of(params), **arguments)
    for t in range(steps):
        optimizer.zero_grad()
        loss_of(params, t).backward(create_graph=cls.rule.second_order)
        optimizer.step()
    return params, optimizer


def assert_same(ours: tuple[nn.ParameterDict, GroupOptimizer], theirs: Any, **tolerance: float) -> None:
    for name, x in ours[0].items():
        y = theirs[0][name]
        torch.testing.assert_close(x, y, **tolerance, msg=lambda text, name=name: f"{name}: {text}")
        assert ((x == 0) == (y == 0)).all()
        for part, value in ours[1].state[x].items():
            expected = theirs[1].state[y][part]
            torch.testing.assert_close(value, expected, check_device=False, **tolerance)
