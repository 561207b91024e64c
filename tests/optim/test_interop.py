"""Loading: the state of torch.optim's optimizers, what is refused, the user's hooks."""

import copy
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

from optimizer_cases import (
    ALLOW_CREATE_GRAPH,
    FIRST_ORDER,
    KINDS,
    assert_identical,
    make,
    parameter,
    refused,
    train,
)
from over import over
from sparsegroup import GroupAdagrad, GroupAdam, GroupAMSGrad, GroupMomentum, GroupSGD

pytestmark = ALLOW_CREATE_GRAPH

ADAM = torch.optim.Adam
ADAGRAD = torch.optim.Adagrad
SGD = torch.optim.SGD
SAME = [
    (GroupAdam, ADAM),
    (GroupAdam, partial(ADAM, fused=True)),
    (GroupAdam, partial(ADAM, foreach=True)),
    (GroupAdam, partial(ADAM, betas=(0.5, 0.9), eps=0.1, weight_decay=0.1, maximize=True)),
    (GroupAMSGrad, partial(ADAM, amsgrad=True)),
    (GroupAMSGrad, partial(ADAM, amsgrad=True, fused=True)),
    (GroupMomentum, partial(SGD, momentum=0.8)),
    (GroupMomentum, partial(SGD, momentum=0.8, nesterov=True, foreach=True)),
    (GroupMomentum, SGD),
    (GroupAdagrad, ADAGRAD),
    (GroupAdagrad, partial(ADAGRAD, lr_decay=0.1, initial_accumulator_value=0.2)),
]


def trained(factory: Any, steps: int = 3) -> tuple[nn.Parameter, torch.optim.Optimizer]:
    x = parameter(4, 3)
    optimizer = factory([x], lr=0.1)
    train(optimizer, steps)
    return x, optimizer


@over(("cls", "theirs"), SAME)
@over("flags", [{}, {"capturable": True, "differentiable": True}])
def test_training_goes_on_from_a_torch_state(cls, theirs, flags):
    """With u = 0 and all λ = 0 the next steps are torch's."""
    x, reference = trained(theirs)
    state = copy.deepcopy(reference.state_dict())
    for group in state["param_groups"]:  # torch's own step refuses these on a CPU, a state from a GPU has them
        group.update({name: value for name, value in flags.items() if name in group})
    y = nn.Parameter(x.detach().clone())
    ours = cls([y])
    arguments = ours.param_groups[0].keys()
    ours.load_state_dict(state)
    assert "u" not in ours.state[y]
    assert ours.param_groups[0].keys() == arguments
    train(ours, 3, start=3)
    train(reference, 3, start=3)
    torch.testing.assert_close(y, x, rtol=1e-13, atol=1e-13)


def test_a_sparse_adam_state_with_its_int_step_loads_into_group_adam():
    x = parameter(4, 3)
    reference = torch.optim.SparseAdam([x], lr=0.1)
    x.grad = parameter(4, 3, seed=1).detach().to_sparse(1)
    reference.step()
    y = nn.Parameter(x.detach().clone())
    ours = GroupAdam([y], lr=0.1)
    ours.load_state_dict(reference.state_dict())
    y.grad = x.grad
    ours.step()
    assert ours.state[y]["step"] == 2
    reference.step()
    torch.testing.assert_close(y, x, rtol=1e-6, atol=1e-6)  # but for the meaning of ε


def test_a_torch_state_keeps_our_regularizer():
    _, reference = trained(ADAM)
    y = parameter(4, 3)
    ours = GroupAdam([y], l21=0.25, groups="columns")
    ours.load_state_dict(reference.state_dict())
    (group,) = ours.param_groups
    assert (group["l21"], group["groups"], group["lr"]) == (0.25, "columns", 0.1)
    train(ours, 1, start=3)
    assert ours.state[y]["u"].abs().max() > 0


# Older ones keep a state that nothing tells from Adam's.
ADAMW_SAYS_SO = "decoupled_weight_decay" in torch.optim.AdamW([torch.zeros(1)]).param_groups[0]


@over(
    ("cls", "theirs", "match"),
    [
        (GroupAdam, partial(ADAM, amsgrad=True), "amsgrad.*GroupAMSGrad"),
        (GroupAMSGrad, ADAM, "max_exp_avg_sq"),
        *([(GroupAdam, torch.optim.AdamW, "decoupled_weight_decay")] if ADAMW_SAYS_SO else []),
        (GroupAdam, torch.optim.NAdam, "mu_product"),
        (GroupAdam, ADAGRAD, "sum"),
        (GroupMomentum, partial(SGD, momentum=0.8, dampening=0.5), "dampening"),
        (GroupSGD, partial(SGD, momentum=0.8), "momentum"),
        (GroupAdagrad, ADAM, "exp_avg"),
    ],
)
def test_a_state_of_another_rule_is_refused_by_name(cls, theirs, match):
    _, reference = trained(theirs)
    ours = cls([parameter(4, 3)], lr=0.3, l21=0.1)
    train(ours, 1)
    with refused(ours, ValueError, match):
        ours.load_state_dict(reference.state_dict())


def second(**changes: Any) -> Any:
    return lambda state: state["state"][1].update(changes)


def group(**changes: Any) -> Any:
    return lambda state: state["param_groups"][0].update(changes)


@over(
    ("change", "match"),
    [
        (second(exp_avg=torch.zeros(2, 3)), r"exp_avg.*\[2, 3\]"),
        (lambda s: s["state"][1].pop("exp_avg_sq"), "exp_avg_sq"),
        (lambda s: s["state"][1].pop("step"), "step"),
        (second(other=torch.zeros(4, 3)), "other"),
        (second(exp_avg="x"), "exp_avg"),
        (second(u=torch.zeros(())), r"'u'"),
        (group(lr=-1.0), "lr.*-1"),
        (group(l21=float("nan")), "l21.*nan"),
        (group(betas=(1.0, 0.9)), "betas"),
        (group(groups=torch.tensor([0, 1])), r"groups.*\[4\]"),
        (group(norm="t"), "norm"),
        (group(amsgrad=True), "amsgrad"),
        (lambda s: s["param_groups"][0]["params"].pop(), "size"),
        (lambda s: s["param_groups"].clear(), "number"),
    ],
)
def test_a_broken_state_is_refused_and_changes_nothing(change, match):
    optimizer = GroupAdam([parameter(4, 3), parameter(4, 3)], lr=0.1, l21=0.02)
    train(optimizer, 2)
    state = copy.deepcopy(optimizer.state_dict())
    train(optimizer, 1, start=2)
    change(state)
    with refused(optimizer, (ValueError, TypeError), match):
        optimizer.load_state_dict(state)
    train(optimizer, 1, start=3)


def test_state_of_no_parameter_is_carried_along_as_in_torch():
    optimizer = GroupAdam([parameter(2)])
    state = optimizer.state_dict()
    state["state"]["of the whole"] = 3
    optimizer.load_state_dict(state)
    assert optimizer.state["of the whole"] == 3


@over("cls", KINDS)
@over("prepend", [False, True])
def test_the_users_load_hooks_come_first(cls, prepend):
    x, y = parameter(4, 3), parameter(4, 3)
    optimizer, other = make(cls, [x], l21=0.02), make(cls, [y], l21=0.02)
    train(optimizer, 2)

    def rename(_, state):  # state that only the hook makes loadable
        entry = {name.removeprefix("old_"): value for name, value in state["state"][0].items()}
        return {**state, "state": {0: entry}}

    called = []
    other.register_load_state_dict_pre_hook(rename, prepend=prepend)
    other.register_load_state_dict_post_hook(lambda o: called.append(o.state[y]["u"].clone()))
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][0] = {f"old_{name}": value for name, value in state["state"][0].items()}
    before = copy.deepcopy(state)
    for _ in range(2):
        other.load_state_dict(state)
    assert_identical(other.state[y], optimizer.state[x])
    assert_identical(called, [optimizer.state[x]["u"]] * 2)
    assert_identical(state, before, "what was passed in")
    assert len(other._optimizer_load_state_dict_pre_hooks) == 1


def test_state_dict_hooks_run():
    optimizer, calls = GroupAdam([parameter(2)]), []
    optimizer.register_state_dict_pre_hook(lambda o: calls.append("pre"))
    optimizer.register_state_dict_post_hook(lambda o, state: {**state, "extra": 1})
    assert optimizer.state_dict()["extra"] == 1
    assert calls == ["pre"]


@over("cls", FIRST_ORDER)
def test_distributed_checkpoint_knows_all_state_before_the_first_step(cls):
    """It loads into the entries that a step of lr = 0 on a fresh optimizer makes: what is not there is not loaded."""

    def entries(steps: int) -> Any:
        model = nn.Linear(3, 2, dtype=torch.float64)
        optimizer = make(cls, model.parameters(), l21=0.02)
        train(optimizer, steps)
        return get_optimizer_state_dict(model, optimizer)["state"]["weight"].keys()

    assert entries(3) == entries(0)
