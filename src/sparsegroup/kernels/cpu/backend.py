"""Contiguous float32 and float64 parameters in the host's memory, by the step that Numba compiles."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from sparsegroup.kernels.cpu import step as cpu_step
from sparsegroup.kernels.cpu import threads
from sparsegroup.kernels.cpu.block import BLOCK
from sparsegroup.kernels.cpu.rows import WHOLE
from sparsegroup.kernels.step import (
    NUMPY_DTYPES,
    Backend,
    Launch,
    ParameterMemory,
    StepConstants,
    TensorPlan,
    compute_dtype,
)
from sparsegroup.rules import Rule


class CpuBackend(Backend):
    """The compiled step: parameters whose groups are contiguous, many of them in one launch."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

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
            and cpu_step.compiles(
                self.rule,
                (WHOLE,) * len(memory.parts),
                memory.width > BLOCK and (memory.carries_u or sparse),
                NUMPY_DTYPES[memory.dtype],
            )
        )

    def launch(self, memories: Sequence[ParameterMemory]) -> Launch:
        """See `Backend.launch`."""
        return _DenseLaunch(self.rule, memories)

    def step_rows(self, plan: TensorPlan, constants: StepConstants) -> None:
        """See `Backend.step_rows`."""
        plan.sum_rows()
        assert plan.rows is not None
        if not len(plan.rows):
            return
        memory, rows = plan.memory, plan.rows.contiguous()
        dtype = NUMPY_DTYPES[memory.dtype]
        row_bytes, parts = memory.width * dtype.itemsize, len(memory.parts)
        cpu_step.advance_rows(
            self.rule,
            dtype,
            rows.data_ptr(),
            len(rows),
            cpu_step.ONE_PAGE,
            cpu_step.row_layout(row_bytes, tuple(memory.addresses), (row_bytes,) * parts, (WHOLE,) * parts),
            _addresses([plan]),
            memory.width,
            np.array([plan.scalars.of_rule], dtype),
            constants,
        )


class _DenseLaunch:
    """See `Launch`. One kernel steps all groups of all tensors, and threads share the groups."""

    def __init__(self, rule: Rule, memories: Sequence[ParameterMemory]) -> None:
        widths = np.array([memory.width for memory in memories], np.int64)
        counts = np.array([memory.count for memory in memories], np.int64)
        if not memories[0].carries_u:  # each element is a group
            widths, counts = np.ones_like(widths), widths * counts
        work, parts = cpu_step.pieces(widths, counts), np.array([memory.addresses for memory in memories], np.int64)
        self._dtype, self._widths = NUMPY_DTYPES[memories[0].dtype], tuple(widths.tolist())
        self._groups, self._kinds = (work, counts, parts, widths), (WHOLE,) * parts.shape[1]
        self._kernel = cpu_step.step_kernel(rule, self._kinds, bool((widths > BLOCK).any()))
        self._alone = len(work) == 1 or int(widths @ counts) < 2 * cpu_step.GRAIN  # see there

    def step(self, plans: Sequence[TensorPlan], constants: StepConstants) -> None:
        first = plans[0].scalars
        if all(plan.scalars is first for plan in plans):
            scalars = np.empty((len(plans), len(first.of_rule)), self._dtype)
            scalars[:] = first.of_rule
        else:
            scalars = np.array([plan.scalars.of_rule for plan in plans], self._dtype)
        taus = cpu_step.taus_of(constants, self._dtype, self._widths)
        terms = cpu_step.terms_of(constants, self._dtype, self._kinds)
        gradients, groups = _addresses(plans), self._groups
        threads.share(self._kernel, groups, cpu_step.NO_ROWS, gradients, scalars, taus, terms, alone=self._alone)


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
