"""Bad input: a clear error that names the argument, its value and the param group, and nothing has changed."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

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
from sparsegroup import (
    GroupAdagrad,
    GroupAdaHessian,
    GroupAdam,
    GroupFTRL,
    GroupMomentum,
    GroupOptimizer,
)

pytestmark = ALLOW_CREATE_GRAPH

NAN, INF = float("nan"), float("inf")
NUMBERS = {
    "lr": (-0.1, NAN, INF, "0.1", None, True, 1j, torch.tensor([0.1, 0.2]), torch.tensor(NAN), torch.tensor(1j)),
    "eps": (-1e-8, NAN, INF, "x", None, torch.tensor(1e-8)),
    "beta": (-1.0, NAN, INF, None),
    "momentum": (-0.9, NAN, INF, None, [0.9]),
    "weight_decay": (-0.1, NAN, INF, "x"),
    "lr_decay": (-0.1, NAN, INF, "x"),
    "initial_accumulator_value": (-0.1, NAN, INF, "x"),
    "l1": (-0.1, NAN, INF, "x", None, False, torch.tensor(0.1)),
    "l21": (-0.1, NAN, INF, "x", None, True, torch.tensor(0.1)),
    "l2": (-0.1, NAN, INF, "x", None, torch.tensor(0.1)),
}
OTHERS = {
    "betas": (
        (1.0, 0.9),
        (0.9, 1.0),
        (-0.1, 0.9),
        (0.9, NAN),
        (0.9,),
        (0.9, 0.9, 0.9),
        None,
        0.9,
        ("a", 0.9),
        (torch.ones(()), 0.9),
    ),
    "norm": ("t", None, 2, []),
    "penalty": (
        *("scud", None, 0, {}, {"name": "mcp", "gama": 2.0}, {"name": "lasso", "gamma": 2.0}),
        *({"name": "mcp", "gamma": gamma} for gamma in (1.0, 0.5, -2.0, NAN, INF, None)),
    ),
    "groups": ("row", "", None, 1.5, True, [0, 1], 2, -3),
    "spatial_average_block_size": ((1, 1, 1), (0, 1, 1, 1), (-2, 1, 1, 1), (1.5, 1, 1, 1), 3, None, ("a",) * 4),
}
OWNERS = {
    "momentum": GroupMomentum,
    "lr_decay": GroupAdagrad,
    "beta": GroupFTRL,
    "initial_accumulator_value": GroupFTRL,
    "spatial_average_block_size": GroupAdaHessian,
}
BAD = [(OWNERS.get(name, GroupAdam), name, value) for name, values in {**NUMBERS, **OTHERS}.items() for value in values]
ONE_PER_ARGUMENT = [(OWNERS.get(name, GroupAdam), name, values[0]) for name, values in {**NUMBERS, **OTHERS}.items()]
"""All entry points check with the function that the constructor's test tries in full."""
INDICES = {
    "too short": (torch.tensor([0, 1, 0]), ValueError, r"groups.*\[4\].*\[3\]"),
    "too long": (torch.zeros(5, dtype=torch.int64), ValueError, r"groups.*\[4\].*\[5\]"),
    "2-d": (torch.zeros(4, 1, dtype=torch.int64), ValueError, r"groups.*\[4\].*\[4, 1\]"),
    "int32": (torch.zeros(4, dtype=torch.int32), TypeError, "groups.*int64.*int32"),
    "float": (torch.zeros(4), TypeError, "groups.*int64.*float32"),
    "bool": (torch.zeros(4, dtype=torch.bool), TypeError, "groups.*int64.*bool"),
    "negative": (torch.tensor([0, 1, -2, 0]), ValueError, "groups.*>= 0.*-2"),
    "array": (np.zeros(4, dtype=np.int64), TypeError, "groups.*array"),
}


def two_groups(cls: type[GroupOptimizer] = GroupAdam, **second: Any) -> GroupOptimizer:
    """Trained for two steps, with gradients for a third; its second param group has one more parameter."""
    optimizer = make(cls, [{"params": [parameter(4, 3)]}, {"params": [parameter(4, 3, seed=1)], "l21": 0.02}], l1=0.01)
    train(optimizer, 2)
    optimizer.param_groups[1].update(second)
    first, other = (group["params"][0] for group in optimizer.param_groups)
    backward(optimizer, separable_loss(first) + separable_loss(other))
    return optimizer


def kept(optimizer: GroupOptimizer) -> list[Any]:
    """What a failed step must leave alone, next to arguments that no snapshot can copy."""
    return [snapshot(optimizer)[part] for part in ("params", "state", "grads")]


@over(("cls", "name", "value"), BAD)
def test_a_bad_argument_is_named_by_the_constructor(cls, name, value):
    with pytest.raises((ValueError, TypeError), match=f"{name}.*param group 0"):
        make(cls, [parameter(4, 3)], **{name: value})


@over(("cls", "name", "value"), ONE_PER_ARGUMENT)
def test_a_bad_argument_adds_no_group_and_stops_the_whole_step(cls, name, value):
    """The first param group is in order, and must not be updated either."""
    optimizer = two_groups(cls)
    with refused(optimizer, (ValueError, TypeError), f"{name}.*param group 2"):
        optimizer.add_param_group({"params": [parameter(4, 3)], name: value})
    optimizer.param_groups[1][name] = value
    before = kept(optimizer)
    with pytest.raises((ValueError, TypeError), match=f"{name}.*param group 1"):
        optimizer.step()
    assert_identical(kept(optimizer), before)


@over("value", [-0.5, NAN, INF])
def test_the_value_is_shown(value):
    with pytest.raises(ValueError, match=rf"l21 must be >= 0, got {value:g} \(param group 0\)"):
        GroupAdam([parameter(2)], l21=value)


@over(("index", "error", "match"), INDICES.values())
def test_an_index_that_does_not_fit_is_refused_wherever_it_is_set(index, error, match):
    with pytest.raises(error, match=match):
        GroupAdam([parameter(4, 3)], groups=index)
    optimizer = two_groups()
    with refused(optimizer, error, match):
        optimizer.add_param_group({"params": [parameter(4, 3)], "groups": index})
    optimizer.param_groups[1]["groups"] = index
    before = kept(optimizer)
    with pytest.raises(error, match=match):
        optimizer.step()
    assert_identical(kept(optimizer), before)


FOUR = torch.zeros(4, dtype=torch.int64)


@over(
    ("cls", "params", "options", "match"),
    [
        (GroupAdam, [parameter(4, 3), parameter(5, 3)], {"groups": FOUR}, "param group 0, parameter 1"),
        (GroupAdam, [("a", parameter(4)), ("b", parameter(5))], {"groups": FOUR}, "param group 0, b"),
        (GroupAdam, [parameter()], {"groups": FOUR[:0]}, "groups"),
        (GroupAdam, [("bias", parameter(4))], {"groups": "columns"}, r"groups='columns'.*\[4\].*bias.*param group"),
        (GroupMomentum, [parameter(2)], {"momentum": 0.0, "nesterov": True}, "nesterov.*momentum.*param group 0"),
        *(
            (GroupAdam, [parameter(2)], {"l21": value}, r"l21 must be .* below 2⁶³, got an int of \d+ bits")
            for value in (2**63, -(2**70), 10**5000)
        ),
    ],
)
def test_arguments_that_do_not_fit_the_parameters_or_each_other(cls, params, options, match):
    with pytest.raises(ValueError, match=match):
        cls(params, **options)


PARAMETERS = {
    "complex64": (lambda: nn.Parameter(torch.zeros(2, dtype=torch.complex64)), ValueError, "complex64"),
    "complex128": (lambda: nn.Parameter(torch.zeros(2, dtype=torch.complex128)), ValueError, "complex128"),
    "int64": (lambda: torch.zeros(2, dtype=torch.int64), ValueError, "int64"),
    "float8": (lambda: torch.zeros(2, dtype=torch.float8_e5m2), ValueError, "float8"),
    "sparse": (lambda: torch.eye(2).to_sparse().requires_grad_(), ValueError, "dense.*sparse_coo"),
    "csr": (lambda: torch.eye(2).to_sparse_csr().requires_grad_(), ValueError, "dense.*sparse_csr"),
    "no tensor": (lambda: "weight", TypeError, "str"),
    "module": (lambda: nn.Linear(2, 2), TypeError, "Linear"),
    "no leaf": (lambda: parameter(2) * 2, ValueError, "non-leaf"),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta")
@over(("make_bad", "error", "match"), PARAMETERS.values())
def test_a_parameter_of_a_kind_that_is_not_supported_is_refused(make_bad, error, match):
    good, bad = parameter(2), make_bad()
    with pytest.raises(error, match=match):
        GroupAdam([good, bad])
    optimizer = two_groups()
    with refused(optimizer, error, match):
        optimizer.add_param_group({"params": [good, bad]})
    optimizer.add_param_group({"params": [good]})


@over(
    ("params", "error", "match"),
    [
        ([], ValueError, "empty"),
        (parameter(2), TypeError, "iterable"),
        ([{"params": {parameter(2)}}], TypeError, "ordered"),
        ([("named", parameter(2)), parameter(2)], ValueError, "names"),
        ([{"params": [parameter(2)], "l12": 0.1}], TypeError, "l12.*param group 0"),
    ],
)
def test_parameters_in_the_wrong_shape_are_refused_as_by_torch(params, error, match):
    with pytest.raises(error, match=match):
        GroupAdam(params)


def test_a_param_group_that_is_no_dict_or_holds_a_parameter_of_another_is_refused_as_by_torch():
    optimizer = two_groups()
    for group in ([parameter(2)], "params", None):
        with refused(optimizer, TypeError, "param_group must be a dict"):
            optimizer.add_param_group(group)
    with refused(optimizer, ValueError, "more than one parameter group"):
        optimizer.add_param_group({"params": [parameter(2), optimizer.param_groups[0]["params"][0]]})


@over("cls", ALL)
def test_an_unknown_argument_is_refused_by_name(cls):
    for name in ("l12", "lambda1", "learning_rate", "Groups"):
        with pytest.raises(TypeError, match=f"{cls.__name__}.*{name}"):
            make(cls, [parameter(2)], **{name: 0.1})
        optimizer = make(cls, [parameter(2)])
        with refused(optimizer, TypeError, f"{name}.*param group 1"):
            optimizer.add_param_group({"params": [parameter(2)], name: 0.1})


@over("step", [-1.0, 1e308, float("nan"), 2.0**60])
def test_a_step_count_that_no_training_has(step):
    optimizer = GroupAdam([parameter(2)])
    state = optimizer.state_dict()
    state["state"][0] = {"step": step, "exp_avg": torch.zeros(2), "exp_avg_sq": torch.zeros(2)}
    with refused(optimizer, ValueError, r"'step' must be a number from 0 to 2⁵³.*param group 0"):
        optimizer.load_state_dict(state)


SPARSE = {
    "weight decay": ({"weight_decay": 0.1}, 1, "weight_decay=0.1.*sparse.*param group 1"),
    "columns": ({"groups": "columns"}, 1, "sparse.*groups='rows'.*'columns'.*param group 1"),
    "all": ({"groups": "all"}, 1, "sparse.*groups='rows'.*'all'.*param group 1"),
    "dimension 1": ({"groups": 1}, 1, "sparse.*groups='rows'.*1.*param group 1"),
    "index": ({"groups": torch.tensor([0, 0, 1, 1])}, 1, "sparse.*groups='rows'.*param group 1"),
    "two sparse dimensions": ({}, 2, "sparse_dim 1, got 2.*param group 1"),
}


@over("cls", [cls for cls in KINDS if cls in FIRST_ORDER])
@over(("arguments", "sparse_dim", "match"), SPARSE.values())
def test_a_sparse_gradient_that_cannot_be_taken_stops_the_whole_step(cls, arguments, sparse_dim, match):
    """Only the second parameter's is one: the first must not be updated either."""
    optimizer = two_groups(cls, **arguments)
    bad = optimizer.param_groups[1]["params"][0]
    bad.grad = bad.grad.to_sparse(sparse_dim)
    with refused(optimizer, ValueError, match):
        optimizer.step()
    bad.grad = bad.grad.to_dense()
    optimizer.step()


@over("groups", ["rows", 0])
def test_a_sparse_gradient_is_taken_where_groups_are_rows(groups):
    optimizer = two_groups(groups=groups)
    x = optimizer.param_groups[1]["params"][0]
    x.grad = x.grad.to_sparse(1)
    optimizer.step()
    assert optimizer.state[x]["step"] == 3


def test_an_error_names_a_named_parameter():
    model = nn.Sequential(nn.Embedding(4, 2, sparse=True), nn.Linear(2, 1))
    optimizer = GroupAdam(model.named_parameters(), weight_decay=0.1)
    model(torch.tensor([1])).sum().backward()
    with refused(optimizer, ValueError, r"param group 0, 0\.weight"):
        optimizer.step()
