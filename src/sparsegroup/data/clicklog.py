"""A click log in memory: rows of feature ids, ready for an embedding table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch

from sparsegroup.data.batches import Batch
from sparsegroup.data.errors import ClickLogError
from sparsegroup.data.schema import Schema

UNKNOWN = 0
"""Id of every value that training has not seen."""


@dataclass(frozen=True)
class ClickLog:
    """Rows in time order, the training rows first.

    Attributes:
        name: Where it comes from.
        fields: Names of the fields.
        ids: `[rows, fields]` int32; 0 is a value that the training rows do not hold.
        labels: `[rows]` float32, 0 or 1.
        train_rows: How many rows, from the start, are for training; the rest is the test set.
        vocabulary: Field → its values in order of first appearance. Ids count on through the fields from 1.
        informative: `[features + 1]` bool by id, where the truth is known (synthetic logs), else None.
    """

    name: str
    fields: tuple[str, ...]
    ids: npt.NDArray[np.int32]
    labels: npt.NDArray[np.float32]
    train_rows: int
    vocabulary: Mapping[str, pa.Array]
    informative: npt.NDArray[np.bool_] | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def features(self) -> int:
        """Distinct features in the training rows."""
        return sum(len(values) for values in self.vocabulary.values())

    @property
    def lists(self) -> tuple[str, ...]:
        """There are none: every field has one value."""
        return ()

    @property
    def numbers(self) -> tuple[str, ...]:
        """There are none: every field is categorical."""
        return ()

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """Rows `start` to `stop`, `size` at a time, with ids for keys and the row's number for the time."""
        for begin in range(start, stop, size):
            end = min(begin + size, stop)
            yield Batch(
                torch.from_numpy(self.ids[begin:end]).long(),
                torch.empty(end - begin, 0),
                torch.from_numpy(self.labels[begin:end]),
                torch.arange(begin, end),
            )


def encode(table: pa.Table, schema: Schema, source: str, test_fraction: float) -> ClickLog:
    """Number the features of `table`, whose columns are strings, in order of first appearance in training.

    Raises:
        ClickLogError: Test rows before training rows, or no rows on one of the sides.
    """
    rows = table.num_rows
    train_rows = rows - round(rows * test_fraction)
    if schema.split is not None:
        is_test = pc.equal(table.column(schema.split), "2").to_numpy()
        train_rows = rows - int(is_test.sum())
        if is_test[:train_rows].any():
            raise ClickLogError(f"{source}: rows with {schema.split}=2 (test) must come last")
    if not 0 < train_rows < rows:
        raise ClickLogError(f"{source}: {train_rows:,} training and {rows - train_rows:,} test rows; both must be > 0")
    columns = []
    for field in schema.fields:
        values = table.column(field)
        if length := schema.suffixes.get(field):
            values = pc.utf8_slice_codeunits(values, -length)
        columns.append(values)
    labels = pc.cast(table.column(schema.label), pa.float32()).to_numpy().copy()  # Arrow's is read-only
    return number_features(source, schema.fields, columns, labels, train_rows)


def number_features(
    name: str,
    fields: Sequence[str],
    columns: Sequence[pa.ChunkedArray],
    labels: npt.NDArray[np.float32],
    train_rows: int,
) -> ClickLog:
    """A `ClickLog` of one column of values per field; values that only the test rows hold become `UNKNOWN`."""
    ids = np.empty((len(labels), len(fields)), dtype=np.int32)
    vocabulary, next_id = {}, UNKNOWN + 1
    for number, (field, column) in enumerate(zip(fields, columns, strict=True)):
        encoded = pc.dictionary_encode(column).combine_chunks()
        codes = encoded.indices.to_numpy()  # in order of first appearance
        known = int(codes[:train_rows].max()) + 1
        ids[:, number] = np.where(codes < known, codes + next_id, UNKNOWN)
        vocabulary[field] = encoded.dictionary.slice(0, known)
        next_id += known
    return ClickLog(name, tuple(fields), ids, labels, train_rows, vocabulary)
