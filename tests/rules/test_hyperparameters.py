"""What a rule declares is what its optimizer takes, shows, says in its documentation and tells type checkers."""

import ast
import inspect
import re
from pathlib import Path

import pytest
import torch

import sparsegroup
from optimizer_cases import parameter
from over import over
from sparsegroup import (
    GroupAdagrad,
    GroupAdaHessian,
    GroupAdam,
    GroupAMSGrad,
    GroupFTRL,
    GroupMomentum,
    GroupOptimizer,
    GroupRowWiseAdagrad,
    optim,
)
from sparsegroup.rules import REQUIRED

CLASSES = [value for name in sparsegroup.__all__ if isinstance(value := getattr(sparsegroup, name), type)]
FAMILY = [cls for cls in CLASSES if issubclass(cls, GroupOptimizer) and "rule" in vars(cls)]
PAGE = Path(__file__).parents[2] / "docs" / "optimizers.md"
NOT_DECLARED = {GroupAdaHessian: ["generator"]}
"""Arguments of the optimizer, not of its param groups."""


def typed_constructor(cls: type[GroupOptimizer]) -> ast.arguments:
    """The arguments of the `__init__` that type checkers see."""
    (body,) = ast.parse(inspect.getsource(cls)).body
    assert isinstance(body, ast.ClassDef)
    (guarded,) = [node for node in body.body if isinstance(node, ast.If)]
    assert ast.unparse(guarded.test) == "TYPE_CHECKING"
    (constructor,) = guarded.body
    assert isinstance(constructor, ast.FunctionDef)
    return constructor.args


@over("cls", FAMILY)
def test_the_signature_is_the_declaration(cls):
    shown = inspect.signature(cls).parameters
    declared = [one.argument for one in cls.rule.hyperparameters]
    names = {one.name for one in declared}
    assert [argument for name, argument in shown.items() if name in names] == declared
    others = [name for name in shown if name not in names]
    assert others == ["params", *NOT_DECLARED.get(cls, []), *optim.arguments.DEFAULTS]


@over("cls", [cls for cls in FAMILY if cls not in (GroupAMSGrad, GroupRowWiseAdagrad)])
def test_type_checkers_see_the_declared_names_in_their_places(cls):
    typed, declared = typed_constructor(cls), cls.rule.hyperparameters
    assert [a.arg for a in typed.args] == ["self", "params", *(one.name for one in declared if not one.keyword_only)]
    by_name = [*(one.name for one in declared if one.keyword_only), *NOT_DECLARED.get(cls, [])]
    assert sorted(a.arg for a in typed.kwonlyargs) == sorted(by_name)
    optional = [one.name for one in declared if one.default is not REQUIRED and not one.keyword_only]
    assert [ast.unparse(default) for default in typed.defaults] == ["..."] * len(optional)
    assert typed.kwarg is not None


@over("cls", FAMILY)
def test_the_docstring_explains_every_hyperparameter_and_has_an_example(cls):
    documentation = inspect.getdoc(cls)
    parents = [
        parent for parent in (GroupAdam, GroupAdagrad) if f"The arguments are `{parent.__name__}`'s" in documentation
    ]
    explained = inspect.getdoc(parents[0]) if parents else documentation
    for one in cls.rule.hyperparameters:
        assert re.search(rf"^    {one.name}: .", explained, re.MULTILINE), one.name
    assert f">>> from sparsegroup import {cls.__name__}\n" in documentation


def test_the_documentation_has_every_default_and_range():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if re.match(r"\| `Group\w+` \| `", line)]
    expected = [
        f"| `{cls.__name__}` | `{one.name}`{', by name' if one.keyword_only else ''} "
        f"| {'required' if one.default is REQUIRED else f'`{one.default}`'} | {one.valid} |"
        for cls in FAMILY
        for one in cls.rule.hyperparameters
    ]
    assert sorted(rows) == sorted(expected)


def test_hyperparameters_are_given_by_place_or_by_name():
    by_place = GroupAdam([parameter(2)], 0.1, (0.5, 0.6), 1e-3, 0.2, l21=0.3)
    by_name = GroupAdam([parameter(2)], weight_decay=0.2, eps=1e-3, betas=(0.5, 0.6), lr=0.1, l21=0.3)
    assert by_place.defaults == by_name.defaults
    with pytest.raises(TypeError, match="GroupAdam: multiple values for argument 'lr'"):
        GroupAdam([parameter(2)], 0.1, lr=0.1)
    with pytest.raises(TypeError, match="GroupMomentum: too many positional arguments"):
        GroupMomentum([parameter(2)], 0.1, 0.9, True)


def test_arguments_can_be_checked_without_parameters():
    before = torch.get_rng_state()
    arguments = GroupMomentum.checked_arguments(0.1, nesterov=True, l1=0.5)
    assert (arguments["lr"], arguments["momentum"], arguments["nesterov"], arguments["l1"]) == (0.1, 0.9, True, 0.5)
    with pytest.raises(ValueError, match=r"nesterov=True needs momentum > 0 \(GroupMomentum\)"):
        GroupMomentum.checked_arguments(momentum=0.0, nesterov=True)
    with pytest.raises(ValueError, match=r"nesterov must be True or False, got 'yes' \(GroupMomentum\)"):
        GroupMomentum.checked_arguments(nesterov="yes")
    with pytest.raises(TypeError, match="GroupFTRL: missing a required argument: 'lr'"):
        GroupFTRL.checked_arguments()
    assert torch.equal(torch.get_rng_state(), before)
