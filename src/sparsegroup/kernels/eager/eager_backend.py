"""Any parameter, by PyTorch's own operations."""

import torch
from torch import Tensor

from sparsegroup.groups import grouping
from sparsegroup.kernels.eager import eager_step
from sparsegroup.kernels.numbers import as_stored
from sparsegroup.kernels.regularizer import StepConstants
from sparsegroup.kernels.rounding import to_bfloat16
from sparsegroup.kernels.slot import Slot, compute_dtype
from sparsegroup.kernels.step_request import StepRequest, TensorStep
from sparsegroup.rules import Rule


class EagerBackend:
    """The step of `rule` in eager PyTorch: any device, dtype and grouping."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule

    def takes(self, slot: Slot, sparse: bool) -> bool:
        """Every parameter."""
        return True

    def check(self) -> None:
        """Nothing is reported late."""

    def step(self, request: StepRequest) -> None:
        """See `Backend.step`."""
        for tensor in request.tensors:
            self._step(tensor.summed(), request.settings)

    def _step(self, tensor: TensorStep, settings: StepConstants) -> None:
        slot, rows, numbers = tensor.slot, tensor.rows, tensor.numbers
        dtype = compute_dtype(slot.dtype)

        def read(part: Tensor) -> Tensor:
            return (part if rows is None else part[rows]).to(dtype)

        def write(part: Tensor, value: Tensor) -> None:
            if rows is None:
                part.copy_(value)
            else:
                part.index_copy_(0, rows, value.to(part.dtype))

        def write_state(number: int, part: Tensor, value: Tensor) -> None:
            if part.dtype == torch.bfloat16:
                value = to_bfloat16(value.float(), _elements(part, rows), numbers.seed, number)
            write(part, value)

        before = eager_step.Block(
            read(slot.x), None if slot.u is None else read(slot.u), [read(part) for part in slot.state]
        )
        after = eager_step.advance(
            self.rule,
            before,
            [g.to(dtype) for g in (tensor.gradient, tensor.hessian) if g is not None],
            numbers.scalars,
            [as_stored(value, part.dtype) for value, part in zip(settings.initial, slot.state, strict=True)],
            numbers.start[0] if self.rule.sigma_0 is not None else None,
            settings.regularizer,
            slot.groups if rows is None else grouping("rows", before.x.shape, slot.x.device),
            slot.dtype,
        )
        for number, (part, moment) in enumerate(zip(slot.state, after.state, strict=True), 1):
            write_state(number, part, moment)
        moves = numbers.start[1]
        x, u = after.x, after.u
        if isinstance(moves, Tensor):  # only the device knows: x and u are written as they were
            x = torch.where(moves != 0, x, before.x.to(x.dtype))
            u = None if u is None or before.u is None else torch.where(moves != 0, u, before.u)
        elif not moves:
            return
        write(slot.x, x)
        if u is not None and slot.u is not None:
            write_state(0, slot.u, u)


def _elements(tensor: Tensor, rows: Tensor | None) -> Tensor:
    """The number of each element of `tensor`, or of some of its rows, wrapped to int32 as the kernels do."""
    if rows is None:
        return torch.arange(tensor.numel(), device=tensor.device).to(torch.int32).view(tensor.shape)
    shape = tensor.shape[1:]
    numbers = rows.unsqueeze(1) * shape.numel() + torch.arange(shape.numel(), device=tensor.device)
    return numbers.to(torch.int32).view(-1, *shape)
