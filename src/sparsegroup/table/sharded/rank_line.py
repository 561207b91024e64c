"""The collective operations of the tables of a group, one after the other, whichever thread asks for them."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

Result = TypeVar("Result")


class RankLine:
    """Does what it is asked in order, so that all ranks that ask alike do alike.

    Keys are exchanged ahead while others compute; the vectors and gradients that are exchanged meanwhile wait for that.

    Attributes:
        group: Whose operations they are: nothing else uses it.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self._thread = ThreadPoolExecutor(1, "sparsegroup-ranks")
        self._last: Future[Any] = Future()
        self._last.set_result(None)

    @classmethod
    def of(cls, group: dist.ProcessGroup) -> "RankLine":
        """The line of the tables of a group. All its ranks have to call it when they make the first of them.

        The tables of the whole world get a group of their own, for others use that, too; else it is `group` itself.
        """
        if group not in _LINES:
            own = group
            if group is dist.group.WORLD:
                own = dist.new_group(backend=dist.get_backend_config(group), timeout=_timeout_of(group))
            _LINES[group] = cls(own)
        return _LINES[group]

    def begin(self, function: Callable[..., Result], *arguments: Any) -> "Future[Result]":
        """Have a function called by the line's thread."""
        begun = self._last = self._thread.submit(function, *arguments)
        return begun

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call a function after what was begun before it."""
        if self._last.done():
            return function(*arguments)
        return self.begin(function, *arguments).result()


_LINES: WeakKeyDictionary[dist.ProcessGroup, RankLine] = WeakKeyDictionary()


def _timeout_of(group: dist.ProcessGroup) -> timedelta | None:
    """How long a group waits for a rank; None where it does not tell, for torch's default."""
    device = torch.device("cpu" if "cpu:" in dist.get_backend_config(group) else "cuda")
    options: Any = getattr(group._get_backend(device), "options", None)
    return getattr(options, "_timeout", None)
