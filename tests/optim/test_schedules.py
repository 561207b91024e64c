"""Learning rates: every scheduler of torch, tensors, vanishing rates, restarts."""

import copy
import inspect
import itertools

import pytest
import torch
from torch.optim import lr_scheduler

from optimizer_cases import (
    ALL,
    ALLOW_CREATE_GRAPH,
    KINDS,
    assert_identical,
    backward,
    make,
    parameter,
    separable_loss,
    snapshot,
    train,
)
from over import over
from schedule_cases import SCHEDULERS, STEPS, advance
from sparsegroup import GroupAdagrad, GroupAdam, GroupFTRL, GroupMomentum

pytestmark = ALLOW_CREATE_GRAPH

REGULARIZED = {"l1": 0.01, "l21": 0.02, "l2": 0.01}


def test_every_scheduler_of_torch_is_among_those_tested():
    of_torch = {
        name
        for name, cls in vars(lr_scheduler).items()
        if inspect.isclass(cls) and issubclass(cls, lr_scheduler.LRScheduler) and not name.startswith("_")
    }
    assert of_torch - {"LRScheduler"} == SCHEDULERS.keys()


@over(
    ("cls", "name"),
    [*((GroupAdam, name) for name in SCHEDULERS), *((cls, "OneCycleLR") for cls in ALL if cls is not GroupAdam)],
)
@over("tensor", [False, True])
def test_a_scheduler_does_what_setting_its_rates_by_hand_does(cls, name, tensor):
    """An optimizer sees no more of a scheduler than its rate, momentum and betas, all of which OneCycleLR changes."""
    scheduled, by_hand = parameter(4, 3), parameter(4, 3)
    lr = torch.tensor(0.1, dtype=torch.float64) if tensor else 0.1
    optimizer, plain = make(cls, [scheduled], lr=lr, **REGULARIZED), make(cls, [by_hand], **REGULARIZED)
    of_torch = torch.optim.Adam([parameter(1)], lr=0.1)
    scheduler, reference = SCHEDULERS[name](optimizer), SCHEDULERS[name](of_torch)
    for t in range(STEPS):
        for argument in {"momentum", "betas"} & optimizer.defaults.keys():
            plain.param_groups[0][argument] = optimizer.param_groups[0][argument]
        plain.param_groups[0]["lr"] = float(of_torch.param_groups[0]["lr"])
        assert float(optimizer.param_groups[0]["lr"]) == plain.param_groups[0]["lr"]
        train(optimizer, 1, start=t)
        train(plain, 1, start=t)
        of_torch.step()
        advance(scheduler)
        advance(reference)
    assert_identical(scheduled, by_hand)
    assert isinstance(optimizer.param_groups[0]["lr"], torch.Tensor if tensor else float)


@over("name", ["CosineAnnealingLR", "CyclicLR", "OneCycleLR", "SequentialLR"])
@over("state_first", [False, True])
def test_a_schedule_resumes_with_its_optimizer(name, state_first):
    x = parameter(4, 3)
    whole = GroupAdam([x], lr=0.1, **REGULARIZED)
    scheduler = SCHEDULERS[name](whole)
    for t in range(3):
        train(whole, 1, start=t)
        advance(scheduler)
    state, schedule = copy.deepcopy(whole.state_dict()), copy.deepcopy(scheduler.state_dict())
    resumed = GroupAdam([torch.nn.Parameter(x.detach().clone())])
    if state_first:
        resumed.load_state_dict(state)
    again = SCHEDULERS[name](resumed)
    again.load_state_dict(schedule)
    resumed.load_state_dict(state)
    assert_identical(snapshot(resumed)["groups"], snapshot(whole)["groups"])
    for each, its in ((whole, scheduler), (resumed, again)):
        for t in range(3, 6):
            train(each, 1, start=t)
            advance(its)
    assert_identical(snapshot(resumed)["params"], snapshot(whole)["params"])


def test_what_a_scheduler_keeps_in_the_param_groups_survives_loading():
    """OneCycleLR(last_epoch=…) on a loaded optimizer reads its own keys there, as it does with torch's optimizers."""

    def resume(cls):
        first = cls([parameter(2)], lr=0.1)
        scheduler = lr_scheduler.OneCycleLR(first, 0.2, total_steps=10)
        for _ in range(3):
            first.step()
            scheduler.step()
        second = cls([parameter(2)], lr=0.1)
        second.load_state_dict(first.state_dict())
        return lr_scheduler.OneCycleLR(second, 0.2, total_steps=10, last_epoch=scheduler.last_epoch).get_last_lr()

    assert resume(GroupAdam) == resume(torch.optim.Adam)


@over("cls", ALL)
def test_a_vanishing_learning_rate_leaves_the_weights_where_they_are(cls):
    """ExponentialLR(gamma=0.9) is at 1e-25 after 500 epochs; 1 / lr no longer fits float32 a little later."""
    for dtype, lr in itertools.product((torch.float32, torch.float64, torch.bfloat16), (1e-18, 1e-25, 1e-40, 1e-310)):
        x = parameter(4, 3, dtype=dtype)
        optimizer = make(cls, [x], **REGULARIZED)
        train(optimizer, 2)
        before = x.detach().clone()
        optimizer.param_groups[0]["lr"] = lr
        train(optimizer, 2, start=2)
        torch.testing.assert_close(x.detach(), before, rtol=0, atol=2 * torch.finfo(dtype).eps)


@over("cls", [GroupMomentum, GroupAdagrad, GroupAdam, GroupFTRL])
@over("low", [1e-5, 1e-8, 1e-11])
def test_a_restart_does_not_replay_what_was_too_small_to_move_the_weights(cls, low):
    """A warm restart raises the rate many times over. What u holds of the rounding at the low rate stays as small."""
    rounded = parameter(4, 3, dtype=torch.float32)
    x = torch.nn.Parameter(rounded.detach().double())
    optimizers = make(cls, [x], lr=1e-2, l21=1e-3), make(cls, [rounded], lr=1e-2, l21=1e-3)
    for optimizer in optimizers:
        train(optimizer, 10)
        optimizer.param_groups[0]["lr"] = low
        train(optimizer, 50, start=10)
    before = (rounded.detach().double() - x.detach()).abs().max()
    for optimizer in optimizers:
        optimizer.param_groups[0]["lr"] = 1e-2
        train(optimizer, 1, start=60)
    drift = (rounded.detach().double() - x.detach()).abs().max() - before
    assert drift <= 1e-5


@over("bad", [-1e-3, float("nan"), float("inf")])
@over("cls", KINDS)
def test_a_schedule_that_leaves_the_range_is_refused_at_the_step(cls, bad):
    x = parameter(3)
    optimizer = make(cls, [x], lr=torch.tensor(0.1), l21=0.1)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda epoch: 1.0 if epoch < 1 else bad * 10)
    backward(optimizer, separable_loss(x))
    optimizer.step()
    scheduler.step()
    before = snapshot(optimizer)
    with pytest.raises(ValueError, match="lr must be finite and >= 0"):
        optimizer.step()
    assert_identical(snapshot(optimizer), before)
