import os
import weakref
from collections.abc import Iterator
from itertools import product

import numpy as np
import numpy.typing as npt
import pytest
import torch

from over import over

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # which Triton reads when it is imported
pytest.importorskip("triton")

from row_model import RowModel  # noqa: E402
from sparsegroup.table.rows import device  # noqa: E402
from sparsegroup.table.rows.device import DeviceRows  # noqa: E402
from sparsegroup.table.rows.rows import WEIGHT  # noqa: E402

Float32s = npt.NDArray[np.float32]

F32, BF16, F16 = torch.float32, torch.bfloat16, torch.float16
ADAM = {"u": 0.0, "exp_avg": 0.0, "exp_avg_sq": 0.0}
ADAGRAD = {"u": 0.0, "sum": 0.1}
LAYOUTS = [{}, ADAM, ADAGRAD, {"sum": 0.1}]


@pytest.fixture(autouse=True)
def _quiet_interpreter() -> Iterator[None]:
    with np.errstate(all="ignore"):
        yield


def rounded(values: npt.ArrayLike, dtype: torch.dtype) -> Float32s:
    return torch.tensor(np.asarray(values, np.float32)).to(dtype).float().numpy()


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
        return rounded(values, self.rows.weight_dtype if part == WEIGHT else self.rows.state_dtype)

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
    [(1, F32, F32), (3, F32, BF16), (8, BF16, F32), (10, BF16, BF16), (3, F16, F32), (8, F32, F32), (1, BF16, BF16)],
)
def test_any_sequence_of_calls_does_what_arrays_do(
    dim: int, dtype: torch.dtype, state_dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = 100 * dim + 10 * dtype.itemsize + state_dtype.itemsize
    model = DeviceModel(seed, paged(dim, dtype, ADAGRAD, state_dtype, rows_of_page=2 + 2 * (dim % 2)))
    monkeypatch.setattr(device, "_PIECE_BYTES", int(model.rng.choice([100, 400, 1 << 20])))
    model.drive(10)


def test_no_rows_are_no_special_case() -> None:
    rows = DeviceRows(3, F32, DEVICE, ADAGRAD)
    none, empty = np.empty(0, np.int64), np.empty((0, 3), np.float32)
    rows.reserve(0)
    rows.write("u", none, empty)
    rows.write_whole(none, np.empty((0, 9), np.float32))
    rows.set_initial({"u": 1.0, "sum": 2.0}, 0)
    rows.compact(none.astype(np.bool_))
    rows = rows.relaid(ADAM, 0)
    rows.scatter(torch.tensor(none, device=DEVICE), torch.tensor(empty, device=DEVICE))
    assert rows.bytes(0) == 0
    assert rows.read_whole(none).shape == (0, 12)
    assert rows.gather(torch.tensor(none, device=DEVICE)).shape == (0, 3)
    assert rows.live(0, 0).shape == (0,)
    assert not rows.read("exp_avg", np.full(5, -1)).any()
    assert not rows.read_whole(np.full(5, -7)).any()


def test_rows_that_may_not_be_written_to_and_rows_in_any_order_are_taken() -> None:
    rows = paged(3, F32, ADAGRAD)
    rows.reserve(9)
    numbers, values = np.arange(9)[::-1], np.asfortranarray(numbered(9, 3).astype(np.float64))
    numbers.flags.writeable = values.flags.writeable = False
    rows.write("sum", numbers, values)
    np.testing.assert_array_equal(rows.read("sum", np.arange(9)), values[::-1])
    by_columns = torch.tensor(numbered(3, 9), device=DEVICE).T
    rows.scatter(torch.arange(9, device=DEVICE).repeat_interleave(2)[::2], by_columns)
    every_second = torch.arange(9, device=DEVICE)[::2]
    assert rows.gather(every_second).equal(by_columns[::2])


def test_rows_of_usual_lengths_are_aligned_and_short_ones_hardly_padded() -> None:
    for dtype, state_dtype in product((F32, BF16, F16), (F32, BF16)):
        for dim, initial in product((8, 10, 16, 20, 64, 100), LAYOUTS):
            rows = DeviceRows(dim, dtype, DEVICE, initial, state_dtype)
            assert rows.layout().aligned
            unpadded = dim * (dtype.itemsize + len(initial) * state_dtype.itemsize)
            assert rows.row_bytes < unpadded + 16 * (1 + len(initial))
    for dim, dtype, initial, state_dtype in ((1, F32, ADAM, F32), (1, BF16, ADAM, BF16), (2, BF16, ADAM, BF16)):
        assert DeviceRows(dim, dtype, DEVICE, initial, state_dtype).row_bytes == 16
    assert DeviceRows(3, F32, DEVICE, {}).row_bytes == 12
    larger_than_a_page = DeviceRows(8, F32, DEVICE, ADAGRAD, page_bytes=10)
    larger_than_a_page.reserve(3)
    assert larger_than_a_page.bytes(3) == 3 * larger_than_a_page.row_bytes


def test_live_rows_are_those_that_differ_from_zero() -> None:
    rows = paged(3, BF16, {}, rows_of_page=2)
    rows.reserve(5)
    rows.write(WEIGHT, np.arange(5), np.array([[0, -0.0, 0], [0, 0, 1e-30], [np.nan, 0, 0], [0, 0, 0], [0, -1, 0]]))
    assert rows.live(0, 5).tolist() == [False, True, True, False, True]
    assert rows.live(1, 3).tolist() == [True, True]


def test_moving_rows_keeps_their_bits() -> None:
    rows = paged(3, BF16, ADAGRAD, BF16)
    rows.reserve(6)
    special = np.array([[np.nan, -0.0, np.inf]] * 6)
    rows.write_whole(np.arange(6), np.tile(special, (1, 3)))
    before = rows.read_whole(np.array([5])).view(np.int32)
    rows.compact(np.isin(np.arange(6), [0, 5]))
    np.testing.assert_array_equal(rows.read_whole(np.array([1])).view(np.int32), before)
    rows = rows.relaid({"sum": 0.1, "u": 0.0}, 2)
    np.testing.assert_array_equal(rows.read_whole(np.array([1])).view(np.int32), before)


def out_of_memory(*arguments: object, **options: object) -> torch.Tensor:
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_without_memory_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = paged(3, F32, ADAGRAD)
    rows.reserve(4)
    rows.write("u", np.arange(4), numbered(4, 3))
    with monkeypatch.context() as without_memory:
        without_memory.setattr(torch, "empty", out_of_memory)
        with pytest.raises(MemoryError, match="2 more pages of 144 bytes"):
            rows.reserve(9)
        with pytest.raises(MemoryError):
            rows.relaid(ADAM, 4)
    np.testing.assert_array_equal(rows.read("u", np.arange(4)), numbered(4, 3))
    rows.reserve(9)
    assert (rows.read("sum", np.arange(4, 9)) == np.float32(0.1)).all()


class Pages:
    """How many bytes of pages there are, and were at most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.peak = 0
        new_page = DeviceRows._new_page

        def counted(rows: DeviceRows) -> torch.Tensor:
            page = new_page(rows)
            self.now += page.nbytes
            self.peak = max(self.peak, self.now)
            weakref.finalize(page, self._gone, page.nbytes)
            return page

        monkeypatch.setattr(DeviceRows, "_new_page", counted)

    def _gone(self, size: int) -> None:
        self.now -= size


@pytest.mark.parametrize(("before", "after"), [({}, ADAM), (ADAM, {}), (ADAM, ADAGRAD)])
def test_rows_laid_out_anew_are_not_held_twice(
    before: dict[str, float], after: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    pages = Pages(monkeypatch)
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
    pages, new_page = Pages(monkeypatch), DeviceRows._new_page
    growth = DeviceRows(3, F32, DEVICE, ADAM, page_bytes=150).bytes(100) - rows.bytes(100)

    def limited(other: DeviceRows) -> torch.Tensor:
        return out_of_memory() if pages.now >= limit else new_page(other)

    monkeypatch.setattr(DeviceRows, "_new_page", limited)
    limit = growth
    with pytest.raises(MemoryError):
        rows.relaid(ADAM, 100)
    np.testing.assert_array_equal(rows.read(WEIGHT, np.arange(100)), numbered(100, 3))
    limit = growth + 4 * 150
    with pytest.raises(MemoryError, match="Load a checkpoint"):  # the old pages do not count as given back
        rows.relaid(ADAM, 100)
