"""A thread that helps to write to memory."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, Self

from sparsegroup.kernels.cpu import threads


class WriteHelper:
    """Calls that may come in any order, of which another thread takes one where there is one and it has none.

    Args:
        may_help: Whether another thread may; a device's work belongs in one stream.

    Writing to memory that has never been written takes the system longer than anything else here.
    """

    def __init__(self, may_help: bool) -> None:
        helps = may_help and threads.get_num_threads() > 1
        self._helper = ThreadPoolExecutor(1, "sparsegroup-read") if helps else None
        self._taken: Future[None] | None = None

    def __call__(self, function: Callable[..., None], *arguments: Any) -> None:
        if self._helper is None or (self._taken is not None and not self._taken.done()):
            function(*arguments)
            return
        if self._taken is not None:
            self._taken.result()
        self._taken = self._helper.submit(function, *arguments)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._helper is not None:
            self._helper.shutdown()
        if self._taken is not None and error is None:
            self._taken.result()
