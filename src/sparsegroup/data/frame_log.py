"""A data frame as a click log."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from sparsegroup.data.batches import Batch
from sparsegroup.data.frames import columns_of, feature_format, frame_batch, polars_frame
from sparsegroup.data.inference import kinds_of
from sparsegroup.data.log import Log
from sparsegroup.data.log_errors import ClickLogError


class FrameLog(Log):
    """The rows of a data frame, hashed as those of a file of the same values; all are for training.

    Args:
        frame: `[n]` rows of features, see `hash_keys`.
        labels: `[n]`, 0 or 1; None for rows without.
        columns: Column → its kind, see `ColumnKind`; None tells it from the rows.
        weights: `[n]`, ≥ 0; None where every row counts the same.
        whole: Take the rows as for scoring: a column of the log's own time need not be readable.
        name: Where the rows come from, for messages.

    Raises:
        ClickLogError: A column is missing, a value cannot be read, or there are not as many labels or weights as rows.

    Examples:
        >>> import polars as pl
        >>> from sparsegroup.data import FrameLog
        >>> log = FrameLog(pl.DataFrame({"user": ["ann", "bob", "ann"]}), [1, 0, 1])
        >>> log.fields, log.columns, next(log.batches(0, 3, 3)).labels.tolist()
        (('user',), {'user': 'category'}, [1.0, 0.0, 1.0])
    """

    def __init__(
        self,
        frame: Any,
        labels: npt.ArrayLike | None = None,
        *,
        columns: Mapping[str, str] | None = None,
        weights: npt.ArrayLike | None = None,
        whole: bool = False,
        name: str = "a data frame",
    ) -> None:
        data = polars_frame(frame)
        self.findings = columns_of(data) if columns is None else ()
        self.columns = dict(kinds_of(self.findings) if columns is None else columns)
        log = feature_format(self.columns)
        log = log.for_scoring() if whole else log
        self.name, self.fields, self.numbers, self.lists = name, log.fields, log.numbers, tuple(log.lists)
        self.train_rows, self.timed = len(data), log.time is not None
        self.labelled, self.weighted = labels is not None, weights is not None
        rows = frame_batch(data, log)
        self._rows = replace(
            rows,
            labels=rows.labels if labels is None else self._per_row("labels", labels),
            weights=None if weights is None else self._per_row("weights", weights),
        )

    def _per_row(self, what: str, values: npt.ArrayLike) -> torch.Tensor:
        given = np.asarray(values, np.float32)
        if given.shape != (self.train_rows,):
            raise ClickLogError(f"{self.name}: {what} must be [{self.train_rows}], got {list(given.shape)}")
        return torch.from_numpy(given.copy())

    def __len__(self) -> int:
        return self.train_rows

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """Rows `start` to `stop` in order, `size` at a time, the last ones fewer."""
        for first in range(start, min(stop, len(self)), size):
            yield self._rows[first : min(first + size, stop)]
