"""Which part of a step takes how long: where the ranks meet, they first wait for each other, which is a part, too."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import perf_counter, process_time
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

from sparsegroup.table.lookup import kernels
from sparsegroup.table.sharded.exchange import Collectives, Shards
from sparsegroup.table.sharded.routing import Sorter
from sparsegroup.table.table import Table

NETWORK, THREADS, WAITING = "network", "threads", "waiting"
SORTING, FINDING, STEP, REDUCED = "sorting keys", "lookup", "optimizer step", "all-reduce"
SPREADING, SUMMING = "vectors spread", "gradients summed"
EXCHANGES = {
    "header": "numbers out",
    "keys": "keys out",
    "vectors": "vectors out",
    "gradients": "gradients back",
}
PARTS = (SORTING, *EXCHANGES.values(), FINDING, SPREADING, NETWORK, SUMMING, REDUCED, STEP, THREADS, WAITING)
"""`NETWORK` is all that is no other part: the dense model forward and backward. `SPREADING` is of the vectors of
distinct keys over the batch and back, `SUMMING` of gradients at the rank that owns their rows."""


COMPUTED = (SORTING, FINDING, SPREADING, NETWORK, SUMMING, STEP)
"""Those in which a rank does not wait for anything."""


class StepParts:
    """Seconds of each part of steps. A part within another is not counted as that.

    In a part that computes, seconds of the processor are counted, which others may use, too. Where ranks meet or hand
    over, it is the time that passes.
    """

    def __init__(self) -> None:
        self._open: list[str] = []
        self._since = 0.0, 0.0
        self._now: dict[str, float] = defaultdict(float)
        self._all: list[dict[str, float]] = []
        self._owned, self._is_back = 0, False

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time within as that of a part. Any thread may do so while the one that trains waits for it."""
        self._switch()
        self._open.append(name)
        try:
            yield
        finally:
            self._switch()
            self._open.pop()

    def _switch(self) -> None:
        now, name = (perf_counter(), process_time()), self._open[-1] if self._open else NETWORK
        clock = name in COMPUTED
        self._now[name] += now[clock] - self._since[clock]
        self._since = now

    def meet(self, group: dist.ProcessGroup | None) -> None:
        """Wait for the other ranks."""
        with self.part(WAITING):
            dist.barrier(group)

    def end_step(self) -> int:
        """Close a step; gives the rows that were asked of this rank in it."""
        self._switch()
        self._all.append(dict(self._now))
        self._now.clear()
        owned, self._owned, self._is_back = self._owned, 0, False
        return owned

    def taken(self) -> dict[str, list[float]]:
        """Seconds of each part in each step so far, which are forgotten."""
        steps, self._all = self._all, []
        return {name: [step.get(name, 0.0) for step in steps] for name in PARTS}

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Have the parts of the table told apart within."""
        sort, swapped, look_up, waiting = Sorter.sort, Collectives.swapped, Table.look_up, Shards.waiting
        meet = Collectives.meet
        added_up, expanded = kernels.added_up, kernels.expanded

        def sorting(sorter: Sorter, keys: Any) -> Any:
            with self.part(SORTING):
                return sort(sorter, keys)

        def header(collectives: Collectives, what: str, *arguments: Any, **options: Any) -> Any:
            if collectives.ranks > 1:
                self.meet(collectives.group)
            with self.part(EXCHANGES["header"]):
                return meet(collectives, what, *arguments, **options)

        def exchange(collectives: Collectives, values: Any, sent: Any, got: Any, what: str) -> Any:
            if collectives.ranks > 1:
                self.meet(collectives.group)
            kind = what.partition(" ")[0]
            self._is_back = kind == "gradients"
            with self.part(EXCHANGES[kind]):
                return swapped(collectives, values, sent, got, what)

        def summing(*arguments: Any) -> Any:
            with self.part(SUMMING if self._is_back else SPREADING):
                return added_up(*arguments)

        def spreading(*arguments: Any) -> Any:
            with self.part(SPREADING):
                return expanded(*arguments)

        def finding(table: Table, keys: Any, insert: bool) -> Any:
            self._owned += len(keys)
            with self.part(FINDING):
                return look_up(table, keys, insert)

        @contextmanager
        def threads(shards: Shards) -> Iterator[None]:
            with self.part(THREADS), waiting(shards):
                yield

        with ExitStack() as patches:
            for owner, name, function in (
                (Sorter, "sort", sorting),
                (Collectives, "meet", header),
                (Collectives, "swapped", exchange),
                (Table, "look_up", finding),
                (Shards, "waiting", threads),
                (kernels, "added_up", summing),
                (kernels, "expanded", spreading),
            ):
                patches.enter_context(mock.patch.object(owner, name, function))
            self._since = perf_counter(), process_time()
            yield


def hook_of(parts: StepParts) -> Callable[..., torch.futures.Future[torch.Tensor]]:
    """For `DistributedDataParallel.register_comm_hook`: the usual all-reduce, while nothing else is done."""

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        parts.meet(None)
        with parts.part(REDUCED):
            gradients = bucket.buffer().div_(dist.get_world_size())
            dist.all_reduce(gradients)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(gradients)
        return done

    return hook
