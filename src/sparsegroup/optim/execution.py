"""Carrying out a checked step: which kernel takes which parameter.

Triton's where parameter and gradient are contiguous and on a GPU; compiled on CPU where they are contiguous float32 or
float64 and their groups lie one after the other; eager elsewhere; and in a parameter's own store where it has one.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsegroup.groups import grouping
from sparsegroup.kernels import rounding
from sparsegroup.kernels.cpu import compiled_step
from sparsegroup.kernels.eager import eager_step
from sparsegroup.kernels.gpu.runtime import WIDEST_ROW
from sparsegroup.kernels.numbers import Numbers
from sparsegroup.kernels.views import array_of
from sparsegroup.optim import on_device
from sparsegroup.optim.group_step import GroupStep, Update, advance_steps, check_rows
from sparsegroup.optim.places import Batch, Place, State, compute_dtype, is_for_device
from sparsegroup.optim.stored import Claim, StoredParameter
from sparsegroup.rules import Rule

_Dense = tuple[Update, Place]


class Execution:
    """Carries out the steps of one optimizer.

    Args:
        rule: The optimizer's.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.device = on_device.Memory()
        self._places: dict[Tensor, Place] = {}
        self._batches: dict[tuple[np.dtype[Any], bool], Batch] = {}

    def check(self) -> None:
        """Raise what a device has reported of the steps before, if it has come by now.

        Raises:
            IndexError: A sparse gradient had rows that its parameter has not.
        """
        self.device.check()

    def carry_out(self, group: Mapping[str, Any], updates: Sequence[Update], states: Mapping[Tensor, State]) -> None:
        """The updates of one param group. `states[parameter]` is empty before a parameter's first."""
        step = GroupStep(self.rule, group)
        placed: list[_Dense] = []
        for update in updates:
            parameter = update.parameter
            if isinstance(parameter, StoredParameter):
                _in_store(step, parameter, update, states[parameter])
                continue
            place = self._places.get(parameter)
            if place is None or not place.holds(parameter, states[parameter], step.execution, step.wants_u):
                names = step.prepare(parameter, states[parameter])
                place = self._places[parameter] = Place(parameter, states[parameter], names, group)
            placed.append((update, place))
        counted = self._count_on_device(step, placed) if step.capturable else None
        together: dict[tuple[np.dtype[Any], bool], list[_Dense]] = {}
        on_devices: list[tuple[Update, Place, Numbers]] = []
        for index, (update, place) in enumerate(placed):
            if counted is None:
                place.count_step()
            if not place.count * place.width and not update.parameter.numel():
                continue
            if (
                place.on_host
                and update.is_contiguous()
                and compiled_step.is_ready(self.rule, place.carries_u, place.dtype)
            ):
                if update.rows is not None:
                    _over_rows(step, update, place)
                else:
                    together.setdefault(place.kind, []).append((update, place))
                continue
            numbers = step.numbers(place.t) if counted is None else counted[index]
            narrow = update.rows is None or place.width <= WIDEST_ROW
            if place.on_device and narrow and on_device.is_ready(self.rule):
                on_devices.append((update.contiguous(), place, numbers))
            else:
                _eagerly(step, update, place, numbers, states[update.parameter])
        for kind, items in together.items():
            places = [place for _, place in items]
            batch = self._batches.get(kind)
            if batch is None or batch.places != places:
                batch = self._batches[kind] = Batch(places)
            _over_tensors(step, batch, [(_address(u.gradient), _address(u.hessian)) for u, _ in items])
        if on_devices:
            self.device.carry_out(step, on_devices)

    def _count_on_device(self, step: GroupStep, placed: Sequence[_Dense]) -> list[Numbers]:
        dtypes = [compute_dtype(update.parameter.dtype) for update, _ in placed]
        return advance_steps(step, [place.step for _, place in placed], dtypes)


def _over_tensors(step: GroupStep, batch: Batch, gradients: Sequence[tuple[int, int]]) -> None:
    """Dense gradients of one dtype, at these addresses, in one launch."""
    compiled_step.advance_tensors(
        step.rule,
        batch.carries_u,
        batch.dtype,
        batch.tensors,
        np.array(gradients, np.int64),
        np.array([step.numbers(place.t).scalars for place in batch.places], batch.dtype),
        step.settings,
    )


def _over_rows(step: GroupStep, update: Update, place: Place) -> None:
    """A sparse gradient."""
    assert update.rows is not None
    if not len(update.rows):
        return
    compiled_step.advance_rows(
        step.rule,
        place.carries_u,
        place.dtype,
        array_of(update.rows),
        compiled_step.ONE_PAGE,
        place.layout,
        np.array([(_address(update.gradient), _address(update.hessian))], np.int64),
        place.width,
        np.array([step.numbers(place.t).scalars], place.dtype),
        step.settings,
    )


def _in_store(step: GroupStep, parameter: StoredParameter, update: Update, state: State) -> None:
    """Rows of a store, which keeps u and the rule's state beside them."""
    assert update.rows is not None
    store = parameter.store
    has_u = "claim" in state and store.claim is state["claim"] and "u" in store.state_names
    carries_u = has_u or step.wants_u or store.keeps_rounding
    store.check_rule(step.rule, carries_u)
    if not state:
        state["step"] = torch.zeros((), dtype=torch.float32)
        state["claim"] = Claim()
    state["step"] += 1
    names = {**({"u": 0.0} if carries_u else {}), **step.initial}
    store.lay_out(state["claim"], names, step.group["state_dtype"])
    gradients = [g for g in (update.gradient, update.hessian) if g is not None]
    store.step(step.rule, update.rows, gradients, step.numbers(float(state["step"])), step.settings)


def _eagerly(step: GroupStep, update: Update, place: Place, numbers: Numbers, state: State) -> None:
    """Any parameter, by way of PyTorch's own operations."""
    if update.rows is not None and is_for_device(update.parameter, step.group):
        check_rows(update.rows, update.parameter.shape[0], "a parameter that the kernels cannot take")  # as they would
    update = update.summed()
    parameter, rows = update.parameter, update.rows
    dtype = compute_dtype(parameter.dtype)

    def read(tensor: Tensor) -> Tensor:
        return (tensor if rows is None else tensor[rows]).to(dtype)

    def write(tensor: Tensor, value: Tensor) -> None:
        if rows is None:
            tensor.copy_(value)
        else:
            tensor.index_copy_(0, rows, value.to(tensor.dtype))

    def write_state(part: int, tensor: Tensor, value: Tensor) -> None:
        if tensor.dtype == torch.bfloat16:
            value = rounding.to_bfloat16(value.float(), _elements(tensor, rows), numbers.seed, part)
        write(tensor, value)

    before = eager_step.Block(
        read(parameter),
        read(state["u"]) if "u" in state else None,
        [read(state[name]) for name in step.rule.state],
    )
    after = eager_step.advance(
        step.rule,
        before,
        [g.to(dtype) for g in (update.gradient, update.hessian) if g is not None],
        numbers.scalars,
        step.initial_as(state),
        numbers.start[0] if step.rule.sigma_0 is not None else None,
        step.regularizer,
        place.groups if rows is None else grouping("rows", before.x.shape, parameter.device),
        parameter.dtype,
    )
    for index, (name, moment) in enumerate(zip(step.rule.state, after.state, strict=True)):
        write_state(1 + index, state[name], moment)
    moves = numbers.start[1]
    if isinstance(moves, Tensor):
        write(parameter, torch.where(moves != 0, after.x, before.x.to(parameter.dtype)))
        if after.u is not None:
            assert before.u is not None
            write_state(0, state["u"], torch.where(moves != 0, after.u, before.u))
    elif moves:
        write(parameter, after.x)
        if after.u is not None:
            write_state(0, state["u"], after.u)


def _elements(tensor: Tensor, rows: Tensor | None) -> Tensor:
    """The number of each element of `tensor`, or of some of its rows, wrapped to int32 as the kernels do."""
    width = tensor.shape[1:].numel() if tensor.ndim else 1
    lines = torch.arange(len(tensor) if tensor.ndim else 1, device=tensor.device) if rows is None else rows
    numbers = lines.unsqueeze(1) * width + torch.arange(width, device=tensor.device)
    return numbers.to(torch.int32).view(-1, *tensor.shape[1:]) if tensor.ndim else numbers.to(torch.int32).view(())


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
