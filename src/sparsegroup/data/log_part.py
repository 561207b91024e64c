"""A part of a log's training rows as a log of its own."""

from collections.abc import Iterator, Sequence

from sparsegroup.data.batches import Batch
from sparsegroup.data.keys import Int64s
from sparsegroup.data.log import Log, LogView
from sparsegroup.data.row_runs import Run, overlap


class LogPart(LogView):
    """Training rows of a log, in their order: some to train on, and those that follow in the place of a test set.

    Args:
        log: The log, whose own test rows are no part of it.
        first: Row of `log` that it begins with.
        train_rows: Rows to train on, ≥ 1.
        test_rows: Rows after these, ≥ 1.

    Raises:
        ValueError: They are not all training rows of `log`, or there are none of a kind.

    Examples:
        >>> from sparsegroup.data import SyntheticConfig, synthetic_log
        >>> from sparsegroup.data.log_part import LogPart
        >>> part = LogPart(synthetic_log(SyntheticConfig(rows=200), seed=0), first=100, train_rows=30, test_rows=10)
        >>> len(part), part.train_rows, next(part.batches(30, 40, 2)).times.tolist()
        (40, 30, [130, 131])
    """

    def __init__(self, log: Log, first: int, train_rows: int, test_rows: int) -> None:
        super().__init__(log)
        if first < 0 or train_rows < 1 or test_rows < 1 or first + train_rows + test_rows > log.train_rows:
            raise ValueError(
                f"{train_rows} and {test_rows} rows from row {first} on are not all training rows: {log.name} has "
                f"{log.train_rows}"
            )
        self.first, self.train_rows, self._rows = first, train_rows, train_rows + test_rows

    def __len__(self) -> int:
        return self._rows

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """See `Log.batches`."""
        return self.run_batches([(start, stop)], size)

    def run_batches(self, runs: Sequence[Run], size: int) -> Iterator[Batch]:
        """See `Log.run_batches`."""
        inside = overlap(runs, 0, self._rows)
        return self.log.run_batches([(self.first + start, self.first + stop) for start, stop in inside], size)

    def cuts(self, longest: int) -> Int64s:
        """See `Log.cuts`."""
        cuts = self.log.cuts(longest) - self.first
        return cuts[(cuts >= 0) & (cuts < self._rows)]
