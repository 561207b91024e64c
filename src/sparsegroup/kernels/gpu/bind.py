"""Triton's compiled functions, made from plain Python source whose globals are replaced: a rule is written once.

Triton reads the text of a function and the globals that it names. So a function is bound by giving its text, without
annotations, to Python again with other globals. Parameters in capitals become constants of the compiler.
"""

import ast
import hashlib
import inspect
import linecache
import textwrap
from collections.abc import Callable, Mapping
from functools import cache
from types import FunctionType, SimpleNamespace
from typing import Any

import triton
import triton.language as tl

from sparsegroup import prox
from sparsegroup.kernels import rounding
from sparsegroup.kernels.gpu import source
from sparsegroup.penalties import PracticalNorm
from sparsegroup.rules import Rule

STEP_KERNELS = ("dense", "dense_many", "tensor_rows", "table_rows")
ROW_KERNELS = ("sum_chunks", "gather", "scatter")

_CLOSED_FORM = (prox.soft_threshold, prox.clip, prox.closed_form, prox.solution, prox.next_residual, prox.base_step)
_ROUNDING = (rounding.random_bits, rounding.rounded_bits, rounding.nearest_bits)
_MARK = (rounding.zero_as_updated, rounding.not_to_plus_zero, rounding.tile_was_updated)

_ARRAY_FUNCTIONS = {"sqrt": "tl.sqrt_rn", "where": "tl.where", "maximum": "nan_maximum"}
"""What rules and prox take from the array namespace `xp`."""

_NOT_SPECIALIZED = ("chunks", "blocks", "count", "seed", "height")
"""Numbers that change from step to step: a kernel is not compiled again if 16 divides one."""


@cache
def step_kernels(
    rule: Rule, carries_u: bool, weigh: Callable[..., Any] | None, shrinkage: Callable[..., Any]
) -> SimpleNamespace:
    """Return `STEP_KERNELS` for a rule, the norm's `weigh` (None where λ21 = 0) and the penalty's `shrinkage`."""
    array = {"nan_maximum": _bound(source.nan_maximum, {})}
    names: dict[str, Any] = {
        "HAS_SECOND_INPUT": tl.constexpr(rule.has_second_input),
        "HAS_START": tl.constexpr(rule.sigma_0 is not None),
        "CARRIES_U": tl.constexpr(carries_u),
        "HAS_NORM": tl.constexpr(weigh is not None),
        "STATES": tl.constexpr(len(rule.state)),
        "UNROLL": tl.constexpr(source.UNROLL),
        "update": _bound(rule.update, array),
        "weigh": _bound(weigh or PracticalNorm.weigh, array),
        "shrinkage": _bound(shrinkage, array),
        **{function.__name__: _bound(function, array) for function in (*_CLOSED_FORM, *_ROUNDING, *_MARK)},
    }
    for name, function in vars(source).items():  # in the order of the source: a function sees those above it
        is_own = isinstance(function, FunctionType) and function.__module__ == source.__name__
        if is_own and function.__name__ == name:
            names[name] = _bound(function, names)
    return SimpleNamespace(**{name: names[name] for name in STEP_KERNELS})


@cache
def row_kernels() -> SimpleNamespace:
    """Return `ROW_KERNELS`, which need no rule."""
    names: dict[str, Any] = {"UNROLL": tl.constexpr(source.UNROLL), "nearest_bits": _bound(rounding.nearest_bits, {})}
    # In the order of the source, as above.
    for function in (source.groups_and_lanes, source.rounded_to, source.at_address, source.row_address):
        names[function.__name__] = _bound(function, names)
    return SimpleNamespace(**{name: _bound(getattr(source, name), names) for name in ROW_KERNELS})


class _ForTriton(ast.NodeTransformer):
    """Removes annotations, except of constants, names `xp`'s functions, and lets `/` round like the CPU."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self.generic_visit(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = ast.parse("tl.constexpr", mode="eval").body if node.arg.isupper() else None
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Div):
            return node
        function = ast.parse("tl.div_rn", mode="eval").body
        return ast.copy_location(ast.Call(function, [node.left, node.right], []), node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if not isinstance(node.value, ast.Name) or node.value.id != "xp":
            return self.generic_visit(node)
        if node.attr not in _ARRAY_FUNCTIONS:
            raise ValueError(f"xp.{node.attr} is not one of {', '.join(f'xp.{name}' for name in _ARRAY_FUNCTIONS)}")
        return ast.copy_location(ast.parse(_ARRAY_FUNCTIONS[node.attr], mode="eval").body, node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        assert node.value is not None
        return ast.copy_location(ast.Assign([node.target], node.value), node)


def _bound(function: Callable[..., Any], names: Mapping[str, Any]) -> Any:
    """Return `function` for Triton, with some of its globals replaced."""
    assert isinstance(function, FunctionType)
    if function.__closure__ is not None or function.__name__ == "<lambda>":
        raise ValueError(f"{function.__qualname__} must be a function by `def` that uses no variables of another")
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = tree.body[0]
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    if ast.get_docstring(definition) is not None and len(definition.body) > 1:
        del definition.body[0]
    text = ast.unparse(_ForTriton().visit(tree))
    scope = {**function.__globals__, **names, "tl": tl}
    where = f"<{function.__module__}.{function.__name__} {hashlib.sha256(text.encode()).hexdigest()[:16]}>"
    linecache.cache[where] = (len(text), None, text.splitlines(keepends=True), where)
    exec(compile(text, where, "exec"), scope)
    unspecialized = [a.arg for a in definition.args.args if a.arg in _NOT_SPECIALIZED]
    return triton.jit(scope[definition.name], do_not_specialize=unspecialized)
