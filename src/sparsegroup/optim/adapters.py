"""How an optimizer reaches its parameters: as tensors, or as rows in a store of their own."""

from collections.abc import Mapping
from typing import Any, Protocol

from torch import Tensor

from sparsegroup.optim.plans import ParameterPlan
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

    def plan(
        self,
        parameter: Tensor,
        rule: Rule,
        group: Mapping[str, Any],
        states: Mapping[Tensor, Entry],
        numbers: tuple[int, int],
    ) -> ParameterPlan:
        """Read the gradient. All that can fail fails here; nothing is changed.

        Args:
            parameter: It has a gradient.
            rule: The base optimizer.
            group: The param group.
            states: The optimizer's state; it has no entry for the parameter before its first step.
            numbers: The number of the param group, and of the parameter in it, for messages.
        """

    def exported(self, parameter: Tensor, entry: Entry) -> Entry:
        """The state as `state_dict` has it."""

    def exported_without_rows(self, parameter: Tensor, entry: Entry) -> Entry | None:
        """The state without what lies in stores; None where the store holds another optimizer's by now."""

    def adapted(self, parameter: Tensor, entry: Entry, rule: Rule, where: str) -> Entry:
        """A loaded state as torch's loader can take it, checked.

        Raises:
            ValueError, TypeError: It is another rule's, or of another shape.
        """

    def restore(self, parameter: Tensor, entry: Entry, rule: Rule, group: Mapping[str, Any]) -> None:
        """Bring a state that has come through torch's loader to where it belongs; `entry` is changed."""


_TENSOR, _STORE = TensorAdapter(), StoreAdapter()


def adapter_of(parameter: Tensor) -> ParameterAdapter:
    """The adapter of a parameter."""
    return _STORE if isinstance(parameter, StoredParameter) else _TENSOR
