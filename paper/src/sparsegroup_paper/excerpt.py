"""A part of a log, around the place where its test set begins."""

from collections.abc import Iterator

from sparsegroup.data import Batch, Log, LogView


class Excerpt(LogView):
    """Consecutive rows of a log: its last training rows and its first test rows.

    Args:
        log: The log.
        train_rows: How many of its training rows.
        test_rows: How many of its test rows.

    Raises:
        ValueError: It has fewer, or `train_rows` is 0.
    """

    def __init__(self, log: Log, train_rows: int, test_rows: int) -> None:
        tests = len(log) - log.train_rows
        if not 0 < train_rows <= log.train_rows or not 0 <= test_rows <= tests:
            raise ValueError(
                f"{log.name} has {log.train_rows:,} training and {tests:,} test rows, "
                f"got train_rows={train_rows:,}, test_rows={test_rows:,}"
            )
        super().__init__(log)
        self.train_rows, self.test_rows = train_rows, test_rows

    def __len__(self) -> int:
        return self.train_rows + self.test_rows

    @property
    def features(self) -> int | None:
        """Number of distinct features in the training rows; None unless they are all those of the log."""
        return self.log.features if self.train_rows == self.log.train_rows else None

    def batches(self, start: int, stop: int, size: int) -> Iterator[Batch]:
        """Rows `start` to `stop` of the excerpt, `size` at a time."""
        first = self.log.train_rows - self.train_rows
        return self.log.batches(first + start, first + stop, size)


def excerpt(log: Log, rows: int) -> Excerpt:
    """At most `rows` rows around the first test row, with the same share of training rows as the whole log."""
    if len(log) <= rows:
        return Excerpt(log, log.train_rows, len(log) - log.train_rows)
    train_rows = max(1, rows * log.train_rows // len(log))
    return Excerpt(log, train_rows, rows - train_rows)
