"""HTTP process of an application: socket, shutdown, and limits of connections."""

import asyncio
import json
import logging
import signal
import socket
from functools import partial
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from sparsegroup.errors import UserError
from sparsegroup.server.app import Limits

try:
    import resource
except ImportError:  # on Windows, which has no such limit
    resource = None  # type: ignore[assignment]

_logger = logging.getLogger(__name__)

_SEND_SECONDS = 30.0
"""Seconds in which a client must drain the full send buffer."""

_DRAIN_SECONDS = 30
_BACKLOG = 2048
"""Largest number of connections that wait to be accepted."""

_ACCEPTED = 32
"""Largest number of connections that asyncio accepts before it handles a connection."""

_OTHER_FILES = 64
"""Largest expected number of open files that are not client connections."""

_CONTENT = json.dumps({"error": "the server has as many connections as it may have; try again"}).encode()
_FULL = b"\r\n".join(
    [
        b"HTTP/1.1 503 Service Unavailable",
        b"content-type: application/json",
        b"content-length: %d" % len(_CONTENT),
        b"connection: close",
        b"",
        _CONTENT,
    ]
)


def listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; port 0 takes a free one.

    Raises:
        UserError: The address is taken, or not one of this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends small answers without delay only if the protocol is named.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        return listener
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"`port`: cannot listen on {host}:{port} ({reason})", "port") from error


def run(app: FastAPI, listener: socket.socket, limits: Limits | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then answer requests in progress for up to 30 s.

    Connections beyond the limit are answered with 503. If the limit of open files allows fewer connections than
    `limits`, a message is logged. A connection is closed if it is idle, or if its client does not receive an answer for
    30 s.

    Args:
        app: The application.
        listener: A socket of `listening`.
        limits: The limits of connections.
    """
    limits = limits or Limits()
    config = uvicorn.Config(
        app,
        http=partial(_Connection, most=_allowed(limits.connections), idle=limits.idle),  # type: ignore[arg-type]
        backlog=_ACCEPTED,
        access_log=False,
        log_config=None,
        log_level="error",  # a client could fill the log with its warnings
        proxy_headers=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=_DRAIN_SECONDS,
    )
    # uvicorn sends itself the signal again once it has drained; the process is to end with 0 then.
    before = {one: signal.signal(one, lambda *_: None) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        _Server(config).run(sockets=[listener])
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _allowed(connections: int) -> int:
    """Return how many connections fit in the limit of open files, after raising the limit if possible."""
    if resource is None:
        return connections
    needed = connections + _ACCEPTED + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return connections
    raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    if raised == needed:
        return connections
    allowed = max(1, raised - _ACCEPTED - _OTHER_FILES)
    _logger.warning(f"{allowed:,} connections at a time, because {raised:,} files may be open (ulimit -n)")
    return allowed


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen with a longer queue than the number of connections that asyncio accepts in one go."""
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(_BACKLOG)


class _Connection(H11Protocol):
    """Connection of a client, which is closed if the client is too slow or the server has too many connections."""

    def __init__(self, *, most: int, idle: float, **about: Any) -> None:
        super().__init__(**about)
        self._most, self._idle = most, idle
        self._phase: str | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self._most:
            transport.write(_FULL)
            transport.close()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._watch()

    def _watch(self) -> None:
        """Start the time limit of the next phase. The application itself limits the time until its answer."""
        is_answering = self.cycle is not None and not self.cycle.response_complete
        seconds = {"sending": _SEND_SECONDS, "answering": None, "waiting": self._idle}
        phase = "sending" if self.flow.write_paused else "answering" if is_answering else "waiting"
        if phase == self._phase:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._phase, limit = phase, seconds[phase]
        self._timer = None if limit is None else self.loop.call_later(limit, self.transport.abort)
