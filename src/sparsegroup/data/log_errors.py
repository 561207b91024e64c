"""What can be wrong with a click log, said with file and line."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from sparsegroup.errors import UserError

SAMPLES = 5
"""Bad rows that are shown."""

FILES = 20
"""Files with bad rows that are shown."""

SAMPLE = 80
"""Characters of a bad row that are shown."""


class ClickLogError(UserError):
    """A click log that cannot be read. The message begins with `FILE:LINE:` where there is a line."""


class LogOptionError(UserError):
    """Options that do not go together, or not with the log."""


@dataclass
class BadRows:
    """Rows of a file that were left out; they are added in order.

    Attributes:
        source: The file.
        reasons: Reason → number of rows.
        samples: The first few, as (line, reason, text).
    """

    source: str
    reasons: Counter[str] = field(default_factory=Counter)
    samples: list[tuple[int, str, str]] = field(default_factory=list)

    @property
    def count(self) -> int:
        """Number of rows skipped."""
        return self.reasons.total()

    def add(self, line: int, reason: str, text: str) -> None:
        """Count a row and keep it as a sample if it is one of the first."""
        self.reasons[reason] += 1
        if len(self.samples) < SAMPLES:
            self.samples.append((line, reason, text[:SAMPLE]))

    def __str__(self) -> str:
        lines = [f"{self.source}: skipped {self.count:,} bad row{'s' if self.count != 1 else ''}"]
        lines += [f"  {count:,} × {reason}" for reason, count in self.reasons.most_common()]
        lines += [f"  line {line}: {reason}: {text!r}" for line, reason, text in self.samples]
        return "\n".join(lines)


def shown_bad_rows(bads: Iterable[BadRows]) -> list[str]:
    """The bad rows of a log's files for a reader: a text for each of the first files that have any, then a count."""
    found = [bad for bad in bads if bad.count]
    texts = [str(bad) for bad in found[:FILES]]
    if others := found[FILES:]:
        texts.append(f"and {sum(bad.count for bad in others):,} bad rows in {len(others):,} more files")
    return texts
