"""Rows in the host's memory whose u and state are bfloat16 are arrays that are rounded, whatever is done to them."""

import ctypes

import numpy as np
import numpy.typing as npt
import pytest
import torch
from numba import njit
from test_rounding import any_floats

from row_model import RowModel
from sparsegroup.kernels import rounding
from sparsegroup.kernels.cpu.rows import round_off, widen
from sparsegroup.kernels.cpu.step import step_kernel
from sparsegroup.optim.step import step_seed
from sparsegroup.rules import ADAM
from sparsegroup.table.rows import host
from sparsegroup.table.rows.host import HostRows, kinds_of
from sparsegroup.table.rows.rows import WEIGHT

Float32s = npt.NDArray[np.float32]

F32 = np.dtype(np.float32)
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
        return rounded(values, self.rows.state_dtype == torch.bfloat16 and part != WEIGHT)

    def begin(self, before: int, weights: Float32s) -> None:
        rows = self.rows
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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("dim", [1, 3, 8, 10])
def test_any_sequence_of_calls_does_what_arrays_do(dim: int, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_PAGE_BYTES", 1 << 9)
    NarrowModel(100 * dim + seed, HostRows(dim, F32, False, ADAGRAD, has_bfloat16=True)).drive(30)


@pytest.mark.parametrize(("dim", "narrow", "expected"), [(8, False, 68), (8, True, 52), (3, False, 28), (3, True, 24)])
def test_state_of_groups_is_one_number_a_row(dim: int, narrow: bool, expected: int) -> None:
    rows = HostRows(dim, F32, False, ROWWISE, has_bfloat16=narrow)
    assert rows.row_bytes == rows.bytes_of_row(3) == expected
    assert rows.part_bytes("group_sum") == 4
    assert HostRows(dim, np.dtype(np.float64), False, ROWWISE).row_bytes == 24 * dim, "all elements of float64"


@pytest.mark.parametrize(("dim", "expected"), [(8, 80), (1, 16), (3, 36), (16, 160), (10, 100)])
def test_a_row_takes_two_bytes_for_a_number_of_the_state(dim: int, expected: int) -> None:
    rows = HostRows(dim, F32, False, WITH_U, has_bfloat16=True)
    assert rows.row_bytes == rows.bytes_of_row(4) == expected
    assert HostRows(dim, F32, False, WITH_U).bytes_of_row(4) == 16 * dim
    assert [rows.part_bytes(part) for part in rows.parts] == [4 * dim, 2 * dim, 2 * dim, 2 * dim]


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


@pytest.mark.parametrize("count", [1, 5, 8, 21, 4_000])
@pytest.mark.parametrize(("element", "step", "part"), [(0, 1, 0), (2**31 - 7, 9, 3), (-12, 10**9 + 7, 1)])
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


def test_the_step_of_float32_is_a_kernel_of_its_own() -> None:
    parts = (WEIGHT, *WITH_U)
    wide, narrow = (step_kernel(ADAM, kinds_of(parts, F32, b), False) for b in (False, True))
    assert wide is not narrow
    assert "bfloat16" in narrow.name
    assert "bfloat16" not in wide.name
