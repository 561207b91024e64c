"""Arguments: torch's names, places and defaults, as rules declare them, per param group; bad ones are named."""

import copy
import inspect
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingWarmRestarts, CyclicLR, OneCycleLR
from torch.optim.swa_utils import SWALR

import sparsegroup
from optimizer_cases import (
    ALL,
    ALLOW_CREATE_GRAPH,
    assert_identical,
    backward,
    make,
    parameter,
    refused,
    separable_loss,
    train,
)
from over import over
from sparsegroup import (
    MCP,
    GroupAdagrad,
    GroupAdaHessian,
    GroupAdam,
    GroupAMSGrad,
    GroupFTRL,
    GroupMomentum,
    GroupOptimizer,
    GroupSGD,
    optim,
)
from sparsegroup.optim.arguments import defaults_of
from sparsegroup.penalties import MetricNorm
from sparsegroup.rules import REQUIRED

pytestmark = ALLOW_CREATE_GRAPH

PAGE = Path(__file__).parents[2] / "docs" / "optimizers.md"
COUNTERPART = {
    GroupSGD: torch.optim.SGD,
    GroupMomentum: torch.optim.SGD,
    GroupAdagrad: torch.optim.Adagrad,
    GroupAdam: torch.optim.Adam,
    GroupAMSGrad: torch.optim.Adam,
}
SHARED = optim.arguments.DEFAULTS
NOT_DECLARED = {GroupAdaHessian: ["generator"]}
"""Arguments of the optimizer, not of its param groups."""
# One value per argument that differs from the default and is valid with the others.
OTHER_VALUES: dict[str, Any] = {
    **{"lr": 0.05, "momentum": 0.5, "nesterov": True, "weight_decay": 0.03, "lr_decay": 0.2, "eps": 1e-3},
    **{"initial_accumulator_value": 0.3, "beta": 0.7, "betas": (0.7, 0.8), "maximize": True},
    **{"spatial_average_block_size": (1, 1, 1, 1), "l1": 0.02, "l21": 0.03, "l2": 0.04, "groups": "columns"},
    **{"norm": "metric", "penalty": MCP(gamma=2.0), "state_dtype": torch.float32},
}
PER_GROUP = [
    (cls, name)
    for cls in ALL
    for name in defaults_of(cls.rule)
    if (cls is GroupAdam or name not in SHARED) and name in OTHER_VALUES
]


def arguments_of(cls: type[GroupOptimizer]) -> dict[str, inspect.Parameter]:
    """Return the named arguments of a constructor except `params`."""
    params, *named, options = inspect.signature(cls).parameters.values()
    assert (params.name, options.kind) == ("params", options.VAR_KEYWORD)
    return {one.name: one for one in named}


@over("cls", COUNTERPART)
def test_names_places_and_defaults_are_torchs(cls):
    """`SGD(params, 0.1, 0.9, 0, 1e-4)` with the class name changed means the same, or is refused by name."""
    ours, of_torch = arguments_of(cls), inspect.signature(COUNTERPART[cls]).parameters
    by_place = [
        [name for name, one in every.items() if one.kind is one.POSITIONAL_OR_KEYWORD and name != "params"]
        for every in (ours, of_torch)
    ]
    assert by_place[0] == by_place[1][: len(by_place[0])]
    for name, argument in ours.items():
        # Not torch's default, on purpose: momentum is what the class is for.
        expected = 0.9 if (cls, name) == (GroupMomentum, "momentum") else of_torch[name].default
        assert argument.default == expected, name
    # Plain SGD has no momentum: these are unknown to GroupSGD.
    for name in of_torch.keys() - ours.keys() - SHARED.keys() - {"params", "momentum", "nesterov"}:
        make(cls, [parameter(2)], **{name: of_torch[name].default})
        value = 0.5 if name == "dampening" else True
        if value == cls.implied.get(name):
            make(cls, [parameter(2)], **{name: value})
            continue
        with pytest.raises(ValueError, match=name):
            make(cls, [parameter(2)], **{name: value})


@over("cls", ALL)
def test_a_constructor_has_the_defaults_of_its_rule_and_explains_each_argument(cls):
    assert cls.__name__ in sparsegroup.__all__
    shown, names = arguments_of(cls), [one.name for one in cls.rule.hyperparameters]
    assert set(shown) == {*names, *NOT_DECLARED.get(cls, [])}
    for one in cls.rule.hyperparameters:
        assert shown[one.name].default == one.default, one.name
    documentation = inspect.getdoc(cls)
    parents = [one for one in (GroupAdam, GroupAdagrad) if f"The arguments are `{one.__name__}`'s" in documentation]
    explained = inspect.getdoc(parents[0]) if parents else documentation
    for name in names:
        assert re.search(rf"^    {name}: .", explained, re.MULTILINE), name
    assert f">>> from sparsegroup import {cls.__name__}\n" in documentation


def is_by_name(cls: type[GroupOptimizer], name: str) -> bool:
    argument = arguments_of(cls)[name]
    return argument.kind is argument.KEYWORD_ONLY


def test_the_documentation_has_every_default_and_range():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| `Group\w+` \| `", line)]
    expected = [
        f"| `{cls.__name__}` | `{one.name}`{', by name' if is_by_name(cls, one.name) else ''} "
        f"| {'required' if one.default is REQUIRED else f'`{one.default}`'} | {one.valid} |"
        for cls in ALL
        for one in cls.rule.hyperparameters
    ]
    assert sorted(rows) == sorted(expected)


def test_arguments_are_given_by_place_or_by_name_and_checked_without_parameters():
    by_place = GroupAdam([parameter(2)], 0.1, (0.5, 0.6), 1e-3, 0.2, l21=0.3)
    by_name = GroupAdam([parameter(2)], weight_decay=0.2, eps=1e-3, betas=(0.5, 0.6), lr=0.1, l21=0.3)
    assert by_place.defaults == by_name.defaults
    arguments = GroupMomentum.checked_arguments(lr=0.1, nesterov=True, l1=0.5)
    assert (arguments["lr"], arguments["momentum"], arguments["nesterov"], arguments["l1"]) == (0.1, 0.9, True, 0.5)
    with pytest.raises(TypeError, match="multiple values for argument 'lr'"):
        GroupAdam([parameter(2)], 0.1, lr=0.1)
    for call in (partial(GroupFTRL, [parameter(2)]), GroupFTRL.checked_arguments):
        with pytest.raises(TypeError, match=r"missing .*required .*argument.* 'lr'"):
            call()
    numbers = GroupAdam([parameter(2)], lr=np.float32(0.5), l21=np.int64(1), betas=[np.float32(0.5), 0.75])
    assert (numbers.defaults["lr"], numbers.defaults["l21"]) == (0.5, 1)


def test_an_optimizer_with_a_rule_alone_takes_the_hyperparameters_by_name():
    class Plain(GroupOptimizer):
        rule = GroupAdam.rule

    x, y = parameter(3), parameter(3)
    for optimizer in (Plain([x], lr=0.1, betas=(0.5, 0.6), l1=0.01), GroupAdam([y], 0.1, (0.5, 0.6), l1=0.01)):
        train(optimizer, 3)
    assert torch.equal(x, y)
    with pytest.raises(TypeError, match="Plain got an unexpected argument 'beta'; did you mean 'betas'"):
        Plain([x], beta=0.5)


@over(("cls", "name"), PER_GROUP)
def test_an_argument_of_one_param_group_acts_on_that_group_only(cls, name):
    base = {"weight_decay": 0.01, "l1": 0.01, "l21": 0.01}
    if name == "penalty":  # read where some groups are shrunk and not zero
        base |= {"l21": 2.0}

    def trained(first: dict[str, Any], second: dict[str, Any]) -> list[nn.Parameter]:
        x = [parameter(4, 3, seed=1), parameter(4, 3, seed=2)]
        train(make(cls, [{"params": [one], **of} for one, of in zip(x, (first, second), strict=True)], **base), 4)
        return x

    other = {name: OTHER_VALUES[name]}
    (one, changed), (plain, default), (_, alone) = trained({}, other), trained({}, {}), trained(other, other)
    assert_identical([one, changed], [plain, alone])
    assert not torch.equal(changed, default), "the argument has no effect"


def test_the_params_of_a_group_may_come_from_a_generator_and_with_names():
    model = nn.Linear(3, 2)
    group = {"params": (item for item in model.named_parameters()), "l21": 0.1}
    optimizer = GroupAdam([group])
    assert group.keys() == {"params", "l21"}
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]
    assert optimizer.param_groups[0]["params"] == list(model.parameters())


NAN, INF = float("nan"), float("inf")
NOT_IN_RANGE = (-0.1, NAN, INF, "x", None, True, torch.tensor(0.1))
VALUES = {
    "lr": (-0.1, NAN, INF, "0.1", None, True, 1j, torch.tensor([0.1, 0.2]), torch.tensor(NAN), torch.tensor(1j)),
    "l21": (*NOT_IN_RANGE, 2**63, -(2**70), 10**5000),
    **dict.fromkeys(("l1", "l2", "eps", "weight_decay", "beta", "momentum", "lr_decay"), NOT_IN_RANGE[:1]),
    "initial_accumulator_value": NOT_IN_RANGE[:1],
    "nesterov": ("yes",),
    "betas": ((1.0, 0.9), (0.9, 1.0), (-0.1, 0.9), (0.9, NAN), (0.9,), (0.9,) * 3, None, 0.9, ("a", 0.9)),
    "norm": ("t", None, 2, []),
    "penalty": (
        *("scud", None, 0, {}, {"name": "mcp", "gama": 2.0}, {"name": "lasso", "gamma": 2.0}),
        *({"name": "mcp", "gamma": gamma} for gamma in (1.0, -2.0, NAN, INF, None)),
    ),
    "groups": ("row", "", None, 1.5, True, [0, 1], 2, -3, torch.zeros(3, dtype=torch.int64)),
    "spatial_average_block_size": ((1, 1, 1), (0, 1, 1, 1), (-2, 1, 1, 1), (1.5, 1, 1, 1), 3, None, ("a",) * 4),
}
OWNERS = {
    **{"momentum": GroupMomentum, "nesterov": GroupMomentum, "lr_decay": GroupAdagrad, "beta": GroupFTRL},
    **{"initial_accumulator_value": GroupFTRL, "spatial_average_block_size": GroupAdaHessian},
}
BAD = [(OWNERS.get(name, GroupAdam), name, value) for name, values in VALUES.items() for value in values]
ONE_PER_ARGUMENT = [(OWNERS.get(name, GroupAdam), name, values[0]) for name, values in VALUES.items()]
"""All entry points check with the function that the constructor's test tries in full."""


def two_groups(cls: type[GroupOptimizer] = GroupAdam, **second: Any) -> GroupOptimizer:
    """Trained for two steps, with gradients for a third; its second param group has one more parameter."""
    optimizer = make(cls, [{"params": [parameter(4, 3)]}, {"params": [parameter(4, 3, seed=1)], "l21": 0.02}], l1=0.01)
    train(optimizer, 2)
    optimizer.param_groups[1].update(second)
    first, other = (group["params"][0] for group in optimizer.param_groups)
    backward(optimizer, separable_loss(first) + separable_loss(other))
    return optimizer


@over(("cls", "name", "value"), BAD)
def test_a_bad_argument_is_named_by_the_constructor(cls, name, value):
    place = cls.__name__ if name in ("norm", "penalty") else "param group 0"
    with pytest.raises((ValueError, TypeError), match=f"{name}.*{place}"):
        make(cls, [parameter(4, 3)], **{name: value})


@over(("cls", "name", "value"), ONE_PER_ARGUMENT)
def test_a_bad_argument_adds_no_group_and_stops_the_whole_step(cls, name, value):
    """The first param group is in order, and must not be updated either."""
    optimizer = two_groups(cls)
    with refused(optimizer, (ValueError, TypeError), f"{name}.*param group 2"):
        optimizer.add_param_group({"params": [parameter(4, 3)], name: value})
    optimizer.param_groups[1][name] = value
    with refused(optimizer, (ValueError, TypeError), f"{name}.*param group 1"):
        optimizer.step()


IDS = torch.zeros(4, dtype=torch.int64)
COMPLEX = torch.zeros(2, dtype=torch.complex64)
MESSAGES = [
    # The value, and the name of the argument and of the optimizer.
    (GroupAdam, [parameter(2)], {"l21": -0.5}, ValueError, r"l21 must be >= 0, got -0\.5 \(param group 0\)"),
    (GroupAdam, [parameter(2)], {"l21": NAN}, ValueError, r"l21 must be >= 0, got nan \(param group 0\)"),
    (GroupAdam, [parameter(2)], {"l21": 2**63}, ValueError, r"l21 must be .* below 2⁶³, got an int of 64 bits"),
    (GroupAdam, [parameter(2)], {"betas": (2, 0)}, ValueError, r"betas must be two numbers in \[0, 1\), got \(2, 0\)"),
    (GroupMomentum, [parameter(2)], {"nesterov": "yes"}, ValueError, "nesterov must be True or False, got 'yes'"),
    (GroupMomentum, [parameter(2)], {"momentum": 0.0, "nesterov": True}, ValueError, r"True needs momentum > 0 \(par"),
    (GroupAdam, [parameter(2)], {"fused": True, "foreach": True}, ValueError, "exclude each other"),
    (GroupAdam, [parameter(2)], {"state_dtype": torch.half}, ValueError, "state_dtype must be None, torch.float32 or"),
    # Arguments that are not there, or are torch's and not supported.
    (GroupAdam, [parameter(2)], {"l12": 0.1}, TypeError, "GroupAdam got an unexpected argument 'l12'"),
    (GroupAdam, [parameter(2)], {"learning_rate": 0.1}, TypeError, "GroupAdam.*'learning_rate'"),
    (GroupFTRL, [parameter(2)], {"lr": None, "lambda1": 0.1}, TypeError, "GroupFTRL.*'lambda1'"),
    (GroupAdam, [parameter(2)], {"amsgrad": True}, ValueError, "amsgrad=True is not supported .* use GroupAMSGrad"),
    (GroupAdam, [parameter(2)], {"decoupled_weight_decay": True}, ValueError, "decoupled weight decay is no gradient"),
    (GroupAdaHessian, [parameter(2)], {"hessian_power": 0.5}, ValueError, "hessian_power=0.5 .* hessian_power=1"),
    (GroupAdam, [parameter(2)], {"differentiable": True}, ValueError, "the step runs without autograd"),
    (GroupAdam, [parameter(2)], {"capturable": True}, ValueError, "capturable=True needs parameters on a GPU"),
    # Groups that do not fit.
    (GroupAdam, [parameter(4, 3), parameter(5, 3)], {"groups": IDS}, ValueError, "param group 0, parameter 1"),
    (GroupAdam, [("a", parameter(4)), ("b", parameter(5))], {"groups": IDS}, ValueError, r"\[5\].*\[4\].* group 0, b"),
    (GroupAdam, [parameter(4)], {"groups": IDS[:, None]}, ValueError, r"groups.*\[4\].*\[4, 1\]"),
    (GroupAdam, [parameter()], {"groups": IDS[:0]}, ValueError, "groups.* 0-d parameter"),
    (GroupAdam, [parameter(4)], {"groups": IDS.int()}, TypeError, "groups.*int64.*int32"),
    (GroupAdam, [parameter(4)], {"groups": IDS - 2}, ValueError, "groups.*>= 0.*-2"),
    (GroupAdam, [parameter(4)], {"groups": np.zeros(4, int)}, TypeError, "groups.*array"),
    (GroupAdam, [("bias", parameter(4))], {"groups": "columns"}, ValueError, r"groups='columns'.*\[4\].*bias"),
    # Parameters of a kind that is not supported, and what is no list of parameters.
    (GroupAdam, [parameter(2), COMPLEX], {}, ValueError, "float16, got torch.complex64 .*parameter 1"),
    (GroupAdam, [torch.zeros(2, dtype=torch.int64)], {}, ValueError, "int64"),
    (GroupAdam, [torch.eye(2).to_sparse().requires_grad_()], {}, ValueError, "dense.*sparse_coo"),
    (GroupAdam, ["weight"], {}, TypeError, "parameters must be tensors, got str"),
    (GroupAdam, [nn.Linear(2, 2)], {}, TypeError, "got a module, Linear"),
    (GroupAdam, nn.Linear(2, 2).parameters, {}, TypeError, r"got the function 'parameters': call it, parameters\(\)"),
    (GroupAdam, {"params": [parameter(2)]}, {}, TypeError, r"give \[group\]"),
    (GroupAdam, parameter(2), {}, TypeError, r"an iterable of parameters: give \[parameter\]"),
    (GroupAdam, [parameter(2) * 2], {}, ValueError, "non-leaf"),
    (GroupAdam, [], {}, ValueError, "empty"),
    (GroupAdam, [{"params": {parameter(2)}}], {}, TypeError, "ordered"),
]


@over(("cls", "params", "options", "error", "match"), MESSAGES)
def test_a_message_names_what_does_not_fit(cls, params, options, error, match):
    with pytest.raises(error, match=match):
        cls(params, **options)


def test_a_param_group_that_cannot_be_added_changes_nothing():
    optimizer = two_groups()
    own = optimizer.param_groups[0]["params"][0]
    for group, error, match in (
        ([parameter(2)], TypeError, "param_group must be a dict"),
        ({"params": [parameter(2), own]}, ValueError, "more than one parameter group"),
        ({"params": [parameter(2), COMPLEX]}, ValueError, "complex64.*param group 2, parameter 1"),
        ({"params": [parameter(2)], "amsgrad": True}, (TypeError, ValueError), "amsgrad"),
    ):
        with refused(optimizer, error, match):
            optimizer.add_param_group(group)
    optimizer.add_param_group({"params": [parameter(2)]})


@over("name", ["capturable", "differentiable"])
def test_an_argument_for_gpus_is_accepted_at_its_default_and_refused_after_loading(name):
    # torch's `__setstate__` adds "differentiable" to the defaults, which must not make it a known argument.
    for value in (None, False):
        GroupAdam([parameter(2)], **{name: value})
        optimizer = GroupAdam([{"params": [parameter(2)], name: value}])
    optimizer.load_state_dict(optimizer.state_dict())
    with refused(optimizer, (TypeError, ValueError), name):
        optimizer.add_param_group({"params": [parameter(2)], name: True})


SPARSE = {
    "weight decay": ({"weight_decay": 0.1}, 1, "weight_decay=0.1.*sparse.*param group 1"),
    "columns": ({"groups": "columns"}, 1, "sparse.*groups='rows'.*'columns'.*param group 1"),
    "dimension 1": ({"groups": 1}, 1, "sparse.*groups='rows'.*1.*param group 1"),
    "index": ({"groups": torch.tensor([0, 0, 1, 1])}, 1, "sparse.*groups='rows'.*param group 1"),
    "two sparse dimensions": ({}, 2, "sparse_dim 1, got 2.*param group 1, parameter 0"),
}


@over(("arguments", "sparse_dim", "match"), SPARSE.values())
def test_a_sparse_gradient_that_cannot_be_taken_stops_the_whole_step(arguments, sparse_dim, match):
    """Only the second parameter's is one: the first must not be updated either."""
    optimizer = two_groups(**arguments)
    bad = optimizer.param_groups[1]["params"][0]
    bad.grad = bad.grad.to_sparse(sparse_dim)
    with refused(optimizer, ValueError, match):
        optimizer.step()
    bad.grad = bad.grad.to_dense()
    optimizer.step()


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], object]] = {
    "one cycle": lambda optimizer: OneCycleLR(optimizer, 0.1, total_steps=10),
    "cyclic": lambda optimizer: CyclicLR(optimizer, 0.1, 0.2, cycle_momentum=False),
    "stochastic weight averaging": lambda optimizer: SWALR(optimizer, 0.1),
    "warm restarts": lambda optimizer: CosineAnnealingWarmRestarts(optimizer, 5),
}


@over("schedule", SCHEDULES)
def test_the_groups_of_a_scheduled_optimizer_make_another(schedule):
    optimizer = GroupAdam([("weight", parameter(2))], l21=0.5)
    SCHEDULES[schedule](optimizer)
    again = GroupAdam(optimizer.param_groups)
    assert again.param_groups[0].keys() >= optimizer.param_groups[0].keys()
    assert again.param_groups[0]["l21"] == 0.5
    train(again, 2)


def test_a_users_entries_are_kept_with_one_warning_and_change_nothing():
    x, y = parameter(3), parameter(3)
    groups = [{"params": [x], "layer": [3], "l12": 0.5}, {"params": [parameter(2)], "layer": [4]}]
    with pytest.warns(RuntimeWarning) as caught:
        optimizer = make(GroupAdam, groups)
    (warning,) = caught
    assert re.search(r"param group 0 .*GroupAdam .*'l12' \(did you mean .*'l21'\?\), 'layer'", str(warning.message))
    plain = make(GroupAdam, [y])
    for one in (optimizer, plain):
        train(one, 3)
    assert torch.equal(x, y)
    assert optimizer.param_groups[0]["layer"] == optimizer.state_dict()["param_groups"][0]["layer"] == [3]
    assert groups[0].keys() == {"params", "layer", "l12"}


def test_a_warning_is_reported_where_the_user_calls():
    with pytest.warns(RuntimeWarning, match="'layer'") as of_constructor:
        optimizer = GroupAdam([{"params": [parameter(3)], "layer": 1}])
    with pytest.warns(RuntimeWarning, match="'block'") as of_method:
        optimizer.add_param_group({"params": [parameter(3)], "block": 1})
    assert [one.filename for one in (*of_constructor, *of_method)] == [__file__] * 2


@over(
    ("name", "object", "other"), [("penalty", MCP(), {"name": "mcp", "gamma": 2.0}), ("norm", MetricNorm(), "s_tilde")]
)
def test_norm_and_penalty_are_objects_in_param_groups_however_they_are_given(name, object, other):
    optimizer = GroupAdam([{"params": [parameter(4, 3)]}], l21=0.5, **{name: object.name})
    optimizer.add_param_group({"params": [parameter(4, 3)], name: other})
    kind = type(object).__mro__[1]
    assert optimizer.defaults[name] == optimizer.param_groups[0][name] == object
    assert optimizer.param_groups[1][name] == kind.of(other)
    optimizer.param_groups[0][name] = other  # by a scheduler, or the user
    assert optimizer.state_dict()["param_groups"][0][name] == kind.of(other).plain
    train(optimizer, 1)
    assert [group[name] for group in optimizer.param_groups] == [kind.of(other)] * 2
    critical = []
    for given in (object.name, object):
        optimizer.param_groups[0][name] = given
        critical.append(optimizer.census(0)[0].critical)
    assert np.array_equal(*critical)


def test_parameters_that_have_no_shape_yet():
    model = nn.Sequential(nn.LazyLinear(3), nn.LazyLinear(1))
    optimizer = make(GroupAdam, [{"params": list(model.parameters()), "l21": 0.1, "weight_decay": 0.1}])
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    assert optimizer.state[model[0].weight]["exp_avg"].shape == (3, 4)


def test_parameters_that_have_no_shape_yet_are_checked_when_they_have():
    model = nn.LazyLinear(3)
    optimizer = make(GroupAdam, [{"params": list(model.parameters()), "groups": "columns"}])
    model(torch.ones(2, 4)).sum().backward()
    with pytest.raises(ValueError, match="columns"):
        optimizer.step()


def test_an_optimizer_with_state_of_a_removed_group_is_copied():
    kept, removed = parameter(2), parameter(2, seed=1)
    optimizer = make(GroupAdam, [{"params": [kept]}, {"params": [removed]}])
    train(optimizer, 2)
    optimizer.param_groups.pop()
    copied = copy.deepcopy(optimizer)
    for one in (optimizer, copied):
        train(one, 2, start=2)
    assert torch.equal(copied.param_groups[0]["params"][0], kept)
