"""The constructor: torch's names, places and defaults, every argument per param group, refusals by name."""

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from optimizer_cases import ALL, ALLOW_CREATE_GRAPH, assert_identical, make, parameter, refused, train
from over import over
from sparsegroup import (
    MCP,
    GroupAdagrad,
    GroupAdaHessian,
    GroupAdam,
    GroupAMSGrad,
    GroupFTRL,
    GroupMomentum,
    GroupSGD,
)

pytestmark = ALLOW_CREATE_GRAPH

COUNTERPART = {
    GroupSGD: torch.optim.SGD,
    GroupMomentum: torch.optim.SGD,
    GroupAdagrad: torch.optim.Adagrad,
    GroupAdam: torch.optim.Adam,
    GroupAMSGrad: torch.optim.Adam,
}
SHARED = {
    "l1": 0.0,
    "l21": 0.0,
    "l2": 0.0,
    "groups": "rows",
    "norm": "s",
    "penalty": "lasso",
    "maximize": False,
    "state_dtype": None,
    "foreach": None,
    "fused": None,
    "capturable": False,
}
# Not torch's default, on purpose: momentum is what the class is for.
OTHER_DEFAULTS = {(GroupMomentum, "momentum"): 0.9}
NOT_ON_THE_CPU = ("capturable", "differentiable")
NOT_SUPPORTED = {"amsgrad": True, "decoupled_weight_decay": True, "dampening": 0.5, "hessian_power": 0.5}

# One value per argument that differs from the default and is valid beside the others.
OTHER_VALUES: dict[str, Any] = {
    "lr": 0.05,
    "momentum": 0.5,
    "nesterov": True,
    "weight_decay": 0.03,
    "lr_decay": 0.2,
    "initial_accumulator_value": 0.3,
    "eps": 1e-3,
    "beta": 0.7,
    "betas": (0.7, 0.8),
    "spatial_average_block_size": (1, 1, 1, 1),
    "l1": 0.02,
    "l21": 0.03,
    "l2": 0.04,
    "groups": "columns",
    "norm": "metric",
    "penalty": MCP(gamma=2.0),
    "maximize": True,
    "state_dtype": torch.float32,
}
PER_GROUP = [
    (cls, name)
    for cls in ALL
    for name in inspect.signature(cls).parameters
    if cls is GroupAdam or name not in SHARED
    if name not in ("params", "generator", "foreach", "fused", "capturable")  # the optimizer's, or of how, not what
]


def positional(cls: type[torch.optim.Optimizer]) -> list[inspect.Parameter]:
    return [p for p in inspect.signature(cls).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]


@over("cls", COUNTERPART)
def test_arguments_are_torchs(cls):
    """`SGD(params, 0.1, 0.9, 0, 1e-4)` with the class name changed means the same, or is refused by name."""
    ours, theirs = positional(cls), positional(COUNTERPART[cls])
    assert [p.name for p in ours] == [p.name for p in theirs][: len(ours)]
    known, of_torch = inspect.signature(cls).parameters, inspect.signature(COUNTERPART[cls]).parameters
    for name, argument in known.items():
        default = of_torch[name].default if name in of_torch else SHARED[name]
        assert argument.default == OTHER_DEFAULTS.get((cls, name), default), name
    # Plain SGD has no momentum: these are unknown to GroupSGD.
    for name in of_torch.keys() - known.keys() - {"momentum", "nesterov"}:
        make(cls, [parameter(2)], **{name: of_torch[name].default})
        with pytest.raises(ValueError, match=name):
            make(cls, [parameter(2)], **{name: 0.5 if name == "dampening" else True})


def test_adahessian_has_the_published_arguments_and_ftrl_needs_a_learning_rate():
    expected = {"lr": 0.15, "betas": (0.9, 0.999), "eps": 1e-4, "weight_decay": 0.0}
    arguments = inspect.signature(GroupAdaHessian).parameters
    assert {name: arguments[name].default for name in expected} == expected
    with pytest.raises(TypeError, match="lr"):
        GroupFTRL([parameter(2)])


@over("cls", ALL)
def test_the_regularizers_arguments_are_shown_and_keyword_only(cls):
    arguments = inspect.signature(cls).parameters
    assert {name: arguments[name].default for name in SHARED} == SHARED
    assert all(arguments[name].kind is inspect.Parameter.KEYWORD_ONLY for name in SHARED)
    with pytest.raises(TypeError, match="positional"):
        cls([parameter(2)], *[p.default for p in positional(cls)[2:]], 0.1, 0.0, 0.0, 0.0)


@over(("cls", "name"), PER_GROUP)
def test_an_argument_of_one_param_group_acts_on_that_group_alone(cls, name):
    base = {"weight_decay": 0.01, "l1": 0.01, "l21": 0.01}
    if name == "penalty":  # read where some groups are shrunk and not zero
        base |= {"l21": 2.0}
    one, other = parameter(4, 3, seed=1), parameter(4, 3, seed=2)
    together = make(cls, [{"params": [one]}, {"params": [other], name: OTHER_VALUES[name]}], **base)
    train(together, 4)

    plain, alone = parameter(4, 3, seed=1), parameter(4, 3, seed=2)
    # A second parameter gets the loss of second parameters.
    train(make(cls, [plain, parameter(4, 3, seed=2)], **base), 4)
    train(make(cls, [parameter(4, 3, seed=1), alone], **{**base, name: OTHER_VALUES[name]}), 4)
    assert_identical([one, other], [plain, alone])
    default = parameter(4, 3, seed=2)
    train(make(cls, [parameter(4, 3, seed=1), default], **base), 4)
    assert not torch.equal(other, default), "the argument has no effect"


@over("cls", ALL)
def test_an_unsupported_argument_is_refused_by_name_for_all_and_for_one_group(cls):
    for name, value in [*NOT_SUPPORTED.items(), *((name, True) for name in NOT_ON_THE_CPU)]:
        with pytest.raises(ValueError, match=name):
            make(cls, [parameter(2)], **{name: value})
        optimizer = make(cls, [parameter(2)])
        with refused(optimizer, (TypeError, ValueError), name):
            optimizer.add_param_group({"params": [parameter(2)], name: value})


@over("name", NOT_ON_THE_CPU)
def test_an_unsupported_argument_is_accepted_at_its_default_and_refused_after_loading(name):
    # torch's `__setstate__` adds "differentiable" to the defaults, which must not make it a known argument.
    for value in (None, False):
        GroupAdam([parameter(2)], **{name: value})
        optimizer = GroupAdam([{"params": [parameter(2)], name: value}])
    optimizer.load_state_dict(optimizer.state_dict())
    with refused(optimizer, (TypeError, ValueError), name):
        optimizer.add_param_group({"params": [parameter(2)], name: True})


def test_the_params_of_a_group_may_come_from_a_generator_and_with_names():
    model = nn.Linear(3, 2)
    group = {"params": (item for item in model.named_parameters()), "l21": 0.1}
    optimizer = GroupAdam([group])
    assert group.keys() == {"params", "l21"}
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    assert optimizer.param_groups[0]["params"] == list(model.parameters())


def test_a_subclass_with_other_arguments_shows_the_shared_ones():
    class Wrapped(GroupAdam):
        def __init__(self, params, extra=1, **options):
            super().__init__(params, **options)

    expected = ["params", "extra", "lr", "betas", "eps", "weight_decay", *SHARED]
    assert list(inspect.signature(Wrapped).parameters) == expected


def test_an_argument_is_a_number_of_any_kind():
    ours = GroupAdam([parameter(2)], lr=np.float32(0.5), l21=np.int64(1), betas=[np.float32(0.5), 0.75])
    assert (ours.defaults["lr"], ours.defaults["l21"]) == (0.5, 1)
    assert "l21: 1" in repr(ours)
