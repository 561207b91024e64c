"""What a table asks of the place where its rows are: on the host, on a device."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sparsegroup.kernels.views import array_of
from sparsegroup.optim.stored import RowStep
from sparsegroup.rules import Rule
from sparsegroup.table.batch import Scratch
from sparsegroup.table.index import Index
from sparsegroup.table.key_search import KeySearch, RowSpace
from sparsegroup.table.row_locations import Generation, GradientLines, Int64s, RowLocations

Floats = npt.NDArray[Any]

WEIGHT = "weight"
"""The part of a row that a lookup gives."""


@dataclass(frozen=True)
class RowGradient:
    """A gradient as a storage will step with it.

    Attributes:
        rows: `[n]` int64, the row of each line.
        values: `[n, dim]`.
        hessian: `[n, dim]`, the Hessian's diagonal, for a second-order rule.
        finite: `[n]` bool, the lines to be stepped with; None for all.
        lines: How the lines belong to rows, if it is known.
    """

    rows: Tensor
    values: Tensor
    hessian: Tensor | None
    finite: Tensor | None
    lines: GradientLines | None

    def with_hessian(self, diagonal: Tensor, finite: Tensor | None) -> "RowGradient":
        """The same with a Hessian, of which the lines `finite` are to be stepped with."""
        both = finite if self.finite is None else self.finite if finite is None else self.finite & finite
        return replace(self, hessian=diagonal, finite=both)

    def negated(self) -> "RowGradient":
        """The same with the opposite sign, to maximize."""
        return replace(self, values=-self.values)

    def finite_lines(self) -> "RowGradient":
        """The lines that are to be stepped with."""
        if self.finite is None:
            return self
        hessian = None if self.hessian is None else self.hessian[self.finite]
        return RowGradient(self.rows[self.finite], self.values[self.finite], hessian, None, None)

    def rows_on_host(self) -> Int64s:
        """The rows, each at least once."""
        if self.lines is not None and self.lines.on_host is not None:
            return self.lines.on_host
        return array_of(self.rows.cpu().contiguous())


class RowView(Protocol):
    """Rows of some parts that are looked at."""

    @property
    def parts(self) -> tuple[str, ...]:
        """Names, in the order of a row."""

    def read(self, part: str, rows: Int64s) -> Floats:
        """`[n, dim]` of a part; zeros where a row is negative."""

    def live(self, first: int, last: int) -> npt.NDArray[np.bool_]:
        """Which of the rows first, …, last - 1 have a non-zero vector."""


class RowMemory(RowView, Protocol):
    """Rows of `dim` numbers per part, side by side, found by number.

    Attributes:
        dim: Length of a part.
        dtype: In which rows go to the host and come from there.
        initial: The parts after the weights: name → value of a new row's elements.
        row_bytes: From row to row.
    """

    dim: int
    dtype: np.dtype[Any]
    initial: dict[str, float]
    row_bytes: int

    def reserve(self, count: int) -> None:
        """Have memory for `count` rows, or raise MemoryError; then nothing has changed."""

    def bytes(self, count: int) -> int:
        """Bytes that the first `count` rows take."""

    @property
    def state_dtype(self) -> torch.dtype:
        """In which u and the optimizer's state lie."""

    def bytes_of_row(self, parts: int) -> int:
        """What a row of so many parts takes, the weights among them."""

    def part_dtype(self, part: str) -> torch.dtype:
        """In which a part is stored."""

    def part_bytes(self, part: str) -> int:
        """What a part of a row takes."""

    def write(self, part: str, rows: Int64s, values: Floats) -> None:
        """Set a part of distinct rows to `values`, `[n, dim]`."""

    def read_whole(self, rows: Int64s) -> Floats:
        """`[n, parts · dim]`, all parts of some rows."""

    def write_whole(self, rows: Int64s, values: Floats) -> None:
        """Set all parts of distinct rows to `values`, `[n, parts · dim]`."""

    def fill(self, part: str, count: int, value: float) -> None:
        """Set a part of the first `count` rows to one value."""

    def blocks(self, count: int) -> Iterator[Any]:
        """The first `count` rows in order, `[rows, parts, dim]` at a time, as memory that can be written to a file."""

    def compact(self, kept: npt.NDArray[np.bool_]) -> None:
        """Keep the rows of the mask as rows 0, 1, …, and give the memory of the others back."""


class RowStorage(Protocol):
    """A table's rows and what is done with them where they are. It is called by one thread at a time."""

    @property
    def rows(self) -> RowMemory:
        """The rows, with all that has been promised to them."""

    @property
    def state_names(self) -> tuple[str, ...]:
        """The parts of a row beside its weights."""

    @property
    def num_live(self) -> int:
        """Rows that are not zero."""

    @property
    def skipped_rows(self) -> int:
        """Row updates left out because of a non-finite gradient."""

    @property
    def keeps_rounding(self) -> bool:
        """Whether weights are rounded when they are stored, so that u is wanted without a regularizer, too."""

    def find(self, search: KeySearch, index: Index, scratch: Scratch, *, fetch: bool, alone: bool = False) -> None:
        """Find the rows of a search's keys.

        Args:
            search: Changed.
            index: Key → row.
            scratch: For as many keys.
            fetch: `vectors` will be called at once: what can be fetched on the way may be.
            alone: Do not share the work with other threads.
        """

    def vectors(
        self, search: KeySearch, index: Index, scratch: Scratch, generation: Generation
    ) -> tuple[RowLocations, Tensor]:
        """Where the keys of a search that has ended are, and their vectors, `[keys, dim]`; zeros for absent ones."""

    def new_rows(self, first: int, count: int) -> RowSpace:
        """Memory for `count` new rows from `first` on, or MemoryError; then nothing has changed."""

    def count_new(self, live: int) -> None:
        """So many of the new rows are not zero."""

    def recount(self, num_rows: int) -> None:
        """Count anew how many of the `num_rows` rows are not zero."""

    def count_skipped(self, total: int) -> None:
        """So many row updates have been left out in all."""

    def check_step(self, rule: Rule, carries_u: bool, state_dtype: torch.dtype | None) -> None:
        """Raise unless the rows can be stepped.

        Raises:
            RuntimeError: `rule` cannot be compiled.
            ValueError: State cannot be kept in `state_dtype`.
        """

    def check_reports(self, describe: Callable[[Int64s], str]) -> None:
        """Raise what a step before has reported by now.

        Args:
            describe: Rows → words.

        Raises:
            FloatingPointError: Rows had a gradient that is not finite, and are not to be skipped.
        """

    def lay_out(self, initial: Mapping[str, float], count: int, state_dtype: torch.dtype | None) -> bool:
        """Give the `count` rows the parts `initial` after the weights; parts of the same name are kept.

        Returns:
            Whether rows were changed or moved.
        """

    def read_gradient(
        self, gradient: Tensor, lines: GradientLines | None, num_rows: Callable[[], int], where: object, *, sums: bool
    ) -> RowGradient:
        """A sparse gradient as `step` will take it.

        Args:
            gradient: COO, with or without a graph.
            lines: What came with it.
            num_rows: Counts the rows.
            where: For messages.
            sums: Whether each row must come once; it does where there is a graph.

        Raises:
            IndexError: A row that the table has not.
        """

    def finite(self, values: Tensor) -> Tensor | None:
        """Which lines of `values` to step with, `[n]` bool; None for all, or where the step itself leaves lines out."""

    def step(self, gradient: RowGradient, request: RowStep, num_rows: Callable[[], int]) -> None:
        """The optimizer's step over rows whose parts have been laid out for it.

        Args:
            gradient: What `read_gradient` gave.
            request: The step.
            num_rows: Counts the rows.
        """

    def survival_l21(self, rows: Int64s | None, count: int, request: RowStep) -> Floats:
        """The largest λ21 at which each row is zero, float64; infinite where it never had a non-zero gradient.

        Args:
            rows: `[n]`, their numbers; None for all.
            count: The rows that there are. They have been laid out for the step and carry u.
            request: The step; it has no gradient.
        """

    def sweep(self, count: int, request: RowStep, *, drops: bool) -> Int64s:
        """Apply the closed form once more to the `count` rows that there are, without a gradient.

        Args:
            count: The rows that there are.
            request: The step.
            drops: Whether rows that never had a non-zero gradient become zero where λ21 > 0; else they stay.

        Returns:
            The rows that have changed.
        """
