"""Work spread over as many threads as torch is set to use."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

T = TypeVar("T")


def run(parts: Sequence[Callable[[], T]]) -> list[T]:
    """The results of `parts`, the last of which runs in this thread. They must not wait for each other."""
    if len(parts) == 1:
        return [parts[0]()]
    pending = [_pool().submit(part) for part in parts[:-1]]
    last = parts[-1]()
    return [*(future.result() for future in pending), last]


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="sparsegroup")
