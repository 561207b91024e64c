"""Contiguous float32 and float64 parameters in the host's memory, by the step that Numba compiles."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from sparsegroup.kernels.cpu import step
from sparsegroup.kernels.cpu.block import BLOCK
from sparsegroup.kernels.cpu.rows import WHOLE
from sparsegroup.kernels.step import (
    NUMPY_DTYPES,
    Backend,
    ParameterMemory,
    StepConstants,
    TensorPlan,
    compute_dtype,
)
from sparsegroup.rules import Rule

_Kind = tuple[torch.dtype, bool]


class _Launch(NamedTuple):
    """Tensors that one kernel steps."""

    kind: _Kind
    plans: Sequence[TensorPlan]
    memories: list[ParameterMemory]
    tensors: step.Tensors

    @classmethod
    def of(cls, kind: _Kind, plans: Sequence[TensorPlan], before: "_Launch | None") -> "_Launch":
        """What the step before used, if it was for the same memory."""
        memories = [plan.memory for plan in plans]
        if before is not None and before.memories == memories:
            return cls(kind, plans, memories, before.tensors)
        return cls(kind, plans, memories, _tensors_of(memories, kind[1]))


class CpuBackend(Backend):
    """The compiled step: parameters whose groups are contiguous, many of them in one launch."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._launches: dict[int, tuple[Sequence[TensorPlan], list[_Launch]]] = {}

    def takes(self, memory: ParameterMemory, sparse: bool) -> bool:
        """Parameters with state in the compute dtype, if Numba can compile the rule."""
        return (
            memory.fits
            and memory.is_contiguous_in_groups
            and memory.wants_kernels
            and not memory.capturable
            and memory.x.device.type == "cpu"
            and memory.dtype == compute_dtype(memory.dtype)
            and memory.state_dtypes <= {memory.dtype}
            and step.is_ready(
                self.rule,
                (WHOLE,) * len(memory.parts),
                memory.width > BLOCK and (memory.carries_u or sparse),
                NUMPY_DTYPES[memory.dtype],
            )
        )

    def step(self, group: int, constants: StepConstants, plans: Sequence[TensorPlan]) -> None:
        """See `Backend.step`."""
        known, launches = self._launches.get(group, ((), []))
        if known is not plans:
            dense: dict[_Kind, list[TensorPlan]] = {}
            for plan in plans:
                if plan.rows is None:
                    dense.setdefault((plan.memory.dtype, plan.memory.carries_u), []).append(plan)
                else:
                    self._step_rows(plan, constants)
            before = {launch.kind: launch for launch in launches}
            launches = [_Launch.of(kind, some, before.get(kind)) for kind, some in dense.items()]
            self._launches[group] = plans, launches
        for launch in launches:
            self._step_tensors(launch, constants)

    def _step_tensors(self, launch: "_Launch", constants: StepConstants) -> None:
        dtype, plans = NUMPY_DTYPES[launch.kind[0]], launch.plans
        first = plans[0].scalars
        if all(plan.scalars is first for plan in plans):
            scalars = np.empty((len(plans), len(first.scalars)), dtype)
            scalars[:] = first.scalars
        else:
            scalars = np.array([plan.scalars.scalars for plan in plans], dtype)
        step.advance_tensors(self.rule, dtype, launch.tensors, _addresses(plans), scalars, constants)

    def _step_rows(self, plan: TensorPlan, constants: StepConstants) -> None:
        plan.sum_rows()
        assert plan.rows is not None
        if not len(plan.rows):
            return
        memory, rows = plan.memory, plan.rows.contiguous()
        dtype = NUMPY_DTYPES[memory.dtype]
        row_bytes, parts = memory.width * dtype.itemsize, len(memory.parts)
        step.advance_rows(
            self.rule,
            dtype,
            rows.data_ptr(),
            len(rows),
            step.ONE_PAGE,
            step.row_layout(row_bytes, tuple(memory.addresses), (row_bytes,) * parts, (WHOLE,) * parts),
            _addresses([plan]),
            memory.width,
            np.array([plan.scalars.scalars], dtype),
            constants,
        )


def _tensors_of(memories: Sequence[ParameterMemory], carries_u: bool) -> step.Tensors:
    widths = np.array([memory.width for memory in memories], np.int64)
    counts = np.array([memory.count for memory in memories], np.int64)
    if not carries_u:  # each element is a group
        widths, counts = np.ones_like(widths), widths * counts
    base = np.array([memory.addresses for memory in memories], np.int64)
    return step.Tensors(widths, counts, base)


def _addresses(plans: Sequence[TensorPlan]) -> npt.NDArray[np.int64]:
    """Return the addresses of the gradient and the second input of each, `[plans, 2]`; 0 for none."""
    addresses = []
    for plan in plans:
        gradient, second_input = plan.gradient, plan.second_input
        if not gradient.is_contiguous() or gradient.is_neg():
            gradient = plan.gradient = gradient.resolve_neg().contiguous()  # the plan keeps it until the step is done
        if second_input is not None:
            second_input = plan.second_input = second_input.resolve_neg().contiguous()
        addresses += [gradient.data_ptr(), 0 if second_input is None else second_input.data_ptr()]
    return np.array(addresses, np.int64).reshape(-1, 2)
