"""Where a parameter's state lies, looked up once: what backends are told, and how many steps it has had."""

from typing import Any

from torch import Tensor

from sparsegroup.kernels.step import Backend, Execution, Slot, array_of

State = dict[str, Any]


class Place:
    """A parameter with its state.

    Args:
        parameter: The parameter.
        state: Its state, complete: "step" (0-d float32), "u" where it is carried, and the rule's.
        names: The rule's state, in its order.
        execution: How its param group wants it to be stepped.
        backends: Those that may step it, the preferred first; the last takes everything.

    Attributes:
        slot: The parameter and its state, as backends are told of them.
        t: The step count, where the host knows it.
    """

    __slots__ = ("_address", "_backends", "_chosen", "_parts", "_step", "_step_tensor", "_stride", "slot", "t")

    def __init__(
        self,
        parameter: Tensor,
        state: State,
        names: tuple[str, ...],
        execution: Execution,
        backends: tuple[Backend, ...],
    ) -> None:
        self.slot = Slot(parameter, state.get("u"), tuple(state[name] for name in names), execution)
        self.t = 0.0
        named = zip((*(("u",) if "u" in state else ()), *names), self.slot.parts[1:], strict=True)
        self._parts = tuple((name, part, part.data_ptr()) for name, part in named)
        self._address, self._stride = parameter.data_ptr(), parameter.stride()
        self._step_tensor: Tensor = state["step"]
        self._step = array_of(state["step"]) if state["step"].device.type == "cpu" else state["step"]
        self._backends = backends
        self._chosen: list[Backend | None] = [None, None]

    @property
    def step(self) -> Tensor:
        """The step count, 0-d float32."""
        return self._step_tensor

    def count_step(self) -> float:
        """Count one more step, in the state too; gives the count."""
        self.t = self._step.item() + 1.0
        self._step[()] = self.t
        return self.t

    def backend(self, sparse: bool) -> Backend:
        """The first backend that takes the parameter with such gradients."""
        chosen = self._chosen[sparse]
        if chosen is None:
            chosen = self._chosen[sparse] = next(one for one in self._backends if one.takes(self.slot, sparse))
        return chosen

    def holds(self, parameter: Tensor, state: State, execution: Execution, wants_u: bool) -> bool:
        """Whether all is still where it was, and nothing is missing."""
        slot, x = self.slot, self.slot.x
        if (
            x is not parameter
            or x.data_ptr() != self._address
            or x.stride() != self._stride
            or x.shape != slot.shape
            or execution is not slot.execution
            or (wants_u and not slot.carries_u)
            or len(state) != len(self._parts) + 1
            or state.get("step") is not self._step_tensor
        ):
            return False
        for name, part, address in self._parts:
            if state.get(name) is not part or part.data_ptr() != address:
                return False
        return True
