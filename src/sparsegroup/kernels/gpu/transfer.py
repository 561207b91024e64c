"""Arrays on their way to a device, while it goes on with what it does."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_NAMES = {np.dtype(np.int64): torch.int64, np.dtype(np.int32): torch.int32, np.dtype(np.float32): torch.float32}


class Transfer:
    """Sends arrays through two pinned buffers in turn, on a stream of its own, to which the current stream then waits.

    Args:
        device: Where to; for the CPU, arrays are copied.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream: Any = None
        self._buffers: list[Tensor | None] = [None, None]
        self._events: list[Any] = [None, None]
        self._turn = 0

    def send(self, *arrays: npt.NDArray[Any]) -> list[Tensor]:
        """The contiguous `arrays` (int64, int32 or float32) as tensors on the device.

        The host waits for none but the transfer before the last; the device, for the transfer alone.
        """
        places, size = [], 0
        for array in arrays:
            places.append(slice(size, size + array.nbytes))
            size += -(-array.nbytes // 16) * 16
        if self.device.type != "cuda":
            block = torch.empty(size, dtype=torch.uint8)
            _fill(block, places, arrays)
        else:
            block = self._send_pinned(size, places, arrays)
        return [
            block[place].view(_NAMES[array.dtype]).view(array.shape)
            for place, array in zip(places, arrays, strict=True)
        ]

    def _send_pinned(self, size: int, places: list[slice], arrays: tuple[npt.NDArray[Any], ...]) -> Tensor:
        turn = self._turn = 1 - self._turn
        buffer, event = self._buffers[turn], self._events[turn]
        if event is None:
            self._stream = self._stream or torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            event = self._events[turn] = torch.cuda.Event()  # type: ignore[no-untyped-call]
        else:
            event.synchronize()  # the buffer's last content has left it
        if buffer is None or len(buffer) < size:
            buffer = self._buffers[turn] = torch.empty(2 * size, dtype=torch.uint8, pin_memory=True)
        _fill(buffer, places, arrays)
        with torch.cuda.stream(self._stream):
            block = torch.empty(size, dtype=torch.uint8, device=self.device)
            block.copy_(buffer[:size], non_blocking=True)
            event.record(self._stream)
        current = torch.cuda.current_stream(self.device)
        current.wait_event(event)
        block.record_stream(current)
        return block


def _fill(block: Tensor, places: list[slice], arrays: tuple[npt.NDArray[Any], ...]) -> None:
    memory = block.numpy()
    for place, array in zip(places, arrays, strict=True):
        memory[place] = array.reshape(-1).view(np.uint8)
