"""Where the keys of one lookup are among a table's rows, and what of that travels with the lookup's gradient."""

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sparsegroup.optim.stored_gradient import lines_of

if TYPE_CHECKING:
    from sparsegroup.table.key_search import KeySearch

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]

_MOST_REMEMBERED = 1 << 22
"""Keys of the lookups that are remembered between two steps, in 20 bytes each; the last lookup is always remembered."""


class Generation:
    """The numbering of a table's rows: it ends when they are renumbered.

    Args:
        is_watched: Whether it matters which gradients may still come: to a table that drops rows by itself.

    Attributes:
        is_watched: See above.
        is_current: Whether the rows still have these numbers.
    """

    def __init__(self, is_watched: bool = False) -> None:
        self.is_watched = is_watched
        self.is_current = True
        self._awaited: WeakSet[RowLocations | GradientLines] = WeakSet()
        self._has_gradient = False
        self._searches: deque[KeySearch] = deque()
        self._keys_remembered = 0

    @property
    def is_awaited(self) -> bool:
        """Whether a gradient may still be stepped with whose rows have these numbers."""
        return self._has_gradient or len(self._awaited) > 0

    def await_gradient(self, locations: "RowLocations") -> None:
        """A lookup has been made whose gradient may come, as long as anybody holds `locations`."""
        if self.is_watched:
            self._awaited.add(locations)

    def note_gradient(self, locations: "RowLocations", lines: "GradientLines | None") -> None:
        """The gradient of `locations` has come, to be stepped with; whoever holds its `lines` may do so any time."""
        if self.is_watched:
            self._awaited.discard(locations)
            self._has_gradient = True
            if lines is not None:
                self._awaited.add(lines)

    def remember(self, search: "KeySearch") -> None:
        """Remember what a training lookup has found, until the next step."""
        search.keys = search.keys.copy()  # they are in the caller's memory, which may get other keys
        self._searches.append(search)
        self._keys_remembered += len(search.keys)
        while self._keys_remembered > _MOST_REMEMBERED and len(self._searches) > 1:
            self._keys_remembered -= len(self._searches.popleft().keys)

    def recall(self, keys: Int64s) -> "KeySearch":
        """What a training lookup of `keys` since the last step has found.

        Raises:
            RuntimeError: There was none, or several found different rows.
        """
        found = [search for search in self._searches if np.array_equal(search.keys, keys)]
        if not found:
            raise RuntimeError(
                "backward computes a lookup again (activation checkpointing) that is not known any more: call "
                "backward() before the table's next step() and before its rows are dropped or loaded. A lookup of "
                f"keys before it is remembered until then, up to {_MOST_REMEMBERED:,} keys in all"
            )
        if not all(found[0].is_like(other) for other in found[1:]):
            raise RuntimeError(
                "backward computes a lookup again (activation checkpointing), and the same keys were looked up "
                "several times since the last step with different results, because some were new or not admitted yet: "
                "look them up once, and pass the vectors on"
            )
        return found[-1]

    def note_step(self, lines: "GradientLines | None") -> None:
        """A step has been taken with what had come; its own lines are done with, too."""
        self._has_gradient = False
        self._searches.clear()
        self._keys_remembered = 0
        if lines is not None:
            self._awaited.discard(lines)

    def end(self) -> None:
        """The rows have other numbers from now on."""
        self.is_current = False

    def check(self) -> None:
        """Raise RuntimeError if the rows have been renumbered since."""
        if not self.is_current:
            raise RuntimeError(
                "the table has been shrunk or loaded, or has dropped rows by itself, since this lookup, whose rows "
                "are no longer where they were; call shrink() between a step and the next forward, and backward() and "
                "step() once for each"
            )


@dataclass(frozen=True, eq=False)
class GradientLines:
    """How the lines of a lookup's gradient belong to rows.

    It travels with the gradient, attached to the memory of its row numbers, and holds no tensor there: the two would
    keep each other alive for ever.

    Attributes:
        generation: In which the rows have these numbers.
        count: Lines.
        order: Where the lines sorted by row, int32 `[count]`, begin in the memory of the row numbers, in elements. None
            where each row has one line.
        starts: Where, likewise, the beginnings of the rows' runs in that order lie, int32 `[distinct + 1]`.
        on_host: `[distinct]`, the rows, where they are known on the host apart from the lines.
    """

    generation: Generation
    count: int
    order: int | None = None
    starts: int = 0
    on_host: Int64s | None = None

    @property
    def are_distinct(self) -> bool:
        """Whether each row has one line."""
        return self.order is None

    def without_absent(self, count: int) -> "GradientLines | None":
        """Those of the `count` lines that have a row; None if that is not known."""
        return replace(self, count=count) if self.order is None else None


@dataclass(frozen=True, eq=False)
class RowLocations:
    """Where the keys of one lookup are.

    Attributes:
        generation: A `shrink` renumbers the rows.
        rows: `[lines]` int64, where the vectors are: the row of each line of the gradient, `ABSENT` for none. A tensor,
            for torch may resize what it makes of it (`zero_` on a sparse gradient does).
        inverse: `[keys]` int32, the line of each key, over which the gradient is summed; None where each key has a line
            of its own.
        has_absent: Whether some key has no row.
        lines: How the gradient's lines belong to rows; None if there will be no gradient.
    """

    generation: Generation
    rows: Tensor
    inverse: Int32s | None
    has_absent: bool
    lines: GradientLines | None


def attached(rows: Tensor, generation: Generation) -> GradientLines | None:
    """What came with a gradient whose row numbers are `rows`, if it is of this generation of this table's rows.

    Raises:
        RuntimeError: It is of numbers that are no longer.
    """
    lines: GradientLines | None = lines_of(rows)
    if lines is not None:
        lines.generation.check()
    if lines is None or lines.generation is not generation or lines.count != len(rows):
        return None
    return lines
