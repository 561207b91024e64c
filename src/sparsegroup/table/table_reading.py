"""Reading a table from files: all of it, or the part of one rank, whatever ranks have written it."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import safe_open

from sparsegroup.artifact.tensor_file import NAMES
from sparsegroup.kernels.cpu import threads
from sparsegroup.table.buckets import ABSENT
from sparsegroup.table.directory_notes import NOTES, OF_ROWS, check_notes, joined_notes, left_to_another
from sparsegroup.table.index import Index
from sparsegroup.table.sharded.routing import BUCKETS, buckets_of
from sparsegroup.table.storage_kinds import new_directory, new_storage
from sparsegroup.table.table import Table
from sparsegroup.table.table_config import TableConfig
from sparsegroup.table.table_file import TableFacts, pieces

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
Notes = dict[str, npt.NDArray[Any]]

ALL = range(BUCKETS)


@dataclass(frozen=True)
class TablePart:
    """A file of a table, or of one rank's part of it.

    Attributes:
        path: The file.
        facts: What is written down of it.
        buckets: The logical buckets of its keys.
    """

    path: Path
    facts: TableFacts
    buckets: range

    def is_within(self, wanted: range) -> bool:
        """Whether all of its keys are in some buckets."""
        return wanted.start <= self.buckets.start and self.buckets.stop <= wanted.stop

    def likely_rows(self, wanted: range) -> int:
        """About how many of its rows are in some buckets, of which it has any."""
        both = range(max(self.buckets.start, wanted.start), min(self.buckets.stop, wanted.stop))
        return self.facts.rows * len(both) // len(self.buckets)

    def meets(self, wanted: range) -> bool:
        """Whether any of its keys may be in some buckets."""
        return self.buckets.start < wanted.stop and wanted.start < self.buckets.stop


def read_table(config: TableConfig, chain: Sequence[Sequence[TablePart]], wanted: range = ALL) -> Table:
    """The table that has been written, or the rows of some logical buckets.

    Args:
        config: The table's, with which the facts must agree.
        chain: The files of all rows, then those of changes, in the order in which they were written: of each rank one,
            the same ranks each time.
        wanted: The buckets.

    Raises:
        ValueError: A file does not hold what its facts say.
        MemoryError: The system has no more.
    """
    parts = [[part for part in level if part.meets(wanted)] for level in chain]
    reader = _Reader(config, wanted, parts)
    for level in parts:
        reader.take(level)
    return reader.table(parts[-1])


class _Reader:
    """Rows that are read from one checkpoint after the other."""

    def __init__(self, config: TableConfig, wanted: range, levels: Sequence[Sequence[TablePart]]) -> None:
        self._config, self._wanted = config, wanted
        if self._is_whole(levels[0]):
            buckets = sum(part.facts.sensible_buckets for part in levels[0])
        else:  # keys that come in the order of an index crowd in one that is smaller
            buckets = Index.buckets_for(sum(part.likely_rows(wanted) for part in levels[-1]))
        self._directory, self._storage = new_directory(config, buckets), new_storage(config)
        self._rows: dict[int | None, int] = {}

    def table(self, last: Sequence[TablePart]) -> Table:
        """All that was read, as the facts of the last files have it."""
        directory, storage, is_whole = self._directory, self._storage, self._is_whole(last)
        least = Index.buckets_for(directory.num_rows)
        said = sum(part.facts.sensible_buckets for part in last) if is_whole else 0
        directory.set_buckets(said if is_whole else least)
        directory.count_seen(sum(part.facts.seen for part in last) if is_whole else None)
        storage.recount(directory.num_rows)
        storage.count_skipped(sum(part.facts.skipped_rows for part in last if part.buckets.start in self._wanted))
        return Table(self._config, directory, storage)

    def _is_whole(self, level: Sequence[TablePart]) -> bool:
        return all(part.is_within(self._wanted) for part in level)

    def take(self, level: Sequence[TablePart]) -> None:
        """Take over what one checkpoint's files hold."""
        with ExitStack() as stack:
            files = [stack.enter_context(safe_open(part.path, "numpy")) for part in level]
            for part, file in zip(level, files, strict=True):
                self._check(part, file)
            notes = [self._notes(file, part) for part, file in zip(level, files, strict=True)]
            joined = joined_notes(notes)
            self._directory.set_notes(joined)
            for part, file, its in zip(level, files, notes, strict=True):
                self._take(part, file, {**its, **joined})

    def _check(self, part: TablePart, file: Any) -> None:
        """Raise ValueError unless the file holds what could be rows of the table."""
        path, facts, config = part.path, part.facts, self._config
        for name, kind in (("keys", np.dtype(np.int64)), ("dropped", np.dtype(np.int64)), ("rows", config.dtype)):
            if file.get_slice(name).get_dtype() != NAMES[kind]:
                raise ValueError(f"{path}: {name} are {file.get_slice(name).get_dtype()}, expected is {NAMES[kind]}")
        keys, rows = (file.get_slice(name).get_shape() for name in ("keys", "rows"))
        if keys != [facts.written]:
            raise ValueError(f"{path}: keys of shape {keys} do not fit the manifest's {facts.written:,} rows")
        if rows != [facts.written, 1 + len(facts.parts), config.dim]:
            raise ValueError(f"{path}: rows of shape {rows} do not fit the manifest")

    def _take(self, part: TablePart, file: Any, notes: Mapping[str, npt.NDArray[Any]]) -> None:
        facts, directory = part.facts, self._directory
        keys, rows = file.get_slice("keys"), file.get_slice("rows")
        before = directory.num_rows
        self._drop(file.get_tensor("dropped"), part)
        self._storage.lay_out(facts.parts, directory.num_rows, facts.state_dtype)
        is_whole = part.is_within(self._wanted)  # else it cannot be told how many of its rows are wanted
        known = self._rows.get(facts.rank, 0) + directory.num_rows - before
        if is_whole and facts.rows > known + facts.written:
            raise ValueError(f"{part.path}: {facts.written:,} rows cannot make {facts.rows:,} of {known:,}")
        room = facts.rows - known
        if is_whole:
            self._storage.rows.reserve(directory.num_rows + max(0, room))
        self._take_rows(part, keys, rows, facts.written, room if is_whole else facts.rows, notes)
        self._count(part, directory.num_rows - before)

    def _count(self, part: TablePart, rows: int) -> None:
        """Add `rows` to those of the rank that wrote a part. Raises ValueError if they are not those of its facts."""
        facts, rank = part.facts, part.facts.rank
        self._rows[rank] = self._rows.get(rank, 0) + rows
        found = self._rows[rank]
        if (found != facts.rows) if part.is_within(self._wanted) else (found > facts.rows):
            raise ValueError(f"{part.path}: {found:,} rows; the manifest says {facts.rows:,}")

    def _drop(self, dropped: Int64s, part: TablePart) -> None:
        if dropped.ndim != 1:
            raise ValueError(f"{part.path}: dropped has {dropped.ndim} dimensions, expected is 1")
        dropped = dropped[self._mask(dropped, part)]
        directory = self._directory
        kept = directory.masked_without(dropped)
        if not kept.all():
            directory.retain(kept)
            self._storage.rows.compact(kept)
        directory.seen.drop(dropped)

    def _mask(self, keys: Int64s, part: TablePart) -> Bools:
        """Which of a file's keys are wanted."""
        buckets = buckets_of(keys) if part.buckets != ALL or self._wanted != ALL else None
        if buckets is None:
            return np.ones(len(keys), np.bool_)
        if len(keys) and not (part.buckets.start <= buckets.min() and buckets.max() < part.buckets.stop):
            raise ValueError(f"{part.path}: a key is there that belongs to another rank than {part.facts.rank}")
        wanted: Bools = (self._wanted.start <= buckets) & (buckets < self._wanted.stop)
        return wanted

    def _notes(self, file: Any, part: TablePart) -> Notes:
        """What policies knew; the rows that it is of are those in the file."""
        notes: Notes = {name: file.get_tensor(name) for name in NOTES if name in file.keys()}  # noqa: SIM118
        try:
            check_notes(notes, self._config, part.facts.written)
        except ValueError as error:
            raise ValueError(f"{part.path}: {error}") from error
        if "candidates" in notes:
            mask = self._mask(notes["candidates"], part)
            notes |= {name: notes[name][mask] for name in ("candidates", "candidate_counts")}
        return notes if part.buckets.start in self._wanted else left_to_another(notes)

    def _take_rows(
        self, part: TablePart, keys: Any, rows: Any, count: int, room: int, notes: Mapping[str, npt.NDArray[Any]]
    ) -> None:
        directory, memory, facts = self._directory, self._storage.rows, part.facts
        was_empty, came_all = not directory.num_rows, 0
        # Memory that has never been written takes the system longest: another thread writes while this one reads on.
        helps = not self._config.on_device and threads.get_num_threads() > 1  # a device's work belongs in one stream
        written: Future[None] | None = None
        with ThreadPoolExecutor(1, "sparsegroup-read") as helper:
            for piece in pieces(count, memory):
                some = keys[piece]
                mask = self._mask(some, part)
                some = some[mask]
                numbers = np.full(len(some), ABSENT) if was_empty else directory.find(some)
                new = numbers == ABSENT
                came = int(new.sum())
                came_all += came
                if came_all > room:  # before anything is written where there is no memory
                    raise ValueError(
                        f"{part.path}: {came_all:,} rows or more that are new; the manifest says {facts.rows:,}"
                    )
                memory.reserve(directory.num_rows + came)
                numbers[new] = np.arange(directory.num_rows, directory.num_rows + came)
                directory.index.reserve(directory.num_rows + came)
                try:
                    directory.index.insert(some[new], numbers[new])
                except ValueError as error:
                    raise ValueError(f"{part.path}: {error}") from error
                directory.rows_added(came)
                its = {name: array[piece][mask] if name in OF_ROWS else array for name, array in notes.items()}
                directory.set_uses(its, numbers)
                values = rows[piece]
                values = values[mask].reshape(len(some), values.shape[1] * values.shape[2])
                if helps and (written is None or written.done()):
                    if written is not None:
                        written.result()
                    written = helper.submit(memory.write_whole, numbers, values)
                else:
                    memory.write_whole(numbers, values)
        if written is not None:
            written.result()
