"""`sparsegroup serve` as a process: swaps under load, rollback, clients in other languages, and its end."""

import http.client
import json
import math
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from command import Run
from endings import Refused, ok, refused
from server_cases import exported, typed_rows, until, untrained, write_rows
from sparsegroup.publishing import Publisher
from sparsegroup.serving import TrainedModel
from sparsegroup.training.model import logit_bias_of

__all__ = ["ok", "refused"]

ROWS = typed_rows(20)
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.whole


class Server:
    """A process that serves, whose requests have limits."""

    def __init__(self, destination: str) -> None:
        options = (
            "--max-rows",
            20,
            "--max-bytes",
            "10kB",
            "--admin-token",
            "secret",
            "--threads",
            2,
            "--max-age",
            "1h",
        )
        command = ["-m", "sparsegroup", "serve", destination, "--port", 0, "--poll", "20ms", *options]
        self.process = subprocess.Popen([sys.executable, *map(str, command)], stderr=subprocess.PIPE, text=True)
        self.lines = list[str]()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def begun(self) -> "Server":
        until(lambda: any("listening on" in line for line in self.lines) or self.process.poll() is not None)
        assert self.process.poll() is None, self.lines
        self.port = int(next(line for line in self.lines if "listening on" in line).rpartition(":")[2])
        until(lambda: self.ask("/health")[0] == 200)
        return self

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)

    def ask(self, path: str, body: Any = None, token: str = "secret") -> tuple[int, Any]:
        connection = self.connection()
        content = None if body is None else json.dumps(body).encode()
        method = "GET" if path in ("/health", "/model", "/metrics") else "POST"
        connection.request(method, path, content, {"X-Admin-Token": token})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text) if "json" in answer.headers["Content-Type"] else text.decode()

    def waits_for(self, number: int) -> None:
        until(lambda: self.ask("/model")[1]["release"] == number)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return untrained(write_rows(tmp_path_factory.mktemp("serve") / "log.csv", typed_rows()))


@pytest.fixture(scope="module")
def publisher(trained: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Publisher]:
    with Publisher(tmp_path_factory.mktemp("published") / "there", compact_after=1e9) as publisher:  # only deltas
        publish(publisher, trained)
        yield publisher


def publish(publisher: Publisher, trained: TrainedModel) -> int:
    """Publish a release whose logits are higher by one than those of the last one."""
    bias = logit_bias_of(trained.model.network)
    assert bias is not None
    bias.data.copy_(torch.tensor(1.0 if publisher.latest is None else publisher.latest.number + 1.0))
    release = publisher.publish(publisher.draft(trained), samples=100, read_until=time.time())
    assert release is not None
    return release.number


@pytest.fixture(scope="module")
def server(publisher: Publisher) -> Iterator[Server]:
    server = Server(publisher.destination.name)
    with server.process:
        try:
            yield server.begun()
        finally:
            server.process.kill()
            server.reader.join()


def logits_of(answer: Any) -> list[float]:
    return [math.log(one / (1 - one)) for one in answer["predictions"]]


def test_each_published_change_is_served_and_no_request_fails(
    server: Server, publisher: Publisher, trained: TrainedModel
) -> None:
    status, first = server.ask("/predict", {"rows": ROWS})
    assert status == 200
    base = [logit - first["release"] for logit in logits_of(first)]
    answers, failed, ended = list[Any](), list[Any](), threading.Event()

    def load() -> None:
        connection = server.connection()
        connection.connect()
        while not ended.is_set():
            try:
                connection.request("POST", "/predict", json.dumps({"rows": ROWS}))
                answer = connection.getresponse()
                content = json.loads(answer.read())
                (answers if answer.status == 200 else failed).append(content)
            except (OSError, http.client.HTTPException) as error:
                failed.append(error)
        connection.close()

    clients = [threading.Thread(target=load) for _ in range(2)]
    for client in clients:
        client.start()
    for _ in range(5):
        number = publish(publisher, trained)
        server.waits_for(number)
        seen = len(answers)
        until(lambda seen=seen: len(answers) > seen + 4)
    ended.set()
    for client in clients:
        client.join()
    assert not failed
    assert {answer["release"] for answer in answers} >= {number, number - 1}
    for answer in answers:
        assert logits_of(answer) == pytest.approx([logit + answer["release"] for logit in base], abs=1e-3)
    described = server.ask("/model")[1]
    assert (described["kind"], described["samples"]) == ("delta", 100)
    assert 0 <= described["age_seconds"] < 120
    metrics = server.ask("/metrics")[1]
    assert f"sparsegroup_release {number}.0" in metrics
    assert 'path="/predict",status="500"' not in metrics
    swaps = [line for line in server.lines if line.startswith("serving release")]
    assert len(swaps) >= 6
    assert f"serving release {number} (delta " in swaps[-1]


def test_a_rollback_holds_through_releases_until_it_is_resumed(
    server: Server, publisher: Publisher, trained: TrainedModel
) -> None:
    number = publish(publisher, trained)
    server.waits_for(number)
    assert server.ask("/rollback") == (200, {"release": number - 1, "pinned": True})
    assert server.ask("/rollback", {"release": 1}) == (200, {"release": 1, "pinned": True})
    newest = publish(publisher, trained)
    assert server.ask("/predict", {"row": ROWS[0]})[1]["release"] == 1
    assert server.ask("/model")[1]["pinned"] == 1
    status, answer = server.ask("/rollback", {"release": 99})
    assert (status, f"no release 99; releases 1 to {newest} are kept" in answer["error"]) == (404, True)
    assert server.ask("/resume") == (200, {"pinned": False})
    server.waits_for(newest)


def test_a_client_in_another_language(server: Server, tmp_path: Path) -> None:
    if (node := shutil.which("node")) is None:
        pytest.skip("node is not installed")
    command = [node, ROOT / "examples" / "http_clients" / "score.mjs", f"http://127.0.0.1:{server.port}"]
    rows = tmp_path / "rows.json"
    rows.write_text(json.dumps(ROWS))
    done = subprocess.run([*command, rows], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    expected = server.ask("/predict", {"rows": ROWS})[1]
    assert [float(line) for line in done.stdout.splitlines()] == expected["predictions"]
    assert done.stderr == f"20 rows, by release {expected['release']}\n"
    rows.write_text(json.dumps([ROWS[0] | {"price": "cheap"}]))
    done = subprocess.run([*command, rows], capture_output=True, text=True, timeout=60)
    assert (done.returncode, "row 0, price: 'price' cannot be read" in done.stderr) == (1, True), done.stderr


def test_limits_of_requests_and_one_that_has_begun_is_answered_though_the_process_is_told_to_end(
    server: Server,
) -> None:
    """The last test of this server."""
    assert server.ask("/predict", {"rows": [*ROWS, ROWS[0]]})[0] == 413
    assert server.ask("/predict", {"row": ROWS[0] | {"site": "x" * 20_000}})[0] == 413
    assert server.ask("/resume", token="guess")[0] == 403
    body = json.dumps({"row": ROWS[0]}).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head.encode() + body[:10])
        until(lambda: "sparsegroup_requests_in_flight 2.0" in server.ask("/metrics")[1])
        server.process.send_signal(signal.SIGTERM)
        until(lambda: is_refused(server.port))
        connection.sendall(body[10:])
        answer = connection.makefile("rb").read()
    assert answer.startswith(b"HTTP/1.1 200")
    assert b'"predictions":[' in answer
    assert server.process.wait(60) == 0
    until(lambda: server.lines[-1] == "ended; all requests are answered")


def is_refused(port: int) -> bool:
    with suppress(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=60).close()
        return False
    return True


def test_an_export_folder_is_served_and_what_is_wrong_with_a_call(
    refused: Refused, ok: Run, trained: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, models = exported(trained, tmp_path / "export"), list[Any]()
    monkeypatch.setattr(sys, "setswitchinterval", float)
    monkeypatch.setattr("sparsegroup.server.run", lambda app, *_: models.append(app))
    assert "ended; all requests are answered" in ok("serve", folder, "--port", 0).stderr
    assert len(models) == 1
    assert "no/where: no such folder; give the folder of an export" in refused("serve", "no/where")
    Path("run").mkdir()
    Path("run/config.yaml").touch()
    assert "run: holds config.yaml, but no release" in refused("serve", "run")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = f"--port: cannot listen on 127.0.0.1:{port} (Address already in use)"
        assert said in refused("serve", folder, "--port", port)
    for option in ("--poll", "--timeout", "--max-age"):
        assert f"{option}: a time must be" in refused("serve", folder, option, "soon")
    assert "--admin-token must not be empty" in refused("serve", folder, "--admin-token", "")
    assert "--max-bytes: a size must be" in refused("serve", folder, "--max-bytes", "big")
    (folder / "network.safetensors").write_bytes(b"")
    assert "network.safetensors" in refused("serve", folder, "--port", 0)
