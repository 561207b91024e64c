"""Counts that kernels keep on the device, looked at without waiting for it."""

from typing import Any

import torch


class Watch:
    """Counts on a device, and what has been heard of them.

    Args:
        device: Where they are.

    Attributes:
        counters: `[3]` int64 on the device: for the kernels, see `rows.table_rows`.
    """

    def __init__(self, device: torch.device) -> None:
        self.counters = torch.zeros(3, dtype=torch.int64, device=device)
        self._heard = torch.zeros(3, dtype=torch.int64, pin_memory=device.type == "cuda")
        self._event: Any = None

    def send(self) -> None:
        """Ask for the counts as they are now, unless an answer is still on its way or a graph is captured."""
        if self.counters.device.type != "cuda":
            self._heard.copy_(self.counters)
            self._event = True
        elif not self._is_capturing() and (self._event is None or self._event.query()):
            self._heard.copy_(self.counters, non_blocking=True)
            self._event = self._event or torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(self.counters.device))

    def arrived(self) -> list[int] | None:
        """The counts of some step before, if an answer has come; never waits. None while a graph is captured."""
        if self._event is None or self._is_capturing():
            return None
        if self._event is not True and not self._event.query():
            return None
        return self._heard.tolist()

    def _is_capturing(self) -> bool:
        return self.counters.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def now(self) -> list[int]:
        """The counts, waiting for the device."""
        return self.counters.tolist()

    def clear(self, counter: int) -> None:
        """Let a counter begin again at 0."""
        self.counters[counter] = 0
        self._heard = torch.zeros_like(self._heard, pin_memory=self.counters.device.type == "cuda")  # none on its way
        self._event = None
