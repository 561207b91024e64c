"""Work spread over as many threads as torch is set to use."""

import os
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


if hasattr(os, "register_at_fork"):  # a forked process has the pool, but none of its threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
