"""Lines of progress with the remaining time."""

import time
from collections.abc import Callable
from typing import Literal

from sparsegroup.reporting.formatting import duration, size

Unit = Literal["bytes", "rows", "samples"]

HEARTBEAT = 60.0
"""Seconds between two lines if the output cannot rewrite a line."""


class Heartbeat:
    """Writer of a line at most every `seconds` by `clock`: amount, share, speed, details, and remaining time."""

    def __init__(
        self,
        name: str,
        unit: Unit,
        write: Callable[[str], object],
        seconds: float = HEARTBEAT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name, self._unit, self._write, self._seconds, self._clock = name, unit, write, seconds, clock
        self._begun = self._last = clock()
        self._first: int | None = None

    def update(self, done: int, total: int | None, detail: str, *, is_last: bool = False) -> None:
        """Write the line if it is due or the last line. `total` is the whole amount; None if unknown."""
        self._first = done if self._first is None else self._first
        now = self._clock()
        if is_last or now - self._last >= self._seconds:
            self._last = now
            self._write(self._line(done, total, detail, now))

    def _line(self, done: int, total: int | None, detail: str, now: float) -> str:
        shown, unit = (size, "") if self._unit == "bytes" else ("{:,}".format, f" {self._unit}")
        speed = (done - (self._first or 0)) / max(now - self._begun, 1e-9)
        share = f"{shown(done)} of {shown(total)}{unit} ({done / total:.1%})" if total else f"{shown(done)}{unit}"
        remaining = f"{duration((total - done) / speed)} left" if total is not None and done < total and speed else ""
        parts = (share, remaining, f"{shown(round(speed))}{unit}/s" if speed else "", detail)
        return f"{self._name}: {', '.join(part for part in parts if part)}"
