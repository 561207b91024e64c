"""Which rank has not come to a collective operation, found out when it has failed."""

import re
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from sparsegroup.table.sharded.notice_board import Failure, Notice, NoticeBoard, until, within
from sparsegroup.table.sharded.rank_process import Fate, RankProcess

PATIENCE: Final = 2.0
"""Seconds in which the notices of all ranks have to be there: they fail at about the same time."""

FAREWELL: Final = 0.3
"""Seconds for which a rank stays, so that others can read its notice: the store may end with it."""

GONE: Final = ("ended", "stopped")
"""What keeps a process from coming."""

_HANG_UP = 0x5A9E
"""A tag that nobody sends."""


class RollCall:
    """Counts the operations of a group, and says who is missing when one has failed.

    Args:
        group: The ranks. Their operations come one after the other, in the same order on all of them.

    Attributes:
        ranks, rank: How many there are, and the number of this one.
        processes: Each rank's; None as long as it is unknown.
        verdict: Why the group is of no use any more; None as long as it is.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        self.processes: list[RankProcess | None] = [None] * self.ranks
        self.verdict: str | None = None
        self._board = NoticeBoard(group)
        self._number, self._operation = 0, ""

    @classmethod
    def of(cls, group: dist.ProcessGroup) -> "RollCall":
        """That of a group."""
        if group not in _CALLS:
            _CALLS[group] = cls(group)
        return _CALLS[group]

    @property
    def knows_ranks(self) -> bool:
        """Whether `introduce` has been called."""
        return self.processes[self.rank] is not None

    def introduce(self, processes: Sequence[RankProcess]) -> None:
        """Know the processes of the ranks, in their order."""
        self.processes = list(processes)
        self._board.prefix += f"/{processes[0].pid}-{processes[0].started}"  # a store may outlive a world

    def begin(self, operation: str) -> None:
        """Count an operation, and remember its name."""
        self._number += 1
        self._operation = operation

    def say(self, error: Exception, group: dist.ProcessGroup) -> str:
        """Who has not come to the last operation, which has failed with `error` here. It takes a few seconds at most.

        Also where the store does not answer. Nothing else is to be asked of the group: this is its verdict.
        """
        text = " ".join(str(error).split()).partition(" This is typically")[0]  # gloo's guess
        own = Notice(self._number, self._operation, _failure_of(text), f"{type(error).__name__}: {text}"[:400])
        notices, trouble = {self.rank: own}, ""
        with suppress(TimeoutError):
            within(0.5, lambda: self._hang_up(group))
        try:
            within(PATIENCE + 1, lambda: self._gather(notices))
        except Exception as raised:  # whatever a store raises
            trouble = str(raised).split("\n")[0] or type(raised).__name__
        notices = dict(notices)  # that thread may still be at it
        lacked = tuple(rank for rank in range(self.ranks) if rank not in notices)
        if trouble and len(lacked) == self.ranks - 1:
            about = self._by_processes(own)
            where = f". Nor can the store be asked in which the ranks met ({trouble}): its host, rank 0's, may be gone"
        else:
            about, where = self._by_notices(notices, lacked), ""
        self.verdict = f"{about} ({own.error}){where}"
        if not trouble:
            with suppress(Exception):
                within(0.5, lambda: self._board.post(self.rank, replace(own, lacked=lacked, verdict=about)))
        time.sleep(FAREWELL)
        return self.verdict

    def _gather(self, notices: dict[int, Notice]) -> None:
        """Post this rank's notice, and add those of the others, until all that may still come have."""
        self._board.post(self.rank, notices[self.rank])

        def is_complete() -> bool:
            lacked = [rank for rank in range(self.ranks) if rank not in notices]
            notices.update(self._board.read(lacked))
            return all(rank in notices or self._fate(rank) in GONE for rank in lacked)

        until(is_complete, time.monotonic() + PATIENCE)

    def _hang_up(self, group: dist.ProcessGroup) -> None:
        """Wake the ranks that wait for this one: gloo closes all connections of a group of which one times out."""
        if "gloo" not in dist.get_backend_config(group):
            return
        for rank in range(self.ranks):
            if rank != self.rank:
                with suppress(Exception):
                    work = dist.irecv(torch.empty(1), dist.get_global_rank(group, rank), group, tag=_HANG_UP)
                    if work is not None:
                        work.wait(timedelta(milliseconds=1))

    def _by_notices(self, notices: Mapping[int, Notice], lacked: Sequence[int]) -> str:
        own = notices[self.rank]
        for rank, notice in notices.items():
            if self.rank in notice.lacked and own.failure == "closed":  # else it has waited in vain itself
                return f"{self._name(rank)} had given up before, for: {notice.verdict}; {self._waited(own)}"
        at = defaultdict(list)
        for rank in sorted(notices):
            at[notices[rank].number, notices[rank].operation].append(self._name(rank))
        places = "; ".join(f"{', '.join(names)} in {_at(*place)}" for place, names in at.items())
        differ = f"the ranks have called different operations, or in different order: {places}"
        if len(at) > len({number for number, _ in at}):
            return differ
        if own.failure == "other":
            return f"{self._name(self.rank)} has failed in {_at(own.number, own.operation)}"
        parts = [
            f"{self._name(rank)} has failed in {_at(notice.number, notice.operation)}: {notice.error}"
            for rank, notice in notices.items()
            if notice.failure == "other"
        ]
        is_late = any(notice.failure == "late" for notice in notices.values())
        busy = [] if is_late else [rank for rank in lacked if self._fate(rank) == "runs"]
        if len(busy) == len(lacked):
            busy = []
        parts += [
            f"{self._name(rank)} {self._absence(rank, is_late, len(lacked) == 1)}"
            for rank in lacked
            if rank not in busy
        ]
        if parts:
            others = "".join(f"; no word yet from {self._name(rank)}, which runs" for rank in busy)
            return f"{' and '.join(parts)}; {self._waited(own)}{others}"
        if len(at) > 1:
            return differ
        return f"all ranks came to {_at(own.number, own.operation)}, but a connection between them failed"

    def _by_processes(self, own: Notice) -> str:
        """What can be said without the store: which processes on this host have ended or are stopped."""
        gone: list[int] = []

        def are_found() -> bool:
            gone[:] = [rank for rank in range(self.ranks) if self._fate(rank) in GONE]
            return bool(gone)

        until(are_found, time.monotonic() + 1)
        parts = [f"{self._name(rank)} {self._absence(rank, False, False)}" for rank in gone]
        return f"{' and '.join(parts) or 'some rank did not come'}; {self._waited(own)}"

    def _waited(self, own: Notice) -> str:
        return f"{self._name(self.rank)} waited in {_at(own.number, own.operation)}"

    def _absence(self, rank: int, is_late: bool, is_only: bool) -> str:
        """What a rank that has posted nothing does."""
        fate = self._fate(rank)
        if fate == "ended":
            return "has ended"
        if fate == "stopped":
            return "did not come: its process is stopped"
        if fate == "runs":
            return "did not come, though its process runs: it hangs or does something else"
        if is_only and not is_late:
            return "has ended or cannot be reached: its connection is closed"
        return "did not come: it hangs, has ended or cannot be reached"

    def _fate(self, rank: int) -> Fate:
        process = self.processes[rank]
        return "unknown" if process is None else process.fate()

    def _name(self, rank: int) -> str:
        process = self.processes[rank]
        return f"rank {rank} of {self.ranks}{'' if process is None else f' ({process})'}"


def _at(number: int, operation: str) -> str:
    return f"operation {number:,}, {operation!r}"


def _failure_of(error: str) -> Failure:
    """What gloo's message says: it has no error codes."""
    text = error.lower()
    if re.search("timed out|timeout", text):
        return "late"
    return "closed" if re.search("connection|broken pipe|socket|read error|write error|eof", text) else "other"


_CALLS: WeakKeyDictionary[dist.ProcessGroup, RollCall] = WeakKeyDictionary()
