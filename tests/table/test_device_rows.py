import weakref
from collections.abc import Iterator
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
import torch

from gpu_cases import DEVICE
from over import over
from row_model import RowModel
from sparsegroup.table.rows import device
from sparsegroup.table.rows.device import DeviceRows
from sparsegroup.table.rows.rows import WEIGHT

Float32s = npt.NDArray[np.float32]

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
ADAM = {"u": 0.0, "exp_avg": 0.0, "exp_avg_sq": 0.0}
ADAGRAD = {"u": 0.0, "sum": 0.1}
LAYOUTS = [{}, ADAM, ADAGRAD, {"sum": 0.1}]


@pytest.fixture(autouse=True)
def _quiet_interpreter() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def paged(
    dim: int, dtype: torch.dtype, initial: dict[str, float], state_dtype: torch.dtype = F32, rows_of_page: int = 4
) -> DeviceRows:
    row_bytes = DeviceRows(dim, dtype, DEVICE, initial, state_dtype).row_bytes
    return DeviceRows(dim, dtype, DEVICE, initial, state_dtype, rows_of_page * row_bytes)


def numbered(count: int, dim: int) -> Float32s:
    return np.arange(1, count * dim + 1, dtype=np.float32).reshape(count, dim)


class DeviceModel(RowModel):
    rows: DeviceRows

    def kept(self, part: str, values: npt.ArrayLike) -> Float32s:
        dtype = self.rows.weight_dtype if part == WEIGHT else self.rows.state_dtype
        return torch.tensor(np.asarray(values, np.float32)).to(dtype).float().numpy()

    def begin(self, before: int, weights: Float32s) -> None:
        """As the table does: only the weights of new rows are written."""
        numbers = torch.arange(before, before + len(weights), device=DEVICE)
        self.rows.scatter(numbers, torch.tensor(weights, device=DEVICE))

    def lay_out(self) -> dict[str, float]:
        initial = LAYOUTS[self.rng.integers(len(LAYOUTS))]
        state_dtype, old = (None, F32, BF16)[self.rng.integers(3)], self.rows
        self.rows = old.relaid(initial, self.count, state_dtype)
        assert self.rows.state_dtype == state_dtype or state_dtype is None
        assert old.read(WEIGHT, np.array([-1])).tolist() == [[0.0] * old.dim]
        return initial

    def check(self) -> None:
        super().check()
        gathered = self.rows.gather(torch.arange(self.count, device=DEVICE))
        assert gathered.dtype == self.rows.weight_dtype
        np.testing.assert_array_equal(gathered.float().cpu().numpy(), self.arrays[WEIGHT])


@over(
    ("dim", "dtype", "state_dtype"),
    [(1, F32, F32), (3, F32, BF16), (10, BF16, BF16), (3, F16, F32)],
)
def test_any_sequence_of_calls_does_what_arrays_do(
    dim: int, dtype: torch.dtype, state_dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = 100 * dim + 10 * dtype.itemsize + state_dtype.itemsize
    model = DeviceModel(seed, paged(dim, dtype, ADAGRAD, state_dtype, rows_of_page=2 + 2 * (dim % 2)))
    monkeypatch.setattr(device, "_PIECE_BYTES", int(model.rng.choice([100, 400, 1 << 20])))
    model.drive(10)


def test_arrays_that_may_not_be_written_to_are_taken_in_any_order_of_memory() -> None:
    rows = paged(3, F32, ADAGRAD)
    rows.reserve(9)
    numbers, values = np.arange(9)[::-1], np.asfortranarray(numbered(9, 3).astype(np.float64))
    numbers.flags.writeable = values.flags.writeable = False
    rows.write("sum", numbers, values)
    np.testing.assert_array_equal(rows.read("sum", np.arange(9)), values[::-1])
    by_columns = torch.tensor(numbered(3, 9), device=DEVICE).T
    rows.scatter(torch.arange(9, device=DEVICE).repeat_interleave(2)[::2], by_columns)
    assert rows.gather(torch.arange(9, device=DEVICE)[::2]).equal(by_columns[::2])


def test_rows_of_usual_lengths_are_aligned_and_short_ones_hardly_padded() -> None:
    for dtype, state_dtype, dim, initial in product((F32, BF16), (F32, BF16), (8, 10, 64, 100), LAYOUTS):
        rows = DeviceRows(dim, dtype, DEVICE, initial, state_dtype)
        assert rows.layout().aligned
        unpadded = dim * (dtype.itemsize + len(initial) * state_dtype.itemsize)
        assert rows.row_bytes < unpadded + 16 * (1 + len(initial))
    for dim, dtype, initial, size in ((1, F32, ADAM, 16), (2, F32, {}, 8), (3, F32, {}, 12)):
        assert DeviceRows(dim, dtype, DEVICE, initial).row_bytes == size
    assert DeviceRows(2, BF16, DEVICE, ADAM, BF16).row_bytes == 16
    larger_than_a_page = DeviceRows(8, F32, DEVICE, ADAGRAD, page_bytes=10)
    larger_than_a_page.reserve(3)
    assert larger_than_a_page.bytes(3) == 3 * larger_than_a_page.row_bytes


def test_live_rows_differ_from_zero_and_moved_ones_keep_their_bits() -> None:
    rows = paged(3, BF16, ADAGRAD, BF16, rows_of_page=2)
    rows.reserve(5)
    rows.write(WEIGHT, np.arange(5), np.array([[0, -0.0, 0], [0, 0, 1e-30], [np.nan, 0, 0], [0, 0, 0], [0, -1, 0]]))
    assert rows.live(0, 5).tolist() == [False, True, True, False, True]
    assert rows.live(1, 3).tolist() == [True, True]
    rows.write_whole(np.array([4]), np.tile([[np.nan, -0.0, np.inf]], (1, 3)))
    before = rows.read_whole(np.array([4])).view(np.int32)
    rows.compact(np.isin(np.arange(5), [0, 4]))
    np.testing.assert_array_equal(rows.read_whole(np.array([1])).view(np.int32), before)
    rows = rows.relaid({"sum": 0.1, "u": 0.0}, 2)
    np.testing.assert_array_equal(rows.read_whole(np.array([1])).view(np.int32), before)
    rows.compact(np.array([True, False]))
    rows.reserve(2)  # one that begins where another was
    assert rows.read_whole(np.array([1])).tolist() == [[0.0] * 3 + [float(torch.tensor(0.1).to(BF16))] * 3 + [0.0] * 3]


class Pages:
    """How many bytes of pages there are, and were at most; a page beyond `limit` finds no memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.peak = 0
        self.limit = 1 << 30
        new_page = DeviceRows._new_page

        def counted(rows: DeviceRows) -> torch.Tensor:
            if self.now >= self.limit:
                raise torch.OutOfMemoryError("CUDA out of memory")
            page = new_page(rows)
            self.now += page.nbytes
            self.peak = max(self.peak, self.now)
            weakref.finalize(page, self._gone, page.nbytes)
            return page

        monkeypatch.setattr(DeviceRows, "_new_page", counted)

    def _gone(self, size: int) -> None:
        self.now -= size


@over(("before", "after"), [({}, ADAM), (ADAM, {}), (ADAM, ADAGRAD)])
def test_rows_laid_out_anew_are_not_held_twice(
    before: dict[str, float], after: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        pages = Pages(patch)
        rows = DeviceRows(3, F32, DEVICE, before, page_bytes=150)
        rows.reserve(203)
        rows.write(WEIGHT, np.arange(203), numbered(203, 3))
        old = pages.now
        assert old == rows.bytes(203)
        rows = rows.relaid(after, 203)
        assert pages.now == rows.bytes(203)
        assert pages.peak <= max(old, pages.now) + 4 * 150
        np.testing.assert_array_equal(rows.read(WEIGHT, np.arange(203)), numbered(203, 3))
        rows.compact(np.arange(203) % 29 == 0)
        assert pages.now == rows.bytes(7) < old / 5
        rows.compact(np.zeros(7, np.bool_))
        assert pages.now == 0


def test_memory_for_what_rows_grow_by_is_taken_before_they_are_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = DeviceRows(3, F32, DEVICE, {}, page_bytes=150)
    rows.reserve(100)
    rows.write(WEIGHT, np.arange(100), numbered(100, 3))
    pages = Pages(monkeypatch)
    growth = DeviceRows(3, F32, DEVICE, ADAM, page_bytes=150).bytes(100) - rows.bytes(100)
    pages.limit = growth
    with pytest.raises(MemoryError):
        rows.relaid(ADAM, 100)
    np.testing.assert_array_equal(rows.read(WEIGHT, np.arange(100)), numbered(100, 3))
    pages.limit = 0
    with pytest.raises(MemoryError, match="5 more pages of 96 bytes"):
        rows.reserve(141)
    np.testing.assert_array_equal(rows.read(WEIGHT, np.arange(100)), numbered(100, 3))
    pages.limit = growth + 4 * 150
    with pytest.raises(MemoryError, match="Load a checkpoint"):  # the old pages do not count as given back
        rows.relaid(ADAM, 100)
