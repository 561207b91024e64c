"""Contiguous float32 and float64 parameters in the host's memory, by the step that Numba compiles."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from sparsegroup.kernels.cpu import step
from sparsegroup.kernels.cpu.block import BLOCK
from sparsegroup.kernels.cpu.rows import WHOLE
from sparsegroup.kernels.step import NUMPY_DTYPES, Slot, StepConstants, StepRequest, TensorStep, array_of, compute_dtype
from sparsegroup.rules import Rule

_Kind = tuple[torch.dtype, bool]


class CpuBackend:
    """The compiled step: parameters whose groups lie one after the other, many of them in one launch.

    Args:
        rule: The base optimizer.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._launches: dict[tuple[int, _Kind], tuple[list[Slot], step.Tensors]] = {}

    def takes(self, slot: Slot, sparse: bool) -> bool:
        """Parameters with state in the compute dtype, if Numba can compile the rule."""
        return (
            slot.fits
            and slot.is_contiguous_in_groups
            and slot.execution.wants_kernels
            and not slot.execution.capturable
            and slot.x.device.type == "cpu"
            and slot.dtype == compute_dtype(slot.dtype)
            and slot.state_dtypes <= {slot.dtype}
            and step.is_ready(
                self.rule,
                (WHOLE,) * len(slot.parts),
                slot.width > BLOCK and (slot.carries_u or sparse),
                NUMPY_DTYPES[slot.dtype],
            )
        )

    def check(self) -> None:
        """Nothing is reported late."""

    def step(self, request: StepRequest) -> None:
        """See `Backend.step`."""
        together: dict[_Kind, list[TensorStep]] = {}
        for tensor in request.tensors:
            slot = tensor.slot
            if tensor.rows is None:
                contiguous = tensor if tensor.is_contiguous() else tensor.contiguous()
                together.setdefault((slot.dtype, slot.carries_u), []).append(contiguous)
            else:
                self._over_rows(tensor.summed().contiguous(), request.settings)
        for kind, tensors in together.items():
            self._over_tensors(request, kind, tensors)

    def _over_tensors(self, request: StepRequest, kind: _Kind, tensors: Sequence[TensorStep]) -> None:
        dtype, carries_u = NUMPY_DTYPES[kind[0]], kind[1]
        slots = [tensor.slot for tensor in tensors]
        known, where = self._launches.get((request.group, kind), (None, None))
        if where is None or known != slots:
            where = _tensors_of(slots, carries_u)
            self._launches[request.group, kind] = slots, where
        step.advance_tensors(
            self.rule,
            dtype,
            where,
            np.array([(_address(t.gradient), _address(t.hessian)) for t in tensors], np.int64),
            np.array([tensor.numbers.scalars for tensor in tensors], dtype),
            request.settings,
        )

    def _over_rows(self, tensor: TensorStep, settings: StepConstants) -> None:
        slot = tensor.slot
        assert tensor.rows is not None
        if not len(tensor.rows):
            return
        dtype = NUMPY_DTYPES[slot.dtype]
        row_bytes, parts = slot.width * dtype.itemsize, len(slot.parts)
        step.advance_rows(
            self.rule,
            dtype,
            array_of(tensor.rows.contiguous()),
            step.ONE_PAGE,
            step.row_layout(row_bytes, tuple(slot.addresses), (row_bytes,) * parts, (WHOLE,) * parts),
            np.array([(_address(tensor.gradient), _address(tensor.hessian))], np.int64),
            slot.width,
            np.array([tensor.numbers.scalars], dtype),
            settings,
        )


def _tensors_of(slots: Sequence[Slot], carries_u: bool) -> step.Tensors:
    widths = np.array([slot.width for slot in slots], np.int64)
    counts = np.array([slot.count for slot in slots], np.int64)
    if not carries_u:  # each element by itself
        widths, counts = np.ones_like(widths), widths * counts
    base = np.array([slot.addresses for slot in slots], np.int64)
    return step.Tensors(widths, counts, base, step.pieces(widths, counts))


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
