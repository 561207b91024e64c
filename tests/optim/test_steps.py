"""Steps: closures, hooks, schedules; what a step keeps from the one before; tensors that are subclasses."""

import itertools
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.testing._internal.two_tensor import TwoTensor

from optimizer_cases import (
    ALLOW_CREATE_GRAPH,
    KINDS,
    assert_identical,
    backward,
    make,
    parameter,
    refused,
    separable_loss,
    train,
    wave,
)
from over import over
from sparsegroup import GroupAdagrad, GroupAdam, GroupFTRL, GroupSGD, sparsity_report
from sparsegroup.penalties import Hard

pytestmark = ALLOW_CREATE_GRAPH

REGULARIZED = {"l1": 0.01, "l21": 0.02, "l2": 0.01}


@over("cls", KINDS)
def test_a_closure_is_run_once_with_gradients_on_and_its_loss_returned(cls):
    x, plain = parameter(4, 3), parameter(4, 3)
    optimizer = make(cls, [x], **REGULARIZED)
    train(make(cls, [plain], **REGULARIZED), 3)
    for t in range(3):

        def closure(t: int = t) -> Tensor:
            loss = separable_loss(x, t)
            backward(optimizer, loss)
            return loss

        expected = separable_loss(x, t).item()
        with torch.no_grad():
            assert (optimizer.step(closure=closure) if t == 1 else optimizer.step(closure)).item() == expected
    assert optimizer.state[x]["step"] == 3
    assert_identical(x, plain)
    optimizer.zero_grad()
    assert optimizer.step() is None

    def fails() -> None:
        raise RuntimeError("out of data")

    with refused(optimizer, RuntimeError, "out of data"):
        optimizer.step(fails)


def test_grad_scaler_unscales_and_skips_a_step_with_an_infinite_gradient():
    x, plain = parameter(4, 3, dtype=torch.float32), parameter(4, 3, dtype=torch.float32)
    optimizer, unscaled = GroupAdam([x], **REGULARIZED), GroupAdam([plain], **REGULARIZED)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for t in range(3):
        optimizer.zero_grad()
        scaler.scale(separable_loss(x, t)).backward()
        if t == 2:
            x.grad[1, 1] = float("inf")
        scaler.step(optimizer)
        scaler.update()
    train(unscaled, 2)
    assert_identical(x, plain)  # a power of 2 scales without rounding
    assert_identical(optimizer.state[x], unscaled.state[plain])
    assert scaler.get_scale() == 512


@over("cls", KINDS[:3])
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


@over("cls", KINDS)
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


# Learning rates that vanish and restart.


@over("cls", KINDS)
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


@over("cls", [GroupAdagrad, GroupAdam, GroupFTRL])
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


# What a step keeps from the step before is used for as long as it holds.

Change = Callable[[GroupAdam, list[nn.Parameter]], None]


def _moves_state(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    state = optimizer.state[x[1]]["exp_avg"]
    state.data = state.data.clone()


def _strides_a_gradient(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    assert x[0].grad is not None
    x[0].grad = x[0].grad.t().clone().t()


def _shortens(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    """Keep some rows, which are at the same address."""
    for one in (x[1], *(value for name, value in optimizer.state[x[1]].items() if name != "step")):
        one.data = one.data[:-1]
    x[1].grad = torch.ones_like(x[1])


def _converts(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    x[0].data = x[0].data.double()
    x[0].grad = torch.ones_like(x[0])


def _changes_betas(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    group = optimizer.param_groups[0]
    if isinstance(group["betas"], list):
        group["betas"][0] /= 2
    else:
        group["betas"] = list(group["betas"])


def _adds_a_group(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    x.append(nn.Parameter(torch.ones(3)))
    x[-1].grad = torch.ones(3)
    optimizer.add_param_group({"params": [x[-1]], "lr": 0.3})


def _takes_rows(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    x[0].grad = torch.sparse_coo_tensor(torch.tensor([[2, 0]]), torch.ones(2, 4), (4, 4), check_invariants=False)


CHANGES: dict[str, Change] = {
    "moves weights": lambda optimizer, x: setattr(x[0], "data", x[0].data.clone()),
    "transposes weights": lambda optimizer, x: setattr(x[0], "data", x[0].data.t()),
    "sets weights": lambda optimizer, x: x[0].data.set_(x[0].data.clone()),
    "sets strided weights": lambda optimizer, x: x[0].data.set_(x[0].data.t().clone().t()),
    "shortens weights": _shortens,
    "converts weights": _converts,
    "moves state": _moves_state,
    "sets state": lambda optimizer, x: optimizer.state[x[1]]["u"].set_(optimizer.state[x[1]]["u"].clone()),
    "forgets a part of the state": lambda optimizer, x: optimizer.state[x[0]].pop("u"),
    "forgets all": lambda optimizer, x: optimizer.state.clear(),
    "replaces state": lambda optimizer, x: optimizer.state[x[1]].update(exp_avg=optimizer.state[x[1]]["exp_avg"] * 2),
    "replaces an entry": lambda optimizer, x: optimizer.state.update(
        {x[1]: {name: value.clone() for name, value in optimizer.state[x[1]].items()}}
    ),
    "forgets an entry": lambda optimizer, x: optimizer.state.pop(x[1]),
    "restarts a count": lambda optimizer, x: optimizer.state[x[0]]["step"].zero_(),
    "loads": lambda optimizer, x: optimizer.load_state_dict(optimizer.state_dict()),
    "changes lr": lambda optimizer, x: optimizer.param_groups[0].update(lr=optimizer.param_groups[0]["lr"] / 2),
    "changes lr in place": lambda optimizer, x: optimizer.param_groups[0]["lr"].mul_(0.7),
    "changes betas": _changes_betas,
    "maximizes": lambda optimizer, x: optimizer.param_groups[0].update(maximize=True),
    "penalizes otherwise": lambda optimizer, x: optimizer.param_groups[0].update(penalty=Hard()),
    "stops kernels": lambda optimizer, x: optimizer.param_groups[0].update(foreach=True),
    "adds a group": _adds_a_group,
    "decays": lambda optimizer, x: optimizer.param_groups[0].update(weight_decay=0.1),
    "regularizes": lambda optimizer, x: optimizer.param_groups[0].update(l21=0.01),
    "regroups": lambda optimizer, x: optimizer.param_groups[0].update(l21=0.05, groups="all"),
    "leaves out": lambda optimizer, x: setattr(x[2], "grad", None),
    "strides a gradient": _strides_a_gradient,
    "takes rows": _takes_rows,
}


def _trained(changes: list[str], *, rebuilt: bool) -> list[Tensor]:
    """Weights after steps, before each of which something is changed; `rebuilt`: by an optimizer made for the step.

    That one takes PyTorch's operations, not compiled ones.
    """
    torch.manual_seed(0)
    x = [nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(2, 3, 4))]
    optimizer = GroupAdam(x, lr=torch.tensor(0.1), l21=1e-3, fused=False if rebuilt else None)
    for change in [None, None, None, *changes, None, None]:
        for one in x:
            one.grad = torch.randn_like(one)
        if change is not None:
            CHANGES[change](optimizer, x)
        if rebuilt:
            before, optimizer = optimizer, GroupAdam(x)
            optimizer.__setstate__(before.__getstate__())
        optimizer.step()
    return [one.detach().clone() for one in x]


SEVERAL = [["regularizes", "regroups"], ["changes betas"] * 3, ["takes rows", "changes lr", "takes rows"]]


@over("changes", [*([change] for change in CHANGES), *SEVERAL, [*CHANGES][:-1] * 2])
def test_changes_between_two_steps_count(changes: list[str]) -> None:
    torch.testing.assert_close(_trained(changes, rebuilt=False), _trained(changes, rebuilt=True))


@over("in_place", [lambda index: index.fill_(0), lambda index: index.set_(torch.tensor([0, 0, 1, 1, 1]))])
def test_an_index_of_groups_that_changes_in_place_counts(in_place: Callable[[Tensor], Tensor]) -> None:
    def trained(*, rebuilt: bool) -> Tensor:
        x, index = parameter(5, 2, dtype=torch.float32), torch.tensor([0, 1, 0, 1, 2])
        optimizer = GroupAdam([x], l21=0.3, groups=index)
        for t in range(4):
            if t == 2:
                in_place(index)
                if rebuilt:
                    before, optimizer = optimizer, GroupAdam([x])
                    optimizer.__setstate__(before.__getstate__())
            x.grad = wave(x, t)
            optimizer.step()
        return x.detach()

    assert torch.equal(trained(rebuilt=False), trained(rebuilt=True))


def test_a_step_keeps_neither_a_gradient_nor_a_parameter_that_was_replaced() -> None:
    """Pruning replaces parameters: nothing holds the memory of the old ones."""
    optimizer = GroupAdam([{"params": [nn.Parameter(torch.ones(5))], "lr": lr} for lr in (0.1, torch.tensor(0.1))])

    def step() -> None:
        for group in optimizer.param_groups:
            group["params"][0].grad = torch.ones_like(group["params"][0])
        kept = weakref.ref(group["params"][0].grad)
        optimizer.step()
        optimizer.zero_grad()
        assert kept() is None, "freed immediately, not by the garbage collector"

    for group in optimizer.param_groups:
        step()
        step()
        gone = group["params"][0]
        reference = weakref.ref(gone)
        group["params"][0] = nn.Parameter(torch.ones(3))
        del optimizer.state[gone], gone
        step()
        assert reference() is None
        assert (group["params"][0] != 1).all()


class Clipping(GroupAdam):
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        return super().step(closure)


@over("cls", [GroupAdam, Clipping])
def test_hooks_and_profilers_see_each_step_once(cls: type[GroupAdam]) -> None:
    x = nn.Parameter(torch.ones(4))
    x.grad = torch.ones(4)
    optimizer, seen = cls([x]), list[tuple[str, bool]]()
    optimizer.register_step_pre_hook(lambda *_: seen.append(("before", bool((x == 1).all()))))
    removable = optimizer.register_step_post_hook(lambda *_: seen.append(("after", bool((x == 1).all()))))
    handle = register_optimizer_step_post_hook(lambda *_: seen.append(("after all", False)))
    try:
        assert optimizer.step(lambda: 2.0) == 2.0
    finally:
        handle.remove()
    assert seen == [("before", True), ("after", False), ("after all", False)]
    optimizer.step()
    assert seen[3:] == [("before", False), ("after", False)]
    removable.remove()
    optimizer.step()
    assert seen[5:] == [("before", False)]
    unhooked = cls([x])
    with torch.profiler.profile() as profile:
        unhooked.step()
    assert f"Optimizer.step#{cls.__name__}.step" in {event.key for event in profile.key_averages()}


# Tensors that are subclasses: those without separate memory are stepped by PyTorch's operations.


def stepped(x: nn.Parameter, kind: type, **options: Any) -> Optimizer:
    optimizer = kind([x], lr=0.1, **options)
    draw = torch.Generator().manual_seed(0)
    for _ in range(4):
        gradient = torch.randn(4, 3, generator=draw) * torch.tensor([[3.0], [0.01], [2.0], [0.02]])
        x.grad = TwoTensor(gradient, gradient.clone()) if isinstance(x, TwoTensor) else gradient
        optimizer.step()
    return optimizer


@over("kind", [GroupAdam, GroupFTRL, GroupSGD])
@over("options", [{}, {"l21": 1.0}, {"l21": 1.0, "groups": "columns"}, {"l21": 1.0, "fused": True}])
def test_a_tensor_that_wraps_others_is_stepped_as_these(kind, options):
    start = parameter(4, 3, dtype=torch.float32).detach()
    wrapping, plain = nn.Parameter(TwoTensor(start.clone(), start.clone())), nn.Parameter(start.clone())
    optimizer = stepped(wrapping, kind, **options)
    other = stepped(plain, kind, **options)
    for part in (wrapping.a, wrapping.b):
        torch.testing.assert_close(part, plain.detach(), rtol=1e-5, atol=1e-6)
        assert torch.equal(part == 0, plain == 0)
    assert str(sparsity_report(optimizer)) == str(sparsity_report(other))
