"""Rounding to bfloat16, and rows in the host's memory whose u and state are rounded, whatever is done to them."""

import ctypes
import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from numba import njit
from torch import Tensor

from over import over
from row_model import RowModel
from sparsegroup.kernels import rounding
from sparsegroup.kernels.cpu.rows import (
    BFLOAT16_WEIGHTS,
    FLOAT16_WEIGHTS,
    load_weights,
    round_off,
    store_weights,
    widen,
)
from sparsegroup.optim.step import step_seed
from sparsegroup.table.rows import host
from sparsegroup.table.rows.host import HostRows
from sparsegroup.table.rows.rows import WEIGHT

Float32s = npt.NDArray[np.float32]

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
WITH_U = {"u": 0.0, "exp_avg": 0.0, "exp_avg_sq": 0.0}
ADAGRAD = {"u": 0.0, "sum": 0.1}
ROWWISE = {"u": 0.0, "group_sum": 0.1}
LAYOUTS = [{}, WITH_U, ADAGRAD, {"sum": 0.1}, ROWWISE]


def rounded(values: npt.ArrayLike, narrow: bool = True) -> Float32s:
    numbers = torch.tensor(np.asarray(values, np.float32))
    return (numbers.to(torch.bfloat16).float() if narrow else numbers).numpy()


class NarrowModel(RowModel):
    rows: HostRows

    def kept(self, part: str, values: npt.ArrayLike) -> Float32s:
        """Of groups the first element, for all."""
        if part == "group_sum":
            numbers = np.array(values, np.float32)
            if numbers.ndim:
                numbers[:] = numbers[..., :1]
            return numbers
        if part == WEIGHT:
            return torch.tensor(np.asarray(values, np.float32)).to(self.rows.weight_dtype).float().numpy()
        return rounded(values, self.rows.state_dtype == BF16)

    def begin(self, before: int, weights: Float32s) -> None:
        rows = self.rows
        if rows.weight_dtype != F32:
            rows.begin(before, before + len(weights))
            rows.write(WEIGHT, np.arange(before, before + len(weights)), weights)
            return
        words = np.tile(np.concatenate([np.zeros(rows.dim, np.float32), rows.new_row()]), (len(weights), 1))
        words[:, : rows.dim] = weights
        for row, values in enumerate(words, before):  # as the kernel that inserts keys does
            address = int(rows.pages.addresses[row >> rows.shift]) + (row & ((1 << rows.shift) - 1)) * rows.row_bytes
            ctypes.memmove(address, values.ctypes.data, rows.row_bytes)

    def lay_out(self) -> dict[str, float]:
        initial = LAYOUTS[self.rng.integers(len(LAYOUTS))]
        self.rows = self.rows.relaid(initial, self.count, torch.bfloat16 if self.rng.random() < 0.7 else torch.float32)
        return initial

    def check(self) -> None:
        super().check()
        blocks = b"".join(bytes(block) for block in self.rows.blocks(self.count))
        assert blocks == np.ascontiguousarray(self.whole, np.float32).tobytes()


@over("dim", [1, 3, 8, 10])
def test_any_sequence_of_calls_does_what_arrays_do(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_PAGE_BYTES", 1 << 9)
    for seed in range(3):
        weights = (F32, BF16, F16)[seed]
        NarrowModel(100 * dim + seed, HostRows(dim, weights, False, ADAGRAD, has_bfloat16=True)).drive(30)


@over(
    ("parts", "dim", "narrow", "expected"),
    [
        *((ROWWISE, dim, narrow, size) for dim, narrow, size in ((8, 0, 68), (8, 1, 52), (3, 0, 28), (3, 1, 24))),
        *((WITH_U, dim, 1, size) for dim, size in ((8, 80), (1, 16), (3, 36), (16, 160), (10, 100))),
        (WITH_U, 3, 0, 48),
    ],
)
def test_bytes_of_a_row(parts: dict[str, float], dim: int, narrow: int, expected: int) -> None:
    """Two for a number of narrow state, and one number for the state of a group."""
    rows = HostRows(dim, F32, False, parts, has_bfloat16=bool(narrow))
    assert rows.row_bytes == rows.bytes_of_row(1 + len(parts)) == expected
    for part in rows.parts:
        size = 4 if part == "group_sum" else (2 if narrow and part != WEIGHT else 4) * dim
        assert rows.part_bytes(part) == size
    assert HostRows(dim, torch.float64, False, ROWWISE).row_bytes == 24 * dim, "all elements of float64"
    halves = [HostRows(dim, dtype, False, parts, has_bfloat16=bool(narrow)) for dtype in (BF16, F16)]
    assert {one.row_bytes for one in halves} == {expected - 4 * dim + 2 * (dim + dim % 2)}
    assert {one.part_bytes(WEIGHT) for one in halves} == {2 * dim}


def test_numbers_become_weights_as_torch_converts() -> None:
    values = any_floats(20_000)
    for kind, dtype in ((BFLOAT16_WEIGHTS, BF16), (FLOAT16_WEIGHTS, F16)):
        stored, back = np.zeros(len(values), np.uint16), np.zeros(len(values), np.float32)
        _there_and_back(values.data_ptr(), stored.ctypes.data, back.ctypes.data, len(values), kind)
        known, expected = ~values.isnan(), values.to(dtype)
        assert torch.equal(torch.from_numpy(stored).view(torch.int16)[known], expected.view(torch.int16)[known])
        assert torch.equal(torch.from_numpy(back)[known], expected.float()[known])
        assert np.isnan(back[~known.numpy()]).all()


@njit
def _there_and_back(source: int, stored: int, back: int, count: int, kind: int) -> None:
    store_weights(source, stored, count, 4 * count, kind)
    load_weights(stored, back, count, 4 * count, kind)


def test_to_the_nearest_is_as_torch_converts_but_for_the_mark() -> None:
    values = any_floats(20_000).numpy()
    found, known = rounding.widened(rounding.narrowed(values)), ~np.isnan(values)
    expected = rounded(values)
    vanished = (expected.view(np.int32) == 0) & (values.view(np.int32) != 0)
    assert vanished.any()
    assert np.signbit(found[vanished]).all()
    np.testing.assert_array_equal(found.view(np.int32)[known & ~vanished], expected.view(np.int32)[known & ~vanished])
    assert np.isnan(found[~known]).all()


@njit
def _round_off(source, target, count, element, seed, part):
    round_off(np.int64(source.ctypes.data), np.int64(target.ctypes.data), count, element, seed, part)


@njit
def _widen(source, target, count):
    widen(np.int64(source.ctypes.data), np.int64(target.ctypes.data), count)


@over("count", [1, 5, 8, 21, 4_000])
@over(("element", "step", "part"), [(0, 1, 0), (2**31 - 7, 9, 3), (-12, 10**9 + 7, 1)])
def test_the_kernels_round_as_eager_pytorch_does(count: int, element: int, step: int, part: int) -> None:
    """To the bit, for all kinds of floats and numbers of elements that wrap."""
    values, seed = any_floats(count)[:count].contiguous(), step_seed(step)
    out, back = np.zeros(count + 1, np.uint16), np.zeros(count + 1, np.float32)
    _round_off(values.numpy(), out, count, element, seed, part)
    elements = (torch.arange(count) + element).to(torch.int32)
    expected = rounding.to_bfloat16(values, elements, seed, part).view(torch.int16).numpy().view(np.uint16)
    numbers = ~np.isnan(values.numpy())
    np.testing.assert_array_equal(out[:count][numbers], expected[numbers])
    _widen(out, back, count)
    np.testing.assert_array_equal(back[:count].view(np.uint32), out[:count].astype(np.uint32) << 16)
    assert out[count] == back[count] == 0
    assert np.isnan(back[:count][~numbers]).all()


LARGEST = torch.finfo(torch.float32).max
SPECIAL = (
    *(0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 2.0**-126, -(2.0**-126), 2.0**-149, -(2.0**-149), 2.0**-133),
    *(1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-23, -1 - 2**-8, LARGEST, -LARGEST),
    *(torch.finfo(torch.bfloat16).max, torch.finfo(torch.bfloat16).tiny),
)
STRANGE_NAN = (0x7F800001, 0x7F80FFFF, 0x7FFFFFFF, -1, -0x7FFFFF, 0x7FC00000)


def any_floats(count: int = 500_000) -> Tensor:
    """All kinds of float32: special ones, and bits drawn uniformly."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randint(-(1 << 31), 1 << 31, (count,), generator=generator).to(torch.int32)
    strange = torch.tensor(STRANGE_NAN, dtype=torch.int32)
    return torch.cat([torch.tensor(SPECIAL), strange.view(torch.float32), drawn.view(torch.float32)])


def bits_of(values: Tensor) -> Tensor:
    return values.float().view(torch.int32)


def numbered(values: Tensor) -> Tensor:
    return torch.arange(values.numel(), dtype=torch.int32).view(values.shape)


def by_chance(values: Tensor, t: int = 1, part: int = 0) -> Tensor:
    return rounding.to_bfloat16(values, numbered(values), step_seed(t), part)


def test_by_chance_gives_one_of_the_two_neighbours() -> None:
    """And keeps infinity and NaN; only positive zero, the mark of a group without an update, becomes positive zero."""
    values = any_floats()
    rounded = by_chance(values).float()
    assert torch.equal(rounded.isnan(), values.isnan())
    assert torch.equal(rounded[values.isinf()], values[values.isinf()])
    assert torch.equal(bits_of(rounded) == 0, bits_of(values) == 0)
    finite = values[values.isfinite()]
    toward_zero = bits_of(finite) & -65536
    rounded = bits_of(by_chance(finite))
    away, marked = toward_zero + 65536, (toward_zero == 0) & (finite != 0) & (rounded == -(1 << 31))
    assert ((rounded == toward_zero) | (rounded == away) | marked).all()
    exact = bits_of(finite) == toward_zero
    assert torch.equal(rounded[exact], toward_zero[exact])
    assert 0.4 < (rounded == away)[~exact].double().mean() < 0.6


def test_values_of_bfloat16_stay_and_small_ones_do_not_become_the_mark() -> None:
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.bfloat16)
    small = torch.arange(1 << 16, dtype=torch.int32)
    values = torch.cat([small, small - (1 << 31)]).view(torch.float32)
    for t in range(2):
        rounded, known = by_chance(every.float(), t), ~every.isnan()
        assert torch.equal(rounded.isnan(), every.isnan())
        assert torch.equal(rounded.view(torch.int16)[known], every.view(torch.int16)[known])
        assert torch.equal(bits_of(by_chance(values, t)) == 0, bits_of(values) == 0)


def test_nothing_is_lost_on_average() -> None:
    """The mean over seeds, and the mean over elements, of errors in units of the gap between the neighbours."""
    values = 1 + torch.rand(64, generator=torch.Generator().manual_seed(0), dtype=torch.float32)
    gap, seeds = 2**-7, 2000
    errors = torch.stack([(by_chance(values, t).double() - values) / gap for t in range(seeds)])
    up = (values.double() - 1) / gap % 1
    deviation = (up * (1 - up)).sqrt()
    assert (errors.mean(0).abs() <= 5 * deviation / math.sqrt(seeds) + 1e-4).all()
    assert abs(float(errors.mean())) <= 5 * float(deviation.square().mean().sqrt()) / math.sqrt(errors.numel())


def test_chance_is_that_of_seed_part_and_element() -> None:
    values = torch.full((10_000,), 1 + 2**-8)
    first = by_chance(values)
    assert torch.equal(by_chance(values), first)
    seed = torch.tensor(step_seed(1), dtype=torch.int32)
    assert torch.equal(rounding.to_bfloat16(values, numbered(values), seed, 0), first)
    assert torch.equal(rounding.to_bfloat16(values[7:], numbered(values)[7:], seed, 0), first[7:])
    for other in (by_chance(values, part=1), by_chance(values, part=2), by_chance(values, t=2), first.roll(1)):
        assert 0.45 < (other == first).double().mean() < 0.55


def test_seeds_are_int32_and_differ() -> None:
    seeds = {step_seed(t) for t in range(10_000)}
    assert len(seeds) == 10_000
    assert all(-(1 << 31) <= seed < 1 << 31 for seed in seeds)
    assert -(1 << 31) <= step_seed(1 << 40) < 1 << 31
