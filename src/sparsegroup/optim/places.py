"""Where a parameter and its state lie, looked up once, and which kernels can take them from there."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsegroup.groups import Grouping, GroupSpec, contiguous_groups, grouping
from sparsegroup.kernels.cpu import compiled_step
from sparsegroup.kernels.gpu import runtime
from sparsegroup.kernels.views import NUMPY_DTYPES, array_of

State = dict[str, Any]

_ON_DEVICE = (torch.float32, torch.bfloat16, torch.float16)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of arithmetic, and of state unless another is asked for: float64 for float64, else float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def wants_kernels(group: Mapping[str, Any]) -> bool:
    """Whether a param group leaves the choice to us: not `foreach=True` nor `fused=False`."""
    return not group["foreach"] and group["fused"] is not False


def is_for_device(parameter: Tensor, group: Mapping[str, Any]) -> bool:
    """Whether the Triton kernels can take `parameter`, if it and its gradient are contiguous."""
    return wants_kernels(group) and parameter.dtype in _ON_DEVICE and runtime.serves(parameter.device)


class Place:
    """Where a parameter and its state lie.

    Args:
        parameter: The parameter.
        state: Its state, complete.
        names: Of the parts of the state, u first where it is carried.
        group: Its param group.

    Attributes:
        t: The step count, where the host knows it.
        kind: dtype and whether there is a u.
        on_device: Whether the Triton kernels can take it.
        on_host: Whether the compiled CPU step can: float32 or float64, group after group.
        dtype: NumPy's name of the compute dtype.
        carries_u: Whether there is a u.
        base: Addresses of x, u (if carried) and the states.
        width: Elements of a group, where groups lie one after the other; else 0.
        count: Groups, likewise.
        layout: As rows.
        tensors: The parts of the state.
    """

    __slots__ = (
        "__dict__",
        "_device",
        "_execution",
        "_spec",
        "_step",
        "_step_tensor",
        "_stride",
        "base",
        "carries_u",
        "count",
        "dtype",
        "kind",
        "layout",
        "on_device",
        "on_host",
        "shape",
        "t",
        "tensors",
        "width",
    )

    def __init__(self, parameter: Tensor, state: State, names: Sequence[str], group: Mapping[str, Any]) -> None:
        self.dtype: np.dtype[Any] = NUMPY_DTYPES[compute_dtype(parameter.dtype)]
        self.carries_u = "u" in state
        self.tensors: list[tuple[str, Tensor]] = [(name, state[name]) for name in names]
        self._step_tensor: Tensor = state["step"]
        self._spec: GroupSpec = group["groups"]
        self._execution = execution_of(group)
        self.shape, self._stride, self._device = parameter.shape, parameter.stride(), parameter.device
        self._step = array_of(state["step"]) if state["step"].device.type == "cpu" else state["step"]
        self.t = 0.0
        parts = [parameter, *(tensor for _, tensor in self.tensors)]
        fits = all(
            part.shape == parameter.shape and part.is_contiguous() and part.device == parameter.device for part in parts
        )
        layout = contiguous_groups(self._spec, parameter.shape)
        self.width, self.count = layout or (0, 0)
        kinds = {tensor.dtype for _, tensor in self.tensors}
        alike = len(kinds) <= 1 and kinds <= {torch.float32, torch.bfloat16}
        self.on_device = fits and alike and is_for_device(parameter, group)
        self.on_host = (
            fits
            and not self.on_device
            and layout is not None
            and wants_kernels(group)
            and not group["capturable"]
            and all(part.device.type == "cpu" and part.dtype == compute_dtype(parameter.dtype) for part in parts)
        )
        self.base = [part.data_ptr() for part in parts]
        row_bytes = self.width * self.dtype.itemsize
        self.layout = compiled_step.row_layout(row_bytes, self.base, row_bytes)
        self.kind = (self.dtype, self.carries_u)

    @cached_property
    def groups(self) -> Grouping:
        """Of the parameter."""
        return grouping(self._spec, self.shape, self._device)

    @property
    def step(self) -> Tensor:
        """The step count, 0-d float32."""
        return self._step_tensor

    def count_step(self) -> None:
        """One step more, in the state too."""
        self.t = self._step.item() + 1.0
        self._step[()] = self.t

    def holds(self, parameter: Tensor, state: State, execution: tuple[Any, ...], wants_u: bool) -> bool:
        """Whether all is still where it was, and nothing is missing."""
        if (
            parameter.data_ptr() != self.base[0]
            or parameter.stride() != self._stride
            or parameter.shape != self.shape
            or execution[0] is not self._execution[0]
            or execution[1:] != self._execution[1:]
            or (wants_u and not self.carries_u)
            or len(state) != len(self.tensors) + 1
            or state.get("step") is not self._step_tensor
        ):
            return False
        base = self.base
        for index, (name, tensor) in enumerate(self.tensors, 1):
            if tensor is not state.get(name) or tensor.data_ptr() != base[index]:
                return False
        return True


def execution_of(group: Mapping[str, Any]) -> tuple[Any, ...]:
    """What of a param group decides where its parameters are stepped: the groups, then torch's arguments."""
    return group["groups"], group["foreach"], group["fused"], group["capturable"]


class Batch:
    """Places that the CPU steps together, as the kernel is told of them."""

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = list(places)
        self.dtype, self.carries_u = places[0].kind
        widths = np.array([place.width for place in places], np.int64)
        counts = np.array([place.count for place in places], np.int64)
        base = np.array([place.base for place in places], np.int64)
        self.tensors = compiled_step.Tensors(widths, counts, base, compiled_step.pieces(widths, counts))
