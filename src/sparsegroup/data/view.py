"""A log as another one shows it."""

from dataclasses import dataclass

from sparsegroup.data.batches import Log


@dataclass(frozen=True)
class View:
    """What a log has in common with another one that is made of it: its name and columns.

    Attributes:
        log: The one it is made of.
    """

    log: Log

    @property
    def name(self) -> str:
        """The log's."""
        return self.log.name

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the categorical fields."""
        return self.log.fields

    @property
    def lists(self) -> tuple[str, ...]:
        """Fields of several values."""
        return self.log.lists

    @property
    def numbers(self) -> tuple[str, ...]:
        """Names of the numeric ones."""
        return self.log.numbers
