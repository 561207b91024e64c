"""What training loops do with an optimizer: closures, hooks, groups added late, GradScaler, compiled models."""

from typing import Any

import pytest
import torch

from optimizer_cases import (
    ALL,
    ALLOW_CREATE_GRAPH,
    FIRST_ORDER,
    KINDS,
    assert_identical,
    backward,
    make,
    parameter,
    refused,
    separable_loss,
    snapshot,
    train,
)
from over import over
from sparsegroup import GroupAdaHessian

pytestmark = ALLOW_CREATE_GRAPH

REGULARIZED = {"l1": 0.01, "l21": 0.02, "l2": 0.01}


def closure_for(optimizer: torch.optim.Optimizer, x: torch.Tensor, t: int) -> Any:
    def closure():
        loss = separable_loss(x, t)
        backward(optimizer, loss)
        return loss

    return closure


@over("cls", KINDS)
def test_a_closure_is_run_once_with_gradients_on_and_its_loss_returned(cls):
    x, plain = parameter(4, 3), parameter(4, 3)
    optimizer = make(cls, [x], **REGULARIZED)
    train(make(cls, [plain], **REGULARIZED), 3)
    for t in range(3):
        expected = separable_loss(x, t).item()
        with torch.no_grad():
            assert optimizer.step(closure_for(optimizer, x, t)).item() == expected
    assert optimizer.state[x]["step"] == 3
    assert_identical(x, plain)
    optimizer.zero_grad()
    assert optimizer.step() is None
    by_keyword = parameter(4, 3)
    once = make(cls, [by_keyword], **REGULARIZED)
    for t in range(3):
        once.step(closure=closure_for(once, by_keyword, t))
    assert_identical(by_keyword, plain)


@over("cls", KINDS)
def test_a_closure_that_raises_changes_nothing(cls):
    x = parameter(4, 3)
    optimizer = make(cls, [x], **REGULARIZED)
    train(optimizer, 2)

    def closure():
        raise RuntimeError("out of data")

    with refused(optimizer, RuntimeError, "out of data"):
        optimizer.step(closure)


class Wrapper:
    """As LightningOptimizer: a subclass made on the fly, `step` passing the closure on by keyword."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.__dict__ = {k: v for k, v in optimizer.__dict__.items() if k != "step"}
        self.__class__ = type("Lightning" + type(optimizer).__name__, (Wrapper, type(optimizer)), {})
        self.wrapped = optimizer

    def step(self, closure: Any = None, **kwargs: Any) -> Any:
        return self.wrapped.step(closure=closure, **kwargs)


@over("cls", KINDS)
def test_a_lightning_style_loop_trains_as_a_plain_one(cls):
    x, plain = parameter(4, 3), parameter(4, 3)
    train(make(cls, [plain], **REGULARIZED), 4)
    wrapper = Wrapper(make(cls, [x], **REGULARIZED))
    assert isinstance(wrapper, cls)
    for t in range(4):
        loss = wrapper.step(closure=closure_for(wrapper.wrapped, x, t))
        assert loss.isfinite()
    assert_identical(x, plain)
    assert_identical(wrapper.state_dict()["state"], wrapper.wrapped.state_dict()["state"])


@over("cls", KINDS)
def test_a_pre_hook_may_replace_the_closure(cls):
    x, plain = parameter(4, 3), parameter(4, 3)
    train(make(cls, [plain], **REGULARIZED), 1)
    optimizer = make(cls, [x], **REGULARIZED)
    optimizer.register_step_pre_hook(lambda o, args, kwargs: ((o, closure_for(o, x, 0)), {}))
    optimizer.step()
    assert_identical(x, plain)


@over("cls", ALL)
def test_a_group_added_in_the_middle_starts_at_step_1_with_its_own_arguments(cls):
    early, late = parameter(4, 3, seed=1), parameter(4, 3, seed=2)
    optimizer = make(cls, [early], **REGULARIZED)
    train(optimizer, 3)
    group = {"params": [late], "lr": 0.05, "l21": 0.5, "groups": "columns"}
    optimizer.add_param_group(group)
    assert group.keys() == {"params", "lr", "l21", "groups"}
    train(optimizer, 2, start=3)
    assert [optimizer.state[p]["step"] for p in (early, late)] == [5, 2]

    # As a fresh optimizer would train it, behind a parameter that shifts its loss as `early` does.
    alone = parameter(4, 3, seed=2)
    separate = make(cls, [{"params": [parameter(4, 3)]}, {**group, "params": [alone]}], **REGULARIZED)
    train(separate, 2, start=3)
    assert_identical(late, alone)


@over("cls", FIRST_ORDER)
def test_grad_scaler_unscales_and_skips_a_step_with_an_infinite_gradient(cls):
    x, plain = parameter(4, 3, dtype=torch.float32), parameter(4, 3, dtype=torch.float32)
    optimizer, unscaled = make(cls, [x], **REGULARIZED), make(cls, [plain], **REGULARIZED)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for t in range(2):
        optimizer.zero_grad()
        scaler.scale(separable_loss(x, t)).backward()
        scaler.step(optimizer)
        scaler.update()
    train(unscaled, 2)
    assert_identical(x, plain)  # a power of 2 scales without rounding

    optimizer.zero_grad()
    scaler.scale(separable_loss(x, 2)).backward()
    x.grad[1, 1] = float("inf")
    before = snapshot(optimizer)
    scaler.step(optimizer)
    scaler.update()
    after = snapshot(optimizer)
    del before["grads"], after["grads"]  # unscaled in place
    assert_identical(after, before)
    assert scaler.get_scale() == 512


@over("unscale_first", [False, True])
def test_adahessian_refuses_grad_scaler_and_trains_on_without_it(unscale_first):
    x = parameter(4, 3, dtype=torch.float32)
    optimizer = GroupAdaHessian([x], l21=0.02)
    train(optimizer, 1)
    scaler = torch.amp.GradScaler("cpu")
    optimizer.zero_grad()
    scaler.scale(separable_loss(x)).backward(create_graph=True)
    if unscale_first:
        scaler.unscale_(optimizer)
    before = snapshot(optimizer)
    with pytest.raises(RuntimeError, match="GroupAdaHessian cannot run under GradScaler"):
        scaler.step(optimizer)
    after = snapshot(optimizer)
    del before["grads"], after["grads"]
    assert_identical(after, before)
    train(optimizer, 1)  # which the scaler's traces on the optimizer must not prevent
    disabled, before = torch.amp.GradScaler("cpu", enabled=False), x.detach().clone()
    optimizer.zero_grad()
    disabled.scale(separable_loss(x)).backward(create_graph=True)
    disabled.step(optimizer)
    assert not torch.equal(x, before)


@over("cls", FIRST_ORDER)
def test_a_model_moved_to_another_dtype_trains_on(cls):
    """`model.double()` after some steps: the state follows at the next one, with dense and with sparse gradients."""
    for dense in (True, False):
        x = parameter(5, 3, dtype=torch.float32)
        optimizer = make(cls, [x], **REGULARIZED)
        for dtype in (torch.float32, torch.float64, torch.bfloat16):
            x.grad = None
            x.data = x.data.to(dtype)
            g = torch.ones(5, 3, dtype=dtype)
            x.grad = g if dense else g.to_sparse(1)
            optimizer.step()
        assert x.isfinite().all()
