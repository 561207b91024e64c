"""The process of a rank: its name in messages, and whether it still runs."""

import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

Fate = Literal["runs", "stopped", "ended", "unknown"]


@dataclass(frozen=True)
class RankProcess:
    """A process, as one of another rank finds it again.

    Attributes:
        host, pid: Its name.
        started: When, in clock ticks since the boot, for numbers of processes are used again.
        scope: The boot and the namespace that `pid` belongs to; empty where the system does not tell them (not Linux).

    Examples:
        >>> own = RankProcess.own()
        >>> own.fate()
        'runs'
        >>> str(own) == f"{own.host}:{own.pid}"
        True
    """

    host: str
    pid: int
    started: int
    scope: str

    @classmethod
    def own(cls) -> Self:
        """The one that calls it."""
        pid = os.getpid()
        try:
            scope = Path("/proc/sys/kernel/random/boot_id").read_text().strip() + os.readlink("/proc/self/ns/pid")
            started = _stat(pid)[1]
        except OSError:
            scope, started = "", 0
        return cls(socket.gethostname(), pid, started, scope)

    def fate(self) -> Fate:
        """What has become of it; "unknown" on another host, or in another container."""
        if not self.scope or self.scope != RankProcess.own().scope:
            return "unknown"
        try:
            state, started = _stat(self.pid)
        except OSError:
            return "ended"
        if started != self.started or state in "ZX":  # another's number, or its parent has not looked yet
            return "ended"
        return "stopped" if state in "Tt" else "runs"

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"


def _stat(pid: int) -> tuple[str, int]:
    """The state and the start of a process, see proc(5)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[0], int(fields[19])
