"""How long a feature has stayed away, as people write it: in steps, or as the log's clock has it."""

import re
from dataclasses import dataclass

from sparsegroup.table.directory.eviction import LATEST

_SECONDS = {"s": 1, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_PATTERN = re.compile(rf"(\d+) ?({'|'.join(_SECONDS)})")


@dataclass(frozen=True)
class Age:
    """An age, in one of two units.

    Attributes:
        steps: Steps of the optimizer; None where it is in seconds.
        seconds: Seconds of the log's own time; None where it is in steps.
    """

    steps: int | None = None
    seconds: int | None = None


def age_of(given: object) -> Age:
    """The age that is meant by a number of steps, or a text such as "5000", "90s", "30min", "12h", "7d" or "2w".

    Raises:
        ValueError: By none, or by one below 0 or above 2³² - 1.
    """
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return Age(steps=_countable(given))
    if isinstance(given, str):
        text = given.strip()
        if text.isdecimal():
            return Age(steps=_countable(int(text)))
        if match := _PATTERN.fullmatch(text):
            return Age(seconds=_countable(int(match[1]) * _SECONDS[match[2]]))
    raise ValueError(
        f"wants a number of steps, such as 5000, or a time, such as 90s, 30min, 12h, 7d or 2w: got {given!r}"
    )


def _countable(age: int) -> int:
    if age > LATEST:
        raise ValueError(f"an age must be at most {LATEST:,} steps or seconds")
    return age
