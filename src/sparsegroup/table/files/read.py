"""Reading a table from its files: all of it, or the part of one rank, written by any number of ranks."""

from collections.abc import Sequence
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
from sparsegroup.table.config import TableConfig
from sparsegroup.table.directory.buckets import ABSENT
from sparsegroup.table.directory.directory import Directory
from sparsegroup.table.files.snapshot import DIRECTORY_STATE, OF_ROWS, State, check_state, joined_state, share_of_state
from sparsegroup.table.files.write import TableFacts, pieces
from sparsegroup.table.rows.host import new_storage
from sparsegroup.table.sharded.routing import BUCKETS, are_in
from sparsegroup.table.table import Table

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


ALL = range(BUCKETS)


@dataclass(frozen=True)
class TableFile:
    """A file of a table, or of one rank's part of it."""

    # path, facts: the file, and what the manifest says of it
    path: Path
    facts: TableFacts
    buckets: range  # the logical buckets of its keys

    def share_in(self, wanted: range) -> float:
        """The share of its buckets that are among others, and about that of its rows."""
        both = range(max(self.buckets.start, wanted.start), min(self.buckets.stop, wanted.stop))
        return len(both) / len(self.buckets)


def read_table(config: TableConfig, chain: Sequence[Sequence[TableFile]], wanted: range = ALL) -> Table:
    """The table that has been written, or its rows in the logical buckets `wanted`.

    `chain` has the files of all rows, then of changes in the order of writing: one of each rank,
    the same ranks each time. Their facts agree with the config.
    """
    levels = [[file for file in level if file.share_in(wanted)] for level in chain]
    reader = _Reader(config, wanted)
    for level in levels:
        reader.take(level)
    return reader.table(levels[-1])


class _Reader:
    """Rows that are read from one checkpoint after the other."""

    def __init__(self, config: TableConfig, wanted: range) -> None:
        self._config, self._wanted = config, wanted
        self._directory, self._storage = Directory(config), new_storage(config)
        self._rows: dict[int | None, int] = {}  # of each rank that has written

    def table(self, last: Sequence[TableFile]) -> Table:
        """All that was read, with what the facts of the last files say of it."""
        directory, storage, facts = self._directory, self._storage, [file.facts for file in last]
        directory.index = directory.index.shrunk()
        is_whole = all(map(self._is_whole, last))
        directory.count_seen(sum(one.seen for one in facts) if is_whole else None)
        storage.forget_live()
        storage.count_skipped(sum(file.facts.skipped_rows for file in last if file.buckets.start in self._wanted))
        return Table(self._config, directory, storage)

    def _is_whole(self, file: TableFile) -> bool:
        return file.share_in(self._wanted) == 1

    def take(self, level: Sequence[TableFile]) -> None:
        """Take over what one checkpoint's files hold."""
        with ExitStack() as stack:
            contents = [stack.enter_context(safe_open(file.path, "numpy")) for file in level]
            for file, content in zip(level, contents, strict=True):
                self._check(file, content)
            if not self._directory.num_rows:  # one growth of the index for all rows
                self._directory.index.reserve(
                    sum(int(file.facts.written * file.share_in(self._wanted)) for file in level)
                )
            states = [self._state(file, content) for file, content in zip(level, contents, strict=True)]
            joined = joined_state(states)
            self._directory.load_state(joined)
            for file, content, own in zip(level, contents, states, strict=True):
                self._take(file, content, {**own, **joined})

    def _check(self, file: TableFile, content: Any) -> None:
        """Raise ValueError unless the file holds what could be rows of the table."""
        facts, key = file.facts, np.dtype(np.int64)
        for name, dtype, shape in (
            ("keys", key, [facts.written]),
            ("dropped", key, None),
            ("rows", self._config.dtype, [facts.written, 1 + len(facts.parts), self._config.dim]),
        ):
            array = content.get_slice(name)
            if array.get_dtype() != NAMES[dtype]:
                raise ValueError(f"{file.path}: {name} are {array.get_dtype()}, expected is {NAMES[dtype]}")
            if shape not in (None, array.get_shape()):
                raise ValueError(
                    f"{file.path}: {name} of shape {array.get_shape()} do not fit the manifest's {facts.written:,} rows"
                )

    def _take(self, file: TableFile, content: Any, state: State) -> None:
        facts, directory = file.facts, self._directory
        before = directory.num_rows
        self._drop(content.get_tensor("dropped"), file)
        self._storage.lay_out(facts.parts, directory.num_rows, facts.state_dtype)
        self._take_rows(file, content, state)
        rows = self._rows[facts.rank] = self._rows.get(facts.rank, 0) + directory.num_rows - before
        # The number of rows is known only if all of them are wanted.
        if (rows != facts.rows) if self._is_whole(file) else (rows > facts.rows):
            raise ValueError(f"{file.path}: {rows:,} rows; the manifest says {facts.rows:,}")

    def _drop(self, dropped: Int64s, file: TableFile) -> None:
        if dropped.ndim != 1:
            raise ValueError(f"{file.path}: dropped has {dropped.ndim} dimensions, expected is 1")
        dropped = dropped[self._mask(dropped, file)]
        directory = self._directory
        kept = directory.masked_without(dropped)
        if not kept.all():
            directory.remove(directory.removal(kept), kept)
            self._storage.compact(kept)
        directory.seen.drop(dropped)

    def _mask(self, keys: Int64s, file: TableFile) -> Bools:
        """Which of a file's keys are wanted."""
        if file.buckets != ALL and not are_in(keys, file.buckets).all():
            raise ValueError(f"{file.path}: a key is there that belongs to another rank than {file.facts.rank}")
        return are_in(keys, self._wanted)

    def _state(self, file: TableFile, content: Any) -> State:
        """The state of the directory; what it has of rows is of those in the file."""
        state = {name: content.get_tensor(name) for name in DIRECTORY_STATE if name in content.keys()}  # noqa: SIM118
        try:
            check_state(state, self._config, file.facts.written)
        except ValueError as error:
            raise ValueError(f"{file.path}: {error}") from error
        return share_of_state(state, lambda keys: self._mask(keys, file), has_first=file.buckets.start in self._wanted)

    def _take_rows(self, file: TableFile, content: Any, state: State) -> None:
        """Take over the rows of a file."""
        directory, memory, facts = self._directory, self._storage.rows, file.facts
        keys, rows = content.get_slice("keys"), content.get_slice("rows")
        was_empty = not directory.num_rows
        # Memory that has never been written takes the system longest: another thread writes while this one reads on.
        helps = not self._config.on_device and threads.get_num_threads() > 1  # a device's work belongs in one stream
        written: Future[None] | None = None
        with ThreadPoolExecutor(1, "sparsegroup-read") as helper:
            for piece in pieces(facts.written, memory):
                some = keys[piece]
                mask = self._mask(some, file)
                some = some[mask]
                numbers = np.full(len(some), ABSENT) if was_empty else directory.find(some)
                new = numbers == ABSENT
                came = int(new.sum())
                memory.reserve(directory.num_rows + came)
                numbers[new] = np.arange(directory.num_rows, directory.num_rows + came)
                directory.begin(came)
                try:
                    directory.index.insert(some[new], numbers[new])
                except ValueError as error:
                    raise ValueError(f"{file.path}: {error}") from error
                its = {name: array[piece][mask] if name in OF_ROWS else array for name, array in state.items()}
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
