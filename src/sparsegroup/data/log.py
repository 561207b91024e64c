"""What every kind of log offers, a part of a log, and a log in memory."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparsegroup.artifact.manifest import FileFacts, check_file
from sparsegroup.data.batches import Batch
from sparsegroup.data.keys import HASH, Int64s
from sparsegroup.data.kinds import ColumnFinding
from sparsegroup.data.local_files import names_of
from sparsegroup.data.schema import LogSchema
from sparsegroup.errors import ClickLogError

Float64s = npt.NDArray[np.float64]

_READ = 4096
"""Rows that are read at a time."""

BLOCK_BYTES = 128 << 20
"""Approximate limit of a shuffled block, in bytes."""

_SIZED = 1000
"""Number of rows that are sampled to measure lists."""

CHUNK_ROWS = 1 << 8
"""Rows of a chunk of a log that can be read from any row on."""


class Log(ABC):
    """Rows in time order, the training rows first.

    A kind of log sets `name`, `fields` and `train_rows`, has a length and gives batches; it sets what else differs
    from the values below.

    An open log can be pickled, so that another process need not count its rows again: the rows are sent only if they
    are in memory. A log in a store is sent with the keys that open the store.

    Attributes:
        name: Where the rows come from, for messages.
        fields: Names of the categorical fields; a field's place is its number in the keys, unless it shares the
            vocabulary of another field: see `LogSchema.key_fields`.
        lists: Fields that have several values, in the order of a batch's bags.
        numbers: Names of the numeric columns.
        train_rows: Number of training rows, which come first; the others are the test set.
        hash: Name of the hash that keys are made with; "none" for keys that are drawn, not hashed.
        labelled: Whether the rows have labels; if not, all labels of batches are 0.
        binary: Whether all labels are 0 or 1; else they are any finite numbers, numbers of `classes`, or of `tasks`.
        classes: Texts of the classes whose numbers, from 0, the labels are; none where labels are something else.
        tasks: Names of the tasks where labels are of several: they are `[n, tasks]` then, NaN where one has none.
        weighted: Whether the rows have weights.
        timed: Whether the times of batches come from a column of the log; if not, they are the rows' numbers.
        bad_rows: Reason → number of rows that were left out.
        notes: Messages for its reader, such as which rows were left out, and why.
        identity: JSON that differs for another log or one read in another way, and is the same for a copy; None if
            there is nothing to compare. A run keeps it, to refuse to resume on a log that has changed.
        columns: Column of the source → what it is, see `ColumnKind`; empty if the format fixes that. It reads another
            log in the same way: `open_log(path, columns=log.columns)`.
        described: The content of the schema file that the log was read by, which reads another log in the same way:
            `open_log(path, schema=log.described)`. None without a schema file.
        findings: Why the columns are that, if it was inferred.
        vocabulary: Parquet file of key, field and value, if there is one.
        vocabulary_facts: Size and digest of the vocabulary, if they were recorded.

    Examples:
        >>> from sparsegroup.data.batches import Batch
        >>> import torch
        >>> class Coin(Log):
        ...     name, fields, train_rows = "coin", ("side",), 900
        ...     def __len__(self):
        ...         return 1_000
        ...     def batches(self, start, stop, size):
        ...         for first in range(start, stop, size):
        ...             sides = torch.arange(first, min(first + size, stop)) % 2
        ...             yield Batch(sides[:, None], torch.empty(len(sides), 0), sides.float(), sides)
        >>> [len(batch) for batch in Coin().batches(990, 1_000, 4)]
        [4, 4, 2]
    """

    name: str
    fields: tuple[str, ...]
    train_rows: int
    lists: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    hash: str = HASH
    labelled: bool = True
    binary: bool = True
    classes: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    weighted: bool = False
    timed: bool = False
    bad_rows: Mapping[str, int] = {}
    notes: tuple[str, ...] = ()
    identity: Mapping[str, Any] | None = None
    columns: Mapping[str, str] = {}
    described: Mapping[str, Any] | None = None
    findings: tuple[ColumnFinding, ...] = ()
    vocabulary: Path | None = None
    vocabulary_facts: FileFacts | None = None

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows."""

    @abstractmethod
    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """Rows `start` to `stop` in order, `size` at a time, the last ones fewer.

        Raises:
            ClickLogError: They cannot be read.
        """

    def chunk_starts(self) -> Int64s:
        """First rows `[n]`, ascending, of the chunks by which several ranks share the log.

        A kind of log says where its reader can begin without reading the rows before.
        """
        return np.arange(0, len(self), CHUNK_ROWS)

    def values_of(self, keys: Int64s, most_rows: int) -> dict[int, str]:
        """Key → its text, for the `keys` `[n]` whose text is found.

        A log without a vocabulary is read up to about row `most_rows` for it. Raises ClickLogError if the vocabulary is
        damaged.
        """
        if not len(keys) or (vocabulary := self.checked_vocabulary()) is None:
            return {}
        return names_of(vocabulary, keys)

    def checked_vocabulary(self) -> Path | None:
        """Return the vocabulary. ClickLogError: the file has changed since it was written."""
        if self.vocabulary is not None and self.vocabulary_facts is not None:
            check_file(self.vocabulary, self.vocabulary_facts, ClickLogError)
        return self.vocabulary

    def sample(self, rows: int) -> tuple[Float64s, Float64s, torch.Tensor]:
        """Labels `[n]`, weights `[n]` and numbers `[n, numbers]` of the first training rows, at most `rows` of them.

        Labels of several tasks are `[n, tasks]`.
        """
        labels = [np.zeros((0, len(self.tasks)) if self.tasks else 0)]
        weights, numbers = [np.zeros(0)], [torch.empty(0, len(self.numbers))]
        for batch in self.batches(0, min(self.train_rows, rows), _READ):
            labels.append(batch.labels.double().numpy())
            weights.append(np.ones(len(batch)) if batch.weights is None else batch.weights.double().numpy())
            numbers.append(batch.numbers)
        return np.concatenate(labels), np.concatenate(weights), torch.cat(numbers)

    @property
    def schema(self) -> LogSchema:
        """Return the columns that a model reads."""
        return LogSchema.of(self.fields, self.lists, self.numbers, self.columns, self.hash)

    @cached_property
    def row_bytes(self) -> int:
        """Mean number of bytes of a row in memory. Lists are measured in the first 1,000 rows."""
        single = len(self.fields) - len(self.lists)
        fixed = 8 * single + 4 * len(self.numbers) + 4 * max(1, len(self.tasks)) + 8 + 4 * self.weighted
        first = next(self.batches(0, min(_SIZED, len(self)), _SIZED), None) if self.lists else None
        values = sum(8 * len(bags.keys) for bags in first.bags) if first is not None else 0
        return fixed + 8 * len(self.lists) + values // max(1, 0 if first is None else len(first))

    @cached_property
    def most_shuffled(self) -> int:
        """Largest number of rows in a shuffled block, ≥ 1: about 128 MiB of rows."""
        return max(1, BLOCK_BYTES // self.row_bytes)

    def made_of(self) -> dict[str, tuple[str, ...]]:
        """Column of the source → the fields and numbers that are made of it, such as the hour and weekday of a time."""
        made: dict[str, tuple[str, ...]] = {}
        for name in (*self.fields, *self.numbers):
            column, _, _ = name.rpartition(".")
            column = column if name not in self.columns and column in self.columns else name
            made[column] = (*made.get(column, ()), name)
        return made

    @property
    def features(self) -> int | None:
        """Number of distinct features in the training rows; None where they have not been counted."""
        return None

    def places(self, start: int, batch: Batch) -> Int64s:
        """Places `[n]` of the rows of `batch`, whose first row is row `start`, in what the log was read from, from 0.

        They differ from the rows' numbers where rows have been left out.
        """
        return np.arange(start, start + len(batch))


@dataclass(eq=False)
class MemoryLog(Log):
    """Rows of categorical fields of one value each.

    Attributes:
        name: Where the rows come from.
        fields: Names of the fields.
        keys: `[rows, fields]` int64, each with its field in the high bits, as `sparsegroup.data.keys` makes them.
        labels: `[rows]` float32, 0 or 1.
        train_rows: Number of rows, from the start, for training; the rest is the test set.
        informative: Keys that have an effect on the label, ascending, where the truth is known (synthetic logs), else
            None.
    """

    name: str
    fields: tuple[str, ...]
    keys: Int64s
    labels: npt.NDArray[np.float32]
    train_rows: int
    informative: Int64s | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def seen(self) -> Int64s:
        """The distinct features in the training rows, ascending."""
        return np.unique(self.keys[: self.train_rows])

    @property
    def features(self) -> int:
        """Number of distinct features in the training rows."""
        return len(self.seen)

    def are_informative(self, keys: Int64s) -> npt.NDArray[np.bool_]:
        """Which of `keys` have an effect on the label.

        Raises:
            ValueError: The truth is not known.
        """
        if self.informative is None:
            raise ValueError(f"{self.name}: which features are informative is not known")
        return np.isin(keys, self.informative)

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """Rows `start` to `stop`, `size` at a time, with the row's number for the time."""
        for begin in range(start, stop, size):
            end = min(begin + size, stop)
            yield Batch(
                torch.from_numpy(self.keys[begin:end]),
                torch.empty(end - begin, 0),
                torch.from_numpy(self.labels[begin:end]),
                torch.arange(begin, end),
            )
