"""Arrays to a device, and counts from a device, without waiting."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


class Watch:
    """Three int64 counts on a device, and earlier values on the host; `source.table_rows` says what they count."""

    def __init__(self, device: torch.device) -> None:
        self.counters = torch.zeros(3, dtype=torch.int64, device=device)
        self._arrived = torch.zeros(3, dtype=torch.int64, device="cpu", pin_memory=device.type == "cuda")
        self._event: Any = None

    def send(self) -> None:
        """Request the current counts, unless an answer is still on its way or a graph is captured."""
        if self.counters.device.type != "cuda":
            self._arrived.copy_(self.counters)
            self._event = True
        elif not self._is_capturing() and (self._event is None or self._event.query()):
            self._arrived.copy_(self.counters, non_blocking=True)
            self._event = self._event or torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(torch.cuda.current_stream(self.counters.device))

    def arrived(self) -> list[int] | None:
        """Return the counts of an earlier step, None before any arrived or while a graph is captured; never waits."""
        if self._event is None or self._is_capturing() or not (self._event is True or self._event.query()):
            return None
        return self._arrived.tolist()

    def _is_capturing(self) -> bool:
        return self.counters.device.type == "cuda" and torch.cuda.is_current_stream_capturing()

    def now(self) -> list[int]:
        """Return the counts; waits for the device."""
        return self.counters.tolist()

    def clear(self, counter: int) -> None:
        """Set a counter to 0, and drop counts that are still on their way."""
        self.counters[counter] = 0
        self._arrived = torch.zeros_like(self._arrived, pin_memory=self.counters.device.type == "cuda")
        self._event = None


_DTYPES = {np.dtype(np.int64): torch.int64, np.dtype(np.int32): torch.int32, np.dtype(np.float32): torch.float32}


class Transfer:
    """Transfer of arrays to a device: two pinned buffers in turn, and a stream for which the current stream waits.

    To the CPU, arrays are copied.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: Any = None
        self._buffers: list[Tensor | None] = [None, None]
        self._events: list[Any] = [None, None]
        self._turn = 0

    def send(self, *arrays: npt.NDArray[Any]) -> list[Tensor]:
        """Return contiguous `arrays` (int64, int32 or float32) as tensors on the device, in one block of memory.

        The host waits only for the transfer before the last; the device waits only for this transfer.
        """
        places, size = [], 0
        for array in arrays:
            places.append(slice(size, size + array.nbytes))
            size += -(-array.nbytes // 16) * 16
        on_gpu = self.device.type == "cuda"
        block = self._next_buffer(size) if on_gpu else torch.empty(size, dtype=torch.uint8, device="cpu")
        memory = block.numpy()
        for place, array in zip(places, arrays, strict=True):
            memory[place] = array.reshape(-1).view(np.uint8)
        if on_gpu:
            block = self._copy_of(block[:size])
        return [
            block[place].view(_DTYPES[array.dtype]).view(array.shape)
            for place, array in zip(places, arrays, strict=True)
        ]

    def _next_buffer(self, size: int) -> Tensor:
        turn = self._turn = 1 - self._turn
        if self._events[turn] is None:
            self._stream = self._stream or torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            self._events[turn] = torch.cuda.Event()  # type: ignore[no-untyped-call]
        else:
            self._events[turn].synchronize()  # the buffer's last content has left it
        buffer = self._buffers[turn]
        if buffer is None or len(buffer) < size:
            buffer = torch.empty(2 * size, dtype=torch.uint8, device="cpu", pin_memory=True)
            self._buffers[turn] = buffer
        return buffer

    def _copy_of(self, buffer: Tensor) -> Tensor:
        with torch.cuda.stream(self._stream):
            block = torch.empty(len(buffer), dtype=torch.uint8, device=self.device)
            block.copy_(buffer, non_blocking=True)
            self._events[self._turn].record(self._stream)
        current = torch.cuda.current_stream(self.device)
        current.wait_event(self._events[self._turn])
        block.record_stream(current)
        return block
