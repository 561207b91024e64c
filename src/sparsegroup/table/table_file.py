"""A table in files, written and read in pieces: all of its rows, or those that have changed since.

A file holds `keys` [n], `dropped` [k] (keys that had a row and lost it) and `rows` [n, parts, dim]: the vectors, u and
the optimizer's state, in the order of `parts`. What policies know of keys and rows lies behind them, by the names in
`directory_notes`. Reading it drops the rows of the one and sets those of the other, so that all
rows are nothing but the changes since the table was empty. Rows keep their order and with it their numbers.

Packed rows come last where all rows are written, as any other; changes hold none, and what they hold is not packed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

import numpy as np
import numpy.typing as npt
from pydantic import Strict
from safetensors import safe_open

from sparsegroup.artifact.file_facts import FileFacts
from sparsegroup.artifact.tensor_file import NAMES, TensorWriter
from sparsegroup.artifact.validation import Count, Real
from sparsegroup.kernels.cpu import threads
from sparsegroup.table.buckets import ABSENT
from sparsegroup.table.changes import Changes
from sparsegroup.table.directory import Directory
from sparsegroup.table.directory_notes import NOTES, OF_ROWS, check_notes
from sparsegroup.table.index import Index
from sparsegroup.table.row_storage import WEIGHT, RowMemory, RowStorage
from sparsegroup.table.storage_kinds import new_directory, new_storage
from sparsegroup.table.table import Table
from sparsegroup.table.table_config import TableConfig

Int64s = npt.NDArray[np.int64]
Notes = dict[str, npt.NDArray[Any]]

_PIECE_BYTES = 8 << 20
"""Of rows, or of keys, that are in memory at a time beside the table; more where the table is large."""

_BYTES_TO_SORT = 40
"""Of a changed row, while the keys are brought into the order of the rows."""

_KEYS_PER_BUCKET = 4

_LARGEST = float(np.finfo(np.float32).max)

_SHARE = 0.05
"""Of the table's memory, that its keys may take for a moment: they lie in the order of their hashes."""


@dataclass(frozen=True)
class TableFacts:
    """What is written down of a table, beside its files.

    Attributes:
        dim, dtype, std, init, seed, field_bits: See `HashEmbedding`.
        parts: Each part of a row after its vector → value in a new row.
        rows: Rows.
        seen: Distinct keys ever seen in training.
        skipped_rows: See `HashEmbedding`.
        buckets: How many the index has: they say when it grows.
        written: Rows in this file.
        packed: How many of the table's rows are packed.
    """

    dim: Count
    dtype: str
    std: Real
    init: str
    seed: Annotated[int, Strict()]
    field_bits: Count
    parts: Mapping[str, Real]
    rows: Count
    seen: Count
    skipped_rows: Count
    buckets: Count
    written: Count
    packed: Count = 0

    @classmethod
    def of(cls, table: Table, written: int) -> "TableFacts":
        """Those of a table."""
        return cls(
            **_identity(table.config),
            parts=dict(table.rows.initial),
            rows=table.num_rows,
            seen=table.num_seen,
            skipped_rows=table.skipped_rows,
            buckets=table.directory.index.buckets,
            written=written,
            packed=table.directory.num_packed,
        )

    def check(self) -> None:
        """Raise ValueError, whose message begins with the field, unless there can be a table of which this is said."""
        if self.rows > self.seen:
            raise ValueError(f"seen: {self.seen:,} keys cannot have {self.rows:,} rows")
        if self.packed > self.rows:
            raise ValueError(f"packed: {self.packed:,} of {self.rows:,} rows")
        if not self.buckets or self.rows - self.packed > _KEYS_PER_BUCKET * self.buckets:
            raise ValueError(f"buckets: {self.buckets:,} cannot hold {self.rows - self.packed:,} keys")
        for name, value in self.parts.items():
            if name == WEIGHT or abs(value) > _LARGEST:
                raise ValueError(f"parts.{name}: cannot be a part of new rows, with the value {value:g}")

    @property
    def sensible_buckets(self) -> int:
        """So many that the index is not out of proportion, whatever is said: an index grows where it must."""
        return min(self.buckets, 2 * self.rows + (1 << 12))

    def mismatch(self, config: TableConfig) -> str | None:
        """What a table with these rows differs in from one of that config, or None."""
        theirs = _identity(config)
        differing = [
            f"{name} {value!r} (the model has {theirs[name]!r})"
            for name, value in asdict(self).items()
            if name in theirs and theirs[name] != value
        ]
        return ", ".join(differing) or None


def _identity(config: TableConfig) -> dict[str, Any]:
    names = ("dim", "std", "init", "seed", "field_bits")
    return {**{name: getattr(config, name) for name in names}, "dtype": config.dtype.name}


def write_table(table: Table, path: Path) -> tuple[FileFacts, TableFacts]:
    """Write all rows. Nothing may change the table meanwhile.

    Raises:
        OSError: The disk is full, say.
    """
    rows, directory, count, packed = table.rows, table.directory, table.directory.num_rows, table.directory.packed
    notes = directory.notes()
    with _writer(rows, path, table.num_rows, directory.dropped, notes) as file:
        at_a_time = max(_PIECE_BYTES, int(_SHARE * table.memory().total)) // 8
        for first in range(0, count, at_a_time):
            file.write(directory.index.keys_of_rows(first, min(first + at_a_time, count)))
        if packed is not None:
            for keys in packed.key_blocks(at_a_time):
                file.write(keys)
        file.write(directory.dropped)
        for block in rows.blocks(count):
            file.write(block)
        if packed is not None:
            for values in packed.blocks():
                file.write(values)
        _write_notes(file, notes)
    return file.facts, TableFacts.of(table, table.num_rows)


def write_changes(table: Table, changes: Changes, path: Path) -> tuple[FileFacts, TableFacts]:
    """Write the rows that have changed and the keys that have been dropped. Nothing may change the table meanwhile.

    Raises:
        OSError: The disk is full, say.
    """
    mask, dropped = changes.mask(table.directory.num_rows), changes.removed
    count = int(np.count_nonzero(mask))
    spans = list(_spans(mask, max(_PIECE_BYTES, int(_SHARE * table.memory().total)) // _BYTES_TO_SORT))
    notes = table.directory.notes(np.flatnonzero(mask))
    with _writer(table.rows, path, count, dropped, notes) as file:
        for first, last in spans:
            file.write(_keys_within(table, mask, first, last))
        file.write(dropped)
        for first, last in spans:
            numbers = first + np.flatnonzero(mask[first:last])
            for piece in _pieces(len(numbers), table.rows):
                file.write(table.rows.read_whole(numbers[piece]))
        _write_notes(file, notes)
    return file.facts, TableFacts.of(table, count)


def _keys_within(table: Table, mask: npt.NDArray[np.bool_], first: int, last: int) -> Int64s:
    """The keys of those rows first, …, last - 1 that are in the mask, in the order of the rows."""
    inside = np.zeros_like(mask)
    inside[first:last] = mask[first:last]
    keys, numbers = table.directory.index.entries_of(inside)
    return keys[np.argsort(numbers)]


def _spans(mask: npt.NDArray[np.bool_], at_most: int) -> Iterator[tuple[int, int]]:
    """Ranges that cover the mask, of `at_most` rows in it each, or of as few more as can be."""
    first = found = 0
    step = max(1, min(at_most, 1 << 16))
    for begin in range(0, len(mask), step):
        here = int(np.count_nonzero(mask[begin : begin + step]))
        if found and found + here > at_most:
            yield first, begin
            first, found = begin, 0
        found += here
    yield first, len(mask)


def _writer(rows: RowMemory, path: Path, count: int, dropped: npt.NDArray[Any], notes: Notes) -> TensorWriter:
    keys = np.dtype(np.int64)
    shapes = {
        "keys": (keys, (count,)),
        "dropped": (keys, (len(dropped),)),
        "rows": (rows.dtype, (count, len(rows.parts), rows.dim)),
        **{name: (array.dtype, array.shape) for name, array in notes.items()},
    }
    return TensorWriter(path, shapes, {"parts": ",".join(rows.parts)})


def _write_notes(file: TensorWriter, notes: Notes) -> None:
    for array in notes.values():
        file.write(array)


def _read_notes(file: Any, path: Path, config: TableConfig, written: int) -> Notes:
    """What policies knew; the rows that it is of are those in the file."""
    notes = {name: file.get_tensor(name) for name in NOTES if name in file.keys()}  # noqa: SIM118
    try:
        check_notes(notes, config, written)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return notes


def _pieces(count: int, rows: RowMemory) -> list[slice]:
    at_a_time = max(1, _PIECE_BYTES // rows.row_bytes)
    return [slice(first, min(first + at_a_time, count)) for first in range(0, count, at_a_time)]


def read_table(config: TableConfig, chain: Sequence[tuple[Path, TableFacts]]) -> Table:
    """The table that has been written.

    Args:
        config: The table's, with which the facts must agree.
        chain: A file of all rows, then those of changes, in the order in which they were written.

    Raises:
        ValueError: A file does not hold what its facts say.
        MemoryError: The system has no more.
    """
    first, last = chain[0][1], chain[-1][1]
    directory, storage = new_directory(config, first.sensible_buckets), new_storage(config)
    for number, (path, facts) in enumerate(chain):
        _apply(directory, storage, config, path, facts, begins=number == 0)
    directory.set_buckets(max(last.sensible_buckets, Index.buckets_for(directory.num_rows) if last.packed else 0))
    directory.count_seen(last.seen)
    storage.recount(directory.num_rows)
    storage.count_skipped(last.skipped_rows)
    return Table(config, directory, storage)


def _apply(
    directory: Directory, storage: RowStorage, config: TableConfig, path: Path, facts: TableFacts, *, begins: bool
) -> None:
    """Read one file of a chain; `begins`: the first."""
    with safe_open(path, "numpy") as file:
        for name, kind in (("keys", np.dtype(np.int64)), ("dropped", np.dtype(np.int64)), ("rows", config.dtype)):
            if file.get_slice(name).get_dtype() != NAMES[kind]:
                raise ValueError(f"{path}: {name} are {file.get_slice(name).get_dtype()}, expected is {NAMES[kind]}")
        dropped = file.get_tensor("dropped")
        if dropped.ndim != 1:
            raise ValueError(f"{path}: dropped has {dropped.ndim} dimensions, expected is 1")
        kept = directory.masked_without(dropped)
        if not kept.all():
            directory.keep(kept)
            storage.rows.compact(kept)
        packed = directory.packed
        if packed is not None:
            packed.forget(np.unique(dropped))
        count = facts.written
        keys, rows = file.get_slice("keys"), file.get_slice("rows")
        if keys.get_shape() != [count]:
            raise ValueError(f"{path}: keys of shape {keys.get_shape()} do not fit the manifest's {count:,} rows")
        notes = _read_notes(file, path, config, count)
        directory.set_notes(notes)
        directory.set_dropped(np.union1d(directory.dropped.view(np.int64), dropped))
        storage.lay_out(facts.parts, directory.num_rows, None)
        memory, index = storage.rows, directory.index
        was_empty = not directory.num_rows
        if rows.get_shape() != [count, len(memory.parts), config.dim]:
            raise ValueError(f"{path}: rows of shape {rows.get_shape()} do not fit the manifest")
        if facts.rows > directory.total_rows + count:
            raise ValueError(f"{path}: {count:,} rows cannot make {facts.rows:,} of {directory.total_rows:,}")
        aside = facts.packed if begins and packed is not None else 0
        room = facts.rows - (facts.packed if packed is not None else 0)
        if aside > count:
            raise ValueError(f"{path}: {count:,} rows, of which the manifest says that {aside:,} are packed")
        memory.reserve(room)
        with _WriteHelper(not config.on_device) as write:
            for piece in _pieces(count - aside, memory):
                some = keys[piece]
                if packed is not None:
                    packed.forget(some)
                numbers = np.full(len(some), ABSENT) if was_empty else directory.find(some)
                new = numbers == ABSENT
                came = int(new.sum())
                if directory.num_rows + came > room:  # before anything is written where there is no memory
                    raise ValueError(
                        f"{path}: {directory.num_rows + came:,} rows or more; the manifest says {facts.rows:,}, "
                        f"{facts.packed:,} of them packed"
                    )
                numbers[new] = np.arange(directory.num_rows, directory.num_rows + came)
                index.reserve(directory.num_rows + came)
                try:
                    index.insert(some[new], numbers[new])
                except ValueError as error:
                    raise ValueError(f"{path}: {error}") from error
                directory.came(came)
                directory.set_uses(_of_rows(notes, piece), numbers)
                write(memory.write_whole, numbers, rows[piece].reshape(len(some), -1))
        if packed is not None and aside:
            packed.lay_out(facts.parts)
            packed.reserve(aside)
            for piece in _pieces(aside, memory):
                piece = slice(count - aside + piece.start, count - aside + piece.stop)
                some, values = keys[piece], rows[piece]
                if values[:, 0].any() or (directory.find(some) != ABSENT).any():
                    raise ValueError(f"{path}: a packed row is not dead, or its key has another row")
                try:
                    packed.add(some, values.reshape(len(some), -1), directory.steps)
                except ValueError as error:
                    raise ValueError(f"{path}: {error}") from error
    if directory.total_rows != facts.rows or (packed is not None and packed.count != facts.packed):
        raise ValueError(
            f"{path}: {directory.total_rows:,} rows, {directory.num_packed:,} of them packed; the manifest says "
            f"{facts.rows:,} and {facts.packed:,}"
        )


def _of_rows(notes: Notes, piece: slice) -> Notes:
    return {name: array[piece] if name in OF_ROWS else array for name, array in notes.items()}


class _WriteHelper:
    """Calls that may come in any order, of which another thread takes one where there is one and it has none.

    Args:
        may_help: Whether another thread may; a device's work belongs in one stream.

    Writing to memory that has never been written takes the system longer than anything else here.
    """

    def __init__(self, may_help: bool) -> None:
        helps = may_help and threads.get_num_threads() > 1
        self._helper = ThreadPoolExecutor(1, "sparsegroup-read") if helps else None
        self._taken: Future[None] | None = None

    def __call__(self, function: Callable[..., None], *arguments: Any) -> None:
        if self._helper is None or (self._taken is not None and not self._taken.done()):
            function(*arguments)
            return
        if self._taken is not None:
            self._taken.result()
        self._taken = self._helper.submit(function, *arguments)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._helper is not None:
            self._helper.shutdown()
        if self._taken is not None and error is None:
            self._taken.result()
