"""What the tests of the Triton kernels share: tensors in the middle of training, and all the ways to step them."""
# ruff: noqa: E402

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Where the kernels run: without a GPU, Triton's interpreter runs them."""
if DEVICE.type == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from over import over
from sparsegroup import rules
from sparsegroup.groups import Along, Grouping
from sparsegroup.kernels import eager
from sparsegroup.kernels.gpu import launch
from sparsegroup.kernels.rounding import was_updated
from sparsegroup.kernels.step import ParameterMemory, Regularizer, StepConstants, StepScalars, TensorPlan
from sparsegroup.optim.step import step_seed
from sparsegroup.rules import Rule

if os.environ.get("TRITON_INTERPRET") == "1":
    launch.ROW_TILE = 2048  # the interpreter takes its time for each program

RULES = (rules.ADAM, rules.SGD, rules.FTRL, rules.ADAHESSIAN, rules.AMSGRAD, rules.MOMENTUM, rules.ADAGRAD)
KINDS = (rules.SGD, rules.ADAM, rules.FTRL, rules.ADAHESSIAN)
"""Rules without state, with two moments, with a σ at the start, and with a second input: one of each kind."""
LR = 0.05
HYPERPARAMETERS = {
    "betas": (0.9, 0.99),
    "eps": 1e-8,
    "lr_decay": 0.1,
    "initial_accumulator_value": 0.1,
    "beta": 0.2,
    "momentum": 0.9,
    "nesterov": True,
}
REGULARIZER = Regularizer(l1=0.05, l21=0.5, l2=0.01)
SEED = step_seed(3)
SHIFT = 2
"""Pages of a table have 2**SHIFT rows."""


@dataclass(frozen=True)
class Parts:
    """A tensor and its gradients, all shaped alike, or the gradients as some of its rows."""

    x: Tensor
    u: Tensor | None
    state: tuple[Tensor, ...]
    g: Tensor
    second_input: Tensor | None

    @property
    def slot(self) -> ParameterMemory:
        """The memory of the tensor with its state."""
        names = tuple(map(str, range(len(self.state))))
        entry = {"step": torch.zeros(()), **({} if self.u is None else {"u": self.u})}
        entry |= dict(zip(names, self.state, strict=True))
        return ParameterMemory(self.x, entry, names, "rows", wants_kernels=True, capturable=False)

    def with_scalars(self, scalars: StepScalars) -> TensorPlan:
        plan = TensorPlan(self.x, self.g, self.slot, self.second_input)
        plan.scalars = scalars
        return plan

    def runs(self, rows: Tensor, *, repeats: bool = False) -> launch.GradientRuns:
        """The gradient of `rows`."""
        if repeats:
            return launch.runs_of(self.g, rows)
        return launch.GradientRuns(self.g, rows, self.second_input)


@dataclass(frozen=True)
class Case:
    """A tensor, on the CPU, and the step that it is to take."""

    rule: Rule
    parts: Parts
    groups: Grouping  # most ways to step it need them to be its rows
    constants: StepConstants
    scalars: StepScalars

    def expected(self) -> eager.Block:
        """The step by `eager.advance`, u and the state in float32."""
        parts = self.parts
        after = eager.advance(
            self.rule,
            eager.Block(
                parts.x.float(), None if parts.u is None else parts.u.float(), [state.float() for state in parts.state]
            ),
            [parts.g.float(), *([] if parts.second_input is None else [parts.second_input.float()])],
            self.scalars.of_rule,
            self.constants.initial,
            self.constants.sigma_0,
            self.constants.regularizer,
            self.groups,
            parts.x.dtype,
        )
        return replace(after, x=after.x.to(parts.x.dtype))


def case(
    rule: Rule,
    shape: Sequence[int],
    regularizer: Regularizer = REGULARIZER,
    *,
    dtype: torch.dtype = torch.float32,
    state_dtype: torch.dtype = torch.float32,
    gradient_dtype: torch.dtype = torch.float32,
    carries_u: bool = True,
    frozen: bool = False,
    hyperparameters: Mapping[str, Any] = HYPERPARAMETERS,
) -> Case:
    """Of four rows, one in the middle of training, one with its first gradient, one that becomes 0, one without."""
    kinds = torch.arange(shape[0]).view(-1, *[1] * (len(shape) - 1)) % 4
    trained, weak = (kinds == 0) | (kinds == 2), torch.where(kinds == 2, 0.003, 1.0)
    generator = torch.Generator().manual_seed(len(shape))

    def normal() -> Tensor:
        return torch.randn(tuple(shape), generator=generator)

    names = rule.initial_state(hyperparameters)
    initial = tuple(float(torch.tensor(value).to(state_dtype)) for value in names.values())
    parts = Parts(
        x=(0.5 * normal() * weak).to(dtype),
        u=(0.1 * normal() * weak * trained + 0.0).to(state_dtype) if carries_u else None,
        state=tuple((start + 0.1 * normal().abs() * trained).to(state_dtype) for start in initial),
        g=(normal() * weak * (kinds != 3)).to(gradient_dtype),
        second_input=normal().abs().to(gradient_dtype) if rule.has_second_input else None,
    )
    sigma_0 = None if rule.sigma_0 is None else rule.host_sigma_0(hyperparameters, LR)
    return Case(
        rule,
        parts,
        Along(torch.Size(shape), 0),
        StepConstants(regularizer, initial, sigma_0, frozen),
        StepScalars(rule.host_scalars(hyperparameters, 3, LR), sigma_0 or 0.0, 0.0 if frozen else 1.0, SEED),
    )


def mapped(parts: Parts, function: Callable[[Tensor], Tensor]) -> Parts:
    """`function` of each tensor."""
    return Parts(
        function(parts.x),
        None if parts.u is None else function(parts.u),
        tuple(function(state) for state in parts.state),
        function(parts.g),
        None if parts.second_input is None else function(parts.second_input),
    )


def sent(parts: Parts) -> Parts:
    """A copy on the device."""
    return mapped(parts, lambda tensor: tensor.to(DEVICE, copy=True))


def received(parts: Parts) -> Parts:
    """A copy on the CPU."""
    return mapped(parts, lambda tensor: tensor.to("cpu", copy=True))


def no_counts() -> Tensor:
    return torch.zeros(3, dtype=torch.int64, device=DEVICE)


def shuffled(count: int, seed: int = 0) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def lines_of(parts: Parts, rows: Tensor, times: float = 1.0) -> Parts:
    """`parts` with the gradients of some rows, `times` a number; rows that are not there get another's."""
    there = rows % len(parts.g)
    second_input = None if parts.second_input is None else parts.second_input[there]
    return replace(parts, g=parts.g[there] * times, second_input=second_input)


class Table:
    """Rows in pages of 2**SHIFT, on the device, that begin as those of `parts`.

    Args:
        parts: x, u and the states.
        alignment: Of what lies in a row, in bytes.
    """

    def __init__(self, parts: Parts, alignment: int = 16) -> None:
        values = [parts.x, *([] if parts.u is None else [parts.u]), *parts.state]
        self.height, dim = parts.x.shape
        state_dtype = values[1].dtype if len(values) > 1 else torch.float32

        def bytes_of(dtype: torch.dtype) -> int:
            return -(-dim * dtype.itemsize // alignment) * alignment

        first, part = bytes_of(parts.x.dtype), bytes_of(state_dtype)
        row_bytes = first + part * (len(values) - 1)
        count = -(-self.height // 2**SHIFT)
        self.pages = [torch.full((2**SHIFT, row_bytes), 7, dtype=torch.uint8, device=DEVICE) for _ in range(count)]
        addresses = torch.tensor([page.data_ptr() for page in self.pages], device=DEVICE)
        self.layout = launch.Layout(addresses, SHIFT, row_bytes, first, part, parts.x.dtype, state_dtype, dim)
        self.parts = [(value.dtype, 0 if k == 0 else first + (k - 1) * part) for k, value in enumerate(values)]
        for (dtype, offset), value in zip(self.parts, values, strict=True):
            content = value.to(DEVICE).contiguous().view(torch.uint8)
            for page, rows in zip(self.pages, content.split(2**SHIFT), strict=True):
                page[: len(rows), offset : offset + dim * dtype.itemsize] = rows

    def bytes(self) -> Tensor:
        """All of the memory, `[rows, bytes]`."""
        return torch.cat(self.pages).cpu()

    def part(self, index: int) -> Tensor:
        dtype, offset = self.parts[index]
        part = self.bytes()[: self.height, offset : offset + self.layout.dim * dtype.itemsize]
        return part.contiguous().view(dtype)

    def between(self) -> Tensor:
        """All of the memory with zeros where there are parts of rows."""
        memory = self.bytes()
        for dtype, offset in self.parts:
            memory[: self.height, offset : offset + self.layout.dim * dtype.itemsize] = 0
        return memory

    def updated(self, parts: Parts) -> Parts:
        """`parts` with what the table holds now."""
        values = [self.part(index) for index in range(len(self.parts))]
        u = None if parts.u is None else values.pop(1)
        return replace(parts, x=values[0], u=u, state=tuple(values[1:]))


def by_tensor(case: Case) -> Parts:
    parts = sent(case.parts)
    launch.step_tensor(case.rule, parts.with_scalars(case.scalars), case.parts.x[0].numel(), case.constants)
    return received(parts)


def by_many(case: Case) -> Parts:
    """Beside others, which begin with the same rows and so have the same step."""
    height, width = len(case.parts.x), case.parts.x[0].numel()
    many = [
        sent(mapped(case.parts, lambda tensor, rows=rows: tensor[:rows])) for rows in (1, height, 0, height // 2, 0)
    ]
    launch.step_many(case.rule, [parts.with_scalars(case.scalars) for parts in many], width, case.constants)
    for other in (many[0], many[3]):
        for name in ("x", "u", "state"):
            assert_same_bits(getattr(other, name), first_rows(getattr(many[1], name), len(other.x)), name)
    return received(many[1])


def first_rows(tensors: Any, rows: int) -> Any:
    if isinstance(tensors, tuple):
        return tuple(tensor[:rows] for tensor in tensors)
    return None if tensors is None else tensors[:rows]


def by_rows(case: Case) -> Parts:
    """Each row once."""
    parts, rows, counts = sent(case.parts), shuffled(len(case.parts.x)), no_counts()
    gradient = lines_of(parts, rows).runs(rows)
    launch.step_rows(case.rule, parts.slot, gradient, counts, case.constants, case.scalars)
    assert not counts.any()
    return received(parts)


def by_runs(case: Case) -> Parts:
    """Each row twice, with half of the gradient."""
    parts, counts = sent(case.parts), no_counts()
    rows = torch.cat([shuffled(len(parts.x)), shuffled(len(parts.x), 1)])
    gradient = lines_of(parts, rows, 0.5).runs(rows, repeats=True)
    launch.step_rows(case.rule, parts.slot, gradient, counts, case.constants, case.scalars)
    assert not counts.any()
    return received(parts)


def by_table(case: Case, alignment: int = 16) -> Parts:
    """Each row of a table once, or twice where the rule wants no Hessian, beside rows that are not there."""
    table, counts = Table(case.parts, alignment), no_counts()
    rows = torch.cat([shuffled(table.height), torch.tensor([-1, table.height], device=DEVICE)])
    repeats = not case.rule.second_order
    if repeats:
        rows = torch.cat([rows, shuffled(table.height, 1)])
    gradient = lines_of(sent(case.parts), rows, 0.5 if repeats else 1.0).runs(rows, repeats=repeats)
    between, before = table.between(), table.part(0)
    launch.step_table(
        case.rule, case.parts.u is not None, table.layout, table.height, gradient, counts, case.constants, case.scalars
    )
    after = table.updated(case.parts)
    assert torch.equal(table.between(), between)
    assert counts.tolist() == [int(after.x.any(1).sum() - before.any(1).sum()), 1, table.height]
    return after


WAYS = (by_tensor, by_many, by_rows, by_runs, by_table)


def rules_and_ways(of: Sequence[Rule], without: Callable[..., Parts] | None = None) -> Callable[[Any], Any]:
    """Adam by each way, other rules as a tensor and as a table."""
    pairs = [
        (rule, way)
        for rule in of
        for way in (WAYS if rule is rules.ADAM else (by_tensor, by_table))
        if way is not without
    ]
    return over(("rule", "way"), pairs)


def assert_same_bits(a: Any, b: Any, name: str = "") -> None:
    """Also the signs of zeros; any NaN is as another."""
    if a is None or isinstance(a, tuple):
        assert (a is None) == (b is None)
        for one, other in zip(a or (), b or (), strict=True):
            assert_same_bits(one, other, name)
        return
    assert a.dtype == b.dtype
    a, b = a.cpu(), b.cpu()
    torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{name}: {m}")
    assert torch.equal(a.signbit() | a.isnan(), b.signbit() | b.isnan()), name


def _largest(tensors: Iterable[Tensor]) -> float:
    sizes = [tensor[tensor.isfinite()].abs().double() for tensor in tensors]
    return max((float(size.max()) for size in sizes if size.numel()), default=0.0)


def assert_close(name: str, value: Tensor, expected: Tensor, before: Tensor, slack: float = 0.0) -> None:
    """The same to some roundings of the largest number; where 0 is expected, exactly that."""
    tolerance = 64 * torch.finfo(torch.float32).eps * _largest([expected, before]) + slack
    torch.testing.assert_close(
        value.double(), expected.double(), rtol=0, atol=tolerance, equal_nan=True, msg=lambda m: f"{name}: {m}"
    )
    assert (value[expected == 0] == 0).all(), name


def assert_step(case: Case, after: Parts, expected: eager.Block | None = None) -> None:
    """`after`, on the CPU and with float32 state, is `case` a step of `eager.advance` later."""
    before, expected = case.parts, expected or case.expected()
    for k, (value, wanted) in enumerate(zip(after.state, expected.state, strict=True)):
        assert_close(f"state {k}", value, wanted, before.state[k])

    # A last bit in float32 decides now and then to which side a weight is rounded; u holds what that lost.
    low_precision = before.x.dtype != torch.float32
    same_side = ~((after.x != expected.x) & expected.x.isfinite() & low_precision)
    assert (~same_side).sum() <= 1 + 0.01 * before.x.numel()
    ulp = torch.finfo(before.x.dtype).eps
    torch.testing.assert_close(after.x[~same_side], expected.x[~same_side], rtol=ulp, atol=0)
    assert_close("x", after.x[same_side], expected.x[same_side], before.x)

    if before.u is not None:
        second_input = [] if before.second_input is None else [before.second_input.float()]
        _, sigma, *_ = case.rule.update(before.g.float(), *second_input, *before.state, *case.scalars.of_rule)
        rounded = 4 * torch.finfo(torch.float32).eps * _largest([sigma * before.x.float()]) if low_precision else 0.0
        assert_close("u", after.u[same_side], expected.u[same_side], before.u, rounded)
        touched = case.groups.any(was_updated(expected.u)).expand_as(expected.u)
        assert was_updated(after.u)[touched].all()
        assert not was_updated(after.u)[~touched].any()
        assert_same_bits(after.x[~touched], before.x[~touched], "x of groups without a gradient")


def vast(*shape: int) -> Tensor:
    """Zeros in bfloat16, without memory on the CPU until they are written; skipped where a GPU has too little."""
    size = int(np.prod(shape)) * 2
    if DEVICE.type == "cpu":
        return torch.from_numpy(np.zeros(shape, np.int16)).view(torch.bfloat16)
    if torch.cuda.mem_get_info()[0] < size + (1 << 30):
        pytest.skip(f"takes {size >> 30} GiB of the GPU's memory")
    return torch.zeros(shape, dtype=torch.bfloat16, device=DEVICE)


def with_float32_state(one: Case) -> Case:
    parts = one.parts
    return replace(one, parts=replace(parts, u=parts.u.float(), state=tuple(state.float() for state in parts.state)))
