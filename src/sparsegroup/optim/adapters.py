"""How an optimizer reaches its parameters: as tensors, as parts of DTensors, or as rows in a store of their own."""

from collections.abc import Mapping
from functools import cache
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from sparsegroup.optim.group_census import GroupCensus
from sparsegroup.optim.group_step import GroupStep
from sparsegroup.optim.local_shard import is_spread
from sparsegroup.optim.plans import ParameterPlan
from sparsegroup.optim.shard_adapter import ShardAdapter
from sparsegroup.optim.store_adapter import StoreAdapter
from sparsegroup.optim.stored import StoredParameter
from sparsegroup.optim.tensor_adapter import TensorAdapter
from sparsegroup.rules import Rule

Entry = dict[str, Any]


class ParameterAdapter(Protocol):
    """What an optimizer does with one parameter and its state, `optimizer.state[parameter]`."""

    def check(self, parameter: Tensor, group: Mapping[str, Any], where: str) -> None:
        """Raise unless the parameter fits the hyperparameters of its param group.

        Raises:
            ValueError, TypeError, RuntimeError: See `GroupOptimizer`.
        """

    def plan(self, parameter: Tensor, step: GroupStep, states: Mapping[Tensor, Entry], number: int) -> ParameterPlan:
        """Read the gradient. All that can fail fails here; nothing is changed.

        Args:
            parameter: It has a gradient.
            step: The step of its param group.
            states: The optimizer's state; it has no entry for the parameter before its first step.
            number: The parameter's in the param group, for messages.
        """

    def census(
        self,
        parameter: Tensor,
        step: GroupStep,
        entry: Entry,
        sample: int,
        draw: np.random.Generator,
    ) -> list[GroupCensus]:
        """Which λ21 the parameter's groups outlive; see `sparsegroup.kernels.eager`.

        Args:
            parameter: It has been stepped.
            step: The step of its param group that has no gradient.
            entry: Its state.
            sample: How many groups to look at, at most; 0 for all.
            draw: Draws them.
        """

    def sweep(self, parameter: Tensor, step: GroupStep, entry: Entry, *, zero_untrained: bool) -> None:
        """Apply the closed form to all groups without a gradient; see `GroupOptimizer.sweep`."""

    def exported(self, parameter: Tensor, entry: Entry) -> Entry:
        """The state as `state_dict` has it."""

    def adapted(self, parameter: Tensor, entry: Entry, rule: Rule, where: str) -> Entry:
        """A loaded state as torch's loader can take it, checked.

        Raises:
            ValueError, TypeError: It is another rule's, or of another shape.
        """

    def restore(self, parameter: Tensor, entry: Entry, rule: Rule, group: Mapping[str, Any]) -> None:
        """Bring a state that has come through torch's loader to where it belongs; `entry` is changed."""


_TENSOR, _STORE, _SHARD = TensorAdapter(), StoreAdapter(), ShardAdapter()


@cache
def _adapter_for(kind: type[Tensor]) -> ParameterAdapter:
    if issubclass(kind, StoredParameter):
        return _STORE
    if is_spread(kind):
        return _SHARD
    return _TENSOR


def adapter_of(parameter: Tensor) -> ParameterAdapter:
    """The adapter of a parameter."""
    return _adapter_for(type(parameter))
