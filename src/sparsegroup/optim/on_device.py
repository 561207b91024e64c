"""The step by Triton's kernels: tensors that go together in one launch, groups that want two passes, sparse rows."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from sparsegroup.groups import Along, ByIndex
from sparsegroup.kernels.eager.eager_step import updated_before
from sparsegroup.kernels.gpu.watch import Watch
from sparsegroup.kernels.numbers import Numbers, as_stored
from sparsegroup.kernels.settings import Settings
from sparsegroup.optim.group_step import GroupStep, Update
from sparsegroup.optim.places import Place
from sparsegroup.rules import Rule

if TYPE_CHECKING:
    from sparsegroup.kernels.gpu.launch import Geometry, Parts, Together

_Item = tuple[Update, Place, Numbers]


@cache
def is_ready(rule: Rule) -> bool:
    """Whether a rule can be bound for Triton; False, with a warning, for one that cannot."""
    from sparsegroup.kernels.gpu import binding

    try:
        binding.step_kernels(rule, True, "s", "lasso")
    except (OSError, SyntaxError, ValueError) as error:
        warnings.warn(
            f"the rule {rule.name!r} cannot be compiled for the GPU, its steps will be slow: {error}",
            RuntimeWarning,
            stacklevel=2,
        )
        return False
    return True


class Memory:
    """What an optimizer keeps on devices from step to step."""

    def __init__(self) -> None:
        self._together: dict[tuple[Any, ...], Together] = {}
        self._watches: dict[torch.device, Watch] = {}

    def check(self) -> None:
        """See `Execution.check`."""
        for watch in self._watches.values():
            counts = watch.arrived()
            if counts is not None and counts[1]:
                watch.clear(1)
                raise IndexError(
                    f"a sparse gradient of a step before had {counts[1]} rows that its parameter has not, {counts[2]} "
                    "for one; they were left out"
                )

    def carry_out(self, step: GroupStep, items: Sequence[_Item]) -> None:
        """The updates of one param group; all are contiguous and on devices."""
        from sparsegroup.kernels.gpu import launch

        together: dict[tuple[Any, ...], list[tuple[Parts, Numbers]]] = {}
        for update, place, numbers in items:
            parts = _parts(step, update, place)
            settings = replace(step.settings, initial=_initial(step, parts))
            if update.rows is not None:
                self._over_rows(step, update, parts, settings, numbers)
                continue
            width = place.width if place.carries_u else 1
            if not width or width > launch.WIDEST:
                _over_large_groups(step, parts, place, settings, numbers)
                continue
            # Step numbers that the device alone knows differ from tensor to tensor; in a graph, launches cost little.
            apart = id(parts) if numbers.on_device else place.t
            kind = (parts.x.device, parts.x.dtype, _state_dtype(parts), parts.g.dtype, place.carries_u, width, apart)
            together.setdefault(kind, []).append((parts, numbers))
        for kind, tensors in together.items():
            width = kind[5]
            settings = replace(step.settings, initial=_initial(step, tensors[0][0]))
            if len(tensors) == 1:
                launch.advance_tensor(step.rule, tensors[0][0], width, settings, tensors[0][1])
                continue
            for first in range(0, len(tensors), launch.MOST_TENSORS):
                some = [parts for parts, _ in tensors[first : first + launch.MOST_TENSORS]]
                known = self._known((id(step.group), kind[:-1], first), some, width)
                launch.advance_together(step.rule, some[0], known, width, settings, tensors[0][1])

    def _known(self, key: tuple[Any, ...], tensors: Sequence["Parts"], width: int) -> "Together":
        """What the device has been told of `tensors`; gradients are often where they were."""
        from sparsegroup.kernels.gpu import launch

        lines = launch.lines_of(tensors, width)
        known = self._together.get(key)
        if known is None or known.lines != lines:
            known = self._together[key] = launch.together(lines, width, tensors[0].x.device)
        return known

    def _over_rows(self, step: GroupStep, update: Update, parts: "Parts", settings: Settings, numbers: Numbers) -> None:
        """A sparse gradient."""
        from sparsegroup.kernels.gpu import launch_rows

        assert update.rows is not None
        if not len(update.rows):
            return
        rows = update.rows.contiguous()
        runs = launch_rows.runs_of(rows) if update.repeats else launch_rows.Runs(rows, None, None, len(rows))
        watch = self._watches.get(rows.device)
        if watch is None:
            watch = self._watches[rows.device] = Watch(rows.device)
        launch_rows.advance_rows(step.rule, parts, runs, watch.counters, settings, numbers)
        watch.send()


def _parts(step: GroupStep, update: Update, place: Place) -> "Parts":
    from sparsegroup.kernels.gpu.launch import Parts

    state = dict(place.tensors)
    return Parts(
        update.parameter, state.get("u"), tuple(state[n] for n in step.rule.state), update.gradient, update.hessian
    )


def _state_dtype(parts: "Parts") -> torch.dtype | None:
    return parts.state[0].dtype if parts.state else None if parts.u is None else parts.u.dtype


def _initial(step: GroupStep, parts: "Parts") -> tuple[float, ...]:
    values = zip(step.initial.values(), parts.state, strict=True)
    return tuple(as_stored(value, tensor.dtype) for value, tensor in values)


def _over_large_groups(step: GroupStep, parts: "Parts", place: Place, settings: Settings, numbers: Numbers) -> None:
    """Groups beyond a block, or that do not lie one after the other: two passes."""
    from sparsegroup.kernels.gpu import launch

    groups, tau = place.groups, settings.regularizer.tau
    geometry = _geometry(place)
    updated = None
    if settings.sigma_0 is not None or step.rule.sigma_0 is not None:
        assert parts.u is not None
        updated = groups.any(updated_before(parts.u)).to(torch.int8).reshape(-1)
    totals, touched = launch.measure(step.rule, parts, geometry, updated, settings, numbers)
    taus: float | Tensor
    if isinstance(groups, ByIndex):
        totals, touched = groups.sums(totals), groups.sums(touched)
        taus = (groups.sqrt_size * tau).float().reshape(-1)
    else:
        taus = math.sqrt(geometry.width) * float(tau)
    launch.apply(step.rule, parts, geometry, updated, totals, touched, taus, settings, numbers)


def _geometry(place: Place) -> "Geometry":
    from sparsegroup.kernels.gpu.launch import Geometry

    groups, shape = place.groups, place.shape
    if isinstance(groups, ByIndex):
        return Geometry(1, shape[0], shape[1:].numel())
    assert isinstance(groups, Along)
    if groups.dim is None:
        return Geometry(1, 1, shape.numel())
    return Geometry(shape[: groups.dim].numel(), shape[groups.dim], shape[groups.dim + 1 :].numel())
