"""Logs made of another log, for who writes one of their own."""

from sparsegroup.data.keys import Int64s
from sparsegroup.data.log import Log


class LogView(Log):
    """A log with the rows of another one, which it gives in its own way: a subclass defines `batches`.

    Args:
        log: The one it is made of.
    """

    def __init__(self, log: Log) -> None:
        self.log = log
        self.name, self.fields, self.lists, self.numbers = log.name, log.fields, log.lists, log.numbers
        self.train_rows, self.hash = log.train_rows, log.hash
        self.labelled, self.weighted, self.timed = log.labelled, log.weighted, log.timed
        self.bad_rows, self.notes = log.bad_rows, log.notes
        self.columns, self.findings = log.columns, log.findings
        self.identity, self.vocabulary, self.truth = log.identity, log.vocabulary, log.truth

    def __len__(self) -> int:
        return len(self.log)

    def cuts(self, longest: int) -> Int64s:
        """See `Log.cuts`: those of the other one, for a log of the same rows in the same order."""
        return self.log.cuts(longest)
