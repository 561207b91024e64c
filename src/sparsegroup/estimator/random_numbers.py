"""Random numbers that leave the caller's alone."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def own_random_numbers(state: torch.Tensor | None = None) -> Iterator[None]:
    """While it lasts, torch draws other random numbers; then the caller's go on where they were.

    Args:
        state: The state of torch's generator on the CPU to go on from, as `torch.get_rng_state` gives it.
    """
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(list(devices)):
        if state is not None:
            torch.set_rng_state(state)
        yield
