"""A base optimizer as this library sees it: two functions, the names of its state, and its hyperparameters.

`scalars` runs on the host, in float64, once per step; `update` is element-wise and takes its array
functions from the global `xp`, so that one source serves every backend (see `bind`).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from types import FunctionType
from typing import Any, TypeVar

import torch

from sparsegroup.rules.hyperparameter import WEIGHT_DECAY, Hyperparameter

F = TypeVar("F", bound=Callable[..., Any])

xp: Any = torch
"""Array namespace of every `update` and of `prox`, which `bind` replaces by NumPy's or Triton's."""

_OF_GROUP = "group_"


def is_of_group(state: str) -> bool:
    """Whether the state of that name is the same for all elements of a group."""
    return state.startswith(_OF_GROUP)


@dataclass(frozen=True, eq=False)
class Rule:
    """A base optimizer: `(m, σ, state) = rule(g, state, …)` of the paper's Table 1, with σ_t = √V_t / α_t.

    Args:
        name: Lower-case name, used in messages.
        scalars: `scalars(*, lr, …) -> tuple[float, …]`. Its keyword names say which of the hyperparameters it
            reads; `t` is the 1-based step. `lr` is never 0 here. With `capturable=True`, `t` is a float64 tensor on the
            GPU, and `lr` may be one: so arithmetic only, and no functions of `math` of these two.
        update: `update(g, *state, *scalars) -> (m, sigma, *state)`, element-wise, with + - × ÷, `xp.sqrt`,
            `xp.where`, `xp.maximum` of two arrays, and no numeric literals. A second-order rule gets
            `update(g, hessian, *state, *scalars)`, one with `mean_square` `update(g, mean_square, *state, *scalars)`.
        state: The element-wise state in the order `update` takes it: name → value before the first
            gradient, or the name of the hyperparameter that holds that value. State whose name begins with "group_"
            must be last and is the same for all elements of a group: a table in host memory keeps one number a row.
        hyperparameters: Name, default and valid values of each, "lr" among them. `weight_decay` need not be: every
            rule has it (`WEIGHT_DECAY`).
        second_order: The rule needs a diagonal of the Hessian in addition to the gradient.
        mean_square: The rule needs the mean of g² over an element's group in addition to the gradient.
        sigma_0: `sigma_0(*, lr, …) -> float` if the start x₁ is not charged to z, so that u₀ = σ₀ x₁
            (FTRL), with the learning rate of a group's first update. None, the usual case, is u₀ = 0.
        conflict: `conflict(*, …) -> str | None` says what is wrong with values that are valid one by one.

    Raises:
        ValueError: A hyperparameter is declared twice, or read but not declared; state of groups precedes that of
            elements, or the rule has no `mean_square`.
    """

    name: str
    scalars: Callable[..., tuple[float, ...]]
    update: Callable[..., tuple[Any, ...]]
    state: Mapping[str, float | str]
    hyperparameters: Sequence[Hyperparameter]
    second_order: bool = False
    sigma_0: Callable[..., float] | None = None
    conflict: Callable[..., str | None] | None = None
    mean_square: bool = False

    def __post_init__(self) -> None:
        names = [one.name for one in self.hyperparameters]
        if len(set(names)) < len(names):
            raise ValueError(f"the rule {self.name!r} declares a hyperparameter twice, of {', '.join(names)}")
        read = {"lr", *(value for value in self.state.values() if isinstance(value, str))}
        for function in (self.scalars, self.sigma_0, self.conflict):
            read |= set() if function is None else set(_parameter_names(function))
        if undeclared := read - {*names, WEIGHT_DECAY.name, "t"}:
            raise ValueError(f"the rule {self.name!r} reads {min(undeclared)!r}, which it does not declare")
        of_groups = [is_of_group(name) for name in self.state]
        if of_groups != sorted(of_groups) or (any(of_groups) and not self.mean_square):
            raise ValueError(
                f"the rule {self.name!r} has state of groups ({_OF_GROUP}…), which must come after that of elements "
                "and needs mean_square=True"
            )
        if self.second_order and self.mean_square:
            raise ValueError(f"the rule {self.name!r} cannot have both second_order and mean_square")
        if WEIGHT_DECAY.name not in names:
            object.__setattr__(self, "hyperparameters", (*self.hyperparameters, WEIGHT_DECAY))

    def host_scalars(self, hyperparameters: Mapping[str, Any], t: Any, lr: Any) -> tuple[Any, ...]:
        """`scalars` for step `t` at learning rate `lr`; float64 tensors of either give tensors."""
        return self.scalars(**_pick(self.scalars, {**hyperparameters, "t": t, "lr": lr}))

    def scalar_arguments(self, hyperparameters: Mapping[str, Any], lr: float) -> dict[str, Any]:
        """What `scalars` takes in all steps at learning rate `lr`: all but t."""
        names = [name for name in _parameter_names(self.scalars) if name != "t"]
        return {name: lr if name == "lr" else hyperparameters[name] for name in names}

    def host_sigma_0(self, hyperparameters: Mapping[str, Any], lr: Any) -> Any:
        """`sigma_0` at learning rate `lr`, a number or a tensor."""
        assert self.sigma_0 is not None
        return self.sigma_0(**_pick(self.sigma_0, {**hyperparameters, "lr": lr}))

    def check(self, hyperparameters: Mapping[str, Any], where: str) -> None:
        """Raise ValueError or TypeError, which ends with `where`, unless the hyperparameters, numbers, are valid."""
        for one in self.hyperparameters:
            one.check(hyperparameters[one.name], where)
        problem = None if self.conflict is None else self.conflict(**_pick(self.conflict, hyperparameters))
        if problem is not None:
            raise ValueError(f"{problem} ({where})")

    def initial_state(self, hyperparameters: Mapping[str, Any]) -> dict[str, float]:
        """State of an element that no gradient has touched."""
        return {
            name: float(hyperparameters[value]) if isinstance(value, str) else value
            for name, value in self.state.items()
        }

    @property
    def has_second_input(self) -> bool:
        """Return whether `update` takes a second input: the Hessian's diagonal, or mean squares."""
        return self.second_order or self.mean_square

    @cached_property
    def counts_steps(self) -> bool:
        """Whether the rule depends on the step number t."""
        return "t" in _parameter_names(self.scalars)


def _pick(function: Callable[..., Any], values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: values[name] for name in _parameter_names(function)}


@cache
def _parameter_names(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


def bind(function: F, namespace: Any) -> F:
    """A copy of a plain function whose global `xp` is `namespace` (`numpy`, `triton.language`), for another backend."""
    assert isinstance(function, FunctionType)
    bound = FunctionType(
        function.__code__,
        {**function.__globals__, "xp": namespace},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    bound.__kwdefaults__ = function.__kwdefaults__
    return bound  # type: ignore[return-value]
