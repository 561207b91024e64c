"""Parts of a log and other orders of its rows: shuffled in blocks, and shared by several ranks."""

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise

import numpy as np
import torch

from sparsegroup.data.batches import Bags, Batch, complete, read_ahead, rebatched, resized
from sparsegroup.data.keys import Int64s, fields_of, moved
from sparsegroup.data.log import Log

_READ, _READ_BYTES = 16_384, 16 << 20
"""Number of rows that are read at a time, and its approximate limit in bytes."""


def _read_size(log: Log) -> int:
    """Return the number of rows to read at a time."""
    return max(1, min(_READ, _READ_BYTES // log.row_bytes))


class LogView(Log):
    """A log with the rows of another one, `log`, in another way: a subclass defines `batches`."""

    def __init__(self, log: Log) -> None:
        self.log = log
        for name in Log.__annotations__:
            setattr(self, name, getattr(log, name))

    def __len__(self) -> int:
        return len(self.log)

    @property
    def row_bytes(self) -> int:
        """See `Log.row_bytes`: that of the whole log, so that all parts are shuffled in blocks of one size."""
        return self.log.row_bytes

    def values_of(self, keys: Int64s, most_rows: int) -> dict[int, str]:
        """See `Log.values_of`."""
        return self.log.values_of(keys, most_rows)


class LogPart(LogView):
    """Training rows of a log, in their order: some to train on, and the following ones as a test set.

    Args:
        log: The log, whose own test rows are no part of it.
        first: Row of `log` that it begins with.
        train_rows: Rows to train on, ≥ 1.
        test_rows: Rows after these, ≥ 0.

    Raises:
        ValueError: They are not all training rows of `log`, or there are none to train on.

    Examples:
        >>> from sparsegroup.data import SyntheticConfig, synthetic_log
        >>> from sparsegroup.data.order import LogPart
        >>> part = LogPart(synthetic_log(SyntheticConfig(rows=200), seed=0), first=100, train_rows=30, test_rows=10)
        >>> len(part), part.train_rows, next(part.batches(30, 40, 2)).times.tolist()
        (40, 30, [130, 131])
    """

    def __init__(self, log: Log, first: int, train_rows: int, test_rows: int = 0) -> None:
        super().__init__(log)
        if first < 0 or train_rows < 1 or test_rows < 0 or first + train_rows + test_rows > log.train_rows:
            raise ValueError(
                f"{train_rows} and {test_rows} rows from row {first} on are not all training rows: {log.name} has "
                f"{log.train_rows}"
            )
        self.first, self.train_rows, self._rows = first, train_rows, train_rows + test_rows

    def __len__(self) -> int:
        return self._rows

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """See `Log.batches`."""
        return self.log.batches(self.first + max(start, 0), self.first + min(stop, self._rows), size)


class LogWithout(LogView):
    """A log without some of its fields and numbers; the keys of the others have their new places.

    Args:
        log: The log.
        names: Fields and numbers to leave out.

    Raises:
        ValueError: A field would be left out whose vocabulary another field shares.

    Examples:
        >>> from sparsegroup.data import SyntheticConfig, synthetic_log
        >>> from sparsegroup.data.order import LogWithout
        >>> log = synthetic_log(SyntheticConfig(rows=200), seed=0)
        >>> less = LogWithout(log, log.fields[1:])
        >>> len(log.fields), less.fields == log.fields[:1], [*next(less.batches(0, 3, 3)).keys.shape]
        (8, True, [3, 1])
    """

    def __init__(self, log: Log, names: Collection[str]) -> None:
        super().__init__(log)
        for name, owner in log.schema.shares.items():
            if owner in names and name not in names:
                raise ValueError(f"{owner!r} cannot be left out: {name!r} shares its vocabulary; leave out both")
        self.vocabulary = None  # the log's has the keys of its own fields: see `values_of`
        self.fields, self.lists, self.numbers = (
            tuple(name for name in of if name not in names) for of in (log.fields, log.lists, log.numbers)
        )
        places = self.schema.key_fields
        single = log.schema.single
        self._keys = [(place, places[name]) for place, name in enumerate(single) if name in places]
        self._bags = [(place, places[name]) for place, name in enumerate(log.lists) if name in places]
        self._numbers = [place for place, name in enumerate(log.numbers) if name in self.numbers]
        self._places = np.array([log.fields.index(name) for name in self.fields], np.int64)

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """See `Log.batches`."""
        for batch in self.log.batches(start, stop, size):
            keys = [_as_field(batch.keys[:, place], field) for place, field in self._keys]
            bags = (
                Bags(_as_field(batch.bags[place].keys, field), batch.bags[place].offsets) for place, field in self._bags
            )
            yield replace(
                batch,
                keys=torch.stack(keys, 1) if keys else batch.keys[:, :0],
                numbers=batch.numbers[:, self._numbers],
                bags=tuple(bags),
            )

    def values_of(self, keys: Int64s, most_rows: int) -> dict[int, str]:
        """See `Log.values_of`; the texts are found under the keys that the values have in the whole log."""
        keys = keys[fields_of(keys) < len(self.fields)]
        in_log = moved(keys, self._places[fields_of(keys)])
        texts = self.log.values_of(in_log, most_rows)
        return {key: texts[place] for key, place in zip(keys.tolist(), in_log.tolist(), strict=True) if place in texts}


def _as_field(keys: torch.Tensor, field: int) -> torch.Tensor:
    """Return the keys of the same values in another field."""
    return torch.from_numpy(moved(keys.numpy(), np.int64(field)))


class ShuffledLog(LogView):
    """A log with its first rows in another order: blocks of `buffer` rows, each shuffled.

    The order follows from (seed, epoch, block): any place in it is found by reading the block that it is in, so that a
    training resumes there. In each epoch the blocks begin elsewhere, so that rows at the end of one meet those at the
    beginning of the next. Up to three blocks are in memory: one in use, and two that a thread has read ahead.

    Args:
        log: The log.
        buffer: Rows of a block, ≥ 1; the first and the last may be smaller. One that holds all rows shuffles them all.
            At most `Log.most_shuffled` rows, so that a block of long lists has about 128 MiB.
        rows: Number of first rows to shuffle, the others follow in order; None: the training rows.
        seed: In [0, 2⁶⁴).
        epoch: Number of the pass, ≥ 0.
        part: Where the log is a part of another one, its number among the parts, so that they are shuffled differently.
        group: A field of one value: the rows of each of its values in a block follow each other.

    Attributes:
        buffer: Rows of a block.
        edges: The rows that blocks begin with, and the one after the last block.

    Raises:
        ValueError: A number out of range.

    Examples:
        >>> from sparsegroup.data import ShuffledLog, SyntheticConfig, synthetic_log
        >>> log = synthetic_log(SyntheticConfig(rows=200), seed=0)
        >>> first = next(ShuffledLog(log, buffer=50).batches(0, 200, 10))
        >>> bool((first.times < 50).all()), first.times.tolist() == list(range(10))
        (True, False)
    """

    def __init__(
        self,
        log: Log,
        buffer: int,
        *,
        rows: int | None = None,
        seed: int = 0,
        epoch: int = 0,
        part: int = 0,
        group: str | None = None,
    ) -> None:
        super().__init__(log)
        self.rows = log.train_rows if rows is None else rows
        if buffer < 1:
            raise ValueError(f"buffer must be >= 1, got {buffer}")
        if not 0 <= self.rows <= len(log):
            raise ValueError(f"rows must be in [0, {len(log)}], got {rows}")
        if seed < 0 or epoch < 0:
            raise ValueError(f"seed and epoch must be >= 0, got {seed} and {epoch}")
        self.buffer = buffer = min(buffer, log.most_shuffled)
        self._seed, self._part = [seed, epoch], [part] if part else []
        self._group = None if group is None else log.schema.single.index(group)
        offset = 0 if buffer >= self.rows else int(np.random.default_rng([*self._seed, *self._part]).integers(buffer))
        self.edges = [0, *range(offset or buffer, self.rows, buffer), self.rows]

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """Rows `start` to `stop` of the new order, `size` at a time, the last ones fewer; a thread reads ahead.

        Raises:
            ClickLogError: They cannot be read.
        """
        inside = self._shuffled(start, min(stop, self.rows), size)
        yield from rebatched(chain(inside, self.log.batches(max(start, self.rows), stop, size)), size)

    def _shuffled(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        if start >= stop:
            return
        for number, block in read_ahead(self._blocks(start, stop), depth=1):
            begin = self.edges[number]
            draw = np.random.default_rng([*self._seed, number, *self._part])
            order = draw.permutation(len(block))
            if self._group is not None:
                values, of_row = np.unique(block.keys[:, self._group].numpy(), return_inverse=True)
                order = order[draw.permutation(len(values))[of_row[order]].argsort(kind="stable")]
            rows = torch.from_numpy(order)[max(start - begin, 0) : stop - begin]
            for first in range(0, len(rows), size):
                yield block[rows[first : first + size]]

    def _blocks(self, start: int, stop: int) -> Iterator[tuple[int, Batch]]:
        """Number and rows of each block that rows `start` to `stop` are in, in the log's order."""
        first, last = bisect_right(self.edges, start) - 1, bisect_left(self.edges, stop)
        begin, end = self.edges[first], self.edges[last]
        parts = complete(self.log.batches(begin, end, _read_size(self.log)), end - begin, self.log.name)
        sizes = (after - before for before, after in pairwise(self.edges[first : last + 1]))
        yield from enumerate(resized(parts, sizes), first)


@dataclass(frozen=True, order=True)
class Piece:
    """Rows `first` to `stop` of a log in their order for an epoch, and the places `begin` to `end` of that order."""

    first: int
    stop: int
    begin: int
    end: int

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.end - self.begin


_LEAST_PIECES = 16
"""Pieces that each rank has at least, if the log has as many chunks."""

_SMALLEST_PIECE = 1 << 16
"""Rows: smaller chunks are joined, as long as each rank has enough pieces."""


def shares(log: Log, rows: int, ranks: int, taken: Sequence[Sequence[int]] = ()) -> list[list[Piece]]:
    """The pieces of each rank: every `ranks`-th chunk of the log's first `rows` rows.

    `taken` has, for each number of ranks that the epoch was trained with before, the rows of its share that each rank
    has trained on; the remaining rows are dealt again.

    Examples:
        >>> from sparsegroup.data import SyntheticConfig, synthetic_log
        >>> log = synthetic_log(SyntheticConfig(rows=200), seed=0)
        >>> [sum(piece.rows for piece in share) for share in shares(log, 100, 3)]
        [33, 33, 34]
        >>> [sum(piece.rows for piece in share) for share in shares(log, 100, 2, [(30, 30, 30)])]
        [5, 5]
    """
    counts = [*map(len, taken), ranks]
    dealt = _deal(_pieces(log, rows, counts[0]), counts[0])
    for done, count in zip(taken, counts[1:], strict=True):
        rest = (piece for share, start in zip(dealt, done, strict=True) for piece in remaining(share, start))
        dealt = _deal(sorted(rest), count)
    return dealt


def _pieces(log: Log, rows: int, ranks: int) -> list[Piece]:
    edges = [0]
    if ranks > 1:
        least = max(1, min(_SMALLEST_PIECE, rows // (_LEAST_PIECES * ranks)))
        starts = log.chunk_starts()
        for start in starts[starts < rows].tolist():
            if start - edges[-1] >= least:
                edges.append(start)
    return [Piece(first, stop, 0, stop - first) for first, stop in pairwise([*edges, rows])]


def _deal(pieces: Sequence[Piece], ranks: int) -> list[list[Piece]]:
    """The pieces in turn; the pieces of a last, incomplete round are cut into a part for each rank."""
    whole = len(pieces) // ranks * ranks
    dealt = [list(pieces[rank:whole:ranks]) for rank in range(ranks)]
    for piece in pieces[whole:]:
        for rank, share in enumerate(dealt):
            begin, end = (piece.begin + piece.rows * part // ranks for part in (rank, rank + 1))
            share.append(replace(piece, begin=begin, end=end))
    return dealt


def remaining(share: Sequence[Piece], start: int) -> Iterator[Piece]:
    """The pieces of a share from its row number `start` on."""
    for piece in share:
        if start < piece.rows:
            yield replace(piece, begin=piece.begin + start)
        start = max(start - piece.rows, 0)


def piece_batches(
    log: Log, pieces: Iterator[Piece], buffer: int = 0, seed: int = 0, epoch: int = 0, group: str | None = None
) -> Iterator[Batch]:
    """The rows of some pieces, each shuffled as by `ShuffledLog` (`buffer` 0: in the log's order)."""
    for piece in pieces:
        rows: Log = LogPart(log, piece.first, piece.stop - piece.first)
        if buffer:
            rows = ShuffledLog(rows, buffer, seed=seed, epoch=epoch, part=piece.first, group=group)
        yield from complete(rows.batches(piece.begin, piece.end, _read_size(log)), piece.rows, log.name)
