"""Carrying out a checked step: which kernel takes which parameter.

Compiled on CPU where parameter and gradient are contiguous float32 or float64 and their groups lie one after the other;
eager everywhere else; and in a parameter's own store where it has one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sparsegroup.groups import contiguous_groups, grouping
from sparsegroup.kernels import cpu, eager
from sparsegroup.kernels.views import NUMPY_DTYPES, array_of
from sparsegroup.optim.stored import Claim, StoredParameter
from sparsegroup.rules import Rule

VANISHING_LR = 2.0**-50
"""Learning rates below this count as 0: they move nothing, and ‖s‖², of order lr⁻², may overflow float32."""

State = dict[str, Any]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of state and arithmetic: float64 for float64 parameters, float32 for all others."""
    return torch.float64 if dtype == torch.float64 else torch.float32


@dataclass(slots=True)
class Update:
    """One parameter's part of a step, checked and ready to be carried out.

    Attributes:
        parameter: The parameter.
        group: Its param group.
        rows: `[n]` int64, the distinct rows of a sparse gradient, or None for a dense one.
        gradient: In the compute dtype, shaped as the parameter or as its `rows`.
        hessian: Diagonal of the Hessian, shaped as `gradient`; second-order rules only.
    """

    parameter: Tensor
    group: dict[str, Any]
    rows: Tensor | None
    gradient: Tensor
    hessian: Tensor | None = None


class Execution:
    """Carries out the steps of one optimizer.

    Args:
        rule: The optimizer's.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self._places: dict[Tensor, _Place] = {}
        self._batches: dict[tuple[np.dtype[Any], bool], _Batch] = {}

    def carry_out(self, group: Mapping[str, Any], updates: Sequence[Update], states: Mapping[Tensor, State]) -> None:
        """The updates of one param group. `states[parameter]` is empty before a parameter's first."""
        step = _GroupStep(self.rule, group)
        together: dict[tuple[np.dtype[Any], bool], list[tuple[Tensor, Tensor | None, _Place]]] = {}
        places = self._places
        for update in updates:
            parameter = update.parameter
            if isinstance(parameter, StoredParameter):
                step.in_store(parameter, update, states[parameter])
                continue
            place = places.get(parameter)
            if place is None or not place.holds(parameter, states[parameter], step):
                step.prepare(parameter, states[parameter])
                place = places[parameter] = _Place(parameter, states[parameter], step)
            place.count_step()
            if not place.count * place.width and not parameter.numel():
                continue
            gradient, hessian = update.gradient, update.hessian
            fits = gradient.is_contiguous() and (hessian is None or hessian.is_contiguous())
            if not (fits and place.contiguous and cpu.is_ready(self.rule, place.carries_u, place.dtype)):
                step.eagerly(update, states[parameter])
            elif update.rows is not None:
                step.over_rows(update, place)
            else:
                together.setdefault(place.kind, []).append((gradient, hessian, place))
        for kind, items in together.items():
            at = [place for _, _, place in items]
            batch = self._batches.get(kind)
            if batch is None or batch.places != at:
                batch = self._batches[kind] = _Batch(at)
            step.over_tensors(batch, [(_address(g), _address(h)) for g, h, _ in items])


class _GroupStep:
    """One step of one param group."""

    def __init__(self, rule: Rule, group: Mapping[str, Any]) -> None:
        self.rule = rule
        self.group = group
        lr = float(group["lr"])
        self.frozen = lr < VANISHING_LR
        # lr = 0 is an infinite σ: the moments advance, x and u stay. Any other rate gives the same moments.
        self.rate = 1.0 if self.frozen else lr
        self.regularizer = eager.Regularizer(**{name: group[name] for name in eager.Regularizer.__annotations__})
        self.initial = rule.initial_state(group)
        self.sigma_0 = None if rule.sigma_0 is None else rule.host_sigma_0(group, self.rate)
        self.wants_u = self.regularizer.active or rule.sigma_0 is not None
        self.settings = cpu.Settings(self.regularizer, tuple(self.initial.values()), self.sigma_0, self.frozen)
        self._scalars: dict[float, tuple[float, ...]] = {}

    def scalars(self, t: float) -> tuple[float, ...]:
        """The rule's, for step `t`."""
        known = self._scalars.get(t)
        if known is None:
            known = self._scalars[t] = self.rule.host_scalars(self.group, int(t), self.rate)
        return known

    def prepare(self, parameter: Tensor, state: State) -> None:
        """Add to `state` what it lacks."""
        dtype = compute_dtype(parameter.dtype)
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            for name, value in self.initial.items():
                state[name] = torch.full_like(parameter, value, dtype=dtype)
        # Low-precision parameters carry u at λ = 0 too: it holds what their rounding lost.
        if "u" not in state and (self.wants_u or parameter.dtype != dtype):
            state["u"] = torch.zeros_like(parameter, dtype=dtype)

    def over_tensors(self, batch: "_Batch", gradients: Sequence[tuple[int, int]]) -> None:
        """Dense gradients of one dtype, at these addresses, in one launch."""
        cpu.advance_tensors(
            self.rule,
            batch.carries_u,
            batch.dtype,
            batch.tensors,
            np.array(gradients, np.int64),
            np.array([self.scalars(place.t) for place in batch.places], batch.dtype),
            self.settings,
        )

    def over_rows(self, update: Update, place: "_Place") -> None:
        """A sparse gradient."""
        assert update.rows is not None
        if not len(update.rows):
            return
        cpu.advance_rows(
            self.rule,
            place.carries_u,
            place.dtype,
            array_of(update.rows),
            cpu.ONE_PAGE,
            place.layout,
            np.array([(_address(update.gradient), _address(update.hessian))], np.int64),
            place.width,
            np.array([self.scalars(place.t)], place.dtype),
            self.settings,
        )

    def in_store(self, parameter: StoredParameter, update: Update, state: State) -> None:
        """Rows of a store, which keeps u and the rule's state beside them."""
        assert update.rows is not None
        store = parameter.store
        has_u = "claim" in state and store.claim is state["claim"] and "u" in store.state_names
        if not cpu.is_ready(self.rule, has_u or self.wants_u, store.dtype):
            raise RuntimeError(f"a HashEmbedding needs a rule that can be compiled, {self.rule.name!r} cannot")
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["claim"] = Claim()
        state["step"] += 1
        names = {**({"u": 0.0} if has_u or self.wants_u else {}), **self.initial}
        store.lay_out(state["claim"], names)
        gradients = [array_of(g.contiguous()) for g in (update.gradient, update.hessian) if g is not None]
        scalars = np.array([self.scalars(float(state["step"]))], store.dtype)
        store.step(self.rule, array_of(update.rows.contiguous()), gradients, scalars, self.settings)

    def eagerly(self, update: Update, state: State) -> None:
        """Any parameter, by way of PyTorch's own operations."""
        parameter, rows = update.parameter, update.rows
        dtype = compute_dtype(parameter.dtype)

        def read(tensor: Tensor) -> Tensor:
            return (tensor if rows is None else tensor[rows]).to(dtype)

        def write(tensor: Tensor, value: Tensor) -> None:
            if rows is None:
                tensor.copy_(value)
            else:
                tensor.index_copy_(0, rows, value.to(tensor.dtype))

        before = eager.Block(
            read(parameter),
            read(state["u"]) if "u" in state else None,
            [read(state[name]) for name in self.rule.state],
        )
        after = eager.advance(
            self.rule,
            before,
            [update.gradient] if update.hessian is None else [update.gradient, update.hessian],
            self.scalars(float(state["step"])),
            list(self.initial.values()),
            self.sigma_0,
            self.regularizer,
            grouping(self.group["groups"], before.x.shape, parameter.device),
            parameter.dtype,
        )
        for name, moment in zip(self.rule.state, after.state, strict=True):
            write(state[name], moment)
        if not self.frozen:
            write(parameter, after.x)
            if after.u is not None:
                write(state["u"], after.u)


class _Place:
    """Where a parameter and its state lie, looked up once.

    Attributes:
        t: The step count.
        kind: dtype and whether there is a u.
        contiguous: Whether the compiled step can take it: float32 or float64 on the CPU, group after group.
        dtype: NumPy's name of the compute dtype.
        carries_u: Whether there is a u.
        base: Addresses of x, u (if carried) and the states.
        width: Elements of a group.
        count: Groups.
        layout: As rows.
    """

    __slots__ = (
        "_spec",
        "_step",
        "_step_tensor",
        "_stride",
        "_tensors",
        "base",
        "carries_u",
        "contiguous",
        "count",
        "dtype",
        "kind",
        "layout",
        "shape",
        "t",
        "width",
    )

    def __init__(self, parameter: Tensor, state: State, step: _GroupStep) -> None:
        self.dtype: np.dtype[Any] = NUMPY_DTYPES[compute_dtype(parameter.dtype)]
        self.carries_u = "u" in state
        names = (*(("u",) if self.carries_u else ()), *step.rule.state)
        self._tensors: list[tuple[str, Tensor]] = [(name, state[name]) for name in names]
        self._step_tensor = state["step"]
        self._spec, self.shape, self._stride = step.group["groups"], parameter.shape, parameter.stride()
        self._step = array_of(state["step"]) if state["step"].device.type == "cpu" else state["step"]
        self.t = 0.0
        parts = [parameter, *(tensor for _, tensor in self._tensors)]
        layout = contiguous_groups(self._spec, parameter.shape)
        self.contiguous = layout is not None and all(
            part.device.type == "cpu"
            and part.dtype == compute_dtype(parameter.dtype)
            and part.shape == parameter.shape
            and part.is_contiguous()
            for part in parts
        )
        self.width, self.count = layout or (0, 0)
        self.base = [part.data_ptr() for part in parts]
        row_bytes = self.width * self.dtype.itemsize
        self.layout = cpu.row_layout(row_bytes, self.base, row_bytes)
        self.kind = (self.dtype, self.carries_u)

    def count_step(self) -> None:
        """One step more, in the state too."""
        self.t = self._step.item() + 1.0
        self._step[()] = self.t

    def holds(self, parameter: Tensor, state: State, step: _GroupStep) -> bool:
        """Whether all is still where it was, and nothing is missing."""
        if (
            parameter.data_ptr() != self.base[0]
            or parameter.stride() != self._stride
            or parameter.shape != self.shape
            or step.group["groups"] is not self._spec
            or (step.wants_u and not self.carries_u)
            or len(state) != len(self._tensors) + 1
            or state.get("step") is not self._step_tensor
        ):
            return False
        base = self.base
        for index, (name, tensor) in enumerate(self._tensors, 1):
            if tensor is not state.get(name) or tensor.data_ptr() != base[index]:
                return False
        return True


class _Batch:
    """Places that are stepped together, as the kernel is told of them."""

    def __init__(self, places: Sequence[_Place]) -> None:
        self.places = list(places)
        self.dtype, self.carries_u = places[0].kind
        widths = np.array([place.width for place in places], np.int64)
        counts = np.array([place.count for place in places], np.int64)
        base = np.array([place.base for place in places], np.int64)
        self.tensors = cpu.Tensors(widths, counts, base, cpu.pieces(widths, counts))


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
