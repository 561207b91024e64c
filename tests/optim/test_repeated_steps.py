"""What a step keeps from the step before is used for as long as it holds, and what watches steps still sees them."""

import gc
import weakref
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from over import over
from sparsegroup import GroupAdam

Change = Callable[[GroupAdam, list[nn.Parameter]], None]


def _moves_state(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    state = optimizer.state[x[1]]["exp_avg"]
    state.data = state.data.clone()


def _strides_a_gradient(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    assert x[0].grad is not None
    x[0].grad = x[0].grad.t().clone().t()


CHANGES: dict[str, Change] = {
    "moves weights": lambda optimizer, x: setattr(x[0], "data", x[0].data.clone()),
    "transposes weights": lambda optimizer, x: setattr(x[0], "data", x[0].data.t()),
    "moves state": _moves_state,
    "replaces state": lambda optimizer, x: optimizer.state[x[1]].update(exp_avg=optimizer.state[x[1]]["exp_avg"] * 2),
    "replaces an entry": lambda optimizer, x: optimizer.state.update(
        {x[1]: {name: value.clone() for name, value in optimizer.state[x[1]].items()}}
    ),
    "forgets an entry": lambda optimizer, x: optimizer.state.pop(x[1]),
    "restarts a count": lambda optimizer, x: optimizer.state[x[0]]["step"].zero_(),
    "loads": lambda optimizer, x: optimizer.load_state_dict(optimizer.state_dict()),
    "changes lr": lambda optimizer, x: optimizer.param_groups[0].update(lr=optimizer.param_groups[0]["lr"] / 2),
    "decays": lambda optimizer, x: optimizer.param_groups[0].update(weight_decay=0.1),
    "regularizes": lambda optimizer, x: optimizer.param_groups[0].update(l21=0.01),
    "leaves out": lambda optimizer, x: setattr(x[2], "grad", None),
    "strides a gradient": _strides_a_gradient,
}


def _trained(changes: list[str], *, fused: bool | None) -> list[Tensor]:
    """Weights after some steps, before each of which something is changed."""
    torch.manual_seed(0)
    x = [nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(2, 3, 4))]
    optimizer = GroupAdam(x, lr=0.1, fused=fused)
    for change in [None, None, None, *changes, None, None]:
        for one in x:
            one.grad = torch.randn_like(one)
        if change is not None:
            CHANGES[change](optimizer, x)
        optimizer.step()
    return [one.detach().clone() for one in x]


@over("changes", [*([change] for change in CHANGES), [*CHANGES] * 2])
def test_changes_between_two_steps_count(changes: list[str]) -> None:
    torch.testing.assert_close(_trained(changes, fused=None), _trained(changes, fused=False))


def test_a_step_keeps_no_gradient() -> None:
    x = nn.Parameter(torch.randn(4, 4))
    optimizer = GroupAdam([x])
    for _ in range(3):
        x.grad = torch.randn(4, 4)
        kept = weakref.ref(x.grad)
        optimizer.step()
        optimizer.zero_grad()
        gc.collect()
        assert kept() is None


def test_a_parameter_that_was_replaced_is_not_kept() -> None:
    """Pruning replaces parameters: nothing holds the memory of the old ones."""
    optimizer = GroupAdam([{"params": [nn.Parameter(torch.ones(5))], "lr": lr} for lr in (0.1, torch.tensor(0.1))])

    def step() -> None:
        for group in optimizer.param_groups:
            group["params"][0].grad = torch.ones_like(group["params"][0])
        optimizer.step()

    for group in optimizer.param_groups:
        step()
        gone = group["params"][0]
        reference = weakref.ref(gone)
        group["params"][0] = nn.Parameter(torch.ones(3))
        del optimizer.state[gone], gone
        step()
        gc.collect()
        assert reference() is None
        assert (group["params"][0] != 1).all()


class Clipping(GroupAdam):
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        return super().step(closure)


@over("cls", [GroupAdam, Clipping])
def test_hooks_see_each_step_once(cls: type[GroupAdam]) -> None:
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


def test_a_profiler_sees_the_step() -> None:
    x = nn.Parameter(torch.randn(4))
    x.grad = torch.ones(4)
    optimizer = GroupAdam([x])
    with torch.profiler.profile() as profile:
        optimizer.step()
    assert "Optimizer.step#GroupAdam.step" in {event.key for event in profile.key_averages()}
