"""The optimizers on a GPU, or in Triton's interpreter: what a step does, by what means, and what it waits for."""

import copy
import warnings
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from gpu_cases import DEVICE
from optimizer_cases import ALL, ALLOW_CREATE_GRAPH, KINDS, make
from over import over
from sparsegroup import GroupAdagrad, GroupAdam, GroupOptimizer, HashEmbedding
from sparsegroup.kernels.gpu import launch, runtime
from sparsegroup.kernels.gpu.backend import compiles
from sparsegroup.optim.arguments import check_device
from sparsegroup.rules import Rule, learning_rate

pytestmark = ALLOW_CREATE_GRAPH


@pytest.fixture(autouse=True)
def _on_the_device() -> Iterator[None]:
    with runtime.rehearsal() if DEVICE.type == "cpu" else nullcontext(), np.errstate(all="ignore"):
        yield


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


@over("cls", KINDS)
def test_the_kernels_do_what_pytorch_does(cls):
    """Rows, columns, channels, all, an index, wide groups, sparse gradients with repeated rows."""
    ours = trained(cls)
    assert_same(ours, trained(cls, fused=False), rtol=2e-5, atol=2e-6)
    if cls is GroupAdam:
        assert_same(trained(cls, capturable=True), ours, rtol=1e-6, atol=1e-7)


def test_low_precision_parameters_with_float32_state():
    params, optimizer = trained(GroupAdam, dtype=torch.bfloat16)
    assert optimizer.state[params["table"]]["u"].dtype == torch.float32
    assert_same((params, optimizer), trained(GroupAdam, dtype=torch.bfloat16, fused=False), rtol=2e-2, atol=2e-2)


def test_float64_and_strides_are_left_to_pytorch():
    assert_same(trained(GroupAdam, dtype=torch.float64), trained(GroupAdam, dtype=torch.float64, fused=False))
    values = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    results = []
    for x in (values.clone(), values.t().contiguous().t()):
        x = nn.Parameter(x)
        optimizer = GroupAdam([x], l21=0.1)
        x.grad = torch.ones(4, 5, device=DEVICE).cumsum(1).t()
        optimizer.step()
        results.append(x.detach())
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-7)


def test_a_step_waits_for_nothing():
    params = net()
    optimizer = GroupAdam(groups_of(params))
    for t in range(3):
        optimizer.zero_grad()
        loss_of(params, t).backward()
        if t == 0:  # looks at an index of groups, and compiles
            optimizer.step()
            continue
        if DEVICE.type == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        try:
            with NoWaiting(entry["step"] for entry in optimizer.state.values()):
                optimizer.step()
        finally:
            if DEVICE.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")


def test_tables_of_tensors_stay_on_the_device_though_step_counts_differ(monkeypatch):
    sent = []

    class CountedTable(launch.TensorTable):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            sent.append(self)

    monkeypatch.setattr(launch, "TensorTable", CountedTable)
    params = [nn.Parameter(torch.ones(2, 3, device=DEVICE)) for _ in range(4)]
    optimizer = GroupAdam(params, l21=0.01)
    for several in (params[:2], params, params, params):
        for param in several:
            param.grad = torch.ones_like(param) if param.grad is None else param.grad
        optimizer.step()
    assert len(sent) == 3  # of the first step, and of both step counts


def test_foreach_takes_pytorchs_operations(monkeypatch):
    def refuse(*arguments: Any) -> None:
        raise AssertionError("a kernel was launched")

    monkeypatch.setattr("sparsegroup.kernels.gpu.backend.GpuBackend.launch", refuse)
    for arguments in ({"foreach": True}, {"fused": False}):
        trained(GroupAdam, steps=1, **arguments)
    with pytest.raises(AssertionError, match="launched"):
        trained(GroupAdam, fused=True)


def test_without_triton_or_on_an_old_gpu_pytorch_does_it_and_says_so_once(monkeypatch):
    for name, value in {"is_available": True, "get_device_capability": (7, 5), "get_device_name": "Old"}.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, value=value: value)
    runtime._is_recent.cache_clear()
    with pytest.warns(RuntimeWarning, match=r"Old has compute capability 7\.5"):
        assert not runtime.serves(torch.device("cuda", 0))
    monkeypatch.setattr(runtime, "has_triton", lambda: False)
    runtime._told_that_triton_is_missing.cache_clear()
    with pytest.warns(RuntimeWarning, match="pip install triton"):
        assert not runtime.serves(torch.device("cuda"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not runtime.serves(torch.device("cuda"))
    runtime._is_recent.cache_clear()


def test_a_rehearsal_wants_the_interpreter(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(RuntimeError, match="TRITON_INTERPRET"), runtime.rehearsal():
        pass


def test_state_in_bfloat16():
    """Close to PyTorch's; u and moments are bfloat16, after loading, too; a second run gives the same bits."""
    params, optimizer = trained(GroupAdam, state_dtype=torch.bfloat16)
    again, _ = trained(GroupAdam, state_dtype=torch.bfloat16)
    by_pytorch, _ = trained(GroupAdam, state_dtype=torch.bfloat16, fused=False)
    for name, x in params.items():
        assert torch.equal(x, again[name])
        torch.testing.assert_close(x, by_pytorch[name], rtol=0.1, atol=0.1)
        for part in ("exp_avg", "exp_avg_sq", *(["u"] * (name != "bias"))):
            assert optimizer.state[x][part].dtype == torch.bfloat16
    loaded = GroupAdam(groups_of(again), state_dtype=torch.bfloat16)
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for x, y in zip(params.values(), again.values(), strict=True):
        for part, value in optimizer.state[x].items():
            assert torch.equal(value, loaded.state[y][part])
            assert value.dtype == loaded.state[y][part].dtype


def test_the_untouched_stay_untouched_in_bfloat16():
    """a₀ = 0.1 is another number in bfloat16; a group without a gradient is known by what it is as stored."""
    x = nn.Parameter(torch.randn(3, 4, device=DEVICE))
    start = x.detach().clone()
    optimizer = GroupAdagrad([x], lr=0.1, initial_accumulator_value=0.1, l21=20.0, state_dtype=torch.bfloat16)
    for _ in range(2):
        x.grad = torch.zeros_like(x)
        x.grad[1] = 1
        optimizer.step()
    assert torch.equal(x[[0, 2]], start[[0, 2]])
    assert not x[1].any()


def test_rows_that_are_not_there_are_left_out_and_told_later():
    x = nn.Parameter(torch.ones(4, 2, device=DEVICE))
    optimizer = GroupAdam([x], lr=0.1)
    x.grad = torch.sparse_coo_tensor(
        torch.tensor([[1, 9, 1]], device=DEVICE), torch.ones(3, 2, device=DEVICE), (4, 2), check_invariants=False
    )
    optimizer.step()
    assert (x != 1).any(1).tolist() == [False, True, False, False]
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()
    x.grad = torch.zeros_like(x)
    with pytest.raises(IndexError, match="1 rows that its parameter has not, 9"):
        optimizer.step()
    optimizer.step()
    x = nn.Parameter(torch.ones(2, 4, device=DEVICE).t())  # PyTorch steps it, and raises at once
    rows, values = torch.tensor([[1, 9]], device=DEVICE), torch.ones(2, 2, device=DEVICE)
    x.grad = torch.sparse_coo_tensor(rows, values, (4, 2), check_invariants=False)
    with pytest.raises(IndexError, match="rows 1 to 9, the parameter has 4"):
        GroupAdam([x], l21=0.1).step()


def test_a_rule_that_triton_cannot_take_is_left_to_pytorch():
    zero = 0

    def closure(g: Any, inverse_lr: Any) -> tuple[Any, ...]:
        return g, g - g + inverse_lr + zero

    for update in (lambda g, i: (g, g - g + i), closure):
        rule = Rule("odd", lambda lr: (1 / lr,), update, state={}, hyperparameters=(learning_rate(),))
        with pytest.warns(RuntimeWarning, match="the rule 'odd' cannot be compiled for the GPU"):
            assert not compiles(rule)
    x = nn.Parameter(torch.ones(4, 2, device=DEVICE))
    x.grad = torch.ones_like(x)
    type("Odd", (GroupOptimizer,), {"rule": rule})([x], lr=0.5).step()
    assert (x == 0.5).all()


def test_empty_tensors_and_gradients():
    empty, sparse = nn.Parameter(torch.zeros(0, 3, device=DEVICE)), nn.Parameter(torch.ones(4, 2, device=DEVICE))
    optimizer = GroupAdam([empty, sparse], l21=0.1)
    empty.grad = torch.zeros_like(empty)
    rows, values = torch.zeros(1, 0, dtype=torch.int64), torch.zeros(0, 2)
    sparse.grad = torch.sparse_coo_tensor(rows, values, (4, 2), check_invariants=False).to(DEVICE)
    optimizer.step()
    assert (sparse == 1).all()
    assert optimizer.state[sparse]["step"] == 1


def test_capturable_keeps_step_and_learning_rate_on_the_device():
    """A learning rate of 0, too, is met there: x and u stay, the moments go on."""
    x = nn.Parameter(torch.randn(4, 3, device=DEVICE))
    lr = torch.tensor(0.1, device=DEVICE)
    optimizer = GroupAdam([x], lr=lr, l21=0.1, capturable=True)
    for t, rate in enumerate((0.1, 0.0, 0.05)):
        x.grad = torch.ones_like(x)
        before, moment = x.detach().clone(), optimizer.state[x].get("exp_avg", torch.zeros_like(x)).clone()
        lr.fill_(rate)
        with NoWaiting() if t else nullcontext():
            optimizer.step()
        assert optimizer.state[x]["step"].device == x.device
        assert torch.equal(x, before) == (rate == 0)
        assert not torch.equal(optimizer.state[x]["exp_avg"], moment)
    y = nn.Parameter(x.detach().clone())
    plain = GroupAdam([y], lr=0.1, l21=0.1)
    plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    plain.param_groups[0]["lr"] = 0.05
    for p, o in ((x, optimizer), (y, plain)):
        p.grad = torch.ones_like(p)
        o.step()
    assert plain.state[y]["step"].device.type == "cpu"
    torch.testing.assert_close(x, y, rtol=1e-6, atol=1e-7)


@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs CUDA graphs")
@over("cls", [cls for cls in ALL if not cls.rule.second_order])
def test_a_captured_step_is_the_same(cls):
    results = []
    for captured in (False, True):
        params = net()
        optimizer = make(cls, groups_of(params), capturable=True)
        for x in params.values():
            x.grad = torch.ones_like(x)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(3):
                optimizer.step()
        torch.cuda.current_stream().wait_stream(stream)
        if captured:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                optimizer.step()
        for _ in range(4):
            graph.replay() if captured else optimizer.step()
        results.append([x.detach() for x in params.values()])
    for x, y in zip(*results, strict=True):
        assert torch.equal(x, y)
    optimizer = make(cls, [nn.Parameter(torch.zeros(3, device=DEVICE))])
    optimizer.param_groups[0]["params"][0].grad = torch.ones(3, device=DEVICE)
    optimizer.step()
    with pytest.raises(RuntimeError, match="capturable=True"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        optimizer.step()


def test_capturable_is_refused_where_it_cannot_be():
    with pytest.raises(ValueError, match=r"HashEmbedding.*param group 0"):
        GroupAdam(HashEmbedding(2, device=DEVICE).parameters(), capturable=True)
    with pytest.raises(ValueError, match="capturable must be True, False or None"):
        GroupAdam([nn.Parameter(torch.zeros(2, device=DEVICE))], capturable=1)
    with pytest.raises(ValueError, match="a number or on meta"):
        check_device(
            torch.zeros(1, device="meta"), {"capturable": True, "fused": None, "lr": torch.tensor(0.1)}, "here"
        )
