"""A table's rows as NumPy arrays, driven at random beside the real ones: what both kinds of rows are tested by."""

from typing import Any

import numpy as np
import numpy.typing as npt

from sparsegroup.table.rows.rows import WEIGHT

Float32s = npt.NDArray[np.float32]


class RowModel:
    """Subclasses say what a part keeps of values, how new rows begin, and how rows are laid out anew.

    Args:
        seed: Of what is done.
        rows: The real ones, none so far.
    """

    def __init__(self, seed: int, rows: Any) -> None:
        self.rng = np.random.default_rng(seed)
        self.rows = rows
        self.arrays: dict[str, Float32s] = {part: np.zeros((0, rows.dim), np.float32) for part in rows.parts}

    def kept(self, part: str, values: npt.ArrayLike) -> Float32s:
        """What a part holds of values."""
        raise NotImplementedError

    def begin(self, before: int, weights: Float32s) -> None:
        """Let the rows from `before` on be new, with these weights."""
        raise NotImplementedError

    def lay_out(self) -> dict[str, float]:
        """Replace the rows by such of other parts; gives what these begin with."""
        raise NotImplementedError

    @property
    def count(self) -> int:
        return len(self.arrays[WEIGHT])

    def some(self) -> npt.NDArray[np.int64]:
        return self.rng.permutation(self.count)[: self.rng.integers(0, self.count + 1)]

    def values(self, *shape: int) -> Float32s:
        return (self.rng.standard_normal(shape) * (self.rng.random(shape) < 0.7)).astype(np.float32)

    def insert(self) -> None:
        before, new = self.count, int(self.rng.integers(0, 10))
        weights = self.values(new, self.rows.dim) * (self.rng.random((new, 1)) < 0.6)
        self.rows.reserve(before + new)
        self.begin(before, weights)
        for part, array in self.arrays.items():
            fresh = weights if part == WEIGHT else np.full_like(weights, self.rows.initial[part])
            self.arrays[part] = np.concatenate([array, self.kept(part, fresh)])

    def write(self) -> None:
        part, rows = str(self.rng.choice(self.rows.parts)), self.some()
        values = self.values(len(rows), self.rows.dim)
        self.rows.write(part, rows, values)
        self.arrays[part][rows] = self.kept(part, values)

    def write_whole(self) -> None:
        rows, parts = self.some(), self.rows.parts
        values = self.values(len(rows), len(parts) * self.rows.dim)
        self.rows.write_whole(rows, values)
        for part, some in zip(parts, np.split(values, len(parts), axis=1), strict=True):
            self.arrays[part][rows] = self.kept(part, some)

    def fill(self) -> None:
        part, count = str(self.rng.choice(self.rows.parts)), int(self.rng.integers(0, self.count + 1))
        self.rows.fill(part, 0, count, 0.7)
        self.arrays[part][:count] = self.kept(part, 0.7)

    def set_initial(self) -> None:
        self.rows.set_initial({part: float(self.rng.choice([0.0, 0.3])) for part in self.rows.initial}, self.count)

    def relaid(self) -> None:
        before, initial = self.arrays, self.lay_out()
        assert self.rows.parts == (WEIGHT, *initial)
        self.arrays = {
            part: self.kept(part, before.get(part, np.full_like(before[WEIGHT], initial.get(part, 0.0))))
            for part in self.rows.parts
        }

    def compact(self) -> None:
        kept = self.rng.random(self.count) < self.rng.choice([0.0, 0.5, 0.9, 1.0])
        self.rows.compact(kept)
        self.arrays = {part: array[kept] for part, array in self.arrays.items()}

    @property
    def whole(self) -> Float32s:
        return np.concatenate([self.arrays[part] for part in self.rows.parts], axis=1)

    def check(self) -> None:
        rows, part = np.concatenate([self.some(), [-1], self.some()]), str(self.rng.choice(self.rows.parts))
        padded = np.concatenate([self.arrays[part], np.zeros((1, self.rows.dim), np.float32)])  # -1 is its last
        np.testing.assert_array_equal(self.rows.read(part, rows), padded[rows])
        np.testing.assert_array_equal(self.rows.read_whole(np.arange(self.count)), self.whole)
        first, last = sorted(self.rng.integers(0, self.count + 1, 2).tolist())
        live = self.rows.live(first, last)
        assert live.dtype == np.bool_
        np.testing.assert_array_equal(live, self.arrays[WEIGHT][first:last].any(axis=1))

    def drive(self, calls: int) -> None:
        """Do so many of these things, and look at all after each."""
        kinds = [
            *[self.insert] * 3, self.write, self.write_whole, self.fill, self.set_initial, self.relaid, self.compact,
        ]  # fmt: skip
        self.check()
        for number in self.rng.integers(0, len(kinds), calls):
            kinds[number]()
            self.check()
