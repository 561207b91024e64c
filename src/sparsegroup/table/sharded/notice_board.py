"""What ranks tell each other over the store of their group when their collective operations have failed."""

import json
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from queue import Empty, SimpleQueue
from typing import Any, Literal

import torch.distributed as dist

Failure = Literal["closed", "late", "other"]


@dataclass(frozen=True)
class Notice:
    """How an operation has failed on one rank.

    Attributes:
        number: The operation's, counted from 1 in the group.
        operation: Its name.
        failure: A connection was "closed", the time-out has passed ("late"), or it is another error.
        error: Its text.
        lacked: The ranks that have not told theirs.
        verdict: What the rank says of it in the end; empty while it still looks.
    """

    number: int
    operation: str
    failure: Failure
    error: str
    lacked: tuple[int, ...] = ()
    verdict: str = ""


class NoticeBoard:
    """The notices of some ranks in the store of their group. The store may be gone, or hang, as its host may.

    Args:
        group: The ranks.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.prefix = "sparsegroup-roll-call"
        self._store = _store_of(group)

    def post(self, rank: int, notice: Notice) -> None:
        """Put a rank's notice there, in place of its last one."""
        self._store.set(self._key(rank), json.dumps(asdict(notice)))

    def read(self, ranks: Iterable[int]) -> dict[int, Notice]:
        """The notices of those of `ranks` that have posted one."""
        found = {}
        for rank in ranks:
            if self._store.check([self._key(rank)]):
                content = json.loads(self._store.get(self._key(rank)))
                found[rank] = Notice(**content | {"lacked": tuple(content["lacked"])})
        return found

    def _key(self, rank: int) -> str:
        return f"{self.prefix}/{rank}"


def within(seconds: float, function: Callable[[], None]) -> None:
    """Call a function that may hang.

    Raises:
        TimeoutError: It has not returned; it goes on in a thread that nobody waits for.
        Exception: What it has raised.
    """
    outcome: SimpleQueue[Exception | None] = SimpleQueue()

    def call() -> None:
        try:
            function()
            outcome.put(None)
        except Exception as error:
            outcome.put(error)

    threading.Thread(target=call, name="sparsegroup-roll-call", daemon=True).start()
    try:
        error = outcome.get(timeout=seconds)
    except Empty:
        raise TimeoutError(f"no answer in {seconds:g} s") from None
    if error is not None:
        raise error


def until(is_true: Callable[[], bool], deadline: float) -> None:
    """Ask again and again until it is so, or until `deadline` of `time.monotonic`."""
    while not is_true() and time.monotonic() < deadline:
        time.sleep(0.03)


def _store_of(group: dist.ProcessGroup) -> Any:
    """The store in which a group's ranks met; it has no public name in torch up to 2.15."""
    found = getattr(dist.distributed_c10d, "_get_process_group_store", None)
    return group.get_group_store() if found is None else found(group)
