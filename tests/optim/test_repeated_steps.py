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


def _moves_weights(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    x[0].data = x[0].data.clone()


def _transposes_weights(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    x[0].data = x[0].data.t()


def _moves_state(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    state = optimizer.state[x[1]]["exp_avg"]
    state.data = state.data.clone()


def _replaces_state(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    optimizer.state[x[1]]["exp_avg"] = optimizer.state[x[1]]["exp_avg"] * 2


def _replaces_an_entry(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    optimizer.state[x[1]] = {name: value.clone() for name, value in optimizer.state[x[1]].items()}


def _forgets_an_entry(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    del optimizer.state[x[1]]


def _restarts_a_count(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    optimizer.state[x[0]]["step"].zero_()


def _loads(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    optimizer.load_state_dict(optimizer.state_dict())


def _changes_lr(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    optimizer.param_groups[0]["lr"] *= 0.5


def _decays(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    optimizer.param_groups[0]["weight_decay"] = 0.1


def _regularizes(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    optimizer.param_groups[0]["l21"] = 0.01


def _leaves_out(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    x[2].grad = None


def _strides_a_gradient(optimizer: GroupAdam, x: list[nn.Parameter]) -> None:
    assert x[0].grad is not None
    x[0].grad = x[0].grad.t().clone().t()


CHANGES = [
    _moves_weights, _transposes_weights, _moves_state, _replaces_state, _replaces_an_entry, _forgets_an_entry,
    _restarts_a_count, _loads, _changes_lr, _decays, _regularizes, _leaves_out, _strides_a_gradient,
]  # fmt: skip


def _trained(changes: list[Change], *, fused: bool | None) -> list[Tensor]:
    """Weights after some steps, before each of which something is changed."""
    torch.manual_seed(0)
    x = [nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(2, 3, 4))]
    optimizer = GroupAdam(x, lr=0.1, fused=fused)
    for change in [None, None, None, *changes, None, None]:
        for one in x:
            one.grad = torch.randn_like(one)
        if change is not None:
            change(optimizer, x)
        optimizer.step()
    return [one.detach().clone() for one in x]


@over("change", CHANGES)
def test_a_change_between_two_steps_counts(change: Change) -> None:
    torch.testing.assert_close(_trained([change], fused=None), _trained([change], fused=False))


def test_changes_one_after_another_count() -> None:
    torch.testing.assert_close(_trained(CHANGES * 2, fused=None), _trained(CHANGES * 2, fused=False))


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


def test_hooks_see_each_step() -> None:
    x = nn.Parameter(torch.randn(4))
    x.grad = torch.ones(4)
    optimizer, seen = GroupAdam([x]), list[str]()
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.register_step_post_hook(lambda *_: seen.append("after"))
    handle = register_optimizer_step_post_hook(lambda *_: seen.append("after all"))
    try:
        assert optimizer.step(lambda: 2.0) == 2.0
    finally:
        handle.remove()
    assert seen == ["before", "after", "after all"]
    optimizer.step()
    assert seen[3:] == ["before", "after"]


def test_hooks_see_a_step_of_a_subclass_once() -> None:
    class Clipping(GroupAdam):
        def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
            return super().step(closure)

    x = nn.Parameter(torch.randn(4))
    x.grad = torch.ones(4)
    optimizer, seen = Clipping([x]), list[str]()
    optimizer.register_step_pre_hook(lambda *_: seen.append("before"))
    optimizer.step()
    assert seen == ["before"]


def test_a_profiler_sees_the_step() -> None:
    x = nn.Parameter(torch.randn(4))
    x.grad = torch.ones(4)
    optimizer = GroupAdam([x])
    with torch.profiler.profile() as profile:
        optimizer.step()
    assert "Optimizer.step#GroupAdam.step" in {event.key for event in profile.key_averages()}
