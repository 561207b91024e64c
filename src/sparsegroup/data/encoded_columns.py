"""The columns of encoded rows: their names and types in Arrow, and the tensors of a batch that they become."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from sparsegroup.data.batches import Bags, Batch
from sparsegroup.data.formats.log_format import LogFormat

LABEL, TIME, WEIGHT = "label", "time", "weight"


def schema_of(log: LogFormat) -> pa.Schema:
    """Of the rows of a log: `label` uint8, `time` int64, `weight` float32 where there is one, an int64 column of keys
    per field (lists of them where the field has several values), and a float32 column per number.
    """
    key, keys = pa.int64(), pa.list_(pa.int64())
    columns = [(LABEL, pa.uint8()), (TIME, pa.int64())]
    columns += [(WEIGHT, pa.float32())] if log.weight is not None else []
    columns += [(name, keys if name in log.lists else key) for name in log.fields]
    return pa.schema(columns + [(name, pa.float32()) for name in log.numbers])


def reserved(log: LogFormat) -> set[str]:
    """Names that no field and no number can have."""
    return {LABEL, TIME} | ({WEIGHT} if log.weight is not None else set())


def batch_of(
    table: pa.Table, fields: Sequence[str], numbers: Sequence[str], lists: Collection[str], weighted: bool
) -> Batch:
    """Encoded rows as a batch.

    Args:
        table: `[n]` rows, with the columns of `schema_of`.
        fields: All categorical ones, in order.
        numbers: Numeric ones, in order.
        lists: Those of the fields that have several values, in the order of the batch's bags.
        weighted: Whether the rows have weights.
    """

    def matrix(names: Sequence[str], dtype: Any) -> Tensor:
        out = np.empty((table.num_rows, len(names)), dtype)
        for number, name in enumerate(names):
            out[:, number] = table.column(name).to_numpy()
        return torch.from_numpy(out)

    return Batch(
        matrix([name for name in fields if name not in lists], np.int64),
        matrix(numbers, np.float32),
        torch.from_numpy(table.column(LABEL).to_numpy().astype(np.float32)),
        torch.from_numpy(table.column(TIME).to_numpy().copy()),
        weights=torch.from_numpy(table.column(WEIGHT).to_numpy().copy()) if weighted else None,
        bags=tuple(_bags(table.column(name).combine_chunks()) for name in lists),
    )


def _bags(column: pa.ListArray) -> Bags:
    offsets = column.offsets.to_numpy().astype(np.int64)
    keys = column.values.to_numpy()[offsets[0] : offsets[-1]]  # a slice of an array keeps all its values
    return Bags(torch.from_numpy(keys.copy()), torch.from_numpy(offsets - offsets[0]))
