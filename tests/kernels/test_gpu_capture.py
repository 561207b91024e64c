"""`capturable`: steps on a GPU whose count and learning rate stay there, captured in a CUDA graph or not."""

import copy
from collections.abc import Iterator
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from gpu_cases import DEVICE
from gpu_optimizer_cases import NoWaiting, assert_same, groups_of, net, trained
from optimizer_cases import ALL, ALLOW_CREATE_GRAPH, FIRST_ORDER, make
from sparsegroup import GroupAdam, HashEmbedding
from sparsegroup.kernels.gpu import runtime
from sparsegroup.optim.arguments import check_device

pytestmark = ALLOW_CREATE_GRAPH


@pytest.fixture(autouse=True)
def _on_the_device() -> Iterator[None]:
    with runtime.rehearsal() if DEVICE.type == "cpu" else nullcontext(), np.errstate(all="ignore"):
        yield


@pytest.mark.parametrize("cls", ALL)
def test_capturable_is_the_same(cls):
    assert_same(trained(cls, capturable=True), trained(cls), rtol=1e-6, atol=1e-7)


def test_capturable_keeps_step_and_learning_rate_on_the_device():
    """A learning rate of 0, too, is met there: x and u stay, the moments go on."""
    x = nn.Parameter(torch.randn(4, 3, device=DEVICE))
    lr = torch.tensor(0.1, device=DEVICE)
    optimizer = GroupAdam([x], lr=lr, l21=0.1, capturable=True)
    for t, rate in enumerate((0.1, 0.0, 0.05)):
        x.grad = torch.ones_like(x)
        before, moment = x.detach().clone(), optimizer.state[x].get("exp_avg", torch.zeros(())).clone()
        lr.fill_(rate)
        with NoWaiting() if t else nullcontext():
            optimizer.step()
        assert optimizer.state[x]["step"].device == x.device
        assert torch.equal(x, before) == (rate == 0)
        assert not torch.equal(optimizer.state[x]["exp_avg"], moment.expand_as(x))
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
@pytest.mark.parametrize("cls", FIRST_ORDER)
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


@pytest.mark.skipif(DEVICE.type == "cpu", reason="needs CUDA graphs")
def test_capturing_without_capturable_is_refused():
    x = nn.Parameter(torch.zeros(3, device=DEVICE))
    optimizer = GroupAdam([x])
    x.grad = torch.ones_like(x)
    optimizer.step()
    with pytest.raises(RuntimeError, match="capturable=True"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        optimizer.step()


def test_capturable_is_refused_where_it_cannot_be():
    with pytest.raises(ValueError, match=r"HashEmbedding.*param group 0"):
        GroupAdam(HashEmbedding(2, device=DEVICE).parameters(), capturable=True)
    with pytest.raises(TypeError, match="capturable must be True or False"):
        GroupAdam([nn.Parameter(torch.zeros(2, device=DEVICE))], capturable=1)
    with pytest.raises(ValueError, match="a number or on meta"):
        check_device(
            torch.zeros(1, device="meta"), {"capturable": True, "fused": None, "lr": torch.tensor(0.1)}, "here"
        )
