"""Slow, idle, half-open, closed and too many connections do not prevent answers to other clients."""

import http.client
import json
import logging
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import pytest

from server_cases import Shelf, typed_rows, until
from sparsegroup.server import Limits, LoadedModel, Metrics, ReleaseFollower, create_app, listening, run

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="the test ends the server by a signal of its own process"
)
ROWS = typed_rows(3)
HEADERS = b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"
ROLLBACK = b"POST /rollback HTTP/1.1\r\nHost: x\r\nX-Admin-Token: secret\r\nContent-Length: 10\r\n\r\n"


class Site:
    """Server in this process, with clients."""

    def __init__(self, port: int) -> None:
        self.port, self.open = port, ExitStack()

    def connect(self, sent: bytes = b"") -> socket.socket:
        client = self.open.enter_context(closing(socket.create_connection(("127.0.0.1", self.port), timeout=60)))
        with suppress(OSError):  # it may be refused
            client.sendall(sent)
        return client

    def ask(self, path: str, body: Any = None) -> tuple[int, Any]:
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as connection:
            content = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request("GET" if body is None else "POST", path, content)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

    def predicts(self) -> bool:
        return self.ask("/predict", {"row": ROWS[0]})[0] == 200


def is_healthy(site: Site) -> bool:
    try:
        return site.ask("/health")[0] == 200
    except ConnectionError:
        return False


def is_closed(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        while client.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except ConnectionError:
        pass
    return True


def visit(model: LoadedModel, limits: Limits, what: Callable[[Site], None]) -> None:
    """Serve in this thread while another thread is a client."""
    metrics, failures = Metrics(), list[BaseException]()
    follower = ReleaseFollower(Shelf(), metrics)
    follower.model = model
    app = create_app(follower, metrics, limits, admin_token="secret")
    with listening("127.0.0.1", 0) as listener:
        site = Site(listener.getsockname()[1])

        def talk() -> None:
            try:
                with site.open:
                    until(lambda: is_healthy(site))
                    what(site)
            except BaseException as error:
                failures.append(error)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        client = threading.Thread(target=talk)
        client.start()
        run(app, listener, limits)
        client.join()
    if failures:
        raise failures[0]


SLOW = (b"", b"POST /predict HTTP/1.1\r\nHost: x\r\n", HEADERS % 10, ROLLBACK, HEALTH)
"""Requests that are not complete."""


def test_clients_that_send_nothing_or_slowly_hold_up_nobody(model: LoadedModel) -> None:
    def what(site: Site) -> None:
        clients = [site.connect(sent) for sent in SLOW for _ in range(30)]
        assert all(site.predicts() for _ in range(20))
        assert not any(map(is_closed, clients[:90]))

    visit(model, Limits(idle=300.0, seconds=300.0), what)


def test_clients_that_send_nothing_or_slowly_are_closed(model: LoadedModel) -> None:
    def what(site: Site) -> None:
        clients = [site.connect(sent) for sent in SLOW for _ in range(4)]
        dripping = site.connect(b"GET /")

        def are_closed() -> bool:
            with suppress(OSError):
                dripping.setblocking(True)
                dripping.sendall(b"x")
            return all(is_closed(client) for client in [*clients, dripping])

        until(are_closed)
        until(lambda: is_healthy(site))

    visit(model, Limits(idle=0.2, seconds=0.4), what)


def test_a_client_that_never_receives_its_answer_does_not_hold_the_server(model: LoadedModel) -> None:
    def what(site: Site) -> None:
        body = json.dumps({"rows": [ROWS[0]] * 500}).encode()
        request = HEADERS % len(body) + body
        client = site.connect(request)
        client.settimeout(0.3)
        with suppress(OSError):
            for _ in range(200):
                client.sendall(request)
        assert site.predicts()

    visit(model, Limits(seconds=60.0), what)


def test_more_connections_than_the_limit_are_refused_until_others_leave(model: LoadedModel) -> None:
    def what(site: Site) -> None:
        clients = [site.connect() for _ in range(30)]
        until(lambda: sum(is_closed(client) for client in clients) >= 20)

        def is_refused() -> bool:
            clients.append(site.connect())  # until none of the earlier connections counts
            with suppress(ConnectionError):  # the server may close before the request has arrived
                status, answer = site.ask("/health")
                return status == 503 and list(answer) == ["error"]
            return False

        until(is_refused)
        for client in clients:
            client.close()
        until(lambda: is_healthy(site))

    visit(model, Limits(connections=10, idle=300.0), what)


def test_the_limit_of_open_files_is_never_reached(model: LoadedModel, caplog: pytest.LogCaptureFixture) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(list(Path("/proc/self/fd").iterdir()))

    def what(site: Site) -> None:
        clients = [socket.socket() for _ in range(100)]
        for client in clients:
            site.open.enter_context(client)
            client.connect(("127.0.0.1", site.port))
        until(lambda: sum(is_closed(client) for client in clients) > 40)

    # The clients are in this process, so the server has fewer files than it counts with.
    resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 260, before[1]))
    try:
        with caplog.at_level(logging.WARNING):
            visit(model, Limits(connections=50, idle=300.0), what)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert not [record for record in caplog.records if "accept" in record.getMessage()]


def test_a_body_that_is_too_large_gets_its_answer(model: LoadedModel) -> None:
    def what(site: Site) -> None:
        for size in (100_001, 150_000, 700_000):
            status, answer = site.ask("/predict", b"x" * size)
            assert status == 413
            assert "100,000 bytes" in answer["error"]
        waiting = site.connect(
            b"POST /predict HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9999999\r\n\r\n"
        )
        assert waiting.recv(1 << 16).startswith(b"HTTP/1.1 413")
        assert site.predicts()

    visit(model, Limits(bytes=100_000, idle=300.0, seconds=300.0), what)


def test_clients_that_leave_cause_no_error(model: LoadedModel, caplog: pytest.LogCaptureFixture) -> None:
    def what(site: Site) -> None:
        for sent in (b"", b"POST", HEADERS % 10, HEADERS % 10 + b"{", ROLLBACK, ROLLBACK + b"{"):
            for _ in range(3):
                site.connect(sent).close()
        site.connect(b"\x00\xff nonsense\r\n\r\n")
        assert site.predicts()

    visit(model, Limits(idle=300.0, seconds=300.0), what)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
