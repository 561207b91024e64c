"""The Triton kernels take the step of `eager.advance`, whatever way the groups and their gradients come."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from gpu_cases import (
    DEVICE,
    HYPERPARAMETERS,
    KINDS,
    REGULARIZER,
    RULES,
    SEED,
    SHIFT,
    WAYS,
    Case,
    Parts,
    Table,
    assert_same_bits,
    assert_step,
    by_many,
    by_rows,
    by_runs,
    by_table,
    by_tensor,
    case,
    lines_of,
    mapped,
    no_counts,
    rules_and_ways,
    sent,
    shuffled,
    vast,
    with_float32_state,
)
from over import over
from sparsegroup.groups import Along
from sparsegroup.kernels import rounding
from sparsegroup.kernels.gpu import launch
from sparsegroup.kernels.rounding import was_updated
from sparsegroup.kernels.step import Regularizer, StepConstants, StepScalars
from sparsegroup.penalties import Norm, Penalty
from sparsegroup.rules import ADAGRAD, ADAHESSIAN, ADAM, FTRL, SGD, Rule

Way = Callable[[Case], Parts]
NORMS, PENALTIES = ("s", "s_tilde", "metric"), ("lasso", "mcp", "hard")
ADAM_AND_FTRL = (ADAM, FTRL)
"""What they keep differs: two moments, or a sum with a start that σ is charged with."""


@pytest.fixture(autouse=True)
def _numpy_is_quiet() -> Iterator[None]:
    """Triton's interpreter computes with NumPy, which warns where a GPU gives infinity or NaN."""
    with np.errstate(all="ignore"):
        yield


@over("rule", RULES)
def test_every_rule_norm_and_penalty(rule: Rule) -> None:
    for norm, penalty in zip(NORMS, (PENALTIES * 2)[RULES.index(rule) % 3 :][:3], strict=True):
        one = case(rule, (13, 5), replace(REGULARIZER, norm=Norm.of(norm), penalty=Penalty.of(penalty)))
        expected = one.expected()
        assert {bool(row.any()) for row in expected.x} == {False, True}
        assert_step(one, by_tensor(one), expected)


TYPES = ((torch.bfloat16, torch.float32), (torch.bfloat16, torch.bfloat16), (torch.float16, torch.float32))


@rules_and_ways(ADAM_AND_FTRL)
def test_low_precision_weights_and_gradients_with_penalties_and_without(rule: Rule, way: Way) -> None:
    for dtype, gradient_dtype in TYPES if rule is ADAM else TYPES[:1]:
        one = case(rule, (13, 5), dtype=dtype, gradient_dtype=gradient_dtype)
        assert_step(one, way(one))
        one = case(rule, (13, 5), Regularizer(), dtype=dtype, gradient_dtype=gradient_dtype, carries_u=False)
        assert_step(one, way(one))


@over("way", [by_tensor, by_table])
def test_each_lambda_alone_and_none(way: Way) -> None:
    for number, on in enumerate(((), ("l1",), ("l21",), ("l2",))):
        rule, dtype = ((ADAM, torch.bfloat16), (FTRL, torch.float32))[number % 2]
        one = case(rule, (9, 4), Regularizer(**{name: getattr(REGULARIZER, name) for name in on}), dtype=dtype)
        assert_step(one, way(one))


@rules_and_ways(KINDS)
def test_a_learning_rate_of_0_moves_the_states_alone(rule: Rule, way: Way) -> None:
    one = case(rule, (9, 5), dtype=torch.bfloat16, frozen=True)
    after, expected = way(one), one.expected()
    assert_same_bits((after.x, after.u), (one.parts.x, one.parts.u))
    for value, wanted in zip(after.state, expected.state, strict=True):
        torch.testing.assert_close(value, wanted)
    one = case(rule, (9, 5), Regularizer(), carries_u=False, frozen=True)
    assert torch.equal(way(one).x, one.parts.x)


@over("way", WAYS)
def test_elements_of_a_curvature_of_0(way: Way) -> None:
    """σ = 0 where an element of a group has had no gradient, without ε."""
    zero = {**HYPERPARAMETERS, "eps": 0.0, "initial_accumulator_value": 0.0}
    for l1, norm in zip((0.0, 0.05, 0.0), NORMS, strict=True):
        one = case(ADAGRAD, (9, 5), Regularizer(l1=l1, l21=0.02, norm=Norm.of(norm)), hyperparameters=zero)
        one.parts.g[:, 1] = 0
        one.parts.state[0][:, 1] = 0
        one.parts.u[:, 1] = 0
        assert_step(one, way(one))


@rules_and_ways(KINDS, without=by_table)
def test_infinities_and_nan_go_through(rule: Rule, way: Way) -> None:
    for dtype, norm in ((torch.float32, "s"), (torch.bfloat16, "metric")):
        one = case(rule, (9, 5), replace(REGULARIZER, norm=Norm.of(norm)), dtype=dtype)
        one.parts.g[0, 1], one.parts.g[1, 2], one.parts.g[2, 3], one.parts.g[3, 4] = math.nan, math.inf, -math.inf, 1e30
        expected = one.expected()
        assert not expected.x[0].isfinite().all()
        assert_step(one, way(one), expected)


@over("width", [1, 16, 100, 4096])
def test_groups_of_any_width(width: int) -> None:
    """One more of them than a program takes."""
    height = max(1, launch.TILE // launch.padded(width)) + 1
    one = case(ADAM, (height, width))
    expected = one.expected()
    for way in (by_tensor, by_many, by_rows, by_runs, by_table, partial(by_table, alignment=4)):
        assert_step(one, way(one), expected)


@over("l21", [0.0, 0.5])
@rules_and_ways(ADAM_AND_FTRL)
def test_state_in_bfloat16_is_rounded_by_chance(rule: Rule, way: Way, l21: float) -> None:
    dtype = torch.bfloat16 if l21 else torch.float32
    one = case(rule, (13, 5), replace(REGULARIZER, l21=l21), dtype=dtype, state_dtype=torch.bfloat16)
    after, exact = way(one), way(with_float32_state(one))
    assert_step(with_float32_state(one), exact)
    elements = torch.arange(13 * 5, dtype=torch.int32).view(13, 5)
    for part, (value, precise) in enumerate(zip((after.u, *after.state), (exact.u, *exact.state), strict=True)):
        assert value.dtype == torch.bfloat16
        assert ((value.float() - precise).abs() <= 2**-7 * precise.abs()).all()
        assert torch.equal(was_updated(value), was_updated(precise))
        # Elsewhere a sum in another order may have another last bit.
        if l21 == 0 or DEVICE.type == "cpu":
            assert_same_bits(value, rounding.to_bfloat16(precise, elements, SEED, part))


@rules_and_ways(ADAM_AND_FTRL, without=by_many)
def test_scalars_on_the_device_are_those_on_the_host(rule: Rule, way: Way) -> None:
    for frozen in (False, True):
        one = case(rule, (9, 5), state_dtype=torch.bfloat16, frozen=frozen)
        host = one.scalars
        of_rule = tuple(torch.tensor(value, device=DEVICE) for value in host.of_rule)
        sigma_0, moves = (torch.tensor(value, device=DEVICE) for value in (host.sigma_0, host.moves))
        seed = torch.tensor(host.seed, dtype=torch.int32, device=DEVICE)
        after, expected = way(replace(one, scalars=StepScalars(of_rule, sigma_0, moves, seed))), way(one)
        assert_same_bits((after.x, after.u, *after.state), (expected.x, expected.u, *expected.state))


def displaced(tensor: Tensor) -> Tensor:
    """A copy that begins at an odd element of its memory."""
    return torch.cat([tensor.flatten()[:1], tensor.flatten()])[1:].view_as(tensor)


@over("way", WAYS)
def test_tensors_anywhere_in_memory(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    one = case(ADAM, (9, 16), dtype=torch.bfloat16, state_dtype=torch.bfloat16)
    expected = way(one)
    with monkeypatch.context() as patch:
        patch.setattr("gpu_cases.sent", lambda parts: mapped(sent(parts), displaced))
        after = way(one)
    assert_same_bits((after.x, after.u, *after.state), (expected.x, expected.u, *expected.state))


# Rows of a tensor or a table: repeated ones, missing ones, and very large tensors


PLAIN = StepConstants(Regularizer(), (), None, False)
UNIT = StepScalars((1.0,), 0.0, 1.0, SEED)
"""SGD of weights 0 with σ = 1: weights become minus the gradient."""


def summed(gradient: launch.GradientRuns, height: int) -> tuple[Tensor, list[int]]:
    """What a step of SGD makes of zeros, `[height, width]`, and the counters."""
    x, counts = torch.zeros(height, gradient.values.shape[1], device=DEVICE), no_counts()
    slot = Parts(x, None, (), x, None).slot
    launch.step_rows(SGD, slot, gradient, counts, PLAIN, UNIT)
    return -x.cpu(), counts.tolist()


def test_repeated_rows_that_begin_and_end_anywhere() -> None:
    """Runs from every place in a chunk to every place in a chunk, with no, one or two whole ones between."""
    size = launch.CHUNK
    places = [place for a in range(size) for place in (a, *(n for b in range(a + 1, size) for n in (a, b)))]
    lengths = [
        (after - before) % size + size * whole
        for whole in range(3)
        for before, after in zip(places, [*places[1:], places[0]], strict=True)
    ]
    starts = torch.tensor([0, *itertools.accumulate(lengths)])
    covered = {(int(a) % size, int(b) % size, int(b - a) // size) for a, b in itertools.pairwise(starts)}
    assert len(covered) == 3 * size**2
    rows = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    lines = shuffled(len(rows)).cpu()
    g = torch.randint(-50, 50, (len(rows), 1), generator=torch.Generator().manual_seed(0)).float()
    rows = rows[lines.argsort()]
    runs = launch.GradientRuns(*(tensor.to(DEVICE) for tensor in (g, rows)), None, lines.to(DEVICE), starts.to(DEVICE))
    x, _ = summed(runs, len(lengths))
    assert torch.equal(x, torch.zeros_like(x).index_add_(0, rows, g))


SIZE = launch.CHUNK
LENGTHS = {
    "few": [1, 30, 1, 31, 33, 2, 65, *[1, 0] * 200],
    "many": [5, 2 * SIZE**2, 1],
    "blocks": [SIZE**2 + 500, SIZE**2 - 1, SIZE**2, 40],
}


@over(
    ("name", "width", "known", "dtype"),
    [
        ("few", 1, False, torch.bfloat16),
        ("few", 100, False, torch.float32),
        ("many", 3, True, torch.float32),
        ("blocks", 16, False, torch.float32),
    ],
)
def test_rows_that_come_any_number_of_times(name: str, width: int, known: bool, dtype: torch.dtype) -> None:
    """Blocks of chunks: none, one, several, from and to everywhere; the host may know how long runs are."""
    lengths = torch.tensor(LENGTHS[name])
    rows = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    rows = rows[shuffled(len(rows)).cpu()]
    g = torch.randint(-50, 50, (len(rows), width), generator=torch.Generator().manual_seed(0)).float()
    runs = launch.runs_of(g.to(DEVICE, dtype), rows.to(DEVICE))
    x, counts = summed(replace(runs, longest=int(lengths.max())) if known else runs, len(lengths))
    assert torch.equal(x, torch.zeros_like(x).index_add_(0, rows, g))
    assert counts == [0, 0, 0]


@over("once", [True, False])
def test_rows_that_are_not_there_are_left_out_and_counted(once: bool) -> None:
    rows = torch.tensor([4, -1, 0, 9, 1 << 40, 8, -(1 << 40)], device=DEVICE).repeat(1 if once else 2)
    g = torch.ones(len(rows), 3, device=DEVICE)
    runs = launch.GradientRuns(g, rows) if once else launch.runs_of(g, rows)
    x, (unused, out, one) = summed(runs, 9)
    assert (unused, out) == (0, 4)
    assert one in (-1, 9, 1 << 40, -(1 << 40))
    assert x.sum(1).nonzero().flatten().tolist() == [0, 4, 8]


@over("once", [True, False])
def test_a_table_leaves_gradients_that_are_not_finite(once: bool) -> None:
    one = case(ADAHESSIAN if once else ADAM, (13, 5))
    table, counts = Table(one.parts), no_counts()
    memory = table.bytes()
    rows = torch.tensor([12, -1, 3, 0, 5, 6, 2])
    rows = (rows if once else rows.repeat(2)).to(DEVICE)
    lines = lines_of(sent(one.parts), rows, 1.0 if once else 0.5)
    lines.g[3, 1], lines.g[5, 4], lines.g[1, 0] = math.nan, math.inf, math.nan
    bad = [0, 6]
    if once:
        lines.second_input[0, 2] = math.inf
        bad.append(12)
    runs = lines.runs(rows, repeats=not once)
    launch.step_table(one.rule, True, table.layout, 13, runs, counts, one.constants, one.scalars)
    stays = torch.tensor(sorted({*range(16)} - {12, 3, 0, 5, 6, 2} | {*bad}))
    assert torch.equal(table.bytes()[stays], memory[stays])
    stepped = [row for row in (2, 3, 5, 12) if row not in bad]
    some = replace(
        one, parts=mapped(one.parts, lambda tensor: tensor[stepped]), groups=Along(torch.Size((len(stepped), 5)), 0)
    )
    after = table.updated(one.parts)
    assert_step(some, mapped(after, lambda tensor: tensor[stepped]))
    born = int(after.x.any(1).sum() - one.parts.x.any(1).sum())
    assert counts[:2].tolist() == [born, len(bad)]
    assert int(counts[2]) in bad


@over(("width", "dtype"), [(1, torch.float32), (3, torch.bfloat16), (16, torch.float16), (1000, torch.float32)])
def test_parts_of_rows_are_read_and_set(width: int, dtype: torch.dtype) -> None:
    height = launch.TILE // launch.padded(width) + 5
    parts = case(ADAM, (height, width), dtype=dtype).parts
    for alignment in (4, 16):
        table = Table(parts, alignment)
        between = table.between()
        for k, (type_, offset) in enumerate(table.parts):
            rows = torch.cat([shuffled(height), torch.tensor([-1], device=DEVICE)])
            known = rows[:-1].cpu()
            out = launch.gather(table.layout, rows, type_, offset).cpu()
            assert_same_bits(out[:-1], table.part(k)[known])
            assert_same_bits(out[-1], torch.zeros(width, dtype=type_))

            values = torch.randn(height, width, generator=torch.Generator().manual_seed(k))
            values[0, 0], values[1, 0], values[2, 0] = math.nan, math.inf, -0.0
            some = height - 2
            others = [table.part(j) for j in range(len(table.parts))]
            launch.scatter(table.layout, rows[:some], values[:some].to(DEVICE), type_, offset)
            others[k][known[:some]] = values[:some].to(type_)
            for j, other in enumerate(others):
                assert_same_bits(table.part(j), other)
        assert torch.equal(table.between(), between)
    nothing = torch.empty(0, dtype=torch.int64, device=DEVICE)
    assert launch.gather(table.layout, nothing, dtype, 0).shape == (0, width)
    launch.scatter(table.layout, nothing, torch.empty(0, width, device=DEVICE), dtype, 0)


FAR = 2**31
COUNTING = StepConstants(Regularizer(l1=1.0), (), None, False)
"""With it, SGD of zeros with σ = 1 makes weights 1 - g and u = 1 of gradients g > 1."""


def test_rows_beyond_2_to_the_31_elements() -> None:
    width = 16
    height = FAR // width + 5
    x, u = vast(height, width), vast(height, width)
    rows = torch.tensor([height - 1, 0, FAR // width, FAR // width - 1, height, height - 3], device=DEVICE)
    g = torch.arange(2.0, 98.0, device=DEVICE).view(6, width)
    slot = Parts(x, u, (), x, None).slot
    repeated = launch.runs_of((g * 0.5).repeat(2, 1), rows.repeat(2))
    for runs in (launch.GradientRuns(g, rows), repeated):
        counts = no_counts()
        x[rows[rows < height]], u[rows[rows < height]] = 0, 0
        launch.step_rows(SGD, slot, runs, counts, COUNTING, UNIT)
        assert counts.tolist() == [0, 1, height]
        for row, gradient in zip(rows.tolist(), g, strict=True):
            if row < height:
                assert torch.equal(x[row].float(), 1 - gradient)
                assert (u[row] == 1).all()
        between = torch.tensor([1, FAR // width - 2, FAR // width + 1, height - 2])
        assert not x[between].any()
        assert not u[between].any()


def test_rows_of_a_table_beyond_2_to_the_31() -> None:
    """Of the table only the pages with these rows exist."""
    one = case(ADAM, (8, 5), state_dtype=torch.bfloat16)
    table = Table(one.parts)
    first = 3 * FAR
    pages = torch.zeros((first >> 20) + 1, dtype=torch.int64, device=DEVICE)
    memory = torch.cat(table.pages)
    pages[first >> 20] = memory.data_ptr()
    layout = replace(table.layout, pages=pages, shift=20)
    rows, lines, counts = shuffled(8), sent(one.parts), no_counts()
    runs = launch.runs_of(lines.g[rows], rows + first)
    launch.step_table(one.rule, True, layout, first + 8, runs, counts, one.constants, one.scalars)
    assert counts[1:].tolist() == [0, 0]
    table.pages = list(memory.split(2**SHIFT))
    after, exact = table.updated(one.parts), by_table(with_float32_state(one))
    assert_same_bits(after.x, exact.x)
    elements = (torch.arange(8 * 5) + first * 5).to(torch.int32).view(8, 5)
    for part, (value, precise) in enumerate(zip((after.u, *after.state), (exact.u, *exact.state), strict=True)):
        assert_same_bits(value, rounding.to_bfloat16(precise, elements, SEED, part))

    out = launch.gather(layout, rows + first, torch.float32, 0)
    assert_same_bits(out, after.x[rows.cpu()])
    launch.scatter(layout, rows + first, 2 * out, torch.float32, 0)
    assert_same_bits(table.part(0), 2 * after.x)


@pytest.mark.skipif(DEVICE.type == "cpu", reason="2**31 elements take Triton's interpreter a day")
def test_tensors_of_more_than_2_to_the_31_elements() -> None:
    width = 16
    height = FAR // width + 5
    x, u, g = vast(height, width), vast(height, width), vast(height, width)
    g[-3:] = torch.arange(2.0, 50.0, device=DEVICE).view(3, width)
    parts = Parts(x, u, (), g, None)
    launch.step_tensor(SGD, parts.with_scalars(UNIT), width, COUNTING)
    assert torch.equal(x[-3:], 1 - g[-3:])
    assert not x[:-3].any()
