"""Where the test set of a log begins, found while its rows go by."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sparsegroup.data.encoded_columns import LABEL, TIME
from sparsegroup.data.formats.log_format import LogFormat
from sparsegroup.data.log_errors import BadRows, ClickLogError
from sparsegroup.data.raw.encoding import Encoded

_DAY = 24 * 3600


@dataclass
class RowCount:
    """What is to be known of the rows so far to tell where the test set begins.

    Attributes:
        rows: So many.
        positives: Of them, label 1.
        last_time: Of the last row.
        boundary: First row of the last day, or of the test set where that is marked; -1 before there is one.
    """

    rows: int = 0
    positives: int = 0
    last_time: int = 0
    boundary: int = -1

    def note(self, encoded: Encoded, log: LogFormat, path: Path) -> None:
        """Go past the next rows.

        Raises:
            ClickLogError: They are not in the order of time, of a log whose last day is the test set; or training
                rows follow test rows.
        """
        batch = encoded.batch
        if not batch.num_rows:
            return
        if log.split == "last-day":
            times = batch.column(TIME).to_numpy()
            if times[0] < self.last_time or (np.diff(times) < 0).any():
                raise ClickLogError(f"{path}: rows must be in the order of time, for the last day is the test set")
            days = times // _DAY
            if days[-1] > self.last_time // _DAY or self.boundary < 0:
                self.boundary = self.rows + int(np.searchsorted(days, days[-1]))
            self.last_time = int(times[-1])
        if encoded.is_test is not None:
            first = int(encoded.is_test.argmax()) if encoded.is_test.any() else -1
            began = 0 if self.boundary >= 0 else first
            if began >= 0 and not encoded.is_test[began:].all():
                raise ClickLogError(f"{path}: rows with {log.split_column}=2 (test) must come last")
            if first >= 0 and self.boundary < 0:
                self.boundary = self.rows + first
        self.rows += batch.num_rows
        self.positives += int(batch.column(LABEL).to_numpy().sum())

    def train_rows(self, log: LogFormat) -> int:
        """How many rows, from the start, are for training, when all have gone by."""
        if log.split == "last-day":
            return self.boundary or self.rows  # of a single day there is no test set
        if log.split in ("column", "file"):
            return self.boundary if self.boundary >= 0 else self.rows
        if log.split == "last-of-7":
            return max(1, self.rows * 6 // 7)
        return self.rows - round(self.rows * log.test_fraction) if log.split == "last-fraction" else self.rows

    def checked_train_rows(
        self, log: LogFormat, source: Path, left_out: int, bads: Sequence[BadRows], max_bad: float
    ) -> int:
        """`train_rows` of a log that can be trained on.

        Args:
            log: The format.
            source: The log, for messages.
            left_out: Bad rows.
            bads: Examples of them.
            max_bad: Share of bad rows, in [0, 1), that is let pass.

        Raises:
            ClickLogError: More bad rows than that, no rows, or no training rows.
        """
        if left_out > max_bad * (self.rows + left_out):
            examples = "\n".join(map(str, bads))
            raise ClickLogError(
                f"{left_out:,} of {self.rows + left_out:,} rows are bad, more than max_bad={max_bad:g}\n{examples}"
            )
        if not self.rows:
            raise ClickLogError(f"{source}: no rows")
        train_rows = self.train_rows(log)
        if not train_rows:
            raise ClickLogError(f"{source}: no training rows; all {self.rows:,} are for testing")
        return train_rows
